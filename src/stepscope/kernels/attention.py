"""Attention written out: product, scale, mask, softmax, dropout, product; and fused instead."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stepscope.intervals.distinct import among
from stepscope.kernels.repair import Repair, scaled
from stepscope.kernels.view import FAMILY_NAMES, Kernels
from stepscope.trace.frame import BoolArray, IntArray

BETWEEN = 16
"""Elementwise kernels that may lie between the softmax and a product of its attention: scale, mask
(building it too), dropout and casts need some ten."""

FUSED_SHARE = 0.6
FUSED_LEAST = 0.25
FUSED_MOST = 1.0
"""What fused attention takes, as a share of the products that it replaces. It does the same
arithmetic, half of it under a causal mask. The separate products write and read the T x T scores:
with heads 64 to 128 wide that is 64 to 128 FLOP a byte, below the 150 to 300 that GPUs need to be
bound by arithmetic. So the products wait for memory, which the fused kernel does not touch."""

_LAYOUT_COPIES = 3  # of queries, keys and values
_LOG_SOFTMAX = re.compile(r"LogSoftMax|log_softmax")
_WARP_LOG = re.compile(r"softmax_warp_(?:forward|backward)<[^<>]*?,\s*(?:\(int\))?\d+,\s*"
                       r"(?:\(bool\))?(true|1|false|0)")  # fmt: skip
_BACKWARD = re.compile(r"backward|bwd|grad", re.IGNORECASE)
_LIGHT = ("elementwise", "copy", "dropout", "random", "index")


@dataclass(frozen=True)
class UnfusedAttention:
    """Written-out attention in the steady window.

    Attributes:
        repair: its kernels, and fused attention instead.
        softmaxes: number of softmax kernels in it, forward and backward.
        products_ns: time of its matrix products.
        rest_ns: time of everything between them.
    """

    repair: Repair
    softmaxes: int
    products_ns: int
    rest_ns: int


def unfused_attention(kernels: Kernels) -> UnfusedAttention | None:
    """Find softmax kernels between matrix products with nothing but light kernels between.

    A classifier's softmax is not followed by a product; a router's is followed by top-k and
    indexing; the loss's is a log-softmax.
    """
    ops = kernels.lane.ops
    on_device = ops.equals("kind", "memset") | ops.equals("copy_kind", "DtoD")
    takes_part = (kernels.lane.is_compute | on_device) & kernels.steady
    order = kernels.order[takes_part[kernels.order]]
    family = kernels.family[order]
    is_softmax = _is_softmax(kernels)[order]
    product = family == FAMILY_NAMES.index("matmul")
    light = among(family, [FAMILY_NAMES.index(f) for f in _LIGHT]) | on_device[order]
    backward = ops.matches("name", _BACKWARD)[order]
    at = np.flatnonzero(is_softmax)
    if not len(at):
        return None
    # position of the next kernel, in each direction, that is not light
    heavy = np.append(np.flatnonzero(~light), len(order))
    place = np.searchsorted(heavy, at)
    before, after = heavy[np.maximum(place - 1, 0)], heavy[np.minimum(place + 1, len(heavy) - 1)]
    ok = (place > 0) & (after < len(order)) & (at - before <= BETWEEN) & (after - at <= BETWEEN)
    ok &= product[np.minimum(before, len(order) - 1)] & product[np.minimum(after, len(order) - 1)]
    at, place = at[ok], place[ok]
    before, after = before[ok], after[ok]
    if len(at) < kernels.n_steady:
        return None
    chain = np.zeros(len(order) + 1, np.int64)
    first, last = before.copy(), after.copy()
    # the gradient has two products on either side
    second_before = heavy[np.maximum(place - 2, 0)]
    second_after = heavy[np.minimum(place + 2, len(heavy) - 1)]
    wide = backward[at]
    pair = wide & (place > 1) & product[second_before] & (before - second_before <= BETWEEN)
    first[pair] = second_before[pair]
    within = second_after < len(order)
    pair = wide & within & product[np.minimum(second_after, len(order) - 1)]
    pair &= second_after - after <= BETWEEN
    last[pair] = second_after[pair]
    first = _with_layout_copies(kernels, order, first)
    np.add.at(chain, first, 1)
    np.add.at(chain, last + 1, -1)
    inside = np.cumsum(chain[:-1]) > 0
    return _repair(kernels, np.sort(order[inside]), len(at))


def _repair(kernels: Kernels, rows: IntArray, softmaxes: int) -> UnfusedAttention:
    duration = kernels.duration_ns
    product = kernels.in_family("matmul")[rows]
    products = int(duration[rows[product]].sum())
    old = duration[rows]
    return UnfusedAttention(
        repair=Repair(
            rows=rows,
            old_ns=old,
            new_ns=np.where(product, scaled(old, FUSED_SHARE), 0),
            merged=~product,
            idle_ns=np.zeros(len(rows), np.int64),
            low_ns=int(FUSED_LEAST * products),
            high_ns=int(FUSED_MOST * products),
        ),
        softmaxes=softmaxes,
        products_ns=products,
        rest_ns=int(duration[rows[~product]].sum()),
    )


def _with_layout_copies(kernels: Kernels, order: IntArray, first: IntArray) -> IntArray:
    """Begin of each chain with the copies just before it that lay out its operands.

    Products in batches need contiguous operands, fused attention takes them as they are. Casts
    (of the weights of the next layer) and sets are not counted.
    """
    operation = np.array([c.operation == "direct_copy" for c in kernels.classes] + [False])
    ops = kernels.lane.ops
    lays_out = operation[ops["name"][order]] & kernels.in_family("copy")[order]
    cleared = ops.equals("kind", "memset")[order]
    begin = first
    for _ in range(_LAYOUT_COPIES):
        before = np.maximum(begin - 1, 0)
        before = np.where(cleared[before], np.maximum(before - 1, 0), before)
        begin = np.where(lays_out[before], before, begin)
    return begin


def _is_softmax(kernels: Kernels) -> BoolArray:
    """Softmax kernels that are no log-softmax."""
    return kernels.in_family("softmax") & ~kernels.lane.ops.that("name", _is_log)


def _is_log(name: str) -> bool:
    warp = _WARP_LOG.search(name)
    if warp:
        return warp.group(1) in ("true", "1")
    return bool(_LOG_SOFTMAX.search(name))
