"""Kernels by name."""

from __future__ import annotations

from stepscope.reports.summary import by_name, header, summary
from stepscope.tabular.attribution import KERNEL_NAMES, kernel_names
from stepscope.tabular.maths import dictionary
from stepscope.tabular.needs import KERNELS
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Source


def _run(source: Source, arguments: Arguments) -> Answer:
    kernels = source.kernels()
    names = kernel_names(source, kernels, arguments)
    found, order, codes = by_name(kernels.duration, names.codes, names.texts, count_matters=True)
    return [*summary(found, order), dictionary(codes[order], names.texts)]


REPORTS = [
    Report(
        "cuda_gpu_kern_sum",
        "CUDA GPU Kernel Summary",
        "Kernels by name, all devices and streams together. Longest total first. Kernels that run "
        "at the same time count in full each, so the total is work, not elapsed time.",
        header("Instances", Column("Name", doc="kernel")),
        _run,
        arguments=KERNEL_NAMES,
        aliases=("gpukernsum",),
        needs=(KERNELS,),
    )
]
