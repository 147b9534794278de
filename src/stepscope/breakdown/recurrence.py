"""What only few steps hold: how much of it the run as a whole has, and how sure that is.

A window begins anywhere. Of what recurs every sixth step, one of fourteen steps holds two or three
times, and the mean step of the window differs by that from the mean step of the run. Where it comes
back after the same number of steps each time, the run holds it as often as that says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.breakdown.outliers import Outliers
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.frame import IntArray

LATE: Final = 0.1
"""A step that holds this part of the most that one holds is one of those that hold it."""

SELDOM: Final = 0.5
"""Share of the steps up to which what they hold is no part of every step."""

_SELDOM_OTHERWISE: Final = 0.2
"""Probability of another number of events up to which the likely one is taken for the true one."""

_ALIKE: Final = 0.5
"""Relative standard deviation up to which events are one thing that comes back."""

_OF_THE_RUN: Final = 0.5
"""Outlier steps of which the run as a whole holds less than this part are none of its own: to leave
them out is then nearer to it than to keep them."""

_STRAY: Final = 1
"""Distances that differ by so many steps are the same: what ends a step may fall into the next."""


LARGE_BYTES: Final = 1 << 20
"""Smaller copies take what starting them takes."""

_ENDS: Final = (10.0, 90.0)
"""Percentiles of copies alike: the quick and the slow ones."""

_FAR_APART: Final = 2.0
"""Slow copies take so many times what quick ones of the same size do, where they do more."""


@dataclass(frozen=True)
class Recurrence:
    """What few steps hold.

    Attributes:
        times: a mean step of the run holds so many times what one of the window does.
        chance: share by which that may be more or less.
        every: steps from one event to the next; None where they do not come back regularly.
    """

    times: float = 1.0
    chance: float = 0.0
    every: float | None = None


def chance_of(few: int) -> float:
    """The share by which what so many steps of a window hold may be more or less by chance.

    A window begins anywhere: of what recurs every k steps it holds one more or one less, half of
    that on average.
    """
    return 0.5 / few if few else 0.0


def recurrence(step: IntArray, amount: IntArray, n_steps: int) -> Recurrence:
    """How often events come back, and what that says of the run.

    Args:
        step: number in the window of the step that each event begins in, ascending; negative
            before the window.
        amount: how much of each event lies in the window.
        n_steps: steps in the window.
    """
    begins = np.flatnonzero(np.diff(step, prepend=np.iinfo(np.int64).min // 2) > 1)
    if not len(begins):
        return Recurrence()
    at = step[begins]
    size = np.add.reduceat(amount, begins).astype(float)
    distance = np.diff(at)
    if len(distance) and int(np.ptp(distance)) <= _STRAY:
        every = float(at[-1] - at[0]) / len(distance)
        # one more before the first, or behind the last, would lie in the window
        whole = every > 1 and at[0] <= every and n_steps - at[-1] <= every + _STRAY
        full = size[at >= 0]
        if whole and len(full) and size.sum() > 0:
            mean = float(full.mean())
            unlike = float(full.std(ddof=1)) / mean if len(full) > 1 else 0.0
            if unlike <= _ALIKE:
                times = mean / every * n_steps / float(size.sum())
                return Recurrence(times, unlike / len(full) ** 0.5, every)
    return Recurrence(1.0, chance_of(len(at)))


def of_idle_time(e: Explanation, cause: str) -> Recurrence:
    """The same of idle time that is charged to a cause; where most steps hold it, it is in all.

    Of what every other step holds, a window of five steps has two or three. Outlier steps that are
    by chance do not count.
    """
    by_step = idle_by_step(e, cause)
    if is_disturbed(e):
        by_step[e.outliers.steps - e.first] = 0
    rows = np.flatnonzero(by_step > LATE * by_step.max(initial=0))
    if not len(rows) or len(rows) > SELDOM * (len(by_step) + 1):
        return Recurrence()
    return recurrence(rows, by_step[rows], len(by_step))


def of_events(e: Explanation, start_ns: IntArray, end_ns: IntArray) -> Recurrence:
    """The same of events of the host, in time order, by when they begin."""
    step = np.searchsorted(e.steps.begin_ns, start_ns, side="right") - 1 - e.first
    # what had begun before the window is cut off at its begin
    step = np.where(start_ns <= e.begin_ns, np.minimum(step, -1), step)
    return recurrence(step, end_ns - start_ns, e.n_steady)


def idle_by_step(e: Explanation, cause: str) -> IntArray:
    """Idle time charged to a cause in each steady step, ns."""
    segments = e.gaps.segments
    rows = e.segments_of(cause)
    begin = segments["start_ns"][rows]
    step = np.searchsorted(e.bounds_ns, begin, side="right") - 1 - e.first
    waits = np.zeros(e.n_steady, np.int64)
    np.add.at(waits, np.clip(step, 0, e.n_steady - 1), segments["end_ns"][rows] - begin)
    return waits


def uneven_copies_ns(e: Explanation) -> float:
    """By how much copies from or to pageable memory may take less or more in other steps, ns each.

    The driver moves such a copy through memory of its own, and the thread that waits touches the
    program's pages. Pages that are new to the process are mapped one by one, which takes ten times
    as long as the copy. Whether ``malloc`` gives a result of ``.cpu()`` pages that were used before
    is chance, and stays so for many steps: a run may hold the slow copies or the quick ones alone.
    """
    ops = e.gpu.ops
    mine = ops.equals("kind", "memcpy") & (ops["bytes"] >= LARGE_BYTES)
    mine &= ops.equals("src_memory", "pageable") | ops.equals("dst_memory", "pageable")
    mine &= (ops["start_ns"] >= e.begin_ns) & (ops["start_ns"] < e.end_ns)
    rows = np.flatnonzero(mine)
    length = (ops["end_ns"] - ops["start_ns"])[rows]
    less = more = 0.0
    for size in distinct_values(ops["bytes"][rows]).tolist():
        alike = length[ops["bytes"][rows] == size]
        quick, slow = np.percentile(alike, _ENDS)
        if slow >= _FAR_APART * quick:
            less += float(alike.sum() - len(alike) * quick)
            more += float(len(alike) * slow - alike.sum())
    return max(less, more) / e.n_steady


def outliers_of_run(e: Explanation) -> float:
    """How many times as many outlier steps a mean step of the run holds as one of the window does.

    Steps of the run that were timed and not recorded hold outlier steps, too, if these are the
    program's own: how many, the mean of each stretch of them says. A normal step takes no longer
    there than while it is recorded, and no less than the device works in it, or than recording at
    its most costly adds; so that they are counted from below and from above. Where the window holds
    more than that, all observed steps together say how often they are.

    Returns:
        1 where there are no such steps, or they may hold as many as the window does.
    """
    odd, measured = e.outliers, e.measured
    if not len(odd) or measured is None or not measured.stretches:
        return 1.0
    lengths, more = _usual_and_odd(e)
    events = _events(odd)
    usual, of_one = float(np.median(lengths)), float(more.sum()) / events
    busy = (e.accounting.wall_ns - e.accounting.idle_ns)[e.first : e.last + 1]
    least = max(
        float(np.median(np.delete(busy, odd.steps - e.first))),
        usual - (e.tool.most_ns if e.tool is not None else 0),
    )
    steps = sum(steps for steps, _ in measured.stretches)
    fewest, most = (
        sum(max(mean - normal, 0.0) * steps for steps, mean in measured.stretches) / of_one
        for normal in (usual, least)
    )
    alike = events * steps / e.n_steady
    seen = min(alike, (fewest + most) / 2)
    return (events + seen) / (events + alike)


def is_disturbed(e: Explanation) -> bool:
    """Whether outlier steps of the window are by chance: the run holds less than half as many."""
    return outliers_of_run(e) < _OF_THE_RUN


@dataclass(frozen=True)
class LongRun:
    """Steps of the run as a whole, of which a window shows some.

    Attributes:
        step_ns: mean step, ns.
        spread_ns: standard deviation of the steps that are not odd, ns.
        odd_ns: what an event that makes steps odd takes over them, ns; 0 where none does.
        every: steps from one such event to the next; None where they do not come back regularly.
    """

    step_ns: float
    spread_ns: float
    odd_ns: float
    every: float | None = None

    def mean_of(self, steps: int) -> tuple[float, float, bool]:
        """The mean of so many steps in a row, wherever they begin.

        Of what comes back every eighth step, seven in a row nearly always hold one. Where it comes
        back irregularly, they hold as many as the run does, and one more or less.

        Returns:
            The mean, how far off it may be, ns, and whether they hold that many nearly always.
        """
        of_one = self.odd_ns / steps
        if not self.every:
            return self.step_ns, of_one, not self.odd_ns
        fair = steps / self.every
        likely = math.floor(fair + 0.5)
        other = abs(fair - likely)  # the probability of one more or less
        if other > _SELDOM_OTHERWISE:
            return self.step_ns, of_one, False
        apart = 2 * math.sqrt(other * (1 - other))
        return self.step_ns + (likely - fair) * of_one, apart * of_one, True


def long_run(e: Explanation) -> LongRun:
    """The mean step of the run, where what makes some steps odd comes back regularly."""
    usual, more = _usual_and_odd(e)
    odd = e.outliers
    spread = float(np.std(usual, ddof=1)) if len(usual) > 1 else 0.0
    if not len(odd):
        return LongRun(e.step_ns, spread, 0.0)
    found = recurrence(odd.steps - e.first, more, e.n_steady)
    step = e.step_ns + (found.times - 1) * float(more.sum()) / e.n_steady
    return LongRun(step, spread, float(more.sum()) / _events(odd), found.every)


def _usual_and_odd(e: Explanation) -> tuple[IntArray, IntArray]:
    """Lengths of the steady steps that are no outliers, and what each outlier takes over these."""
    lengths, at = e.steady_durations_ns, e.outliers.steps - e.first
    usual = np.delete(lengths, at)
    return usual, lengths[at] - int(np.median(usual))


def _events(odd: Outliers) -> int:
    """How many times outlier steps begin: those that follow one another are one event."""
    return int((np.diff(odd.steps, prepend=-2) > 1).sum())
