"""When UCX calls and kernels ran, by device."""

from __future__ import annotations

from stepscope.jobs.recipes.host_maps import calls_beside_kernels
from stepscope.jobs.recipes.utilisation import map_recipe
from stepscope.reports.needs import KERNELS, Need

UCX = Need("calls of UCX", "ucx", "nsys profile -t cuda,ucx", "api_call WHERE api = 'ucx'")

RECIPE = map_recipe(
    "ucx_gpu_time_util_map",
    "UCX and GPU Time Utilization Heatmap",
    "Share of the time in which kernels ran, in which a thread of the process was inside a call of "
    "UCX, and both at once.",
    lambda capture: calls_beside_kernels(capture, "api_call WHERE api = 'ucx'", "ucx_percent"),
    {
        "kernel_percent": "kernels run, percent of the time",
        "ucx_percent": "a thread is inside UCX, percent of the time",
        "overlap_percent": "both, percent of the time",
    },
    (KERNELS, UCX),
)
