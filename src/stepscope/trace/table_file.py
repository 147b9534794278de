"""Write the Parquet file of one table: in the order of arrival, sorted at the end where needed.

A small table is held until its end and written once. Sorting a large one holds a few groups of rows
at a time, so that memory is bounded by them and by the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepscope.intervals.distinct import distinct_values
from stepscope.trace.folders import write_private
from stepscope.trace.frame import IntArray
from stepscope.trace.schema import Table, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_SORTED_ROWS = 1 << 18
_MOST_TAKEN = 8
"""Rows of the groups that sorted parts come from, for each row there is. A few streams that are in
order each need fewer; rows in no order at all would be gathered again and again."""
_DELTA_COLUMNS = frozenset(
    {"id", "start_ns", "end_ns", "time_ns", "correlation_id", "external_id", "python_id"}
)


class TableFile:
    """One Parquet file being written.

    Args:
        spec: the table.
        folder: where its file is made.

    Raises:
        OSError: here, and from all that writes: the file cannot be written.
    """

    def __init__(self, spec: Table, folder: Path) -> None:
        self.spec = spec
        self.path = folder / f"{spec.name}.parquet"
        self.rows = 0
        self._sorted = True
        self._last = np.iinfo(np.int64).min
        self._held: list[pa.RecordBatch] | None = []  # None as soon as they are too many
        self._writer: pq.ParquetWriter | None = None
        write_private(self.path, b"")

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows; ``id`` is numbered again."""
        if self.spec.sort is not None:
            key = batch.column(self.spec.sort).to_numpy(zero_copy_only=False)
            if key[0] < self._last or bool((key[1:] < key[:-1]).any()):
                self._sorted = False
            self._last = max(self._last, int(key[-1]))
        batch = _with_id(batch, self.rows)
        self.rows += batch.num_rows
        if self._held is not None:
            self._held.append(batch)
            if self.rows <= _SORTED_ROWS:
                return
            self._writer = _parquet_writer(self.spec, self.path)
            batches, self._held = self._held, None
        else:
            batches = [batch]
        assert self._writer is not None
        for one in batches:
            self._writer.write_batch(one)

    def close(self) -> int:
        """Finish the file; returns its rows."""
        if self._held is not None:
            self._write_held(self._held)
            return self.rows
        self.abandon()
        if not self._sorted:
            self._sort()
        return self.rows

    def abandon(self) -> None:
        """Write no more: what is there may be unsorted."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _write_held(self, batches: list[pa.RecordBatch]) -> None:
        import pyarrow as pa

        with _parquet_writer(self.spec, self.path) as writer:
            if not batches:
                return
            whole = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
            if not self._sorted:
                order = np.argsort(whole.column(self.spec.sort).to_numpy(), kind="stable")
                whole = whole.take(pa.array(order)).combine_chunks()
            (batch,) = whole.to_batches()
            writer.write_batch(_with_id(batch, 0))

    def _sort(self) -> None:
        import pyarrow.parquet as pq

        unsorted = self.path.with_suffix(".unsorted")
        self.path.rename(unsorted)
        with (
            pq.ParquetFile(unsorted) as file,
            _parquet_writer(self.spec, self.path) as writer,
        ):
            start = 0
            for batch in _in_order(file, self.spec):
                writer.write_batch(_with_id(batch, start))
                start += batch.num_rows
        unsorted.unlink()


def _in_order(file: pq.ParquetFile, spec: Table) -> Iterator[pa.RecordBatch]:
    """The rows of a file in order, a part at a time.

    Only the keys of all rows are held, and the groups of rows that the next part comes from: a few,
    because rows arrive nearly in order, or as a few streams that are in order each.
    """
    counts = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    key = file.read([spec.sort]).column(0).to_numpy()
    order = np.argsort(key, kind="stable")
    del key
    bounds = np.concatenate(([0], np.cumsum(counts)))
    parts = [order[at : at + _SORTED_ROWS] for at in range(0, len(order), _SORTED_ROWS)]
    needs = [
        distinct_values(np.searchsorted(bounds, rows, side="right") - 1).tolist() for rows in parts
    ]
    if sum(counts[group] for groups in needs for group in groups) > _MOST_TAKEN * len(order):
        yield from _all_sorted(file, spec, order).to_batches(max_chunksize=_SORTED_ROWS)
        return
    last = {group: at for at, groups in enumerate(needs) for group in groups}
    held: dict[int, pa.Table] = {}
    for at, (rows, groups) in enumerate(zip(parts, needs, strict=True)):
        for group in groups:
            if group not in held:
                held[group] = file.read_row_group(group, use_threads=False)
        yield _taken(held, groups, bounds, rows)
        for group in groups:
            if last[group] == at:
                del held[group]


def _taken(
    held: Mapping[int, pa.Table], groups: Sequence[int], bounds: IntArray, rows: IntArray
) -> pa.RecordBatch:
    """Rows, by their numbers in the file, of the groups that hold them."""
    import pyarrow as pa

    before = np.concatenate(([0], np.cumsum([held[group].num_rows for group in groups])))
    place = np.searchsorted(np.array(groups), np.searchsorted(bounds, rows, side="right") - 1)
    at = rows - bounds[np.array(groups)][place] + before[place]
    whole = pa.concat_tables([held[group] for group in groups]).unify_dictionaries()
    found = whole.combine_chunks().take(pa.array(at)).combine_chunks()
    (batch,) = found.to_batches()
    return batch


def _all_sorted(file: pq.ParquetFile, spec: Table, order: IntArray) -> pa.Table:
    """The rows of a file in order, read a column at a time so that only one is held twice."""
    import pyarrow as pa

    schema = arrow_schema(spec.name)
    columns = {}
    taken = pa.array(order)
    for name in schema.names:
        if name == "id":
            columns[name] = taken  # any numbers: rows are numbered again when written
            continue
        column = file.read([name], use_threads=False).unify_dictionaries().column(0)
        if column.null_count < len(column):
            column = column.combine_chunks().take(taken)
        columns[name] = column
        del column
    return pa.table(columns, schema=schema)


def _with_id(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    import pyarrow as pa

    if batch.schema.names[0] != "id":
        return batch
    ids = pa.array(np.arange(first, first + batch.num_rows, dtype=np.int64))
    return pa.RecordBatch.from_arrays([ids, *batch.columns[1:]], schema=batch.schema)


def _parquet_writer(spec: Table, path: Path) -> pq.ParquetWriter:
    import pyarrow.parquet as pq

    delta = [c.name for c in spec.columns if c.name in _DELTA_COLUMNS]
    dictionary = [c.name for c in spec.columns if c.name not in _DELTA_COLUMNS]
    write_private(path, b"")  # Arrow would leave it to the umask who may read it
    return pq.ParquetWriter(
        path,
        arrow_schema(spec.name),
        compression="zstd",
        compression_level=1,
        use_dictionary=dictionary,
        column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,  # for other readers; Stepscope checks whole files
    )
