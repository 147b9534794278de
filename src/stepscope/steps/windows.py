"""Cut the device's time at the steps, choose the steady ones, and measure what they cover."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.activity.device import Lane
from stepscope.steps.model import Steps
from stepscope.trace.frame import IntArray

MIN_STEPS = 3
_ONLY_LAUNCHES = 1.5
"""A mark whose work takes this many times as long on the device holds its launches only."""


def step_windows(lane: Lane, steps: Steps) -> IntArray:
    """Boundaries of the steps on the device's timeline, ns; one more than there are steps.

    Step i begins when the host has begun it *and* the device has finished what earlier steps
    enqueued. A device that runs behind the host is thus charged to the step whose work it does,
    and an idle wait for the next step's input to the step that waits. Of a single step neither
    neighbour is known, see :func:`_single_window`.
    """
    if len(steps) == 1 and steps.marked:
        return _single_window(lane, steps)
    enqueued = lane.enqueue_begin_ns
    step_of = np.searchsorted(steps.begin_ns, enqueued, side="right") - 1
    n = len(steps)
    last_end = np.full(n + 1, np.iinfo(np.int64).min)
    counted = enqueued <= steps.end_ns  # work enqueued after the last step belongs to none
    # slot i holds what step i-1 enqueued
    np.maximum.at(last_end, step_of[counted] + 1, lane.ops["end_ns"][counted])
    finished = np.maximum.accumulate(last_end)
    begin = np.maximum(steps.begin_ns, finished[:n])
    end = max(steps.end_ns, int(finished[n]))
    bounds = np.maximum.accumulate(np.append(begin, end))
    return bounds.astype(np.int64)


def _single_window(lane: Lane, steps: Steps) -> IntArray:
    """Begin and end of a single marked step, ns.

    In a loop the mark lasts as long as the step: the device sets the host's pace, too, once its
    queue is full. A mark that only holds the launches, and returns long before the device is done,
    says nothing about the step: then the device's work from first to last operation is what lasts.
    """
    begin, end = int(steps.begin_ns[0]), steps.end_ns
    enqueued = lane.enqueue_begin_ns
    # only of these it is known that they were enqueued in it
    own = (enqueued >= begin) & (enqueued <= end) & (lane.call >= 0)
    if own.any():
        first = int(lane.ops["start_ns"][own].min())
        last = int(lane.ops["end_ns"][own].max())
        if last - first > _ONLY_LAUNCHES * (end - begin):
            begin, end = first, last
    return np.array([begin, end], np.int64)


def steady_steps(duration_ns: IntArray, *, open_end: bool = False) -> tuple[int, int, str]:
    """First and last steady step, and what was set aside, in one sentence.

    Leading steps that take over 1.3 times the median of the second half are warm-up (allocation,
    compilation, autotuning, profiler start). A last step under half the median was cut by the end
    of the capture; last steps of no length at all were only enqueued in it. Odd steps in the middle
    stay: they are jitter, which is a finding of its own.

    Args:
        duration_ns: length of each step.
        open_end: nothing marks the end of the last step, so that it lacks what the host does
            between its last launch and the next step; it then counts only at nearly full length.
    """
    n = len(duration_ns)
    if n < MIN_STEPS:
        return 0, n - 1, "" if n > 1 else "a single step is one sample: how steps vary is unknown"
    unseen = n - 1 - int(np.flatnonzero(duration_ns > 0).max(initial=0))
    if unseen:
        first, last, said = steady_steps(duration_ns[: n - unseen], open_end=open_end)
        which = "the last step" if unseen == 1 else f"the last {unseen} steps"
        unseen_said = f"{which} set aside, because the capture ends before the GPU gets to them"
        return first, last, f"{said} and {unseen_said}" if said else unseen_said
    typical = float(np.median(duration_ns[n // 2 :]))
    first, last = 0, n - 1
    while first < n // 2 and duration_ns[first] > 1.3 * typical:
        first += 1
    # where long steps are frequent they may be half of the second half, but not of all
    typical = min(typical, float(np.median(duration_ns)))
    if first == 0 and duration_ns[0] < 0.7 * typical:
        first = 1  # the capture began inside it
    if duration_ns[last] < (0.8 if open_end else 0.5) * typical:
        last -= 1
    parts = []
    if first:
        which = "the first step" if first == 1 else f"the first {first} steps"
        parts.append(f"{which} set aside as warm-up")
    if last < n - 1:
        parts.append("the last step set aside as cut short")
    return first, last, " and ".join(parts)


@dataclass(frozen=True)
class Coverage:
    """How much of what a device did lies in the steps.

    Attributes:
        gpu: share of the time of the device's operations, summed, that lies in the steps.
        time: share of the time from the device's first to its last operation.
        before_ns: time from the first operation to the first step, ns.
        after_ns: time from the last step to the last operation's end, ns.
        work_outside_ns: time of operations outside the steps, summed, ns.
    """

    gpu: float
    time: float
    before_ns: int
    after_ns: int
    work_outside_ns: int

    @property
    def low(self) -> bool:
        """Whether the steps hold so little that they do not stand for the capture."""
        return self.gpu < LOW_COVERAGE or self.time < LOW_COVERAGE


LOW_COVERAGE = 0.5
"""Steps that hold less than half of the GPU's work, or of the captured time, do not stand for
the capture: what is said about them is not yet said about the program."""


def coverage(lane: Lane, bounds_ns: IntArray) -> Coverage:
    """How much of what the device did lies between the first and the last boundary.

    Args:
        lane: the device.
        bounds_ns: step boundaries on the device's timeline, ns.
    """
    begin, end = int(bounds_ns[0]), int(bounds_ns[-1])
    start_ns, end_ns = lane.ops["start_ns"], lane.ops["end_ns"]
    inside = np.clip(np.minimum(end_ns, end) - np.maximum(start_ns, begin), 0, None).sum()
    total = int((end_ns - start_ns).sum())
    first, last = int(start_ns.min()), int(end_ns.max())
    held = max(0, min(end, last) - max(begin, first))
    return Coverage(
        gpu=float(inside) / total if total else 1.0,
        time=held / (last - first) if last > first else 1.0,
        before_ns=max(0, min(begin, last) - first),
        after_ns=max(0, last - max(end, first)),
        work_outside_ns=total - int(inside),
    )
