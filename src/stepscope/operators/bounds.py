"""What the ceilings of a device allow for each of its operations: the roofline of a whole step.

An operation whose work is known takes at least the longer of its arithmetic at the peak rate and
its bytes at the peak bandwidth. Work is known of GEMMs, convolutions and attention where
operators have recorded shapes, and of copies, sets and contiguous elementwise kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.activity.device import Reader
from stepscope.kernels.categories import PRODUCTS
from stepscope.kernels.fusion import WAITING
from stepscope.kernels.kernels import Kernels
from stepscope.operators.roofline import operator_groups
from stepscope.trace.frame import BoolArray, IntArray

Floats = npt.NDArray[Any]


@dataclass(frozen=True)
class KernelBounds:
    """One value an operation of ``GPU.ops``.

    Attributes:
        own_ns: device time that it has to itself: operations that run at the same time share it.
        least_ns: what it takes at least; its own length where that is all that is known.
        known: whether its work is known.
        by_arithmetic: whether arithmetic rather than memory sets ``least_ns``.
        flop: its floating-point operations; 0 where not known.
        moved_bytes: least bytes that it reads and writes; 0 where not known.
    """

    own_ns: IntArray
    least_ns: IntArray
    known: BoolArray
    by_arithmetic: BoolArray
    flop: Floats
    moved_bytes: Floats


def kernel_bounds(kernels: Kernels, read: Reader) -> KernelBounds:
    """What the device's ceilings allow.

    A product that would be faster than the ceilings (what it read was in a cache, or its work was
    counted too high) is taken for one at the ceiling.

    Args:
        kernels: the device's kernels.
        read: gives tables as frames.
    """
    n = len(kernels.gpu.ops)
    duration = kernels.duration_ns
    flop, moved = np.zeros(n), kernels.moved_bytes.astype(float)
    arithmetic_ns = np.zeros(n)
    known = (moved > 0) & (kernels.bandwidth > 0)
    groups, _ = operator_groups(kernels, read)
    product, waiting = kernels.in_category(*PRODUCTS), kernels.in_category(*WAITING)
    for group in groups.values():
        peak = kernels.peaks.of(group.math) if kernels.peaks else 0.0
        rows = _working(group.rows, product, ~waiting)
        # several kernels of one call share its work by their time
        share = duration[rows] / max(int(duration[rows].sum()), 1) * group.calls
        flop[rows] = group.work.flop * share
        moved[rows] = group.work.moved_bytes * share
        if peak and kernels.bandwidth:
            arithmetic_ns[rows] = group.work.flop * share / peak * 1e9
            known[rows] = True
        else:
            known[rows] = False
    memory_ns = moved / kernels.bandwidth * 1e9 if kernels.bandwidth else np.zeros(n)
    least = np.minimum(np.maximum(arithmetic_ns, memory_ns), duration)
    return KernelBounds(
        own_ns=kernels.own_ns,
        least_ns=np.where(known, np.rint(least), duration).astype(np.int64),
        known=known,
        by_arithmetic=known & (arithmetic_ns > memory_ns),
        flop=flop,
        moved_bytes=moved,
    )


def _working(rows: IntArray, *likely: BoolArray) -> IntArray:
    """The kernels of an operator that do its arithmetic: the likeliest that are among them.

    A convolution also launches transposes, and a GEMM a sum of its parts or a copy of its bias.
    """
    chosen = (rows[mask[rows]] for mask in likely)
    return next((mine for mine in chosen if len(mine)), rows)
