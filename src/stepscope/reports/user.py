"""Reports of the user: a Python file or an SQL file in a folder becomes a report."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from stepscope.reports.report import (
    Answer,
    Arguments,
    Column,
    Report,
    Unit,
    columns_of,
    nearest,
)
from stepscope.reports.source import Source
from stepscope.trace.errors import InputError, StepscopeError, UsageError
from stepscope.trace.schema import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

_HEAD = re.compile(r"^--\s*(title|unit)\s*:\s*(.*)$", re.IGNORECASE)
_UNKNOWN_COLUMN = re.compile(r'Referenced column "([^"]+)" not found')
_UNKNOWN_TABLE = re.compile(r"Table with name (\S+) does not exist")


def user_reports(folders: Sequence[Path]) -> dict[str, Report]:
    """The reports in some folders, by name; of equal names the first folder's counts.

    Raises:
        InputError: a folder or file cannot be read, or a file is no report.
    """
    found: dict[str, Report] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; name one that holds report files")
        for path in sorted(folder.iterdir()):
            if path.suffix == ".py" and not path.name.startswith("_"):
                for report in _from_python(path):
                    found.setdefault(report.name, report)
            elif path.suffix == ".sql":
                found.setdefault(path.stem, _from_sql(path))
    return found


def _from_python(path: Path) -> list[Report]:
    spec = importlib.util.spec_from_file_location(f"stepscope_user_report_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be loaded as Python; check the file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path} failed: {type(error).__name__}: {error}; correct it") from error
    reports = getattr(module, "REPORTS", None)
    if not isinstance(reports, list | tuple) or not all(isinstance(r, Report) for r in reports):
        raise InputError(f"{path} must set REPORTS to a list of stepscope.reports.Report")
    return [replace(report, run=partial(_guarded, report, path)) for report in reports]


def _guarded(report: Report, path: Path, source: Source, arguments: Arguments) -> Answer:
    """Run a user's report: what goes wrong in it is for its author to correct."""
    try:
        if isinstance(report.run, str):
            return columns_of(source, report.run, arguments, report.columns)
        columns = report.run(source, arguments)
    except StepscopeError:
        raise
    except Exception as error:
        raise UsageError(
            f"report {report.name} of {path} failed: {type(error).__name__}: {error}; correct it"
        ) from error
    if len(columns) != len(report.columns) or len({len(column) for column in columns}) > 1:
        raise UsageError(
            f"report {report.name} of {path} must return {len(report.columns)} columns of equal "
            "length; correct it"
        )
    return columns


def _from_sql(path: Path) -> Report:
    """An SQL file: comments ``-- title: ...`` and ``-- unit: column=dur``, then one SELECT."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as text; check the file") from error
    title = path.stem
    units: dict[str, Unit] = {}
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head and head[1].lower() == "title":
            title = head[2].strip()
        elif head:
            column, _, unit = head[2].strip().partition("=")
            if unit not in get_args(Unit):
                known = ", ".join(filter(None, get_args(Unit)))
                raise InputError(f"{path}: unknown unit {unit!r}; units are {known}")
            units[column] = cast("Unit", unit)
    run = partial(_run_sql, text, units, path)
    return Report(path.stem, title, f"SQL of {path.name}.", (), run)


def _run_sql(sql: str, units: dict[str, Unit], path: Path, source: Source, _: Arguments) -> Answer:
    from stepscope.sql.engine import Engine

    engine = Engine([(0, source.trace)], _restricted(source))
    try:
        table = engine.query(sql)
    except UsageError as error:
        raise UsageError(f"{path.name}: {_nearest_name(str(error), sql)}") from error
    return SqlAnswer(table, units)


def _restricted(source: Source) -> dict[str, Callable[[], pa.Table]]:
    """Under a filter, every table holds the rows that count for the other reports, too."""
    if source.scope.everything:
        return {}

    def rows(name: str) -> pa.Table:
        from stepscope.sql.engine import with_rank

        return with_rank(source.rows(name).arrow(), 0)

    return {name: partial(rows, name) for name in TABLES}


class SqlAnswer(list[object]):
    """Columns whose names and units the statement decides.

    Args:
        table: what it returned.
        units: unit of columns by name.
    """

    def __init__(self, table: pa.Table, units: dict[str, Unit]) -> None:
        super().__init__(column.combine_chunks() for column in table.columns)
        self.columns = tuple(Column(name, units.get(name, "")) for name in table.column_names)


def _nearest_name(message: str, sql: str) -> str:
    unknown = _UNKNOWN_COLUMN.search(message)
    if unknown:
        words = set(re.findall(r"\w+", sql.lower()))
        used = [table for name, table in TABLES.items() if name in words]
        known = {column.name for table in used for column in table.columns}
        return f"there is no column {unknown[1]!r}; {nearest(unknown[1], known, 'column')}"
    unknown = _UNKNOWN_TABLE.search(message)
    if unknown:
        return f"there is no table {unknown[1]!r}; {nearest(unknown[1], TABLES, 'table')}"
    return message
