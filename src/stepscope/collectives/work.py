"""How much work each rank was given, whatever time it took for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.collectives.calls import Participant
from stepscope.collectives.exposure import Windows
from stepscope.trace.frame import IntArray

_SHAPE = ("id", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


@dataclass(frozen=True)
class Work:
    """Work of every device in every window; arrays are windows x devices.

    Attributes:
        kernels: compute kernels that began.
        threads: threads that they were launched with.
    """

    kernels: IntArray
    threads: IntArray


def work(participants: list[Participant], own_windows: list[Windows]) -> Work:
    """Count the work that begins in each window (on each device's own clock)."""
    columns = []
    for p, (begin, end) in zip(participants, own_windows, strict=True):
        ops = p.lane.ops
        shape = p.read("gpu_op", *_SHAPE)
        at = np.searchsorted(shape["id"], ops["id"])
        threads = np.ones(len(ops), np.int64)
        for name in _SHAPE[1:]:
            threads *= np.maximum(shape[name][at], 1).astype(np.int64)
        kernel = p.lane.is_compute
        start = ops["start_ns"]
        low, high = np.searchsorted(start, begin), np.searchsorted(start, end)
        columns.append(
            [
                _sums(weight, low, high)
                for weight in (
                    kernel.astype(np.int64),
                    np.where(kernel, threads, 0),
                )
            ]
        )
    kernels, launched = (np.stack([c[i] for c in columns], axis=1) for i in range(2))
    return Work(kernels, launched)


def _sums(weight: IntArray, low: IntArray, high: IntArray) -> IntArray:
    done = np.concatenate(([0], np.cumsum(weight)))
    found: IntArray = done[high] - done[low]
    return found
