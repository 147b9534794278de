"""Attention that is written out, and what it takes fused.

GEMM, scale, mask, softmax, dropout and GEMM are kernels of their own: softmax kernels
between GEMMs tell. Fused attention does the arithmetic of the GEMMs (and the scores once more
in the backward pass) without a matrix of scores in memory.

What that takes is told in :mod:`stepscope.kernels.fused_attention`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.intervals import inside_any
from stepscope.intervals.distinct import (
    among,
    distinct_rows,
    distinct_values,
    with_first_and_inverse,
)
from stepscope.kernels.fused_attention import (
    BIASED,
    CAUSAL,
    GIVEN,
    MASKED,
    SHARED,
    UNMASKED,
    Scores,
    Sizes,
    by_time,
    fused,
    sizes_of_launches,
    sizes_of_shapes,
)
from stepscope.kernels.kernels import CATEGORY_NAMES, PHASES, SCATTERED_COPY, Kernels, Repair
from stepscope.kernels.written_out import HALF_CASTS, LARGEST, letters_of, made_elements
from stepscope.trace.frame import BoolArray, IntArray
from stepscope.trace.shapes import shapes_of

BETWEEN = 16
"""Elementwise kernels that may lie between the softmax and a GEMM of its attention: scale, mask
(building it too), dropout and casts need some ten."""

_MASK = re.compile(r"masked_fill|masked_softmax|where", re.IGNORECASE)
_SUM = re.compile(r"CUDAFunctor_add|AddFunctor")
_SUMS = re.compile(r"sum_functor")
_ALL_MASKED = re.compile(r"reduce_kernel<.*\band_kernel")
"""``scaled_dot_product_attention`` without a fused kernel asks whether all of a row is masked."""
_PRODUCT = re.compile(r"BinaryFunctor<[^<>]*MulFunctor")
_FOR_A_SCALE = 2
_ADDS = frozenset({"aten::add", "aten::add_"})
_MASKING = _ADDS | {f"aten::{name}" for name in ("masked_fill", "masked_fill_", "where", "sub")}
_SCORES = 3  # dimensions at least
_TRIANGLE = re.compile(r"triu|tril", re.IGNORECASE)

_LAYOUT_COPIES = 3  # of queries, keys and values
_BEHIND = 40  # kernels behind the backward pass within which its three layers are
_WIDENED_COPIES = 7  # these are widened as well, and two of them are scaled
_LOG_SOFTMAX = re.compile(r"LogSoftMax|log_softmax")
_WARP_LOG = re.compile(r"softmax_warp_(?:forward|backward)<[^<>]*?,\s*(?:\(int\))?\d+,\s*"
                       r"(?:\(bool\))?(true|1|false|0)")  # fmt: skip
_BACKWARD = re.compile(r"backward|bwd|grad", re.IGNORECASE)
_GEMM, _HEAVY = b"G|"  # in the text of kernels in the order of enqueueing
_SOFTMAX = re.compile(rb"(?<=G)[^G|l]*M[^G|l]*x[^G|l]*r[^G|l]*d[^G|l]*(?=G)")
"""A softmax that is written out, between two GEMMs: the largest of each row, exponentials, their
sum, and the quotient. That of a loss has a logarithm."""
_ITS_GRADIENT = re.compile(rb"(?<=G)(?=[^G|]*d)[^G|]{2,}r[^G|]{2,}(?=G)")
"""Between the GEMMs of the backward pass: a quotient's gradient, and a sum over each row."""
_AS_MANY: Final = 0.2  # gradients over softmaxes, less one
_LIGHT = ("elementwise", "copy", "dropout", "random", "index")


@dataclass(frozen=True)
class UnfusedAttention:
    """Written-out attention in the steady window.

    Attributes:
        repair: its kernels, and fused attention instead.
        softmaxes: number of softmax kernels in it, forward and backward.
        rest_ns: time of everything between them.
        by_sizes: whether the fused kernel's time comes from the GEMMs' sizes.
        biased: whether what is added to the scores is learnt.
    """

    repair: Repair
    softmaxes: int
    rest_ns: int
    by_sizes: bool
    biased: bool


def unfused_attention(kernels: Kernels) -> UnfusedAttention | None:
    """Find softmax kernels between GEMMs with nothing but light kernels between.

    None where nothing would be gained: GEMMs in TF32 are quicker than the fused kernels of single
    precision, which make up for it by what they do not move, or do not.

    A classifier's softmax is not followed by a GEMM, a router's by one behind indexing, as its
    gradient is preceded by one; the loss's is a log-softmax.
    """
    ops = kernels.gpu.ops
    on_device = ops.equals("kind", "memset") | ops.equals("copy_kind", "DtoD")
    takes_part = (kernels.gpu.is_compute | on_device) & kernels.steady
    order = kernels.order[takes_part[kernels.order]]
    category = kernels.category[order]
    is_softmax = _is_softmax(kernels)[order]
    gemm = category == CATEGORY_NAMES.index("matmul")
    light = among(category, [CATEGORY_NAMES.index(f) for f in _LIGHT]) | on_device[order]
    # what is added to the scores may be learnt: its gradient is their gradient's sum over the batch
    light |= _sums_gradients(kernels)[order] | ops.matches("name", _ALL_MASKED)[order]
    # the largest score of each row, which is taken off by hand
    light |= (kernels.in_category("reduction") & ops.matches("name", LARGEST))[order]
    backward = ops.matches("name", _BACKWARD)[order]
    written = _written_softmaxes(kernels, order)
    light |= written.inside & (category == CATEGORY_NAMES.index("reduction"))
    light[written.at] = False
    backward[written.at] = written.back
    is_softmax[written.at] = True
    at = np.flatnonzero(is_softmax)
    if not len(at):
        return None
    # position of the next kernel, in each direction, that is not light
    heavy = np.append(np.flatnonzero(~light), len(order))
    place = np.searchsorted(heavy, at)
    before, after = heavy[np.maximum(place - 1, 0)], heavy[np.minimum(place + 1, len(heavy) - 1)]
    ok = (place > 0) & (after < len(order)) & (at - before <= BETWEEN) & (after - at <= BETWEEN)
    ok &= gemm[np.minimum(before, len(order) - 1)] & gemm[np.minimum(after, len(order) - 1)]
    # the weights are multiplied as they are: by those of a router, rows are chosen and laid out
    index = category == CATEGORY_NAMES.index("index")
    chosen = np.concatenate(([0], np.cumsum(index)))
    first, last = np.where(backward[at], before, at), np.where(backward[at], at, after)
    ok &= chosen[last] == chosen[np.minimum(first + 1, last)]
    at, place = at[ok], place[ok]
    before, after = before[ok], after[ok]
    if len(at) < kernels.n_steady:
        return None
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
    inside = np.flatnonzero(_with_copies_behind(kernels, order, first, last))
    # the attention that each operation is a part of: that of the softmax next to it
    middle = np.sort(at)
    part = np.searchsorted((middle[:-1] + middle[1:]) / 2, inside)
    by_row = np.argsort(order[inside])
    found = _repair(kernels, order[inside][by_row], part[by_row], len(at), written)
    return found if found.repair.saved_ns > 0 else None


@dataclass(frozen=True)
class _Written:
    """Softmaxes that are written out, and their gradients, in the order of enqueueing.

    Attributes:
        at: place of one kernel of each.
        middle: that kernel, as a row of ``GPU.ops``.
        back: whether each is a gradient.
        inside: whether each kernel lies between the GEMMs around one.
        rows: those that do, as rows of ``GPU.ops``.
    """

    at: IntArray
    middle: IntArray
    back: BoolArray
    inside: BoolArray
    rows: IntArray


def _written_softmaxes(kernels: Kernels, order: IntArray) -> _Written:
    """Softmaxes between two GEMMs that are spelled out in primitive operations.

    Gradients of these have no kernel that tells; where there are as many places that may be one,
    they are.
    """
    letters = letters_of(kernels)[order].astype(np.uint8)
    category = kernels.category[order]
    of_run = among(category, [CATEGORY_NAMES.index(name) for name in (*_LIGHT, "reduction")])
    letters[~of_run & (category >= 0)] = _HEAVY
    letters[category == CATEGORY_NAMES.index("matmul")] = _GEMM
    text = letters.tobytes()
    backward = kernels.phase[order] == PHASES.index("backward")
    found = [
        [
            match.span()
            for match in pattern.finditer(text)
            if match.end() - match.start() <= BETWEEN and backward[match.start()] == back
        ]
        for pattern, back in ((_SOFTMAX, False), (_ITS_GRADIENT, True))
    ]
    if abs(len(found[1]) - len(found[0])) > _AS_MANY * len(found[0]):
        found[1] = []
    spans = np.array([*found[0], *found[1]], np.int64).reshape(-1, 2)
    inside = inside_any(spans[:, 0], spans[:, 1], len(order))
    back = np.arange(len(spans)) >= len(found[0])
    middle = (spans[:, 0] + spans[:, 1]) // 2
    return _Written(middle, order[middle], back, inside, order[inside])


def _repair(
    kernels: Kernels, rows: IntArray, part: IntArray, softmaxes: int, written: _Written
) -> UnfusedAttention:
    """Fused attention instead of some operations, each a part of one of the softmaxes."""
    duration = kernels.duration_ns
    gemm = kernels.in_category("matmul")[rows]
    old = duration[rows]
    widened = _is_widened(kernels, rows)
    sizes = sizes_of_shapes(kernels, rows[gemm])
    if sizes is None:
        sizes = sizes_of_launches(kernels, rows, part, np.flatnonzero(gemm))
    new = np.zeros(len(rows), np.int64)
    low = high = 0.0
    biased, by_sizes = False, True
    kind = _kinds(sizes, part, gemm)
    for one in range(int(kind.max(initial=-1)) + 1):
        mine = kind == one
        gemms = rows[mine & gemm]
        mask = _mask_of(kernels, rows[mine], written)
        how = Scores(
            mask=mask,
            dropped=bool(kernels.in_category("dropout")[rows[mine]].any()),
            widened=widened,
        )
        by_size = fused(kernels, gemms, sizes.of(mine[gemm]), how)
        by_sizes &= by_size is not None
        found = by_size or by_time(kernels, rows[mine], gemms, how)
        new[mine & gemm] = np.rint(found.each_ns)
        low += found.low_ns
        # under a learnt bias the fused kernel may not be taken
        high += max(found.high_ns, float(old[mine].sum())) if mask == BIASED else found.high_ns
        biased |= mask == BIASED
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
        rest_ns=int(duration[rows[~gemm]].sum()),
        by_sizes=by_sizes,
        biased=biased,
    )


def _kinds(sizes: Sizes, part: IntArray, gemm: BoolArray) -> IntArray:
    """Number of the kind of attention that each operation belongs to: by what its GEMMs multiply.

    An encoder's scores are not masked as a decoder's are, and are others for the most part.
    """
    count = int(part.max(initial=-1)) + 1
    longest = np.zeros((2, count), np.int64)
    mine = part[gemm][sizes.known]
    np.maximum.at(longest[0], mine, sizes.length[sizes.known].astype(np.int64))
    np.maximum.at(longest[1], mine, sizes.other[sizes.known].astype(np.int64))
    _, kind = distinct_rows(list(longest))
    return kind[part]


def _is_widened(kernels: Kernels, rows: IntArray) -> bool:
    """Whether scores of operands in half precision are computed in single precision.

    That is what ``scaled_dot_product_attention`` does where it has no fused kernel for them; those
    that take other operands leave these in half precision.
    """
    casts = kernels.of_operation(*HALF_CASTS)[rows]
    return bool(casts.any() and kernels.gpu.ops.matches("name", _ALL_MASKED)[rows].any())


def _mask_of(kernels: Kernels, rows: IntArray, written: _Written) -> str:
    """How the scores of some operations are masked.

    Args:
        kernels: the device's kernels.
        rows: the operations.
        written: softmaxes that are written out: they subtract the largest of each row, and their
            gradients hold sums of their own.
    """
    ops = kernels.gpu.ops
    others = np.ones(len(ops), bool)
    others[written.rows] = False
    if _has_learnt_bias(kernels, rows[others[rows]]):
        return BIASED
    if bool(ops.matches("name", _TRIANGLE)[rows].any()):
        return CAUSAL
    # what is added to the scores (a bias, or a mask of large negative numbers) is read by the fused
    # kernel, too; in the backward pass gradients are added
    forward = rows[kernels.phase[rows] != PHASES.index("backward")]
    sums = int(ops.matches("name", _SUM)[forward].sum())
    added = sums > int(among(written.middle[~written.back], rows).sum())
    if not added and not bool(ops.matches("name", _MASK)[rows].any()):
        return UNMASKED
    return _mask_of_shapes(kernels, forward)


def _mask_of_shapes(kernels: Kernels, rows: IntArray) -> str:
    """How the scores of some operations are masked, by the shapes of what masks them.

    A mask that samples or heads have of their own, or that tells keys from keys only, has to be
    read; one of positions that all share may be causal, and mostly is.
    """
    table = kernels.attribution.operators
    operator = distinct_values(kernels.attribution.operator[rows])
    operator = operator[operator >= 0]
    if "input_shapes" not in table or not len(operator):
        return MASKED
    codes = [table[key][operator].tolist() for key in ("name", "input_shapes")]
    names, texts = table.texts["name"], table.texts["input_shapes"]
    pairs = set(zip(*codes, strict=True))
    known = [(names[name], shapes_of(texts[shapes])) for name, shapes in pairs if shapes >= 0]
    masks = [mask for name, shapes in known for mask in _masks_of(name, shapes)]
    if any(len(mask) < 2 or 1 in mask[-2:] or math.prod(mask[:-2]) > 1 for mask in masks):
        return GIVEN
    if masks:
        return SHARED if all(mask[-2] == mask[-1] for mask in masks) else GIVEN
    return UNMASKED if any(name in _MASKING for name, _ in known) else MASKED


def _masks_of(name: str, shapes: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Shapes of what masks or biases scores among those of one operator's tensors."""
    scores = max(shapes, key=math.prod, default=())
    if len(scores) < _SCORES or 1 in scores[-2:] or name not in _MASKING:
        return []
    if name in _ADDS and shapes[:2] == [scores, scores]:  # each score has one of its own
        return [scores]
    return [one for one in shapes if one != scores and math.prod(one) > 1 and one[-1] == scores[-1]]


def _has_learnt_bias(kernels: Kernels, rows: IntArray) -> bool:
    """Whether gradients of scores are summed up for what was added to these.

    Those of a learnt scale are, too: once multiplied by the scale, and by the scores, for the sum.
    Of a bias they are as the softmax's backward pass left them.
    """
    sums = np.flatnonzero(_sums_gradients(kernels)[rows])
    softmax = kernels.in_category("softmax")[rows]
    since = np.maximum.accumulate(np.where(softmax, np.arange(len(rows)), 0))
    products = np.cumsum(kernels.gpu.ops.matches("name", _PRODUCT)[rows])
    return bool(np.any(products[sums] - products[since[sums]] < _FOR_A_SCALE))


def _sums_gradients(kernels: Kernels) -> BoolArray:
    """Sums in the backward pass."""
    sums = kernels.in_category("reduction") & kernels.gpu.ops.matches("name", _SUMS)
    found: BoolArray = sums & (kernels.phase == PHASES.index("backward"))
    return found


def _with_layout_copies(kernels: Kernels, order: IntArray, first: IntArray) -> IntArray:
    """Begin of each chain with the copies just before it that lay out its operands.

    GEMMs in batches need contiguous operands, fused attention takes them as they are; where the
    library widens operands, it scales two of them before. Casts (of the weights of the next layer)
    and sets are not counted.
    """
    ops = kernels.gpu.ops
    widened = bool(ops.matches("name", _ALL_MASKED)[order].any())
    wanted = ("direct_copy", "Mul", "mul") if widened else ("direct_copy",)
    lays_out = (
        kernels.of_operation(*wanted)[order] & kernels.in_category("copy", "elementwise")[order]
    )
    cleared = ops.equals("kind", "memset")[order]
    begin = first
    for _ in range(_WIDENED_COPIES if widened else _LAYOUT_COPIES):
        before = np.maximum(begin - 1, 0)
        before = np.where(cleared[before], np.maximum(before - 1, 0), before)
        begin = np.where(lays_out[before], before, begin)
    return begin


def _with_copies_behind(
    kernels: Kernels, order: IntArray, first: IntArray, last: IntArray
) -> BoolArray:
    """Operations of chains and the copies behind them that lay out what their GEMMs have made.

    Fused attention writes its result and the gradients as its operands are laid out, which the
    layers before and behind read as they are: one copy goes behind the forward pass, and one for
    each of queries, keys and values behind the backward pass, where each has a layer of its own.
    """
    inside = inside_any(first, last + 1, len(order))
    copies = kernels.gpu.ops.matches("name", SCATTERED_COPY)[order]
    elements = made_elements(kernels, order)
    operands = distinct_values(elements[inside & copies & (elements > 0)])
    place = np.flatnonzero(copies & ~inside & among(elements, operands))
    ends = np.sort(last)
    chain = np.searchsorted(ends, place) - 1
    place, chain = place[chain >= 0], chain[chain >= 0]
    kernel = np.cumsum(~kernels.gpu.ops.equals("kind", "memset")[order])
    behind: IntArray = kernel[place] - kernel[ends[chain]]
    _, begin, of_chain = with_first_and_inverse(chain)
    number = np.arange(len(place)) - begin[of_chain]
    backward = kernels.phase[order[place]] == PHASES.index("backward")
    goes = (behind[begin] == 1)[of_chain] & (number < np.where(backward, _LAYOUT_COPIES, 1))
    inside[place[goes & (behind <= _BEHIND)]] = True
    return inside


def _is_softmax(kernels: Kernels) -> BoolArray:
    """Softmax kernels that are no log-softmax."""
    return kernels.in_category("softmax") & ~kernels.gpu.ops.that("name", _is_log)


def _is_log(name: str) -> bool:
    warp = _WARP_LOG.search(name)
    if warp:
        return warp.group(1) in ("true", "1")
    return bool(_LOG_SOFTMAX.search(name))
