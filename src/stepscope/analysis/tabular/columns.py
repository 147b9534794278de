"""Single columns of a stored trace as numpy, read batch by batch: little memory, little start-up.

:meth:`Trace.frame` serves the analyses, which want many columns at once. Reports want few columns
of every row, and often only a duration, so that neither begins nor ends need to be held.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.trace.errors import InputError
from stepscope.trace.frame import NULL, AnyArray, IntArray
from stepscope.trace.schema import TABLES, arrow_schema
from stepscope.trace.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BATCH_ROWS = 1 << 17


@dataclass(frozen=True)
class Stored:
    """A column: numbers, or codes into ``texts``."""

    values: AnyArray
    texts: list[str]


def column(trace: Trace, table: str, name: str) -> Stored:
    """One column of a table; integer nulls are -1, null flags False, null texts code -1."""
    import pyarrow as pa

    kind = arrow_schema(table).field(name).type
    is_text = pa.types.is_dictionary(kind)
    with _opened(trace, table) as file:
        rows = 0 if file is None else file.metadata.num_rows
        if file is None or name not in file.schema_arrow.names:
            values = np.full(rows, False if pa.types.is_boolean(kind) else NULL)
            return Stored(values.astype(np.int32) if is_text else values, [])
        values = np.empty(rows, np.int32 if is_text else kind.to_pandas_dtype())
        codes: dict[str, int] = {}
        at = 0
        for batch in file.iter_batches(_BATCH_ROWS, columns=[name], use_threads=False):
            part = batch.column(0)
            stop = at + len(part)
            if is_text:
                texts = part.dictionary.to_pylist()
                mapping = [codes.setdefault(text, len(codes)) for text in texts]
                values[at:stop] = np.array([*mapping, NULL], np.int32)[_numbers(part.indices)]
            else:
                values[at:stop] = _numbers(part)
            at = stop
        return Stored(values, list(codes))


def durations(trace: Trace, table: str) -> IntArray:
    """Length of every row of a table, ns."""
    with _opened(trace, table) as file:
        if file is None:
            return np.empty(0, np.int64)
        values = np.empty(file.metadata.num_rows, np.int64)
        at = 0
        columns = ["start_ns", "end_ns"]
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
            start, end = _numbers(batch.column("start_ns")), _numbers(batch.column("end_ns"))
            np.subtract(end, start, out=values[at : at + len(end)])
            at += len(end)
        return values


@contextmanager
def _opened(trace: Trace, table: str) -> Iterator[pq.ParquetFile | None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert table in TABLES
    path = trace.folder / f"{table}.parquet"
    if not path.exists():
        yield None
        return
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path} is damaged ({error}); import the original again") from error


def _numbers(array: pa.Array) -> AnyArray:
    """Values of a primitive array, nulls replaced.

    Arrow's own way of filling nulls loads its compute functions, which takes longer than most
    reports.
    """
    import pyarrow as pa

    if pa.types.is_boolean(array.type):
        flags = array.to_numpy(zero_copy_only=False)
        return np.asarray(flags == True, dtype=bool)  # noqa: E712 - nulls come as None
    if not array.null_count:
        found: AnyArray = array.to_numpy()
        return found
    validity, data = array.buffers()
    stored = np.frombuffer(data, array.type.to_pandas_dtype())
    values: AnyArray = stored[array.offset : array.offset + len(array)].copy()
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
    values[bits[array.offset : array.offset + len(array)] == 0] = (
        np.nan if values.dtype.kind == "f" else NULL
    )
    return values
