"""Ranks that the job waits for: who, where they stand, why, and what their repair gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from stepscope.collectives.exposure import Parts
from stepscope.collectives.late import Mechanism, own_time, why_late
from stepscope.intervals.distinct import among
from stepscope.jobs.digest import Digest
from stepscope.jobs.digest_parts import Times
from stepscope.jobs.job_outliers import (
    ENOUGH,
    Scores,
    bound,
    clearest,
    degrees_of,
    deviates,
    scores,
    spread_of,
    step_without,
)
from stepscope.jobs.job_result import Reason
from stepscope.jobs.job_sometimes import beyond_chance, late_steps
from stepscope.jobs.topology import Place
from stepscope.trace.frame import AnyArray, IntArray

WORTH: Final = 0.01
"""A repair that gains less than this share of the step gains nothing that could be measured."""

NOTABLE: Final = 0.03
"""A rank that needs so much of the step beyond its peers is told even where chance hides it: in
many ranks some other one is as late in most steps. GPUs of one product differ by less."""

_MOST_OF_IT: Final = 0.75
"""A place of which so many ranks are among the latest is late itself."""

_UPPER: Final = 95

_NO_REASON: Final = frozenset({"unexplained", "profiler_overhead"})


@dataclass(frozen=True)
class Late:
    """Ranks that are late together, for one reason.

    Attributes:
        devices: positions of the ranks.
        place: the node, switch or rail that they make up; None where they make up none.
        score: largest score among them, or that of the place.
        bound: what it had to exceed.
        mechanism: as in ``collectives.late``.
        idle_cause: with ``idle``, what the surplus of idle time is charged to.
        surplus_ns: what they spend beyond their peers, by part, ns a step.
        more_work: largest ratio of what was launched on them and on their peers.
        more_time: ratio of their compute time.
        excess_ns: what they need beyond their peers in most steps: the most of single ranks, the
            median of those of a place, ns.
        gain_ns: how much shorter a step is with them like their peers, and those before them in
            the list too, ns.
        gain_bounds_ns: lower and upper bound of that.
        steps: positions of the shared steps in which they are late, where these are few; else none.
        part_ns: of what they spend beyond their peers, what the reason explains, ns a step; all of
            it where several reasons mix.
    """

    devices: list[int]
    place: Place | None
    score: float
    bound: float
    mechanism: Mechanism
    idle_cause: str | None
    surplus_ns: dict[str, float]
    more_work: float
    more_time: float
    excess_ns: float = 0.0
    gain_ns: float = 0.0
    gain_bounds_ns: tuple[float, float] = (0.0, 0.0)
    steps: tuple[int, ...] = ()
    part_ns: float = float("inf")

    @property
    def reason(self) -> Reason:
        """Why they are late, in one word."""
        if self.mechanism == "idle":
            return "late_input" if self.idle_cause == "input_starvation" else "slow_host"
        names: dict[str, Reason] = {
            "rate": "slow_gpu",
            "work": "extra_work",
            "copy": "slow_copies",
        }
        return names.get(self.mechanism, "mixed")


@dataclass(frozen=True)
class Needs:
    """What the ranks need on their own account.

    Attributes:
        device: what each device did but wait, steps x ranks, ns: it was seen.
        whole: the same with hosts that need longer, by the least that they need, ns.
        excess: what each device needs beyond the median of its peers in most steps, ns.
        error: how well steps that vary let one know that, ns.
        scored: the ranks against their peers.
        comparisons: how many ranks, places and communicators are looked at.
    """

    device: AnyArray
    whole: AnyArray
    excess: AnyArray
    error: float
    scored: Scores
    comparisons: int


def needs_of(times: Times, role: IntArray, places: Sequence[Place], more: int) -> Needs:
    """What the ranks need, and how unlike their peers they are.

    Args:
        times: where their time goes.
        role: number of the peers of each.
        places: nodes, switches and rails.
        more: further comparisons, of communicators.
    """
    nothing = [replace(pace, need_ns=0.0, least_ns=0.0) for pace in times.paces]
    # how much of a transfer nothing covers depends on who was late before it: what is usual counts
    transfer = times.parts.transfer + times.parts.unmatched
    usual = np.zeros_like(transfer)
    for k in range(int(role.max(initial=-1)) + 1):
        own = role == k
        usual[:, own] = np.median(transfer[:, own], axis=1, keepdims=True)
    device = own_time(times.parts, nothing) - transfer + usual
    hosts = np.array([pace.least_ns for pace in times.paces])
    whole = np.maximum(device, hosts[None, :])
    measures = [scores(device, role), scores(times.parts.compute, role)]
    measures += [
        scores(time, role) for cause, time in times.parts.idle.items() if cause not in _NO_REASON
    ]
    comparisons = (len(role) + len(places) + more) * len(measures)
    notable = NOTABLE * _step(times)
    measures += [deviates(device, role, notable), deviates(times.parts.compute, role, notable)]
    return Needs(
        device,
        whole,
        measures[0].excess,
        measures[0].error,
        clearest(measures, comparisons),
        comparisons,
    )


def late_ranks(
    digests: Sequence[Digest], times: Times, role: IntArray, needs: Needs, places: Sequence[Place]
) -> list[Late]:
    """The ranks beyond the bound, in groups of one place and reason, the largest excess first.

    Each group's gain is what its repair adds to that of the groups before it: two slow ranks hide
    each other.
    """
    limits = needs.scored.bounds(needs.comparisons)
    alone = np.flatnonzero(needs.scored.beyond(needs.comparisons))
    taken = np.zeros(len(digests), bool)
    found: list[Late] = []
    for place, score, limit in _slow_places(role, needs, places):
        if not taken[place.devices].any():
            taken[place.devices] = True
            found.append(_late(times, role, place.devices, place, score, limit))
    for device in alone[~taken[alone]].tolist():
        score, limit = float(needs.scored.score[device]), float(limits[device])
        found.append(_late(times, role, [device], None, score, limit))
    found.sort(key=lambda late: -max(float(needs.scored.excess[d]) for d in late.devices))
    found = _same_reason(found)
    known = [device for late in found for device in late.devices]
    now_and_then = late_steps(needs.device, role, known, NOTABLE * _step(times))
    for device in beyond_chance(now_and_then, len(role) - len(known)):
        unknown = float("nan")
        steps = now_and_then[device]
        found.append(_late(times, role, [device], None, unknown, unknown, steps=steps))
    return _with_gains(found, needs, role)


def _step(times: Times) -> float:
    return float(times.parts.wall.max(axis=1).mean())


def _slow_places(
    role: IntArray, needs: Needs, places: Sequence[Place]
) -> list[tuple[Place, float, float]]:
    """Places whose ranks are late together, with score and bound, the clearest first.

    The ranks of a place are compared with all others like them: what they need says nothing about
    how far ranks lie apart that stand elsewhere.
    """
    found = []
    limits: dict[int, float] = {}
    for place in places:
        own = np.array(place.devices)
        others = among(role, role[own])
        others[own] = False
        if not 2 <= len(own) <= len(role) // 2 or others.sum() < ENOUGH:
            continue
        theirs = needs.excess[others]
        count = len(theirs)
        spread = max(spread_of(theirs), needs.error)
        apart = float(np.median(needs.excess[own]) - np.median(theirs))
        limit = limits.setdefault(count, bound(round(degrees_of(count)), needs.comparisons))
        late = needs.excess[own] > np.percentile(theirs, _UPPER)
        # a single rank makes no place late: of few ranks, one moves the median
        without = np.sort(needs.excess[own])[:-1]
        least = float(np.median(without) - np.median(theirs))
        if spread > 0 and least > limit * spread and late.mean() >= _MOST_OF_IT:
            found.append((place, apart / spread, limit))
    return sorted(found, key=lambda one: -one[1])


def _same_reason(found: list[Late]) -> list[Late]:
    """Single ranks that are late for the same reason become one entry; places stay apart."""
    joined: list[Late] = []
    for late in found:
        same = next(
            (
                at
                for at, other in enumerate(joined)
                if late.place is None
                and other.place is None
                and (other.mechanism, other.idle_cause) == (late.mechanism, late.idle_cause)
            ),
            None,
        )
        if same is None:
            joined.append(late)
            continue
        other = joined[same]
        joined[same] = replace(
            other,
            devices=sorted({*other.devices, *late.devices}),
            part_ns=max(other.part_ns, late.part_ns),
        )
    return joined


def _with_gains(found: list[Late], needs: Needs, role: IntArray) -> list[Late]:
    repaired: list[int] = []
    before = step_without(needs.whole, role, np.empty(0, np.int64))
    answer = []
    for late in found:
        repaired += late.devices
        after = step_without(needs.whole, role, np.array(sorted(set(repaired))))
        gains = before - after
        error = float(gains.std()) / max(np.sqrt(len(gains)), 1.0)
        mean = float(gains.mean())
        answer.append(
            replace(
                late,
                excess_ns=_excess(late, needs),
                gain_ns=mean,
                gain_bounds_ns=(max(mean - 2 * error, 0.0), mean + 2 * error),
            )
        )
        before = after
    return answer


def _excess(late: Late, needs: Needs) -> float:
    if late.steps:  # the median over the steps knows nothing of it
        apart = needs.device - np.median(needs.device, axis=1, keepdims=True)
        return float(apart[list(late.steps)][:, late.devices].sum() / len(apart))
    if late.place is not None:
        return float(np.median(needs.excess[late.devices]))
    return float(needs.scored.excess[late.devices].max())


def _late(
    times: Times,
    role: IntArray,
    devices: list[int],
    place: Place | None,
    score: float,
    limit: float,
    *,
    steps: tuple[int, ...] = (),
) -> Late:
    """Why some ranks are late: compared with their peers, in some steps or in all."""
    which = role[devices[0]]
    columns = np.flatnonzero(role == which)
    late = np.zeros((len(times.parts), len(columns)), bool)
    there = among(np.arange(len(late)), steps) if steps else np.ones(len(late), bool)
    late[np.ix_(there, among(columns, devices))] = True
    parts = some_ranks(times.parts, columns)
    work = replace(
        times.work, kernels=times.work.kernels[:, columns], threads=times.work.threads[:, columns]
    )
    paces = [times.paces[d] for d in columns.tolist()]
    who = late.any(axis=0)
    own = own_time(parts, [replace(p, need_ns=0.0) for p in paces])[late.any(axis=1)]
    own = np.median(own, axis=0) * len(own) / len(late)
    imposed = float(own[who].mean() - np.median(own[~who])) if (~who).any() else 0.0
    surplus, why = why_late(parts, work, paces, late, imposed)
    return Late(
        devices, place, score, limit, why[0], why[1], surplus, why[2], why[3],
        steps=steps, part_ns=_explained(why[0], why[1], surplus),
    )  # fmt: skip


def _explained(mechanism: Mechanism, idle_cause: str | None, surplus: dict[str, float]) -> float:
    """What a reason explains of the surplus, ns a step."""
    if mechanism == "mixed":
        return float("inf")
    launching = ("idle launch_bound", "idle small_kernels")
    parts = {
        "rate": ("compute",),
        "work": ("compute", *launching),
        "copy": ("copy", "memset"),
    }.get(mechanism, (f"idle {idle_cause}",))
    return max(surplus.get(part, 0.0) for part in parts)


def some_ranks(parts: Parts, columns: IntArray) -> Parts:
    """The times of some ranks."""
    names = (
        *("wall", "compute", "waiting", "transfer", "missing", "unmatched"),
        *("copy", "memset", "alone", "blocking", "bubble"),
    )
    some: dict[str, Any] = {name: getattr(parts, name)[:, columns] for name in names}
    return replace(parts, idle={c: time[:, columns] for c, time in parts.idle.items()}, **some)


def comparable(role: IntArray) -> bool:
    """Whether there are peers enough for statistics."""
    return bool(len(role)) and int(np.bincount(role).max()) >= ENOUGH
