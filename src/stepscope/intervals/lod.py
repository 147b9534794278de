"""Level of detail: what a row of a timeline shows at any resolution. numpy only.

A row is a list of slices sorted by begin. At a resolution of ``bucket`` ns a column, slices of at
least one column are shown one by one; shorter ones only through how much of each column they
cover, which of their classes covers most, and how many begin in it. Cover is exact in integer
nanoseconds at every resolution, because it is a difference of running totals and not a sum of
samples. Long slices are found through a pyramid of the longest slice of each group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.intervals.algebra import Intervals, Ints, coverage, overlap_per_window, union
from stepscope.intervals.distinct import distinct_values

FACTOR = 16
"""Slices, or groups of the level below, in one group of the pyramid."""
_FEW = 4096
"""So many lengths are compared at once faster than by descending the pyramid."""


@dataclass(frozen=True)
class Columns:
    """What the short slices of a row do in columns that hold any.

    Attributes:
        index: number of the column, ascending.
        covered_ns: time in it that short slices cover and long ones do not.
        dominant: class that covers most of it.
        count: short slices that begin in it.
    """

    index: Ints
    covered_ns: Ints
    dominant: Ints
    count: Ints


class Pyramid:
    """Slices of one row, ready for any resolution.

    Args:
        start: begins, sorted ascending, ns.
        end: ends, none before its begin, ns. Slices may overlap.
        kind: class of each slice, from 0.
    """

    def __init__(self, start: Ints, end: Ints, kind: npt.NDArray[np.integer]) -> None:
        self.start = start
        self.end = end
        self.kind = kind
        sorted_ends = bool((end[1:] >= end[:-1]).all())
        self.reach = end if sorted_ends else np.maximum.accumulate(end)
        level = end - start
        self._longest = [level]
        while len(level) > FACTOR:
            level = np.maximum.reduceat(level, np.arange(0, len(level), FACTOR))
            self._longest.append(level)

    def __len__(self) -> int:
        return len(self.start)

    def prepare(self) -> None:
        """Make what is otherwise made by the first question."""
        self._by_kind  # noqa: B018
        self._cover  # noqa: B018

    @cached_property
    def busy(self) -> Intervals:
        """When any slice runs."""
        return union(self.start, self.end)

    @cached_property
    def _cover(self) -> _Cover:
        return _Cover(self.busy)

    @cached_property
    def _by_kind(self) -> dict[int, _Cover]:
        kinds = distinct_values(self.kind).tolist()
        if len(kinds) == 1:
            return {kinds[0]: self._cover}
        return {
            k: _Cover(union(self.start[self.kind == k], self.end[self.kind == k])) for k in kinds
        }

    def between(self, begin: int, end: int) -> tuple[int, int]:
        """First row, and one past the last, of the slices that may touch ``[begin, end)``, ns."""
        low = int(np.searchsorted(self.reach, begin, side="left"))
        return low, max(low, int(np.searchsorted(self.start, end, side="left")))

    def long(self, begin: int, end: int, at_least: int) -> Ints:
        """Rows of the slices in ``[begin, end)`` that take at least so long, ascending, ns."""
        low, high = self.between(begin, end)
        depth = 0
        while (high - low) >> (4 * depth) > _FEW and depth < len(self._longest) - 1:
            depth += 1
        size = FACTOR**depth
        found = np.arange(low // size, -(-high // size), dtype=np.int64)
        for level in range(depth, -1, -1):
            longest = self._longest[level]
            found = found[found < len(longest)]
            found = found[longest[found] >= at_least]
            if level:
                found = (found[:, None] * FACTOR + np.arange(FACTOR)).ravel()
        found = found[(found >= low) & (found < high)]
        # an earlier slice that reaches far may have widened the range
        return found[(self.end[found] > begin) | (self.start[found] >= begin)]

    def columns(self, begin: int, bucket: int, count: int, long: Ints) -> Columns:
        """What slices that are not among ``long`` do in ``count`` columns.

        Args:
            begin: begin of the first column, ns.
            bucket: width of a column, ns.
            count: number of columns.
            long: rows that are shown one by one, from :meth:`long` of the same window.
        """
        edges = begin + bucket * np.arange(count + 1, dtype=np.int64)
        shown = union(self.start[long], self.end[long])
        short = np.diff(self._cover.before(edges)) - np.diff(coverage(shown, edges))
        begun = np.diff(np.searchsorted(self.start, edges, side="left"))
        begun -= np.diff(np.searchsorted(self.start[long], edges, side="left"))
        index = np.flatnonzero((short > 0) | (begun > 0))
        dominant = self._dominant(edges[index], edges[index + 1], long)
        return Columns(index, short[index], dominant, begun[index])

    def summary(self, power: int, candidates: Ints, long: Ints) -> Columns:
        """What short slices do in those columns of the whole row that may hold any.

        Args:
            power: columns are ``2 ** power`` ns wide; column 0 begins at time 0.
            candidates: numbers of the columns, ascending; all that hold a short slice are in it.
            long: rows of all slices that take at least one column.
        """
        low = candidates << power
        high = low + (1 << power)
        shown = _Cover(union(self.start[long], self.end[long]))
        short = self._cover.inside(low, high) - shown.inside(low, high)
        starts = self.start[long]
        begun = np.searchsorted(self.start, high, side="left")
        begun -= np.searchsorted(self.start, low, side="left")
        begun -= np.searchsorted(starts, high, side="left")
        begun += np.searchsorted(starts, low, side="left")
        kept = np.flatnonzero((short > 0) | (begun > 0))
        dominant = self._dominant(low[kept], high[kept], long)
        return Columns(candidates[kept], short[kept], dominant, begun[kept])

    def _dominant(self, low: Ints, high: Ints, long: Ints) -> Ints:
        """Class whose short slices cover most of each column."""
        best = np.full(len(low), -1, np.int64)
        dominant: Ints = np.zeros(len(low), np.int64)
        if len(self):
            last = np.searchsorted(self.start, high, side="left") - 1
            dominant = self.kind[np.maximum(last, 0)].astype(np.int64)
        if len(low) and len(self._by_kind) > 1:
            of_long = self.kind[long]
            for kind, cover in self._by_kind.items():
                covered = cover.inside(low, high)
                own = long[of_long == kind]
                if len(own):
                    covered -= overlap_per_window(union(self.start[own], self.end[own]), low, high)
                better = (covered > best) & (covered > 0)
                dominant = np.where(better, kind, dominant)
                best = np.where(better, covered, best)
        return dominant


class _Cover:
    """A disjoint set whose running total is made once."""

    def __init__(self, intervals: Intervals) -> None:
        self.start, self.end = intervals
        self._done = np.concatenate(([0], np.cumsum(self.end - self.start)))

    def before(self, at: Ints) -> Ints:
        """Length that is covered before each time, ns."""
        if not len(self.start):
            return np.zeros(len(at), np.int64)
        index = np.searchsorted(self.start, at, side="right")
        last = np.maximum(index - 1, 0)
        rest = np.maximum(self.end[last] - np.maximum(at, self.start[last]), 0)
        covered: Ints = self._done[index] - np.where(index > 0, rest, 0)
        return covered

    def inside(self, low: Ints, high: Ints) -> Ints:
        """Length that is covered in each ``[low, high)``, ns."""
        return self.before(high) - self.before(low)


def levels(start: Ints, end: Ints, most: int = 64) -> npt.NDArray[np.int16]:
    """Depth at which each slice of one thread or stream is drawn.

    A slice lies one below the slices that hold it whole. Slices that overlap in part share a
    depth, which is what streams do at the seams of their kernels.

    Args:
        start: begins, sorted ascending, and of equal begins the longest first, ns.
        end: ends, ns.
        most: number of depths; what nests deeper is drawn at the last.
    """
    depth = np.zeros(len(start), np.int16)
    rows = np.arange(len(start))
    for level in range(1, most if len(start) else 1):
        s, e = start[rows], end[rows]
        before = np.maximum.accumulate(e)[:-1]
        inside = np.concatenate(([False], (e[1:] <= before) & (s[1:] < before)))
        rows = rows[inside]
        if not len(rows):
            break
        depth[rows] = level
    return depth
