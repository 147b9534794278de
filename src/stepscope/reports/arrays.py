"""Rounding, and numbering of what is equal, for what SQL does not do well."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import numpy as np

from stepscope.intervals.distinct import with_first_and_inverse
from stepscope.trace.frame import AnyArray, FloatArray, IntArray

_FEW_KEYS = 4096
_BLOCK_ROWS = 1 << 16
_DIRECT_KEYS = 1 << 22  # a table of this many numbers is cheaper than sorting the rows


def round_half_away(values: AnyArray, decimals: int = 1) -> FloatArray:
    """Round as SQLite does: each number as it is written in decimal, halves away from zero."""
    exact = np.asarray(values, dtype=np.float64)
    scale = 10.0**decimals
    scaled = exact * scale
    rounded = np.sign(scaled) * np.floor(np.abs(scaled) + 0.5) / scale
    # the product is rounded itself: near a half, only decimal arithmetic decides
    uncertain = np.abs(np.abs(scaled) % 1.0 - 0.5) < 1e-5 * np.maximum(1.0, np.abs(scaled) * 1e-9)
    unit = Decimal(1).scaleb(-decimals)
    for row in np.flatnonzero(uncertain & np.isfinite(exact)).tolist():
        number = Decimal(repr(float(exact[row])))
        rounded[row] = float(number.quantize(unit, rounding=ROUND_HALF_UP))
    return rounded


def group(*keys: AnyArray) -> tuple[AnyArray, IntArray]:
    """Number the distinct combinations of keys.

    Returns:
        The number of each row's combination, and for each number a row that has it.
    """
    codes, firsts = _number(keys[0])
    for key in keys[1:]:
        more, of_more = _number(key)
        codes, firsts = _number(codes.astype(np.int64) * max(len(of_more), 1) + more)
    return codes, firsts


def _number(key: AnyArray) -> tuple[AnyArray, IntArray]:
    if not len(key):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    low, high = int(key.min()), int(key.max())
    if high - low < _FEW_KEYS:
        return _number_few(key, low, high)
    if high - low < _DIRECT_KEYS:
        first = np.full(high - low + 1, -1, np.int64)
        at = key - low
        first[at[::-1]] = np.arange(len(key) - 1, -1, -1)
        present = np.flatnonzero(first >= 0)
        number = np.empty(len(first), np.int64)
        number[present] = np.arange(len(present))
        return number[at], first[present]
    _, first, inverse = with_first_and_inverse(key)
    return inverse.astype(np.int64), first.astype(np.int64)


def _number_few(key: AnyArray, low: int, high: int) -> tuple[AnyArray, IntArray]:
    """The same for few different keys, in blocks that stay in the processor's cache."""
    first = np.full(high - low + 1, -1, np.int64)
    for begin in range(0, len(key), _BLOCK_ROWS):
        block = key[begin : begin + _BLOCK_ROWS]
        counts = np.bincount(block - low, minlength=len(first))
        for code in np.flatnonzero((counts > 0) & (first < 0)).tolist():
            first[code] = begin + int(np.argmax(block == code + low))
    present = np.flatnonzero(first >= 0)
    if low == 0 and len(present) == len(first):
        return key, first  # numbered already, as codes of texts mostly are
    number = np.zeros(len(first), np.int32)
    number[present] = np.arange(len(present))
    codes = np.empty(len(key), np.int32)
    for begin in range(0, len(key), _BLOCK_ROWS):
        part = slice(begin, begin + _BLOCK_ROWS)
        np.take(number, key[part] - low, out=codes[part])
    return codes, first[present]
