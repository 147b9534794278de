"""Memory copies and fills by operation: time."""

from __future__ import annotations

from stepscope.reports.summary import by_name, header, summary
from stepscope.tabular.attribution import memory_op_names
from stepscope.tabular.maths import dictionary
from stepscope.tabular.needs import MEMORY_OPS
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Source


def _run(source: Source, _: Arguments) -> Answer:
    ops = source.memory_ops()
    names = memory_op_names(ops)
    found, order, codes = by_name(ops.duration, names.codes, names.texts)
    return [*summary(found, order), dictionary(codes[order], names.texts)]


REPORTS = [
    Report(
        "cuda_gpu_mem_time_sum",
        "CUDA GPU MemOps Summary (by Time)",
        "Memory copies by direction, and all fills in one row, with their time on the GPU. Longest "
        "total first.",
        header("Count", Column("Operation", doc="direction of the copy, or fill")),
        _run,
        aliases=("gpumemtimesum",),
        needs=(MEMORY_OPS,),
    )
]
