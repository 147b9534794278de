"""What fused attention takes for the GEMMs that it replaces.

Where the sizes are known, its time is the arithmetic of the GEMMs (and the scores once more in the
backward pass) at the rate that fused kernels reach for such heads and masks, and what its operands
take to be moved. Shapes of operators tell the sizes, or launches: a softmax has a block or a warp
for each row, a kernel over the scores a thread for each few of them, a copy that lays out an
operand one for each few of its elements. Else it is a share of the GEMMs' time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.intervals.distinct import among
from stepscope.kernels.kernels import MATH_NAMES, PHASES, SCATTERED_COPY, Kernels
from stepscope.kernels.written_out import made_elements
from stepscope.trace.frame import BoolArray, FloatArray, IntArray
from stepscope.trace.shapes import shapes_of

UNMASKED, CAUSAL, GIVEN = "unmasked", "causal", "given"
SHARED, MASKED, BIASED = "shared", "masked", "biased"
"""How scores are masked: not, so that the future is not seen (half of the arithmetic), by a mask
that fused attention has to read, by one of positions that samples and heads share (mostly causal),
or by one of which no more is known: it is causal or has to be read. Or what is added to them is
learnt, as relative positions are: of the fused kernels only the memory-efficient one gives its
gradient, which it writes as a whole matrix of scores for a sum over the batch to read."""

SHARES: Final = {
    # up to 128 positions, 256, 512, 1024, more
    UNMASKED: (1.7, 0.9, 0.8, 0.7, 0.65),
    CAUSAL: (1.8, 0.86, 0.68, 0.54, 0.46),
    GIVEN: (2.2, 1.3, 1.2, 1.1, 1.0),
    MASKED: (2.0, 1.05, 0.9, 0.77, 0.7),
    BIASED: (1.9, 2.4, 2.6, 3.2, 3.2),
}
LEAST_SHARE, MOST_SHARE = 0.65, 1.5
SINGLE_SHARES: Final = {
    "fp32": ({UNMASKED: 1.35, CAUSAL: 1.0, GIVEN: 1.45, MASKED: 1.2, BIASED: 1.65}, 0.8, 1.9),
    "tf32": ({UNMASKED: 3.3, CAUSAL: 2.4, GIVEN: 3.5, MASKED: 2.9, BIASED: 3.9}, 1.7, 5.0),
}
"""What fused attention takes where sizes are not known, as a share of the GEMMs that it replaces,
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

RATES: Final = {UNMASKED: (0.57, 0.82), CAUSAL: (0.47, 0.72), GIVEN: (0.31, 0.39)}
"""Share of the peak in half precision that fused attention reaches in forward and backward pass
together once its operands are there, with heads of 64 and of 128; causal: of half of the
arithmetic. Fitted to both passes of 228 sizes of 100 to 2048 positions, with masks of keys, of
positions, of heads and of samples (H100, cuDNN of PyTorch 2.11; 5 % RMS); sequences are made up to
whole blocks, heads to whole multiples of 64. 112 other heads and lengths are met with 15 % RMS."""
WIDTHS: Final = (64, 128)
BIASED_RATES: Final = (0.040, 0.075, 0.115)
"""The same under a learnt bias, with heads up to 32, of 64 and from 128 wide, as those of single
precision, whose kernel it is: of 42 sizes from 49 to 1024 positions (H100)."""
DROPPED: Final = 1.7
"""What the arithmetic takes with dropout of the weights over what it takes without: the kernels
draw random numbers in both passes. 1.5 to 1.9 for all masks and widths (same measurements)."""
BIASED_DROPPED: Final = 1.4
"""The same of all that fused attention takes under a learnt bias: 1.2 to 1.6 in 6 sizes."""
SHARE_DROPPED: Final = 1.4
"""The same of shares of the GEMMs' time: 1.6 with 1,024 positions, 1.1 with 128."""
SINGLE_WIDTHS: Final = (32, 64, 128)
SINGLE_RATES = (0.30, 0.52, 0.58)
"""The same of the peak of the CUDA cores, for operands in single precision (CUTLASS)."""
SINGLE_CAUSAL, SINGLE_DIAGONAL = 0.8, 80
"""Under a causal mask that one reaches this part, and half of it at so many positions."""
SINGLE_MASKED = 0.93
BLOCK, SINGLE_BLOCK = 128, 64
_HEAD_BLOCK = 64

OPERANDS = 13 / 6
"""Tensors of the size of the queries that are moved for each of the six GEMMs that are replaced:
four in the forward pass, nine in the backward pass."""
OPERANDS_BANDWIDTH = 0.6
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
_UNALIGNED = re.compile(r"_tensorop_b?f16\w*_align1\b")
_WARP_LENGTH = re.compile(r"softmax_warp_(?:forward|backward)<[^<>]*?,\s*(?:\(int\))?(\d+),")
_BLOCK_A_ROW = re.compile(r"cunn_SoftMax")
_SHORTEST, _LONG = 7, 11  # powers of two
_TWO_ROWS = 7  # warps compute two rows of up to 2 to the power of this
_WIDTH, _WIDEST = 8, 256  # heads are multiples of 8, up to 256 wide
_ROUNDED = 0.02  # launches are made up to whole blocks


@dataclass(frozen=True)
class Sizes:
    """Sizes of GEMMs of attention; arrays have one value a GEMM, NaN where it is not known.

    Attributes:
        batch: heads of all samples.
        head: width of a head.
        length: the longer one of the positions of queries and of keys.
        other: the shorter one.
    """

    batch: FloatArray
    head: FloatArray
    length: FloatArray
    other: FloatArray

    @property
    def known(self) -> BoolArray:
        """GEMMs whose sizes are known."""
        found: BoolArray = np.isfinite(self.head)
        return found

    def of(self, mask: BoolArray) -> Sizes:
        """Those of some GEMMs."""
        return Sizes(self.batch[mask], self.head[mask], self.length[mask], self.other[mask])


@dataclass(frozen=True)
class Scores:
    """What is done to the scores of attention.

    Attributes:
        mask: how they are masked.
        dropped: whether weights are dropped.
        widened: whether they are computed of operands that were widened from half precision.
    """

    mask: str
    dropped: bool
    widened: bool


@dataclass(frozen=True)
class Fused:
    """What fused attention takes for each GEMM, ns.

    Attributes:
        each_ns: usual time of each.
        low_ns: least that all may take.
        high_ns: the most.
    """

    each_ns: FloatArray
    low_ns: float
    high_ns: float


def fused(kernels: Kernels, gemms: IntArray, sizes: Sizes, how: Scores) -> Fused | None:
    """What fused attention takes for GEMMs of known sizes.

    Args:
        kernels: the device's kernels.
        gemms: rows of the GEMMs of attention that is written out.
        sizes: their sizes.
        how: what is done to the scores.

    Returns:
        None where a size is not known, or the device's peak, or their type.
    """
    math = kernels.math[gemms]
    half = how.widened or _in_half(kernels, gemms)
    single = among(math, [MATH_NAMES.index("fp32"), MATH_NAMES.index("tf32")]).all()
    peaks = kernels.peaks
    if peaks is None or not (half or single) or not sizes.known.all():
        return None
    if not (peaks.half if half else peaks.fp32):
        return None
    backward = kernels.phase[gemms] == PHASES.index("backward")
    # a mask of which no more is known is causal or has to be read
    least, most = (
        _half_ns(kernels, sizes, kind, backward, dropped=how.dropped)
        if half
        else _single_ns(kernels, sizes, kind, backward)
        for kind in ((CAUSAL, GIVEN) if how.mask in (SHARED, MASKED) else (how.mask, how.mask))
    )
    return Fused(
        each_ns=least if how.mask == SHARED else np.sqrt(least * most),
        low_ns=float(least.sum()) / RATE_SPREAD,
        high_ns=float(most.sum()) * RATE_SPREAD,
    )


def _half_ns(
    kernels: Kernels, sizes: Sizes, mask: str, backward: BoolArray, *, dropped: bool
) -> FloatArray:
    """Time for each GEMM in half precision, ns."""
    assert kernels.peaks is not None
    assert kernels.peaks.half is not None
    # the kernel that takes a learnt bias is the one that single precision has
    biased = mask == BIASED
    flop = _flop(sizes, SINGLE_BLOCK if biased else BLOCK, backward)
    made_up = np.ceil(sizes.head / _HEAD_BLOCK) * _HEAD_BLOCK
    if biased:
        share = np.interp(sizes.head, SINGLE_WIDTHS, BIASED_RATES)
        share /= BIASED_DROPPED if dropped else 1
    else:
        share = np.interp(made_up, WIDTHS, RATES[mask]) * sizes.head / made_up
        share /= (0.5 if mask == CAUSAL else 1) * (DROPPED if dropped else 1)
    rate = share * kernels.peaks.half * _OF_FORWARD * np.where(backward, BACKWARD_RATE, 1)
    width = (sizes.head + made_up) / 2  # some of what is made up is moved, too
    moved = OPERANDS * sizes.batch * width * (sizes.length + sizes.other) / 2 * 2
    memory = moved / (OPERANDS_BANDWIDTH * kernels.bandwidth) if kernels.bandwidth else 0
    each: FloatArray = np.maximum((flop / rate + memory) * 1e9, _CALL_NS / 2)
    return each


def _single_ns(kernels: Kernels, sizes: Sizes, mask: str, backward: BoolArray) -> FloatArray:
    """Time for each GEMM in single precision, ns."""
    assert kernels.peaks is not None
    assert kernels.peaks.fp32 is not None
    flop = _flop(sizes, SINGLE_BLOCK, backward)
    share = np.interp(sizes.head, SINGLE_WIDTHS, SINGLE_RATES)
    if mask == CAUSAL:
        share = 2 * share * SINGLE_CAUSAL * sizes.length / (sizes.length + SINGLE_DIAGONAL)
    share = share * SINGLE_MASKED if mask in (GIVEN, BIASED) else share
    rate = share * kernels.peaks.fp32 * _OF_FORWARD * np.where(backward, BACKWARD_RATE, 1)
    each: FloatArray = np.maximum(flop / rate * 1e9, _CALL_NS / 2)
    return each


def _flop(sizes: Sizes, block: int, backward: BoolArray) -> FloatArray:
    """Arithmetic for each GEMM, of sequences that are made up to whole blocks."""
    filled = [np.ceil(size / block) * block for size in (sizes.length, sizes.other)]
    # of five GEMMs in the fused backward pass four are those that are seen
    found: FloatArray = (
        2 * sizes.batch * sizes.head * filled[0] * filled[1] * np.where(backward, 5 / 4, 1)
    )
    return found


def share_of_masked(
    kernels: Kernels, positions: FloatArray, heads: FloatArray, mask: str
) -> FloatArray:
    """What attention in half precision takes over what it takes under a mask that it reads."""
    sizes = Sizes(np.full(len(heads), 1e3), heads, positions, positions)
    times = [
        # two of six GEMMs are those of the forward pass
        _half_ns(kernels, sizes, one, np.zeros(len(heads), bool), dropped=False)
        + 2 * _half_ns(kernels, sizes, one, np.ones(len(heads), bool), dropped=False)
        for one in (mask, GIVEN)
    ]
    found: FloatArray = times[0] / times[1]
    return found


def by_time(kernels: Kernels, rows: IntArray, gemms: IntArray, how: Scores) -> Fused:
    """What fused attention takes as a share of the time of its GEMMs.

    Args:
        kernels: the device's kernels.
        rows: all of its operations.
        gemms: those of them that are GEMMs.
        how: what is done to the scores.
    """
    duration, math = kernels.duration_ns[gemms].astype(np.float64), kernels.math[gemms]
    mask = CAUSAL if how.mask == SHARED else how.mask
    if how.widened:
        usual, least, most = WIDENED_SHARE
    elif _in_half(kernels, gemms):
        usual = SHARES[mask][_length_class(kernels, rows)]
        least, most = LEAST_SHARE * usual, MOST_SHARE * usual
        unaligned = kernels.gpu.ops.matches("name", _UNALIGNED)[gemms]
        duration = duration * np.where(unaligned, ALIGNED_SHARE, 1.0)
        duration = duration * (SHARE_DROPPED if how.dropped else 1.0)
    else:
        spent = {name: duration[math == MATH_NAMES.index(name)].sum() for name in SINGLE_SHARES}
        of, least, most = SINGLE_SHARES["tf32" if spent["tf32"] > spent["fp32"] else "fp32"]
        usual = of[mask]
    total = float(duration.sum())
    return Fused(duration * usual, least * total, most * total)


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


def _in_half(kernels: Kernels, gemms: IntArray) -> bool:
    """Whether some GEMMs all multiply in half precision."""
    return bool((kernels.math[gemms] == MATH_NAMES.index("16bit")).all())


def sizes_of_shapes(kernels: Kernels, gemms: IntArray) -> Sizes | None:
    """Sizes of GEMMs by the shapes of their operators; None where one of them is not known."""
    table, operator = kernels.attribution.operators, kernels.attribution.operator[gemms]
    if not len(gemms) or "input_shapes" not in table or (operator < 0).any():
        return None
    texts = table.texts["input_shapes"]
    codes = table["input_shapes"][operator]
    sizes = {code: _product(texts[code]) if code >= 0 else None for code in set(codes.tolist())}
    found = [sizes[code] for code in codes.tolist()]
    if any(size is None for size in found):
        return None
    return Sizes(*np.array(found, np.float64).T)


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


def sizes_of_launches(kernels: Kernels, rows: IntArray, part: IntArray, gemms: IntArray) -> Sizes:
    """Sizes of GEMMs by what is launched around them, where queries are as many as keys.

    Args:
        kernels: the device's kernels.
        rows: operations of attention that is written out.
        part: number of the attention that each is a part of, from 0; a softmax has one of its own.
        gemms: places in ``rows`` of the GEMMs.

    Returns:
        They are not known where no softmax kernel tells its rows, nothing else is made of the
        scores, or no copy lays out an operand.
    """
    count = int(part.max()) + 1 if len(part) else 0
    softmax = kernels.in_category("softmax")[rows]
    copies = kernels.gpu.ops.matches("name", SCATTERED_COPY)[rows]
    scores = kernels.in_category("elementwise", "dropout", "copy")[rows] & ~copies
    elements = made_elements(kernels, rows).astype(np.float64)
    of_softmax, longest = _softmax_rows(kernels, rows)
    most = np.full(count, np.inf)
    np.minimum.at(most, part[softmax], longest[softmax])
    found = np.zeros((3, count))  # rows of scores, scores, elements of an operand
    for at, mask, values in ((0, softmax, of_softmax), (1, scores, elements)):
        np.maximum.at(found[at], part[mask], values[mask])
    laid_out = copies & (elements > 0)
    found[2] = np.inf
    np.minimum.at(found[2], part[laid_out], elements[laid_out])
    with np.errstate(divide="ignore", invalid="ignore"):
        length = np.rint(found[1] / found[0])
        exact = found[2] / found[0] / _WIDTH
        head = np.rint(exact)
        known = np.isfinite(length) & np.isfinite(head) & (length >= 1) & (head >= 1)
        known &= length <= most
        known &= (head * _WIDTH <= _WIDEST) & (abs(exact / head - 1) <= _ROUNDED)
        found = np.where(known, [found[0] / length, head * _WIDTH, length, length], np.nan)
    batch, head, length, other = found[:, part[gemms]]
    return Sizes(batch, head, length, other)


def _softmax_rows(kernels: Kernels, rows: IntArray) -> tuple[FloatArray, FloatArray]:
    """Rows that softmax kernels are launched for, 0 where the name does not tell; and how long.

    A block computes one, or each of its warps one or two of short ones, up to a power of two.
    """
    texts = kernels.gpu.ops.texts["name"]
    powers = [int(one.group(1)) if (one := _WARP_LENGTH.search(text)) else -1 for text in texts]
    power = np.array([*powers, -1])[kernels.gpu.ops["name"][rows]]
    a_block = kernels.gpu.ops.matches("name", _BLOCK_A_ROW)[rows]
    warps = np.maximum(kernels.grid["block_y"][rows].astype(np.int64), 0)
    each = np.where(power < 0, a_block, warps * np.where(power <= _TWO_ROWS, 2, 1))
    return (kernels.blocks[rows] * each).astype(np.float64), np.where(power < 0, np.inf, 2.0**power)
