"""Idle time of each stream between its operations: the host, the next kernel's start, other."""

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

_DELAY = Argument(
    "delay",
    "gaps shorter than this many ns, which the host did not cause, are the wait between kernels "
    "that follow each other; Holistic Trace Analysis says 30 ns and compares with microseconds",
    30_000,
    low=0,
)
_SQL = f"""
WITH called AS (
    SELECT op AS id, arg_max(start_ns, call) AS call_ns
    FROM launch JOIN cuda_call ON cuda_call.id = launch.call GROUP BY op
), neighbours AS (
    SELECT process_id, device, stream, call_ns, lag(end_ns) OVER stream_work AS before_ns,
        start_ns - before_ns AS gap
    FROM {{early}}gpu_work AS work LEFT JOIN called USING (id)
    WINDOW stream_work AS (PARTITION BY process_id, device, stream ORDER BY start_ns, work.id)
), described AS (
    SELECT process_id, device, stream, CASE WHEN call_ns > before_ns THEN 'host wait'
        WHEN gap < {{delay}} THEN 'kernel wait' ELSE 'other' END AS category,
        sum(gap)::BIGINT AS idle, {described("gap")}
    FROM neighbours WHERE before_ns IS NOT NULL GROUP BY ALL
)
SELECT process_id, device, stream, category, idle,
    {share("idle", "sum(idle) OVER (PARTITION BY process_id, device, stream)")},
    described.* EXCLUDE (process_id, device, stream, category, idle)
FROM described ORDER BY process_id, device, stream, category
"""

REPORTS = [
    Report(
        "gpu_idle_breakdown",
        "GPU Idle Time by Stream",
        "Gaps between operations that follow each other on one stream. Host wait: the call that "
        "launched the next operation began after the one before had ended. Kernel wait: it did "
        "not, and the gap is shorter than 'delay'. Other: it did not, and the gap is longer, as "
        "when a stream waits for an event of another. Where operations of one stream overlap, the "
        "gap is negative and counts so. Idle time of the whole device by cause is what "
        "'stepscope diagnose' tells.",
        (
            *STREAM,
            Column("Category", doc="host wait, kernel wait or other"),
            Column("Idle", "dur", "sum of the gaps"),
            share_column("Share", "of the stream's gaps"),
            *described_columns("dur"),
        ),
        _SQL,
        arguments=(_DELAY, WITHOUT_LAST_STEP),
        aliases=("get_idle_time_breakdown",),
        needs=(GPU_WORK, CUDA_CALLS),
    )
]
