"""When MPI calls and kernels ran, by device."""

from __future__ import annotations

from stepscope.jobs.recipes.host_maps import calls_beside_kernels
from stepscope.jobs.recipes.utilisation import map_recipe
from stepscope.reports.needs import KERNELS, MPI

RECIPE = map_recipe(
    "mpi_gpu_time_util_map",
    "MPI and GPU Time Utilization Heatmap",
    "Share of the time in which kernels ran, in which a thread of the process was inside a call of "
    "MPI, and both at once.",
    lambda capture: calls_beside_kernels(capture, "mpi_event", "mpi_percent"),
    {
        "kernel_percent": "kernels run, percent of the time",
        "mpi_percent": "a thread is inside MPI, percent of the time",
        "overlap_percent": "both, percent of the time",
    },
    (KERNELS, MPI),
)
