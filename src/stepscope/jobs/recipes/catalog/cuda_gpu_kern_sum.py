"""Kernels by name."""

from __future__ import annotations

from stepscope.jobs.recipes.summaries import KERNEL_NAMES, summary_recipe
from stepscope.reports.needs import KERNELS

RECIPE = summary_recipe(
    "cuda_gpu_kern_sum",
    "CUDA GPU Kernel Summary",
    "Kernels by name. Kernels that run at the same time count in full each, so the total is work, "
    "not elapsed time.",
    "kernel",
    (KERNELS,),
    key="{kernel}",
    options=KERNEL_NAMES,
    what="kernel",
)
