"""Terms explained on the terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from stepscope.knowledge.explanation import Explanation, Meaning

_MOST_COLUMNS: Final = 6
"""Several columns of one name are shown in full up to so many."""


def explanation_text(answer: Explanation, width: int) -> str:
    """Everything that was found, one block each."""
    shown = answer.found
    more = 0
    if all(m.kind.startswith("column") for m in shown):
        shown, more = shown[:_MOST_COLUMNS], max(len(shown) - _MOST_COLUMNS, 0)
    text = "\n\n".join("\n".join(_block(meaning, width)) for meaning in shown)
    return f"{text}\n" + (
        f"\n... and {more} more columns of that name; --format json\n" if more else ""
    )


def names_text(known: Sequence[Meaning], width: int) -> str:
    """The ids of all that is known, by kind."""
    lines = []
    for kind, members in groupby(known, key=lambda m: m.kind):
        lines.append(f"{kind}:")
        lines += _wrapped(", ".join(m.id for m in members), "  ", "  ", width)
    return "\n".join(lines) + "\n"


def _block(meaning: Meaning, width: int) -> Iterator[str]:
    title = "" if meaning.title == meaning.id else f": {meaning.title}"
    yield f"{meaning.id} ({meaning.kind}){title}"
    for text in (meaning.meaning, meaning.reading):
        yield from _wrapped(plain_markdown(text), "  ", "  ", width)
    for remedy in meaning.remedies:
        yield from _wrapped(plain_markdown(remedy), "  → ", "    ", width)
    for detail in meaning.details:
        yield from _wrapped(f"{detail.name}: {plain_markdown(detail.text)}", "  · ", "    ", width)
    if meaning.see:
        yield from _wrapped(f"see: {', '.join(meaning.see)}", "  ", "       ", width)
    if meaning.reference:
        yield from _wrapped(f"from: {meaning.reference}", "  ", "        ", width)


def _wrapped(text: str, first: str, rest: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest)


def plain_markdown(markdown: str) -> str:
    """Markdown without the targets of its links and the marks of code."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", markdown)
    return re.sub(r"`([^`]+)`", r"\1", text).replace("*", "")
