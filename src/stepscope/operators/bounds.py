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
    for group in groups.values():
        peak = kernels.peaks.of(group.math) if kernels.peaks else 0.0
        total = max(group.time_ns, 1)
        # kernels of one call share its work by their time
        share = duration[group.rows] / total * group.calls
        flop[group.rows] = group.work.flop * share
        moved[group.rows] = group.work.moved_bytes * share
        if peak and kernels.bandwidth:
            arithmetic_ns[group.rows] = group.work.flop * share / peak * 1e9
            known[group.rows] = True
        else:
            known[group.rows] = False
    memory_ns = moved / kernels.bandwidth * 1e9 if kernels.bandwidth else np.zeros(n)
    least = np.minimum(np.maximum(arithmetic_ns, memory_ns), duration)
    return KernelBounds(
        own_ns=own_time_ns(kernels),
        least_ns=np.where(known, np.rint(least), duration).astype(np.int64),
        known=known,
        by_arithmetic=known & (arithmetic_ns > memory_ns),
        flop=flop,
        moved_bytes=moved,
    )


def own_time_ns(kernels: Kernels) -> IntArray:
    """Time that each operation has the device to itself; operations at the same time share it.

    Compute kernels share with compute kernels only, as in the accounting of a step: copies,
    memory sets and communication count where no compute kernel runs. Their sum over compute
    kernels is the compute time, but for rounding.
    """
    gpu = kernels.gpu
    start, end = gpu.ops["start_ns"], gpu.ops["end_ns"]
    own = np.zeros(len(start))
    compute = np.flatnonzero(gpu.is_compute)
    own[compute] = _shared(start[compute], end[compute])
    rest = np.flatnonzero(~gpu.is_compute)
    if len(rest):
        shared = _shared(start[rest], end[rest])
        busy = gpu.union_of(gpu.is_compute)
        length = end[rest] - start[rest]
        covered = np.zeros(len(rest), np.int64)
        if len(busy[0]):
            covered = _covered(busy[0], busy[1], start[rest], end[rest])
        own[rest] = shared * (1 - covered / np.maximum(length, 1))
    return np.rint(own).astype(np.int64)


def _shared(start: IntArray, end: IntArray) -> Floats:
    """Length of each interval, where each moment is shared by all that are open then."""
    if not len(start):
        return np.zeros(0)
    times = np.concatenate((start, end))
    change = np.concatenate((np.ones(len(start), np.int64), np.full(len(end), -1)))
    order = np.lexsort((change, times))
    at, is_open = times[order], np.cumsum(change[order])
    length = np.diff(at, append=at[-1])
    passed = np.concatenate(([0.0], np.cumsum(length / np.maximum(is_open, 1))[:-1]))
    # the first and the last place of a time have the same sum: between them no time passes
    begun = passed[np.searchsorted(at, start)]
    done = passed[np.searchsorted(at, end)]
    found: Floats = done - begun
    return found


def _covered(begin: IntArray, stop: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """How much of each interval disjoint sorted intervals cover."""
    before = np.concatenate(([0], np.cumsum(stop - begin)))

    def upto(at: IntArray) -> IntArray:
        row = np.searchsorted(begin, at, side="right")
        last = np.maximum(row - 1, 0)
        inside = np.where(row > 0, np.minimum(at, stop[last]) - begin[last], 0)
        return before[last] + inside

    return upto(end) - upto(start)
