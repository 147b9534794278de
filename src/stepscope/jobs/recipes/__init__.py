"""Recipes: one question asked of every capture of a job, and the answers put together.

What a user's own recipe needs is here.
"""

from __future__ import annotations

from stepscope.jobs.recipes.recipe import Chart, Figure, Option, Output, Recipe
from stepscope.reports.needs import Need

__all__ = ["Chart", "Figure", "Need", "Option", "Output", "Recipe"]
