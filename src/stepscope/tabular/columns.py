"""Single columns of a stored trace as numpy: read by row group, on all cores, into one array.

:meth:`Trace.frame` serves the analyses, which want many columns at once. Reports want few columns
of every row, and often only a duration, so that neither begins nor ends need to be held.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from stepscope.trace.frame import NULL, AnyArray, BoolArray, IntArray
from stepscope.trace.schema import TABLES, arrow_schema
from stepscope.trace.store import damaged, table_path
from stepscope.trace.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BATCH_ROWS = 1 << 17
_BLOCK_ROWS = 1 << 16
_MOST_THREADS = 8
_THREAD_ROWS = 1 << 18  # for fewer rows, starting a thread costs more than it saves


@dataclass(frozen=True)
class Stored:
    """A column: numbers, or codes into ``texts``."""

    values: AnyArray
    texts: list[str]

    @cached_property
    def rows_of_texts(self) -> IntArray:
        """How many rows have each text; last, how many have none."""
        rows = np.zeros(len(self.texts) + 1, np.int64)
        size = max(_BLOCK_ROWS, len(rows))  # of many texts, each block counts as many
        for begin in range(0, len(self.values), size):
            block = self.values[begin : begin + size]
            rows += np.bincount(block + 1, minlength=len(rows))
        return np.roll(rows, -1)


class StoredTable:
    """The columns of one table; those that were read are kept.

    Args:
        trace: where from.
        table: canonical table.
    """

    def __init__(self, trace: Trace, table: str) -> None:
        assert table in TABLES
        self._table = table
        self._trace = trace
        self._path = table_path(trace.folder, table)
        self._stated = trace.rows(table)
        self._footer: pq.FileMetaData | None = None
        self._types: dict[str, pa.DataType] = {}
        self._columns: dict[str, Stored] = {}

    def __getitem__(self, name: str) -> Stored:
        """One column; integer nulls are -1, null flags False, null texts code -1.

        Raises:
            InputError: the file is damaged.
        """
        if name not in self._columns:
            self._columns[name] = self._read(name)
        return self._columns[name]

    @cached_property
    def durations(self) -> IntArray:
        """Length of every row, ns.

        Raises:
            InputError: the file is damaged.
        """
        if {"start_ns", "end_ns"} <= self._columns.keys():
            length: IntArray = self["end_ns"].values - self["start_ns"].values
            return length
        values = np.empty(self._rows, np.int64)

        def take(batch: pa.RecordBatch, at: int) -> None:
            start, end = _numbers(batch.column("start_ns")), _numbers(batch.column("end_ns"))
            np.subtract(end, start, out=values[at : at + len(end)])

        self._each(["start_ns", "end_ns"], take)
        return values

    def _read(self, name: str) -> Stored:
        import pyarrow as pa

        kind = arrow_schema(self._table).field(name).type
        is_text = pa.types.is_dictionary(kind)
        if not self._rows or name not in self._types:
            values = np.full(self._rows, False if pa.types.is_boolean(kind) else NULL)
            return Stored(values.astype(np.int32) if is_text else values, [])
        values = np.empty(self._rows, np.int32 if is_text else kind.to_pandas_dtype())
        if is_text:
            return self._read_texts(name, values)

        def take(batch: pa.RecordBatch, at: int) -> None:
            part = _numbers(batch.column(0))
            values[at : at + len(part)] = part

        self._each([name], take)
        return Stored(values, [])

    def _read_texts(self, name: str, values: AnyArray) -> Stored:
        codes: dict[str, int] = {}
        dictionaries: list[tuple[int, int, pa.Array]] = []

        def take(batch: pa.RecordBatch, at: int) -> None:
            part = batch.column(0)
            indices = _numbers(part.indices)
            values[at : at + len(part)] = indices
            dictionaries.append((at, at + len(part), part.dictionary))

        self._each([name], take)
        # row groups have dictionaries of their own, mostly equal ones; numbered in row order
        before: pa.Array | None = None
        mapping = np.empty(0, np.int32)
        for begin, end, dictionary in sorted(dictionaries, key=lambda item: item[0]):
            if before is None or not dictionary.equals(before):
                found = [codes.setdefault(text, len(codes)) for text in dictionary.to_pylist()]
                mapping = np.array([*found, NULL], np.int32)
                before = dictionary
            if not np.array_equal(mapping[:-1], np.arange(len(mapping) - 1)):
                values[begin:end] = mapping[values[begin:end]]
        return Stored(values, list(codes))

    @property
    def _rows(self) -> int:
        footer = self._file_footer()
        return 0 if footer is None else int(footer.num_rows)

    def _file_footer(self) -> pq.FileMetaData | None:
        if self._footer is None and self._trace.file(self._table).exists():
            with self._errors():
                reader = _reader(self._path, None)
                found, types = reader.metadata, reader.schema_arrow
            if found.num_rows != self._stated:
                why = f"it holds {found.num_rows} rows instead of {self._stated}"
                raise damaged(self._path, why)
            self._types = {field.name: field.type for field in types}
            self._footer = found
        return self._footer

    def _each(self, columns: list[str], take: Callable[[pa.RecordBatch, int], None]) -> None:
        """Hand over some columns in batches, with the row that each begins at, on all cores."""
        footer = self._file_footer()
        if footer is None:
            return
        expected = arrow_schema(self._table)
        if any(self._types.get(name) != expected.field(name).type for name in columns):
            raise damaged(self._path, "its columns have other types")
        sizes = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        workers = min(os.cpu_count() or 1, _MOST_THREADS, int(starts[-1]) // _THREAD_ROWS + 1)
        # each worker has row groups that follow each other, and about as many rows
        bounds = np.searchsorted(starts, np.linspace(0, starts[-1], workers + 1)[1:-1])
        edges = [0, *np.minimum(bounds, len(sizes)).tolist(), len(sizes)]

        def work(first: int, last: int) -> None:
            if first == last:
                return
            file = _reader(self._path, footer)
            at = int(starts[first])
            groups = list(range(first, last))
            for batch in file.iter_batches(
                _BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False
            ):
                take(batch, at)
                at += batch.num_rows

        with self._errors():
            in_threads(work, list(pairwise(edges)))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise damaged(self._path, " ".join(str(error).split())[:300]) from error


def in_threads(work: Callable[[int, int], None], parts: Sequence[tuple[int, int]]) -> None:
    """Do every part of some work, the first in this thread; what fails is raised here."""
    failures: list[BaseException] = []

    def guarded(part: tuple[int, int]) -> None:
        try:
            work(*part)
        except BaseException as error:
            failures.append(error)

    # concurrent.futures takes longer to import than most columns to read
    threads = [threading.Thread(target=guarded, args=(part,), daemon=True) for part in parts[1:]]
    for thread in threads:
        thread.start()
    guarded(parts[0])
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _reader(path: os.PathLike[str], footer: pq.FileMetaData | None) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, metadata=footer)


def _numbers(array: pa.Array) -> AnyArray:
    """Values of a primitive array, nulls replaced.

    By its buffers: Arrow's own conversion imports pandas, where it is installed, and its filling
    of nulls loads its compute functions. Both take longer than most reports.
    """
    import pyarrow as pa

    part = slice(array.offset, array.offset + len(array))
    validity, data = array.buffers()
    if pa.types.is_boolean(array.type):
        flags = _bits(data)[part]
        return flags & _bits(validity)[part] if array.null_count else flags
    stored: AnyArray = np.frombuffer(data, array.type.to_pandas_dtype())[part]
    if not array.null_count:
        return stored
    values = stored.copy()
    values[~_bits(validity)[part]] = np.nan if values.dtype.kind == "f" else NULL
    return values


def _bits(buffer: pa.Buffer) -> BoolArray:
    bits: BoolArray = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little").view(bool)
    return bits
