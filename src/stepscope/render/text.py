"""Small pieces of text that every renderer needs. Trace text is untrusted: it is cleaned here."""

from __future__ import annotations

import unicodedata

from stepscope.trace.units import milliseconds, percent
from stepscope.trace.units import shown as figure

__all__ = ["clean", "figure", "milliseconds", "percent", "plural"]

MAX_NAME = 120
_LINE_ENDS = ("Zl", "Zp")


def clean(text: str, limit: int = MAX_NAME) -> str:
    """Text from a trace, safe to print: one line, no control or direction characters, bounded."""
    kept = "".join(
        "\ufffd"
        if (kind := unicodedata.category(character))[0] == "C" or kind in _LINE_ENDS
        else character
        for character in text[: limit + 1]
    )
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


def plural(count: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
