"""Copies and fills by their bytes."""

from __future__ import annotations

from stepscope.jobs.recipes.summaries import summary_recipe
from stepscope.reports.needs import MEMORY_OPS

RECIPE = summary_recipe(
    "cuda_gpu_mem_size_sum",
    "CUDA GPU MemOps Summary (by Size)",
    "Memory copies by direction, and fills, with the bytes that they moved or set.",
    "memory_op WHERE bytes >= 0",
    (MEMORY_OPS,),
    key="operation",
    value="bytes",
    unit="bytes",
    what="direction of the copy, or fill",
)
