"""Kernels by name."""

from __future__ import annotations

from stepscope.reports.needs import KERNELS
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import KERNEL_NAMES, header, summary

_SQL = summary("{kernels}", "{kernel} AS kernel", order="instances, kernel")

REPORTS = [
    Report(
        "cuda_gpu_kern_sum",
        "CUDA GPU Kernel Summary",
        "Kernels by name, all devices and streams together. Longest total first. Kernels that run "
        "at the same time count in full each, so the total is work, not elapsed time.",
        header("Instances", Column("Name", doc="kernel")),
        _SQL,
        arguments=KERNEL_NAMES,
        aliases=("gpukernsum",),
        needs=(KERNELS,),
    )
]
