"""Changes that look at all ranks together."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.simulation.edit import Bound, Subject
from stepscope.analysis.simulation.program import MARK, C, Program
from stepscope.trace.frame import BoolArray, IntArray


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
    among = 0.05 * (len(ordered) - 1)
    chosen = int(among) if bound == "low" else len(ordered) - 1 - int(among)
    pace = 1 + part * (float(ordered[chosen] / ordered.mean()) - 1)
    found = []
    for subject in subjects:
        work = subject.program.work_ns.copy()
        work[:, C["launch_bound"]] = np.floor(work[:, C["launch_bound"]] * pace)
        call = np.where(subject.is_op, np.floor(subject.program.call_ns * pace), 0)
        call += np.where(subject.is_op, 0, subject.program.call_ns)
        found.append(subject.becomes(work_ns=work, call_ns=call.astype(np.int64)))
    return found


def _launching(subject: Subject) -> IntArray:
    """What enqueueing costs the host in each step, ns."""
    program = subject.program
    cost = program.work_ns[:, C["launch_bound"]] + np.where(subject.is_op, program.call_ns, 0)
    step = np.cumsum(program.kind == MARK)
    return np.bincount(step, weights=cost)[1:].astype(np.int64)


def rank_like(subjects: list[Subject], rank: int, other: str | int) -> list[Subject]:
    """One rank takes the time of the median of the others, or of one, between two collectives.

    Host time is compared by cause, device time over all operations but matched collectives, each
    part of a step between collectives that all ranks share by itself.
    """
    shared = subjects[0].program.instance
    for subject in subjects:
        shared = np.intersect1d(shared, subject.program.instance)
    parts = [_parts(s.program, shared) for s in subjects]
    count = min(int(part.max(initial=-1)) + 1 for part in parts)
    sums = [_sums(s.program, part, count) for s, part in zip(subjects, parts, strict=True)]
    chosen = [
        value
        for s, value in zip(subjects, sums, strict=True)
        if s.rank == other or (other == "median" and s.rank != rank)
    ]
    if not chosen:
        return subjects
    wanted = np.median(np.stack(chosen), axis=0)
    changed = []
    for subject, part, own in zip(subjects, parts, sums, strict=True):
        if subject.rank != rank:
            changed.append(subject)
            continue
        ratio = np.where(own > 0, wanted / np.maximum(own, 1), 1.0)
        ratio = np.vstack((ratio, np.ones((1, ratio.shape[1]))))[np.minimum(part, count)]
        program = subject.program
        alone = _alone(program)
        changed.append(
            subject.becomes(
                work_ns=np.round(program.work_ns * ratio[:, :-2]).astype(np.int64),
                call_ns=np.round(program.call_ns * ratio[:, -2]).astype(np.int64),
                duration_ns=np.where(
                    alone, np.round(program.duration_ns * ratio[:, -1]), program.duration_ns
                ).astype(np.int64),
            )
        )
    return changed


def _alone(program: Program) -> BoolArray:
    """Items whose operation no other rank takes part in."""
    return ~program.communication & (program.instance < 0)


def _parts(program: Program, shared: IntArray) -> IntArray:
    """Number of the part of the run that each item lies in: cut at steps and at collectives."""
    cuts = (program.kind == MARK) | np.isin(program.instance, shared[shared >= 0])
    return np.cumsum(cuts).astype(np.int64)


def _sums(program: Program, part: IntArray, count: int) -> IntArray:
    """Host time by cause, time in calls and device time of each part, ns."""
    alone = np.where(_alone(program), program.duration_ns, 0)
    columns = np.column_stack((program.work_ns, program.call_ns, alone))
    sums = np.zeros((count, columns.shape[1]), np.int64)
    inside = part < count
    np.add.at(sums, part[inside], columns[inside])
    return sums
