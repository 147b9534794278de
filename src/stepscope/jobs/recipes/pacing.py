"""Recipes about one name that comes again and again: how evenly, on every rank."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.jobs.recipes.recipe import IDENTITY, Chart, Figure, Option, Output, Recipe
from stepscope.reports.needs import Need

_SPREAD = """count({0})::BIGINT AS instances, avg({0}) AS mean_ns, stddev_samp({0}) AS std_ns,
    min({0})::BIGINT AS min_ns, quantile_cont({0}, 0.25) AS q1_ns, median({0}) AS median_ns,
    quantile_cont({0}, 0.75) AS q3_ns, max({0})::BIGINT AS max_ns, sum({0})::BIGINT AS sum_ns"""
_COLUMNS = {
    "instances": "how many",
    "mean_ns": "mean, ns",
    "std_ns": "sample standard deviation, ns",
    "min_ns": "least, ns",
    "q1_ns": "first quartile, interpolated, ns",
    "median_ns": "median, ns",
    "q3_ns": "third quartile, interpolated, ns",
    "max_ns": "greatest, ns",
    "sum_ns": "sum, ns",
}
_PACE = """
WITH timed AS (
    SELECT part.*, start_ns + coalesce(origin_epoch_ns - first, 0) AS begin_ns_,
        end_ns + coalesce(origin_epoch_ns - first, 0) AS end_ns_,
        row_number() OVER (PARTITION BY part.input ORDER BY start_ns, end_ns) - 1 AS iteration
    FROM part JOIN (SELECT input, origin_epoch_ns,
        CASE WHEN count(origin_epoch_ns) OVER () = count(*) OVER () THEN
            min(origin_epoch_ns) OVER () END AS first FROM capture) USING (input)
)
SELECT rank, capture, iteration, begin_ns_ AS start_ns, end_ns_ AS end_ns,
    end_ns_ - begin_ns_ AS duration_ns,
    begin_ns_ - lag(end_ns_) OVER own AS delta_ns,
    (sum(end_ns_ - begin_ns_) OVER own)::BIGINT AS duration_accum_ns,
    end_ns_ - first_value(begin_ns_) OVER own AS elapsed_ns
FROM timed WINDOW own AS (PARTITION BY input ORDER BY iteration) ORDER BY rank, iteration
"""


def pace_recipe(
    name: str, title: str, doc: str, rows: str, needs: Sequence[Need], example: str
) -> Recipe:
    """A recipe of this family.

    Args:
        name: of the recipe.
        title: one line.
        doc: what is followed.
        rows: statement for ``start_ns`` and ``end_ns`` of what is called ``{name}``.
        needs: what a capture must hold.
        example: what a name is, for the option's help.
    """
    return Recipe(
        name,
        title,
        f"{doc} The delta is the time from one end to the next start. Ranks are put on one clock "
        "by the wall-clock time of their captures' origins, which is as good as the machines' "
        "clocks agree (milliseconds).",
        rows,
        (
            Output(
                "pace",
                "One instance on one rank.",
                {
                    **IDENTITY,
                    "iteration": "number of the instance, from 0",
                    "start_ns": "begin, ns since the first capture's origin",
                    "end_ns": "end, ns since the first capture's origin",
                    "duration_ns": "length, ns",
                    "delta_ns": "from the end before to this start, ns; null for the first",
                    "duration_accum_ns": "sum of the lengths so far, ns",
                    "elapsed_ns": "from the first start to this end, ns",
                },
                _PACE,
                ("rank", "iteration"),
            ),
            Output(
                "stats",
                "All instances of one rank.",
                {**IDENTITY, **_COLUMNS},
                f"SELECT rank, capture, {_SPREAD.format('duration_ns')} FROM pace GROUP BY ALL "
                "ORDER BY rank",
                ("rank",),
            ),
            Output(
                "all_stats",
                "The instances of all ranks together.",
                {"ranks": "ranks that have it", **_COLUMNS},
                "SELECT count(DISTINCT rank)::BIGINT AS ranks, "
                f"{_SPREAD.format('duration_ns')} FROM pace",
            ),
            Output(
                "delta_stats",
                "The deltas of all ranks before one iteration.",
                {"iteration": "number of the instance", **_COLUMNS},
                f"SELECT iteration, {_SPREAD.format('delta_ns')} FROM pace "
                "WHERE delta_ns IS NOT NULL GROUP BY iteration ORDER BY iteration",
                ("iteration",),
            ),
        ),
        columns=("start_ns", "end_ns"),
        charts=(
            Chart(
                "heat",
                "pace",
                "Duration by rank and iteration",
                "duration_ns",
                x="iteration",
                y="rank",
                unit="ns",
            ),
            Chart(
                "line",
                "pace",
                "Progress: time until the end of each iteration",
                "elapsed_ns",
                x="iteration",
                group="rank",
                unit="ns",
            ),
            Chart(
                "line",
                "pace",
                "Delta before each iteration",
                "delta_ns",
                x="iteration",
                group="rank",
                unit="ns",
                where="delta_ns IS NOT NULL",
            ),
        ),
        figures=(
            Figure("instances", "instances", "count", "SELECT instances FROM all_stats"),
            Figure("median_duration", "median duration", "ns", "SELECT median_ns FROM all_stats"),
            Figure(
                "slowest_rank",
                "rank with the longest median",
                "",
                "SELECT rank FROM stats ORDER BY median_ns DESC, rank LIMIT 1",
            ),
        ),
        options=(Option("name", f"whose pace is looked at: {example}", "", required=True),),
        needs=tuple(needs),
        source="`nsys recipe` of the same name",
    )
