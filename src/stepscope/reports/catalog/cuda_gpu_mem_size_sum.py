"""Memory copies and fills by operation: size."""

from __future__ import annotations

import numpy as np

from stepscope.reports.summary import by_name
from stepscope.tabular.attribution import memory_op_names
from stepscope.tabular.maths import Statistics, dictionary, group, running_std
from stepscope.tabular.needs import MEMORY_OPS
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Source
from stepscope.trace.frame import AnyArray, IntArray

_EXACT_ROWS = 100_000  # up to so many rows the last digit of the deviation is that of nsys, too


def sizes(found: Statistics, order: IntArray, values: IntArray, keys: IntArray) -> list[AnyArray]:
    """Statistics of sizes in bytes, not rounded: renderers convert first.

    Args:
        found: the statistics.
        order: the groups to give, in order.
        values: what they were computed from.
        keys: each value's group, numbered in the order of the groups.
    """
    median: AnyArray = found.med[order]
    if found.whole_med[order].all():
        median = median.astype(np.int64)
    spread = found.std
    if len(values) <= _EXACT_ROWS:
        spread = running_std(values, group(keys)[0], len(found.count))
    rest = (found.low[order], found.high[order], spread[order])
    return [found.total[order], found.count[order], found.avg[order], median, *rest]


def _run(source: Source, _: Arguments) -> Answer:
    ops = source.memory_ops()
    ops = ops.where(ops["bytes"] >= 0)
    names = memory_op_names(ops)
    found, order, codes = by_name(ops["bytes"], names.codes, names.texts)
    return [*sizes(found, order, ops["bytes"], names.codes), dictionary(codes[order], names.texts)]


REPORTS = [
    Report(
        "cuda_gpu_mem_size_sum",
        "CUDA GPU MemOps Summary (by Size)",
        "Memory copies by direction, and all fills in one row, with the bytes they moved or set. "
        "Largest total first. In MB a small copy reads 0.000: ask for bytes (mem=B).",
        (
            Column("Total", "mem", "sum"),
            Column("Count", doc="number of operations"),
            Column("Avg", "mem", "mean"),
            Column("Med", "mem", "median"),
            Column("Min", "mem", "smallest"),
            Column("Max", "mem", "largest"),
            Column("StdDev", "mem", "sample standard deviation"),
            Column("Operation", doc="direction of the copy, or fill"),
        ),
        _run,
        aliases=("gpumemsizesum",),
        needs=(MEMORY_OPS,),
    )
]
