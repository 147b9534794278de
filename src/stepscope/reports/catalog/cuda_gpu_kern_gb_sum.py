"""Kernels by name, grid and block."""

from __future__ import annotations

import numpy as np

from stepscope.reports.summary import header, summary
from stepscope.tabular.attribution import KERNEL_NAMES, kernel_names, triples
from stepscope.tabular.maths import dictionary, group, statistics, text_ranks
from stepscope.tabular.needs import KERNELS
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Source


def _run(source: Source, arguments: Arguments) -> Answer:
    kernels = source.kernels()
    names = kernel_names(source, kernels, arguments)
    grid, block = triples(kernels, "grid"), triples(kernels, "block")
    groups, firsts = group(grid.codes, block.codes, names.codes)
    found = statistics(kernels.duration, groups, len(firsts))
    name = names.codes[firsts]
    order = np.lexsort(
        (block.codes[firsts], grid.codes[firsts], text_ranks(names.texts)[name], found.count,
         -found.total)
    )  # fmt: skip
    return [
        *summary(found, order),
        dictionary(grid.codes[firsts][order], grid.texts),
        dictionary(block.codes[firsts][order], block.texts),
        dictionary(name[order], names.texts),
    ]


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
        _run,
        arguments=KERNEL_NAMES,
        aliases=("gpukerngbsum",),
        needs=(KERNELS,),
    )
]
