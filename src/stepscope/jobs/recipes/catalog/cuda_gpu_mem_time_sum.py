"""Copies and fills by their time."""

from __future__ import annotations

from stepscope.jobs.recipes.summaries import summary_recipe
from stepscope.reports.needs import MEMORY_OPS

RECIPE = summary_recipe(
    "cuda_gpu_mem_time_sum",
    "CUDA GPU MemOps Summary (by Time)",
    "Memory copies by direction, and fills, with their time on the GPU.",
    "memory_op",
    (MEMORY_OPS,),
    key="operation",
    what="direction of the copy, or fill",
)
