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
        new_ns: length of each after the repair; 0 for one that is merged into another.
        merged: which of them are not launched any more.
        idle_ns: launch-late idle time between them that goes too, in the steady window.
        low_ns: the least that all of them together may take after the repair.
        high_ns: the most that they may take.
    """

    rows: IntArray
    new_ns: IntArray
    merged: BoolArray
    idle_ns: int
    low_ns: int
    high_ns: int

    def saved_ns(self, duration_ns: IntArray) -> int:
        """What the repair saves, ns of the steady window.

        Args:
            duration_ns: length of every operation of the lane before it.
        """
        return int((duration_ns[self.rows] - self.new_ns).sum()) + self.idle_ns

    def bounds_ns(self, duration_ns: IntArray) -> tuple[int, int]:
        """Least and most that it may save, ns of the steady window."""
        before = int(duration_ns[self.rows].sum()) + self.idle_ns
        return max(before - self.high_ns, 0), max(before - self.low_ns, 0)


def scaled(rows: IntArray, duration_ns: IntArray, factor: float) -> IntArray:
    """Lengths of some operations times a factor, ns."""
    lengths: IntArray = np.rint(duration_ns[rows] * factor).astype(np.int64)
    return lengths
