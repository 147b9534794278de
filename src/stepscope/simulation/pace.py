"""The pace of a host: what launching costs it in each step, and programs at another pace.

A capture shows the pace of a host that is being recorded, and that may be woken again and again in
the middle of a step. What a repair gains is judged by the program that nobody records: the cost of
recording is taken out of the step before and of the step after alike, and a host that is no longer
woken works faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stepscope.simulation.changes import Bound
from stepscope.simulation.links import columns_of
from stepscope.simulation.program import MARK, C, own_work
from stepscope.simulation.subject import Subject
from stepscope.simulation.without_causes import without_recording
from stepscope.trace.frame import IntArray

HALFWAY: Final = 0.5
"""From the captured pace to that of the quickest step, for a host that is no longer woken."""

_QUICKEST: Final = 5.0
"""Percentile of the steps by what launching takes that counts as the quickest one."""

_ONE_DEVIATION: Final = (16.0, 84.0)
"""Percentiles one standard deviation from the middle, which outliers hardly move."""

BETWEEN_RUNS: Final = 0.18
"""Share by which the pace of a host differs from its mean in nine of ten runs, at least.

Measured on 43 unchanged programs whose host sets the pace, each timed in two processes of one
shared machine while nothing was recorded: nine of ten pairs differ by 25 % at most, half of them by
8 %, so that one run is 18 % off its mean in one of ten. Two turns of one process differ by less:
13 % (root mean square) of sixteen programs, which makes 15 %. What the device paces:
``breakdown.repaired.RUN_TO_RUN``."""

BETWEEN_WORK: Final = 0.35
"""Share by which work of the host that launches nothing (Python, NumPy, getting input) differs from
run to run in nine of ten, beside what the host as a whole does. In seven recordings of four
programs that were also timed with and without such work, it took 0.7 to 1.8 times the difference of
these times: caches, turbo clocks and memory are shared with what else runs."""

BETWEEN_TURNS: Final = 0.23
"""The same from one stretch of steps to the next of one process, in nine of ten; 6 % in the middle
(91 pairs of consecutive turns of 30 programs that spend 40 % of the step and more on such work)."""

OWN_WORK: Final = ("host_compute", "input_starvation")

LOADED: Final = {"low": 1.0, "expected": 1.17, "high": 1.4}
"""How many times as long a host takes to launch while as many workers as it needs make its batches.
Thirteen programs whose host sets the pace were timed with enough workers: they took 0.8 to 1.44
times what their captures without waiting show, 1.17 on average, and eleven of them 1.03 to 1.36.
It makes no difference whether workers compute or sleep: the thread that pins and hands over batches
runs beside the training thread in any case. All made twice as many batches and more than before;
less is counted in proportion."""

ON_HOST: Final = ("launch_bound", "host_compute", "input_starvation", "allocator_churn")
"""What the host does itself, and not more slowly because it was woken."""


def at_pace(
    subjects: list[Subject],
    bound: Bound,
    *,
    woken: bool = False,
    shown: list[Subject] | None = None,
) -> list[Subject]:
    """Every step launches at a pace that the repaired program may have.

    What launching costs the host differs from run to run and with what else the thread does: one
    that sleeps and is woken again and again works more slowly (cold caches, low clock). How much, a
    capture does not say; the spread between its steps, all ranks together, is what it shows.

    Without being woken, its pace is somewhere between that of the capture and that of the capture's
    quickest step; half of the way is within 7 % of the four repaired programs that were captured as
    well, the one end up to 14 % too slow, the other up to 11 % too fast.

    Args:
        subjects: the programs, one a device.
        bound: quick for ``low``, slow for ``high``.
        woken: whether the host was woken in the capture and no longer is.
        shown: the programs as they were recorded, which show by how much steps differ; None where
            these are. A step in which the host is slow is slow in recording, too: what is left of
            it once a cost that is the same in all steps is gone differs by more than the host does.
    """
    if bound == "expected" and not woken:
        return subjects
    of_rank = [launching_ns(s) for s in shown or subjects]
    of_step = np.sum([ns[: min(map(len, of_rank))] for ns in of_rank], axis=0)
    if len(of_step) < 3 or not of_step.any():
        return subjects if woken else in_another_run(subjects, bound)
    mean = float(of_step.mean())
    if woken:
        part = {"low": 1.0, "expected": HALFWAY, "high": 0.0}[bound]
        pace = 1 + part * (float(np.percentile(of_step, _QUICKEST)) / mean - 1)
        return [_at(subject, max(pace, 0.0)) for subject in subjects]
    low, high = np.percentile(of_step, _ONE_DEVIATION)
    # about the mean, which is the captured pace: a few slow steps are part of it
    return in_another_run(subjects, bound, float(high - low) / 2 / mean)


def in_another_run(subjects: list[Subject], bound: Bound, apart: float = 0.0) -> list[Subject]:
    """Hosts at the pace of another run, whose device may or may not wait for them.

    A host that is slower in another run is so in all that it does. Where the device sets the pace
    this changes nothing, so that the range grows with the share of the step that the host paces.

    Args:
        subjects: the programs, one a device.
        bound: quick for ``low``, slow for ``high``.
        apart: how far from the captured pace, as a share, where that is more than is usual.
    """
    if bound == "expected":
        return subjects
    apart = max(apart, BETWEEN_RUNS)
    pace = max(1 + (-apart if bound == "low" else apart), 0.0)
    return [_slowed(subject, pace, ON_HOST) for subject in subjects]


def work_in_another_run(subjects: list[Subject], bound: Bound) -> list[Subject]:
    """Work that launches nothing takes more or less, and launching what it takes.

    Args:
        subjects: the programs, one a device.
        bound: less for ``low``, more for ``high``.
    """
    apart = -BETWEEN_WORK if bound == "low" else BETWEEN_WORK
    found = []
    for subject in subjects:
        work = own_work(subject.program)
        columns = [C[cause] for cause in OWN_WORK]
        work[:, columns] = np.floor(work[:, columns] * (1 + apart))
        found.append(subject.becomes(work_ns=work))
    return found


def loaded_beside(subject: Subject, more: float, bound: Bound) -> Subject:
    """Hosts launch while more workers make batches on the same processor.

    Args:
        subject: the program.
        more: batches made in a time over those of today, less one, and 1 at most: who already
            keeps up nearly needs hardly any worker more.
        bound: which of ``LOADED``.
    """
    pace = 1 + (LOADED[bound] - 1) * more
    # a host that is slower is so in recording, too
    recording = {
        name: (getattr(subject.program, name) * pace).astype(np.int64)
        for name in ("recording_ns", "recording_untraced_ns")
    }
    return _slowed(subject, pace, ON_HOST).becomes(**recording)


def unhurried(subjects: list[Subject], spare_ns: list[float]) -> list[Subject]:
    """Hosts need less for launching than they took, by so much a step each, ns."""
    found = []
    for subject, spare in zip(subjects, spare_ns, strict=True):
        launching = launching_ns(subject)
        cost = float(launching.mean()) if len(launching) else 0.0
        part = max(0.0, 1 - spare / cost) if cost > 0 else 1.0
        found.append(_at(subject, part))
    return found


def unrecorded(subjects: list[Subject], factor: float) -> list[Subject]:
    """Nothing is recorded: less so many times the estimated cost of recording."""
    return [without_recording(subject, factor) for subject in subjects]


def is_recorded(subjects: list[Subject]) -> bool:
    """Whether recording has a cost that is estimated for any of them."""
    return any(
        s.program.recording_ns.any() or s.program.work_ns[:, C["profiler_overhead"]].any()
        for s in subjects
    )


def no_longer_woken(before: list[Subject], after: list[Subject]) -> bool:
    """Whether a host no longer sleeps and is woken in the middle of its steps.

    It does where it waits for the device: one step in two at least has a wait less. What few steps
    hold, however often they wait, leaves the pace of the others as it was.
    """
    for one, other in zip(before, after, strict=True):
        if all(a is b for a, b in zip(_of_waits(one), _of_waits(other), strict=True)):
            continue  # most changes are of other things
        was, will = _waits(one), _waits(other)
        fewer = will < was if len(was) == len(will) else np.zeros(0, bool)
        if fewer.any() and 2 * int(fewer.sum()) >= len(fewer):
            return True
    return False


def _of_waits(subject: Subject) -> tuple[object, ...]:
    """All that says how often the host waits for the device."""
    program = subject.program
    return program.blocks, program.waits, program.wait_cause, program.kind


def _waits(subject: Subject) -> IntArray:
    """How often the host waits for the device in each step.

    Not while it saves a state: that is in few steps, in which it works on what it reads back, and
    may last from one step into the next.
    """
    program = subject.program
    found = program.blocks.astype(np.int64)
    found[columns_of(program.waits).items] += 1
    found[program.wait_cause == C["checkpoint_stall"]] = 0
    step = np.maximum(np.cumsum(program.kind == MARK) - 1, 0)
    return np.bincount(step, weights=found).astype(np.int64)


def _at(subject: Subject, pace: float) -> Subject:
    """The same with launching at so many times the cost."""
    return _slowed(subject, pace, ("launch_bound",))


def _slowed(subject: Subject, pace: float, causes: Sequence[str]) -> Subject:
    """The same with launching, and the host's work of some causes, at so many times the cost."""
    work = own_work(subject.program)
    columns = [C[cause] for cause in causes]
    work[:, columns] = np.floor(work[:, columns] * pace)
    call = np.where(subject.is_op, np.floor(subject.program.call_ns * pace), 0)
    call += np.where(subject.is_op, 0, subject.program.call_ns)
    return subject.becomes(work_ns=work, call_ns=call.astype(np.int64))


def launching_ns(subject: Subject) -> IntArray:
    """What enqueueing costs the host in each step, ns."""
    program = subject.program
    cost = program.work_ns[:, C["launch_bound"]] + np.where(subject.is_op, program.call_ns, 0)
    step = np.cumsum(program.kind == MARK)
    return np.bincount(step, weights=cost)[1:].astype(np.int64)
