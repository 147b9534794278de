"""The pace of a range on the GPU."""

from __future__ import annotations

from stepscope.jobs.recipes.catalog.nvtx_gpu_proj_sum import projected
from stepscope.jobs.recipes.pacing import pace_recipe
from stepscope.reports.catalog.nvtx_gpu_proj_trace import PROJECTED
from stepscope.reports.needs import CUDA_CALLS, GPU_WORK, RANGES

RECIPE = pace_recipe(
    "nvtx_gpu_proj_pace",
    "NVTX GPU Projection Pacing",
    f"The ranges of one text that launched GPU work. {PROJECTED}",
    f"SELECT start_ns, end_ns FROM {projected('range.name = {name}')} AS found "
    "ORDER BY start_ns, end_ns",
    (RANGES, CUDA_CALLS, GPU_WORK),
    "the whole text of a range",
)
