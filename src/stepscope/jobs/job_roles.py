"""Which ranks do the same work, so that comparing them means something.

Stages of a pipeline, ranks with experts and ranks without, GPUs of two products: these differ by
right. Ranks are alike where their GPUs are of one product and they launch the same kernels as
often. A rank that stands alone beside many (a straggler that was given more work changes what it
launches) is compared with those it is nearest to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stepscope.intervals.distinct import with_inverse
from stepscope.jobs.digest import Digest
from stepscope.trace.frame import AnyArray, IntArray

_ALIKE: Final = 0.05
"""Launch counts that differ by less (the sum of differences over the sum) are of one role: edges of
the capture. Lengths that vary change the launches' size, not their number."""

_NEAR: Final = 0.6
"""A few ranks whose counts differ by less from a large role are exceptions of that role."""

_EXCEPTION: Final = 8
"""A role is at least so many times as large as its exceptions."""


def roles(digests: Sequence[Digest]) -> IntArray:
    """Number of the role of each rank; larger roles have smaller numbers."""
    counts = _launches(digests)
    products: dict[str, int] = {}
    product = np.array(
        [products.setdefault(d.facts["device_name"] or "", len(products)) for d in digests]
    )
    role = np.full(len(digests), -1, np.int64)
    made = 0
    while (left := np.flatnonzero(role < 0)).size:
        leader = left[0]
        same = left[product[left] == product[leader]]
        near = same[_distance(counts[same], counts[leader]) <= _ALIKE]
        role[near if len(near) else left[:1]] = made
        made += 1
    role = _exceptions_joined(role, counts, product)
    _, inverse = with_inverse(role)
    order = np.argsort(-np.bincount(inverse), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    found: IntArray = place[inverse]
    return found


def _launches(digests: Sequence[Digest]) -> AnyArray:
    """Launches a step of each kernel, by name: ranks x kernels."""
    column: dict[str, int] = {}
    rows: list[tuple[int, int, float]] = []
    for number, digest in enumerate(digests):
        steps = max(digest.facts["steady_steps"] or 1, 1)
        for name, count in zip(
            digest.texts("kernels", "name"), digest.ints("kernels", "count").tolist(), strict=True
        ):
            rows.append((number, column.setdefault(name, len(column)), count / steps))
    found = np.zeros((len(digests), max(len(column), 1)))
    if rows:
        row, place, value = (np.array(part) for part in zip(*rows, strict=True))
        np.add.at(found, (row, place), value)
    return found


def _distance(counts: AnyArray, one: AnyArray) -> AnyArray:
    """Sum of the differences over the sum: 0 for equal counts, 1 for nothing in common."""
    whole = counts.sum(axis=1) + one.sum()
    apart: AnyArray = np.abs(counts - one).sum(axis=1) / np.maximum(whole, 1e-9)
    return apart


def _exceptions_joined(role: IntArray, counts: AnyArray, product: IntArray) -> IntArray:
    """Roles in which few ranks stand beside a large one that is near become part of that."""
    found = role.copy()
    size = np.bincount(role)
    large = [k for k in np.argsort(-size, kind="stable").tolist() if size[k] >= _EXCEPTION]
    middles = {k: np.median(counts[role == k], axis=0) for k in large}
    for k in np.flatnonzero(size).tolist():
        own = np.flatnonzero(role == k)
        best, nearest = _NEAR, -1
        for other in large:
            if other == k or size[other] < _EXCEPTION * size[k]:
                continue
            if product[np.flatnonzero(role == other)[0]] != product[own[0]]:
                continue
            apart = float(_distance(counts[own[:1]], middles[other])[0])
            if apart < best:
                best, nearest = apart, other
        if nearest >= 0:
            found[own] = nearest
    return found


def kernel_rates(digests: Sequence[Digest], role: IntArray) -> AnyArray:
    """How long each rank's kernels take against those of its role: the median over kernels.

    Kernels are weighed by their time: what takes most says most. 1 where nothing is known.
    """
    rate = np.ones(len(digests))
    for k in range(int(role.max(initial=-1)) + 1):
        own = np.flatnonzero(role == k)
        keys = [digests[d].ints("kernels", "key") for d in own.tolist()]
        medians = [digests[d].floats("kernels", "median_ns") for d in own.tolist()]
        weights = [digests[d].floats("kernels", "total_ns") for d in own.tolist()]
        if not len(own) or not sum(map(len, keys)):
            continue
        _, code = with_inverse(np.concatenate(keys))
        rank = np.repeat(np.arange(len(own)), [len(key) for key in keys])
        value, weight = np.concatenate(medians), np.concatenate(weights)
        order = np.lexsort((value, code))
        begins = np.searchsorted(code[order], np.arange(int(code.max()) + 1))
        ends = np.append(begins[1:], len(code))
        middle = value[order][(begins + ends - 1) // 2]
        ratio = value / np.maximum(middle[code], 1)
        order = np.lexsort((ratio, rank))
        for place in range(len(own)):
            low, high = np.searchsorted(rank[order], (place, place + 1))
            rows = order[low:high]
            if len(rows):
                half = np.cumsum(weight[rows])
                rate[own[place]] = ratio[rows[np.searchsorted(half, half[-1] / 2)]]
    return rate
