"""Memory copies and fills by operation: size."""

from __future__ import annotations

from stepscope.reports.needs import MEMORY_OPS
from stepscope.reports.report import Answer, Arguments, Column, Report, columns_of
from stepscope.reports.source import Source
from stepscope.reports.summary import spread

_SQL = f"""
SELECT sum(bytes)::BIGINT AS total, count(*), {spread("bytes")}, operation,
    bool_and(median(bytes) = quantile_disc(bytes, 0.5)) OVER () AS whole
FROM memory_op WHERE bytes >= 0 GROUP BY operation ORDER BY total DESC, operation
"""

_COLUMNS = (
    Column("Total", "mem", "sum"),
    Column("Count", doc="number of operations"),
    Column("Avg", "mem", "mean"),
    Column("Med", "mem", "median"),
    Column("Min", "mem", "smallest"),
    Column("Max", "mem", "largest"),
    Column("StdDev", "mem", "sample standard deviation"),
    Column("Operation", doc="direction of the copy, or fill"),
)


def _run(source: Source, arguments: Arguments) -> Answer:
    *columns, whole = columns_of(source, _SQL, arguments, (*_COLUMNS, _COLUMNS[-1]))
    if len(whole) and whole[0].as_py():
        columns[3] = columns[3].cast("int64")  # medians are written in one form
    return columns


REPORTS = [
    Report(
        "cuda_gpu_mem_size_sum",
        "CUDA GPU MemOps Summary (by Size)",
        "Memory copies by direction, and all fills in one row, with the bytes they moved or set. "
        "Largest total first. In MB a small copy reads 0.000: ask for bytes (mem=B).",
        _COLUMNS,
        _run,
        aliases=("gpumemsizesum",),
        needs=(MEMORY_OPS,),
    )
]
