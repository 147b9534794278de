"""Figures with their units, as people read them. Every sentence and table shows them this way.

What rounds to zero is shown without a sign: ``z`` in a format drops that of a negative zero.
"""

from __future__ import annotations

import re
from typing import Final, Literal, get_args

Unit = Literal[
    "ns",
    "ns_per_step",
    "bytes",
    "bytes_per_s",
    "count",
    "per_step",
    "share",
    "ratio",
    "flop_per_s",
]
UNITS: Final[tuple[str, ...]] = get_args(Unit)
"""What a figure may be measured in; ``share`` is 0 to 1."""

_BYTES: Final = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def milliseconds(ns: float) -> str:
    """A time in ms, or in us where it is short."""
    ms = ns / 1e6
    if abs(ms) >= 100:
        return f"{ms:,.0f} ms"
    if abs(ms) >= 1 or ms == 0:
        return f"{ms:z.1f} ms"
    return f"{ns / 1e3:z.1f} us" if abs(ms) < 0.1 else f"{ms:.2f} ms"


def signed_milliseconds(ns: float) -> str:
    """A difference of times with its sign; what rounds to zero has none."""
    length = milliseconds(abs(ns))
    if _is_zero(length):
        return length
    return ("+" if ns > 0 else "-") + length


def percent(share: float, decimals: int = 0) -> str:
    """A share in percent, whole unless more digits are asked for."""
    return f"{100 * share:z,.{decimals}f} %"


def signed_percent(share: float) -> str:
    """A relative difference in percent with its sign; what rounds to zero has none."""
    rounded = f"{100 * share:z.1f} %"
    return rounded if rounded[0] == "-" or _is_zero(rounded) else f"+{rounded}"


def _is_zero(text: str) -> bool:
    """Whether a figure with its unit shows no other digit than 0."""
    return not any(digit in text for digit in "123456789")


_RATE: Final = re.compile("_bytes_per_s$")
_TIME: Final = re.compile("(?:_time)?_ns(?=_|$)")


def figure_title(name: str) -> str:
    """A figure's name in words, without the unit that it is stored in: it is shown in another.

    Args:
        name: as evidence has it: ``work_ns_per_step``.
    """
    return _TIME.sub("_time", _RATE.sub("_bandwidth", name)).replace("_", " ")


def shown(value: float, unit: str) -> str:
    """A value with its unit, readable.

    Args:
        value: the value.
        unit: one of ``UNITS``.
    """
    if unit in ("ns", "ns_per_step"):
        return milliseconds(value)
    if unit in ("bytes", "bytes_per_s"):
        rate = "/s" if unit == "bytes_per_s" else ""
        name, size = next((b for b in _BYTES if abs(value) >= b[1]), ("B", 1.0))
        return f"{value / size:z.{0 if name == 'B' else 1}f} {name}{rate}"
    formats = {
        "flop_per_s": f"{value / 1e12:z.1f} TFLOP/s",
        "share": percent(value),
        "ratio": f"{value:z.2f}",
        "per_step": f"{value:z,.0f}" if value == round(value) else f"{value:z,.1f}",
    }
    return formats.get(unit, f"{value:z,.0f}")
