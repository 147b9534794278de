"""Long tables are written by columns: every cell as the writer of short tables gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.separated import as_csv, as_tsv

from stepscope.render import report_csv, report_rows
from stepscope.render.report_format import Format, parse_format
from stepscope.sql.files import to_arrow

UNITS = ("csv", "csv:time=us:mem=KB", "csv:time=ms:mem=KiB", "csv:time=sec:mem=GB", "csv:noconv")
WHOLE = st.one_of(st.none(), st.integers(-(1 << 62), 1 << 62), st.integers(0, 3_000_000))
REAL = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False, width=64))
TEXT = st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=5), st.just('a,"b'))
ROW = st.tuples(WHOLE, WHOLE, WHOLE, REAL, TEXT, TEXT)
KINDS = ("dur", "mem", "addr", "ratio", "", "")


def table(rows: list[Any]) -> pa.Table:
    columns = [list(column) for column in zip(*rows, strict=True)]
    types = [pa.int64()] * 3 + [pa.float64()] + [pa.string()] * 2
    arrays = [pa.array(data, type=kind) for data, kind in zip(columns, types, strict=True)]
    arrays[5] = arrays[5].dictionary_encode()
    fields = [
        pa.field(f"c{number}", array.type, metadata={"unit": unit})
        for number, (array, unit) in enumerate(zip(arrays, KINDS, strict=True))
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def both(rows: list[Any], format_: Format, write: Callable[[pa.Table, Format], str]) -> list[str]:
    found = []
    for bound in (0, 1 << 40):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(report_csv, "_LONG_ROWS", bound)
            patch.setattr(report_rows, "_CHUNK_ROWS", 3)
            patch.setattr(report_rows, "_MANY", 4)
            found.append(write(table(rows), format_))
    return found


@settings(max_examples=30, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12), st.sampled_from(UNITS))
@example([(500, 500, -1, 0.05, "", None), (1500, 1500, 1, 1e16, "\n", "x")] * 3, "csv:time=us")
@example([(n * 5 + 5, n * 512, n, n / 3, "", "") for n in range(2000)], "csv:time=us:mem=KiB")
def test_both_writers_agree(rows: list[Any], name: str) -> None:
    by_column, by_cell = both(rows, parse_format(name), as_csv)
    assert by_column == by_cell
    by_column, by_cell = both(rows, parse_format(name.replace("csv", "tsv")), as_tsv)
    assert by_column == by_cell


@given(st.lists(st.integers(-2, 3), max_size=20))
def test_arrow_arrays_without_copies(values: list[int]) -> None:
    numbers = np.array(values, np.int64)
    assert to_arrow(numbers, numbers == -1).to_pylist() == [None if v == -1 else v for v in values]
    assert to_arrow(numbers[::2]).to_pylist() == values[::2]
