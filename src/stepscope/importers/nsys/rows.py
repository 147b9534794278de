"""Typed rows of exported tables: values checked, misfits counted, several tables merged in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from stepscope.importers.common.texts import clean_array
from stepscope.importers.nsys.source import Raw, Source, Where, find_table
from stepscope.intervals.distinct import among
from stepscope.trace.frame import NULL, BoolArray, IntArray
from stepscope.trace.problems import ProblemLog

if TYPE_CHECKING:
    import pyarrow as pa

FieldType = Literal["int64", "int32", "time", "float64", "text", "raw"]
_RAW: dict[FieldType, Raw] = {
    "int64": "int",
    "int32": "int",
    "time": "int",
    "float64": "float",
    "text": "text",
    "raw": "text",
}
_LATEST_TIME_NS = 1 << 62  # 146 years: no capture, even in absolute time, has such a time
_INT32 = 1 << 31


@dataclass(frozen=True)
class Field:
    """A column wanted from the source.

    Attributes:
        name: the source's column name.
        type: what its values must fit; ``time`` is ns since the session's start, ``text`` is
            cleaned, ``raw`` is text as stored (string or binary), for the caller to clean.
        required: a row without a value is left out (and counted).
        none: values that stand for null.
        old_none: further values that stand for null where the column is declared NOT NULL, as in
            exports up to 2021.5, which wrote defaults instead of nulls.
    """

    name: str
    type: FieldType = "int64"
    required: bool = False
    none: tuple[int, ...] = ()
    old_none: tuple[int, ...] = (0, -1)


def must(name: str, kind: FieldType = "int64") -> Field:
    """A required field."""
    return Field(name, kind, required=True, old_none=())


def may(name: str, kind: FieldType = "int64", none: tuple[int, ...] = ()) -> Field:
    """A field that current versions leave NULL where there is no value."""
    return Field(name, kind, none=none)


def code(name: str, kind: FieldType = "int64", none: tuple[int, ...] = ()) -> Field:
    """A field that may be lacking, but whose zero is a real value, in old exports too."""
    return Field(name, kind, none=none, old_none=())


class Rows:
    """A batch of checked rows."""

    def __init__(self, arrays: dict[str, pa.Array], length: int) -> None:
        self._arrays = arrays
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str) -> pa.Array:
        """A column as Arrow array."""
        return self._arrays[name]

    def ints(self, name: str) -> IntArray:
        """An integer column as numpy; nulls are ``NULL``."""
        array = self._arrays[name]
        filled = array.fill_null(NULL) if array.null_count else array
        return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.int64)

    def valid(self, name: str) -> BoolArray:
        """Which rows have a value in a column."""
        mask = self._arrays[name].is_valid().to_numpy(zero_copy_only=False)
        return np.asarray(mask, dtype=bool)

    def filter(self, keep: BoolArray) -> Rows:
        """The rows where ``keep`` is true."""
        import pyarrow as pa

        if keep.all():
            return self
        mask = pa.array(keep)
        arrays = {name: array.filter(mask) for name, array in self._arrays.items()}
        return Rows(arrays, int(keep.sum()))


class TableReader:
    """Reads tables of a source as :class:`Rows`.

    Args:
        source: where the tables are.
        problems: where misfits are counted.
        shift_ns: subtracted from times, where the export was made with shifted times.
    """

    def __init__(self, source: Source, problems: ProblemLog, shift_ns: int = 0) -> None:
        self.source = source
        self.problems = problems
        self.shift_ns = shift_ns

    def has(self, table: str) -> bool:
        """Whether the source holds a table (or its versioned variant)."""
        return find_table(self.source, table) is not None

    def columns(self, table: str) -> set[str]:
        """The columns the source's table has; empty when there is no such table."""
        found = find_table(self.source, table)
        return set(self.source.columns(found)) if found else set()

    def read(
        self, table: str, fields: Sequence[Field], scope: str, where: Where | None = None
    ) -> Iterator[Rows]:
        """Rows of a table, in stored order.

        Args:
            table: the source's table name, without version suffix.
            fields: the columns wanted; optional ones that do not exist are null.
            scope: the canonical table that problems belong to.
            where: keep only these rows; ignored when the column does not exist.
        """
        found = find_table(self.source, table)
        if found is None:
            return
        declared = self.source.columns(found)
        present = [field for field in fields if field.name in declared or field.name == "rowid"]
        lacking = [field for field in fields if field not in present]
        for field in lacking:
            if field.required:
                self.problems.count(
                    "missing_column", 1, scope=scope, detail=f"{found} has no column {field.name}"
                )
                return
        old = {
            field.name
            for field in present
            if field.name in declared and not field.required and not declared[field.name].nullable
        }

        def bad(count: int, detail: str) -> None:
            # a required value's row is counted when it is left out
            name = detail.split(" ", 1)[0].rpartition(".")[2]
            if not any(field.required and field.name == name for field in present):
                self.problems.count("bad_value", count, scope=scope, detail=detail)

        columns: dict[str, Raw] = {field.name: _RAW[field.type] for field in present}
        order = "start" if "start" in columns else None
        for batch in self.source.batches(found, columns, bad, where, order):
            yield self._checked(batch, present, lacking, old, found, scope)

    def _checked(
        self,
        batch: pa.RecordBatch,
        present: Sequence[Field],
        lacking: Sequence[Field],
        old: set[str],
        table: str,
        scope: str,
    ) -> Rows:
        import pyarrow as pa

        rows = batch.num_rows
        arrays: dict[str, pa.Array] = {}
        drop = np.zeros(rows, dtype=bool)
        reason = ""
        for number, field in enumerate(present):
            array, misfits = self._values(batch.column(number), field, field.name in old, scope)
            arrays[field.name] = array
            if field.required and array.null_count:
                empty = array.is_null().to_numpy(zero_copy_only=False)
                reason = reason or f"{table}.{field.name} has no usable value"
                drop |= empty
            elif misfits:
                detail = f"{table}.{field.name} holds a value out of range"
                self.problems.count("bad_value", misfits, scope=scope, detail=detail)
        for field in lacking:
            arrays[field.name] = pa.nulls(rows, _arrow_type(field.type))
        if drop.any():
            self.problems.count("bad_value", int(drop.sum()), scope=scope, detail=reason)
            return Rows(arrays, rows).filter(~drop)
        return Rows(arrays, rows)

    def _values(self, array: pa.Array, field: Field, old: bool, scope: str) -> tuple[pa.Array, int]:
        """The values in their type, and how many of them did not fit."""
        if field.type == "text":
            texts = self._clean(array, scope)
            return (_nullify(texts, _empty(texts)) if old else texts), 0
        if field.type == "raw":
            return array, 0
        if field.type == "float64":
            return self._floats(array, old)
        none = field.none + (field.old_none if old else ())
        if none:
            array = _nullify(array, among(_numbers(array), none))
        if field.type == "time":
            return self._times(array)
        if field.type == "int32":
            return _int32(array)
        return array, 0

    def _times(self, array: pa.Array) -> tuple[pa.Array, int]:
        import pyarrow as pa

        array, misfits = _within(array, _LATEST_TIME_NS)
        if self.shift_ns:
            array = pa.compute.subtract(array, self.shift_ns)
        return array, misfits

    def _floats(self, array: pa.Array, old: bool) -> tuple[pa.Array, int]:
        import pyarrow as pa

        array = array.cast(pa.float64())
        values = array.fill_null(0.0).to_numpy(zero_copy_only=False)
        strange = ~np.isfinite(values)
        none = strange | (values == 0.0) if old else strange
        return _nullify(array, none), int(strange.sum())

    def _clean(self, array: pa.Array, scope: str) -> pa.Array:
        def replaced(count: int, first: str) -> None:
            self.problems.count("invalid_text", count, scope=scope, detail=first)

        return clean_array(array, replaced)


def _int32(array: pa.Array) -> tuple[pa.Array, int]:
    import pyarrow as pa

    array, misfits = _within(array, _INT32 - 1)
    return array.cast(pa.int32()), misfits


def _within(array: pa.Array, bound: int) -> tuple[pa.Array, int]:
    """Values from ``-bound`` to ``bound``; others become null."""
    import pyarrow.compute as pc

    extremes = pc.min_max(array)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    if low is None or (low >= -bound and high <= bound):
        return array, 0
    numbers = _numbers(array)
    strange = (numbers < -bound) | (numbers > bound)
    return _nullify(array, strange), int(strange.sum())


def _numbers(array: pa.Array) -> IntArray:
    return np.asarray(array.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _empty(texts: pa.Array) -> BoolArray:
    import pyarrow.compute as pc

    return np.asarray(pc.equal(texts, "").fill_null(False).to_numpy(zero_copy_only=False), bool)


def _nullify(array: pa.Array, where: BoolArray) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not where.any():
        return array
    return pc.if_else(pa.array(where), pa.scalar(None, array.type), array)


def _arrow_type(kind: FieldType) -> pa.DataType:
    import pyarrow as pa

    types = {"int32": pa.int32(), "float64": pa.float64(), "text": pa.string(), "raw": pa.string()}
    return types.get(kind, pa.int64())


Columns = dict[str, "pa.Array"]
"""Decoded columns of equal length, by canonical name; ``start_ns`` has no nulls."""


def merged(streams: Sequence[Iterator[Columns]]) -> Iterator[Columns]:
    """Rows of all streams, in the order of ``start_ns`` as far as the streams are sorted."""
    heads = [head for stream in streams if (head := _Head.of(stream)) is not None]
    while len(heads) > 1:
        # up to the earliest last start of the loaded batches, every row is known
        bound = min(head.last for head in heads)
        pieces = [head.take(bound) for head in heads]
        yield _in_order([piece for piece in pieces if _length(piece)])
        heads = [head for head in heads if not head.exhausted]
    for head in heads:
        yield head.rest()
        yield from head.stream


@dataclass
class _Head:
    """The loaded batch of one stream."""

    stream: Iterator[Columns]
    batch: Columns
    starts: IntArray
    exhausted: bool = False

    @classmethod
    def of(cls, stream: Iterator[Columns]) -> _Head | None:
        head = cls(stream, {}, np.empty(0, np.int64))
        head._load()
        return None if head.exhausted else head

    @property
    def last(self) -> int:
        return int(self.starts[-1])

    def take(self, bound: int) -> Columns:
        """Remove and return the leading rows up to ``bound``."""
        count = int(np.searchsorted(self.starts, bound, side="right"))
        taken = {name: array.slice(0, count) for name, array in self.batch.items()}
        if count == len(self.starts):
            self._load()
        else:
            self.batch = {name: array.slice(count) for name, array in self.batch.items()}
            self.starts = self.starts[count:]
        return taken

    def rest(self) -> Columns:
        """What is left of the loaded batch."""
        return self.batch

    def _load(self) -> None:
        for batch in self.stream:
            if _length(batch):
                self.batch = batch
                self.starts = batch["start_ns"].to_numpy(zero_copy_only=False)
                if (self.starts[1:] < self.starts[:-1]).any():
                    self.batch, self.starts = _sorted(batch, self.starts)
                return
        self.exhausted = True


def _length(columns: Columns) -> int:
    return len(columns.get("start_ns", ()))  # a batch without usable rows may lack it


def _sorted(columns: Columns, starts: IntArray) -> tuple[Columns, IntArray]:
    import pyarrow as pa

    order = np.argsort(starts, kind="stable")
    rows = pa.array(order)
    return {name: array.take(rows) for name, array in columns.items()}, starts[order]


def _in_order(pieces: list[Columns]) -> Columns:
    import pyarrow as pa

    if len(pieces) == 1:
        return pieces[0]
    types = {name: array.type for piece in pieces for name, array in piece.items()}
    joined = {
        name: pa.concat_arrays(
            [piece[name] if name in piece else pa.nulls(_length(piece), kind) for piece in pieces]
        )
        for name, kind in types.items()
    }
    return _sorted(joined, joined["start_ns"].to_numpy(zero_copy_only=False))[0]
