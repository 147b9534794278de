"""Recipes that sum up durations or sizes by name: for each rank, and over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from stepscope.jobs.recipes.recipe import IDENTITY, Chart, Figure, Option, Output, Recipe
from stepscope.reports.needs import Need

KERNEL_NAMES = (
    Option("base", "kernel names without template arguments and parameters", False),
    Option("mangled", "kernel names as the linker sees them", False),
)
_NSYS = "`nsys recipe` of the same name"
_SPREAD = ("mean", "q1", "median", "q3", "min", "max", "std")


def _columns(unit: str, *, approximate: bool) -> dict[str, str]:
    """Meaning of the columns of a summary whose values are of one unit."""
    over = " of the ranks' values" if approximate else ""
    return {
        f"total_{unit}": f"sum, {unit}",
        "instances": "how many",
        f"mean_{unit}": f"mean, {unit}",
        f"q1_{unit}": f"first quartile, {unit}" + (f": least{over}" if over else ""),
        f"median_{unit}": f"median, {unit}" + (f": median{over}" if over else ""),
        f"q3_{unit}": f"third quartile, {unit}" + (f": greatest{over}" if over else ""),
        f"min_{unit}": f"least, {unit}",
        f"max_{unit}": f"greatest, {unit}",
        f"std_{unit}": f"sample standard deviation, {unit}",
    }


def _quartile(value: str, part: int) -> str:
    """Type-2 quantile (inverted distribution with averaging), as Nsight Systems' reports have."""
    values, at = f"list({value} ORDER BY {value})", f"count({value}) * {part}"
    upper = f"({values})[({at}) // 4 + 1]"
    return (
        f"CASE WHEN ({at}) % 4 = 0 THEN (({values})[({at}) // 4] + {upper}) / 2.0 "
        f"ELSE {upper} END::DOUBLE"
    )


def asked(rows: str, key: str, value: str, quartiles: Literal["type2", "linear"]) -> str:
    """The statement that a capture is asked: one row a name."""
    q1, q3 = (
        (_quartile(value, 1), _quartile(value, 3))
        if quartiles == "type2"
        else (f"quantile_cont({value}, 0.25)::DOUBLE", f"quantile_cont({value}, 0.75)::DOUBLE")
    )
    return f"""
        SELECT name, sum({value})::BIGINT, count(*)::BIGINT, avg({value})::DOUBLE, {q1},
            median({value})::DOUBLE, {q3}, min({value})::BIGINT, max({value})::BIGINT,
            coalesce(stddev_samp({value}), {"0" if quartiles == "type2" else "NULL"})::DOUBLE
        FROM (SELECT * REPLACE ({key} AS name) FROM {rows}) AS named GROUP BY ALL"""


# the pooled deviation is that of all ranks' values together
_ALL = """
WITH whole AS (
    SELECT name, sum(total_{u})::BIGINT AS total_{u}, sum(instances)::BIGINT AS instances,
        sum(total_{u})::DOUBLE / sum(instances) AS mean_{u}, min(q1_{u}) AS q1_{u},
        median(median_{u}) AS median_{u}, max(q3_{u}) AS q3_{u}, min(min_{u}) AS min_{u},
        max(max_{u}) AS max_{u}, count(*)::BIGINT AS ranks
    FROM part GROUP BY name
), spread AS (
    SELECT name, CASE WHEN sum(part.instances) > 1 THEN sqrt(greatest(sum(
        (part.instances - 1) * coalesce(part.std_{u}, 0) ** 2
        + part.instances * (part.mean_{u} - whole.mean_{u}) ** 2
        ), 0) / (sum(part.instances) - 1)) ELSE 0 END AS std_{u}
    FROM part JOIN whole USING (name) GROUP BY name
), least AS (
    SELECT name, string_agg(rank::VARCHAR, ', ' ORDER BY rank) AS min_rank
    FROM (SELECT * FROM part QUALIFY min_{u} = min(min_{u}) OVER (PARTITION BY name)
        AND row_number() OVER (PARTITION BY name ORDER BY min_{u}, rank) <= 8)
    GROUP BY name
), most AS (
    SELECT name, string_agg(rank::VARCHAR, ', ' ORDER BY rank) AS max_rank
    FROM (SELECT * FROM part QUALIFY max_{u} = max(max_{u}) OVER (PARTITION BY name)
        AND row_number() OVER (PARTITION BY name ORDER BY max_{u} DESC, rank) <= 8)
    GROUP BY name
)
SELECT name, {share}total_{u}, instances, mean_{u}, q1_{u}, median_{u}, q3_{u}, min_{u}, max_{u},
    std_{u}, ranks, min_rank, max_rank
FROM whole JOIN spread USING (name) JOIN least USING (name) JOIN most USING (name)
ORDER BY total_{u} DESC, name
"""
_RANKS = "SELECT rank, capture, {share}part.* EXCLUDE (input, rank, capture) FROM part"


def summary_recipe(
    name: str,
    title: str,
    doc: str,
    rows: str,
    needs: Sequence[Need],
    *,
    key: str = "name",
    value: str = "duration_ns",
    unit: Literal["ns", "bytes"] = "ns",
    quartiles: Literal["type2", "linear"] = "type2",
    options: tuple[Option, ...] = (),
    what: str = "name",
) -> Recipe:
    """A recipe of this family.

    Args:
        name: of the recipe.
        title: one line.
        doc: what is counted.
        rows: what follows FROM in the statement.
        needs: what a capture must hold.
        key: expression for the name that rows are summed up by.
        value: column that is summed up.
        unit: of it.
        quartiles: as Nsight Systems' reports (type 2), or as pandas (linear) has them.
        options: of the recipe.
        what: what the names are.
    """
    share = {"time_percent": "share of the sum of all rows' totals, percent"}
    share = share if unit == "ns" else {}
    of_rank, of_all = (
        (f"100.0 * total_{unit} / nullif(sum(total_{unit}) OVER ({over}), 0) AS time_percent, ")
        if share
        else ""
        for over in ("PARTITION BY input", "")
    )
    return Recipe(
        name,
        title,
        f"{doc} Quartiles of a rank are "
        + (
            "of type 2, as Nsight Systems' reports have them."
            if quartiles == "type2"
            else "interpolated, as pandas has them."
        ),
        asked(rows, key, value, quartiles),
        (
            Output(
                "all_stats",
                "One name over all ranks, largest total first.",
                {
                    "name": what,
                    **share,
                    **_columns(unit, approximate=True),
                    "ranks": "ranks that have it",
                    "min_rank": "ranks that have the least, eight at most",
                    "max_rank": "ranks that have the greatest, eight at most",
                },
                _ALL.format(u=unit, share=of_all),
                ("name",),
            ),
            Output(
                "rank_stats",
                "One name on one rank, largest total first.",
                {**IDENTITY, **share, "name": what, **_columns(unit, approximate=False)},
                f"{_RANKS.format(share=of_rank)} ORDER BY rank, total_{unit} DESC, name",
                ("rank", "name"),
            ),
        ),
        columns=("name", f"total_{unit}", "instances", *(f"{part}_{unit}" for part in _SPREAD)),
        charts=(
            Chart(
                "bar", "all_stats", "Total by name, all ranks", f"total_{unit}", y="name", unit=unit
            ),
            Chart(
                "heat",
                "rank_stats",
                "Total by rank",
                f"total_{unit}",
                x="rank",
                y="name",
                unit=unit,
            ),
        ),
        figures=(
            Figure("total", "all ranks together", unit, f"SELECT sum(total_{unit}) FROM all_stats"),
            Figure("instances", "instances", "count", "SELECT sum(instances) FROM all_stats"),
            Figure("names", "names", "count", "SELECT count(*) FROM all_stats"),
        ),
        options=options,
        needs=tuple(needs),
        source=_NSYS,
    )
