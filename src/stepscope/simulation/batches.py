"""Batches of worker processes come when they are made, however soon they are asked for.

Workers know nothing of what the training thread does between two batches, and nothing records
them. A thread that waits for them in the capture waits longer where it works faster: unless the
repair is about the input, the step is no shorter than it was. Time on the training thread itself
(loading without workers) is no such wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stepscope.activity.host import LONG_UNTRACED_STEP_SHARE, asking_workers_ns, has_workers
from stepscope.breakdown.recurrence import LATE
from stepscope.gaps.untraced_cpu import RECURS_IN
from stepscope.simulation.engine import steps_of
from stepscope.simulation.program import MARK, C, own_work, slowest_ns
from stepscope.simulation.subject import Subject

_INPUT: Final = C["input_starvation"]

_ROUNDS: Final = 4
"""A host that is ahead of its device hides a part of what it waits more; then it waits still
longer."""

_ALIKE: Final = 0.001
"""Share of the step that is not worth another round."""


_HELD: Final = 0.5
"""Part of a rank's waits for batches that ranges of the loader must hold."""


def paced_by_workers(subjects: Sequence[Subject]) -> bool:
    """Whether worker processes bring the batches of a job and cannot keep up.

    They cannot where the thread waits for them again and again: several workers that began together
    are late together. Where one batch in a long while is late, the others were ready, and a faster
    step asks for them sooner and gets them. Of several ranks, the one that waits most for its own
    workers keeps the others waiting in collectives; there ranges of the loader must hold what it
    waits, since what one rank alone waits for may be its own thread's.
    """
    slow = subjects[waits_most(subjects)]
    if len(subjects) > 1 and asking_workers_ns(slow.gpu.host) < _HELD * _waits_ns(slow):
        return False
    if not _again_and_again(slow):
        return False
    # a wait that hides behind a busy device, or another rank's work, paces nothing
    now, then = (
        slowest_ns(replayed)
        for replayed in steps_of(
            [[s.program for s in subjects], [_fed(s).program for s in subjects]]
        )
    )
    return now - then >= LONG_UNTRACED_STEP_SHARE * now


def waits_most(subjects: Sequence[Subject]) -> int:
    """Position of the program that waits longest for batches."""
    return int(np.argmax([_waits_ns(s) for s in subjects]))


def _waits_ns(subject: Subject) -> int:
    return int(subject.program.work_ns[:, _INPUT].sum())


def _fed(subject: Subject) -> Subject:
    work = own_work(subject.program)
    work[:, _INPUT] = 0
    return subject.becomes(work_ns=work)


def _again_and_again(subject: Subject) -> bool:
    program = subject.program
    if not has_workers(subject.gpu.host):
        return False
    step = np.cumsum(program.kind == MARK) - 1
    waited = np.bincount(np.maximum(step, 0), weights=program.work_ns[:, _INPUT])
    late = int((waited > LATE * waited.max(initial=0)).sum())
    length = int(program.work_ns.sum() + program.call_ns.sum())
    enough = waited.sum() >= max(LONG_UNTRACED_STEP_SHARE * length, 1)
    return bool(enough and late >= max(2.0, RECURS_IN * len(waited)))


def waits_alike(before: Sequence[Subject], after: Sequence[Subject]) -> bool:
    """Whether programs get input as before."""
    return all(_waits_ns(b) == _waits_ns(a) for b, a in zip(before, after, strict=True))


def as_they_come(subjects: Sequence[Subject], period_ns: float) -> list[Subject]:
    """The same programs, with waits for batches that are as much longer as their steps are shorter.

    Args:
        subjects: changed programs.
        period_ns: the step in which the workers bring what it needs.
    """
    found, slow = list(subjects), waits_most(subjects)
    for _ in range(_ROUNDS):
        if not found[slow].program.work_ns[:, _INPUT].any():
            break
        (replayed,) = steps_of([[s.program for s in found]])
        missing = period_ns - slowest_ns(replayed)
        if missing <= _ALIKE * period_ns:
            break
        found[slow] = _waits_longer(found[slow], missing)
    return found


def _waits_longer(subject: Subject, more_ns: float) -> Subject:
    """Waits for batches that take so much more a step, each in proportion."""
    work = own_work(subject.program)
    waited = work[:, _INPUT]
    steps = max(int((subject.program.kind == MARK).sum()), 1)
    work[:, _INPUT] = np.rint(waited * (1 + more_ns * steps / waited.sum())).astype(np.int64)
    return subject.becomes(work_ns=work)
