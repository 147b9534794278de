"""Long report tables as separated lines: by columns, in Arrow, some rows at a time.

The cells are those of :func:`~stepscope.render.report_format.cells`, which is quicker for short
tables and serves the other formats; a property test compares the two.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.render.report_format import (
    BYTE_UNITS,
    DECIMALS,
    TIME_UNITS,
    Format,
    column_texts,
    converted,
    is_hexadecimal,
)

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_ROWS = 1 << 13  # a few megabytes of text
_MOST_THREADS = 8
_MANY = 1 << 12  # formatting so many different numbers one by one takes a millisecond

Piece = Callable[[int, int], Any]
"""(first row, number of rows) -> an Arrow string array of the cells."""


def lines(
    table: pa.Table, format_: Format, separator: str, safe: Callable[[str], str]
) -> Iterator[memoryview]:
    """The rows of a table as text, without header.

    Args:
        table: the report.
        format_: units.
        separator: between the cells.
        safe: how a text is written so that it can be read back.
    """
    from concurrent.futures import Future, ThreadPoolExecutor

    columns = [
        _column(field, table.column(number), format_, safe)
        for number, field in enumerate(table.schema)
    ]

    def chunk(begin: int) -> memoryview:
        rows = min(_CHUNK_ROWS, table.num_rows - begin)
        return _joined([piece(begin, rows) for piece in columns], separator)

    workers = min(os.cpu_count() or 1, _MOST_THREADS)
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[memoryview]] = deque()
        for begin in range(0, table.num_rows, _CHUNK_ROWS):
            if len(pending) > workers:  # bounds what waits to be written
                yield pending.popleft().result()
            pending.append(pool.submit(chunk, begin))
        while pending:
            yield pending.popleft().result()


def _joined(cells: list[Any], separator: str) -> memoryview:
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = pa.scalar("\n")
    last = pc.binary_join_element_wise(
        cells[-1], ends, "", null_handling="replace", null_replacement=""
    )
    if len(cells) > 1:
        last = pc.binary_join_element_wise(
            *cells[:-1], last, separator, null_handling="replace", null_replacement=""
        )
    offsets = np.frombuffer(last.buffers()[1], np.int32)
    begin, end = offsets[last.offset], offsets[last.offset + len(last)]
    return memoryview(last.buffers()[2])[int(begin) : int(end)]


def _column(
    field: pa.Field, data: pa.ChunkedArray, format_: Format, safe: Callable[[str], str]
) -> Piece:
    import pyarrow as pa
    import pyarrow.compute as pc

    several = data.num_chunks != 1  # combining a single one would copy it
    array = data.unify_dictionaries().combine_chunks() if several else data.chunk(0)
    category = (field.metadata or {}).get(b"unit", b"").decode()
    if pa.types.is_dictionary(array.type):
        texts = ["" if text is None else safe(text) for text in array.dictionary.to_pylist()]
        written = pa.array(texts, type=pa.string())
        return lambda at, rows: written.take(array.indices.slice(at, rows))
    unit = format_.unit(category) if category else ""
    number = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    if not number or is_hexadecimal(category, format_):

        def each(at: int, rows: int) -> Any:
            texts = column_texts(pa.chunked_array([array.slice(at, rows)]), category, format_)
            return pa.array([safe(text) for text in texts], type=pa.string())

        return each
    if unit in DECIMALS:
        return lambda at, rows: _in_unit(array.slice(at, rows), unit)
    if pa.types.is_integer(array.type):
        return lambda at, rows: pc.cast(array.slice(at, rows), pa.string())
    return lambda at, rows: _distinct(array.slice(at, rows), lambda values: list(map(str, values)))


def _distinct(array: pa.Array, write: Callable[[list[Any]], list[str]]) -> Any:
    """Cells of numbers: each different one is written once."""
    import pyarrow as pa

    encoded = array.dictionary_encode()
    written = pa.array(write(encoded.dictionary.to_pylist()), type=pa.string())
    return written.take(encoded.indices)


def _in_unit(array: pa.Array, unit: str) -> Any:
    """Numbers in a larger unit, with the decimals of that unit."""
    import pyarrow as pa

    encoded = array.dictionary_encode()
    different = encoded.dictionary
    if len(different) < _MANY:
        written = pa.array(converted(different.to_pylist(), unit), type=pa.string())
    else:
        written = _many_in_unit(different, unit)
    return written.take(encoded.indices)


def _many_in_unit(array: pa.Array, unit: str) -> Any:
    """The same for many different numbers: as whole multiples of the last decimal.

    What lies too near the middle between two of them is left to the exact conversion.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    values = array.to_numpy(zero_copy_only=False).astype(np.float64)
    decimals, scale = DECIMALS[unit], 10 ** DECIMALS[unit]
    if unit in TIME_UNITS:
        shown = values * float(f"1e-{len(str(TIME_UNITS[unit])) - 1}")
    else:
        shown = values / BYTE_UNITS[unit]
    scaled = shown * scale
    whole = np.rint(scaled)
    uncertain = ~(np.abs(np.abs(scaled - whole) - 0.5) > 1e-3) | ~(np.abs(scaled) < 1e12)
    uncertain |= scaled < 0  # a sign would stand before a whole part of 0
    whole = np.where(uncertain, 0, whole).astype(np.int64)
    fractions = pa.array([f".{part:0{decimals}d}" for part in range(scale)], type=pa.string())
    texts = pc.binary_join_element_wise(
        pa.array(whole // scale).cast(pa.string()), fractions.take(pa.array(whole % scale)), ""
    )
    if not uncertain.any():
        return texts
    rows = np.flatnonzero(uncertain)
    exact = converted(array.take(pa.array(rows)).to_pylist(), unit)
    return pc.replace_with_mask(texts, pa.array(uncertain), pa.array(exact, type=pa.string()))
