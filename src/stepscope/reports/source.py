"""A trace as reports read it: SQL over what counts under a scope, and rows as numpy columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stepscope.reports.computed import COMPUTED
from stepscope.reports.views import VIEWS
from stepscope.sql.engine import quoted
from stepscope.sql.files import Files
from stepscope.trace.frame import AnyArray, BoolArray, IntArray
from stepscope.trace.schema import TABLES
from stepscope.trace.scope import Scope
from stepscope.trace.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

_READ: Final = re.compile(r"\b(?:FROM|JOIN)\s+(\w+)")
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")


def written(statement: str, arguments: Mapping[str, int | bool | str]) -> str:
    """A statement with its placeholders filled: each argument, and how kernels are named.

    ``{kernel}`` is the expression for a kernel's name, ``{kernels}``, ``{executions}`` and
    ``{work}`` are the views of kernels that have what it takes, alone, with their calls, and with
    copies and fills. ``{early}`` stands before the name of what may be without the last step.
    """
    name = "name"
    if arguments.get("base"):
        name = "coalesce(short_name, name)"
    elif arguments.get("mangled"):
        name = "coalesce(mangled_name, name)"
    ending = ""
    if arguments.get("nvtx-name"):
        name, ending = f"coalesce(range_name || '/', '') || {name}", "_in_range"
    values = {
        "kernel": name,
        "kernels": f"kernel{ending}",
        "executions": f"execution{ending}",
        "work": f"gpu_work{ending}",
        "early": "early_" if arguments.get("without-last-step") else "",
        **{key.replace("-", "_"): _literal(value) for key, value in arguments.items()},
    }
    if int(arguments.get("rows", 0)) < 0:
        values["rows"] = "NULL"  # no limit
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), statement)


def _literal(value: int | bool | str) -> str:
    return quoted(value) if isinstance(value, str) else str(value).lower()


class Source:
    """A trace under a scope.

    Args:
        trace: the trace.
        scope: which events count.
    """

    def __init__(self, trace: Trace, scope: Scope | None = None) -> None:
        self.trace = trace
        self.scope = scope or Scope()
        self._declared: set[str] = set()
        self._rows: dict[tuple[str, ...], Rows] = {}
        self._known: dict[str, bool] = {}

    @cached_property
    def _files(self) -> Files:
        return Files(self.trace)

    @cached_property
    def _whole(self) -> Source:
        return self if self.scope.everything else Source(self.trace)

    def table(self, statement: str, *, coded: bool = False) -> pa.Table:
        """What a statement over the canonical tables and the views of reports gives.

        Args:
            statement: the statement.
            coded: texts of many rows as dictionaries.
        """
        self._declare(statement)
        return self._files.table(statement, coded=coded)

    def columns(self, statement: str) -> dict[str, AnyArray]:
        """The same as numpy columns: integer nulls are -1, null texts None."""
        self._declare(statement)
        return self._files.columns(statement)

    def value(self, statement: str) -> Any:
        """The only cell of what a statement gives."""
        self._declare(statement)
        return self._files.value(statement)

    def holds(self, rows: str) -> bool:
        """Whether the trace, whatever the scope, holds a row: what follows FROM in a statement."""
        known = self._whole._known
        if rows not in known:
            known[rows] = bool(self._whole.value(f"SELECT EXISTS (SELECT 1 FROM {rows})"))
        return known[rows]

    def _declare(self, statement: str) -> None:
        """Make known what a statement reads."""
        for name in _READ.findall(statement):
            if name in self._declared:
                continue
            self._declared.add(name)
            if name in VIEWS:
                self._declare(VIEWS[name])
                self._files.define(name, VIEWS[name])
            elif name in COMPUTED:
                self._files.register(name, COMPUTED[name](self.columns, self.trace))
            elif name.removeprefix("all_") in TABLES:
                self._files.define(name, self._stored(name))

    def _stored(self, name: str) -> str:
        table = name.removeprefix("all_")
        known = {column.name for column in TABLES[table].columns}
        length = ", end_ns - start_ns AS duration_ns" if {"start_ns", "end_ns"} <= known else ""
        read = f"SELECT *{length} FROM ({self._files.stored(table)})"
        if name != table or self.scope.everything:
            return read
        return f"{read} WHERE {_condition(self.scope, known)}"

    def rows(self, table: str) -> Rows:
        """Rows of a table that count."""
        if (table,) not in self._rows:
            self._rows[(table,)] = self._scoped(table)
        return self._rows[(table,)]

    def _scoped(self, table: str) -> Rows:
        rows = Rows(self.trace, table)
        known = {column.name for column in TABLES[table].columns}
        if self.scope.everything or not len(rows):
            return rows
        numbered = f"SELECT *, row_number() OVER () - 1 AS number FROM all_{table}"
        self._declare(numbered)
        chosen = self._files.columns(
            f"SELECT number FROM ({numbered}) WHERE {_condition(self.scope, known)} ORDER BY number"
        )
        return Rows(self.trace, table, chosen["number"])

    def of_kind(self, table: str, column: str, *kinds: str) -> Rows:
        """Rows of a table that count and have one of these kinds."""
        key = (table, column, *kinds)
        if key not in self._rows:
            rows = self.rows(table)
            self._rows[key] = rows.where(rows.equals(column, kinds)) if len(rows) else rows
        return self._rows[key]

    def kernels(self) -> Rows:
        """Kernels."""
        return self.of_kind("gpu_op", "kind", "kernel")


def _condition(scope: Scope, known: set[str]) -> str:
    """Which rows of a table count, by those of its columns that tell."""
    parts = ["true"]
    if {"start_ns", "time_ns"} & known:
        start = "start_ns" if "start_ns" in known else "time_ns"
        end = "end_ns" if "end_ns" in known else start
        low = -(1 << 63) if scope.start_ns is None else scope.start_ns
        high = (1 << 63) - 1 if scope.end_ns is None else scope.end_ns
        a, b = f"({low})", f"({high})"
        parts.append(
            f"(({start} >= {a} AND {start} < {b}) OR ({end} >= {a} AND {end} < {b})"
            f" OR ({start} < {a} AND {end} >= {b}))"
        )
    if scope.process_id is not None and "process_id" in known:
        parts.append(f"process_id = {scope.process_id}")
    if scope.thread_id is not None and "thread_id" in known:
        parts.append(f"thread_id = {scope.thread_id}")
    return " AND ".join(parts)


class Rows:
    """Rows of one table as numpy columns, for reports of users in Python.

    Args:
        trace: where from.
        table: canonical table.
        chosen: row numbers, ascending; None for all.
    """

    def __init__(self, trace: Trace, table: str, chosen: IntArray | None = None) -> None:
        self._trace = trace
        self._table = table
        self._chosen = chosen
        self._columns: dict[str, AnyArray] = {}

    def __len__(self) -> int:
        return self._trace.rows(self._table) if self._chosen is None else len(self._chosen)

    def __getitem__(self, column: str) -> AnyArray:
        """A column as numpy: nulls are -1, text is codes into :meth:`texts`."""
        if column not in self._columns:
            data = self._trace.frame(self._table, column)[column]
            self._columns[column] = data if self._chosen is None else data[self._chosen]
        return self._columns[column]

    def texts(self, column: str) -> list[str]:
        """The distinct texts of a text column."""
        return self._trace.frame(self._table, column).texts[column]

    def equals(self, column: str, values: Sequence[str]) -> BoolArray:
        """Which rows have one of these texts."""
        return self.that(column, lambda text: text in values)

    def that(self, column: str, holds: Callable[[str], object]) -> BoolArray:
        """Which rows have a text that satisfies a predicate; it is asked once a distinct text."""
        hits = np.array([*map(holds, self.texts(column)), False], dtype=bool)
        return np.take(hits, self[column], mode="wrap")

    def where(self, mask: BoolArray) -> Rows:
        """The rows where the mask is true."""
        chosen = np.flatnonzero(mask)
        if self._chosen is not None:
            chosen = self._chosen[chosen]
        return Rows(self._trace, self._table, chosen)

    def arrow(self) -> pa.Table:
        """The rows with all columns, as the trace stores them."""
        table = self._trace.arrow(self._table)
        return table if self._chosen is None else table.take(self._chosen)

    @property
    def duration(self) -> IntArray:
        """Length of each row, ns."""
        length: IntArray = self["end_ns"] - self["start_ns"]
        return length


def range_scope(trace: Trace, text: str) -> Scope | None:
    """The scope of ``range[@domain][/index]``; None when there is no such range.

    A range counts that carries exactly this text and domain (none for the default domain); the
    instances are numbered from 0 in order of start. A range of a process's main thread selects
    the whole process, one of another thread that thread's events and the process's GPU work.
    """
    index = 0
    head, slash, tail = text.rpartition("/")
    if slash and tail.isdigit():
        text, index = head, int(tail)
    name, _, domain = text.partition("@")
    found = Source(trace).columns(
        "SELECT start_ns, end_ns, process_id, thread_id FROM host_range WHERE name = "
        f"{quoted(name)} AND domain IS NOT DISTINCT FROM {quoted(domain) if domain else 'NULL'} "
        f"ORDER BY start_ns, id LIMIT 1 OFFSET {index}"
    )
    if not len(found["start_ns"]):
        return None
    start, end, process, thread = (int(column[0]) for column in found.values())
    return Scope(start, end, process, None if process == thread else thread)
