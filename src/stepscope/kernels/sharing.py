"""Operations that run at the same time, and the part of the device's time that each has."""

from __future__ import annotations

import numpy as np

from stepscope.activity.device import GpuTimeline
from stepscope.trace.frame import FloatArray, IntArray


def own_time_ns(gpu: GpuTimeline) -> IntArray:
    """Time that each operation has the device to itself; operations at the same time share it.

    Compute kernels share with compute kernels only, as in the accounting of a step: copies,
    memory sets and communication count where no compute kernel runs. Their sum over compute
    kernels is the compute time, but for rounding.
    """
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


def _shared(start: IntArray, end: IntArray) -> FloatArray:
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
    found: FloatArray = done - begun
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
