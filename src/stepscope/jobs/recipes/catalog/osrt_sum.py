"""Calls of the OS runtime by function."""

from __future__ import annotations

from stepscope.jobs.recipes.summaries import summary_recipe
from stepscope.reports.needs import OSRT

RECIPE = summary_recipe(
    "osrt_sum",
    "OS Runtime Summary",
    "Calls of the operating system's runtime by function, waiting included (a thread that sleeps "
    "in poll counts).",
    "api_call WHERE api = 'osrt'",
    (OSRT,),
    key="raw_name",
    what="function",
)
