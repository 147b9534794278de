"""Report tables as CSV and TSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from stepscope.render.report_format import Format, cells, headers
from stepscope.render.text import no_formula

if TYPE_CHECKING:
    import pyarrow as pa

_LONG_ROWS = 1 << 14  # for fewer, Arrow's functions take longer to load than to write the rows


def csv_pieces(table: pa.Table, format_: Format) -> Iterator[bytes | memoryview]:
    """Comma-separated values (UTF-8), some rows at a time; quoted only where they must be."""
    return _separated(table, format_, ",", _quoted)


def tsv_pieces(table: pa.Table, format_: Format) -> Iterator[bytes | memoryview]:
    r"""Tab-separated values (UTF-8), some rows at a time.

    Tabs inside values become spaces, or ``\t`` with ``esc``.
    """
    tab = "\\t" if "esc" in format_.flags else " "

    def plain(text: str) -> str:
        return text.replace("\t", tab).replace("\r", " ").replace("\n", " ")

    return _separated(table, format_, "\t", lambda text: plain(no_formula(text)))


def _separated(
    table: pa.Table, format_: Format, separator: str, safe: Callable[[str], str]
) -> Iterator[bytes | memoryview]:
    if "nohdr" not in format_.flags:
        yield (separator.join(map(safe, headers(table, format_))) + "\n").encode()
    if table.num_rows >= _LONG_ROWS:
        from stepscope.render.report_rows import lines

        yield from lines(table, format_, separator, safe)
        return
    found = cells(table, format_)
    columns = [
        column if numeric else _each_once(column, safe)
        for column, numeric in zip(found.columns, found.numeric, strict=True)
    ]
    yield "".join(f"{separator.join(row)}\n" for row in zip(*columns, strict=True)).encode()


def _each_once(column: list[str], safe: Callable[[str], str]) -> list[str]:
    known = {text: safe(text) for text in set(column)}
    return [known[text] for text in column]


def _quoted(text: str) -> str:
    text = no_formula(text)
    if any(character in text for character in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text
