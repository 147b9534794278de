"""Attention that is written out, and what it takes fused.

GEMM, scale, mask, softmax, dropout and GEMM are kernels of their own: softmax kernels
between GEMMs tell. Fused attention does the arithmetic of the GEMMs (and the scores once more
in the backward pass) without a matrix of scores in memory.

Where operators have shapes, its time is that arithmetic at the rate that fused attention reaches
for such heads and lengths. Else it is a share of the GEMMs' time.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.intervals.distinct import among
from stepscope.kernels.kernels import CATEGORY_NAMES, MATH_NAMES, PHASES, Kernels, Repair, scaled
from stepscope.trace.frame import BoolArray, IntArray

FloatArray = npt.NDArray[np.float64]

BETWEEN = 16
"""Elementwise kernels that may lie between the softmax and a GEMM of its attention: scale, mask
(building it too), dropout and casts need some ten."""

FUSED_SHARE = 0.6
UNMASKED_SHARE = 0.85
FUSED_LEAST = 0.35
FUSED_MOST = 1.0
"""What fused attention takes where shapes are not known, as a share of the GEMMs that it
replaces: under a mask (which is taken for a causal one: half of the arithmetic), without, at least
and at most. The separate GEMMs write and read the T x T scores: with heads 64 to 128 wide that
is 64 to 128 FLOP a byte, below the 150 to 300 that GPUs need to be bound by arithmetic. So the
GEMMs wait for memory, which the fused kernel does not touch."""

SINGLE_SHARE = 1.05
SINGLE_MOST = 1.5
"""The same where the GEMMs are not in half precision: the kernels that fuse single precision
(CUTLASS, without TF32) reach 50 TFLOP/s forward and 45 backward on an H200, what cuBLAS reaches in
GEMMs of it."""

WIDE_HEAD = 128
RATE_NARROW = 0.40
RATE_WIDE = 0.62
"""Share of the peak in half precision that fused attention reaches in the forward pass of long
sequences, with heads up to 64 and from 128 wide: cuDNN on an H100 reaches 413 and 600 of 989
TFLOP/s (Shah et al., FlashAttention-3, 2024), FlashAttention-2 on an A100 as much of its peak
(Dao, 2023)."""
HALF_RATE_AT = 110
HALF_RATE_AT_CAUSAL = 365
"""Length at which it reaches half of that; under a causal mask blocks are uneven. The same
measurements: 335, 373, 395, 408 TFLOP/s at 512, 1k, 2k, 4k; causal 225, 288, 334, 363."""
BACKWARD_RATE = 0.72
"""Rate of the backward pass over that of the forward pass: 157 of 216 TFLOP/s for cuDNN with heads
of 64 and 512 positions, causal (an H200), the reduction over dO and the conversion of dQ
included."""
RATE_SPREAD = 1.3
"""Kernels of other versions and back-ends (FlashAttention-2 on Hopper, cuDNN) are up to so much
slower or quicker."""

_CALL_NS = 5_000  # the shortest fused attention
_MASK = re.compile(r"masked_fill|masked_softmax|triu|tril|where", re.IGNORECASE)

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
        gemms_ns: time of its GEMMs.
        rest_ns: time of everything between them.
        by_shape: whether the fused kernel's time comes from the GEMMs' shapes.
    """

    repair: Repair
    softmaxes: int
    gemms_ns: int
    rest_ns: int
    by_shape: bool


def unfused_attention(kernels: Kernels) -> UnfusedAttention | None:
    """Find softmax kernels between GEMMs with nothing but light kernels between.

    A classifier's softmax is not followed by a GEMM; a router's is followed by top-k and
    indexing; the loss's is a log-softmax.
    """
    ops = kernels.gpu.ops
    on_device = ops.equals("kind", "memset") | ops.equals("copy_kind", "DtoD")
    takes_part = (kernels.gpu.is_compute | on_device) & kernels.steady
    order = kernels.order[takes_part[kernels.order]]
    category = kernels.category[order]
    is_softmax = _is_softmax(kernels)[order]
    gemm = category == CATEGORY_NAMES.index("matmul")
    light = among(category, [CATEGORY_NAMES.index(f) for f in _LIGHT]) | on_device[order]
    backward = ops.matches("name", _BACKWARD)[order]
    at = np.flatnonzero(is_softmax)
    if not len(at):
        return None
    # position of the next kernel, in each direction, that is not light
    heavy = np.append(np.flatnonzero(~light), len(order))
    place = np.searchsorted(heavy, at)
    before, after = heavy[np.maximum(place - 1, 0)], heavy[np.minimum(place + 1, len(heavy) - 1)]
    ok = (place > 0) & (after < len(order)) & (at - before <= BETWEEN) & (after - at <= BETWEEN)
    ok &= gemm[np.minimum(before, len(order) - 1)] & gemm[np.minimum(after, len(order) - 1)]
    at, place = at[ok], place[ok]
    before, after = before[ok], after[ok]
    if len(at) < kernels.n_steady:
        return None
    chain = np.zeros(len(order) + 1, np.int64)
    first, last = before.copy(), after.copy()
    # the gradient has two GEMMs on either side
    second_before = heavy[np.maximum(place - 2, 0)]
    second_after = heavy[np.minimum(place + 2, len(heavy) - 1)]
    wide = backward[at]
    pair = wide & (place > 1) & gemm[second_before] & (before - second_before <= BETWEEN)
    first[pair] = second_before[pair]
    within = second_after < len(order)
    pair = wide & within & gemm[np.minimum(second_after, len(order) - 1)]
    pair &= second_after - after <= BETWEEN
    last[pair] = second_after[pair]
    first = _with_layout_copies(kernels, order, first)
    np.add.at(chain, first, 1)
    np.add.at(chain, last + 1, -1)
    inside = np.cumsum(chain[:-1]) > 0
    return _repair(kernels, np.sort(order[inside]), len(at))


def _repair(kernels: Kernels, rows: IntArray, softmaxes: int) -> UnfusedAttention:
    duration = kernels.duration_ns
    gemm = kernels.in_category("matmul")[rows]
    gemms = int(duration[rows[gemm]].sum())
    old = duration[rows]
    masked = bool(kernels.gpu.ops.matches("name", _MASK)[rows].any())
    by_shape = fused_ns(kernels, rows[gemm], masked=masked)
    new = np.zeros(len(rows), np.int64)
    half = kernels.math[rows[gemm]] == MATH_NAMES.index("16bit")
    if by_shape is None and not half.all():
        new[gemm] = scaled(old[gemm], SINGLE_SHARE)
        low, high = FUSED_SHARE * gemms, SINGLE_MOST * gemms
    elif by_shape is None:
        new[gemm] = scaled(old[gemm], FUSED_SHARE if masked else UNMASKED_SHARE)
        low, high = FUSED_LEAST * gemms, FUSED_MOST * gemms
    else:
        new[gemm] = np.rint(by_shape).astype(np.int64)
        low, high = float(by_shape.sum()) / RATE_SPREAD, float(by_shape.sum()) * RATE_SPREAD
    total = int(new.sum())
    return UnfusedAttention(
        repair=Repair(
            rows=rows,
            old_ns=old,
            new_ns=new,
            merged=~gemm,
            idle_ns=np.zeros(len(rows), np.int64),
            low_ns=min(int(low), total),
            high_ns=max(int(high), total),
        ),
        softmaxes=softmaxes,
        gemms_ns=gemms,
        rest_ns=int(duration[rows[~gemm]].sum()),
        by_shape=by_shape is not None,
    )


def fused_ns(kernels: Kernels, gemms: IntArray, *, masked: bool) -> FloatArray | None:
    """What fused attention takes for each of its GEMMs, by their shapes, ns.

    Args:
        kernels: the device's kernels.
        gemms: rows of the GEMMs of attention that is written out.
        masked: whether the scores are masked.

    Returns:
        None where a GEMM's shape or the device's peak is not known, or where GEMMs are not
        in half precision.
    """
    peaks, who = kernels.peaks, kernels.attribution
    table = who.operators
    operator = who.operator[gemms]
    half = kernels.math[gemms] == MATH_NAMES.index("16bit")
    if peaks is None or not peaks.half or not len(gemms) or not half.all():
        return None
    if "input_shapes" not in table or (operator < 0).any():
        return None
    texts = table.texts["input_shapes"]
    codes = table["input_shapes"][operator]
    sizes = {code: _product(texts[code]) if code >= 0 else None for code in set(codes.tolist())}
    found = [sizes[code] for code in codes.tolist()]
    if any(size is None for size in found):
        return None
    work = np.array(found, np.float64)
    batch, head, length = work[:, 0], work[:, 1], work[:, 2]
    flop = 2 * batch * head * work[:, 2] * work[:, 3]
    backward = kernels.phase[gemms] == PHASES.index("backward")
    # of five GEMMs in the fused backward pass four are those that are seen
    flop *= np.where(backward, 5 / 4, 1) * (0.5 if masked else 1)
    wide = np.clip((head - 64) / (WIDE_HEAD - 64), 0, 1)
    at = HALF_RATE_AT_CAUSAL if masked else HALF_RATE_AT
    rate = (RATE_NARROW + (RATE_WIDE - RATE_NARROW) * wide) * length / (length + at)
    rate *= np.where(backward, BACKWARD_RATE, 1) * peaks.half
    return np.maximum(flop / rate * 1e9, _CALL_NS / 2)


def _product(text: str) -> tuple[int, int, int, int] | None:
    """Batch, head size and the two lengths of a GEMM of a batch, from its shapes as JSON."""
    try:
        shapes = [
            shape for shape in json.loads(text) if isinstance(shape, list) and len(shape) >= 3
        ]
    except (ValueError, TypeError):
        return None
    if len(shapes) < 2:
        return None
    left, right = shapes[-2], shapes[-1]
    sizes = [*left, *right]
    if len(left) != len(right) or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    batch = int(np.prod([max(a, b) for a, b in zip(left[:-2], right[:-2], strict=True)]))
    head, short, long_ = sorted((left[-2], left[-1], right[-1]))
    return batch, head, long_, short


def _with_layout_copies(kernels: Kernels, order: IntArray, first: IntArray) -> IntArray:
    """Begin of each chain with the copies just before it that lay out its operands.

    GEMMs in batches need contiguous operands, fused attention takes them as they are. Casts
    (of the weights of the next layer) and sets are not counted.
    """
    operation = np.array([c.operation == "direct_copy" for c in kernels.classes] + [False])
    ops = kernels.gpu.ops
    lays_out = operation[ops["name"][order]] & kernels.in_category("copy")[order]
    cleared = ops.equals("kind", "memset")[order]
    begin = first
    for _ in range(_LAYOUT_COPIES):
        before = np.maximum(begin - 1, 0)
        before = np.where(cleared[before], np.maximum(before - 1, 0), before)
        begin = np.where(lays_out[before], before, begin)
    return begin


def _is_softmax(kernels: Kernels) -> BoolArray:
    """Softmax kernels that are no log-softmax."""
    return kernels.in_category("softmax") & ~kernels.gpu.ops.that("name", _is_log)


def _is_log(name: str) -> bool:
    warp = _WARP_LOG.search(name)
    if warp:
        return warp.group(1) in ("true", "1")
    return bool(_LOG_SOFTMAX.search(name))
