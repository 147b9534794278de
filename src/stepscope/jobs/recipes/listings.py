"""Recipes that put what a report or rule says of each capture below each other."""

from __future__ import annotations

import re
from typing import Literal

import pyarrow as pa

from stepscope.jobs.recipes.recipe import (
    IDENTITY,
    Capture,
    Chart,
    Figure,
    Option,
    Output,
    Recipe,
    Values,
)
from stepscope.reports.report import Report, columns_of, table_of

_UNITS = {"dur": "_ns", "ts": "_ns", "mem": "_bytes", "ratio": "_percent"}


def column_name(label: str, unit: str) -> str:
    """A column of a report as tidy tables call it: ``Device ID`` is ``device_id``."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", label.replace("#", "")).lower()
    return re.sub(r"\W+", "_", words).strip("_") + _UNITS.get(unit, "")


def listing(
    report: Report,
    charts: tuple[Chart, ...] = (),
    *,
    value: str = "duration_ns",
    unit: Literal["ns", "bytes"] = "ns",
) -> Recipe:
    """The recipe of the same name as a report or rule.

    Args:
        report: the report.
        charts: of the page, over the table ``analysis``.
        value: column that the figures sum up.
        unit: of it.
    """
    columns = {column_name(c.label, c.unit): c.doc or c.label for c in report.columns}

    def run(capture: Capture, values: Values) -> pa.Table:
        asked = {k: v for k, v in values.items() if not isinstance(v, float)}
        if isinstance(report.run, str):
            answer = columns_of(capture.source, report.run, asked, report.columns)
        else:
            answer = report.run(capture.source, asked)
        found = table_of(report, answer).rename_columns(list(columns))
        plain = [
            pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type)
            for f in found.schema
        ]
        return found.cast(pa.schema(plain))

    options = tuple(
        Option(
            argument.name,
            argument.doc,
            # a recipe lists all rows unless told otherwise
            -1 if argument.name == "rows" else "" if argument.text else argument.default or 0,
            None if argument.name == "rows" else argument.low,
            argument.high,
        )
        for argument in report.arguments
    )
    return Recipe(
        report.name,
        report.title,
        report.doc,
        run,
        (
            Output(
                "analysis",
                "One row of the report on one rank, in the report's order.",
                {**IDENTITY, **columns},
                "SELECT rank, capture, * EXCLUDE (input, rank, capture) FROM part ORDER BY input",
                ("rank", next(iter(columns))),
            ),
            Output(
                "rank_stats",
                "One rank; those without rows count 0.",
                {**IDENTITY, "rows": "how many rows", f"total_{unit}": f"sum of {value}, {unit}"},
                f"SELECT capture.rank, capture.capture, count(part.input)::BIGINT AS rows, "
                f"coalesce(sum({value}), 0)::BIGINT AS total_{unit} FROM capture "
                "LEFT JOIN part USING (input) GROUP BY ALL ORDER BY capture.rank",
                ("rank",),
            ),
        ),
        charts=(
            *charts,
            Chart(
                "bar", "rank_stats", f"Sum of {value} by rank", f"total_{unit}", y="rank", unit=unit
            ),
        ),
        figures=(
            Figure("rows", "rows", "count", "SELECT sum(rows) FROM rank_stats"),
            Figure("total", f"sum of {value}", unit, f"SELECT sum(total_{unit}) FROM rank_stats"),
        ),
        options=options,
        needs=report.needs,
        source="`nsys recipe` of the same name",
        none_found=report.none_found or Recipe.none_found,
    )
