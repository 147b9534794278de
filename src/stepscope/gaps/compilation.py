"""Where the program compiles or loads device code while it trains.

With lazy loading (``CUDA_MODULE_LOADING=LAZY``, the default) the code of a kernel is loaded by its
first launch, and contexts and libraries are initialised by the first call that needs them. Every
name has a first call in a capture, also in one that begins in the middle of a run; it is the length
of the call that tells loading, on a device that has nothing to do meanwhile.

Compilers that run in the program say so in ranges and Python functions. Without those, what they
leave is a silence of the host that ends with loading a module, or with the first launch of a
kernel whose name a run-time compiler gave, or that lies inside an operator whose library plans for
each new shape. A CUDA graph is compiled while it is captured. Compilers also work on threads of
their own: that counts while the launching threads are silent and not known to do anything else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline, Reader
from stepscope.activity.host import LONG_UNTRACED_NS
from stepscope.intervals import intersect, overlap_per_window, subtract, union
from stepscope.intervals.algebra import Intervals
from stepscope.intervals.distinct import among, with_first
from stepscope.trace.frame import BoolArray, Frame, IntArray

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
        op: row of ``GPU.ops`` that a launch enqueued; -1 for other calls.
    """

    call: IntArray
    op: IntArray

    def __len__(self) -> int:
        return len(self.call)


FIRST_LAUNCH: Final = "the first launch of a kernel, and long"
FIRST_CALL: Final = "the first call of its name, and long"
FIRST_EVIDENCE: Final = (FIRST_LAUNCH, FIRST_CALL)
"""How the ``host_event`` table tells these calls from what else compiles."""


def first_calls(gpu: GpuTimeline) -> FirstCalls:
    """The first launches and calls that loaded device code or initialised a library."""
    api = gpu.host.api
    none = np.empty(0, np.int64)
    if not len(api):
        return FirstCalls(none, none)
    launch = _first_launches(gpu)
    kind = _first_of_kind(gpu)
    call = np.concatenate((gpu.call[launch], kind))
    op = np.concatenate((launch, np.full(len(kind), -1, np.int64)))
    start, end = api["start_ns"][call], api["end_ns"][call]
    rows = among(api["thread_id"][call], gpu.host.launch_threads)
    rows &= ~_held_up(gpu, call)
    order = np.flatnonzero(rows)
    order = order[np.argsort((start - end)[order], kind="stable")]
    return FirstCalls(call[order], op[order])


def _held_up(gpu: GpuTimeline, call: IntArray) -> BoolArray:
    """Calls made long by a wait for the device, or by a tool that writes its records."""
    start, end = (gpu.host.api[name][call] for name in ("start_ns", "end_ns"))
    elsewhere = union(
        np.concatenate((gpu.busy[0], gpu.host.overhead["start_ns"])),
        np.concatenate((gpu.busy[1], gpu.host.overhead["end_ns"])),
    )
    held: BoolArray = overlap_per_window(elsewhere, start, end) > (1 - _IDLE) * (end - start)
    return held


def _first_launches(gpu: GpuTimeline) -> IntArray:
    """Operations whose kernel's name was never launched before, by a long call."""
    api, ops = gpu.host.api, gpu.ops
    launched = gpu.is_kernel & (gpu.call >= 0)
    rows = np.flatnonzero(launched)
    if not len(rows):
        return rows
    rows = rows[api.matches("name", _LAUNCH)[gpu.call[rows]]]
    took = (api["end_ns"] - api["start_ns"])[gpu.call[rows]]
    order = np.argsort(gpu.enqueue_begin_ns[rows], kind="stable")
    rows, took = rows[order], took[order]
    return rows[_long_firsts(ops["name"][rows], took)]


def _first_of_kind(gpu: GpuTimeline) -> IntArray:
    """Calls other than launches that are the first of their name, and long.

    An allocation may take long for its size. It counts where the later ones of its name are short,
    or before the first kernel was launched.
    """
    api = gpu.host.api
    rows = np.flatnonzero(~api.matches("name", _LAUNCH) & ~api.matches("name", _OTHER))
    took = (api["end_ns"] - api["start_ns"])[rows]
    firsts = rows[_long_firsts(api["name"][rows], took)]
    firsts = firsts[~_held_up(gpu, firsts)]
    if not len(firsts):
        return firsts
    firsts = np.concatenate((firsts, _continued(gpu, rows, firsts)))
    allocates = api.matches("name", words.ALLOCATION_CALL)[firsts]
    again = np.bincount(api["name"])[api["name"][firsts]] > 1
    launches = gpu.call[gpu.is_kernel & (gpu.call >= 0)]
    begun = api["start_ns"][launches].min() if len(launches) else np.iinfo(np.int64).max
    return firsts[~allocates | again | (api["start_ns"][firsts] < begun)]


def _continued(gpu: GpuTimeline, rows: IntArray, firsts: IntArray) -> IntArray:
    """Long calls that go on with a first one: of its name and thread, with no other call between.

    A library makes sure that there is a context by freeing nothing, once for each part of its own.
    """
    api = gpu.host.api
    found = []
    for first in firsts.tolist():
        thread = np.flatnonzero(api["thread_id"] == api["thread_id"][first])
        for row in thread[np.searchsorted(thread, first) + 1 :].tolist():
            took = int(api["end_ns"][row] - api["start_ns"][row])
            if api["name"][row] != api["name"][first] or took < LOADING_NS:
                break
            found.append(row)
    later = np.array(found, np.int64)
    return later[among(later, rows)]


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


_MOST: Final = 0.9
"""Share of a silence that an operator must hold; the rest lies before it begins."""

_TIMING: Final = re.compile(r"^(cuda|cu|hip)Event(Synchronize|ElapsedTime)")

_END_CAPTURE: Final = re.compile(r"^(cuda|cu|hip)(StreamEndCapture|GraphInstantiate)")


def compile_time(
    gpu: GpuTimeline,
    read: Reader,
    quiet: Intervals,
    second_step_ns: int,
    loading: FirstCalls,
    input_time: Intervals,
) -> Intervals:
    """When the launching threads compile or load device code, calls that say so left out.

    Args:
        gpu: the device.
        read: gives tables as frames.
        quiet: long untraced CPU time of the launching threads, a disjoint set, ns.
        second_step_ns: from when on a kernel that was not seen before is new; in the first
            recorded step every kernel is seen for the first time.
        loading: first calls that loaded code; each stays an interval of its own.
        input_time: when the launching threads are known to get input.
    """
    quiet_here = subtract(quiet, input_time)
    parts = [_named(gpu, read, quiet_here), _before_loading(gpu, quiet), _captures(gpu)]
    parts.append(_before_captures(gpu, quiet))
    parts.append(_before_new_kernels(gpu, quiet, second_step_ns))
    parts.append(_planning(gpu, read, quiet))
    parts.append(_searches(gpu, read))
    parts.append(gpu.host.loading)
    found = union(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))
    api = gpu.host.api
    calls = union(api["start_ns"][loading.call], api["end_ns"][loading.call])
    found = subtract(found, calls)
    start = np.concatenate((found[0], calls[0]))
    order = np.argsort(start, kind="stable")
    return start[order], np.concatenate((found[1], calls[1]))[order]


def _named(gpu: GpuTimeline, read: Reader, quiet: Intervals) -> Intervals:
    host = gpu.host
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]

    def add(rows: Frame, hits: BoolArray) -> None:
        launching = among(rows["thread_id"], host.launch_threads)
        starts.append(rows["start_ns"][hits & launching])
        ends.append(rows["end_ns"][hits & launching])
        beside = hits & ~launching
        found = intersect(union(rows["start_ns"][beside], rows["end_ns"][beside]), quiet)
        starts.append(found[0])
        ends.append(found[1])

    if len(host.ranges):
        add(host.ranges, words.hits(host.ranges, "name", words.is_compile_range))
    for table in ("python_function", "operator"):
        rows = read(table, "process_id", "thread_id", "start_ns", "end_ns", "name")
        if len(rows):
            if table == "operator":
                hits = words.hits(rows, "name", words.is_compile_range)
            else:
                hits = rows.matches("name", words.COMPILE_FUNCTION)
            add(rows, hits & (rows["process_id"] == gpu.process_id))
    return np.concatenate(starts), np.concatenate(ends)


def _before_loading(gpu: GpuTimeline, quiet: Intervals) -> Intervals:
    """Silences after which the thread's first real call loads a module."""
    api = gpu.host.api
    if not len(api):
        return quiet[0][:0], quiet[1][:0]
    loading = api.matches("name", words.MODULE_CALL)
    real = ~api.matches("name", words.QUERY_CALL) & among(api["thread_id"], gpu.host.launch_threads)
    rows = np.append(np.flatnonzero(real), len(api))
    following = rows[np.searchsorted(api["start_ns"][rows[:-1]], quiet[1])]
    hits = np.append(loading, False)[following]
    return quiet[0][hits], quiet[1][hits]


def _before_new_kernels(gpu: GpuTimeline, quiet: Intervals, second_step_ns: int) -> Intervals:
    """Silences after which the first operation is a compiled kernel that was not seen before."""
    ops = gpu.ops
    enqueued = gpu.enqueue_begin_ns
    order = np.argsort(enqueued, kind="stable")
    first_of_name = np.zeros(len(ops), bool)
    first_of_name[order[with_first(ops["name"][order])[1]]] = True
    new = first_of_name & gpu.is_kernel & ops.matches("name", words.COMPILED_KERNEL)
    new &= enqueued >= second_step_ns
    is_new: IntArray = np.append(new[order], False)
    hits = is_new[np.searchsorted(enqueued[order], quiet[1])].astype(bool)
    return quiet[0][hits], quiet[1][hits]


def _planning(gpu: GpuTimeline, read: Reader, quiet: Intervals) -> Intervals:
    """Silences inside an operator whose library plans for each new shape."""
    rows = read("operator", "process_id", "thread_id", "start_ns", "end_ns", "name")
    if not len(rows):
        return quiet[0][:0], quiet[1][:0]
    mine = rows.matches("name", words.PLANNING_OPERATOR) & (rows["process_id"] == gpu.process_id)
    mine &= among(rows["thread_id"], gpu.host.launch_threads)
    held = union(rows["start_ns"][mine], rows["end_ns"][mine])
    hits = overlap_per_window(held, quiet[0], quiet[1]) >= _MOST * (quiet[1] - quiet[0])
    return quiet[0][hits], quiet[1][hits]


def _searches(gpu: GpuTimeline, read: Reader) -> Intervals:
    """Operators that wait for events of their own: their library times its algorithms.

    A convolution enqueues its work and returns. cuDNN's search (``cudnn.benchmark``, and each new
    shape again) runs one algorithm after the other in it, between two events, and allocates room
    for each.
    """
    rows = read("operator", "process_id", "thread_id", "start_ns", "end_ns", "name")
    api = gpu.host.api
    none = np.empty(0, np.int64)
    if not len(rows) or not len(api):
        return none, none
    mine = rows.matches("name", words.PLANNING_OPERATOR) & (rows["process_id"] == gpu.process_id)
    mine &= among(rows["thread_id"], gpu.host.launch_threads)
    start, end = rows["start_ns"][mine], rows["end_ns"][mine]
    timed = api.matches("name", _TIMING) & among(api["thread_id"], gpu.host.launch_threads)
    at = np.sort(api["start_ns"][timed])
    held = np.searchsorted(at, end) > np.searchsorted(at, start)
    return start[held], end[held]


def _before_captures(gpu: GpuTimeline, quiet: Intervals) -> Intervals:
    """Silences between a synchronisation and the begin of a capture.

    Before PyTorch captures a graph it synchronises, collects garbage, which takes long, gives back
    what its allocator keeps, and fills the seeds of the random numbers. What is copied in between
    is another matter.
    """
    api = gpu.host.api
    none = np.empty(0, np.int64)
    if not len(api):
        return none, none
    mine = np.flatnonzero(among(api["thread_id"], gpu.host.launch_threads))
    start = api["start_ns"][mine]
    behind = np.searchsorted(start, quiet[1])
    waited = np.append(api.matches("name", words.SYNC_CALL)[mine], False)[behind - 1]
    begins = api.matches("name", words.BEGIN_CAPTURE)[mine]
    copies = np.cumsum(np.append(0, api.matches("name", words.COPY_CALL)[mine]))
    rows = np.append(np.flatnonzero(begins), len(mine))
    following = rows[np.searchsorted(rows, behind)]
    at = np.append(start, np.iinfo(np.int64).max)[following]
    hits = waited & (at - quiet[1] < LONG_UNTRACED_NS) & (copies[following] == copies[behind])
    return quiet[0][hits], quiet[1][hits]


def _captures(gpu: GpuTimeline) -> Intervals:
    """From the begin of each capture of a CUDA graph to its end or its instantiation."""
    api = gpu.host.api
    none = np.empty(0, np.int64)
    if not len(api):
        return none, none
    begin = api["start_ns"][api.matches("name", words.BEGIN_CAPTURE)]
    ends = np.sort(api["end_ns"][api.matches("name", _END_CAPTURE)])
    index = np.searchsorted(ends, begin, side="right")
    closed = index < len(ends)
    # The instantiation that follows is a part of it; the next capture is not.
    until = np.searchsorted(ends, np.append(begin[1:], np.iinfo(np.int64).max), side="left") - 1
    last = np.maximum(np.minimum(index + 1, until), index)[closed]
    return begin[closed], ends[last] if len(ends) else none
