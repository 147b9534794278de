"""``recipe diff``: two results of one recipe, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.jobs.recipes.recipe import Chart, Figure, Output, Recipe
from stepscope.jobs.recipes.result import SCHEMA, RecipeInput, RecipeResult
from stepscope.trace.errors import InputError, UsageError
from stepscope.trace.text import JsonError, from_json

if TYPE_CHECKING:
    import pyarrow as pa


def read_result(folder: Path, name: str) -> RecipeResult:
    """What a result says of itself.

    Raises:
        InputError: the folder holds none that can be read.
    """
    path = folder / name
    advice = "name the folder that stepscope recipe -o wrote"
    try:
        found: RecipeResult = from_json(path.read_bytes(), RecipeResult)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; {advice}") from error
    except (JsonError, msgspec.ValidationError) as error:
        raise InputError(f"{path} is no result of a recipe: {error}; {advice}") from error
    if found.schema != SCHEMA:
        raise InputError(f"{path} is of another version ({found.schema!r}); make it again")
    return found


def differences(of: Recipe, schemas: Mapping[str, pa.Schema], values: Mapping[str, Any]) -> Recipe:
    """The recipe whose tables are the differences of two results of a recipe."""
    from pyarrow import types

    drop, tolerance = values["drop"], float(values["tolerance"])
    outputs, charts = [], []
    for output in of.tables:
        if not output.keys:
            continue
        numbers = [
            field.name
            for field in schemas[output.name]
            if field.name not in output.keys
            and (types.is_integer(field.type) or types.is_floating(field.type))
        ]
        keys = ", ".join(f'"{key}"' for key in output.keys)
        shown = {
            n: f'CASE WHEN abs(a."{n}" - b."{n}") <= {tolerance!r} THEN 0 '
            f'ELSE a."{n}"::DOUBLE - b."{n}" END'
            for n in numbers
        }
        rows = ", ".join(f'{sql} AS "{n}"' for n, sql in shown.items())
        kept = " OR ".join(["only_in IS NOT NULL", *(f'"{n}" <> 0' for n in numbers)])
        sql = (
            f"SELECT * FROM (SELECT {keys}, CASE WHEN b.there IS NULL THEN 'first' WHEN a.there IS "
            f"NULL THEN 'second' END AS only_in{', ' + rows if rows else ''} FROM (SELECT *, 1 AS "
            f'there FROM "first_{output.name}") AS a FULL JOIN (SELECT *, 1 AS there FROM '
            f'"second_{output.name}") AS b USING ({keys}))'
            + (f" WHERE {kept}" if drop else "")
            + (f' ORDER BY abs("{numbers[0]}") DESC NULLS FIRST, {keys}' if numbers else "")
        )
        columns = {
            **{key: output.columns.get(key, key) for key in output.keys},
            "only_in": "first or second where only that result has the row; else null",
            **{n: f"first less second: {output.columns.get(n, n)}" for n in numbers},
        }
        outputs.append(Output(output.name, f"Difference. {output.doc}", columns, sql, output.keys))
        if numbers and len(output.keys) == 1:
            charts.append(
                Chart("bar", output.name, f"{numbers[0]}: first less second", numbers[0],
                      y=output.keys[0], unit="ns" if numbers[0].endswith("_ns") else "")
            )  # fmt: skip
    if not outputs:
        raise UsageError(f"results of {of.name} have no rows that could be compared")
    first = outputs[0].name
    numbers_of_first = list(outputs[0].columns)[len(outputs[0].keys) + 1 :]
    changed = " OR ".join(f'"{n}" <> 0' for n in numbers_of_first) or "false"
    figures = (
        Figure("changed", f"rows of {first} that differ", "count",
               f'SELECT count(*) FROM "{first}" WHERE {changed}'),
        Figure("only_first", "rows that only the first has", "count",
               f"SELECT count(*) FROM \"{first}\" WHERE only_in = 'first'"),
        Figure("only_second", "rows that only the second has", "count",
               f"SELECT count(*) FROM \"{first}\" WHERE only_in = 'second'"),
    )  # fmt: skip
    return replace(
        of, name="diff", title=f"Statistics Diff of {of.name}", tables=tuple(outputs),
        charts=tuple(charts), figures=figures,
    )  # fmt: skip


def inputs_of(paths: Sequence[Path]) -> list[RecipeInput]:
    """The two results as inputs: their numbers take the place of ranks."""
    return [RecipeInput(str(path), number, "done") for number, path in enumerate(paths)]
