"""Steps that take far longer than the run's normal ones, and what they contain in addition.

Each outlier step is compared with one normal step, the one of median length. What a step consists
of adds up to its length exactly, so the differences add up to what the outlier step took too long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity.device import GpuTimeline
from stepscope.activity.host import cut
from stepscope.gaps.idle import CAUSES, Gaps
from stepscope.intervals import overlap_per_window, union
from stepscope.intervals.algebra import EMPTY
from stepscope.intervals.distinct import among, distinct_values, with_inverse
from stepscope.trace.frame import BoolArray, Frame, IntArray

MIN_STEPS = 5
"""Fewer steps have no normal length that one could depart from."""

DEVIATIONS = 3.5
"""How many standard deviations, estimated from the median absolute deviation, a normal step may
lie above the median (Iglewicz and Hoaglin, 1993)."""

MAD_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""

MIN_EXCESS = 0.2
"""... and at least this share of the median: steps of a sound run on a shared machine vary by 2 to
5 %, so that four deviations are within it, and a few steps estimate the deviation badly."""

SPECIFIC: Final = (
    "input_starvation",
    "host_sync",
    "blocking_copy",
    "allocator_churn",
    "compilation_or_warmup",
    "checkpoint_stall",
    "cpu_offload",
    "gil_contention",
    "profiler_overhead",
)
"""Causes of idle time that say more about an outlier step than that it is odd. Copies and exposed
communication have their own causes too."""

PARTS: Final = ("idle", "compute", "communication", "copy", "memset")
"""What a step's time is made of; see the accounting identity."""


@dataclass(frozen=True)
class Outliers:
    """The outlier steps of a run.

    Attributes:
        steps: numbers of the outlier steps.
        reference: number of the normal step that they are compared with; -1 where there is none.
        parts: columns ``step``, ``part`` (index into ``PARTS``), ``name`` (index into ``names``),
            ``excess_ns`` (time that the outlier step spends more on it), ``more`` (operations);
            the excesses of a step sum to the difference of the two lengths exactly.
        names: causes of idle time, kernels, and kinds of copies.
    """

    steps: IntArray
    reference: int
    parts: Frame
    names: list[str]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def is_specific(self) -> BoolArray:
        """Which of the parts a more specific cause accounts for."""
        part = self.parts["part"]
        causes = [self.names.index(cause) for cause in SPECIFIC if cause in self.names]
        idle = (part == PARTS.index("idle")) & among(self.parts["name"], causes)
        return np.asarray(idle | among(part, [PARTS.index("copy"), PARTS.index("communication")]))

    def excess_ns(self, part: str, name: str | None = None) -> int:
        """Excess of all outlier steps in one part, or under one name in it; savings count."""
        rows = self.parts["part"] == PARTS.index(part)
        if name is not None:
            rows &= self.parts["name"] == (self.names.index(name) if name in self.names else -1)
        return int(self.parts["excess_ns"][rows].sum())


def outlier_steps(duration_ns: IntArray) -> tuple[BoolArray, int]:
    """Which steps are odd, and the length from which on a step is.

    Args:
        duration_ns: length of each steady step.
    """
    if len(duration_ns) < MIN_STEPS:
        return np.zeros(len(duration_ns), bool), np.iinfo(np.int64).max
    median = float(np.median(duration_ns))
    deviation = MAD_TO_DEVIATION * float(np.median(np.abs(duration_ns - median)))
    limit = int(median + max(DEVIATIONS * deviation, MIN_EXCESS * median))
    odd: BoolArray = duration_ns > limit
    return odd, limit


def works_more(duration_ns: IntArray, busy_ns: IntArray) -> BoolArray:
    """Which steps are longer because the device has more to do in them.

    What an evaluation every few steps adds is the same each time; the host's pace, which is slow
    and uneven while it is recorded, may differ by more from step to step.

    Args:
        duration_ns: length of each steady step.
        busy_ns: how long the device works in each.
    """
    odd, _ = outlier_steps(busy_ns)
    usual = float(np.median(duration_ns)) if len(duration_ns) else 0.0
    odd &= busy_ns - np.median(busy_ns) > MIN_EXCESS * usual if len(busy_ns) else odd
    more: BoolArray = odd & (duration_ns > usual)
    return more


def find_outliers(
    gpu: GpuTimeline, gaps: Gaps, bounds_ns: IntArray, first: int, last: int
) -> Outliers:
    """The outlier steps among the steady ones, each compared with a normal step.

    Args:
        gpu: the device.
        gaps: its idle time by cause, over the steady steps.
        bounds_ns: boundaries of all steps.
        first: first steady step.
        last: last steady step.
    """
    duration = np.diff(bounds_ns[first : last + 2])
    odd, _ = outlier_steps(duration)
    busy = overlap_per_window(
        gpu.busy, bounds_ns[first : last + 1], bounds_ns[first + 1 : last + 2]
    )
    odd |= works_more(duration, busy)
    if first == 0:  # it pays for the begin of the capture, and begins with an empty queue
        odd[0] = False
    empty = np.empty(0, np.int64)
    none = Frame(dict.fromkeys(("step", "part", "name", "excess_ns", "more"), empty))
    if not odd.any():
        return Outliers(empty, -1, none, [])
    normal = np.flatnonzero(~odd)
    reference = int(normal[np.argsort(duration[normal], kind="stable")[(len(normal) - 1) // 2]])
    steps = np.flatnonzero(odd)
    wanted = np.append(steps, reference)
    names = list(CAUSES)
    pieces = [_idle(gaps, bounds_ns, first + wanted)]
    pieces += _busy(gpu, bounds_ns, first + wanted, names)
    table = {k: np.concatenate([piece[k] for piece in pieces]) for k in pieces[0]}
    width = len(names)
    key = table["part"] * width + table["name"]
    kinds, kind = with_inverse(key)
    ns = np.zeros((len(wanted), len(kinds)), np.int64)
    count = np.zeros_like(ns)
    np.add.at(ns, (table["slot"], kind), table["ns"])
    np.add.at(count, (table["slot"], kind), table["count"])
    excess, more = ns[:-1] - ns[-1], count[:-1] - count[-1]
    slot, which = np.nonzero((excess != 0) | (more != 0))
    parts = Frame(
        {
            "step": first + steps[slot],
            "part": kinds[which] // width,
            "name": kinds[which] % width,
            "excess_ns": excess[slot, which],
            "more": more[slot, which],
        }
    )
    return Outliers(first + steps, first + reference, parts, names)


def _idle(gaps: Gaps, bounds_ns: IntArray, wanted: IntArray) -> dict[str, IntArray]:
    columns = {k: gaps.segments[k] for k in ("start_ns", "end_ns", "cause")}
    columns = cut(columns, distinct_values(bounds_ns))
    slot = _slots(columns["start_ns"], bounds_ns, wanted)
    keep = slot >= 0
    n = int(keep.sum())
    return {
        "slot": slot[keep],
        "part": np.full(n, PARTS.index("idle")),
        "name": columns["cause"][keep].astype(np.int64),
        "ns": (columns["end_ns"] - columns["start_ns"])[keep],
        "count": np.zeros(n, np.int64),
    }


def _busy(
    gpu: GpuTimeline, bounds_ns: IntArray, wanted: IntArray, names: list[str]
) -> list[dict[str, IntArray]]:
    """Busy time by operation, each moment charged once, in the order of the accounting."""
    ops = gpu.ops
    # operations that touch a wanted step: some of the steps from their first to their last is one
    upto = np.zeros(len(bounds_ns) + 2, np.int64)
    upto[wanted + 2] = 1
    upto = np.cumsum(upto)
    begins = np.searchsorted(bounds_ns, ops["start_ns"], side="right")
    ends = np.searchsorted(bounds_ns, ops["end_ns"], side="left")
    near = upto[np.maximum(ends, begins) + 1] > upto[begins]
    base = len(names)
    names += ops.texts["name"]
    above, found = EMPTY, []
    for part, mask in gpu.by_class.items():
        rows = np.flatnonzero(mask & near)
        start, end = ops["start_ns"][rows], ops["end_ns"][rows]
        reach = np.maximum.accumulate(end)
        # of operations that overlap, the one that began first is charged until it ends
        start = np.maximum(start, np.concatenate((start[:1], reach[:-1])))
        once = start < end
        columns = {
            "start_ns": np.concatenate((start[once], ops["start_ns"][rows])),
            "end_ns": np.concatenate((end[once], ops["start_ns"][rows])),
            "name": base + np.concatenate((ops["name"][rows[once]], ops["name"][rows])),
            "count": np.repeat([0, 1], [int(once.sum()), len(rows)]),
        }
        columns = cut(columns, distinct_values(bounds_ns))
        slot = _slots(columns["start_ns"], bounds_ns, wanted)
        length = columns["end_ns"] - columns["start_ns"]
        length -= overlap_per_window(above, columns["start_ns"], columns["end_ns"])
        keep = slot >= 0
        found.append(
            {
                "slot": slot[keep],
                "part": np.full(int(keep.sum()), PARTS.index(part)),
                "name": columns["name"][keep].astype(np.int64),
                "ns": length[keep],
                "count": columns["count"][keep],
            }
        )
        above = union(
            np.concatenate((above[0], ops["start_ns"][rows])),
            np.concatenate((above[1], ops["end_ns"][rows])),
        )
    return found


def _slots(at: IntArray, bounds_ns: IntArray, wanted: IntArray) -> IntArray:
    """Position in ``wanted`` of the step that each time lies in; -1 where it is none of them."""
    slot_of = np.full(len(bounds_ns) + 1, -1, np.int64)
    slot_of[wanted + 1] = np.arange(len(wanted))
    return slot_of[np.searchsorted(bounds_ns, at, side="right")]
