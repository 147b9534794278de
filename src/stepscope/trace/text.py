"""Text of untrusted origin: what is stored holds no control characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_JUDGED = 4096
"""Characters of a name that decide what it is: names are untrusted, and patterns may take long."""

KEPT_ANSWERS = 1024
"""Texts whose meaning is kept: more than most jobs have kinds of kernels and ranges."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_CONTROL_RE2 = r"[\x00-\x1f\x7f\x{80}-\x{9f}]"


class JsonError(ValueError):
    """Text is no JSON, not of the wanted layout, or nested too deeply; says so in one line."""


def from_json(data: bytes | memoryview, kind: Any = Any) -> Any:
    """Decode JSON that may be damaged, or made to do harm.

    Args:
        data: the text.
        kind: what it must be.

    Raises:
        JsonError: it is not.
    """
    import msgspec

    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise JsonError("it is nested too deeply") from error
    except UnicodeDecodeError as error:  # no DecodeError of msgspec's
        raise JsonError(f"it is no UTF-8: {error.reason}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise JsonError(str(error)[:300]) from error


def without_controls(text: str) -> str:
    """Text whose control characters (C0, C1, delete) and lone surrogates are U+FFFD."""
    valid = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return _CONTROL.sub("\ufffd", valid)


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for a notebook; every text in it is escaped.

    Args:
        caption: what stands above it.
        columns: their titles.
        rows: their cells.
    """
    from html import escape

    def row(kind: str, cells: Iterable[object]) -> str:
        texts = (escape(without_controls(str(cell))) for cell in cells)
        return "<tr>" + "".join(f"<{kind}>{text}</{kind}>" for text in texts) + "</tr>"

    body = "".join(row("td", cells) for cells in rows)
    title = escape(without_controls(caption))
    return f"<table><caption>{title}</caption>{row('th', columns)}{body}</table>"


def clean_dictionary(texts: pa.Array) -> tuple[pa.Array, list[str]]:
    """Distinct texts without control characters, and those that had to be changed (as changed)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(texts) or not pc.any(pc.match_substring_regex(texts, _CONTROL_RE2)).as_py():
        return texts, []
    before = texts.to_pylist()
    after = [None if text is None else without_controls(text) for text in before]
    changed = [b for a, b in zip(before, after, strict=True) if b is not None and a != b]
    return pa.array(after, type=texts.type), changed
