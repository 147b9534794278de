"""What all readers share: texts by number, the dictionaries, the writer, the window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.importers.common import sink
from stepscope.importers.common.texts import Codes, Replaced, StringTable, clean, clean_array
from stepscope.importers.nsys.rows import Field, TableReader
from stepscope.intervals.distinct import distinct_values, with_inverse
from stepscope.trace.frame import AnyArray, BoolArray, IntArray
from stepscope.trace.schema import TABLES

if TYPE_CHECKING:
    import pyarrow as pa


class Strings:
    """The table ``StringIds``: number to text.

    It also holds much that is no name (the program's output, environment variables), so texts
    are cleaned when they are used.

    Args:
        ids: the numbers, in any order.
        texts: the texts as stored (binary), of the same length; null counts as empty.
    """

    def __init__(self, ids: IntArray, texts: pa.Array) -> None:
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._texts = texts.take(order)
        self._dense: AnyArray | None = None
        if len(ids) and self._ids[0] >= 0 and self._ids[-1] < 4 * len(ids) + (1 << 16):
            self._dense = np.full(int(self._ids[-1]) + 1, -1, np.int64)
            self._dense[self._ids] = np.arange(len(ids))

    def __len__(self) -> int:
        return len(self._ids)

    def positions(self, ids: IntArray) -> IntArray:
        """Where each id stands; -1 for an id that does not exist."""
        if not len(self._ids):
            return np.full(len(ids), -1, np.int64)
        if self._dense is not None:
            inside = (ids >= 0) & (ids < len(self._dense))
            if inside.all():
                return self._dense[ids]
            return np.where(inside, self._dense[np.where(inside, ids, 0)], -1)
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, at, -1)

    def text(self, position: int) -> tuple[str, bool]:
        """The clean text at a position, and whether cleaning changed it."""
        raw = self._texts[position].as_py() or b""
        text = clean(raw)
        return text, text.encode() != raw

    def positions_of(self, ids: pa.Array) -> IntArray:
        """Positions of nullable ids; -1 where the id is null or unknown."""
        at = self.positions(ids.fill_null(-1).to_numpy(zero_copy_only=False))
        if not ids.null_count:
            return at
        # no number stands for null: -1 may itself be the id of a text
        valid = ids.is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid, at, -1)

    def take(self, ids: pa.Array, replaced: Replaced) -> pa.Array:
        """Clean texts of nullable ids; null where the id is null or unknown."""
        import pyarrow as pa

        if ids.null_count == len(ids):
            return pa.nulls(len(ids), pa.string())
        at = self.positions_of(ids)
        return clean_array(self._texts.take(pa.array(at, mask=at < 0)), replaced)


class NameColumn:
    """Turns string ids of one source column into codes of one canonical text column.

    Args:
        strings: the source's texts.
        string_table: the canonical column's dictionary.
        unknown: receives the number of ids without text, and the first of them.
        replaced: receives the distinct texts that cleaning changed.
        change: applied to each distinct text.
    """

    def __init__(
        self,
        strings: Strings,
        string_table: StringTable,
        unknown: Replaced,
        replaced: Replaced,
        change: Callable[[str], str] = str,
    ) -> None:
        self._strings = strings
        self._string_table = string_table
        self._unknown = unknown
        self._replaced = replaced
        self._change = change
        self._known: Codes = np.full(len(strings) + 1, -1, np.int32)  # the last one: position -1

    def __call__(self, ids: pa.Array) -> pa.Array:
        """Codes of ids; null stays null, an unknown id becomes ``[string N]``."""
        import pyarrow as pa

        numbers: IntArray = ids.fill_null(-1).to_numpy(zero_copy_only=False)
        at = self._strings.positions_of(ids)
        codes = self._known[at]
        missing = codes < 0
        if missing.any():
            for position in distinct_values(at[missing & (at >= 0)]).tolist():
                text, changed = self._strings.text(position)
                if changed:
                    self._replaced(1, text)
                self._known[position] = self._string_table.code(self._change(text))
            codes = self._known[at]
            self._name_unknown(codes, numbers, (at < 0) & _valid(ids))
        if ids.null_count:  # a null reads as -1, which a text may have as its number
            return pa.array(codes, mask=(codes < 0) | ~_valid(ids))
        return pa.array(codes)

    def _name_unknown(self, codes: Codes, numbers: IntArray, where: BoolArray) -> None:
        if not where.any():
            return
        distinct, inverse = with_inverse(numbers[where])
        named = [self._string_table.code(f"[string {number}]") for number in distinct.tolist()]
        codes[where] = np.array(named, np.int32)[inverse]
        self._unknown(int(where.sum()), f"string id {int(numbers[where][0])}")


def _valid(values: pa.Array) -> BoolArray:
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False), dtype=bool)


PROCESS_SHIFT = 24
ID_MASK = (1 << PROCESS_SHIFT) - 1
Record = dict[str, Any]
_CHECKED_FOR_NEGATIVE_TIME = frozenset({"gpu_op", "api_call", "range", "sync"})


def process_of(global_id: IntArray) -> IntArray:
    """The process id inside global process or thread ids."""
    return (global_id >> PROCESS_SHIFT) & ID_MASK


def thread_of(global_id: IntArray) -> IntArray:
    """The thread id inside global thread ids."""
    return global_id & ID_MASK


@dataclass(kw_only=True)
class Sink(sink.Sink):
    """Takes decoded columns and hands them to the writer.

    Attributes:
        tables: reads the source.
        strings: the source's ``StringIds``.
        window_end_ns: end of the captured window; None while unknown.
        processes: process ids seen.
    """

    tables: TableReader
    strings: Strings
    window_end_ns: int | None = None
    processes: set[int] = field(default_factory=set)
    _string_tables: dict[tuple[str, str], StringTable] = field(
        default_factory=lambda: defaultdict(StringTable)
    )

    def string_table(self, table: str, column: str) -> StringTable:
        """The dictionary of a canonical text column."""
        return self._string_tables[table, column]

    def names(self, table: str, column: str, change: Callable[[str], str] = str) -> NameColumn:
        """A converter of string ids to codes of a canonical text column."""

        def unknown(count: int, detail: str) -> None:
            self.tables.problems.count("missing_text", count, scope=table, detail=detail)

        string_table = self.string_table(table, column)
        return NameColumn(self.strings, string_table, unknown, self.replaced(table), change)

    def replaced(self, table: str) -> Replaced:
        """Counts texts of a canonical table that had to be cleaned."""

        def count(texts: int, first: str) -> None:
            self.tables.problems.count("invalid_text", texts, scope=table, detail=first)

        return count

    def constant(self, table: str, column: str, text: str, rows: int) -> pa.Array:
        """Codes of one text, repeated."""
        import pyarrow as pa

        return pa.array(np.full(rows, self.string_table(table, column).code(text), np.int32))

    def labels(
        self, table: str, column: str, codes: pa.Array, known: dict[int, str], other: str
    ) -> pa.Array:
        """Codes of the labels of an enumeration; null stays null.

        Args:
            table: canonical table.
            column: canonical text column.
            codes: the source's codes.
            known: label of each known code.
            other: label of an unknown code, with a place for the number.
        """
        import pyarrow as pa

        string_table = self.string_table(table, column)
        valid = np.asarray(codes.is_valid().to_numpy(zero_copy_only=False), dtype=bool)
        numbers = codes.fill_null(0).to_numpy(zero_copy_only=False)
        distinct, inverse = with_inverse(numbers)
        if not valid.all():
            distinct, inverse = with_inverse(numbers[valid])
        texts = [known.get(number, other.format(number)) for number in distinct.tolist()]
        found = np.array([string_table.code(text) for text in texts], np.int32)
        result = np.zeros(len(numbers), np.int32)
        result[valid] = found[inverse]
        return pa.array(result, mask=~valid)

    def put(self, table: str, columns: Mapping[str, Any]) -> None:
        """Hand rows to the writer; int32 columns of text become dictionary arrays."""
        import pyarrow as pa

        if not max((len(data) for data in columns.values()), default=0):
            return
        texts = {column.name for column in TABLES[table].columns if column.type == "text"}
        self._note_times(table, columns)
        encoded = {
            name: self.string_table(table, name).encode(data)
            if name in texts and getattr(data, "type", None) == pa.int32()
            else data
            for name, data in columns.items()
        }
        super().put(table, encoded)

    def put_all(self, table: str, batches: Any) -> None:
        """Hand all batches of an iterator to the writer."""
        for batch in batches:
            self.put(table, batch)

    def saw_threads(self, global_tid: IntArray) -> None:
        """Remember which threads (and so processes) appear."""
        if len(global_tid):
            # neighbouring rows mostly share a thread: compare before sorting
            changes = np.flatnonzero(global_tid[1:] != global_tid[:-1]) + 1
            found = distinct_values(global_tid[np.concatenate(([0], changes))])
            processes = process_of(found).tolist()
            self.threads.update(zip(processes, thread_of(found).tolist(), strict=True))
            self.processes.update(processes)

    def _note_times(self, table: str, columns: Mapping[str, Any]) -> None:
        import pyarrow.compute as pc

        last = columns.get("end_ns", columns.get("time_ns"))
        if last is not None and table != "diagnostic":
            latest = pc.max(last).as_py()
            self.latest_ns = max(self.latest_ns, 0 if latest is None else int(latest))
        if table in _CHECKED_FOR_NEGATIVE_TIME:
            starts = columns["start_ns"]
            first = pc.min(starts).as_py()
            if first is not None and first < 0:
                early = int(pc.sum(pc.less(starts, 0)).as_py())
                detail = f"{table}: {first} ns"
                self.tables.problems.count("negative_time", early, scope=table, detail=detail)


def records(sink: Sink, table: str, fields: Sequence[Field], scope: str) -> Iterator[Record]:
    """Rows of a small table as dictionaries."""
    for rows in sink.tables.read(table, fields, scope):
        columns = [rows[field.name].to_pylist() for field in fields]
        for values in zip(*columns, strict=True):
            yield {field.name: value for field, value in zip(fields, values, strict=True)}
