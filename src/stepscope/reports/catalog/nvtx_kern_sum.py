"""Kernels by the ranges around their launch."""

from __future__ import annotations

from stepscope.reports.needs import CUDA_CALLS, KERNELS, RANGES
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import BASE, MANGLED, spread, spread_columns

# grouped by numbers of labels and names, since every distinct count would hash the texts again
_SQL = f"""
WITH labels AS (
    SELECT label, style, min(id) AS label_code FROM own_range GROUP BY ALL
), labelled AS (
    SELECT own.id AS range, label_code FROM own_range AS own JOIN labels
        ON labels.label IS NOT DISTINCT FROM own.label AND labels.style = own.style
), named AS (
    SELECT *, {{kernel}} AS shown FROM kernel
), names AS (
    SELECT shown, min(id) AS name_code FROM named GROUP BY ALL
), launches AS (
    SELECT named.id, name_code, duration_ns, caller, thread_id, call
    FROM named JOIN names ON names.shown IS NOT DISTINCT FROM named.shown LEFT JOIN (
        SELECT id AS call, process_id AS caller, thread_id, correlation_id AS launched
        FROM cuda_call WHERE launched >= 0
    ) ON caller = process_id AND launched = correlation_id
), summed AS (
    SELECT label_code, caller, thread_id, name_code,
        count(DISTINCT range_call.range) AS ranges, count(DISTINCT launches.id) AS kernels,
        sum(launches.duration_ns)::BIGINT AS total, {spread("launches.duration_ns")}
    FROM launches LEFT JOIN range_call USING (call) LEFT JOIN labelled USING (range)
    GROUP BY ALL
)
SELECT label, style, summed.* EXCLUDE (label_code, name_code), shown
FROM summed LEFT JOIN labels USING (label_code) JOIN names USING (name_code)
ORDER BY label NULLS FIRST, caller NULLS FIRST, thread_id NULLS FIRST, total DESC, shown
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
