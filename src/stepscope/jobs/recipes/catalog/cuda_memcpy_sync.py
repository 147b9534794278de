"""Copies that block the host."""

from __future__ import annotations

from stepscope.jobs.recipes.listings import listing
from stepscope.reports.registry import rules

RECIPE = listing(rules()["cuda_memcpy_sync"])
