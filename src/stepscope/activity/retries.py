"""The wait between an allocation that was refused and the releases that make room for it.

PyTorch's allocator, out of memory, gives back what it keeps and tries again. A block that another
stream has used may only be given back once that stream is done with it: the host first waits for
all such events, and some recorders hold no call for that. It looks like work of the host.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from stepscope.intervals import overlap_per_window, union
from stepscope.trace.frame import BoolArray, Frame, IntArray

_ALLOCATES: Final = re.compile(r"^(cudaMalloc|hipMalloc|cuMemAlloc(_v2)?|cuMemCreate)$")
_RELEASES: Final = re.compile(r"^(cudaFree|hipFree|cuMemFree(_v2)?|cuMemUnmap|cuMemRelease)$")

LONG_NS: Final = 50_000
"""A silence from here on may be a wait; the allocator's own steps take a few us."""

_LEFT: Final = 0.1
"""Part of a wait that may pass after the end of what was waited for."""


def with_waits(calls: Frame, gpu: Frame) -> Frame:
    """The calls, with releases that follow such a wait beginning where it begins.

    The wait is known by what the device did: it was busy nearly all the time, and something ended
    as the first release began.

    Args:
        calls: CUDA calls in time order, with ``process_id``, ``thread_id`` and ``name``.
        gpu: operations of all devices.
    """
    releases = calls.matches("name", _RELEASES)
    if not releases.any():
        return calls
    order = np.lexsort((calls["start_ns"], calls["thread_id"], calls["process_id"]))
    earlier, later = order[:-1], order[1:]
    ahead = releases[later] & calls.matches("name", _ALLOCATES)[earlier]
    for column in ("process_id", "thread_id"):
        ahead &= calls[column][earlier] == calls[column][later]
    ahead &= calls["start_ns"][later] - calls["end_ns"][earlier] >= LONG_NS
    earlier, later = earlier[ahead], later[ahead]
    waited = np.zeros(len(later), bool)
    for process in set(calls["process_id"][later].tolist()):
        mine = calls["process_id"][later] == process
        begin, end = calls["end_ns"][earlier[mine]], calls["start_ns"][later[mine]]
        waited[mine] = _device_was_waited_for(gpu.take(gpu["process_id"] == process), begin, end)
    if not waited.any():
        return calls
    start = calls["start_ns"].copy()
    start[later[waited]] = calls["end_ns"][earlier[waited]]
    moved = replace(calls, columns={**calls.columns, "start_ns": start})
    return moved.take(np.argsort(start, kind="stable"))


def _device_was_waited_for(ops: Frame, begin: IntArray, end: IntArray) -> BoolArray:
    busy = overlap_per_window(union(ops["start_ns"], ops["end_ns"]), begin, end)
    ended = np.sort(ops["end_ns"])
    at = np.searchsorted(ended, end, side="right") - 1
    latest = np.where(at >= 0, ended[np.maximum(at, 0)], begin)
    left = np.maximum(LONG_NS, _LEFT * (end - begin))
    waited: BoolArray = (busy >= end - begin - left) & (latest > begin) & (latest >= end - left)
    return waited
