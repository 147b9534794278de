"""OpenACC and OpenMP constructs."""

from __future__ import annotations

from stepscope.reports.needs import OPENACC, OPENMP
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import header, summary

_OPENACC = summary(
    "openacc_event",
    "name",
    "file",
    "line",
    shown="CASE WHEN file IS NULL THEN name ELSE name || '@' || file || ':' || coalesce(line, -1) "
    "END AS label",
    order="label",
)
_OPENMP = summary(
    "openmp_event",
    "kind",
    "name",
    shown="name",
    extra="min(name_number) AS number, min(id) AS first_id",
    order="number NULLS FIRST, first_id",
)


REPORTS = [
    Report(
        "openacc_sum",
        "OpenACC Summary",
        "OpenACC constructs by event and place in the source. Longest total first.",
        header("Num Calls", Column("Name", doc="event@file:line")),
        _OPENACC,
        aliases=("openaccsum",),
        needs=(OPENACC,),
    ),
    Report(
        "openmp_sum",
        "OpenMP Summary",
        "OpenMP constructs by kind and name: one name may stand in two rows. Longest total first.",
        header("Count", Column("Name", doc="event")),
        _OPENMP,
        aliases=("openmpevtsum",),
        needs=(OPENMP,),
    ),
]
