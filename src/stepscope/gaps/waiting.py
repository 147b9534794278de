"""In which calls the host waits for the device, for what, and on whose behalf.

DistributedDataParallel times its first iterations: at the beginning of ``forward`` its logger waits
for the events of the iteration before, up to four pairs of them (in PyTorch's ``c10d``:
``Logger::set_runtime_stats_and_log``, ``CudaTimer::measureDifference``). It does so in the first
ten iterations and in every hundredth after them (``Reducer::should_collect_runtime_stats``). These
waits are nobody's mistake and pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import host as h
from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline, Reader
from stepscope.activity.host import inside
from stepscope.intervals import overlap_per_window, stab_innermost, union
from stepscope.intervals.distinct import among, distinct_values
from stepscope.trace.frame import BoolArray, Frame, IntArray

_EVENT_WAIT: Final = re.compile(r"^(cuda|hip)EventSynchronize|^cuEventSynchronize")
_DDP_FORWARD: Final = "DistributedDataParallel.forward"
DDP_FEWEST: Final = 4
DDP_MOST: Final = 8
"""Waits for events that DDP's logger makes in one iteration: two each for the times of the forward
pass, the backward pass, its communication and the overlap of both."""

READ, UPLOAD, PLAIN = "read", "upload", "plain"


@dataclass(frozen=True)
class Waiting:
    """Calls in which a launching thread waits for the device; one value a call, in time order.

    Attributes:
        call: row of ``host.api``.
        waited_ns: how long of the call the device was busy.
        op: row of ``GPU.ops`` of the operation that was waited for: the last to end before the
            call returns, or what a small copy that ends last had to wait for on its stream; -1 for
            none.
        operator: row of ``operators`` that was innermost on the thread; -1 for none.
        of_ddp: whether it is DDP's logger that waits.
        kind: ``READ`` of a value, ``UPLOAD`` of one, or ``PLAIN`` synchronisation.
        operators: the operators.
    """

    call: IntArray
    waited_ns: IntArray
    op: IntArray
    operator: IntArray
    of_ddp: BoolArray
    kind: list[str]
    operators: Frame


def host_waiting(
    gpu: GpuTimeline, read: Reader, blocking: h.Blocking, begin_ns: int, end_ns: int
) -> Waiting:
    """The synchronisations of the launching threads in a window; copies that are slow left out.

    Args:
        gpu: the device.
        read: gives tables as frames.
        blocking: the blocking calls of its process.
        begin_ns: begin of the window.
        end_ns: end of the window.
    """
    api = gpu.host.api
    rows = blocking.call[~blocking.is_copy]
    if len(rows):
        mine = among(api["thread_id"][rows], gpu.host.launch_threads)
        start = api["start_ns"][rows]
        rows = rows[mine & (start >= begin_ns) & (start < end_ns)]
        rows = rows[np.argsort(api["start_ns"][rows], kind="stable")]
    operators = read("operator", "process_id", "thread_id", "start_ns", "end_ns", "name")
    if not len(rows):
        none = np.empty(0, np.int64)
        return Waiting(none, none, none, none, np.empty(0, bool), [], operators)
    start, end = api["start_ns"][rows], api["end_ns"][rows]
    order = np.argsort(gpu.ops["end_ns"], kind="stable")
    last = np.searchsorted(gpu.ops["end_ns"][order], end, side="right") - 1
    return Waiting(
        call=rows,
        waited_ns=_busy_in(gpu, rows),
        op=_waited_for(gpu, np.where(last >= 0, order[np.maximum(last, 0)], -1)),
        operator=_operator(gpu, operators, rows),
        of_ddp=_of_ddp(gpu, rows),
        kind=_kinds(gpu, rows),
        operators=operators,
    )


def _waited_for(gpu: GpuTimeline, op: IntArray) -> IntArray:
    """The operation itself, or the one before it on its stream where it is a mere scalar's copy."""
    ops = gpu.ops
    order = np.lexsort((ops["start_ns"], ops["stream"]))
    before = np.full(len(ops), -1, np.int64)
    same = ops["stream"][order][1:] == ops["stream"][order][:-1]
    before[order[1:][same]] = order[:-1][same]
    scalar = ops.equals("kind", "memcpy") & (ops["bytes"] <= h.SMALL_COPY_BYTES)
    row = np.maximum(op, 0)
    return np.where((op >= 0) & scalar[row] & (before[row] >= 0), before[row], op)


def _busy_in(gpu: GpuTimeline, rows: IntArray) -> IntArray:
    """How long the device was busy in each call."""
    api = gpu.host.api
    start, end = api["start_ns"][rows], api["end_ns"][rows]
    edges = distinct_values(np.concatenate((start, end)))
    pieces = overlap_per_window(gpu.busy, edges[:-1], edges[1:])
    upto = np.concatenate(([0], np.cumsum(pieces)))  # calls of several threads may overlap
    busy: IntArray = upto[np.searchsorted(edges, end)] - upto[np.searchsorted(edges, start)]
    return busy


def _operator(gpu: GpuTimeline, operators: Frame, rows: IntArray) -> IntArray:
    """Row of the innermost operator on the calling thread; -1 for none."""
    api = gpu.host.api
    found = np.full(len(rows), -1, np.int64)
    if not len(operators):
        return found
    mine = operators["process_id"] == gpu.process_id
    for thread in distinct_values(api["thread_id"][rows]).tolist():
        calls = np.flatnonzero(api["thread_id"][rows] == thread)
        of_thread = np.flatnonzero(mine & (operators["thread_id"] == thread))
        if not len(of_thread):
            continue
        inner = stab_innermost(
            operators["start_ns"][of_thread],
            operators["end_ns"][of_thread],
            api["start_ns"][rows[calls]],
        )
        found[calls] = np.where(inner >= 0, of_thread[np.maximum(inner, 0)], -1)
    return found


def _kinds(gpu: GpuTimeline, rows: IntArray) -> list[str]:
    """What each call does: its own copy, or the one right before it on its thread, tells."""
    api = gpu.host.api
    row_of = np.full(len(api), -1, np.int64)
    linked = np.flatnonzero((gpu.call >= 0) & gpu.ops.equals("kind", "memcpy"))
    row_of[gpu.call[linked]] = linked
    order = np.lexsort((api["start_ns"], api["thread_id"]))
    place = np.empty(len(api), np.int64)
    place[order] = np.arange(len(api))
    before = order[np.maximum(place[rows] - 1, 0)]
    same = api["thread_id"][before] == api["thread_id"][rows]
    copy = np.where(row_of[rows] >= 0, row_of[rows], np.where(same, row_of[before], -1))
    row = np.maximum(copy, 0)
    down = (copy >= 0) & gpu.ops.equals("copy_kind", "DtoH")[row]
    up = (copy >= 0) & gpu.ops.equals("copy_kind", "HtoD")[row]
    return np.where(down, READ, np.where(up, UPLOAD, PLAIN)).tolist()  # type: ignore[no-any-return]


def _of_ddp(gpu: GpuTimeline, rows: IntArray) -> BoolArray:
    """Which waits are those of DDP's logger.

    It waits for events only, a few times in a row, with nothing enqueued in between, inside the
    range of DDP's forward pass where ranges were recorded. Without ranges the same pattern counts
    in a process that communicates, once for each of the collectives' steps at most.
    """
    api, ranges = gpu.host.api, gpu.host.ranges
    event = api.matches("name", _EVENT_WAIT)[rows]
    if not event.any() or not gpu.is_communication.any():
        return np.zeros(len(rows), bool)
    start = api["start_ns"][rows]
    enqueued = np.sort(gpu.enqueue_begin_ns)
    between = np.searchsorted(enqueued, start)
    new = np.ones(len(rows), bool)
    new[1:] = (np.diff(between) > 0) | ~event[1:] | ~event[:-1]
    run = np.cumsum(new) - 1
    count = np.bincount(run)[run]
    fits = event & (count >= DDP_FEWEST) & (count <= DDP_MOST) & (count % 2 == 0)
    if not len(ranges):
        return np.asarray(fits, np.bool_)
    forward = words.hits(ranges, "name", lambda text: text == _DDP_FORWARD)
    if not forward.any():
        # ranges were recorded, but not those of record_function: the pattern must do
        return np.asarray(fits & ~_any_framework_range(ranges), np.bool_)
    held = union(ranges["start_ns"][forward], ranges["end_ns"][forward])
    return np.asarray(event & (count <= DDP_MOST) & inside(held, start), np.bool_)


def _any_framework_range(ranges: Frame) -> bool:
    """Whether ranges of PyTorch itself were recorded, among which DDP's would be."""

    def of_framework(text: str) -> bool:
        return text.startswith(("Optimizer.step#", "enumerate(DataLoader)#", "ProfilerStep"))

    return bool(words.hits(ranges, "name", of_framework).any())
