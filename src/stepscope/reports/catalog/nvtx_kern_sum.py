"""Kernels by the ranges around their launch."""

from __future__ import annotations

from stepscope.reports.needs import CUDA_CALLS, KERNELS, RANGES
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import BASE, MANGLED, spread, spread_columns

_SQL = f"""
WITH launches AS (
    SELECT id, {{kernel}} AS kernel, duration_ns, caller, thread_id, call
    FROM kernel LEFT JOIN (
        SELECT id AS call, process_id AS caller, thread_id, correlation_id AS launched
        FROM cuda_call WHERE launched >= 0
    ) ON caller = process_id AND launched = correlation_id
)
SELECT label, style, caller, launches.thread_id,
    count(DISTINCT range_call.range), count(DISTINCT launches.id),
    sum(launches.duration_ns)::BIGINT AS total, {spread("launches.duration_ns")}, kernel
FROM launches LEFT JOIN range_call USING (call)
LEFT JOIN own_range AS own ON own.id = range_call.range
GROUP BY ALL
ORDER BY label NULLS FIRST, caller NULLS FIRST, launches.thread_id NULLS FIRST, total DESC, kernel
"""

REPORTS = [
    Report(
        "nvtx_kern_sum",
        "NVTX Range Kernel Summary",
        "Kernels by every range of the launching thread that encloses the launching call, outer "
        "ranges included, so a kernel counts once a level. Kernels outside all ranges come first, "
        "without a range: in PyTorch those of the backward pass, which another thread launches.",
        (
            Column("NVTX Range", doc="domain:text, or the text alone in the default domain"),
            Column("Style", doc="PushPop or StartEnd"),
            Column("PID", doc="process"),
            Column("TID", doc="launching thread"),
            Column("NVTX Inst", doc="range instances that launched the kernel"),
            Column("Kern Inst", doc="number of kernels"),
            Column("Total Time", "dur", "sum of the kernels' durations"),
            *spread_columns(),
            Column("Kernel Name"),
        ),
        _SQL,
        arguments=(BASE, MANGLED),
        aliases=("nvtxkernsum",),
        needs=(RANGES, CUDA_CALLS, KERNELS),
    )
]
