"""Snapshot tests: what a row of a table gives, as text, stands in a file beside the test.

``pytest --snapshots`` writes the files instead of comparing; ``git diff`` then shows what changed.
A test takes the fixture ``snapshot`` and calls it with a text and a name. Figures are written so
that another machine, or another order of the same sum, gives the same text (``short``).
"""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

Snapshot = Callable[[str, str], None]
FOLDER = "snapshots"
MOST_LINES = 40


def compared(test: Path, *, write: bool) -> Snapshot:
    """The fixture's function for the tests of a file."""

    def check(text: str, name: str) -> None:
        path = test.parent / FOLDER / name
        text = text.rstrip("\n") + "\n"
        if write:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"no snapshot {path.name} yet: run this test with --snapshots"
        stored = path.read_text(encoding="utf-8")
        if text != stored:
            lines = difflib.unified_diff(
                stored.splitlines(), text.splitlines(), "stored", "now", lineterm="", n=1
            )
            shown = "\n".join(line for line, _ in zip(lines, range(MOST_LINES), strict=False))
            raise AssertionError(f"{path.name} differs; --snapshots accepts it:\n{shown}")

    return check


def left_over(test: str, names: Iterable[str]) -> set[str]:
    """Snapshots beside a test that no row of its table has any more."""
    return {path.name for path in (Path(test).parent / FOLDER).glob("*")} - set(names)


def short(value: object) -> str:
    """A figure to three significant digits; integers, which are exact, as they are."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def columns_text(table: pa.Table, *, exact: bool) -> list[str]:
    """A line for each column that holds something: how much is null, its range, a checksum.

    Args:
        table: the rows.
        exact: whether its numbers are copied, so that each counts to the last digit; those that are
            computed are shortened, and only texts have a checksum.
    """
    return [
        f"  {name}: {_column(table[name], exact)}"
        for name in table.column_names
        if table[name].null_count < len(table)
    ]


def _column(values: pa.ChunkedArray, exact: bool) -> str:
    here = values.drop_null()
    parts = [] if len(here) == len(values) else [f"{len(values) - len(here)} null"]
    if pa.types.is_integer(here.type) or pa.types.is_floating(here.type):
        numbers: Any = here.to_numpy()
        if not exact:
            low, high = float(numbers.min()), float(numbers.max())
            return ", ".join([*parts, f"{short(low)} to {short(high)}"])
        parts.append(f"{numbers.min()} to {numbers.max()}")
        content = numbers.astype(f"{'f' if numbers.dtype.kind == 'f' else 'i'}8").tobytes()
    else:
        texts = _texts(here)
        parts.append(f"{len(set(texts))} different")
        content = "\0".join(texts if exact else sorted(set(texts))).encode()
    places = np.packbits(values.is_null().to_numpy()).tobytes() if exact else b""
    return f"{', '.join(parts)} [{zlib.crc32(places, zlib.crc32(content)):08x}]"


def _texts(values: pa.ChunkedArray) -> list[str]:
    """Values as texts, each distinct one being made once."""
    if not pa.types.is_dictionary(values.type):
        try:
            values = values.dictionary_encode()
        except pa.ArrowNotImplementedError:  # of lists and the like
            return list(map(str, values.to_pylist()))
    found = []
    for chunk in values.chunks:
        words = list(map(str, chunk.dictionary.to_pylist()))
        found += [words[place] for place in chunk.indices.to_pylist()]
    return found
