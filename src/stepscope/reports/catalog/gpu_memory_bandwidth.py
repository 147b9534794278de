"""Bandwidth of copies and memsets by kind, over time."""

from __future__ import annotations

from stepscope.reports.gpu_work import DEVICE, WITHOUT_LAST_STEP, described, described_columns
from stepscope.reports.needs import MEMORY_OPS
from stepscope.reports.report import Column, Report

_KINDS = """(
    SELECT id, process_id, device, CASE WHEN kind = 'memset' THEN 'Memset'
        ELSE 'Memcpy ' || coalesce(copy_kind, 'Unknown') END AS kind
    FROM gpu_work
)"""
_TRACE = f"""
SELECT time_ns, process_id, device, kind, value
FROM {{early}}bandwidth JOIN {_KINDS} USING (id) ORDER BY process_id, device, kind, number
"""
_SUMMARY = f"""
SELECT process_id, device, kind, {described("value")}
FROM {{early}}bandwidth JOIN {_KINDS} USING (id) WHERE value > 0
GROUP BY process_id, device, kind ORDER BY process_id, device, kind
"""
_MEANING = (
    "The bandwidth of a copy or memset is its size over its length, from its begin to its end; "
    "those that run at the same time add up."
)

REPORTS = [
    Report(
        "gpu_memory_bandwidth_trace",
        "Bandwidth of Copies Over Time",
        "Each change of the bandwidth of one kind of copies or of memsets; the value holds until "
        "the next row of the kind. " + _MEANING,
        (
            Column("Time", "ts", "when the bandwidth changes"),
            *DEVICE,
            Column("Kind", doc="kind of the copies, or memset"),
            Column("Bandwidth", "thru", "from then on"),
        ),
        _TRACE,
        arguments=(WITHOUT_LAST_STEP,),
        aliases=("get_memory_bw_time_series",),
        needs=(MEMORY_OPS,),
    ),
    Report(
        "gpu_memory_bandwidth_sum",
        "Bandwidth of Copies by Kind",
        "Statistics of the bandwidth over its changes, without those to nothing: each counts once, "
        "however long it holds. " + _MEANING,
        (*DEVICE, Column("Kind", doc="kind of the copies, or memset"), *described_columns("thru")),
        _SUMMARY,
        arguments=(WITHOUT_LAST_STEP,),
        aliases=("get_memory_bw_summary",),
        needs=(MEMORY_OPS,),
    ),
]
