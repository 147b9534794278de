"""What the host was doing at any time, as labelled intervals on one timeline per process.

The threads that enqueue GPU work are looked at together: while autograd's thread enqueues the
backward pass the main thread waits for it, so at any time at most one of them drives. Each moment
gets the most specific label that applies; moments without any label are the time between
calls, whose length tells framework overhead from real host work.

Most idle time is explained moment by moment. Some causes are events of their own, which hold many
moments of several kinds: saving a checkpoint copies, waits, computes and writes; a thread that
waits for a lock is merely silent. What finds such events gives their intervals, and all idle time
inside them belongs to their cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline, HostSide
from stepscope.intervals import complement, subtract, union
from stepscope.intervals.algebra import EMPTY, Intervals
from stepscope.intervals.distinct import among, distinct_values
from stepscope.trace.frame import BoolArray, IntArray

SMALL_COPY_BYTES = 1 << 16
"""A copy up to this size is a scalar or flag: its cost is the waiting, not its bytes.
CUDA stages host-to-device copies up to this size without waiting."""

LONGEST_LATENCY_NS = 50_000
"""What is longer is no launch latency, nor an error of the clocks, but something that waits."""

UPLOAD_BYTES = 1 << 12
"""From this size on an upload carries data: a column of a batch, a mask, and no few numbers."""

LONG_UNTRACED_NS = 1_000_000
"""Untraced CPU time from this length on is host work of its own. Eager frameworks take 5 to
100 us from one launch to the next, several times that under a profiler, and up to 1 ms around the
backward pass and the optimizer, whose Python code enumerates all parameters."""

LONG_UNTRACED_FACTOR = 12
"""... or this many times the process's median of it ..."""

LONG_UNTRACED_STEP_SHARE = 0.03
"""... or this share of a step, whichever is longest, ..."""

LONGEST_UNTRACED_NS = 5_000_000
"""... but never more than this."""

SYNC: Final = "sync"
COPY: Final = "copy"
ALLOCATION: Final = "allocation"
MODULE: Final = "module"
OVERHEAD: Final = "overhead"
INPUT: Final = "input"
DISPATCH: Final = "dispatch"
UNTRACED_CPU: Final = "untraced_cpu"

LABELS: Final = (INPUT, SYNC, COPY, ALLOCATION, MODULE, OVERHEAD, DISPATCH, UNTRACED_CPU)
"""Every label, the one that wins first; untraced CPU time is ``dispatch`` where it is short."""


@dataclass(frozen=True)
class Blocking:
    """Host calls that waited for the GPU.

    Attributes:
        call: row of ``host.api``.
        is_copy: whether the wait belongs to a copy (its own, or the stream synchronisation that
            completes one) rather than to a synchronisation or the copy of a scalar.
    """

    call: IntArray
    is_copy: BoolArray


@dataclass(frozen=True)
class HostTimeline:
    """Labelled, disjoint intervals in time order that cover a window completely.

    Attributes:
        start_ns: begins.
        end_ns: ends.
        label: index into ``LABELS``.
        blocking: the blocking calls.
        quiet: long untraced CPU time, as a disjoint set (some of them labelled ``input``).
        long_untraced_ns: from which length on silence is host work, ns.
        irregular: long silences at places where other steps have none, as a disjoint set: they are
            labelled dispatch.
    """

    start_ns: IntArray
    end_ns: IntArray
    label: IntArray
    blocking: Blocking
    quiet: Intervals
    long_untraced_ns: int
    irregular: Intervals = EMPTY

    def with_silences(self, chosen: BoolArray, label: str) -> HostTimeline:
        """The same with some silences that nothing explained labelled, and no longer quiet.

        Args:
            chosen: which of ``quiet``.
            label: one of ``LABELS``.
        """
        start, end = self.quiet
        middle = (self.start_ns + self.end_ns) // 2
        relabel = inside((start[chosen], end[chosen]), middle)
        relabel &= self.label == LABELS.index(UNTRACED_CPU)
        return replace(
            self,
            label=np.where(relabel, LABELS.index(label), self.label),
            quiet=(start[~chosen], end[~chosen]),
        )


def loads_by_itself(host: HostSide) -> bool:
    """Whether PyTorch's DataLoader loads on the thread that asks, without worker processes."""
    names = {*host.ranges.texts.get("name", ()), *host.thread_names}
    return any(map(words.LOADER_WITHOUT_WORKERS.search, names)) and not has_workers(host)


def has_workers(host: HostSide) -> bool:
    """Whether PyTorch's DataLoader has worker processes."""
    names = {*host.ranges.texts.get("name", ()), *host.thread_names}
    return any(map(words.LOADER_WITH_WORKERS.search, names))


def asking_workers_ns(host: HostSide) -> int:
    """Time of the ranges in which PyTorch's DataLoader asks worker processes for batches, ns."""
    ranges = host.ranges
    if not len(ranges):
        return 0
    mine = ranges.matches("name", words.LOADER_WITH_WORKERS)
    return int((ranges["end_ns"] - ranges["start_ns"])[mine].sum())


def blocking_calls(gpu: GpuTimeline) -> Blocking:
    """The synchronisations and blocking copies of the GPU's process."""
    api = gpu.host.api
    if not len(api):
        return Blocking(np.empty(0, np.int64), np.empty(0, bool))
    is_sync = api.matches("name", words.SYNC_CALL)
    is_copy = api.matches("name", words.COPY_CALL)
    by_name = is_copy & ~api.matches("name", words.ASYNC_COPY_CALL)
    op = np.full(len(api), -1, np.int64)
    linked = np.flatnonzero((gpu.call >= 0) & gpu.ops.equals("kind", "memcpy"))
    op[gpu.call[linked]] = linked
    has_op = op >= 0
    row = np.maximum(op, 0)
    pageable = (
        has_op
        & (gpu.ops.equals("src_memory", "pageable") | gpu.ops.equals("dst_memory", "pageable"))[row]
    )
    on_device = has_op & gpu.ops.equals("copy_kind", "DtoD")[row]
    small = has_op & ~on_device & (gpu.ops["bytes"][row] <= SMALL_COPY_BYTES)
    blocking_copy = is_copy & ~on_device & (by_name | pageable)
    # A synchronisation right behind a copy on the same thread completes that copy
    # (tensor.cuda(), tensor.cpu(), tensor.item() all end in one).
    order = np.lexsort((api["start_ns"], api["thread_id"]))
    previous = np.full(len(api), -1, np.int64)
    same = api["thread_id"][order][1:] == api["thread_id"][order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    before = np.maximum(previous, 0)
    completes = is_sync & (previous >= 0) & is_copy[before] & ~on_device[before]
    # what is uploaded is no value that the host asks for: the wait is that of an upload
    data = small & (gpu.ops["bytes"][row] >= UPLOAD_BYTES)
    data &= gpu.ops.equals("copy_kind", "HtoD")[row]
    of_copy = np.where(completes, ~small[before] | data[before], is_copy & ~small)
    calls = np.flatnonzero(is_sync | blocking_copy)
    return Blocking(calls, of_copy[calls])


def host_timeline(
    gpu: GpuTimeline, begin_ns: int, end_ns: int, step_ns: int, input_time: Intervals = EMPTY
) -> HostTimeline:
    """Label what the GPU's process did from ``begin_ns`` to ``end_ns``.

    Args:
        gpu: the device whose launching threads matter.
        begin_ns: begin of the window.
        end_ns: end of the window.
        step_ns: typical length of a step; scales what counts as long.
        input_time: when something says that a launching thread was getting input.
    """
    host = gpu.host
    api = host.api
    mine = among(api["thread_id"], host.launch_threads) if len(api) else np.empty(0, bool)
    blocking = blocking_calls(gpu)
    is_sync = np.zeros(len(api), bool)
    is_copy = np.zeros(len(api), bool)
    is_sync[blocking.call[~blocking.is_copy]] = True
    is_copy[blocking.call[blocking.is_copy]] = True

    def spans(mask: BoolArray) -> Intervals:
        return union(api["start_ns"][mask & mine], api["end_ns"][mask & mine])

    if len(api):
        calls = spans(mine)
        layers: dict[str, Intervals] = {
            SYNC: spans(is_sync),
            COPY: spans(is_copy),
            ALLOCATION: spans(api.matches("name", words.ALLOCATION_CALL)),
            MODULE: spans(api.matches("name", words.MODULE_CALL)),
        }
    else:
        calls, layers = EMPTY, {}
    layers[INPUT] = input_time
    layers[OVERHEAD] = _overhead(host)
    between = complement(calls, begin_ns, end_ns)
    length = between[1] - between[0]
    typical = float(np.median(length)) if len(length) else 0.0
    scaled = max(LONG_UNTRACED_FACTOR * typical, LONG_UNTRACED_STEP_SHARE * step_ns)
    threshold = int(min(max(LONG_UNTRACED_NS, scaled), LONGEST_UNTRACED_NS))
    is_long = length >= threshold
    quiet = (between[0][is_long], between[1][is_long])
    layers[UNTRACED_CPU] = quiet
    start, end, label = _paint(begin_ns, end_ns, layers)
    return HostTimeline(start, end, label, blocking, quiet, threshold)


def _overhead(host: HostSide) -> Intervals:
    rows = host.overhead
    if not len(rows):
        return EMPTY
    known = among(rows["thread_id"], [*host.launch_threads, -1, 0])
    return union(rows["start_ns"][known], rows["end_ns"][known])


def _paint(
    begin_ns: int, end_ns: int, layers: dict[str, Intervals]
) -> tuple[IntArray, IntArray, IntArray]:
    """Cover the window with the winning label of every moment; ``dispatch`` where none applies."""
    free: Intervals = (np.array([begin_ns], np.int64), np.array([end_ns], np.int64))
    starts, ends, labels = [], [], []
    for code, name in enumerate(LABELS):
        if name == DISPATCH:
            continue
        layer = layers.get(name, EMPTY)
        rest = subtract(free, layer)
        taken = subtract(free, rest)
        starts.append(taken[0])
        ends.append(taken[1])
        labels.append(np.full(len(taken[0]), code, np.int64))
        free = rest
    starts.append(free[0])
    ends.append(free[1])
    labels.append(np.full(len(free[0]), LABELS.index(DISPATCH), np.int64))
    start = np.concatenate(starts)
    order = np.argsort(start, kind="stable")
    return start[order], np.concatenate(ends)[order], np.concatenate(labels)[order]


Attributed = tuple[int, Intervals]
"""A cause's number, and the disjoint set of intervals that it owns, ns."""


def apart(events: Mapping[str, Intervals]) -> dict[str, Intervals]:
    """The intervals of each cause without overlap: what several claim goes to the first."""
    taken = EMPTY
    attributed = {}
    for cause, intervals in events.items():
        attributed[cause] = subtract(intervals, taken)
        taken = union(
            np.concatenate((taken[0], intervals[0])), np.concatenate((taken[1], intervals[1]))
        )
    return attributed


def charge_attributed(
    columns: dict[str, IntArray], attributed: Sequence[Attributed]
) -> dict[str, IntArray]:
    """Give the parts of segments that lie in owned intervals to their owner.

    Args:
        columns: ``start_ns``, ``end_ns``, ``cause``, ``evidence`` and any others; disjoint, in
            time order.
        attributed: disjoint intervals of each cause.

    Returns:
        The same columns, cut where an owned interval begins or ends inside a segment.
    """
    for cause, (begin, end) in attributed:
        if not len(begin) or not len(columns["start_ns"]):
            continue
        edges = distinct_values(np.concatenate((begin, end)))
        columns = cut(columns, edges)
        held = inside((begin, end), columns["start_ns"])
        columns["cause"] = np.where(held, cause, columns["cause"])
        columns["evidence"] = np.where(held, -1, columns["evidence"])
    return columns


def cut(columns: dict[str, IntArray], edges: IntArray) -> dict[str, IntArray]:
    """Cut segments at the given times, which come ascending; the other columns are repeated."""
    start, end = columns["start_ns"], columns["end_ns"]
    first = np.searchsorted(edges, start, side="right")
    last = np.searchsorted(edges, end, side="left")
    pieces = np.maximum(last - first, 0) + 1
    row = np.repeat(np.arange(len(start)), pieces)
    number = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    known = np.append(edges, np.iinfo(np.int64).max)
    done = {name: values[row] for name, values in columns.items()}
    at = np.minimum(first[row] + number, len(edges))
    done["end_ns"] = np.where(number == pieces[row] - 1, end[row], known[at])
    done["start_ns"] = np.where(number == 0, start[row], known[np.maximum(at - 1, 0)])
    return done


def inside(intervals: Intervals, at: IntArray) -> BoolArray:
    """Whether each time lies in a disjoint set."""
    if not len(intervals[0]):
        return np.zeros(len(at), bool)
    which = np.searchsorted(intervals[0], at, side="right") - 1
    held: BoolArray = (which >= 0) & (intervals[1][np.maximum(which, 0)] > at)
    return held


@dataclass(frozen=True)
class HostEvents:
    """Events of the host, in time order, disjoint.

    Attributes:
        start_ns: begins.
        end_ns: ends.
    """

    start_ns: IntArray
    end_ns: IntArray

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def intervals(self) -> Intervals:
        """The events as a disjoint set."""
        return self.start_ns, self.end_ns
