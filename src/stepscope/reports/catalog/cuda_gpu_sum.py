"""GPU work, and GPU work with CUDA calls, by name."""

from __future__ import annotations

from stepscope.reports.needs import CUDA_CALLS, GPU_WORK
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import KERNEL_NAMES, header, summary

_GPU = """
    SELECT 0 AS side, 'CUDA_KERNEL' AS category, {kernel} AS operation, duration_ns FROM {kernels}
    UNION ALL SELECT 1, 'MEMORY_OPER', operation, duration_ns FROM memory_op"""
_CALLS = "UNION ALL SELECT 2, 'CUDA_API', function, duration_ns FROM cuda_call"


def _by_name(rows: str) -> str:
    keys = ("side", "category", "operation")
    return summary(f"({rows})", *keys, order="operation, side", shown="category, operation")


_TAIL = (
    Column("Category", doc="CUDA_KERNEL, MEMORY_OPER or CUDA_API"),
    Column("Operation", doc="kernel, copy, fill or function"),
)
REPORTS = [
    Report(
        "cuda_gpu_sum",
        "CUDA GPU Summary (Kernels/MemOps)",
        "Kernels, copies and fills by name, all devices and streams together. Longest total first.",
        header("Instances", *_TAIL),
        _by_name(_GPU),
        arguments=KERNEL_NAMES,
        aliases=("gpusum",),
        needs=(GPU_WORK,),
    ),
    Report(
        "cuda_api_gpu_sum",
        "CUDA Summary (API/Kernels/MemOps)",
        "CUDA calls, kernels, copies and fills by name. Longest total first. Host and GPU work at "
        "the same time, so the shares of the two sides do not add up to anything.",
        header("Instances", *_TAIL),
        _by_name(f"{_GPU} {_CALLS}"),
        arguments=KERNEL_NAMES,
        aliases=("apigpusum",),
        needs=(CUDA_CALLS, GPU_WORK),
    ),
]
