"""NVTX ranges by name."""

from __future__ import annotations

from stepscope.reports.needs import RANGES
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import header, summary

_RANGE = Column("Range", doc="domain:text, or the text alone in the default domain")
_NESTED = "Longest total first. Nested ranges count in full each, so shares do not add up."
REPORTS = [
    Report(
        "nvtx_sum",
        "NVTX Range Summary",
        f"Ranges on the host by name, all threads together. {_NESTED}",
        header("Instances", Column("Style", doc="PushPop or StartEnd"), _RANGE),
        summary("host_range", "style", "label", order="label, style"),
        aliases=("nvtxsum",),
        needs=(RANGES,),
    ),
    Report(
        "nvtx_pushpop_sum",
        "NVTX Push/Pop Range Summary",
        f"Push/pop ranges (and record_function) by name. {_NESTED}",
        header("Instances", _RANGE),
        summary("pushpop", "label"),
        aliases=("nvtxppsum",),
        needs=(RANGES,),
    ),
    Report(
        "nvtx_startend_sum",
        "NVTX Start/End Range Summary",
        f"Start/end ranges by name. {_NESTED}",
        header("Instances", _RANGE),
        summary("startend", "label"),
        aliases=("nvtxsesum", "nvtxsssum"),
        needs=(RANGES,),
    ),
]
