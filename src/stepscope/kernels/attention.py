"""Attention that is written out, and what it takes fused.

GEMM, scale, mask, softmax, dropout and GEMM are kernels of their own: softmax kernels
between GEMMs tell. Fused attention does the arithmetic of the GEMMs (and the scores once more
in the backward pass) without a matrix of scores in memory.

Where operators have shapes, its time is that arithmetic at the rate that fused attention reaches
for such heads and lengths. Else it is a share of the GEMMs' time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.intervals import inside_any
from stepscope.intervals.distinct import among
from stepscope.kernels.kernels import CATEGORY_NAMES, MATH_NAMES, PHASES, Kernels, Repair
from stepscope.kernels.written_out import HALF_CASTS, LARGEST, letters_of
from stepscope.trace.frame import BoolArray, FloatArray, IntArray
from stepscope.trace.shapes import shapes_of

BETWEEN = 16
"""Elementwise kernels that may lie between the softmax and a GEMM of its attention: scale, mask
(building it too), dropout and casts need some ten."""

UNMASKED, CAUSAL, MASKED, BIASED = "unmasked", "causal", "masked", "biased"
"""How scores are masked: not, so that the future is not seen (half of the arithmetic), or by a mask
of which no more is known: fused attention then reads it, and leaves out nothing unless it is
causal. Or what is added to them is learnt, as relative positions are: of the fused kernels only the
memory-efficient one gives its gradient, which it writes as a whole matrix of scores for a sum over
the batch to read."""

SHARES: Final = {
    # up to 128 positions, 256, 512, 1024, more
    UNMASKED: (1.7, 0.9, 0.8, 0.7, 0.65),
    CAUSAL: (1.8, 0.86, 0.68, 0.54, 0.46),
    MASKED: (2.0, 1.05, 0.9, 0.77, 0.7),
    BIASED: (1.9, 2.4, 2.6, 3.2, 3.2),
}
LEAST_SHARE, MOST_SHARE = 0.65, 1.5
SINGLE_SHARES: Final = {
    "fp32": ({UNMASKED: 1.35, CAUSAL: 1.0, MASKED: 1.2, BIASED: 1.65}, 0.8, 1.9),
    "tf32": ({UNMASKED: 3.3, CAUSAL: 2.4, MASKED: 2.9, BIASED: 3.9}, 1.7, 5.0),
}
"""What fused attention takes where shapes are not known, as a share of the GEMMs that it replaces,
by length in half precision (heads of 64, the ends as parts of it), by their type in single
precision (usual, least and most). GEMMs in half precision write and read the T x T
scores: with heads 64 to 128 wide that is 64 to 128 FLOP a byte, below the 150 to 300 that GPUs need
to be bound by arithmetic, so they wait for memory, which the fused kernel does not touch. In single
precision it does not use the tensor cores, whether TF32 is allowed or not."""

ALIGNED_SHARE: Final = 0.39
"""Of the time of GEMMs in half precision whose rows cannot be read in pairs (197 columns), that of
GEMMs of whole blocks: those take 2.6 times as long with heads of 32, 64 and 128, the fused kernel
hardly longer (same measurements)."""

WIDENED_SHARE: Final = (0.15, 0.07, 0.4)
"""The same of GEMMs in single precision of operands that were widened for them: fused attention in
half precision has fourteen times the rate of that in single precision, but moves its operands."""

RATES: Final = {
    UNMASKED: (0.25, 0.49, 0.65),
    CAUSAL: (0.23, 0.42, 0.49),
    MASKED: (0.15, 0.30, 0.33),
    BIASED: (0.040, 0.075, 0.115),
}
"""Share of the peak in half precision that fused attention reaches in forward and backward pass
together, with heads up to 32, of 64 and from 128 wide; causal: of half of the arithmetic. Fitted
to times of 60 sizes from 64 to 2048 positions (H200, cuDNN of PyTorch 2.11); sequences are
made up to whole blocks. With a learnt bias: of 42 sizes from 49 to 1024 positions (H100)."""
DROPPED: Final = {UNMASKED: 1.2, CAUSAL: 1.1, MASKED: 1.22, BIASED: 1.4}
"""What fused attention in half precision takes with dropout of the weights over what it takes
without: the kernels draw random numbers in both passes. 18 sizes of 128 to 2048 positions with
heads of 32, 64 and 128, of which those that take 0.6 ms and more count: 1.0 to 1.3 unmasked and
causal, 1.1 to 1.6 with a mask (1.35, and between that and a causal one, as for the rates), 1.2 to
1.6 with a bias (H100, PyTorch 2.11)."""
SINGLE_RATES: Final = (0.30, 0.52, 0.58)
"""The same of the peak of the CUDA cores, for operands in single precision (CUTLASS)."""
SINGLE_CAUSAL, SINGLE_DIAGONAL = 0.8, 80
"""Under a causal mask that one reaches this part, and half of it at so many positions."""
SINGLE_MASKED = 0.93
WIDTHS: Final = (32, 64, 128)
BLOCK, SINGLE_BLOCK = 128, 64

OPERANDS = 13 / 6
"""Tensors of the size of the queries that are moved for each of the six GEMMs that are replaced:
four in the forward pass, nine in the backward pass."""
OPERANDS_BANDWIDTH = 0.5
"""Share of the memory's bandwidth at which that happens, beside the arithmetic (as measured)."""

BACKWARD_RATE = 0.72
"""Rate of the backward pass over that of the forward pass: 157 of 216 TFLOP/s for cuDNN with heads
of 64 and 512 positions, causal (an H200), the reduction over dO and the conversion of dQ
included."""
_OF_FORWARD = (1 + 2.5 / BACKWARD_RATE) / 3.5  # forward rate over that of both passes
RATE_SPREAD = 1.3
"""Kernels of other versions and back-ends (FlashAttention-2 on Hopper, cuDNN) are up to so much
slower or quicker."""

_CALL_NS = 5_000  # the shortest fused attention
_MASK = re.compile(r"masked_fill|masked_softmax|where", re.IGNORECASE)
_SUM = re.compile(r"CUDAFunctor_add|AddFunctor")
_SUMS = re.compile(r"sum_functor")
_ALL_MASKED = re.compile(r"reduce_kernel<.*\band_kernel")
"""``scaled_dot_product_attention`` without a fused kernel asks whether all of a row is masked."""
_PRODUCT = re.compile(r"BinaryFunctor<[^<>]*MulFunctor")
_FOR_A_SCALE = 2
_UNALIGNED = re.compile(r"_tensorop_b?f16\w*_align1\b")
_TRIANGLE = re.compile(r"triu|tril", re.IGNORECASE)

_LAYOUT_COPIES = 3  # of queries, keys and values
_WIDENED_COPIES = 7  # these are widened as well, and two of them are scaled
_LOG_SOFTMAX = re.compile(r"LogSoftMax|log_softmax")
_WARP_LENGTH = re.compile(r"softmax_warp_(?:forward|backward)<[^<>]*?,\s*(?:\(int\))?(\d+),")
_SHORTEST, _LONG = 7, 11  # powers of two
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
        by_shape: whether the fused kernel's time comes from the GEMMs' shapes.
        biased: whether what is added to the scores is learnt.
    """

    repair: Repair
    softmaxes: int
    rest_ns: int
    by_shape: bool
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
    inside = inside_any(first, last + 1, len(order))
    found = _repair(kernels, np.sort(order[inside]), len(at), written)
    return found if found.repair.saved_ns > 0 else None


@dataclass(frozen=True)
class _Written:
    """Softmaxes that are written out, and their gradients, in the order of enqueueing.

    Attributes:
        at: place of one kernel of each.
        back: whether each is a gradient.
        inside: whether each kernel lies between the GEMMs around one.
        rows: those that do, as rows of ``GPU.ops``.
    """

    at: IntArray
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
    return _Written((spans[:, 0] + spans[:, 1]) // 2, back, inside, order[inside])


def _repair(
    kernels: Kernels, rows: IntArray, softmaxes: int, written: _Written
) -> UnfusedAttention:
    duration = kernels.duration_ns
    gemm = kernels.in_category("matmul")[rows]
    old = duration[rows]
    mask = _mask_of(kernels, rows, written)
    widened = _is_widened(kernels, rows)
    by_shape = fused_ns(kernels, rows[gemm], mask, widened=widened)
    dropped = _dropped(kernels, rows, mask)
    new = np.zeros(len(rows), np.int64)
    if by_shape is None:
        share, least, most, each = _by_time(kernels, rows, rows[gemm], mask, widened=widened)
        each = each * dropped
        new[gemm] = np.rint(each * share)
        low, high = least * float(each.sum()), most * float(each.sum())
    else:
        by_shape = by_shape * dropped
        new[gemm] = np.rint(by_shape).astype(np.int64)
        low, high = float(by_shape.sum()) / RATE_SPREAD, float(by_shape.sum()) * RATE_SPREAD
    if mask == BIASED:  # it may not be taken
        high = max(high, float(old.sum()))
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
        by_shape=by_shape is not None,
        biased=mask == BIASED,
    )


def _dropped(kernels: Kernels, rows: IntArray, mask: str) -> float:
    """What dropout between some operations costs the fused kernel, as a factor."""
    drops = kernels.in_category("dropout")[rows]
    gemms = rows[kernels.in_category("matmul")[rows]]
    return DROPPED[mask] if drops.any() and _in_half(kernels, gemms) else 1.0


def _in_half(kernels: Kernels, gemms: IntArray) -> bool:
    """Whether some GEMMs all multiply in half precision."""
    return bool((kernels.math[gemms] == MATH_NAMES.index("16bit")).all())


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
    forward = kernels.phase[rows] != PHASES.index("backward")
    added = int((ops.matches("name", _SUM)[rows] & forward).sum()) > int((~written.back).sum())
    return MASKED if added or bool(ops.matches("name", _MASK)[rows].any()) else UNMASKED


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


def _by_time(
    kernels: Kernels, rows: IntArray, gemms: IntArray, mask: str, *, widened: bool
) -> tuple[float, float, float, FloatArray]:
    """Share of the GEMMs' time that fused attention takes: usual, least, most; and that time."""
    duration, math = kernels.duration_ns[gemms].astype(np.float64), kernels.math[gemms]
    if widened:
        return *WIDENED_SHARE, duration
    if _in_half(kernels, gemms):
        usual = SHARES[mask][_length_class(kernels, rows)]
        unaligned = kernels.gpu.ops.matches("name", _UNALIGNED)[gemms]
        each = duration * np.where(unaligned, ALIGNED_SHARE, 1.0)
        return usual, LEAST_SHARE * usual, MOST_SHARE * usual, each
    spent = {name: duration[math == MATH_NAMES.index(name)].sum() for name in SINGLE_SHARES}
    by_mask, least, most = SINGLE_SHARES["tf32" if spent["tf32"] > spent["fp32"] else "fp32"]
    return by_mask[mask], least, most, duration


def _length_class(kernels: Kernels, rows: IntArray) -> int:
    """Place in :data:`SHARES` by the length of the rows whose softmax some operations compute.

    Kernels that keep a row in the registers of a warp are made for a power of two of elements.
    """
    softmax = rows[kernels.in_category("softmax")[rows]]
    texts = kernels.gpu.ops.texts["name"]
    names = set(kernels.gpu.ops["name"][softmax].tolist())
    matches = [_WARP_LENGTH.search(texts[code]) for code in names]
    exponents = [int(one.group(1)) if one else _LONG for one in matches]
    return int(np.clip(max(exponents, default=_LONG) - _SHORTEST, 0, _LONG - _SHORTEST))


def fused_ns(
    kernels: Kernels, gemms: IntArray, mask: str, *, widened: bool = False
) -> FloatArray | None:
    """What fused attention takes for each of its GEMMs, by their shapes, ns.

    Args:
        kernels: the device's kernels.
        gemms: rows of the GEMMs of attention that is written out.
        mask: how the scores are masked.
        widened: whether their operands were widened from half precision for them.

    Returns:
        None where a GEMM's shape or the device's peak is not known, or their type.
    """
    peaks, who = kernels.peaks, kernels.attribution
    table = who.operators
    operator = who.operator[gemms]
    math = kernels.math[gemms]
    half = widened or _in_half(kernels, gemms)
    single = among(math, [MATH_NAMES.index("fp32"), MATH_NAMES.index("tf32")]).all()
    if peaks is None or not len(gemms) or not (half or single):
        return None
    peak = peaks.half if half else peaks.fp32
    if "input_shapes" not in table or (operator < 0).any() or not peak:
        return None
    texts = table.texts["input_shapes"]
    codes = table["input_shapes"][operator]
    sizes = {code: _product(texts[code]) if code >= 0 else None for code in set(codes.tolist())}
    found = [sizes[code] for code in codes.tolist()]
    if any(size is None for size in found):
        return None
    batch, head, length, other = np.array(found, np.float64).T
    # the kernel that takes a learnt bias is the one that single precision has
    block = BLOCK if half and mask != BIASED else SINGLE_BLOCK
    filled = [np.ceil(size / block) * block for size in (length, other)]
    backward = kernels.phase[gemms] == PHASES.index("backward")
    # of five GEMMs in the fused backward pass four are those that are seen
    flop = 2 * batch * head * filled[0] * filled[1] * np.where(backward, 5 / 4, 1)
    if mask == MASKED:  # causal or not
        both = [_share_of_peak(kind, head, length, half=half) for kind in (CAUSAL, MASKED)]
        share = np.sqrt(2 * both[0] * both[1])
    else:
        share = _share_of_peak(mask, head, length, half=half)
        flop *= 0.5 if mask == CAUSAL else 1
    rate = share * peak * _OF_FORWARD * np.where(backward, BACKWARD_RATE, 1)
    item = 2 if half else 4
    moved = OPERANDS * batch * head * length * item
    memory = moved / (OPERANDS_BANDWIDTH * kernels.bandwidth) if half and kernels.bandwidth else 0
    each: FloatArray = np.maximum((flop / rate + memory) * 1e9, _CALL_NS / 2)
    return each


def _share_of_peak(mask: str, head: FloatArray, length: FloatArray, *, half: bool) -> FloatArray:
    """Share of the peak that fused attention reaches in both passes together."""
    if half:
        return np.interp(head, WIDTHS, RATES[mask])
    share = np.interp(head, WIDTHS, SINGLE_RATES)
    if mask == CAUSAL:
        share = share * SINGLE_CAUSAL * length / (length + SINGLE_DIAGONAL)
    return share * SINGLE_MASKED if mask in (MASKED, BIASED) else share


def _product(text: str) -> tuple[int, int, int, int] | None:
    """Batch, head size and the two lengths of a GEMM of a batch, from its shapes as JSON."""
    shapes = [shape for shape in shapes_of(text) if len(shape) >= 3]
    if len(shapes) < 2:
        return None
    left, right = shapes[-2], shapes[-1]
    if len(left) != len(right) or min(*left, *right) <= 0:
        return None
    batch = int(np.prod([max(a, b) for a, b in zip(left[:-2], right[:-2], strict=True)]))
    head, short, long_ = sorted((left[-2], left[-1], right[-1]))
    return batch, head, long_, short


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


def _is_softmax(kernels: Kernels) -> BoolArray:
    """Softmax kernels that are no log-softmax."""
    return kernels.in_category("softmax") & ~kernels.gpu.ops.that("name", _is_log)


def _is_log(name: str) -> bool:
    warp = _WARP_LOG.search(name)
    if warp:
        return warp.group(1) in ("true", "1")
    return bool(_LOG_SOFTMAX.search(name))
