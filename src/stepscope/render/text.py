"""Small pieces of text that every renderer needs. Trace text is untrusted: it is cleaned here."""

from __future__ import annotations

import re
import unicodedata

from stepscope.trace.units import figure_title, milliseconds, percent
from stepscope.trace.units import shown as figure

__all__ = ["clean", "figure", "figure_title", "milliseconds", "no_formula", "percent", "plural"]

MAX_NAME = 120
MAX_SENTENCE = 900
"""A sentence of ours with names in it: cut only where a name is absurd; figures may end it."""
_HARMLESS = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?%?|-+[\w:.,# ]*")
"""Signed numbers, and plain words after dashes, as Nsight Systems indents nested ranges."""
_LINE_ENDS = ("Zl", "Zp")


def clean(text: str, limit: int = MAX_NAME) -> str:
    """Text from a trace, safe to print: one line, no control or direction characters, bounded."""
    if len(text) <= limit and text.isprintable():  # nearly always: nothing to replace or to cut
        return text
    kept = "".join(
        "\ufffd"
        if (kind := unicodedata.category(character))[0] == "C" or kind in _LINE_ENDS
        else character
        for character in text[: limit + 1]
    )
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def no_formula(text: str) -> str:
    """Text for a cell of CSV that no spreadsheet computes with: an apostrophe stands before it.

    Numbers keep their sign, and words after dashes stay as Nsight Systems writes them.
    """
    if not text.startswith(_FORMULA) or _HARMLESS.fullmatch(text):
        return text
    return f"'{text}"


def plural(count: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
