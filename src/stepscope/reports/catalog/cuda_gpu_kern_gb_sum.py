"""Kernels by name, grid and block."""

from __future__ import annotations

from stepscope.reports.needs import KERNELS
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import KERNEL_NAMES, header, summary

_AXES = [f"{size}_{axis}" for size in ("grid", "block") for axis in "xyz"]
GRID, BLOCK = (
    f"printf('%4d %4d %4d', {', '.join(f'coalesce({axis}, 0)' for axis in axes)})"
    for axes in (_AXES[:3], _AXES[3:])
)
_SQL = summary(
    "{kernels}",
    *_AXES,
    "{kernel} AS kernel",
    order=f"instances, kernel, {', '.join(_AXES)}",
    shown=f"{GRID}, {BLOCK}, kernel",
)

REPORTS = [
    Report(
        "cuda_gpu_kern_gb_sum",
        "CUDA GPU Kernel/Grid/Block Summary",
        "Kernels by name and launch dimensions, all devices and streams together. Longest total "
        "first.",
        header(
            "Instances",
            Column("GridXYZ", doc="blocks in x, y, z"),
            Column("BlockXYZ", doc="threads a block in x, y, z"),
            Column("Name", doc="kernel"),
        ),
        _SQL,
        arguments=KERNEL_NAMES,
        aliases=("gpukerngbsum",),
        needs=(KERNELS,),
    )
]
