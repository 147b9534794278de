"""The pace of a kernel."""

from __future__ import annotations

from stepscope.jobs.recipes.pacing import pace_recipe
from stepscope.reports.needs import KERNELS

RECIPE = pace_recipe(
    "cuda_gpu_kern_pace",
    "CUDA GPU Kernel Pacing",
    "The kernels of one name.",
    "SELECT start_ns, end_ns FROM kernel WHERE coalesce(short_name, name) = {name} "
    "ORDER BY start_ns, end_ns",
    (KERNELS,),
    "the short name of a kernel, without template arguments and parameters (cuda_gpu_kern_sum "
    "--set base=true lists them)",
)
