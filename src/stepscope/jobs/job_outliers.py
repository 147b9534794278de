"""Ranks, machines, switches and communicators that are unlike their peers, by robust statistics.

What a rank needs for a step beyond the median of its peers in the same step is what it adds to the
job: what all ranks share in a step (a longer sequence, a slow file system) is no difference. The
median over the steps is compared with how far the peers lie apart. That spread is the median
absolute deviation, which half of the ranks cannot change; no less than what steps that vary, those
of the rank among them, let one expect; and no less than what the upper twentieth of many peers
shows, for a population with a long tail has no outlier in that tail.

So many are looked at that some would exceed any usual bound by chance. The bound is the quantile of
Student's t for a false alarm in one of a hundred jobs, divided by the number of comparisons
(Bonferroni). Its degrees of freedom are those of the median absolute deviation, which tells as much
as a standard deviation of 37 in 100 values (Rousseeuw and Croux, 1993).

Of few peers that is little: of eight, one that lies ten standard deviations away is within the
bound. So among fewer than forty those that need most are also tried against the rest, without
themselves (generalised extreme studentized deviates, Rosner 1983), which knows nothing of long
tails: it counts only for ranks that are later than GPUs of one product differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.trace.frame import AnyArray, BoolArray, IntArray
from stepscope.trace.quantiles import quantile

ENOUGH: Final = 8
"""Peers from which on a spread says something. Fewer ranks are compared as full captures are."""

ALARMS: Final = 0.01
"""A job in so many may have a false alarm."""

_EFFICIENCY: Final = 0.37
_NORMAL: Final = 1.4826
_OF_MEDIAN: Final = 1.2533
_UPPER: Final = 95
_UPPER_NORMAL: Final = 1.6449
_MANY: Final = 40


@dataclass(frozen=True)
class Scores:
    """How far values lie from those of their peers.

    Attributes:
        excess: beyond the median of the peers, in the unit of the values.
        score: the same in robust standard deviations; NaN where peers are too few.
        degrees: degrees of freedom of each score.
        error: standard error of a typical value, in the unit of the values.
    """

    excess: AnyArray
    score: AnyArray
    degrees: AnyArray
    error: float = 0.0

    def beyond(self, comparisons: int) -> BoolArray:
        """Which exceed the bound for so many comparisons."""
        found: BoolArray = np.nan_to_num(self.score, nan=-np.inf) > self.bounds(comparisons)
        return found

    def bounds(self, comparisons: int) -> AnyArray:
        """The bound of each score."""
        limit = {d: bound(d, comparisons) for d in set(self.degrees.tolist())}
        found: AnyArray = np.array([limit[d] for d in self.degrees.tolist()])
        return found


def bound(degrees: float, comparisons: int) -> float:
    """The score from which on a value counts, for so many comparisons."""
    return quantile(1 - ALARMS / max(comparisons, 1), degrees) if degrees else np.inf


def scores(values: AnyArray, role: IntArray) -> Scores:
    """Compare ranks with their peers.

    Args:
        values: one a step and rank.
        role: the peers of each rank: those of the same number.
    """
    n = values.shape[1]
    excess, score, degrees = np.zeros(n), np.full(n, np.nan), np.zeros(n)
    typical = 0.0
    for k in range(int(role.max(initial=-1)) + 1):
        own = np.flatnonzero(role == k)
        if not len(own):
            continue
        apart = values[:, own] - np.median(values[:, own], axis=1, keepdims=True)
        middle = np.median(apart, axis=0)
        excess[own] = middle
        if len(own) < ENOUGH:
            continue
        within = _NORMAL * np.median(np.abs(apart - middle), axis=0)
        error = _OF_MEDIAN * within / np.sqrt(len(values))
        typical = max(typical, float(np.median(error)))
        between = max(spread_of(middle), float(np.median(error)))
        variance = between**2 + error**2
        spread = np.sqrt(variance)
        score[own] = np.where(spread > 0, middle - np.median(middle), 0) / np.maximum(spread, 1e-9)
        # Welch and Satterthwaite: a rank whose own steps vary is known by these few steps only
        few, many = degrees_of(len(values)), degrees_of(len(own))
        parts = between**4 / many + error**4 / few
        degrees[own] = np.maximum(np.round(variance**2 / np.maximum(parts, 1e-9), 0), 1.0)
    return Scores(excess, score, degrees, typical)


def deviates(values: AnyArray, role: IntArray, least: float) -> Scores:
    """Compare the ranks that need most with those of their few peers that need less.

    Where several are late, they would hide each other: the most of them are left out together that
    stand out most clearly, but always the minority.

    Args:
        values: one a step and rank.
        role: the peers of each rank: those of the same number.
        least: what a rank must need beyond the median of its peers to be tried.
    """
    n = values.shape[1]
    excess, score, degrees = np.zeros(n), np.full(n, np.nan), np.zeros(n)
    for k in range(int(role.max(initial=-1)) + 1):
        own = np.flatnonzero(role == k)
        if not ENOUGH <= len(own) < _MANY:
            continue
        apart = values[:, own] - np.median(values[:, own], axis=1, keepdims=True)
        middle = np.median(apart, axis=0)
        excess[own] = middle
        order = np.argsort(-middle, kind="stable")
        tried = order[: (len(own) - 1) // 2]
        tried = tried[middle[tried] - np.median(middle) >= least]
        within = _NORMAL * np.median(np.abs(apart - middle), axis=0)
        errors = _OF_MEDIAN * within / np.sqrt(len(values))
        few, error = degrees_of(len(values)), float(np.median(errors))
        clearest = 0.0
        for place in reversed(range(len(tried))):
            rest = middle[order[place + 1 :]]
            between = max(float(rest.std(ddof=1)), error)
            of_rest = between**2 * (1 + 1 / len(rest))
            variance = of_rest + errors[tried[place]] ** 2
            if not variance:
                continue
            one = float((middle[tried[place]] - rest.mean()) / np.sqrt(variance))
            parts = of_rest**2 / (len(rest) - 1) + errors[tried[place]] ** 4 / few
            known = max(round(variance**2 / max(parts, 1e-9)), 1)
            if (clear := one / bound(known, len(own))) < clearest:
                # those beyond one that stands out stand out as well
                one, known = score[own[tried[place + 1]]], int(degrees[own[tried[place + 1]]])
            else:
                clearest = clear
            score[own[tried[place]]], degrees[own[tried[place]]] = one, known
    return Scores(excess, score, degrees)


def degrees_of(count: int) -> float:
    """Degrees of freedom of a median absolute deviation of so many values."""
    return max(_EFFICIENCY * (count - 1), 1.0)


def spread_of(values: AnyArray) -> float:
    """Robust standard deviation of some values; of many, no less than their upper tail shows."""
    centre = float(np.median(values))
    found = _NORMAL * float(np.median(np.abs(values - centre)))
    if len(values) >= _MANY:
        found = max(found, (float(np.percentile(values, _UPPER)) - centre) / _UPPER_NORMAL)
    return found


def clearest(measures: Sequence[Scores], comparisons: int) -> Scores:
    """Of several measures the one that shows each value most clearly beyond its bound.

    What hosts leave idle varies far more than what kernels take, and for one cause more than for
    another: a slow GPU, or a late batch, that the sum of all hides is plain by itself.
    """
    ratio = np.stack(
        [
            np.where(one.degrees > 0, one.score, -np.inf)
            / np.where(one.degrees > 0, one.bounds(comparisons), 1.0)
            for one in measures
        ]
    )
    best = np.argmax(ratio, axis=0)
    rows = np.arange(ratio.shape[1])

    def of(name: str) -> AnyArray:
        found: AnyArray = np.stack([getattr(one, name) for one in measures])[best, rows]
        return found

    return Scores(of("excess"), of("score"), of("degrees"))


def step_without(need: AnyArray, role: IntArray, late: IntArray) -> AnyArray:
    """Length of each step with some ranks like the median of their peers in it, ns.

    Ranks of a synchronous job wait for the one that needs most, so that is what a step takes. The
    waits of the others follow.

    Args:
        need: what each rank needs for each step on its own account, steps x ranks.
        role: the peers of each rank.
        late: the ranks that become like their peers.
    """
    if not len(late):
        whole: AnyArray = need.max(axis=1)
        return whole
    changed = need.copy()
    repaired = np.zeros(need.shape[1], bool)
    repaired[late] = True
    for k in set(role[late].tolist()):
        own = role == k
        others = own & ~repaired if (own & ~repaired).any() else own
        usual = np.median(need[:, others], axis=1)
        mine = np.flatnonzero(own & repaired)
        changed[:, mine] = np.minimum(need[:, mine], usual[:, None])
    found: AnyArray = changed.max(axis=1)
    return found
