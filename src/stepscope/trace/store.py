"""Write and read the Parquet directory of one trace.

Layout: ``meta.json`` and one ``TABLE.parquet`` per non-empty canonical table. ``meta.json`` is
written last, so a folder without it is an unfinished write and is never read. It holds the
:mod:`checksums <stepscope.trace.checksums>` of the tables and of itself. Only the user may read
what is written: captures hold command lines.
"""

from __future__ import annotations

import errno
import queue
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.trace.checksums import is_sealed, sealed, stored_file
from stepscope.trace.errors import InputError, StorageError, UsageError
from stepscope.trace.folders import write_private
from stepscope.trace.meta import Meta
from stepscope.trace.problems import ProblemLog, with_current_names
from stepscope.trace.schema import SCHEMA_VERSION, TABLES, Table, arrow_schema
from stepscope.trace.table_file import TableFile
from stepscope.trace.text import clean_dictionary

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

META_NAME = "meta.json"
_PENDING_BATCHES = 3  # bounds the memory between the reading and the writing thread
_ROW_BATCH = 1 << 15
_RESTORE = "restore it from a copy, or capture again"


@contextmanager
def storage_errors(where: Path) -> Iterator[None]:
    """Turn operating-system write failures into one clear :class:`StorageError`."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        if full:
            advice = "free some space, or set STEPSCOPE_CACHE_DIR to a larger disk"
        elif error.errno in (errno.EEXIST, errno.ENOTDIR):
            advice = "it is no folder; set STEPSCOPE_CACHE_DIR to a writable folder"
        else:
            advice = "check the folder's rights, or set STEPSCOPE_CACHE_DIR to a writable folder"
        what = "the disk is full" if full else (error.strerror or str(error))
        raise StorageError(f"cannot write below {where}: {what}; {advice}") from error


class TraceWriter:
    """The sink that importers fill: appends batches of columns, checks the row invariants.

    Writing happens in a background thread, so that decoding the input and encoding Parquet use
    two cores; at most ``_PENDING_BATCHES`` batches wait, which bounds the memory.

    Args:
        folder: an existing empty folder.
        problems: where violations of the invariants are counted.
    """

    def __init__(self, folder: Path, problems: ProblemLog) -> None:
        self.folder = folder
        self.problems = problems
        self._sinks: dict[str, TableFile] = {}
        self._queue: queue.Queue[tuple[str, pa.RecordBatch] | None] = queue.Queue(_PENDING_BATCHES)
        self._failure: BaseException | None = None
        self._clean: dict[tuple[str, str], pa.Array] = {}
        self._thread = threading.Thread(target=self._drain, name="stepscope-writer", daemon=True)
        self._thread.start()

    def append(self, table: str, columns: Mapping[str, Any]) -> None:
        """Append rows to a canonical table.

        Args:
            table: canonical table name.
            columns: column name to a numpy array, Arrow array or sequence; all of one length.
                Missing nullable columns become null; ``id`` is assigned by the store. Text may
                come as Arrow strings or as an Arrow dictionary array.

        Raises:
            KeyError: unknown table.
            ValueError: unknown column, or a required one is missing.
            StorageError: the folder cannot be written.
        """
        batch = _conform(TABLES[table], columns)
        batch = self._drop_invalid(table, self._clean_texts(table, batch))
        if batch.num_rows:
            self._put((table, batch))

    def close(self) -> dict[str, int]:
        """Finish all tables (sorting those that did not arrive in order).

        Returns:
            Rows of every non-empty table.
        """
        self._put(None)
        self._thread.join()
        self._raise_failure()
        with storage_errors(self.folder):
            return {name: sink.close() for name, sink in self._sinks.items()}

    def abort(self) -> None:
        """Stop writing; the folder's content is then worthless."""
        if self._thread.is_alive():
            self._failure = self._failure or RuntimeError("aborted")
            self._queue.put(None)
            self._thread.join()
        for sink in self._sinks.values():
            with suppress(OSError):  # the disk may be full, which is why this is aborted
                sink.abandon()

    def _put(self, item: tuple[str, pa.RecordBatch] | None) -> None:
        self._raise_failure()
        self._queue.put(item)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            with storage_errors(self.folder):
                raise self._failure

    def _drain(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._failure is not None:
                continue  # keep emptying the queue, so that the producer never blocks
            try:
                table, batch = item
                if table not in self._sinks:
                    self._sinks[table] = TableFile(TABLES[table], self.folder)
                self._sinks[table].write(batch)
            except BaseException as error:
                self._failure = error

    def _clean_texts(self, table: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        for at, field in enumerate(batch.schema):
            if not pa.types.is_dictionary(field.type):
                continue
            column = batch.column(at)
            texts = column.dictionary
            # importers pass the same dictionary with batch after batch
            if (seen := self._clean.get((table, field.name))) is not None and _same(seen, texts):
                continue
            cleaned, changed = clean_dictionary(texts)
            if not changed:
                self._clean[table, field.name] = texts
                continue
            self.problems.count("invalid_text", len(changed), scope=table, detail=changed[0])
            repaired = pa.DictionaryArray.from_arrays(column.indices, cleaned)
            batch = batch.set_column(at, field, repaired)
        return batch

    def _drop_invalid(self, table: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        if "end_ns" not in batch.schema.names:
            return batch
        start = batch.column("start_ns").to_numpy(zero_copy_only=False)
        end = batch.column("end_ns").to_numpy(zero_copy_only=False)
        bad = end < start
        if not bad.any():
            return batch
        first = int(np.argmax(bad))
        self.problems.count(
            "negative_duration",
            int(bad.sum()),
            scope=table,
            detail=f"{table}: start {int(start[first])} ns, end {int(end[first])} ns",
        )
        return batch.filter(pa.array(~bad))


def _same(one: pa.Array, other: pa.Array) -> bool:
    """Whether two arrays are the same memory."""
    if len(one) != len(other) or one.offset != other.offset:
        return False
    places = [[buffer and buffer.address for buffer in array.buffers()] for array in (one, other)]
    return places[0] == places[1]


def _conform(spec: Table, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Arrange ``columns`` as a record batch of the canonical schema."""
    import pyarrow as pa

    schema = arrow_schema(spec.name)
    unknown = set(columns) - set(schema.names)
    if unknown:
        raise ValueError(f"{spec.name} has no column {sorted(unknown)}")
    rows = max((len(data) for data in columns.values()), default=0)
    arrays = []
    for field in schema:
        data = columns.get(field.name)
        if field.name == "id":
            array = pa.nulls(rows, field.type).fill_null(0)
        elif data is None:
            if not field.nullable:
                raise ValueError(f"{spec.name} needs column {field.name}")
            array = pa.nulls(rows, field.type)
        else:
            array = _cast(data, field.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(data: Any, wanted: pa.DataType) -> pa.Array:
    import pyarrow as pa

    array = data if isinstance(data, pa.Array | pa.ChunkedArray) else pa.array(data)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type == wanted:
        return array
    if pa.types.is_dictionary(wanted) and not pa.types.is_dictionary(array.type):
        return array.cast(pa.string()).dictionary_encode()
    return array.cast(wanted)


def write_meta(folder: Path, meta: Meta) -> None:
    """Write ``meta.json``, which makes the folder a readable trace.

    Args:
        folder: the trace, with the files of its tables.
        meta: receives the checksums of these files.
    """
    with storage_errors(folder):
        tables = [(name, table_path(folder, name)) for name in sorted(meta.rows)]
        meta.files = {name: stored_file(path) for name, path in tables if path.exists()}
        text = msgspec.json.format(msgspec.json.encode(meta))
        write_private(folder / META_NAME, sealed(text))


def read_meta(folder: Path) -> Meta:
    """Read ``meta.json``.

    Raises:
        InputError: not a trace folder, damaged, or written by a newer Stepscope.
    """
    path = folder / META_NAME
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{folder} is not a Stepscope trace: {META_NAME} cannot be read; {_RESTORE}"
        ) from error
    try:
        about = msgspec.json.decode(raw, type=_About)
        if (about.files is not None or about.seal) and not is_sealed(raw):
            raise damaged(path, "its content does not match its checksum")
        if about.schema_version <= SCHEMA_VERSION:
            known = msgspec.json.decode(raw)
            known["problems"] = with_current_names(known.get("problems", []))
            known["missing"] = known.pop("absent", known.get("missing", []))  # old name: new name
            return msgspec.convert(known, Meta)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(path, str(error)) from error
    raise InputError(
        f"{folder} was written by a newer Stepscope (layout {about.schema_version}, this one reads "
        f"{SCHEMA_VERSION}); update Stepscope"
    )


class _About(msgspec.Struct):
    schema_version: int
    files: Any = None
    seal: Any = None


def table_path(folder: Path, table: str) -> Path:
    """Where the file of a table is."""
    return folder / f"{table}.parquet"


def is_whole(folder: Path, digest: str = "") -> bool:
    """Whether a trace folder can be read and all its tables are there to their last byte.

    Cheap, for folders that this program wrote itself: the files' contents are checked against
    their checksums when they are first read.

    Args:
        folder: the trace.
        digest: content key of the input that it must come from; empty for any.
    """
    try:
        meta = read_meta(folder)
        if meta.files is None or (digest and meta.input_digest != digest):
            return False
        if meta.files.keys() != {name for name, rows in meta.rows.items() if rows}:
            return False
        sizes = {name: table_path(folder, name).stat().st_size for name in meta.files}
    except (InputError, OSError):
        return False
    return sizes == {name: file.bytes for name, file in meta.files.items()}


def read_table(folder: Path, table: str, columns: list[str] | None = None) -> pa.Table:
    """Read columns of one table; an absent table gives no rows of the right types.

    Raises:
        UsageError: unknown table or column.
        InputError: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if table not in TABLES:
        raise UsageError(f"there is no table {table!r}; tables are {', '.join(sorted(TABLES))}")
    names = TABLES[table].column_names()
    wanted = names if columns is None else columns
    for name in wanted:
        if name not in names:
            raise UsageError(f"{table} has no column {name!r}; columns are {', '.join(names)}")
    path = table_path(folder, table)
    schema = arrow_schema(table)
    if not path.exists():
        return pa.schema([schema.field(name) for name in wanted]).empty_table()
    try:
        # not pq.read_table, which scans a data set: three times the work with many row groups
        with pq.ParquetFile(path) as file:
            found = file.read(columns=wanted)
        for name in wanted:
            if name not in found.column_names:  # written before the column was introduced
                field = schema.field(name)
                if not field.nullable:
                    raise damaged(path, f"it has no column {name}")
                found = found.append_column(field, pa.nulls(found.num_rows, field.type))
        # row groups have dictionaries of their own; one dictionary lets Arrow group and join
        read = found.select(wanted).unify_dictionaries()
    except (OSError, KeyError, pa.ArrowException) as error:
        raise damaged(path, " ".join(str(error).split())[:300]) from error
    if read.schema.types != [schema.field(name).type for name in wanted]:
        raise damaged(path, "its columns have other types")
    return read


def read_row(folder: Path, table: str, row: int) -> dict[str, object]:
    """One row of a table, by its position; only the part of the file that holds it is read.

    Raises:
        UsageError: there is no such row.
        InputError: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = table_path(folder, table)
    if table not in TABLES or row < 0 or not path.exists():
        raise UsageError(f"there is no row {row} of {table!r}")
    try:
        stat = path.stat()
        metadata, ends = _row_groups(path, stat.st_mtime_ns, stat.st_size)
        group = bisect_right(ends, row)
        if group < len(ends):
            at = row - (ends[group - 1] if group else 0)
            with pq.ParquetFile(path, metadata=metadata) as file:
                # in pieces: a group may hold a million rows of all columns
                for batch in file.iter_batches(_ROW_BATCH, row_groups=[group]):
                    if at < batch.num_rows:
                        found: dict[str, object] = batch.slice(at, 1).to_pylist()[0]
                        return found
                    at -= batch.num_rows
    except (OSError, KeyError, pa.ArrowException) as error:
        raise damaged(path, " ".join(str(error).split())[:300]) from error
    raise UsageError(f"there is no row {row} of {table!r}")


@lru_cache(maxsize=16)
def _row_groups(path: Path, modified_ns: int, size: int) -> tuple[pq.FileMetaData, list[int]]:
    """What a file says of itself, and where each of its row groups ends; read once a version."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    return metadata, list(accumulate(rows))


def damaged(path: Path, why: str, others: str = "") -> InputError:
    """The error for a stored file that cannot be trusted; ``others`` tells of the files beside."""
    return InputError(f"{path} is damaged ({why}); {_RESTORE}{others}")
