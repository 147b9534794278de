"""Memory copies and fills by operation: time."""

from __future__ import annotations

from stepscope.reports.needs import MEMORY_OPS
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import header, summary

REPORTS = [
    Report(
        "cuda_gpu_mem_time_sum",
        "CUDA GPU MemOps Summary (by Time)",
        "Memory copies by direction, and all fills in one row, with their time on the GPU. Longest "
        "total first.",
        header("Count", Column("Operation", doc="direction of the copy, or fill")),
        summary("memory_op", "operation"),
        aliases=("gpumemtimesum",),
        needs=(MEMORY_OPS,),
    )
]
