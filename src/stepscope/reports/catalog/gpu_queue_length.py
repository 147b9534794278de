"""How many operations wait in the queue of each stream, over time."""

from __future__ import annotations

from stepscope.reports.gpu_work import (
    STREAM,
    WITHOUT_LAST_STEP,
    described,
    described_columns,
    share,
    share_column,
)
from stepscope.reports.needs import CUDA_CALLS, GPU_WORK
from stepscope.reports.report import Argument, Column, Report

_FULL = Argument("full", "the queue is full from this many operations on", 1024, low=1)
_TRACE = """
SELECT time_ns, process_id, device, stream, value
FROM {early}queue_length JOIN gpu_work USING (id) ORDER BY process_id, device, stream, number
"""
_SUMMARY = f"""
WITH held AS (
    SELECT id, value, lead(time_ns) OVER (PARTITION BY id ORDER BY number) - time_ns AS ns
    FROM {{early}}queue_length
), described AS (
    SELECT id, coalesce(sum(ns) FILTER (value >= {{full}}), 0)::BIGINT AS blocked,
        sum(ns)::BIGINT AS covered, {described("value")}
    FROM held GROUP BY id
)
SELECT process_id, device, stream, described.* EXCLUDE (id, blocked, covered), blocked,
    {share("blocked", "covered")}
FROM described JOIN gpu_work USING (id) ORDER BY process_id, device, stream
"""

_MEANING = (
    "The queue of a stream holds the operations whose launching call has begun and that have not "
    "begun on the GPU themselves; work without a recorded call is left out."
)

REPORTS = [
    Report(
        "gpu_queue_length_trace",
        "Queue Length Over Time",
        "Each change of the number of operations in a stream's queue; the value holds until the "
        "stream's next row. " + _MEANING,
        (
            Column("Time", "ts", "when the length changes"),
            *STREAM,
            Column("Length", doc="operations in the queue from then on"),
        ),
        _TRACE,
        arguments=(WITHOUT_LAST_STEP,),
        aliases=("get_queue_length_time_series",),
        needs=(GPU_WORK, CUDA_CALLS),
    ),
    Report(
        "gpu_queue_length_sum",
        "Queue Length by Stream",
        "Statistics of the queue's length over its changes (each counts once, however long it "
        "holds), and the time in which the queue was full, so that a launching call had to wait. "
        + _MEANING,
        (
            *STREAM,
            *described_columns(),
            Column("Full", "dur", "time in which the queue held at least 'full' operations"),
            share_column("Full Share", "of the time from the queue's first change to its last"),
        ),
        _SUMMARY,
        arguments=(_FULL, WITHOUT_LAST_STEP),
        aliases=("get_queue_length_summary", "get_time_spent_blocked_on_full_queue"),
        needs=(GPU_WORK, CUDA_CALLS),
    ),
]
