"""Calls of other libraries and of the operating system by function."""

from __future__ import annotations

from stepscope.reports.catalog.cuda_api_sum import by_recorded_name
from stepscope.reports.needs import CUBLAS, CUDNN, OSRT, SYSCALLS, Need
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import header


def _report(
    name: str, api: str, title: str, what: str, need: Need, aliases: tuple[str, ...] = ()
) -> Report:
    return Report(
        name,
        title,
        f"{what} by function, all threads together. Longest total first.",
        header("Num Calls", Column("Name", doc="function")),
        by_recorded_name(f"api_call WHERE api = '{api}'"),
        aliases=aliases,
        needs=(need,),
    )


REPORTS = [
    _report(
        "osrt_sum",
        "osrt",
        "OS Runtime Summary",
        "Calls of the operating system's runtime, waiting included (a thread that sleeps in poll "
        "counts),",
        OSRT,
        ("osrtsum",),
    ),
    _report("syscall_sum", "syscall", "System Call Summary", "System calls", SYSCALLS),
    _report("cublas_api_sum", "cublas", "cuBLAS API Summary", "Calls of cuBLAS", CUBLAS),
    _report("cudnn_api_sum", "cudnn", "cuDNN API Summary", "Calls of cuDNN", CUDNN),
]
