"""A trace as reports read it: single columns, restricted to a window, a process, a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from stepscope.tabular.columns import StoredTable
from stepscope.trace.frame import AnyArray, BoolArray, IntArray
from stepscope.trace.schema import TABLES
from stepscope.trace.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Scope:
    """Which events count; everything by default.

    An event counts when it begins in the window, ends in it, or spans it; durations are never
    clipped.

    Attributes:
        start_ns: begin of the window (inside).
        end_ns: end of the window (outside).
        process_id: only events of this process.
        thread_id: only events of this thread, in tables that name threads.
    """

    start_ns: int | None = None
    end_ns: int | None = None
    process_id: int | None = None
    thread_id: int | None = None

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Scope()


class Rows:
    """Rows of one table; columns are read when they are first used.

    Args:
        trace: where from.
        table: canonical table.
        chosen: row numbers, ascending; None for all.
        stored: columns of the table that were read already.
    """

    def __init__(
        self,
        trace: Trace,
        table: str,
        chosen: IntArray | None = None,
        stored: StoredTable | None = None,
    ) -> None:
        self._trace = trace
        self._table = table
        self._chosen = chosen
        self._stored = stored or StoredTable(trace, table)
        self._columns: dict[str, AnyArray] = {}

    def __len__(self) -> int:
        return self._trace.rows(self._table) if self._chosen is None else len(self._chosen)

    def __getitem__(self, column: str) -> AnyArray:
        """A column as numpy: nulls are -1, text is codes into :meth:`texts`."""
        if self._chosen is None:
            return self._stored[column].values
        if column not in self._columns:
            self._columns[column] = self._stored[column].values[self._chosen]
        return self._columns[column]

    def texts(self, column: str) -> list[str]:
        """The distinct texts of a text column."""
        return self._stored[column].texts

    def valid(self, column: str) -> BoolArray:
        """Which rows have a value, for columns in which -1 is a value, too."""
        mask = self._trace.arrow(self._table, [column]).column(0).is_valid().to_numpy()
        found = np.asarray(mask, dtype=bool)
        return found if self._chosen is None else found[self._chosen]

    def equals(self, column: str, values: Sequence[str]) -> BoolArray:
        """Which rows have one of these texts."""
        stored = self._stored[column]
        wanted = np.array([text in values for text in stored.texts] + [False], dtype=bool)
        used = stored.rows_of_texts > 0
        if (wanted | ~used).all():  # in most traces every call is one of CUDA
            return np.ones(len(self), dtype=bool)
        return np.take(wanted, self[column], mode="wrap")

    def that(self, column: str, holds: Callable[[str], object]) -> BoolArray:
        """Which rows have a text that satisfies a predicate; it is asked once a distinct text."""
        hits = np.array([holds(text) for text in self.texts(column)] + [False], dtype=bool)
        return np.take(hits, self[column], mode="wrap")

    def where(self, mask: BoolArray) -> Rows:
        """The rows where the mask is true."""
        if mask.all():
            return self
        chosen = np.flatnonzero(mask)
        if self._chosen is not None:
            chosen = self._chosen[chosen]
        return Rows(self._trace, self._table, chosen, self._stored)

    def arrow(self) -> pa.Table:
        """The rows with all columns, as the trace stores them."""
        table = self._trace.arrow(self._table)
        return table if self._chosen is None else table.take(self._chosen)

    @cached_property
    def duration(self) -> IntArray:
        """Length of each row, ns."""
        every = self._stored.durations
        return every if self._chosen is None else every[self._chosen]


class Source:
    """A trace under a scope.

    Args:
        trace: the trace.
        scope: which events count.
    """

    def __init__(self, trace: Trace, scope: Scope | None = None) -> None:
        self.trace = trace
        self.scope = scope or Scope()
        self._stored: dict[str, StoredTable] = {}
        self._kept: dict[tuple[str, ...], Rows] = {}

    def _table(self, table: str) -> StoredTable:
        return self._stored.setdefault(table, StoredTable(self.trace, table))

    def _all(self, table: str) -> Rows:
        return Rows(self.trace, table, stored=self._table(table))

    def has(self, table: str, column: str, kinds: Sequence[str]) -> bool:
        """Whether the trace, whatever the scope, holds a row with one of these texts."""
        if not self.trace.rows(table):
            return False
        stored = self._table(table)[column]
        counted = zip(stored.texts, stored.rows_of_texts.tolist(), strict=False)
        return any(rows and text in kinds for text, rows in counted)

    def rows(self, table: str) -> Rows:
        """Rows of a table that count."""
        return self._keep((table,), lambda: self._scoped(self._all(table), table))

    def of_kind(self, table: str, column: str, *kinds: str) -> Rows:
        """Rows of a table that count and have one of these kinds."""

        def select() -> Rows:
            rows = self.rows(table)
            return rows.where(rows.equals(column, kinds)) if len(rows) else rows

        return self._keep((table, column, *kinds), select)

    def kernels(self) -> Rows:
        """Kernels."""
        return self.of_kind("gpu_op", "kind", "kernel")

    def memory_ops(self) -> Rows:
        """Memory copies and fills."""
        return self.of_kind("gpu_op", "kind", "memcpy", "memset")

    def gpu_work(self) -> Rows:
        """Kernels, copies and fills; whole graphs are left out, as what they hold is unknown."""
        return self.of_kind("gpu_op", "kind", "kernel", "memcpy", "memset")

    def cuda_calls(self) -> Rows:
        """Calls of the CUDA runtime and driver."""
        return self.of_kind("api_call", "api", "runtime", "driver")

    def _keep(self, key: tuple[str, ...], make: object) -> Rows:
        if key not in self._kept:
            assert callable(make)
            self._kept[key] = make()
        return self._kept[key]

    def _scoped(self, rows: Rows, table: str) -> Rows:
        if self.scope.everything or not len(rows):
            return rows
        names = set(TABLES[table].column_names())
        keep = np.ones(len(rows), dtype=bool)
        if "start_ns" in names or "time_ns" in names:
            start = rows["start_ns" if "start_ns" in names else "time_ns"]
            end = rows["end_ns"] if "end_ns" in names else start
            keep &= in_window(start, end, self.scope.start_ns, self.scope.end_ns)
        if self.scope.process_id is not None and "process_id" in names:
            keep &= rows["process_id"] == self.scope.process_id
        if self.scope.thread_id is not None and "thread_id" in names:
            keep &= rows["thread_id"] == self.scope.thread_id
        return rows.where(keep)


def in_window(start: IntArray, end: IntArray, low: int | None, high: int | None) -> BoolArray:
    """Which intervals begin in [low, high), end in it, or span it."""
    least, most = -(1 << 63), (1 << 63) - 1
    a = least if low is None else low
    b = most if high is None else high
    begins = (start >= a) & (start < b)
    ends = (end >= a) & (end < b)
    spans = (start < a) & (end >= b)
    return np.asarray(begins | ends | spans, dtype=bool)
