"""CUDA API calls by function."""

from __future__ import annotations

import numpy as np

from stepscope.reports.summary import header, summary
from stepscope.tabular.attribution import call_names
from stepscope.tabular.maths import dictionary, group, statistics
from stepscope.tabular.needs import CUDA_CALLS
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Rows, Source


def by_recorded_name(calls: Rows) -> Answer:
    """Summary of calls by name as recorded: two versions of a function are two rows."""
    groups, firsts = group(calls["raw_name"])
    names = call_names(calls, firsts)
    found = statistics(calls.duration, groups, len(firsts))
    order = np.argsort(-found.total, kind="stable")
    if len(set(found.total.tolist())) < len(found.total):  # the rare tie is worth reading a column
        order = np.lexsort((calls["name_number"][firsts], -found.total))
    return [*summary(found, order), dictionary(names.codes[order], names.texts)]


def _run(source: Source, _: Arguments) -> Answer:
    return by_recorded_name(source.cuda_calls())


REPORTS = [
    Report(
        "cuda_api_sum",
        "CUDA API Summary",
        "Calls of the CUDA runtime and driver by function, with the host's time in them. Longest "
        "total first. The time of calls that wait for the GPU contains that wait.",
        header("Num Calls", Column("Name", doc="function, without interface version")),
        _run,
        aliases=("cudaapisum",),
        needs=(CUDA_CALLS,),
    )
]
