"""Calls that loaded device code or initialised a library: the first of their kind, and long.

With lazy loading (``CUDA_MODULE_LOADING=LAZY``, the default) the code of a kernel is loaded by its
first launch, and contexts and libraries are initialised by the first call that needs them. Every
name has a first call in a capture, also in one that begins in the middle of a run; it is the length
of the call that tells loading, on a device that has nothing to do meanwhile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.device import Lane
from stepscope.intervals import overlap_per_window, union
from stepscope.intervals.distinct import among
from stepscope.trace.frame import BoolArray, IntArray

LOADING_NS: Final = 5_000_000
"""A first call that takes less is no loading that matters: calls take 2 to 20 us, and up to some
milliseconds where the operating system takes their thread off its core."""

_LONGER: Final = 10
"""A first call is this many times as long as what is usual later, or it is like the others."""

_IDLE: Final = 0.5
"""Share of the call in which the device has nothing to do; else it may wait for the device."""

_LAUNCH: Final = re.compile(r"^(cuda|cu|hip)\w*(Launch\w*Kernel|LaunchGridAsync|LaunchKernel)")
_OTHER: Final = re.compile(
    r"Graph|Capture|Profiler|Synchronize|WaitValue|WaitEvent|EventQuery|StreamQuery|Memcpy"
)
"""Calls that wait, copy, replay, or belong to a tool: their length means something else."""


@dataclass(frozen=True)
class FirstCalls:
    """The calls that loaded or initialised something, longest first.

    Attributes:
        call: row of ``host.api``.
        op: row of ``lane.ops`` that a launch enqueued; -1 for other calls.
    """

    call: IntArray
    op: IntArray

    def __len__(self) -> int:
        return len(self.call)


FIRST_LAUNCH: Final = "the first launch of a kernel, and long"
FIRST_CALL: Final = "the first call of its name, and long"
FIRST_EVIDENCE: Final = (FIRST_LAUNCH, FIRST_CALL)
"""How the ``host_event`` table tells these calls from what else compiles."""


def first_calls(lane: Lane) -> FirstCalls:
    """The first launches and calls that loaded device code or initialised a library."""
    api = lane.host.api
    none = np.empty(0, np.int64)
    if not len(api):
        return FirstCalls(none, none)
    launch = _first_launches(lane)
    kind = _first_of_kind(lane)
    call = np.concatenate((lane.call[launch], kind))
    op = np.concatenate((launch, np.full(len(kind), -1, np.int64)))
    start, end = api["start_ns"][call], api["end_ns"][call]
    rows = among(api["thread_id"][call], lane.host.launch_threads)
    # a wait for the device, or a tool that writes its records, makes any call long
    elsewhere = union(
        np.concatenate((lane.busy[0], lane.host.overhead["start_ns"])),
        np.concatenate((lane.busy[1], lane.host.overhead["end_ns"])),
    )
    rows &= overlap_per_window(elsewhere, start, end) <= (1 - _IDLE) * (end - start)
    order = np.flatnonzero(rows)
    order = order[np.argsort((start - end)[order], kind="stable")]
    return FirstCalls(call[order], op[order])


def _first_launches(lane: Lane) -> IntArray:
    """Operations whose kernel's name was never launched before, by a long call."""
    api, ops = lane.host.api, lane.ops
    launched = lane.is_kernel & (lane.call >= 0)
    rows = np.flatnonzero(launched)
    if not len(rows):
        return rows
    rows = rows[api.matches("name", _LAUNCH)[lane.call[rows]]]
    took = (api["end_ns"] - api["start_ns"])[lane.call[rows]]
    order = np.argsort(lane.enqueue_begin_ns[rows], kind="stable")
    rows, took = rows[order], took[order]
    return rows[_long_firsts(ops["name"][rows], took)]


def _first_of_kind(lane: Lane) -> IntArray:
    """Calls other than launches that are the first of their name, and long.

    An allocation may take long for its size. It counts where the later ones of its name are short,
    or before the first kernel was launched.
    """
    api = lane.host.api
    rows = np.flatnonzero(~api.matches("name", _LAUNCH) & ~api.matches("name", _OTHER))
    took = (api["end_ns"] - api["start_ns"])[rows]
    firsts = rows[_long_firsts(api["name"][rows], took)]
    if not len(firsts):
        return firsts
    allocates = api.matches("name", words.ALLOCATION_CALL)[firsts]
    again = np.bincount(api["name"])[api["name"][firsts]] > 1
    launches = lane.call[lane.is_kernel & (lane.call >= 0)]
    begun = api["start_ns"][launches].min() if len(launches) else np.iinfo(np.int64).max
    return firsts[~allocates | again | (api["start_ns"][firsts] < begun)]


def _long_firsts(name: IntArray, took_ns: IntArray) -> BoolArray:
    """Rows that are the first of their name, and far longer than usual.

    Usual is the median of the later ones of the same name; without any, of all.
    """
    if not len(name):
        return np.zeros(0, bool)
    order = np.lexsort((np.arange(len(name)), name))
    begins = np.flatnonzero(np.diff(name[order], prepend=-2))
    counts = np.diff(np.append(begins, len(name)))
    first = np.zeros(len(name), bool)
    first[order[begins]] = True
    # within each name by length, its first row left out
    by_length = np.lexsort((took_ns, ~first, name))
    later = by_length[begins + 1 + (counts - 2) // 2]
    usual = np.full(len(name), float(np.median(took_ns)))
    usual[order[begins]] = np.where(counts > 1, took_ns[later], np.median(took_ns))
    return first & (took_ns >= LOADING_NS) & (took_ns >= _LONGER * usual)
