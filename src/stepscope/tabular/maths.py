"""Grouping, statistics and rounding that all reports share."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.intervals.distinct import with_first_and_inverse
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

FloatArray = npt.NDArray[np.float64]
_FEW_GROUPS = 4096
_FEW_KEYS = 4096
_BLOCK_ROWS = 1 << 16
_DOT_ROWS = 1 << 13  # above 10,000, OpenBLAS wakes threads that then wait busily
_DIRECT_KEYS = 1 << 22  # a table of this many numbers is cheaper than sorting the rows


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


def percent_of_total(totals: IntArray) -> FloatArray:
    """Each total as percentage of their sum, one decimal."""
    whole = int(totals.sum())
    if not whole:
        return np.full(len(totals), np.nan)
    # the order of the operations decides the last digit before rounding
    return round_half_away(totals * 100.0 / whole)


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


@dataclass(frozen=True)
class Statistics:
    """Statistics of the values of each group; NaN and -1 where a group is empty.

    Attributes:
        count: number of values.
        total: sum.
        avg: mean.
        med: median; the mean of the two middle values where their number is even.
        low: least value.
        high: greatest value.
        std: sample standard deviation; 0 for fewer than two values.
        whole_med: whether the median is one of the values.
    """

    count: IntArray
    total: IntArray
    avg: FloatArray
    med: FloatArray
    low: IntArray
    high: IntArray
    std: FloatArray
    whole_med: BoolArray


def statistics(values: IntArray, groups: IntArray, number: int) -> Statistics:
    """Statistics of integer values by group (0 to ``number - 1``)."""
    count = np.zeros(number, np.int64)
    size = max(_BLOCK_ROWS, number)  # of many groups, each block counts as many
    for begin in range(0, len(groups), size):
        count += np.bincount(groups[begin : begin + size], minlength=number)
    ordered = _sorted_by_group(values, groups, number)
    first = np.concatenate(([0], np.cumsum(count)[:-1])).astype(np.int64)
    filled = np.flatnonzero(count)
    total = np.zeros(number, np.int64)
    if len(ordered):
        total[filled] = np.add.reduceat(ordered, first[filled])
    low, high = np.full(number, -1, np.int64), np.full(number, -1, np.int64)
    avg, med = np.full(number, np.nan), np.full(number, np.nan)
    low[filled] = ordered[first[filled]]
    high[filled] = ordered[first[filled] + count[filled] - 1]
    avg[filled] = total[filled] / count[filled]
    left = ordered[first[filled] + (count[filled] - 1) // 2]
    right = ordered[first[filled] + count[filled] // 2]
    med[filled] = (left + right) / 2
    whole = np.ones(number, dtype=bool)
    whole[filled] = left == right
    spread = np.zeros(number)
    if len(filled) <= _FEW_GROUPS:
        for key in filled.tolist():
            spread[key] = _squares(ordered[first[key] : first[key] + count[key]], avg[key])
    else:
        away = ordered - np.repeat(avg[filled], count[filled])
        np.square(away, out=away)
        spread[filled] = np.add.reduceat(away, first[filled])
    std = np.sqrt(spread / np.maximum(count - 1, 1))
    return Statistics(count, total, avg, med, low, high, std, whole)


def _squares(values: IntArray, mean: float) -> float:
    """Sum of the squared distances from the mean."""
    total = 0.0
    for begin in range(0, len(values), _DOT_ROWS):
        away = values[begin : begin + _DOT_ROWS] - mean
        total += float(np.dot(away, away))
    return total


def running_std(values: IntArray, groups: IntArray, number: int) -> FloatArray:
    """Sample standard deviation by Welford's recurrence, in the order of the rows.

    It differs from that of :func:`statistics` in the last digit only; where a figure is shown
    unrounded, that digit is to be the one Nsight Systems prints.
    """
    spread = np.zeros(number)
    for key in range(number):
        count, mean, square = 0, 0.0, 0.0
        for value in values[groups == key].tolist():
            count += 1
            away = value - mean
            mean += away / count
            square += away * (value - mean)
        spread[key] = np.sqrt(square / max(count - 1, 1))
    return spread


def _sorted_by_group(values: IntArray, groups: IntArray, number: int) -> IntArray:
    if not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    width = max((high - low).bit_length(), 1)
    bits = width + number.bit_length()
    if bits < 63:
        # one sort of (group, value) packed into as few bits as they need
        packed = np.empty(len(values), np.uint32 if bits <= 32 else np.int64)
        blocks = [slice(at, at + _BLOCK_ROWS) for at in range(0, len(values), _BLOCK_ROWS)]
        for block in blocks:
            part = packed[block]
            part[:] = groups[block]
            np.left_shift(part, part.dtype.type(width), out=part)
            np.bitwise_or(part, (values[block] - low).astype(part.dtype), out=part)
        packed.sort()
        ordered = np.empty(len(values), np.int64)
        for block in blocks:
            np.bitwise_and(packed[block], packed.dtype.type((1 << width) - 1), out=ordered[block])
            ordered[block] += low
        return ordered
    return values[np.lexsort((values, groups))]


def text_ranks(texts: list[str]) -> IntArray:
    """Rank of each text in the order of its UTF-8 bytes."""
    order = sorted(range(len(texts)), key=lambda code: texts[code].encode())
    rank = np.empty(len(texts), np.int64)
    rank[order] = np.arange(len(texts))
    return rank


def dictionary(codes: AnyArray, texts: list[str]) -> Any:
    """Codes and their texts as an Arrow dictionary array; negative codes are null."""
    import pyarrow as pa

    indices = nullable(np.asarray(codes, dtype=np.int32), np.asarray(codes) < 0)
    return pa.DictionaryArray.from_arrays(indices, _text_array(texts))


def _text_array(texts: list[str]) -> Any:
    import pyarrow as pa

    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if ends[-1] >= 1 << 31:
        return pa.array(texts, type=pa.string())  # which says that it is too much
    offsets, data = pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(encoded))
    return pa.StringArray.from_buffers(len(texts), offsets, data)


def nullable(values: AnyArray, null: AnyArray | None = None) -> Any:
    """An Arrow array that is null where ``null`` is true (by default where the value is -1)."""
    lacks = values == -1 if null is None else np.asarray(null, dtype=bool)
    return to_arrow(np.asarray(values), lacks if lacks.any() else None)


def to_arrow(values: AnyArray, null: BoolArray | None = None) -> Any:
    """Numbers as an Arrow array of the same memory.

    ``pyarrow.array`` would first import pandas, where it is installed, and numpy's masked arrays,
    which takes longer than most reports.
    """
    import pyarrow as pa

    if values.dtype.kind not in "iuf" or values.dtype.byteorder == ">":
        return pa.array(values, mask=null)
    values = np.ascontiguousarray(values)
    bits = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [bits, pa.py_buffer(values)])
