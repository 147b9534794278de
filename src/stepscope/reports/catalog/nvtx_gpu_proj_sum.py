"""Projected ranges by name."""

from __future__ import annotations

from stepscope.reports.catalog.nvtx_gpu_proj_trace import PROJECTED, PROJECTED_RANGES
from stepscope.reports.needs import CUDA_CALLS, GPU_WORK, RANGES
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import spread, spread_columns

_SQL = f"""
WITH {PROJECTED_RANGES}
SELECT label, style, sum(gpu_ns)::BIGINT AS total, sum(range_ns)::BIGINT, count(*),
    {spread("gpu_ns")}, sum(ops)::BIGINT,
    sum(ops)::DOUBLE / count(*), sum(level)::DOUBLE / count(*),
    sum(coalesce(number, 0))::DOUBLE / count(*)
FROM projected AS one LEFT JOIN inside ON inside.parent = one.id
GROUP BY label, style ORDER BY total DESC, label, style
"""

REPORTS = [
    Report(
        "nvtx_gpu_proj_sum",
        "NVTX GPU Projection Summary",
        f"Ranges that launched GPU work, by name. {PROJECTED} Longest total projection first.",
        (
            Column("Range", doc="domain:text, or the text alone in the default domain"),
            Column("Style", doc="PushPop or StartEnd"),
            Column("Total Proj Time", "dur", "sum of the projections"),
            Column("Total Range Time", "dur", "sum of the ranges themselves, on the host"),
            Column("Range Instances", doc="number of ranges"),
            *spread_columns("Proj "),
            Column("Total GPU Ops", doc="operations of all ranges"),
            Column("Avg GPU Ops", doc="operations a range"),
            Column("Avg Range Lvl", doc="mean level in the tree of ranges"),
            Column("Avg Num Child", doc="direct children with GPU work a range"),
        ),
        _SQL,
        needs=(RANGES, CUDA_CALLS, GPU_WORK),
    )
]
