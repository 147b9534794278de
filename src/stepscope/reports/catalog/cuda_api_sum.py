"""CUDA API calls by function."""

from __future__ import annotations

from stepscope.reports.needs import CUDA_CALLS
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import header, summary


def by_recorded_name(rows: str, shown: str = "raw_name") -> str:
    """Summary of calls by name as recorded: two versions of a function are two rows."""
    return summary(
        rows,
        "raw_name",
        shown=shown,
        extra="min(name_number) AS number, min(id) AS first_id",
        order="number NULLS FIRST, first_id",
    )


_SQL = by_recorded_name("cuda_call", r"regexp_replace(raw_name, '_v\d{4}$', '')")

REPORTS = [
    Report(
        "cuda_api_sum",
        "CUDA API Summary",
        "Calls of the CUDA runtime and driver by function, with the host's time in them. Longest "
        "total first. The time of calls that wait for the GPU contains that wait.",
        header("Num Calls", Column("Name", doc="function, without interface version")),
        _SQL,
        aliases=("cudaapisum",),
        needs=(CUDA_CALLS,),
    )
]
