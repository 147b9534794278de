"""GEMMs in another type: what they take on the cores that multiply it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from stepscope.kernels.ceilings import Peaks
from stepscope.kernels.efficiency import product_work
from stepscope.kernels.kernels import MATH_NAMES, Kernels, Repair
from stepscope.trace.frame import IntArray

FloatArray = npt.NDArray[np.float64]

ACHIEVED: Final = {"fp64": 0.8, "fp32": 0.8, "tf32": 0.62, "16bit": 0.72, "8bit": 0.54}
"""Share of the dense peak that cuBLAS achieves in large GEMMs, by type. Measured on an H200
with GEMMs of 8192 x 1024 x 1024 to 16384: 0.76 in single precision, 0.63 in TF32, 0.77 in BF16.
Tensor cores need 7 to 15 times the operands a second, so that memory weighs more; FP8 pays for
scaling."""

SHORT_NS = 100_000
"""Shorter GEMMs do not fill the quicker cores as they fill the slower ones."""

SPREAD: Final = 1.2
"""How far the achieved share is from :data:`ACHIEVED`, either way."""

CONVOLUTION: Final = 0.8
"""What the tensor cores gain in convolutions over what they gain in GEMMs, without the conversions
around them. Residual networks of 64 and 96 channels (H200, cuDNN): 23 TFLOP/s on the
CUDA cores, 107 in TF32, which is 4.5 times, where GEMMs gain 5.7 times."""

CONVERTED: Final = {"low": 0.25, "expected": 0.65, "high": 1.0}
"""Conversions around convolutions on tensor cores, which work with channels last, where the
program's channels come first: over the time of the convolutions. Of tensors in single precision
0.26, 0.63 and 0.76 in three programs (TF32); of 19 programs in half precision 0.13 to 1.17, half of
them 0.54 to 0.91."""

_CHANNELS_LAST: Final = re.compile("nhwc", re.IGNORECASE)
_FIRST: Final = re.compile("nchw", re.IGNORECASE)
_GROUPED: Final = re.compile(r"depthwise|dgrouped|_grouped_|_g(?!1_)\d+_", re.IGNORECASE)
"""Convolutions of few channels each: they wait for memory on whichever cores they run."""

_FASTER = 1.5
_LEAST_NS = 2_000.0
_ITEM_BYTES: Final = {"fp64": 8, "fp32": 4, "tf32": 4, "16bit": 2, "8bit": 1, "tensor": 2}


@dataclass(frozen=True)
class LowPrecision:
    """Single-precision GEMMs of the steady window.

    Attributes:
        repair: the kernels, and TF32 (or BF16) instead.
        total_ns: their time.
        ratio: how many times faster they are assumed to be then.
        peaks: the device's datasheet.
        after: the type, a key of ``categories.MATHS``.
    """

    repair: Repair
    total_ns: int
    ratio: float
    peaks: Peaks
    after: str


def in_precision(kernels: Kernels, rows: IntArray, after: str) -> FloatArray:
    """What GEMMs take in another type, ns.

    The time that they take, over the ratio of what is achieved of both types' peaks; not less than
    the achieved rate and the memory allow where their shapes are known.

    Args:
        kernels: the device's kernels.
        rows: GEMMs whose type is known (``Kernels.math``), on a device whose peaks are.
        after: the type, a key of ``categories.MATHS``.
    """
    peaks = kernels.peaks
    old = kernels.duration_ns[rows].astype(np.float64)
    if peaks is None or not peaks.of(after):
        return old
    reached = np.array([peaks.of(name) * ACHIEVED.get(name, 0.0) for name in MATH_NAMES])
    sizes = np.array([_ITEM_BYTES[name] for name in MATH_NAMES])
    before = np.where(reached > 0, reached, np.inf)[kernels.math[rows]]
    rate = peaks.of(after) * ACHIEVED[after]
    flop, moved = product_work(kernels)
    arithmetic = flop[rows] / rate * 1e9
    smaller = _ITEM_BYTES[after] / sizes[kernels.math[rows]]
    traffic = moved[rows] * smaller / (kernels.attainable_bandwidth or np.inf) * 1e9
    new = np.maximum(np.maximum(old * before / rate, arithmetic), np.maximum(traffic, _LEAST_NS))
    return np.minimum(np.where(np.isfinite(before), new, old), old)


def _convolved(
    kernels: Kernels, rows: IntArray, plain_ns: FloatArray, converted: float
) -> FloatArray:
    """Products on tensor cores as they are, convolutions with what else they need there, ns.

    Args:
        kernels: the device's kernels.
        rows: products on the CUDA cores.
        plain_ns: what they took if all were GEMMs.
        converted: what conversions take, over the convolutions between them.
    """
    old = kernels.duration_ns[rows].astype(np.float64)
    named = kernels.gpu.ops
    convolution = kernels.in_category("convolution")[rows]
    last = named.matches("name", _CHANNELS_LAST)[rows] & ~named.matches("name", _FIRST)[rows]
    grouped = convolution & named.matches("name", _GROUPED)[rows]
    here = plain_ns / CONVOLUTION * np.where(last, 1.0, 1.0 + converted)
    new = np.where(grouped, old, np.where(convolution, here, plain_ns))
    found: FloatArray = np.minimum(new, old)
    return found


def low_precision(kernels: Kernels) -> LowPrecision | None:
    """GEMMs on the CUDA cores of a device that has tensor cores for them.

    Returns:
        None where there are none, the device has no tensor cores for TF32 or BF16, or its rates
        are not in the table.
    """
    peaks = kernels.peaks
    if peaks is None or not peaks.half:
        return None
    single = kernels.in_category("matmul", "convolution")
    single &= kernels.math == MATH_NAMES.index("fp32")
    rows = np.flatnonzero(single & kernels.steady)
    if not len(rows):
        return None
    # on some GEMMs TF32 is no faster than the CUDA cores, only BF16 is
    after = "tf32" if peaks.tf32 > _FASTER * peaks.fp32 else "16bit"
    old = kernels.duration_ns[rows]
    plain = in_precision(kernels, rows, after)
    least, new, most = (
        np.rint(_convolved(kernels, rows, plain, converted)).astype(np.int64)
        for converted in CONVERTED.values()
    )
    total, usual = int(old.sum()), int(new.sum())
    most = np.where(old >= SHORT_NS, most * SPREAD, most * 2)
    repair = Repair(
        rows=rows,
        old_ns=old,
        new_ns=new,
        merged=np.zeros(len(rows), bool),
        idle_ns=np.zeros(len(rows), np.int64),
        low_ns=int(least.sum() / SPREAD),
        high_ns=int(np.minimum(most, old).sum()),
    )
    return LowPrecision(repair, total, total / max(usual, 1), peaks, after)
