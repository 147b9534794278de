"""Report tables as CSV and TSV."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stepscope.render.report_format import Format, cells

if TYPE_CHECKING:
    import pyarrow as pa


def as_csv(table: pa.Table, format_: Format | None = None) -> str:
    """Comma-separated values; a value is quoted only where it must be."""
    return _separated(table, format_ or Format("csv"), ",", _quoted)


def as_tsv(table: pa.Table, format_: Format | None = None) -> str:
    r"""Tab-separated values; tabs inside values become spaces, or ``\t`` with ``esc``."""
    format_ = format_ or Format("tsv")
    tab = "\\t" if "esc" in format_.flags else " "

    def plain(text: str) -> str:
        return text.replace("\t", tab).replace("\r", " ").replace("\n", " ")

    return _separated(table, format_, "\t", plain)


def _separated(table: pa.Table, format_: Format, separator: str, safe: Callable[[str], str]) -> str:
    found = cells(table, format_)
    columns = [
        column if numeric else _each_once(column, safe)
        for column, numeric in zip(found.columns, found.numeric, strict=True)
    ]
    lines = [] if "nohdr" in format_.flags else [separator.join(map(safe, found.head))]
    lines += map(separator.join, zip(*columns, strict=True))
    return "\n".join(lines) + "\n" if lines else ""


def _each_once(column: list[str], safe: Callable[[str], str]) -> list[str]:
    known = {text: safe(text) for text in set(column)}
    return [known[text] for text in column]


def _quoted(text: str) -> str:
    if any(character in text for character in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text
