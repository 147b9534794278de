"""Collectives as meetings of the programs of all ranks, and the state in which their run began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.intervals.distinct import with_inverse
from stepscope.simulation.program import Replay
from stepscope.simulation.ranks import RankCollectives
from stepscope.simulation.run import Run
from stepscope.simulation.subject import Subject
from stepscope.trace.frame import AnyArray, BoolArray, IntArray


@dataclass(frozen=True)
class _Members:
    """The members of all collectives, rank by rank.

    Attributes:
        items: of each rank, its items that are members.
        meeting: number of the collective of each member of all ranks.
        duration_ns: measured length of each.
        transfer_ns: what each took after the last one had begun; its length where unknown.
        early: which waited for no other.
        count: number of members of each collective.
    """

    items: list[IntArray]
    meeting: IntArray
    duration_ns: IntArray
    transfer_ns: IntArray
    early: BoolArray
    count: IntArray


def meet(subjects: list[Subject], matched: Sequence[RankCollectives | None]) -> list[Subject]:
    """Collectives take their shortest member's time once all have arrived.

    Where a member waited for none of the others (a send whose data fits into a buffer), the others
    take what they took after the last one had begun. A collective whose other members lie outside
    the run is left as it was measured.
    """
    m = _members(subjects, matched)
    if m is None:
        return subjects
    meetings = len(m.count)
    waits = ~m.early
    one_sided = np.zeros(meetings, bool)
    one_sided[m.meeting[m.early]] = True
    # the member that came last took no longer than the transfer; where one left early, that may
    # have been the last one to come
    took = np.where(one_sided[m.meeting], m.transfer_ns, m.duration_ns)
    shortest = np.full(meetings, np.iinfo(np.int64).max)
    np.minimum.at(shortest, m.meeting[waits], took[waits])
    several = m.count[m.meeting] > 1
    transfer = np.where(several & waits, shortest[m.meeting], m.duration_ns)
    posts = several & m.early
    changed, at = [], 0
    for subject, items in zip(subjects, m.items, strict=True):
        own = slice(at, at + len(items))
        at += len(items)
        program = subject.program
        instance, duration = program.instance.copy(), program.duration_ns.copy()
        instance[items[~several[own]]] = -1
        duration[items] = transfer[own]
        left = np.zeros(len(program), bool)
        left[items] = posts[own]
        changed.append(subject.becomes(instance=instance, duration_ns=duration, posts=left))
    return changed


def _members(subjects: list[Subject], matched: Sequence[RankCollectives | None]) -> _Members | None:
    items = [np.flatnonzero(s.program.instance >= 0) for s in subjects]
    if not sum(map(len, items)):
        return None
    durations, transfers, early = [], [], []
    for subject, own, one in zip(subjects, items, matched, strict=True):
        rows, measured = subject.program.op[own], subject.program.duration_ns[own]
        durations.append(measured)
        if one is None or one.early is None or one.transfer_ns is None:
            transfers.append(measured)
            early.append(np.zeros(len(rows), bool))
        else:
            transfers.append(_of_rows(subject, one.op, one.transfer_ns)[rows])
            early.append(_of_rows(subject, one.op, one.early)[rows] > 0)
    instances = [s.program.instance[own] for s, own in zip(subjects, items, strict=True)]
    distinct, meeting = with_inverse(np.concatenate(instances))
    return _Members(
        items,
        meeting,
        np.concatenate(durations),
        np.concatenate(transfers),
        np.concatenate(early),
        np.bincount(meeting, minlength=len(distinct)),
    )


def _of_rows(subject: Subject, rows: IntArray, values: AnyArray) -> IntArray:
    """Values of some operations, by row of the device's operations."""
    found = np.zeros(len(subject.gpu.ops), np.int64)
    found[rows] = values
    return found


def begins(
    subjects: list[Subject], matched: Sequence[RankCollectives | None], runs: Sequence[Run]
) -> list[int] | None:
    """When the hosts began their runs, after the earliest; None where that is not known.

    That is where no clock is common to them, or where these runs were not at the same time.
    """
    found = []
    for subject, one, run in zip(subjects, matched, runs, strict=True):
        if one is None or one.start_ns is None or not len(one.op):
            return None
        ahead = np.median(one.start_ns - subject.gpu.ops["start_ns"][one.op])
        # the first item's work is counted before it, and was done before the run
        found.append(run.begin_ns + int(ahead) - int(subject.program.work_ns[:1].sum()))
    first = min(found)
    if max(found) - first > max(run.end_ns - run.begin_ns for run in runs):
        return None
    return [at - first for at in found]


def run_again_ns(e: Explanation, run: Run, subject: Subject, replay: Replay) -> int:
    """Length of the recorded run as the first pass of its replay gives it, as it was measured.

    Args:
        e: the explained device, whose steps say where the run begins and ends.
        run: the run.
        subject: its program.
        replay: the replay of that without change.
    """
    m = len(subject.program)
    if len(e.steps) > 1 or not e.steps.marked:
        # the device was done with what was enqueued before so long after the host had begun
        begin = int(replay.host_ns[0]) + int(e.bounds_ns[run.first]) - run.begin_ns
        return int(replay.bounds_ns[replay.steps]) - begin
    if (int(e.bounds_ns[0]), int(e.bounds_ns[-1])) == (int(e.steps.begin_ns[0]), e.steps.end_ns):
        return int(replay.host_ns[m] - replay.host_ns[0])
    own = np.flatnonzero(subject.is_op & subject.program.hosted)
    return int(replay.end_ns[own].max() - replay.start_ns[own].min())
