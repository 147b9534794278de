"""Recipes: one question asked of every capture of a job, wherever, and the answers written."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stepscope import __version__
from stepscope.api.items import Asked, asked_of, shown_place
from stepscope.cache.store import Cache
from stepscope.importers.registry import load
from stepscope.jobs.engine.run import Engine, Mapped, mapped
from stepscope.jobs.engine.work import DONE, FAILED, FULL, LACKING, Outcome, Task
from stepscope.jobs.recipes.recipe import BEGIN, LENGTH, Recipe, facts, find, from_text, recipes
from stepscope.jobs.recipes.result import (
    SCHEMA,
    RecipeFigure,
    RecipeInput,
    RecipeResult,
    RecipeTable,
)
from stepscope.trace.errors import InputError, StorageError, UsageError
from stepscope.trace.one_job import APART_NS
from stepscope.trace.text import JsonError, from_json

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.jobs.engine.reduce import Reduction

__all__ = [
    "Engine",
    "RecipeResult",
    "known_recipes",
    "recipe_named",
    "recipe_of_file",
    "run_recipe",
]

RESULT: Final = "recipe.json"
PAGE: Final = "index.html"
_PARTIAL: Final = ".partial"
_FACTS: Final = b"stepscope.facts"


def known_recipes() -> dict[str, Recipe]:
    """Every recipe that ships, by name."""
    return recipes()


def recipe_named(name: str) -> Recipe:
    """A recipe that ships.

    Raises:
        UsageError: there is none of this name; the message tells the nearest.
    """
    return find(name)


def recipe_of_file(path: str | Path) -> Recipe:
    """The recipe that a user's Python file defines.

    Raises:
        InputError: it cannot be read.
        UsageError: it defines none.
    """
    return from_text(_text_of(path), str(path))


def _text_of(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"cannot read {path}: {reason}; name a Python file") from error


# --- what the engine calls ------------------------------------------------------------------------


def examined(source: Path, output: Path, options: dict[str, Any]) -> None:
    """Task: when and where one capture was recorded, without rows."""
    import pyarrow as pa

    del options
    _write(pa.table({}), facts(load(source, Cache())), output)


def answered(source: Path, output: Path, options: dict[str, Any]) -> None:
    """Task: what one capture answers to a recipe.

    Args:
        source: the capture.
        output: the Parquet file.
        options: ``recipe``, its name; or ``file`` and ``text``, those of a user's; ``values``.

    Raises:
        LackingError: the capture holds none of what the recipe needs.
        InputError: it cannot be read.
    """
    recipe = (
        from_text(options["text"], options["file"])
        if "text" in options
        else find(options["recipe"])
    )
    trace = load(source, Cache())
    try:
        table = recipe.ask(trace, options["values"])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if "text" not in options:
            raise
        raise UsageError(
            f"recipe {recipe.name} of {options['file']} failed: {type(error).__name__}: {error}; "
            "correct it"
        ) from error
    _write(table, facts(trace), output)


def _write(table: pa.Table, about: dict[str, Any], output: Path) -> None:
    import pyarrow.parquet as pq

    held = {**(table.schema.metadata or {}), _FACTS: json.dumps(about).encode()}
    pq.write_table(table.replace_schema_metadata(held), output, compression="zstd")


# --- what is asked of them ------------------------------------------------------------------------


def run_recipe(
    recipe: Recipe | str,
    paths: Sequence[str | Path],
    folder: str | Path,
    *,
    options: Mapping[str, str] | None = None,
    file: str = "",
    engine: Engine | None = None,
    strict: bool = False,
    force: bool = False,
    page: bool = True,
) -> RecipeResult:
    """Ask every capture, put the answers together, and write tables, page and ``recipe.json``.

    Args:
        recipe: the recipe, or its name.
        paths: captures, folders of captures, patterns or URLs of fsspec; for ``diff`` two results.
        folder: where the result goes. What an interrupted run left there is gone on with.
        options: the recipe's options as text, by name.
        file: the Python file that defines the recipe, for one of a user's.
        engine: where the work is done; by default the processes of this machine.
        strict: one capture that cannot be read is an error.
        force: replace a result that is there.
        page: whether to write the page.

    Raises:
        InputError: no capture can be read, or with ``strict`` one cannot.
        UsageError: an option is wrong, or no capture holds what the recipe needs.
        StorageError: the result cannot be written, or a cluster went away.
    """
    found = find(recipe) if isinstance(recipe, str) else recipe
    values = found.values(options or {})
    target = Path(folder)
    _prepare(target, force=force)
    if page:
        from stepscope.render.recipe_page import plotly_js

        plotly_js()  # what is not installed is said before the work
    if found.of_results:
        return _diffed(paths, target, values, page=page)
    asked = asked_of(paths)
    known: dict[str, Any] = {"recipe": found.name}
    if file:
        known = {"file": file, "text": _text_of(file)}
    notes: list[str] = []
    partial = target / _PARTIAL
    engine = engine or Engine()
    if found.aligned:
        _map(asked, Task("stepscope.api.recipes:examined", {}), partial, engine, "Examining")
        _check(asked, found, strict=strict)
        begin, length = _window([f for f in asked.facts if f is not None], notes)
        values |= {BEGIN: begin, LENGTH: length}
    task = Task("stepscope.api.recipes:answered", {**known, "values": values})
    files = _map(asked, task, partial, engine, "Asking")
    _check(asked, found, strict=strict)
    with _storing(target):
        result = _reduced(found, values, asked, files, target, notes, page=page)
    if result.complete:  # else a later run only does what failed
        shutil.rmtree(partial, ignore_errors=True)
    return result


@contextmanager
def _storing(target: Path) -> Iterator[None]:
    """Errors of putting a result together, in one line."""
    try:
        yield
    except OSError as error:
        why = " ".join((error.strerror or str(error)).split())
        room = "make room, then " if error.errno in FULL else ""
        raise StorageError(
            f"cannot write {error.filename or target}: {why}; {room}run the same again"
        ) from error


def _diffed(
    paths: Sequence[str | Path], target: Path, values: Mapping[str, Any], *, page: bool
) -> RecipeResult:
    """Compare two results of one recipe."""
    import pyarrow as pa

    from stepscope.api.recipe_diff import differences, inputs_of, read_result
    from stepscope.jobs.engine.reduce import reduction

    if len(paths) != 2:
        raise UsageError("diff compares two results: stepscope recipe diff FIRST SECOND -o FOLDER")
    folders = [Path(path) for path in paths]
    first, second = (read_result(folder, RESULT) for folder in folders)
    if first.recipe != second.recipe or first.recipe not in recipes():
        raise UsageError(
            f"{folders[0]} is a result of {first.recipe}, {folders[1]} one of {second.recipe}; "
            "compare two results of one recipe that ships"
        )
    of = find(first.recipe)
    held = {}
    for side, folder in zip(("first", "second"), folders, strict=True):
        for output in of.tables:
            held[f"{side}_{output.name}"] = _stored(folder / f"{output.name}.parquet")
    schemas = {output.name: held[f"first_{output.name}"].schema for output in of.tables}
    made_of = differences(of, schemas, values)
    notes = [
        f"{folder.name} is not complete: captures are missing from it"
        for folder, side in zip(folders, (first, second), strict=True)
        if not side.complete
    ]
    nothing = pa.table({"input": pa.array([], pa.int64())})
    with _storing(target), reduction({}, nothing, "", target, []) as made:
        for name, table in held.items():
            made.add(name, table)
        tables = {o.name: _made(made, made_of, o.name, values) for o in made_of.tables}
        return finished(made_of, made, tables, target, inputs_of(folders), values, notes, page=page)


def _stored(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"cannot read {path}: {error}; make the result again") from error


def _prepare(target: Path, *, force: bool) -> None:
    if target.is_file():
        raise UsageError(f"{target} is a file; name a folder")
    if not target.is_dir():
        return
    if (target / RESULT).exists():
        if not force and _is_complete(target / RESULT):
            raise UsageError(f"{target} holds a result; --force replaces it")
        try:
            # it is written last: without it, a result is not whole; nor is a page of other tables
            (target / RESULT).unlink()
            (target / PAGE).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot replace {target / RESULT}: {error.strerror}; choose another folder"
            ) from error
    elif not (target / _PARTIAL).is_dir() and any(target.iterdir()) and not force:
        raise UsageError(f"{target} holds other files; name a new folder, or add --force")


def _is_complete(path: Path) -> bool:
    """Whether a result that is there is whole; one that cannot be read may be anybody's."""
    try:
        held = from_json(path.read_bytes() or b"{}")
    except (OSError, JsonError):
        return True
    return bool(held.get("complete", True)) if isinstance(held, dict) else True


def _map(asked: Asked, task: Task, partial: Path, engine: Engine, doing: str) -> dict[int, Path]:
    """Do a task on the inputs that are well so far; number of an input -> its result."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = [n for n, outcome in enumerate(asked.outcomes) if _is_well(outcome)]
    done: Mapped = mapped(task, [asked.items[n] for n in numbers], partial, engine, doing=doing)
    files = {}
    for number, outcome, file in zip(numbers, done.outcomes, done.files, strict=True):
        asked.outcomes[number] = outcome
        if outcome.state != DONE:
            continue
        try:
            asked.facts[number] = json.loads(pq.read_schema(file).metadata[_FACTS])
        except (OSError, pa.ArrowException, LookupError, TypeError, ValueError):
            # what an earlier run kept was changed since: the next one asks this capture again
            file.unlink(missing_ok=True)
            asked.outcomes[number] = Outcome(
                FAILED, "its kept answer was damaged and is removed; run the same again"
            )
            continue
        files[number] = file
    return files


def _is_well(outcome: Outcome | None) -> bool:
    return outcome is None or outcome.state == DONE


def _check(asked: Asked, recipe: Recipe, *, strict: bool) -> None:
    """Refuse to go on where nothing is left, or where nothing may fail."""
    pairs = list(zip(asked.items, asked.outcomes, strict=True))
    broken = [(i, o) for i, o in pairs if o is not None and o.state not in (DONE, LACKING)]
    lacking = [(i, o) for i, o in pairs if o is not None and o.state == LACKING]
    if broken and (strict or len(broken) + len(lacking) == len(pairs)):
        item, outcome = broken[0]
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        where = "" if Path(item.place).name in outcome.message else f"{item.place}: "
        raise InputError(f"{where}{outcome.message}{more}")
    if len(lacking) == len(pairs):
        what = f"{recipe.name} cannot be answered: " if len(pairs) == 1 else (
            f"none of {len(pairs)} captures holds what {recipe.name} needs: "
        )  # fmt: skip
        raise UsageError(what + (lacking[0][1].message if lacking else "no capture was named"))


def _window(known: Sequence[dict[str, Any]], notes: list[str]) -> tuple[int, int]:
    """(wall-clock time at which the job began, its length), ns; a begin of 0: clocks tell nothing.

    All times count from the captures' origins.
    """
    longest = max(int(f["end_ns"]) for f in known)
    origins = [f["origin_epoch_ns"] for f in known]
    if None in origins:
        notes.append("not every capture tells its wall-clock time, so all are drawn from one begin")
        return 0, longest
    if max(origins) - min(origins) > longest + APART_NS:
        notes.append("the captures are of different times, so all are drawn from one begin")
        return 0, longest
    begin = min(origins)
    return begin, max(f["origin_epoch_ns"] - begin + f["end_ns"] for f in known)


def _ranks(known: Sequence[dict[str, Any]], notes: list[str]) -> list[int]:
    stated = [f["stated_rank"] for f in known]
    if None not in stated and len(set(stated)) == len(stated):
        return [int(rank) for rank in stated]
    if len(known) > 1:
        why = "not every capture states one" if None in stated else "two captures state the same"
        notes.append(f"ranks are numbered in the order of the captures, because {why}")
    return list(range(len(known)))


def _reduced(
    recipe: Recipe,
    values: Mapping[str, Any],
    asked: Asked,
    files: Mapping[int, Path],
    target: Path,
    notes: list[str],
    *,
    page: bool,
) -> RecipeResult:
    import pyarrow as pa

    from stepscope.jobs.engine.reduce import reduction

    numbers = sorted(files)
    known = [fact for n in numbers if (fact := asked.facts[n]) is not None]
    ranks = _ranks(known, notes)
    rank_of = dict(zip(numbers, ranks, strict=True))
    for number, fact in zip(numbers, known, strict=True):
        notes += [f"{fact['capture']}: {problem}" for problem in fact["problems"]]
        del number
    captures = pa.table(
        {
            "input": pa.array(numbers, pa.int64()),
            "rank": pa.array(ranks, pa.int64()),
            "capture": pa.array([fact["capture"] for fact in known], pa.string()),
            "hostname": pa.array([fact["hostname"] for fact in known], pa.string()),
            **{
                name: pa.array([fact[name] for fact in known], pa.int64())
                for name in ("origin_epoch_ns", "begin_ns", "end_ns")
            },
        }
    )
    inputs = [
        RecipeInput(
            shown_place(item.place),
            rank_of.get(number),
            outcome.state if outcome else FAILED,
            outcome.message if outcome else "",
        )
        for number, (item, outcome) in enumerate(zip(asked.items, asked.outcomes, strict=True))
    ]
    with reduction(files, captures, recipe.merge, target / _PARTIAL, _columns_of(files)) as made:
        tables = {name: _made(made, recipe, name, values) for name in _in_order(recipe)}
        return finished(recipe, made, tables, target, inputs, values, sorted(set(notes)), page=page)


def _columns_of(files: Mapping[int, Path]) -> list[str]:
    import pyarrow.parquet as pq

    first = next(iter(files.values()), None)
    return [] if first is None else list(pq.read_schema(first).names)


def _in_order(recipe: Recipe) -> list[str]:
    """The tables, each after those that it is made of."""
    names = {output.name for output in recipe.tables}
    read = {
        output.name: names & set(re.findall(r"\w+", output.sql)) - {output.name}
        for output in recipe.tables
    }
    return list(TopologicalSorter(read).static_order())


def _made(made: Reduction, recipe: Recipe, name: str, values: Mapping[str, Any]) -> pa.Table:
    from stepscope.reports.source import written

    output = next(output for output in recipe.tables if output.name == name)
    table = made.make(name, written(output.sql, values))
    if table.column_names != list(output.columns):
        raise UsageError(
            f"table {name} of recipe {recipe.name} has the columns "
            f"{', '.join(table.column_names)}, but declares {', '.join(output.columns)}; correct it"
        )
    return table


def finished(
    recipe: Recipe,
    made: Reduction,
    tables: Mapping[str, pa.Table],
    target: Path,
    inputs: list[RecipeInput],
    values: Mapping[str, Any],
    notes: list[str],
    *,
    page: bool,
) -> RecipeResult:
    """Write a result: its tables, its page, and last what it says of itself.

    Raises:
        OSError: a file cannot be written.
    """
    import msgspec

    from stepscope.render.recipe_page import recipe_page
    from stepscope.render.tables import as_csv

    if not tables[recipe.tables[0].name].num_rows:
        notes = [recipe.none_found, *notes]
    target.mkdir(parents=True, exist_ok=True)
    written: list[RecipeTable] = []
    for output in recipe.tables:
        name = output.name
        made.write(name, target / f"{name}.parquet")
        (target / f"{name}.csv").write_text(as_csv(tables[name]), encoding="utf-8")
        about = tables[name]
        written.append(
            RecipeTable(name, output.doc, about.num_rows, about.column_names,
                        [f"{name}.parquet", f"{name}.csv"])
        )  # fmt: skip
    result = RecipeResult(
        schema=SCHEMA,
        version=__version__,
        recipe=recipe.name,
        title=recipe.title,
        doc=recipe.doc,
        options={k: v for k, v in values.items() if k not in (BEGIN, LENGTH)},
        inputs=inputs,
        complete=all(i.state in (DONE, LACKING) for i in inputs),
        figures=[
            RecipeFigure(f.name, f.doc, f.unit, _plain(made.cell(f.sql))) for f in recipe.figures
        ],
        tables=written,
        page=PAGE if page else "",
        notes=notes,
    )
    if page:
        drawn = [
            (chart, made.table(f'SELECT * FROM "{chart.table}" WHERE {chart.where}'))
            for chart in recipe.charts
        ]
        first = recipe.tables[0]
        text = recipe_page(result, drawn, first, tables[first.name])
        (target / PAGE).write_text(text, encoding="utf-8")
    content = msgspec.json.format(msgspec.json.encode(result), indent=1)
    partial = target / f".{RESULT}"
    partial.write_bytes(content)
    partial.replace(target / RESULT)
    return result


def _plain(value: Any) -> float | int | str | None:
    """A cell of DuckDB in a type of JSON."""
    if value is None or (isinstance(value, float) and value != value):  # noqa: PLR0124 - NaN
        return None
    return value if isinstance(value, int | float | str) else float(value)
