"""Exported tables in Arrow or Parquet files: a folder of them, or one stream with all tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.importers.nsys.source import BATCH_ROWS, BadValues, Declared, Raw, Where, table_files
from stepscope.trace.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_ID = "rowid"
_END = b"\xff\xff\xff\xff\0\0\0\0"


class TablesSource:
    """What the folder and the stream have in common: Arrow batches of named tables.

    Args:
        path: the folder or stream, for messages.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._schemas: dict[str, pa.Schema] = {}

    def tables(self) -> list[str]:
        """Names of all tables."""
        return list(self._schemas)

    def columns(self, table: str) -> Mapping[str, Declared]:
        """The columns of a table."""
        return {
            field.name: Declared(_raw(field.type), field.nullable) for field in self._schemas[table]
        }

    def batches(
        self,
        table: str,
        columns: Mapping[str, Raw],
        bad: BadValues,
        where: Where | None = None,
        order: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a table in stored order; see :class:`~.source.Source`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        first = 1
        wanted = {name for name in columns if name != _ROW_ID} | ({where[0]} if where else set())
        with self._errors(table):
            for whole in self._stored(table, sorted(wanted)):
                for start in range(0, whole.num_rows, BATCH_ROWS):
                    batch = whole.slice(start, BATCH_ROWS)
                    arrays = [
                        pa.array(range(first, first + batch.num_rows), type=pa.int64())
                        if name == _ROW_ID
                        else _convert(batch.column(name), raw, bad, f"{table}.{name}")
                        for name, raw in columns.items()
                    ]
                    first += batch.num_rows
                    rows = pa.RecordBatch.from_arrays(arrays, names=list(columns))
                    if where is not None:
                        keep = pc.is_in(
                            batch.column(where[0]).cast(pa.int64()),
                            value_set=pa.array(where[1], type=pa.int64()),
                        )
                        rows = rows.filter(keep)
                    if rows.num_rows:
                        yield rows

    def close(self) -> None:
        """Nothing is held open."""

    def _stored(self, table: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """The table's stored batches, of any length, with at least these columns."""
        raise NotImplementedError

    @contextmanager
    def _errors(self, table: str) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (OSError, pa.ArrowException) as error:
            where = f"table {table} of {self._path}" if table else str(self._path)
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"{where} is damaged or incomplete ({reason}); copy it again, or export the "
                "report again with nsys export"
            ) from error


class FolderSource(TablesSource):
    """A folder of ``TABLE.arrow`` or ``TABLE.parquet`` files.

    Raises:
        InputError: a file is damaged.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._files: dict[str, Path] = {}
        for file in table_files(path):
            with self._errors(file.stem):
                self._schemas[file.stem] = _file_schema(file)
                self._files[file.stem] = file

    def _stored(self, table: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        file = self._files[table]
        if file.suffix == ".parquet":
            with pq.ParquetFile(file) as opened:
                yield from opened.iter_batches(batch_size=BATCH_ROWS, columns=columns)
        else:
            with _arrow_reader(file) as (reader, stream):
                if hasattr(reader, "num_record_batches"):
                    for number in range(reader.num_record_batches):
                        yield reader.get_batch(number)
                else:
                    yield from reader
                    _check_end(stream)


class StreamSource(TablesSource):
    """One file with the Arrow streams of all tables, one after another.

    Raises:
        InputError: the file is damaged or ends early.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        from pyarrow import ipc

        super().__init__(path)
        self._offsets: dict[str, int] = {}
        with self._errors(""), pa.OSFile(str(path)) as stream:
            size = stream.size()
            while stream.tell() < size:
                offset = stream.tell()
                reader = ipc.open_stream(stream)
                name = (
                    (reader.schema.metadata or {})
                    .get(b"table_name", b"")
                    .decode("utf-8", "replace")
                )
                for _ in reader:
                    pass
                _check_end(stream)
                self._offsets[name] = offset
                self._schemas[name] = reader.schema

    def _stored(self, table: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyarrow import ipc

        with pa.OSFile(str(self._path)) as stream:
            stream.seek(self._offsets[table])
            yield from ipc.open_stream(stream)


def _file_schema(file: Path) -> pa.Schema:
    import pyarrow.parquet as pq

    if file.suffix == ".parquet":
        return pq.read_schema(file)
    with _arrow_reader(file) as (reader, _):
        return reader.schema


@contextmanager
def _arrow_reader(file: Path) -> Iterator[tuple[Any, Any]]:
    """A reader of an Arrow stream, which is what nsys writes, or of an Arrow file; and the file."""
    import pyarrow as pa
    from pyarrow import ipc

    with pa.OSFile(str(file)) as stream:
        try:
            reader = ipc.open_stream(stream)
        except pa.ArrowInvalid:
            stream.seek(0)
            reader = ipc.open_file(stream)
        with reader:
            yield reader, stream


def _check_end(stream: Any) -> None:
    """Refuse a stream without end marker: Arrow takes the end of the file for its end."""
    import pyarrow as pa

    end = stream.tell()
    stream.seek(max(end - len(_END), 0))
    if bytes(stream.read(len(_END))) != _END:
        raise pa.ArrowInvalid("the stream ends early")


def _raw(kind: pa.DataType) -> Raw:
    import pyarrow as pa

    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "int"
    return "float" if pa.types.is_floating(kind) else "text"


def _convert(values: pa.Array, raw: Raw, bad: BadValues, where: str) -> pa.Array:
    """One of the three delivered types; values that do not fit become null and are counted."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    found = _raw(values.type)
    if raw == "int" and found == "int":
        # ids are unsigned in Arrow exports and signed in SQLite: keep the bits
        return values.view(pa.int64()) if values.type == pa.uint64() else values.cast(pa.int64())
    if raw == "float" and found != "text":
        return values.cast(pa.float64())
    if raw == "text":
        return values.cast(pa.binary()) if found == "text" else values.cast(pa.string())
    bad(len(values) - values.null_count, f"{where} is stored as {values.type}")
    return pa.nulls(len(values), pa.int64() if raw == "int" else pa.float64())
