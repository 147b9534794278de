"""Batches of worker processes come when they are made, however soon they are asked for.

Workers know nothing of what the training thread does between two batches, and nothing records
them. A thread that waits for them in the capture waits longer where it works faster: unless the
repair is about the input, the step is no shorter than it was. Time on the training thread itself
(loading without workers) is no such wait.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.activity.host import LONG_UNTRACED_STEP_SHARE, has_workers
from stepscope.breakdown.recurrence import LATE
from stepscope.gaps.untraced_cpu import RECURS_IN
from stepscope.simulation.engine import steps_of
from stepscope.simulation.program import MARK, C, own_work
from stepscope.simulation.subject import Subject

_INPUT: Final = C["input_starvation"]

_ROUNDS: Final = 4
"""A host that is ahead of its device hides a part of what it waits more; then it waits still
longer."""

_ALIKE: Final = 0.001
"""Share of the step that is not worth another round."""


def paced_by_workers(subject: Subject) -> bool:
    """Whether worker processes bring the batches of a program and cannot keep up.

    They cannot where the thread waits for them again and again: several workers that began together
    are late together. Where one batch in a long while is late, the others were ready, and a faster
    step asks for them sooner and gets them.
    """
    if not _again_and_again(subject):
        return False
    # a wait that hides behind a busy device paces nothing
    now, then = (r.step_ns for (r,) in steps_of([[subject.program], [_fed(subject).program]]))
    return now - then >= LONG_UNTRACED_STEP_SHARE * now


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


def waits_alike(before: Subject, after: Subject) -> bool:
    """Whether a program gets input as before."""
    waited, then = (int(s.program.work_ns[:, _INPUT].sum()) for s in (before, after))
    return waited == then


def as_they_come(subject: Subject, period_ns: float) -> Subject:
    """The same program, with waits for batches that are as much longer as its steps are shorter.

    Args:
        subject: a changed program.
        period_ns: the step in which the workers bring what it needs.
    """
    for _ in range(_ROUNDS):
        if not subject.program.work_ns[:, _INPUT].any():
            return subject
        ((replayed,),) = steps_of([[subject.program]])
        missing = period_ns - replayed.step_ns
        if missing <= _ALIKE * period_ns:
            return subject
        subject = _waits_longer(subject, missing)
    return subject


def _waits_longer(subject: Subject, more_ns: float) -> Subject:
    """Waits for batches that take so much more a step, each in proportion."""
    work = own_work(subject.program)
    waited = work[:, _INPUT]
    steps = max(int((subject.program.kind == MARK).sum()), 1)
    work[:, _INPUT] = np.rint(waited * (1 + more_ns * steps / waited.sum())).astype(np.int64)
    return subject.becomes(work_ns=work)
