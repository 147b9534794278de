"""Sums of gradients that a step makes more than once, and what comes when all gradients are there.

``DistributedDataParallel`` sums gradients over the ranks in every backward pass. Where a step has
several of them before its update, the sums of the last one would do: the others belong under
``no_sync()``, which has to hold the forward pass as well.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.intervals.distinct import among, distinct_values, with_counts, with_inverse
from stepscope.kernels.categories import PRODUCTS
from stepscope.kernels.kernels import PHASES, Kernels
from stepscope.trace.frame import AnyArray, IntArray

_SUM: Final = re.compile("AllReduce", re.IGNORECASE)
_GATHER: Final = re.compile("AllGather", re.IGNORECASE)
_SCATTERED_SUM: Final = re.compile("ReduceScatter", re.IGNORECASE)
_TAKEN_APART: Final = re.compile("split_with_sizes_copy")
_OFTEN: Final = 3
"""Gathers for each sum of gradients into shards: one forward, one backward, and further ones."""
_SMALL: Final = 0.02
"""Sums that take this part of a step's longest one are of a loss or a norm, not of gradients."""
_SAME_BYTES: Final = 0.02
"""What two halves of a step's sums may differ by, as a share: a loss or a norm is summed, too."""
_ALIKE: Final = 0.2
"""What the passes of a step may differ by in kernels, forward, and in sums, as a share."""


def repeated_sums(kernels: Kernels) -> IntArray:
    """Rows of ``GPU.ops`` of the sums of gradients of all backward passes of a step but the last.

    Passes are told by the forward work between their sums. They are those of one batch in pieces:
    the same in each step, with as many sums and forward kernels each, and no update between.

    Args:
        kernels: the device's kernels.

    Returns:
        Ascending; empty where gradients are summed once.
    """
    none = np.zeros(0, np.int64)
    order = kernels.order[kernels.steady[kernels.order] & kernels.gpu.is_kernel[kernels.order]]
    step, spent = kernels.step[order], kernels.duration_ns[order]
    is_sum = (kernels.gpu.is_communication & kernels.gpu.ops.matches("name", _SUM))[order]
    longest = np.zeros(int(step.max(initial=-1)) + 1, np.int64)
    np.maximum.at(longest, step[is_sum], spent[is_sum])
    is_sum &= spent >= _SMALL * longest[step]
    phase = kernels.phase[order]
    heavy = kernels.in_category(*PRODUCTS)[order]
    forward = heavy & (phase == PHASES.index("forward"))
    update = phase == PHASES.index("optimizer")
    sums = np.flatnonzero(is_sum)
    if not len(sums):
        return none
    # a pass begins with the first sum behind forward work
    worked = np.concatenate(([0], np.cumsum(forward)))
    updated = np.concatenate(([0], np.cumsum(update)))
    begins = np.ones(len(sums), bool)
    begins[1:] = (np.diff(worked[sums]) > 0) | (np.diff(step[sums]) > 0)
    number = np.cumsum(begins) - 1
    first = sums[begins]
    passes = with_counts(step[first])[1]
    count = int(np.median(passes))
    # what is left of the step before the window comes first in it
    left = np.repeat(np.cumsum(passes), passes) - np.arange(len(first))
    whole = (left <= count) & np.repeat(passes >= count, passes)
    if count < 2 or (passes == count).sum() < max(kernels.n_steady - 1, 2):
        return none
    sent, ahead, updates = (
        one[whole].reshape(-1, count)
        for one in (
            np.bincount(number),
            np.diff(worked[first], prepend=0),
            np.diff(updated[first], prepend=0),
        )
    )
    # the window may begin amid a forward pass
    usual = np.median(ahead, axis=0)[None]
    if max(_spread(sent), _spread(usual)) > _ALIKE or updates[:, 1:].any():
        return none
    again = np.zeros(len(first), bool)
    again[np.flatnonzero(whole).reshape(-1, count)[:, :-1]] = True
    found: IntArray = np.sort(order[sums[again[number]]])
    return found


def summed_again(kernels: Kernels, sent_bytes: IntArray) -> IntArray:
    """Rows of ``GPU.ops`` of sums behind a step's products of as much as it summed before them.

    ``DistributedDataParallel`` has summed the gradients when the backward pass ends; whoever sums
    them once more, or the weights that they made, sends as many bytes again.

    Args:
        kernels: the device's kernels.
        sent_bytes: what each row sends; at most 0 where that is not known.

    Returns:
        Ascending; empty where a step's sums do not fall into two such halves, or their sizes are
        not known.
    """
    none = np.zeros(0, np.int64)
    order = kernels.order[kernels.steady[kernels.order] & kernels.gpu.is_kernel[kernels.order]]
    is_sum = (kernels.gpu.is_communication & kernels.gpu.ops.matches("name", _SUM))[order]
    sums = np.flatnonzero(is_sum)
    sent, step = sent_bytes[order[sums]].astype(np.float64), kernels.step[order[sums]]
    if not len(sums) or (sent <= 0).any():
        return none
    total = np.bincount(step, sent)[step]
    before = np.cumsum(sent) - sent
    before -= before[np.searchsorted(step, step)]  # of the same step
    later = before >= (1 - _SAME_BYTES) * total / 2
    part = np.bincount(step[later], sent[later], len(np.bincount(step)))[step]
    worked = np.cumsum(kernels.in_category(*PRODUCTS)[order])[sums]
    last = np.zeros(len(np.bincount(step)), np.int64)
    np.maximum.at(last, step, worked)
    halves = abs(part / total - 0.5) <= _SAME_BYTES / 2
    behind = ~later | (worked == last[step])
    if not (halves & behind).all():
        return none
    found: IntArray = np.sort(order[sums[later]])
    return found


def gathered_again(kernels: Kernels) -> IntArray:
    """Rows of ``GPU.ops`` of gathers of weights that a step has gathered before, and their copies.

    A sharded step gathers the weights of each layer before its forward pass, mostly once more
    before its backward pass, and sums its gradients into the shards. Where it does so once, but
    gathers three times or more, it computes several micro-batches, and those weights could stay.

    A gather's copies are those on streams of their own that put shards together ahead of it, and
    the one that takes the weights apart behind it.

    Args:
        kernels: the device's kernels.

    Returns:
        Ascending; empty where weights are not gathered so often.
    """
    none = np.zeros(0, np.int64)
    moved = kernels.gpu.is_communication & kernels.steady
    gathers, sums = (
        kernels.order[(moved & kernels.gpu.ops.matches("name", name))[kernels.order]]
        for name in (_GATHER, _SCATTERED_SUM)
    )
    products = kernels.in_category(*PRODUCTS) & kernels.steady
    if not (len(gathers) and len(sums) and products.any()):
        return none
    steps = int(kernels.step[gathers].max()) + 1
    given, summed = (
        np.bincount(kernels.step[rows], minlength=steps)[:steps] for rows in (gathers, sums)
    )
    layers = int(np.median(summed[given > 0]))
    if layers < 1 or np.median(given[given > 0]) < _OFTEN * layers:
        return none
    step = kernels.step[gathers]
    again = np.arange(len(gathers)) - np.searchsorted(step, step) >= layers
    place = np.zeros(len(kernels.gpu.ops), np.int64)
    place[kernels.order] = np.arange(len(kernels.order))
    stream = kernels.gpu.ops["stream"]
    streams, code = with_inverse(stream[products])
    main = streams[np.bincount(code, kernels.duration_ns[products]).argmax()]
    compute = kernels.gpu.is_compute & kernels.steady
    scattering = among(stream, distinct_values(stream[sums]).tolist())
    ahead = np.flatnonzero(compute & (stream != main) & ~scattering)
    behind = np.flatnonzero(compute & kernels.gpu.ops.matches("name", _TAKEN_APART))
    next_ = np.searchsorted(place[gathers], place[ahead])
    before = np.searchsorted(place[gathers], place[behind]) - 1
    found: IntArray = np.sort(
        np.concatenate(
            (
                gathers[again],
                ahead[(next_ < len(again)) & again[np.minimum(next_, len(again) - 1)]],
                behind[(before >= 0) & again[np.maximum(before, 0)]],
            )
        )
    )
    return found


def behind_backward_ns(kernels: Kernels) -> float:
    """What computes behind the last backward pass of each step, ns per step: mostly updates.

    Args:
        kernels: the device's kernels.

    Returns:
        0 where no backward pass is told from the rest.
    """
    order = kernels.order[(kernels.steady & kernels.gpu.is_compute)[kernels.order]]
    step = kernels.step[order]
    backward = np.flatnonzero(kernels.phase[order] == PHASES.index("backward"))
    last = np.full(int(step.max(initial=-1)) + 1, len(order), np.int64)
    last[step[backward]] = backward  # the last that is assigned counts
    behind = np.arange(len(order)) > last[step]
    return float(kernels.duration_ns[order[behind]].sum()) / max(kernels.n_steady, 1)


def _spread(values: AnyArray) -> float:
    """How far values of a row differ at most, as a share of their mean."""
    mean = np.maximum(values.mean(axis=1), 1.0)
    return float((np.ptp(values, axis=1) / mean).max(initial=0.0))
