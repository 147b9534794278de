"""The steps of a job that are replayed, and when each host begins and ends them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.breakdown.explain import Explanation
from stepscope.breakdown.recurrence import is_disturbed
from stepscope.breakdown.repaired import RUN_TO_RUN
from stepscope.intervals.distinct import among
from stepscope.simulation.engine import compiled
from stepscope.simulation.ranks import RankCollectives

LARGEST_RUN: Final = 1_000_000
"""Items that are replayed at most, all ranks together. Their replay takes a twentieth of a second,
but making the changed programs of a prediction a second. Longer captures are replayed in part."""

LARGEST_PYTHON_RUN: Final = 100_000
"""The same where the replay is not compiled: what some eight predictions of three replays each take
about five seconds for."""

FEWEST_STEPS: Final = 3
"""Steps that are replayed even where they are more."""


@dataclass(frozen=True)
class Run:
    """A contiguous run of steps of one rank.

    Attributes:
        first: first step.
        last: last step.
        begin_ns: when the host begins it.
        end_ns: when the host begins the step after it.
        measured_ns: length on the device's timeline, in total.
    """

    first: int
    last: int
    begin_ns: int
    end_ns: int
    measured_ns: int

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.last - self.first + 1


def run_of(e: Explanation, first: int, last: int) -> Run:
    """The run of the given steps."""
    begins = e.steps.begin_ns
    if last + 1 < len(begins):
        end = int(begins[last + 1])
    elif e.steps.open_end:
        # nothing marks the end of the last step: the host's part ends with its last launch
        mine = e.gpu.enqueue_begin_ns >= begins[last]
        end = int(e.gpu.enqueue_end_ns[mine].max()) if mine.any() else e.steps.end_ns
    else:
        stopped = _stopped(e, int(begins[first]), int(begins[last]))
        end = _returned(e, int(begins[last]), e.steps.end_ns) if stopped is None else stopped
    measured = int(e.bounds_ns[last + 1] - e.bounds_ns[first])
    return Run(first, last, int(begins[first]), max(end, int(begins[last]) + 1), measured)


def _stopped(e: Explanation, begin_ns: int, last_ns: int) -> int | None:
    """When the host begins the synchronisation that ends the recording and not the step.

    Who stops a recording after so many steps waits for all that was enqueued, and so does who times
    these steps. The steps of the run go on without that. A loop that synchronises by itself does so
    in other steps, too.

    Args:
        e: the explained device.
        begin_ns: when the host begins the run.
        last_ns: when it begins the last step of it.
    """
    host = e.gpu.host
    if not len(host.api) or not len(e.gpu.ops):
        return None
    start = host.api["start_ns"]
    whole = host.api.matches("name", words.DEVICE_SYNC_CALL)
    whole &= among(host.api["thread_id"], host.launch_threads) & (start >= begin_ns)
    calls = start[whole]
    enqueued = int(e.gpu.enqueue_begin_ns.max())
    if not len(calls) or calls[0] < max(last_ns, enqueued) or calls[0] >= e.steps.end_ns:
        return None
    return int(calls[0])


def _returned(e: Explanation, begin_ns: int, end_ns: int) -> int:
    """When the host has returned from the calls that it makes in the last step.

    A synchronisation that ends the step returns some microseconds after the last kernel has ended;
    cut off there it would wait for nothing, and hold the end of the step whatever is changed.
    """
    host = e.gpu.host
    if not len(host.api):
        return end_ns
    start = host.api["start_ns"]
    mine = (
        (start >= begin_ns) & (start < end_ns) & among(host.api["thread_id"], host.launch_threads)
    )
    return max(end_ns, int(host.api["end_ns"][mine].max(initial=end_ns)))


def common_runs(
    devices: Sequence[Explanation], matched: Sequence[RankCollectives | None]
) -> list[Run]:
    """The steps of a job that are replayed, of each device.

    Args:
        devices: the explained devices.
        matched: the matched collectives of each; None where there are none.
    """
    shifts = _step_shifts(devices, matched)
    firsts, lasts = [], []
    for e, shift in zip(devices, shifts, strict=True):
        firsts.append(e.first - shift)
        lasts.append(e.last - int(_leaves_last_out(e)) - shift)
    first, last = max(firsts), min(lasts)
    meets = any(one is not None for one in matched)
    if meets and first == 0 and last - first >= FEWEST_STEPS:
        first = 1  # the first step waits for ranks whose captures begin later
    if last < first:  # no step in common: each device by itself
        return [run_of(e, e.first, e.last) for e in devices]
    first, last = _undisturbed(devices, shifts, first, last)
    first, last = _bounded(devices, shifts, first, last)
    return [run_of(e, first + s, last + s) for e, s in zip(devices, shifts, strict=True)]


def _leaves_last_out(e: Explanation) -> bool:
    """Whether the steps are replayed without the last one, as nothing marks its end.

    Not where the others do not stand for it: a program that waits once, in the last step, would be
    replayed without its wait.
    """
    if not e.steps.open_end or e.last != len(e.steps) - 1 or e.n_steady <= 2:
        return False
    others = int(e.bounds_ns[e.last] - e.bounds_ns[e.first]) / (e.n_steady - 1)
    return abs(others - e.step_ns) <= RUN_TO_RUN * e.step_ns


def _undisturbed(
    devices: Sequence[Explanation], shifts: Sequence[int], first: int, last: int
) -> tuple[int, int]:
    """Leave outlier steps out that are by chance: the longest run without any stays.

    What a repair gains is judged by the steps that the run has, of which those that were timed and
    not recorded are most. Unchanged where too few steps in a row are left.
    """
    e, shift = _slowest(devices, shifts)
    if not is_disturbed(e):
        return first, last
    odd = e.outliers.steps - shift
    inside = odd[(odd >= first) & (odd <= last)]
    edges = np.concatenate(([first - 1], inside, [last + 1]))
    longest = int(np.argmax(np.diff(edges)))
    begin, end = int(edges[longest]) + 1, int(edges[longest + 1]) - 1
    return (begin, end) if end - begin + 1 >= FEWEST_STEPS else (first, last)


def holds_none(e: Explanation, run: Run) -> bool:
    """Whether outlier steps were left out of the replayed ones, as they are by chance."""
    steps = e.outliers.steps
    inside = (steps >= run.first) & (steps <= run.last)
    return bool(len(steps)) and not inside.any() and is_disturbed(e)


def _slowest(devices: Sequence[Explanation], shifts: Sequence[int]) -> tuple[Explanation, int]:
    """The device with the longest mean step, and its shift."""
    return max(zip(devices, shifts, strict=True), key=lambda pair: pair[0].step_ns)


def _bounded(
    devices: Sequence[Explanation], shifts: Sequence[int], first: int, last: int
) -> tuple[int, int]:
    """Leave steps out of long captures: the run that is nearest to the mean step stays."""
    steps = last - first + 1
    items = 0
    for e, s in zip(devices, shifts, strict=True):
        begins = e.steps.begin_ns
        enqueued = e.gpu.enqueue_begin_ns
        end = begins[last + s + 1] if last + s + 1 < len(begins) else e.steps.end_ns
        items += int(((enqueued >= begins[first + s]) & (enqueued < end)).sum())
    most = LARGEST_RUN if compiled() else min(LARGEST_RUN, LARGEST_PYTHON_RUN)
    keep = max(FEWEST_STEPS, int(most * steps / max(items, 1)))
    if keep >= steps:
        return first, last
    e, shift = _slowest(devices, shifts)
    bounds = e.bounds_ns[first + shift : last + shift + 2]
    means = (bounds[keep:] - bounds[:-keep]) / keep
    best = int(np.argmin(np.abs(means - e.step_ns)))
    return first + best, first + best + keep - 1


def _step_shifts(
    devices: Sequence[Explanation], matched: Sequence[RankCollectives | None]
) -> list[int]:
    """By how many steps each device's numbers are ahead of the first device's.

    Captures of the ranks may begin at different steps; the collectives tell.
    """
    shifts = [0] * len(devices)
    seen = [_step_of_instance(e, one) for e, one in zip(devices, matched, strict=True)]
    for number, steps in enumerate(seen[1:], start=1):
        common = [steps[i] - seen[0][i] for i in steps.keys() & seen[0].keys()]
        if common:
            shifts[number] = int(np.median(common))
    return shifts


def _step_of_instance(e: Explanation, matched: RankCollectives | None) -> dict[int, int]:
    """The step in which a device's host enqueues each matched collective."""
    if matched is None:
        return {}
    enqueued = e.gpu.enqueue_begin_ns[matched.op]
    step = np.searchsorted(e.steps.begin_ns, enqueued, side="right") - 1
    return dict(zip(matched.instance.tolist(), step.tolist(), strict=True))
