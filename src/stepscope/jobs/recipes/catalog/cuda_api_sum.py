"""Calls of the CUDA API by function."""

from __future__ import annotations

from stepscope.jobs.recipes.summaries import summary_recipe
from stepscope.reports.needs import CUDA_CALLS

RECIPE = summary_recipe(
    "cuda_api_sum",
    "CUDA API Summary",
    "Calls of the CUDA runtime and driver by function, with the host's time in them. The time of "
    "calls that wait for the GPU contains that wait.",
    "cuda_call",
    (CUDA_CALLS,),
    key="function",
    what="function, without interface version",
)
