"""Sets of half-open integer intervals ``[start, end)`` as pairs of int64 arrays.

A *disjoint set* is sorted, non-overlapping, non-touching and free of empty intervals; ``union``
makes one from anything, the other operations take and give disjoint sets. All are vectorised and
cost O(n log n) at most.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Intervals = tuple[Ints, Ints]
"""Starts and ends, ns."""

EMPTY: Intervals = (np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Ints, end: Ints) -> Intervals:
    """The disjoint set covering any intervals, which may overlap, touch and come unsorted.

    Args:
        start: begins, ns.
        end: ends, ns; intervals with ``end <= start`` cover nothing.
    """
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.empty(len(start), bool)
    first[0] = True
    np.greater(start[1:], reach[:-1], out=first[1:])
    begins = np.flatnonzero(first)
    last = np.append(begins[1:], len(start)) - 1
    return start[begins], reach[last]


def total(intervals: Intervals) -> int:
    """Covered length of a disjoint set, ns."""
    return int((intervals[1] - intervals[0]).sum())


def complement(intervals: Intervals, begin: int, end: int) -> Intervals:
    """The parts of ``[begin, end)`` that a disjoint set leaves uncovered."""
    start, stop = clip(intervals, begin, end)
    gap_start = np.concatenate(([begin], stop))
    gap_end = np.concatenate((start, [end]))
    keep = gap_end > gap_start
    return gap_start[keep], gap_end[keep]


def clip(intervals: Intervals, begin: int, end: int) -> Intervals:
    """The part of a disjoint set inside ``[begin, end)``."""
    start, stop = intervals
    low = int(np.searchsorted(stop, begin, side="right"))
    high = max(low, int(np.searchsorted(start, end, side="left")))
    start, stop = np.maximum(start[low:high], begin), np.minimum(stop[low:high], end)
    keep = stop > start
    return start[keep], stop[keep]


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """What two disjoint sets both cover."""
    if not len(a[0]) or not len(b[0]):
        return EMPTY
    # For each interval of a, the run of intervals of b that it touches.
    low = np.searchsorted(b[1], a[0], side="right")
    high = np.searchsorted(b[0], a[1], side="left")
    counts = np.maximum(high - low, 0)
    of_a = np.repeat(np.arange(len(a[0])), counts)
    offset = np.arange(len(of_a)) - np.repeat(np.cumsum(counts) - counts, counts)
    of_b = np.repeat(low, counts) + offset
    start = np.maximum(a[0][of_a], b[0][of_b])
    end = np.minimum(a[1][of_a], b[1][of_b])
    keep = end > start
    return start[keep], end[keep]


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """What disjoint set ``a`` covers and disjoint set ``b`` does not."""
    if not len(a[0]) or not len(b[0]):
        return a
    begin = int(min(a[0][0], b[0][0]))
    end = int(max(a[1][-1], b[1][-1]))
    return intersect(a, complement(b, begin, end))


def inside_any(begin: Ints, end: Ints, count: int) -> npt.NDArray[np.bool_]:
    """Which of so many places lie in a span; spans begin and end at places, and may overlap.

    Args:
        begin: first place of each.
        end: the place behind its last one, at most ``count``.
        count: how many places there are.
    """
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, begin, 1)
    np.add.at(change, end, -1)
    found: npt.NDArray[np.bool_] = np.cumsum(change[:-1]) > 0
    return found


def coverage(intervals: Intervals, at: Ints) -> Ints:
    """Length that a disjoint set covers before each of the times ``at``, ns.

    The cumulative view makes any window's cover a difference of two values.
    """
    start, end = intervals
    if not len(start):
        return np.zeros(len(at), np.int64)
    done = np.concatenate(([0], np.cumsum(end - start)))
    index = np.searchsorted(start, at, side="right")
    last = np.maximum(index - 1, 0)
    partial = np.where(index > 0, np.maximum(end[last] - np.maximum(at, start[last]), 0), 0)
    covered: Ints = done[index] - partial
    return covered


def overlap_per_window(intervals: Intervals, begin: Ints, end: Ints) -> Ints:
    """Length that a disjoint set covers inside each window ``[begin[i], end[i])``, ns."""
    return coverage(intervals, end) - coverage(intervals, begin)
