"""Two results of one recipe, row by row."""

from __future__ import annotations

from stepscope.jobs.recipes.recipe import Option, Recipe

RECIPE = Recipe(
    "diff",
    "Statistics Diff",
    "Two results of one recipe, given as folders: every number of the first less that of the "
    "second, in rows of the same keys. Rows that only one of them has are kept and named. Totals "
    "are those of the captures: compare captures of equally many steps, or means and medians.",
    "",
    (),
    options=(
        Option("tolerance", "differences up to this become 0", 0.0, 0),
        Option("drop", "leave out rows in which nothing differs", False),
    ),
    source="`nsys recipe` of the same name",
    of_results=True,
)
