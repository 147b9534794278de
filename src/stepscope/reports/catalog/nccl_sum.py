"""NCCL: calls on the host and kernels on the GPU."""

from __future__ import annotations

from stepscope.reports.needs import Need
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import header, summary

_NAMED = "(name ILIKE 'nccl%' OR name ILIKE 'void nccl%')"
_ROWS = f"""(
    SELECT 'NCCL_CALL' AS category, name, duration_ns FROM host_range
    WHERE domain = 'NCCL' OR {_NAMED}
    UNION ALL SELECT 'NCCL_CALL', name, duration_ns FROM api_call WHERE api = 'nccl'
    UNION ALL SELECT 'NCCL_KERNEL', CASE
        WHEN (SELECT bool_and(short_name IS NOT NULL) FROM kernel WHERE {_NAMED}) THEN short_name
        ELSE name END, duration_ns
    FROM kernel WHERE {_NAMED}
)"""
_SQL = summary(_ROWS, "category", "name", first="category", order="name")


REPORTS = [
    Report(
        "nccl_sum",
        "NCCL Summary",
        "NCCL calls on the host (its NVTX ranges) and NCCL kernels on the GPU by name, calls "
        "first. A call returns when the work is enqueued; a kernel's time contains its wait for "
        "the other ranks. The shares mix both sides.",
        header(
            "Instances",
            Column("Category", doc="NCCL_CALL (host) or NCCL_KERNEL (GPU)"),
            Column("Name", doc="function or kernel"),
        ),
        _SQL,
        needs=(
            Need(
                "NCCL calls or kernels",
                "nccl",
                "nsys profile -t cuda,nvtx (torch.profiler: ProfilerActivity.CUDA) in a job that "
                "communicates",
                _ROWS,
            ),
        ),
    )
]
