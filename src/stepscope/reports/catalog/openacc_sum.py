"""OpenACC and OpenMP constructs."""

from __future__ import annotations

import numpy as np

from stepscope.reports.summary import by_name, header, summary
from stepscope.tabular.maths import dictionary, group, statistics
from stepscope.tabular.needs import OPENACC, OPENMP
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Source


def _openacc(source: Source, _: Arguments) -> Answer:
    events = source.rows("openacc_event")
    texts, files = events.texts("name"), events.texts("file")
    groups, firsts = group(events["name"], events["file"], events["line"])
    parts = (events["name"][firsts], events["file"][firsts], events["line"][firsts])
    labels = [
        f"{texts[name]}@{files[file]}:{line}" if file >= 0 else texts[name]
        for name, file, line in zip(*(part.tolist() for part in parts), strict=True)
    ]
    found, order, codes = by_name(events.duration, groups, labels)
    return [*summary(found, order), dictionary(codes[order], labels)]


def _openmp(source: Source, _: Arguments) -> Answer:
    events = source.rows("openmp_event")
    groups, firsts = group(events["kind"], events["name"])
    found = statistics(events.duration, groups, len(firsts))
    order = np.lexsort((events["name_number"][firsts], -found.total))
    names = events["name"][firsts][order]
    return [*summary(found, order), dictionary(names, events.texts("name"))]


REPORTS = [
    Report(
        "openacc_sum",
        "OpenACC Summary",
        "OpenACC constructs by event and place in the source. Longest total first.",
        header("Num Calls", Column("Name", doc="event@file:line")),
        _openacc,
        aliases=("openaccsum",),
        needs=(OPENACC,),
    ),
    Report(
        "openmp_sum",
        "OpenMP Summary",
        "OpenMP constructs by kind and name: one name may stand in two rows. Longest total first.",
        header("Count", Column("Name", doc="event")),
        _openmp,
        aliases=("openmpevtsum",),
        needs=(OPENMP,),
    ),
]
