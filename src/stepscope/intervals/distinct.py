"""Distinct values of arrays, and which values are among others.

``np.unique`` puts integers through a hash table in recent versions of NumPy, where sorting them
takes a hundredth of the time, and ``np.isin``, ``np.intersect1d`` and the like use it inside. What
is in :data:`REPLACED` is therefore asked here, and nowhere else in the package. The answers are
NumPy's own: distinct values come sorted, and positions are those of first occurrence.

Arrays have one dimension. Integers from a narrow range, as codes of names are, are counted
instead of sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

REPLACED: Final = (
    *("in1d", "intersect1d", "isin", "setdiff1d", "setxor1d", "union1d", "unique"),
    *("unique_all", "unique_counts", "unique_inverse", "unique_values"),
)
"""Functions of NumPy that this module stands for."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Value = TypeVar("Value", bound=np.generic)

_NARROW = 1 << 12
"""A range of so many values is narrow whatever their number."""
_FEW = 8
"""Comparing with each of so few values is quicker than to look them up."""


def distinct_values(values: npt.NDArray[Value]) -> npt.NDArray[Value]:
    """The distinct values, ascending.

    Args:
        values: in any order.
    """
    if values.dtype.kind not in "iu":
        return np.unique(values)
    ordered = np.sort(values)
    return ordered[_begins(ordered)]


def with_inverse(values: npt.NDArray[Value]) -> tuple[npt.NDArray[Value], Ints]:
    """The distinct values, ascending, and where among them each value is.

    Args:
        values: in any order.
    """
    if values.dtype.kind not in "iu":
        found, inverse = np.unique(values, return_inverse=True)
        return found, inverse.astype(np.int64, copy=False)
    codes = _narrow(values)
    if codes is not None:
        found, number = _numbered(values, codes)
        return found, number[codes]
    order = np.argsort(values)
    ordered = values[order]
    begins = _begins(ordered)
    inverse = np.empty(len(values), np.int64)
    inverse[order] = np.cumsum(begins) - 1
    return ordered[begins], inverse


def with_counts(values: npt.NDArray[Value]) -> tuple[npt.NDArray[Value], Ints]:
    """The distinct values, ascending, and how often each occurs.

    Args:
        values: in any order.
    """
    if values.dtype.kind not in "iu":
        return np.unique(values, return_counts=True)
    ordered = np.sort(values)
    at = np.flatnonzero(_begins(ordered))
    return ordered[at], np.diff(at, append=len(ordered))


def with_first(values: npt.NDArray[Value]) -> tuple[npt.NDArray[Value], Ints]:
    """The distinct values, ascending, and where each occurs first.

    Args:
        values: in any order.
    """
    found, first, _ = with_first_and_inverse(values)
    return found, first


def with_first_and_inverse(
    values: npt.NDArray[Value],
) -> tuple[npt.NDArray[Value], Ints, Ints]:
    """The distinct values, ascending, where each occurs first, and where among them each value is.

    Args:
        values: in any order.
    """
    found, inverse = with_inverse(values)
    first = np.empty(len(found), np.int64)
    first[inverse[::-1]] = np.arange(len(values) - 1, -1, -1)  # the last one written stays
    return found, first, inverse


def distinct_rows(columns: Sequence[npt.NDArray[Any]]) -> tuple[Ints, Ints]:
    """The distinct rows of a table of integers, ascending by its first column, then the next.

    Args:
        columns: one or more, all of one length.

    Returns:
        Where each distinct row occurs first, and where among the distinct rows each row is.
    """
    first, inverse = with_first_and_inverse(columns[0])[1:]
    for column in columns[1:]:
        values, code = with_inverse(column)
        # both numbers are less than the rows, whose product fits
        first, inverse = with_first_and_inverse(inverse * len(values) + code)[1:]
    return first, inverse


def among(values: npt.ArrayLike, known: npt.ArrayLike) -> Bools:
    """Which values are among some others.

    Args:
        values: those in question.
        known: the others; in any order, and any number of times.
    """
    asked, others = _wide(np.asarray(values)), _wide(np.asarray(known))
    if not others.size:
        return np.zeros(asked.shape, bool)
    if others.size <= _FEW or asked.dtype != others.dtype or asked.dtype.kind not in "iu":
        return np.isin(asked, others)
    sought = distinct_values(others.reshape(-1))
    low, high = int(sought[0]), int(sought[-1])
    if high - low < max(_NARROW, 2 * asked.size):
        inside = (asked >= low) & (asked <= high)
        table = np.zeros(high - low + 1, bool)
        table[_shifted(sought, low)] = True
        return inside & table[_shifted(np.where(inside, asked, low), low)]
    at = np.searchsorted(sought, asked)
    found: Bools = sought[np.minimum(at, len(sought) - 1)] == asked
    return found


def common_values(a: npt.NDArray[Value], b: npt.NDArray[Value]) -> npt.NDArray[Value]:
    """The distinct values that both hold, ascending."""
    found = distinct_values(a)
    return found[among(found, b)]


def values_without(a: npt.NDArray[Value], b: npt.NDArray[Value]) -> npt.NDArray[Value]:
    """The distinct values of ``a`` that ``b`` does not hold, ascending."""
    found = distinct_values(a)
    return found[~among(found, b)]


def values_of_either(a: npt.NDArray[Value], b: npt.NDArray[Value]) -> npt.NDArray[Value]:
    """The distinct values that one of them holds, ascending."""
    return distinct_values(np.concatenate((a, b)))


def where_common(a: npt.NDArray[Value], b: npt.NDArray[Value]) -> tuple[Ints, Ints]:
    """Where each of the values that both hold occurs first in ``a`` and in ``b``, ascending."""
    (in_a, first_a), (in_b, first_b) = with_first(a), with_first(b)
    both = among(in_a, in_b)
    return first_a[both], first_b[np.searchsorted(in_b, in_a[both])]


def _begins(ordered: npt.NDArray[Any]) -> Bools:
    """Which of some sorted values differ from the one before."""
    found = np.empty(len(ordered), bool)
    found[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=found[1:])
    return found


def _narrow(values: npt.NDArray[Any]) -> Ints | None:
    """Integers less their smallest; None where their range is too wide to be counted."""
    if not len(values):
        return None
    low, high = int(values.min()), int(values.max())
    return _shifted(values, low) if high - low < max(_NARROW, 2 * len(values)) else None


def _shifted(values: npt.NDArray[Any], low: int) -> Ints:
    """Integers less one of them, where the differences are small."""
    if values.dtype.kind == "u":
        values = values - values.dtype.type(low)
        low = 0
    shifted: Ints = np.asarray(values, np.int64) - low
    return shifted


def _wide(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Integers of one type, but for unsigned ones that no other type holds."""
    integer = values.dtype.kind in "iu" and values.dtype != np.uint64
    return values.astype(np.int64, copy=False) if integer else values


def _numbered(values: npt.NDArray[Value], codes: Ints) -> tuple[npt.NDArray[Value], Ints]:
    """The distinct ones of some narrow values, and the number of each code among them."""
    occurs = np.bincount(codes) > 0
    low = values.min()
    found = np.flatnonzero(occurs)
    if values.dtype.kind == "u":
        return found.astype(values.dtype) + low, np.cumsum(occurs) - 1
    return (found + np.int64(low)).astype(values.dtype), np.cumsum(occurs) - 1
