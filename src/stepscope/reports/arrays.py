"""Rounding that all reports share."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import numpy.typing as npt

from stepscope.trace.frame import AnyArray

FloatArray = npt.NDArray[np.float64]


def round_half_away(values: AnyArray, decimals: int = 1) -> FloatArray:
    """Round as SQLite does: each number as it is written in decimal, halves away from zero."""
    exact = np.asarray(values, dtype=np.float64)
    scale = 10.0**decimals
    scaled = exact * scale
    rounded = np.sign(scaled) * np.floor(np.abs(scaled) + 0.5) / scale
    # the product is rounded itself: near a half, only decimal arithmetic decides
    unsure = np.abs(np.abs(scaled) % 1.0 - 0.5) < 1e-5 * np.maximum(1.0, np.abs(scaled) * 1e-9)
    unit = Decimal(1).scaleb(-decimals)
    for row in np.flatnonzero(unsure & np.isfinite(exact)).tolist():
        number = Decimal(repr(float(exact[row])))
        rounded[row] = float(number.quantize(unit, rounding=ROUND_HALF_UP))
    return rounded
