"""Statements that Stepscope itself holds, over the stored tables of one trace.

Users' statements pass the walls of :class:`~stepscope.sql.engine.Engine`; what ships needs none,
and reports are asked for by the hundred, so this way is short: a table is looked at when a
statement names it, and DuckDB's compiled module serves without the Python package around it, whose
import takes longer than most reports.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stepscope.sql.database import compiled, connected
from stepscope.sql.engine import MANY_ROWS, literally, quoted
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import NULL, AnyArray
from stepscope.trace.schema import TABLES
from stepscope.trace.store import damaged, table_path

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.trace.trace import Trace

_TYPES: Final = {
    "int64": "BIGINT",
    "int32": "INTEGER",
    "float64": "DOUBLE",
    "bool": "BOOLEAN",
    "text": "VARCHAR",
}
_MOST_THREADS: Final = 8


class Files:
    """A connection that reads the tables of one trace.

    Args:
        trace: the trace.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._tables: list[str] = []
        self._duckdb = compiled()
        self.many = max((trace.rows(name) for name in TABLES), default=0) > MANY_ROWS
        threads = min(os.cpu_count() or 1, _MOST_THREADS) if self.many else 1
        connection = connected(threads)
        # what still lives when Python ends, DuckDB complains of on standard error
        self._held = [connection]
        weakref.finalize(self, self._held.clear)

    @property
    def _connection(self) -> Any:
        return self._held[0]

    def stored(self, name: str) -> str:
        """The statement that reads a canonical table with all its columns.

        Raises:
            InputError: its file is damaged.
        """
        spec = TABLES[name]
        types = {column.name: _TYPES[column.type] for column in spec.columns}
        if not self._trace.rows(name):
            nothing = ", ".join(f'NULL::{kind} AS "{column}"' for column, kind in types.items())
            return f"SELECT {nothing} WHERE false"
        file = self._trace.file(name).resolve()  # checked: DuckDB itself notices no damage
        read = f"read_parquet({quoted(literally(str(file)))}, hive_partitioning=false)"
        try:
            about = self._connection.execute(f"DESCRIBE SELECT * FROM {read}").fetchall()
            count = self._connection.execute(f"SELECT count(*) FROM {read}").fetchall()
        except self._duckdb.Error as error:
            raise damaged(file, _one_line(error)) from error
        if count != [(self._trace.rows(name),)]:
            raise damaged(file, "it holds another number of rows than it should")
        found = {row[0]: row[1] for row in about}
        if any(found[column] != types[column] for column in found.keys() & types.keys()):
            raise damaged(file, "its columns have other types")
        lacking = [column for column in spec.columns if column.name not in found]
        if any(not column.nullable for column in lacking):
            raise damaged(file, f"it has no column {lacking[0].name}")
        self._tables.append(name)
        # written before these columns were introduced
        later = "".join(f', NULL::{types[c.name]} AS "{c.name}"' for c in lacking)
        return f"SELECT *{later} FROM {read}"

    def define(self, name: str, statement: str) -> None:
        """Give a statement a name that others can read from."""
        self._run(f'CREATE OR REPLACE TEMP VIEW "{name}" AS {statement}')

    def register(self, name: str, columns: Mapping[str, AnyArray]) -> None:
        """Give columns of equal length a name that statements can read from."""
        self._connection.register(name, dict(columns))

    def columns(self, statement: str) -> dict[str, AnyArray]:
        """What a statement gives, as numpy: integer nulls are -1, null texts None."""
        found = self._run(statement).fetchnumpy()
        return {name: _filled(data) for name, data in found.items()}

    def table(self, statement: str, *, coded: bool = False) -> pa.Table:
        """What a statement gives, as Arrow.

        Args:
            statement: the statement.
            coded: texts of many rows as dictionaries, so that each is held once.
        """
        import pyarrow as pa

        if self.many and not hasattr(self._connection, "sql"):
            import duckdb  # noqa: F401 - gives connections their way to Arrow: worth it here
        if self.many:
            try:
                found = self._connection.sql(statement)
                if coded:
                    return _coded(pa.RecordBatchReader.from_stream(found))
                return found.to_arrow_table()
            except (self._duckdb.Error, OSError) as error:  # Arrow's own, where rows came before
                raise self._failure(error) from error
        arrays = _arrays(self._run(statement))
        # columns of one name are told apart by their place
        return pa.table({str(place): array for place, array in enumerate(arrays)})

    def value(self, statement: str) -> Any:
        """The only cell of what a statement gives."""
        ((found,),) = self._run(statement).fetchall()
        return found

    def _run(self, statement: str) -> Any:
        try:
            return self._connection.execute(statement)
        except self._duckdb.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> Exception:
        """What went wrong in a statement that is right: a damaged file, or figures too large."""
        reason = _one_line(error)
        for name in self._tables:
            path = table_path(self._trace.folder, name)
            if path.name in reason:
                return damaged(path, reason)
        return UsageError(f"{self._trace.path} cannot be evaluated ({reason}); report this")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _coded(reader: pa.RecordBatchReader) -> pa.Table:
    """All that is read, texts as dictionaries: plain names of many rows take gigabytes."""
    import pyarrow as pa

    texts = [n for n, field in enumerate(reader.schema) if pa.types.is_string(field.type)]
    batches = []
    for batch in reader:
        columns = batch.columns
        for number in texts:
            columns[number] = columns[number].dictionary_encode()
        batches.append(pa.RecordBatch.from_arrays(columns, batch.schema.names))
    if not batches:
        return reader.schema.empty_table()
    return pa.Table.from_batches(batches).unify_dictionaries()


def _filled(data: AnyArray) -> AnyArray:
    if not isinstance(data, np.ma.MaskedArray):
        return data
    if data.dtype.kind == "O":
        return np.asarray(data.filled(None))
    return np.asarray(data.filled(np.nan if data.dtype.kind == "f" else NULL))


_PLAIN: Final = frozenset({"BIGINT", "INTEGER", "DOUBLE", "BOOLEAN", "VARCHAR"})


def plain_table(result: Any) -> pa.Table | None:
    """What the compiled module gives, as Arrow; None where types need DuckDB's package for that."""
    import pyarrow as pa

    if not all(str(column[1]) in _PLAIN for column in result.description):
        return None
    names = [column[0] for column in result.description]
    return pa.table(_arrays(result), names=names)


def _arrays(result: Any) -> list[pa.Array]:
    types = [str(column[1]) for column in result.description]
    found = result.fetchnumpy().values()
    return [_arrow(data, kind) for data, kind in zip(found, types, strict=True)]


def _arrow(data: AnyArray, kind: str) -> pa.Array:
    """A column as Arrow; pyarrow.array of numbers would import pandas, where it is installed."""
    import pyarrow as pa

    plain = np.ma.getdata(data)
    null = np.ma.getmaskarray(data) if isinstance(data, np.ma.MaskedArray) else None
    if kind == "VARCHAR" or plain.dtype.kind == "O":
        texts: Iterable[Any] = plain.tolist()
        if null is not None:
            texts = [None if lacks else text for text, lacks in zip(texts, null, strict=True)]
        return pa.array(list(texts), type=pa.string())
    if plain.dtype.kind == "b":
        return pa.array(plain.tolist(), mask=null)
    return to_arrow(plain, null)


def to_arrow(values: AnyArray, null: AnyArray | None = None) -> Any:
    """Numbers as an Arrow array of the same memory.

    ``pyarrow.array`` would first import pandas, where it is installed, and numpy's masked arrays,
    which takes longer than most reports.
    """
    import pyarrow as pa

    if values.dtype.kind not in "iuf" or values.dtype.byteorder == ">":
        return pa.array(values, mask=null)
    values = np.ascontiguousarray(values)
    bits = (
        None
        if null is None or not null.any()
        else pa.py_buffer(np.packbits(~null, bitorder="little"))
    )
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [bits, pa.py_buffer(values)])
