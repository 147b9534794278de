"""Answers of bounded length: compact JSON, rows that fit a budget of tokens, the next page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec

from stepscope.render.brief import ms, named, sentence, tokens

__all__ = ["Answer", "Detail", "cell", "encoded", "ms", "named", "page", "sentence", "tokens"]

Detail = Literal["concise", "detailed"]
Answer = dict[str, Any]
BUDGET: Final[dict[Detail, int]] = {"concise": 1000, "detailed": 4000}
"""Most tokens of an answer."""
_LONGEST_CELL: Final = 200
_MARGIN: Final = 30
"""Tokens that the note of the next page takes."""


def encoded(answer: Answer) -> str:
    """An answer as one line of JSON."""
    return msgspec.json.encode(answer).decode()


def cell(value: object) -> object:
    """A cell of a table out of a capture: numbers as they are, texts bounded and marked as data."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(f"{value:.6g}")
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return named(text, _LONGEST_CELL)


def page(
    answer: Answer,
    field: str,
    rows: Sequence[object],
    offset: int,
    budget: int,
    shown: Callable[[Any], object] = lambda row: row,
) -> Answer:
    """An answer with as many rows as fit, from an offset on.

    At least one row is shown, so that paging ends. Where rows are left, ``next_offset`` and
    ``rows_in_all`` say so.

    Args:
        answer: the rest of the answer.
        field: the name under which the rows stand.
        rows: all rows.
        offset: number of the first row to show.
        budget: most tokens of the whole answer.
        shown: makes a row what is shown of it.
    """
    left = budget - tokens(encoded(answer)) - _MARGIN
    kept: list[object] = []
    for row in rows[offset:]:
        item = shown(row)
        left -= tokens(msgspec.json.encode(item) + b",")
        if kept and left < 0:
            break
        kept.append(item)
    found = {**answer, field: kept}
    past = offset + len(kept)
    if past < len(rows):
        found |= {"next_offset": past, "rows_in_all": len(rows)}
    return found
