"""The pace of a range on the host."""

from __future__ import annotations

from stepscope.jobs.recipes.pacing import pace_recipe
from stepscope.reports.needs import RANGES

RECIPE = pace_recipe(
    "nvtx_pace",
    "NVTX Pacing",
    "The ranges of one text, on the host, whatever their domain and thread.",
    "SELECT start_ns, end_ns FROM range WHERE kind IN ('pushpop', 'startend', 'annotation') "
    "AND NOT coalesce(end_missing, false) AND name = {name} ORDER BY start_ns, end_ns",
    (RANGES,),
    "the whole text of a range",
)
