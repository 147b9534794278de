"""Ranges projected onto the GPU work that was launched inside them."""

from __future__ import annotations

from stepscope.reports.needs import CUDA_CALLS, GPU_WORK, RANGES
from stepscope.reports.report import Column, Report

PROJECTED_RANGES = """
launched AS (
    SELECT call.id AS call, call.process_id, call.thread_id, call.correlation_id,
        min(op.start_ns) AS start_ns, max(op.end_ns) AS end_ns,
        arg_max(op.id, (op.end_ns, -op.id)) AS latest
    FROM gpu_work AS op JOIN cuda_call AS call USING (process_id, correlation_id)
    WHERE correlation_id >= 0 GROUP BY ALL
), spans AS (
    SELECT range AS id, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
        count(DISTINCT correlation_id) AS ops
    FROM range_call JOIN launched USING (call) GROUP BY ALL
), projected AS (
    SELECT own.id, own.row_id, own.label, own.style, own.process_id, own.thread_id,
        spans.start_ns AS gpu_start_ns, spans.end_ns - spans.start_ns AS gpu_ns,
        own.start_ns, own.end_ns - own.start_ns AS range_ns, ops, level, parent, stack
    FROM spans
    JOIN own_range AS own USING (id) JOIN range_tree USING (id)
), inside AS (
    SELECT parent, count(*) AS number FROM projected GROUP BY ALL
)"""
"""Ranges that launched work, ``projected``, and how many each contains directly, ``inside``."""

_SQL = f"""
WITH {PROJECTED_RANGES}, outside AS (
    SELECT launched.* FROM launched ANTI JOIN range_call USING (call)
)
SELECT * EXCLUDE (place) FROM (
    SELECT -1 AS place, NULL AS label, min(start_ns), max(end_ns) - min(start_ns), NULL, NULL, NULL,
        arg_max(process_id, (end_ns, -latest)), arg_max(thread_id, (end_ns, -latest)),
        count(DISTINCT correlation_id), NULL, 0, NULL, NULL, NULL
    FROM outside HAVING count(*) > 0
    UNION ALL
    SELECT one.row_id, one.label, gpu_start_ns, gpu_ns, one.start_ns, range_ns, one.style,
        one.process_id, one.thread_id, ops, level, coalesce(number, 0), one.row_id, above.row_id,
        stack
    FROM projected AS one
    LEFT JOIN inside ON inside.parent = one.id
    LEFT JOIN own_range AS above ON above.id = one.parent
) ORDER BY place
"""


PROJECTED = (
    "The projection of a range runs from the start of the earliest to the end of the latest "
    "operation that a call inside the range (same thread) launched; idle time in between counts."
)
REPORTS = [
    Report(
        "nvtx_gpu_proj_trace",
        "NVTX GPU Projection Trace",
        f"Every range that launched GPU work, in order of the source's row ids. {PROJECTED} A row "
        "without name holds the work launched outside all ranges.",
        (
            Column("Name", doc="domain:text, or the text alone in the default domain"),
            Column("Projected Start", "ts", "begin on the GPU"),
            Column("Projected Duration", "dur", "length on the GPU"),
            Column("Orig Start", "ts", "begin on the host"),
            Column("Orig Duration", "dur", "length on the host"),
            Column("Style", doc="PushPop or StartEnd"),
            Column("PID", doc="process"),
            Column("TID", doc="thread"),
            Column("NumGPUOps", doc="operations; those of one call count once"),
            Column("Lvl", doc="0 at the top"),
            Column("NumChild", doc="direct children that launched GPU work"),
            Column("RangeId", doc="the source's row id"),
            Column("ParentId", doc="row id of the parent"),
            Column("RangeStack", doc="row ids from the top to the range"),
        ),
        _SQL,
        aliases=("nvtxgpuproj",),
        needs=(RANGES, CUDA_CALLS, GPU_WORK),
    )
]
