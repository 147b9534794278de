"""GEMMs in another type: what they take on the cores that multiply it."""

from __future__ import annotations

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
    new = np.rint(in_precision(kernels, rows, after)).astype(np.int64)
    total, usual = int(old.sum()), int(new.sum())
    most = np.where(old >= SHORT_NS, new * SPREAD, new * 2)
    repair = Repair(
        rows=rows,
        old_ns=old,
        new_ns=new,
        merged=np.zeros(len(rows), bool),
        idle_ns=np.zeros(len(rows), np.int64),
        low_ns=int(usual / SPREAD),
        high_ns=int(np.minimum(most, old).sum()),
    )
    return LowPrecision(repair, total, total / max(usual, 1), peaks, after)
