"""Recipes that sum up samples of counters by device."""

from __future__ import annotations

from stepscope.jobs.recipes.recipe import IDENTITY, Chart, Figure, Output, Recipe
from stepscope.reports.needs import Need

SPREAD = {
    "samples": "how many samples",
    "mean": "mean, in the counter's unit",
    "median": "median",
    "min": "least",
    "max": "greatest",
}
SPREAD_SQL = """count(*)::BIGINT, avg(value)::DOUBLE, median(value)::DOUBLE, min(value)::DOUBLE,
    max(value)::DOUBLE"""


def counter_recipe(
    name: str,
    title: str,
    doc: str,
    where: str,
    need: Need,
    source: str,
    *,
    device: str = "coalesce('GPU ' || device, 'host')",
    table: str = "metric_sample",
) -> Recipe:
    """A recipe of this family.

    Args:
        name: of the recipe.
        title: one line.
        doc: what is counted.
        where: condition on the samples.
        need: what a capture must hold.
        source: of the definition.
        device: expression for the device's name.
        table: of the samples, with ``metric`` and ``value``.
    """
    return Recipe(
        name,
        title,
        doc,
        f"SELECT {device} AS place, metric, {SPREAD_SQL} FROM {table} WHERE {where} GROUP BY ALL "
        "ORDER BY ALL",
        (
            Output(
                "all_stats",
                "One counter, all devices together; the median is that of the devices' medians.",
                {"metric": "counter", **SPREAD},
                "SELECT metric, sum(samples)::BIGINT AS samples, "
                "sum(mean * samples) / sum(samples) AS mean, median(median) AS median, "
                "min(min) AS min, max(max) AS max FROM part GROUP BY metric ORDER BY metric",
                ("metric",),
            ),
            Output(
                "rank_stats",
                "One counter of one device of one rank.",
                {**IDENTITY, "device": "device", "metric": "counter", **SPREAD},
                "SELECT rank, capture, device, metric, samples, mean, median, min, max FROM part "
                "ORDER BY rank, device, metric",
                ("rank", "device", "metric"),
            ),
        ),
        columns=("device", "metric", *SPREAD),
        charts=(
            Chart(
                "heat", "rank_stats", "Mean of each counter by rank", "mean", x="rank", y="metric"
            ),
            Chart("bar", "all_stats", "Mean of each counter, all ranks", "mean", y="metric"),
        ),
        figures=(
            Figure("samples", "samples", "count", "SELECT sum(samples) FROM all_stats"),
            Figure("counters", "counters", "count", "SELECT count(*) FROM all_stats"),
        ),
        needs=(need,),
        source=source,
    )
