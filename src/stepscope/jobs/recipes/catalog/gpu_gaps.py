"""Times in which a GPU had nothing to do."""

from __future__ import annotations

from stepscope.jobs.recipes.listings import listing
from stepscope.reports.registry import rules

RECIPE = listing(rules()["gpu_gaps"])
