"""Matrix products and convolutions in single precision that tensor cores could do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.kernels.peaks import Peaks
from stepscope.kernels.repair import Repair, scaled
from stepscope.kernels.view import MATH_NAMES, Kernels

GENERAL_ATTAINED = 0.8
"""Share of the peak that large single-precision products attain on the general cores."""

TENSOR_ATTAINED = 0.55
"""Share of the dense peak that products of the same size attain on tensor cores: they need 7 to 15
times the operands a second, so that memory and launches weigh more."""


_FASTER = 1.5


@dataclass(frozen=True)
class LowPrecision:
    """Single-precision products of the steady window.

    Attributes:
        repair: the kernels, and TF32 (or BF16) instead.
        total_ns: their time.
        ratio: how many times faster they are assumed to be then.
        peaks: the device's data sheet.
    """

    repair: Repair
    total_ns: int
    ratio: float
    peaks: Peaks


def low_precision(kernels: Kernels) -> LowPrecision | None:
    """Products on the general cores of a device that has tensor cores for them.

    Returns:
        None where there are none, the device has no tensor cores for TF32 or BF16, or its rates
        are not in the table.
    """
    peaks = kernels.peaks
    if peaks is None or not peaks.half:
        return None
    single = kernels.in_family("matmul", "convolution")
    single &= kernels.math == MATH_NAMES.index("fp32")
    rows = np.flatnonzero(single & kernels.steady)
    if not len(rows):
        return None
    attained = TENSOR_ATTAINED / GENERAL_ATTAINED
    # on some products TF32 is no faster than the general cores, only BF16 is
    rate = peaks.tf32 if peaks.tf32 > _FASTER * peaks.fp32 else peaks.half
    ratio = max(rate / peaks.fp32 * attained, 1.0)
    best = max(peaks.half / peaks.fp32 * attained, ratio)
    total = int(kernels.duration_ns[rows].sum())
    repair = Repair(
        rows=rows,
        old_ns=kernels.duration_ns[rows],
        new_ns=scaled(kernels.duration_ns[rows], 1 / ratio),
        merged=np.zeros(len(rows), bool),
        idle_ns=np.zeros(len(rows), np.int64),
        low_ns=int(total / best),
        # small products gain less: half the ratio
        high_ns=int(total / max(ratio / 2, 1.0)),
    )
    return LowPrecision(repair, total, ratio, peaks)
