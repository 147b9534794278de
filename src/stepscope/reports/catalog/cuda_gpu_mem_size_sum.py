"""Memory copies and fills by operation: size."""

from __future__ import annotations

from stepscope.analysis.tabular.attribution import memory_op_names
from stepscope.analysis.tabular.maths import dictionary
from stepscope.analysis.tabular.needs import MEMORY_OPS
from stepscope.analysis.tabular.report import Answer, Arguments, Column, Report
from stepscope.analysis.tabular.source import Source
from stepscope.reports.summary import by_name


def _run(source: Source, _: Arguments) -> Answer:
    ops = source.memory_ops()
    ops = ops.where(ops["bytes"] >= 0)
    names = memory_op_names(ops)
    found, order, codes = by_name(ops["bytes"], names.codes, names.texts)
    values = (found.total, found.count, found.avg, found.med, found.low, found.high, found.std)
    return [*(value[order] for value in values), dictionary(codes[order], names.texts)]


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
