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

from stepscope.activity.host import LONG_UNTRACED_STEP_SHARE, has_workers
from stepscope.breakdown.recurrence import LATE
from stepscope.gaps.untraced_cpu import RECURS_IN
from stepscope.simulation.changes import Subject
from stepscope.simulation.engine import steps_of
from stepscope.simulation.program import MARK, C, own_work

_INPUT: Final = C["input_starvation"]

_ROUNDS: Final = 4
"""A host that is ahead of its device hides a part of what it waits more; then it waits still
longer."""

_ALIKE: Final = 0.001
"""Share of the step that is not worth another round."""


_AS_LONG: Final = 0.5
"""A rank that waits for input for a smaller part of what another one does waits for that rank, too:
its own workers keep up."""


def paced_by_workers(subjects: Sequence[Subject]) -> list[bool]:
    """Of each rank, whether worker processes bring its batches and cannot keep up.

    They cannot where the thread waits for them again and again: several workers that began together
    are late together. Where one batch in a long while is late, the others were ready, and a faster
    step asks for them sooner and gets them. In a job the rank whose workers are slowest waits for
    nobody else.
    """
    waited = [_waited_ns(subject) for subject in subjects]
    most = max(waited)
    found = [
        0 < ns >= _AS_LONG * most and _again_and_again(subject)
        for subject, ns in zip(subjects, waited, strict=True)
    ]
    if not any(found):
        return found
    # a wait that hides behind a busy device paces nothing
    fed = [_fed(s) if one else s for s, one in zip(subjects, found, strict=True)]
    now, then = (
        max(r.step_ns for r in replayed)
        for replayed in steps_of([[s.program for s in job] for job in (list(subjects), fed)])
    )
    return found if now - then >= LONG_UNTRACED_STEP_SHARE * now else [False] * len(found)


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


def _waited_ns(subject: Subject) -> int:
    return int(subject.program.work_ns[:, _INPUT].sum())


def wait_alike(before: Sequence[Subject], after: Sequence[Subject]) -> list[bool]:
    """Of each rank, whether it gets input as before."""
    return [_waited_ns(one) == _waited_ns(other) for one, other in zip(before, after, strict=True)]


def as_they_come(subjects: list[Subject], paced: list[bool], period_ns: float) -> list[Subject]:
    """The same programs, with waits for batches that are as much longer as their steps are shorter.

    Args:
        subjects: changed programs, one a device.
        paced: of each, whether workers pace it.
        period_ns: the step in which the workers bring what it needs.
    """
    for _ in range(_ROUNDS):
        waits = [
            bool(one and s.program.work_ns[:, _INPUT].any())
            for s, one in zip(subjects, paced, strict=True)
        ]
        if not any(waits):
            return subjects
        (replayed,) = steps_of([[s.program for s in subjects]])
        missing = period_ns - max(r.step_ns for r in replayed)
        if missing <= _ALIKE * period_ns:
            return subjects
        subjects = [
            _waits_longer(s, missing) if one else s for s, one in zip(subjects, waits, strict=True)
        ]
    return subjects


def _waits_longer(subject: Subject, more_ns: float) -> Subject:
    """Waits for batches that take so much more a step, each in proportion."""
    work = own_work(subject.program)
    waited = work[:, _INPUT]
    steps = max(int((subject.program.kind == MARK).sum()), 1)
    work[:, _INPUT] = np.rint(waited * (1 + more_ns * steps / waited.sum())).astype(np.int64)
    return subject.becomes(work_ns=work)
