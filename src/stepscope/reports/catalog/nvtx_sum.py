"""NVTX ranges by name."""

from __future__ import annotations

import numpy as np

from stepscope.reports.summary import header, summary
from stepscope.tabular.attribution import (
    STYLES,
    range_ends,
    range_names,
    range_styles,
    usable_ranges,
)
from stepscope.tabular.maths import dictionary, group, statistics, text_ranks
from stepscope.tabular.needs import RANGES
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Rows, Source


def _of(source: Source, ranges: Rows, *, styled: bool) -> Answer:
    names, style = range_names(ranges), range_styles(ranges)
    groups, firsts = group(style, names.codes)
    duration = range_ends(source, ranges, marks=True) - ranges["start_ns"]
    found = statistics(duration, groups, len(firsts))
    name = names.codes[firsts]
    order = np.lexsort((style[firsts], text_ranks(names.texts)[name], -found.total))
    columns = [*summary(found, order)]
    if styled:
        columns.append(dictionary(style[firsts][order], STYLES))
    return [*columns, dictionary(name[order], names.texts)]


def _all(source: Source, _: Arguments) -> Answer:
    return _of(source, usable_ranges(source), styled=True)


def _pushpop(source: Source, _: Arguments) -> Answer:
    return _of(source, source.of_kind("range", "kind", "pushpop", "annotation"), styled=False)


def _startend(source: Source, _: Arguments) -> Answer:
    return _of(source, source.of_kind("range", "kind", "startend"), styled=False)


_RANGE = Column("Range", doc="domain:text, or the text alone in the default domain")
_NESTED = "Longest total first. Nested ranges count in full each, so shares do not add up."
REPORTS = [
    Report(
        "nvtx_sum",
        "NVTX Range Summary",
        f"Ranges on the host by name, all threads together. {_NESTED}",
        header("Instances", Column("Style", doc="PushPop or StartEnd"), _RANGE),
        _all,
        aliases=("nvtxsum",),
        needs=(RANGES,),
    ),
    Report(
        "nvtx_pushpop_sum",
        "NVTX Push/Pop Range Summary",
        f"Push/pop ranges (and record_function) by name. {_NESTED}",
        header("Instances", _RANGE),
        _pushpop,
        aliases=("nvtxppsum",),
        needs=(RANGES,),
    ),
    Report(
        "nvtx_startend_sum",
        "NVTX Start/End Range Summary",
        f"Start/end ranges by name. {_NESTED}",
        header("Instances", _RANGE),
        _startend,
        aliases=("nvtxsesum", "nvtxsssum"),
        needs=(RANGES,),
    ),
]
