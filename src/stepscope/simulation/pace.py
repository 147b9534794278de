"""The pace of a host: what launching costs it in each step, and programs at another pace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stepscope.simulation.changes import Bound, Change, Free, Subject
from stepscope.simulation.program import MARK, C
from stepscope.trace.frame import IntArray

HALFWAY: Final = 0.5
"""From the captured pace to that of the quickest step, for a host that is no longer woken."""


def at_pace(subjects: list[Subject], bound: Bound, part: float = 1.0) -> list[Subject]:
    """Every step launches at the pace of the quickest or slowest.

    What launching costs the host differs from run to run and with what else the thread does: one
    that sleeps and is woken again and again works more slowly (cold caches, low clock). How much, a
    capture does not say; the spread between its steps, all ranks together, is what it shows. The
    quickest and slowest in twenty do not count.

    Args:
        subjects: the programs, one a device.
        bound: the quickest for ``low``, the slowest for ``high``.
        part: how much of the way from the mean pace to go.
    """
    of_rank = [_launching(s) for s in subjects]
    of_step = np.sum([ns[: min(map(len, of_rank))] for ns in of_rank], axis=0)
    if len(of_step) < 3 or not of_step.any() or bound == "expected":
        return subjects
    ordered = np.sort(of_step)
    place = 0.05 * (len(ordered) - 1)
    chosen = int(place) if bound == "low" else len(ordered) - 1 - int(place)
    pace = 1 + part * (float(ordered[chosen] / ordered.mean()) - 1)
    return [_at(subject, pace) for subject in subjects]


def unhurried(subjects: list[Subject], spare_ns: list[float]) -> list[Subject]:
    """Hosts need less for launching than they took, by so much a step each, ns."""
    found = []
    for subject, spare in zip(subjects, spare_ns, strict=True):
        launching = _launching(subject)
        cost = float(launching.mean()) if len(launching) else 0.0
        part = max(0.0, 1 - spare / cost) if cost > 0 else 1.0
        found.append(_at(subject, part))
    return found


def _at(subject: Subject, pace: float) -> Subject:
    """The same with launching at so many times the cost."""
    work = subject.program.work_ns.copy()
    work[:, C["launch_bound"]] = np.floor(work[:, C["launch_bound"]] * pace)
    call = np.where(subject.is_op, np.floor(subject.program.call_ns * pace), 0)
    call += np.where(subject.is_op, 0, subject.program.call_ns)
    return subject.becomes(work_ns=work, call_ns=call.astype(np.int64))


def _launching(subject: Subject) -> IntArray:
    """What enqueueing costs the host in each step, ns."""
    program = subject.program
    cost = program.work_ns[:, C["launch_bound"]] + np.where(subject.is_op, program.call_ns, 0)
    step = np.cumsum(program.kind == MARK)
    return np.bincount(step, weights=cost)[1:].astype(np.int64)


def woken(changes: Sequence[Change]) -> bool:
    """Whether the host no longer sleeps and is woken in the middle of the step.

    A thread that does works more slowly afterwards (cold caches, low clock). Without, its pace is
    somewhere between that of the capture and that of the capture's quickest step; half of the way
    is within 7 % of the four repaired programs that were captured as well, the one end up to 14 %
    too slow, the other up to 11 % too fast.
    """
    return any(isinstance(c, Free) and c.cause in ("host_sync", "blocking_copy") for c in changes)
