"""Convolutions on tensor cores: what each call of a library takes there, conversions included.

Where operators have shapes, a call takes its arithmetic at the rate that is reached, or its tensors
at the rate at which they pass memory, whichever is longer, and what it takes to begin. Else it
takes a share of the time on the CUDA cores. A call launches several kernels: conversions of the
layout, of weights, transforms (Winograd, Fourier); all of them make way for those of the other one.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.intervals.distinct import among, distinct_values
from stepscope.kernels.kernels import LAYOUT_CHANGE, MATH_NAMES, Kernels
from stepscope.trace.frame import AnyArray, BoolArray, FloatArray, IntArray
from stepscope.trace.shapes import Shape, shapes_of

SHARE: Final = {
    "tf32": {"low": 0.15, "expected": 0.27, "high": 0.42},
    "16bit": {"low": 0.08, "expected": 0.15, "high": 0.25},
}
"""What convolutions in another type take of their time in single precision on the CUDA cores, where
their shapes are not known; conversions included. TF32: 0.14 to 0.36 in nine networks on an H200
(PyTorch 2.11): residual, grouped, dense, depthwise beside 1 x 1, one-dimensional. 16 bits by what
:data:`_RATES` give for either type: 0.5 to 0.6 of that in ten networks."""

_SMALL_TILES: Final = re.compile(r"fprop_implicit_gemm\w*_nchwkcrs_nchw_tilesize32x32x8_")
OF_SMALL_TILES: Final = 0.45
"""What of that remains where a kernel for channels first computes tiles of 32 x 32, which read
their operands again and again: 0.11 and 0.12 of its time in TF32 in two networks (H100)."""

SPREAD: Final = 1.35
"""How far a network's convolutions are from what their shapes let expect, either way: 0.76 to 1.4
times in the same networks, half of them within 8 %."""


@dataclass(frozen=True)
class _Rates:
    """What convolutions reach on tensor cores, as shares of the device's ceilings.

    Attributes:
        peak: of the dense peak.
        bandwidth: of the memory's, for input, weights and output moved once.
        start_ns: further time of each call, ns.
    """

    peak: float
    bandwidth: float
    start_ns: float


_RATES: Final = {
    # (backward pass, more than one tap, channels last)
    (False, False, False): _Rates(0.30, 0.8, 10_000),
    (True, False, False): _Rates(0.20, 0.8, 20_000),
    (False, True, False): _Rates(0.50, 0.1, 10_000),
    (True, True, False): _Rates(0.40, 0.1, 30_000),
    (False, False, True): _Rates(0.50, 0.6, 5_000),
    (True, False, True): _Rates(0.30, 0.6, 10_000),
    (False, True, True): _Rates(0.60, 0.15, 5_000),
    (True, True, True): _Rates(0.50, 0.2, 30_000),
}
"""Fitted to 560 distinct calls of thirteen networks in TF32, and 450 of eight with channels last
(H200, cuDNN of PyTorch 2.11). A filter of several taps reads its input several times, and kernels
for tensor cores want channels last: where they come first, input and output are converted. With
half the bytes and the other peak they hold in 16 bits: 200 distinct calls of ten networks with
channels first take 0.7 to 1.1 times that, a network (H100 and H200). Filters that cut an image into
patches take two to three times as long."""

_CALL: Final = re.compile(
    r"^aten::(cudnn_convolution(_transpose|_relu|_add_relu)?|convolution_backward|miopen_convolution)$"
)
_WHOLE: Final = re.compile(r"cf32cf32|__5x_cudnn")
"""GEMMs that are parts of convolutions: in the frequency domain, and those of cuDNN."""
_BESIDE: Final = re.compile(
    r"fft2d_|fft1d_|winograd|scalePackedTensor|flip_filter|mult_and_sum_complex|genericTranspose",
    re.IGNORECASE,
)
_TRANSFORM: Final = re.compile(
    r"fft2d_|fft1d_|winograd\w*(Data|Delta|Filter|Output)|mult_and_sum_complex", re.IGNORECASE
)
"""Transforms into the domain where a convolution is a product, and back: none on tensor cores."""
_IN_PARTS: Final = re.compile("cf32cf32")
"""Products there, of which a convolution has one for each part of its frequencies."""
_GRADIENTS: Final = 2
"""Products that a call launches on tensor cores: the gradients of its input and of its weights."""
_DEPTHWISE: Final = re.compile(r"depthwise|dgrouped", re.IGNORECASE)
"""Convolutions of single channels, which wait for memory on whichever cores they run."""
_LAST: Final = re.compile("nhwc|ndhwc", re.IGNORECASE)
_FIRST: Final = re.compile("nchw|ncdhw", re.IGNORECASE)


@dataclass(frozen=True)
class OnTensorCores:
    """Convolutions in single precision, and what their kernels take on tensor cores.

    Attributes:
        rows: their kernels, those beside them included.
        least_ns: the least that each may take; 0 for one that is gone.
        new_ns: what each takes.
        most_ns: the most.
        gone: which are not launched any more: transforms, as products need none there, and
            products for further parts of the frequencies.
    """

    rows: IntArray
    least_ns: AnyArray
    new_ns: AnyArray
    most_ns: AnyArray
    gone: BoolArray


def on_tensor_cores(kernels: Kernels, after: str, within: BoolArray) -> OnTensorCores:
    """Convolutions that run in single precision on the CUDA cores, in another type.

    Args:
        kernels: the device's kernels.
        after: the type, a key of :data:`SHARE`.
        within: operations that are looked at.
    """
    ops = kernels.gpu.ops
    mine = is_convolution(kernels) & (kernels.math == MATH_NAMES.index("fp32")) & within
    old = kernels.duration_ns.astype(np.float64)
    small = np.where(ops.matches("name", _SMALL_TILES), OF_SMALL_TILES, 1.0)
    parts = {bound: old * share * small for bound, share in SHARE[after].items()}
    call = _calls(kernels)
    by_shape = _of_shapes(kernels, np.where(within, call, -1), mine, after)
    rest = mine & (call < 0)
    run = _runs(kernels)
    if rest.any():
        rest |= _beside(kernels, rest, run) & within & (call < 0)
    known = ops.matches("name", _DEPTHWISE) & mine
    for part_of_old in parts.values():
        part_of_old[known] = old[known]
    for rows, part in by_shape:
        known[rows] = True
        parts["low"][rows] = old[rows] * part / SPREAD
        parts["expected"][rows] = old[rows] * part
        parts["high"][rows] = old[rows] * min(part * SPREAD, 1.0)
    rows = np.flatnonzero(rest | known | mine)
    group = np.where(call >= 0, call, len(call) + run)[rows]
    transforms = ops.matches("name", _TRANSFORM)[rows]
    least, new, most = (np.minimum(part, old)[rows] for part in parts.values())
    gone = transforms & (np.bincount(group, old[rows] * ~transforms)[group] > 0)
    gone |= _further(group, ops.matches("name", _IN_PARTS)[rows])
    least, new, most = (_left_to_others(lengths, gone, group) for lengths in (least, new, most))
    return OnTensorCores(rows, least, new, most, gone)


def _further(group: IntArray, products: BoolArray) -> BoolArray:
    """Products of a group beyond those that stay."""
    found = np.zeros(len(group), bool)
    rows = np.flatnonzero(products)
    rows = rows[np.argsort(group[rows], kind="stable")]
    begins = np.searchsorted(group[rows], group[rows])
    found[rows] = np.arange(len(rows)) - begins >= _GRADIENTS
    return found


def _left_to_others(lengths_ns: FloatArray, gone: BoolArray, group: IntArray) -> FloatArray:
    """Lengths where those that are gone leave theirs to the others of their group."""
    whole = np.bincount(group, lengths_ns)
    left = np.bincount(group, lengths_ns * ~gone)
    factor = np.divide(whole, left, out=np.ones(len(whole)), where=left > 0)
    found: FloatArray = np.where(gone, 0.0, lengths_ns * factor[group])
    return found


def is_convolution(kernels: Kernels) -> BoolArray:
    """Kernels that multiply for convolutions."""
    return kernels.in_category("convolution") | (
        kernels.in_category("matmul") & kernels.gpu.ops.matches("name", _WHOLE)
    )


def _around(kernels: Kernels) -> BoolArray:
    """Conversions and transforms, of convolutions or of other operators."""
    ops = kernels.gpu.ops
    found: BoolArray = ops.matches("name", _BESIDE) | ops.matches("name", LAYOUT_CHANGE)
    return found & kernels.gpu.is_compute


def _runs(kernels: Kernels) -> IntArray:
    """Number of the run of convolutions, and of what stands between them, of each operation."""
    part = _around(kernels) | is_convolution(kernels) | kernels.gpu.ops.equals("kind", "memset")
    found = np.zeros(len(part), np.int64)
    found[kernels.order] = np.cumsum(~part[kernels.order])  # each ends where something else stands
    return found


def _beside(kernels: Kernels, mine: BoolArray, run: IntArray) -> BoolArray:
    """Conversions and transforms that stand between some convolutions, and beside no others."""
    around = _around(kernels)
    others = is_convolution(kernels) & ~mine & ~around
    count = int(run.max(initial=0)) + 1
    mask: BoolArray = around & (np.bincount(run[mine], minlength=count) > 0)[run]
    return mask & ~(np.bincount(run[others], minlength=count) > 0)[run]


def _calls(kernels: Kernels) -> IntArray:
    """Row of the convolving operator with shapes that each operation belongs to; -1 for none."""
    table, operator = kernels.attribution.operators, kernels.attribution.operator
    if not len(table) or "input_shapes" not in table:
        return np.full(len(operator), -1, np.int64)
    names = [code for code, text in enumerate(table.texts["name"]) if _CALL.search(text)]
    at = np.maximum(operator, 0)
    convolves = (operator >= 0) & among(table["name"][at], np.array(names, np.int64))
    found: IntArray = np.where(convolves & (table["input_shapes"][at] >= 0), operator, -1)
    return found


def _of_shapes(
    kernels: Kernels, call: IntArray, mine: BoolArray, after: str
) -> list[tuple[IntArray, float]]:
    """Kernels of each call whose shapes tell, and what they take over what they took."""
    peaks = kernels.peaks
    if peaks is None or not kernels.bandwidth or not (call[mine] >= 0).any():
        return []
    peak, bandwidth = peaks.of(after), kernels.bandwidth
    smaller = 0.5 if after == "16bit" else 1.0
    table, ops = kernels.attribution.operators, kernels.gpu.ops
    last, first = ops.matches("name", _LAST), ops.matches("name", _FIRST)
    results = _results(kernels, call)
    rows = np.flatnonzero(call >= 0)
    rows = rows[np.argsort(call[rows], kind="stable")]
    bounds = np.flatnonzero(np.diff(call[rows], prepend=-2, append=-2))
    works: dict[tuple[int, int], _Work | None] = {}
    found: list[tuple[IntArray, float]] = []
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        here = rows[begin:end]
        if not mine[here].any():
            continue
        row = int(call[here[0]])
        key = int(table["name"][row]), int(table["input_shapes"][row])
        if key not in works:
            works[key] = _work(table.texts["name"][key[0]], table.texts["input_shapes"][key[1]],
                               results)  # fmt: skip
        work = works[key]
        if work is None:
            part = SHARE[after]["expected"]
        elif work.depthwise:
            part = 1.0
        else:
            in_order = bool(last[here[mine[here]]].all()) and not bool(first[here].any())
            rates = _RATES[work.backward, work.taps > 1, in_order]
            arithmetic = work.flop / (rates.peak * peak)
            traffic = work.moved_bytes * smaller / (rates.bandwidth * bandwidth)
            new = max(arithmetic, traffic) * 1e9 + rates.start_ns
            part = min(new / max(int(kernels.duration_ns[here].sum()), 1), 1.0)
        found.append((here, part))
    return found


@dataclass(frozen=True)
class _Work:
    """What a call computes and moves.

    Attributes:
        backward: whether it makes the gradients of input and weights.
        taps: positions of the filter.
        depthwise: whether each channel is by itself.
        flop: its FLOP.
        moved_bytes: input, weights and output in single precision, once for each result.
    """

    backward: bool
    taps: int
    depthwise: bool
    flop: float
    moved_bytes: float


def _results(kernels: Kernels, call: IntArray) -> dict[tuple[Shape, Shape], Shape]:
    """Shape of the result by those of input and weights, as backward passes tell it."""
    table = kernels.attribution.operators
    found = {}
    rows = distinct_values(call[call >= 0])
    for code in distinct_values(table["input_shapes"][rows]).tolist():
        shapes = _shapes(table.texts["input_shapes"][code])
        if len(shapes) >= 3:
            found[shapes[1], shapes[2]] = shapes[0]
    return found


def _work(name: str, text: str, results: dict[tuple[Shape, Shape], Shape]) -> _Work | None:
    """The work of one call; None where its shapes do not tell."""
    backward = name.endswith("backward")
    shapes = _shapes(text)
    if len(shapes) < (3 if backward else 2):
        return None
    given, weights = shapes[1:3] if backward else shapes[:2]
    # without a backward pass the result is taken to be as large as the input
    result = shapes[0] if backward else results.get((given, weights))
    if result is None:
        result = (given[0], weights[0], *given[2:])
    if len(given) != len(weights) or len(result) != len(given) or not weights[1]:
        return None
    # each weight is used at every place of the smaller one: of the result, of a transposed input
    places = given[0] * min(math.prod(given[2:]), math.prod(result[2:]))
    times = 2 if backward else 1
    elements = math.prod(given) + math.prod(result) + math.prod(weights)
    return _Work(
        backward=backward,
        taps=math.prod(weights[2:]),
        depthwise=weights[1] == 1 and given[1] == weights[0] > 1,
        flop=2.0 * places * math.prod(weights) * times,
        moved_bytes=4.0 * elements * times,
    )


def _shapes(text: str) -> list[Shape]:
    """Shapes with at least three dimensions: of images, and of filters."""
    return [shape for shape in shapes_of(text) if len(shape) >= 3 and min(shape) > 0]
