"""What a repair inside the kernels changes: which operations, and how long they take then."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.trace.frame import BoolArray, IntArray


@dataclass(frozen=True)
class Repair:
    """One repair of some operations of one device, in its steady window.

    Attributes:
        rows: rows of ``lane.ops``, ascending.
        old_ns: length of each.
        new_ns: length of each after the repair; 0 for one that is merged into another.
        merged: which of them are not launched any more.
        idle_ns: late launches that go with each: before it, and behind the last of a loop.
        low_ns: the least that all of them together may take after the repair.
        high_ns: the most that they may take, with the idle time that may stay.
        replaced: whether one new operation a step takes the place of all of them, rather than
            those of them that are not merged.
    """

    rows: IntArray
    old_ns: IntArray
    new_ns: IntArray
    merged: BoolArray
    idle_ns: IntArray
    low_ns: int
    high_ns: int
    replaced: bool = False

    @property
    def saved_ns(self) -> int:
        """What the repair saves, ns of the steady window."""
        return int((self.old_ns - self.new_ns + self.idle_ns).sum())

    @property
    def saved_bounds_ns(self) -> tuple[int, int]:
        """Least and most that it may save, ns of the steady window."""
        before = int((self.old_ns + self.idle_ns).sum())
        return max(before - self.high_ns, 0), max(before - self.low_ns, 0)

    @property
    def total_idle_ns(self) -> int:
        """All late launches that go, ns of the steady window."""
        return int(self.idle_ns.sum())

    @property
    def factor(self) -> float:
        """New over old time of the operations that are still launched."""
        old = int(self.old_ns[~self.merged].sum())
        return float(self.new_ns[~self.merged].sum()) / old if old else 1.0


def scaled(old_ns: IntArray, factor: float) -> IntArray:
    """Lengths times a factor, ns."""
    lengths: IntArray = np.rint(old_ns * factor).astype(np.int64)
    return lengths
