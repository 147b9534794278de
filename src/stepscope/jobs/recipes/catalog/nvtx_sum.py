"""Ranges by name."""

from __future__ import annotations

from stepscope.jobs.recipes.summaries import summary_recipe
from stepscope.reports.needs import RANGES

RECIPE = summary_recipe(
    "nvtx_sum",
    "NVTX Range Summary",
    "Ranges by text, whatever their domain, on the host. Ranges without an end, and those of no "
    "length, are left out. Nested ranges count in full each.",
    "(SELECT * FROM range WHERE kind IN ('pushpop', 'startend', 'annotation') "
    "AND end_ns > start_ns AND NOT coalesce(end_missing, false) AND name IS NOT NULL)",
    (RANGES,),
    quartiles="linear",
    what="text of the range",
)
