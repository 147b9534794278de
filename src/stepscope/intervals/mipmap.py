"""Levels of detail of one track, made once: what each power of two of a column's width shows.

A level holds what :class:`~stepscope.intervals.lod.Pyramid` says of a whole row at its width: the
rows of the slices that take a column or more, and for the other columns how much of them short
slices cover, with which class, and how many begin. Levels begin at the width at which there are a
quarter as many columns and long slices as slices, so that all of them together are bounded by the
track; narrower windows hold few slices and are computed from these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.intervals.algebra import Ints
from stepscope.intervals.distinct import values_of_either
from stepscope.intervals.lod import Columns, Pyramid

FEWEST = 4096
"""Tracks of fewer slices have no levels: all of them are looked at each time."""
SMALLER = 4
"""The finest level has this many times fewer entries than there are slices."""
LEAST_COLUMNS = 128
"""The coarsest level has at least so many columns: no page is narrower."""
FINER = 3
"""A width that no level has is made from a level narrower by two to this power."""


@dataclass(frozen=True)
class Levels:
    """All levels of one track, one after the other.

    Attributes:
        table: one row a depth and level: depth, power of two of the width in ns, first and last
            position in ``index`` ... ``count``, first and last position in ``long``.
        index: numbers of columns, of which column 0 begins at time 0.
        covered: time in them that short slices cover, ns.
        dominant: class that covers most.
        count: slices that begin in them.
        long: rows of slices that take a column or more, ascending.
    """

    table: Ints
    index: npt.NDArray[np.integer]
    covered: npt.NDArray[np.integer]
    dominant: npt.NDArray[np.integer]
    count: npt.NDArray[np.integer]
    long: npt.NDArray[np.integer]

    def powers(self) -> tuple[int, int]:
        """Smallest and largest power of two that there is a level of; (0, -1) without levels."""
        if not len(self.table):
            return 0, -1
        return int(self.table[:, 1].min()), int(self.table[:, 1].max())

    def at(self, depth: int, power: int) -> tuple[slice, slice]:
        """Positions of the columns and of the long slices of one level of one depth."""
        row = np.flatnonzero((self.table[:, 0] == depth) & (self.table[:, 1] == power))
        if not len(row):
            return slice(0, 0), slice(0, 0)
        _, _, c0, c1, l0, l1 = self.table[row[0]].tolist()
        return slice(c0, c1), slice(l0, l1)


def build(start: Ints, end: Ints, kind: npt.NDArray[np.integer], depths: Sequence[Ints]) -> Levels:
    """Make the levels of a track.

    Args:
        start: begins, sorted ascending, ns.
        end: ends, ns.
        kind: class of each slice.
        depths: rows of each depth, ascending.
    """
    table: list[tuple[int, int, int, int, int, int]] = []
    parts: list[Columns] = []
    long_parts: list[Ints] = []
    if len(start) >= FEWEST:
        span = max(1, int(end.max()) - int(start[0]))
        top = max(0, (span // LEAST_COLUMNS).bit_length() - 1)
        finest = _finest(start, end, depths, span, top)
        at = at_long = 0
        for depth, rows in enumerate(depths):
            for power, columns, long in _of_depth(start[rows], end[rows], kind[rows], finest, top):
                stop, stop_long = at + len(columns.index), at_long + len(long)
                table.append((depth, power, at, stop, at_long, stop_long))
                parts.append(columns)
                long_parts.append(rows[long])
                at, at_long = stop, stop_long

    def joined(of: Callable[[Columns], Ints]) -> Ints:
        return np.concatenate([of(part) for part in parts] or [np.empty(0, np.int64)])

    return Levels(
        np.array(table, np.int64).reshape(-1, 6),
        joined(lambda c: c.index),
        joined(lambda c: c.covered_ns),
        joined(lambda c: c.dominant),
        joined(lambda c: c.count),
        np.concatenate(long_parts or [np.empty(0, np.int64)]),
    )


def _finest(start: Ints, end: Ints, depths: Sequence[Ints], span: int, top: int) -> int:
    """The smallest power of two at which the level is small enough."""
    power = min(top, max(0, (span // len(start)).bit_length() + 1))
    while power < top:
        entries = 0
        for rows in depths:
            entries += len(_candidates(start[rows], end[rows], power))
            entries += int(np.count_nonzero((end[rows] - start[rows]) >> power))
        if entries * SMALLER <= len(start):
            break
        power += 1
    return power


def _candidates(start: Ints, end: Ints, power: int) -> Ints:
    """Columns that short slices touch, ascending."""
    short = (end - start) >> power == 0
    first = start[short] >> power
    last = np.maximum(end[short] - 1, start[short]) >> power
    return _distinct(first, last[last > first])


def _distinct(first: Ints, more: Ints) -> Ints:
    """Distinct numbers of an ascending array and of another."""
    found = first[np.flatnonzero(np.diff(first, prepend=first[0] - 1))] if len(first) else first
    return values_of_either(found, more) if len(more) else found


def _of_depth(
    start: Ints, end: Ints, kind: npt.NDArray[np.integer], finest: int, top: int
) -> list[tuple[int, Columns, Ints]]:
    """(power, columns, long rows) of each level of one depth."""
    pyramid = Pyramid(start, end, kind)
    length = end - start
    found = []
    candidates: Ints = np.empty(0, np.int64)
    was_short = np.zeros(len(start), bool)
    for power in range(finest, top + 1):
        is_short = length >> power == 0
        new = np.flatnonzero(is_short & ~was_short)
        first = start[new] >> power
        last = np.maximum(end[new] - 1, start[new]) >> power
        candidates = _distinct(candidates >> 1, np.concatenate((first, last)))
        was_short = is_short
        long = np.flatnonzero(~is_short)
        found.append((power, pyramid.summary(power, candidates, long), long))
    return found
