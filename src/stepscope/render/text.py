"""Small pieces of text that every renderer needs. Trace text is untrusted: it is cleaned here."""

from __future__ import annotations

import unicodedata

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


def milliseconds(ns: float) -> str:
    """A time in ms, or in us where it is short."""
    ms = ns / 1e6
    if ms >= 100:
        return f"{ms:.0f} ms"
    if ms >= 1 or ms == 0:
        return f"{ms:.1f} ms"
    return f"{ns / 1e3:.1f} us" if ms < 0.1 else f"{ms:.2f} ms"


def percent(share: float) -> str:
    """A share as whole percent."""
    return f"{100 * share:.0f} %"


def plural(count: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def figure(value: float | int, unit: str) -> str:
    """An evidence value with its unit, readable."""
    if unit == "ns":
        return milliseconds(value)
    if unit == "bytes":
        for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
            if value >= size:
                return f"{value / size:.1f} {name}"
        return f"{value:.0f} B"
    if unit == "share":
        return percent(value)
    return f"{value:,.0f}"
