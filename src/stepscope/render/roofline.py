"""A roofline on log axes as characters, for a terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from stepscope.ncu.roofline import LEVELS, PRECISIONS, Roofline

_HEIGHT = 14
_DECADES_BELOW = 5  # of performance that are drawn below the ceiling
_MARKS = {"l1": "1", "l2": "2", "dram": "D"}


def log10_of(value: float) -> float:
    """Logarithm to base 10; values that are absurd count as the smallest or largest number."""
    return math.log10(min(max(value, sys.float_info.min), sys.float_info.max))


def roofline_text(rooflines: Sequence[Roofline], width: int = 60) -> str:
    """The first roofline's ceilings, and a mark for each level of each launch.

    Args:
        rooflines: launches of one device.
        width: columns of the drawing.

    Returns:
        Lines without a line end; one sentence where there is no arithmetic to draw.
    """
    first = rooflines[0]
    if not first.peak_flop_per_s or not first.roofs:
        return "  (no arithmetic in the report: the roofline is that of the bytes above)"
    top = log10_of(first.peak_flop_per_s) + 0.5
    ridges = [log10_of(first.peak_flop_per_s / roof.peak_bytes_per_s) for roof in first.roofs]
    intensities = [
        log10_of(roof.intensity) for line in rooflines for roof in line.roofs if roof.intensity
    ]
    left = math.floor(min([*ridges, *intensities]) - 0.5)
    right = math.ceil(max([*ridges, *intensities]) + 0.5)
    rates = [log10_of(line.flop_per_s) for line in rooflines if line.flop_per_s]
    lowest = min(rates, default=top)
    bottom = min(top - _DECADES_BELOW, lowest - 0.5)
    cells = [[" "] * width for _ in range(_HEIGHT)]

    def put(x: float, y: float, mark: str) -> None:
        column = round((x - left) / (right - left) * (width - 1))
        row = round((top - y) / (top - bottom) * (_HEIGHT - 1))
        if 0 <= column < width and 0 <= row < _HEIGHT:
            cells[row][column] = mark

    for column in range(width):
        x = left + (right - left) * column / (width - 1)
        for roof in first.roofs:
            y = min(log10_of(first.peak_flop_per_s), x + log10_of(roof.peak_bytes_per_s))
            put(x, y, "-" if y >= log10_of(first.peak_flop_per_s) else ".")
    for line in rooflines:
        for roof in line.roofs:
            if roof.intensity:
                put(log10_of(roof.intensity), log10_of(line.flop_per_s), _MARKS[roof.level])
    legend = ", ".join(f"{_MARKS[roof.level]} {LEVELS[roof.level]}" for roof in first.roofs)
    name = PRECISIONS.get(first.precision, first.precision)
    drawn = ["  |" + "".join(row).rstrip() for row in cells]
    axis = "  +" + "-" * width
    scale = f"   1e{left}" + f"1e{right}".rjust(width - len(f"1e{left}")) + "  FLOP/byte"
    ceiling = f"  FLOP/s, up to {first.peak_flop_per_s / 1e12:,.1f} TFLOP/s ({name}); {legend}"
    return "\n".join([ceiling, *drawn, axis, scale])
