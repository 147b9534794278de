"""Projected NCCL calls by name."""

from __future__ import annotations

from stepscope.jobs.recipes.catalog.nccl_sum import NCCL
from stepscope.jobs.recipes.catalog.nvtx_gpu_proj_sum import projected
from stepscope.jobs.recipes.summaries import summary_recipe
from stepscope.reports.catalog.nvtx_gpu_proj_trace import PROJECTED
from stepscope.reports.needs import CUDA_CALLS, GPU_WORK

_OF_NCCL = (
    "CASE WHEN EXISTS (SELECT 1 FROM range WHERE domain = 'NCCL') THEN range.domain = 'NCCL' "
    "ELSE range.name ILIKE 'nccl%' END"
)

RECIPE = summary_recipe(
    "nccl_gpu_proj_sum",
    "NCCL GPU Projection Summary",
    f"Calls of NCCL by name, with their time on the GPU. {PROJECTED}",
    projected(_OF_NCCL),
    (NCCL, CUDA_CALLS, GPU_WORK),
    quartiles="linear",
    what="call",
)
