"""Communicators whose transfers are slow beside those alike, and the rank that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.collectives.match import Matched
from stepscope.intervals.distinct import among, with_inverse
from stepscope.jobs.job_outliers import ALARMS, ENOUGH, Scores, scores
from stepscope.jobs.job_sometimes import at_least
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

_SLOWED: Final = 1.2
"""Transfers that take so many times what those alike take are slow, as in the simulator."""


@dataclass(frozen=True)
class Links:
    """What the communicators of a job transfer; arrays have one value a communicator.

    Attributes:
        transfer_ns: time from the last join to the end, the least of the members, ns a step.
        scored: compared with the communicators alike.
        ratio: against the median of those alike; 1 where there are none.
        operations: operations a step.
        skew_ns: from the first join to the last, mean, ns.
        last: device that joins last most often.
        last_share: how often it does.
        alike: number of the set of communicators that are alike.
        beside: the same as ``judged`` and slow for communicators with few alike, which a sign test
            over the steps compares: 1 slow, 0 not, -1 where there is none to compare with.
    """

    transfer_ns: AnyArray
    scored: Scores
    ratio: AnyArray
    operations: AnyArray
    skew_ns: AnyArray
    last: IntArray
    last_share: AnyArray
    alike: IntArray
    beside: IntArray

    @property
    def judged(self) -> BoolArray:
        """Communicators that have enough alike to be compared with."""
        found: BoolArray = np.isfinite(self.scored.score)
        return found

    def slow(self, comparisons: int) -> IntArray:
        """Communicators that are slow beyond chance, and by what is more than taste."""
        return np.flatnonzero(self.scored.beyond(comparisons) & (self.ratio >= _SLOWED))


def links(matched: Matched, begin_ns: IntArray, end_ns: IntArray) -> Links:
    """Look at the transfers in the shared steps.

    Communicators are alike that have as many members and the same operations in a step: the
    data-parallel groups of a job, or its tensor-parallel ones.

    Args:
        matched: the collectives of the job.
        begin_ns: begin of each shared step on the job's clock.
        end_ns: end of each.
    """
    instances, n = matched.instances, len(matched.channels)
    steps = max(len(begin_ns), 1)
    least = np.full(len(instances), np.iinfo(np.int64).max)
    for rank in matched.ranks:
        np.minimum.at(least, rank.instance, rank.transfer_ns)
    step = np.searchsorted(begin_ns, instances.last_start_ns, side="right") - 1
    inside = (step >= 0) & (instances.members > 1)
    if len(begin_ns):
        inside &= instances.last_start_ns < end_ns[np.maximum(step, 0)]
    row, column, value = step[inside], instances.channel[inside], least[inside]
    table = np.zeros((steps, n))
    np.add.at(table, (row, column), value)
    count = np.bincount(column, minlength=n)
    skew = (instances.last_start_ns - instances.first_start_ns)[inside]
    total_skew = np.bincount(column, weights=skew, minlength=n)
    last, last_share = _last(instances.last[inside], column, n, len(matched.ranks))
    looks = np.zeros(n)
    np.add.at(looks, column, (instances.looks[inside] + 1.0) * (instances.kind[inside] + 1.0))
    # edges of the steps cut an operation off here and there: means are rounded
    signature = np.stack(
        [
            np.array([len(c.members) for c in matched.channels], float),
            np.round(count / steps),
            np.round(looks / np.maximum(count, 1), 3),
        ],
        axis=1,
    )
    text = np.array([",".join(map(repr, row)) for row in signature.tolist()] or [""])[:n]
    _, alike = with_inverse(text) if n else (text, np.empty(0, np.int64))
    scored = scores(table, alike)
    ratio = np.ones(n)
    for k in range(int(alike.max(initial=-1)) + 1):
        own = np.flatnonzero(alike == k)
        middle = np.median(table[:, own].mean(axis=0))
        # where most take no time at all, a member was matched with others' operations
        if len(own) >= ENOUGH and middle > 0:
            ratio[own] = table[:, own].mean(axis=0) / middle
    beside = _beside(table, alike, ratio)
    return Links(
        transfer_ns=table.mean(axis=0),
        scored=scored,
        ratio=ratio,
        operations=count / steps,
        skew_ns=total_skew / np.maximum(count, 1),
        last=last,
        last_share=last_share,
        alike=alike,
        beside=beside,
    )


def _beside(table: AnyArray, alike: IntArray, ratio: AnyArray) -> IntArray:
    """Which of few communicators alike is slower than the others: 1, 0, or -1 where unknown.

    Args:
        table: transfers, steps x communicators, ns.
        alike: number of the set of each.
        ratio: gets the ratio to the others of those that are compared.
    """
    found = np.full(len(alike), -1, np.int64)
    for k in range(int(alike.max(initial=-1)) + 1):
        own = np.flatnonzero(alike == k)
        if not 2 <= len(own) < ENOUGH:
            continue
        for number in own.tolist():
            others = np.median(table[:, own[own != number]], axis=1)
            both = (table[:, number] > 0) & (others > 0)
            slower = int((table[both, number] > others[both]).sum())
            ratio[number] = table[both, number].sum() / max(float(others[both].sum()), 1.0)
            chance = at_least(slower, int(both.sum()), 0.5)
            found[number] = ratio[number] >= _SLOWED and len(own) * chance <= ALARMS
    return found


def _last(last: IntArray, channel: IntArray, n: int, ranks: int) -> tuple[IntArray, AnyArray]:
    """Who joins each communicator last most often, and how often."""
    found, share = np.full(n, -1, np.int64), np.zeros(n)
    if not len(last):
        return found, share
    value, inverse = with_inverse(channel * ranks + last)
    times = np.bincount(inverse)
    whole = np.bincount(channel, minlength=n)
    for pair, count in zip(value.tolist(), times.tolist(), strict=True):
        where = pair // ranks
        part = count / max(int(whole[where]), 1)
        if part > share[where]:
            found[where], share[where] = pair % ranks, part
    return found, share


def shared_by(matched: Matched, slow: IntArray, found: Links) -> list[int]:
    """Devices whose communicators are all slow: a slow link slows each of its rank's.

    Where communicators cross (one a machine, one a rail) that is the rank itself; where each rank
    is in one, all its members stand. A communicator that has none alike, such as that of all
    ranks, says nothing and is not counted. One that has a few (one of two machines) accuses nobody,
    but tells those apart that share a slow one.
    """
    bad = among(np.arange(len(matched.channels)), slow)
    sharing = _all_slow(matched, bad, found.judged)
    few = ~found.judged & (found.beside >= 0)
    apart = sharing & _all_slow(matched, found.beside == 1, few)
    return np.flatnonzero(apart if apart.any() else sharing).tolist()


def slowed_too(matched: Matched, devices: Sequence[int], found: Links) -> IntArray:
    """Communicators with few alike that are slow and belong to a rank whose link is."""
    return np.array(
        [
            number
            for number in np.flatnonzero(~found.judged & (found.beside == 1)).tolist()
            if any(device in devices for device, _ in matched.channels[number].members)
        ],
        np.int64,
    )


def _all_slow(matched: Matched, slow: BoolArray, counted: BoolArray) -> BoolArray:
    """Devices of whose communicators, of those that count, there are some, and all are slow."""
    whole = np.zeros(len(matched.ranks), np.int64)
    slowed = np.zeros(len(matched.ranks), np.int64)
    for number in np.flatnonzero(counted).tolist():
        members = [device for device, _ in matched.channels[number].members]
        whole[members] += 1
        slowed[members] += bool(slow[number])
    found: BoolArray = (slowed == whole) & (slowed > 0)
    return found
