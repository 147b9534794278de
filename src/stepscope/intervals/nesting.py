"""Nesting of ranges on one time axis: parents, depths, and the innermost range at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def nest(start: Ints, end: Ints, group: Ints) -> tuple[Ints, Ints]:
    """Parent and depth of every range among the ranges of its group (thread).

    The parent is the latest-starting range before it that contains it; of ranges with equal
    bounds the first row is the outer one. A range that ends exactly where the next begins does
    not contain it. Ranges that overlap without containment are siblings.

    Args:
        start: begins, ns.
        end: ends, ns.
        group: ranges nest only within equal values.

    Returns:
        Row of the parent (-1 at the top), and depth from 0.
    """
    n = len(start)
    if not n:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # On a doubled axis an instant gets a length of one half: it then lies inside what contains it.
    begin2 = start * 2
    end2 = end * 2 + (end == start)
    order = np.lexsort((-end2, begin2, group))
    s, e, g = begin2[order], end2[order], group[order]
    firsts = np.flatnonzero(np.concatenate(([True], g[1:] != g[:-1])))
    depth_sorted = np.zeros(n, np.int64)
    parent_sorted = np.full(n, -1, np.int64)
    for first, last in zip(firsts.tolist(), [*firsts[1:].tolist(), n], strict=True):
        part = slice(first, last)
        parent, depth = _nest_by_level(s[part], e[part])
        parent_sorted[part] = np.where(parent >= 0, parent + first, -1)
        depth_sorted[part] = depth
    parent_row = np.full(n, -1, np.int64)
    depth_row = np.zeros(n, np.int64)
    parent_row[order] = np.where(parent_sorted >= 0, order[parent_sorted], -1)
    depth_row[order] = depth_sorted
    return parent_row, depth_row


def _nest_by_level(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Nest ranges sorted by (start, -end), one vectorised step a level."""
    # In a proper nesting, the ranges open at a start are those begun before it and not yet ended.
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end), start, side="right")
    parent = np.full(len(start), -1, np.int64)
    above: Ints = np.flatnonzero(depth == 0)
    for level in range(1, int(depth.max(initial=0)) + 1):
        rows = np.flatnonzero(depth == level)
        at = np.searchsorted(above, rows) - 1
        if (at < 0).any() or (end[above[at]] < end[rows]).any():
            return _nest_one_by_one(start, end)
        parent[rows] = above[at]
        above = rows
    return parent, depth


def _nest_one_by_one(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The same for ranges that overlap without nesting: rare, so a plain loop."""
    parent = np.full(len(start), -1, np.int64)
    depth = np.zeros(len(start), np.int64)
    ends = end.tolist()
    still_open: list[int] = []
    for row, (begin, stop) in enumerate(zip(start.tolist(), ends, strict=True)):
        still_open = [other for other in still_open if ends[other] > begin]
        for other in reversed(still_open):
            if ends[other] >= stop:
                parent[row] = other
                depth[row] = depth[other] + 1
                break
        still_open.append(row)
    return parent, depth


def stab_innermost(start: Ints, end: Ints, at: Ints) -> Ints:
    """Row of the innermost (latest-starting) range containing each time; -1 where none does.

    Args:
        start: begins of the ranges of one thread, sorted ascending (ties: outer first), ns.
        end: ends, ns; containment is closed on both sides.
        at: times, ns.
    """
    if not len(start):
        return np.full(len(at), -1, np.int64)
    # If the range that began last has ended, so have all ranges inside it, and every other range
    # that holds the time holds that one too: the next candidate is its parent.
    parent, _ = nest(start, end, np.zeros(len(start), np.int64))
    row = np.searchsorted(start, at, side="right").astype(np.int64) - 1
    pending = np.flatnonzero(row >= 0)
    while len(pending):
        pending = pending[end[row[pending]] < at[pending]]
        row[pending] = parent[row[pending]]
        pending = pending[row[pending] >= 0]
    return row
