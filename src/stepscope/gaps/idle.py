"""Why the device was idle: every gap split over causes, exactly.

A gap is explained by what delayed the *enqueueing* of the operation that ended it. If the
enqueueing call began after the device went idle, the host was late, and the gap is split by what
the host did from then on (:mod:`stepscope.activity.host`). If the call began before, the
operation waited for something on the device.

The host is also late because it lost its run-ahead: after a synchronisation has drained the queue,
every launch is late until the run-ahead is regained. Those small gaps look like launch overhead but
are the synchronisation's doing. They are charged to it up to the time it made the host wait, for
that is how far ahead the host would otherwise have been.

Operations of one stream run in the order in which they were enqueued. One whose call was lost was
therefore enqueued between its neighbours. And on an idle device an operation starts as soon as it
can, a few microseconds after its launching call has begun: which of the moments between it was
follows from the start. Pages of managed memory move without a call (``migrations.py``).

Where the clocks of host and device are not quite aligned, the latency of a launch looks longer or
shorter by the same amount everywhere; so the capture's own is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import host as h
from stepscope.activity.device import UNKNOWN_NS, GpuTimeline
from stepscope.activity.host import (
    LONGEST_LATENCY_NS,
    Attributed,
    HostTimeline,
    charge_attributed,
    cut,
    inside,
)
from stepscope.gaps.migrations import asked_ns
from stepscope.gaps.profiler_overhead import NO_COST, RecordingOverhead
from stepscope.gaps.untraced_cpu import NAMED_INPUT, Loop, explain_untraced_cpu
from stepscope.intervals import complement, overlap_per_window
from stepscope.intervals.algebra import Intervals
from stepscope.intervals.distinct import among, distinct_values
from stepscope.trace.frame import BoolArray, Frame, IntArray

LATENCY_NS: Final = 6_000
"""Launch latency where the capture shows none: 5 to 10 us from the begin of the launching call to
the start of the kernel on an idle device (CUDA 11 to 13, x86 hosts)."""

MIN_LATENCIES: Final = 20
"""So many launches on an idle device give the capture's own latency."""

FEW_LOST: Final = 3
"""So many operations in a row without a call may be a loss. More are the work of something whose
calls are not in the capture, and nothing is known of that."""


@dataclass(frozen=True)
class Enqueued:
    """When operations were enqueued.

    Attributes:
        begin_ns: begin of the launching call; ``UNKNOWN_NS`` where nothing tells.
        end_ns: its end; the begin where the call itself is not in the capture.
        recorded: whether the call is in the capture.
        latency_ns: from the begin of a call to the start of its kernel on an idle device.
        longest_ns: what of the time from the end of a call to the start of its operation may be
            latency, or a difference of the clocks.
    """

    begin_ns: IntArray
    end_ns: IntArray
    recorded: BoolArray
    latency_ns: int
    longest_ns: int = LONGEST_LATENCY_NS


def enqueued(gpu: GpuTimeline, ops: IntArray, idle_from_ns: IntArray) -> Enqueued:
    """When the operations were enqueued that each ended a time in which the device was idle.

    Args:
        gpu: the device.
        ops: rows of ``GPU.ops``; below 0 for none.
        idle_from_ns: since when the device was idle.
    """
    row = np.maximum(ops, 0)
    call = np.where(ops >= 0, gpu.call[row], -1)
    recorded = call >= 0
    api = gpu.host.api
    if not len(api):
        never = np.full(len(ops), UNKNOWN_NS)
        return Enqueued(never, never, recorded, LATENCY_NS)
    linked = np.flatnonzero(gpu.call >= 0)
    # what even the quickest launch of all takes may be a difference of the clocks
    quickest = (gpu.ops["start_ns"][linked] - api["start_ns"][gpu.call[linked]]).tolist()
    longest = LONGEST_LATENCY_NS + max(0, min(quickest, default=0))
    begin = np.where(recorded, api["start_ns"][np.maximum(call, 0)], UNKNOWN_NS)
    end = np.where(recorded, api["end_ns"][np.maximum(call, 0)], UNKNOWN_NS)
    start = gpu.ops["start_ns"][row]
    alone = recorded & (begin >= idle_from_ns) & gpu.ops.equals("kind", "kernel")[row]
    latency = _latency_ns((start - begin)[alone])
    lost = (ops >= 0) & ~recorded
    if lost.any():
        earliest, latest = (times[row] for times in _between(gpu))
        inferred = np.maximum(earliest, np.minimum(start - latency, latest))
        begin = np.where(lost & (earliest > UNKNOWN_NS), inferred, begin)
        moved = asked_ns(gpu, row, idle_from_ns)
        begin = np.where(lost & (moved > UNKNOWN_NS), moved, begin)
        end = np.where(lost, begin, end)
    return Enqueued(begin, end, recorded, latency, longest)


def _latency_ns(measured_ns: IntArray) -> int:
    """The lower quartile: 6 to 13 us in some sixty captures, whatever the program does."""
    if len(measured_ns) < MIN_LATENCIES:
        return LATENCY_NS
    return int(np.clip(np.percentile(measured_ns, 25), 0, LONGEST_LATENCY_NS))


def _between(gpu: GpuTimeline) -> tuple[IntArray, IntArray]:
    """Begins of the calls ahead of and behind each operation on its stream.

    ``UNKNOWN_NS`` twice, where there is none, or more than ``FEW_LOST`` in a row have none.
    """
    n = len(gpu.ops)
    order = np.lexsort((np.arange(n), gpu.ops["start_ns"], gpu.ops["stream"]))
    at, linked = np.arange(n), gpu.call[order] >= 0
    ahead = np.maximum.accumulate(np.where(linked, at, -1))
    behind = np.minimum.accumulate(np.where(linked, at, n)[::-1])[::-1]
    few = np.empty(n, bool)
    few[order] = behind - ahead - 1 <= FEW_LOST
    earliest, latest = gpu.enqueued_between_ns
    known = few & (earliest > UNKNOWN_NS) & (latest > UNKNOWN_NS)
    return np.where(known, earliest, UNKNOWN_NS), np.where(known, latest, UNKNOWN_NS)


CAUSES: Final = (
    "input_starvation",
    "host_sync",
    "host_compute",
    "launch_bound",
    "blocking_copy",
    "allocator_churn",
    "compilation_or_warmup",
    "checkpoint_stall",
    "cpu_offload",
    "gil_contention",
    "profiler_overhead",
    "small_kernels",
    "unexplained",
)
"""Causes that idle time is split over (public ids, and what cannot be explained)."""

_CODE: Final = {cause: code for code, cause in enumerate(CAUSES)}
CAUSE_OF_LABEL: Final = {
    h.INPUT: "input_starvation",
    h.SYNC: "host_sync",
    h.COPY: "blocking_copy",
    h.ALLOCATION: "allocator_churn",
    h.MODULE: "compilation_or_warmup",
    h.OVERHEAD: "profiler_overhead",
    h.DISPATCH: "launch_bound",
    h.UNTRACED_CPU: "host_compute",
}
"""What idle time is charged to while the host does what a label says, unless more is known."""

_NEVER_HOLDS: Final = ("launch_bound", "host_sync", "host_compute", "input_starvation")
"""Causes of idle time that cannot keep an operation from starting once it is enqueued."""

KERNEL_GAP_NS = 20_000
"""An operation that was enqueued in time starts within this time after its predecessor: the
device's own gap from one kernel to the next takes 1 to 2 us, 10 us and more where streams
or graphs change. Longer waits need another explanation."""

BETWEEN_NS = 1_500
"""Gap from one kernel to the next of a stream: 1 to 2 us."""

CROWDED_NS = 1_000_000
"""Blocking calls that follow one another within this time leave no room to build run-ahead."""


@dataclass(frozen=True)
class Gaps:
    """Idle time of a device inside a window, split over causes.

    Attributes:
        segments: columns ``start_ns``, ``end_ns``, ``cause`` (index into ``CAUSES``), ``op`` (row
            of ``GPU.ops`` that ended the gap; -1 at the window's end), ``evidence`` (index into
            ``untraced_cpu.EVIDENCE`` for untraced CPU time, else -1). In time order; lengths sum
            to the idle time exactly. ``inferred`` is 1 where the cause took the host's run-ahead
            earlier (or is an estimate), 0 where it was at work in the gap itself.
    """

    segments: Frame

    def by_cause(self) -> dict[str, int]:
        """Idle ns by cause; causes without any are left out."""
        sums = np.zeros(len(CAUSES), np.int64)
        np.add.at(sums, self.segments["cause"],
                  self.segments["end_ns"] - self.segments["start_ns"])  # fmt: skip
        return {cause: int(ns) for cause, ns in zip(CAUSES, sums, strict=True) if ns}


def explain_gaps(
    gpu: GpuTimeline,
    timeline: HostTimeline,
    begin_ns: int,
    end_ns: int,
    *,
    loop: Loop | None = None,
    recording: RecordingOverhead = NO_COST,
    events: Mapping[str, Intervals] | None = None,
) -> Gaps:
    """Split the idle time of ``[begin_ns, end_ns)`` over causes.

    Args:
        gpu: the device.
        timeline: what the host did; must cover the window.
        begin_ns: begin of the window.
        end_ns: end of the window.
        loop: what is known of the loop of the steps.
        recording: what the capturing tool cost the launching threads, for tools that do not
            record it themselves.
        events: cause to the stretches of the host's time that it owns, ns; disjoint.
    """
    start, end = complement(gpu.busy, begin_ns, end_ns)
    op = np.searchsorted(gpu.ops["start_ns"], end, side="left").astype(np.int64)
    op[end >= end_ns] = -1  # nothing ended it inside the window
    call = np.where(op >= 0, gpu.call[np.minimum(op, len(gpu.call) - 1)], -1)
    at = enqueued(gpu, op, start)
    call_start, call_end = at.begin_ns, at.end_ns
    # Work of which nothing tells when it was enqueued cannot be called late: it counts as waiting
    # on the device, and what that does not explain stays unexplained.
    queued = (call_start < start) & (op >= 0)

    held_from = np.where(at.recorded, call_end + at.longest_ns, np.iinfo(np.int64).max)
    late = _split_by_host(start[~queued], end[~queued], op[~queued], call_start[~queued], timeline)
    cause, evidence = _causes_of_labels(gpu, timeline, late, loop or Loop())
    late_frame = {
        "start_ns": late["start_ns"],
        "end_ns": late["end_ns"],
        "cause": cause,
        "op": late["op"],
        "evidence": evidence,
        "inferred": among(late["op"], op[~at.recorded & ~queued]).astype(np.int64),
    }
    length = end[queued] - start[queued]
    in_flight = call_end[queued] > start[queued]
    # a launch takes its time on an idle device as well: what began as soon as it could was late
    due = call_start[queued] + at.latency_ns
    launched = at.recorded[queued] & (due > start[queued] + BETWEEN_NS)
    launched &= end[queued] - due <= KERNEL_GAP_NS
    waiting = np.where(
        (length <= KERNEL_GAP_NS) & ~launched,
        _CODE["small_kernels"],
        np.where(in_flight | launched, _CODE["launch_bound"], _CODE["unexplained"]),
    )
    waiting = _blocked_call(gpu, call[queued], waiting, in_flight)
    queued_frame = {
        "start_ns": start[queued],
        "end_ns": end[queued],
        "cause": waiting,
        "op": op[queued],
        "evidence": np.full(len(length), -1, np.int64),
        "inferred": np.zeros(len(length), np.int64),
    }
    joined = {k: np.concatenate((late_frame[k], queued_frame[k])) for k in late_frame}
    order = np.argsort(joined["start_ns"], kind="stable")
    columns = {k: v[order] for k, v in joined.items()}
    columns = _charge_held(columns, (np.maximum(start, held_from), end))
    attributed = [(_CODE[cause], at) for cause, at in (events or {}).items()]
    columns = charge_attributed(columns, attributed)
    columns = _charge_drained(gpu, timeline, columns)
    columns = _charge_lost_run_ahead(gpu, timeline, columns, attributed)
    columns = _charge_recording(columns, recording, begin_ns, end_ns)
    return Gaps(Frame(columns))


def _split_by_host(
    start: IntArray, end: IntArray, op: IntArray, call_start: IntArray, timeline: HostTimeline
) -> dict[str, IntArray]:
    """Cut each gap at the boundaries of the host timeline, which covers all of them.

    Once the enqueueing call has begun, what is left is the latency of the launch: a silence that
    follows the call does not delay it.
    """
    first = np.searchsorted(timeline.end_ns, start, side="right")
    last = np.searchsorted(timeline.start_ns, end, side="left")
    counts = np.maximum(last - first, 0)
    gap = np.repeat(np.arange(len(start)), counts)
    piece = np.repeat(first, counts) + (
        np.arange(len(gap)) - np.repeat(np.cumsum(counts) - counts, counts)
    )
    piece_start = np.maximum(start[gap], timeline.start_ns[piece])
    label = timeline.label[piece]
    launched = (call_start[gap] >= start[gap]) & (piece_start >= call_start[gap])
    launched &= label == h.LABELS.index(h.UNTRACED_CPU)
    return {
        "start_ns": piece_start,
        "end_ns": np.minimum(end[gap], timeline.end_ns[piece]),
        "label": np.where(launched, h.LABELS.index(h.DISPATCH), label),
        "op": op[gap],
    }


def _causes_of_labels(
    gpu: GpuTimeline, timeline: HostTimeline, pieces: dict[str, IntArray], loop: Loop
) -> tuple[IntArray, IntArray]:
    """Cause and evidence of each host-late piece."""
    translate = np.array([_CODE[CAUSE_OF_LABEL[label]] for label in h.LABELS])
    cause = translate[pieces["label"]]
    annotated = pieces["label"] == h.LABELS.index(h.INPUT)
    evidence = np.where(annotated, NAMED_INPUT, -1)
    untraced = np.flatnonzero(pieces["label"] == h.LABELS.index(h.UNTRACED_CPU))
    if len(untraced):
        is_input, why = explain_untraced_cpu(gpu, timeline.quiet, loop)
        which = np.searchsorted(timeline.quiet[1], pieces["start_ns"][untraced], side="right")
        which = np.minimum(which, len(is_input) - 1)
        evidence[untraced] = why[which]
        cause[untraced[is_input[which]]] = _CODE["input_starvation"]
    return cause, evidence


def _charge_held(columns: dict[str, IntArray], since: Intervals) -> dict[str, IntArray]:
    """Take from the host the idle time at whose end an operation starts that was long enqueued.

    Whatever the host does meanwhile, and though it waits for that operation, it does not delay it.
    Allocations, copies and the loading of code may, for they hold the driver or the device.

    Args:
        columns: the segments; disjoint, in time order.
        since: from when the operation that ends each gap could have run, and the end of the gap.
    """
    real = since[0] < since[1]
    if not real.any():
        return columns
    begin, end = since[0][real], since[1][real]
    columns = cut(columns, distinct_values(begin))
    hosts = among(columns["cause"], [_CODE[cause] for cause in _NEVER_HOLDS])
    taken = hosts & inside((begin, end), columns["start_ns"])
    columns["cause"] = np.where(taken, _CODE["unexplained"], columns["cause"])
    columns["evidence"] = np.where(taken, -1, columns["evidence"])
    return columns


def _blocked_call(
    gpu: GpuTimeline, call: IntArray, cause: IntArray, in_flight: BoolArray
) -> IntArray:
    """Gaps inside a call that was still running: a blocking copy stages its data meanwhile."""
    api = gpu.host.api
    if not len(call) or not len(api):
        return cause
    is_copy_call = gpu.calls_of(gpu.ops.equals("kind", "memcpy"))
    staged = is_copy_call[np.maximum(call, 0)] & (call >= 0) & in_flight
    return np.where(staged, _CODE["blocking_copy"], cause)


def _charge_drained(
    gpu: GpuTimeline, timeline: HostTimeline, columns: dict[str, IntArray]
) -> dict[str, IntArray]:
    """Charge the gap that a blocking call leaves to that call.

    When the host waits until the device is done, the device is idle from then on until the host
    has returned and enqueued something: that gap begins inside the blocking call. Likewise a gap
    that ends with the small read the host then waits for is part of reading that value.
    """
    api, ops = gpu.host.api, gpu.ops
    blocking = timeline.blocking
    if not len(blocking.call):
        return columns
    order = np.argsort(api["end_ns"][blocking.call], kind="stable")
    start, end = (api[name][blocking.call][order] for name in ("start_ns", "end_ns"))
    late = np.flatnonzero(columns["cause"] == _CODE["launch_bound"])
    op = columns["op"][late]
    gap_start = _gap_start(gpu, op, columns["start_ns"][late])
    # the first blocking call that ends after the gap began, if it had begun by then
    which = np.minimum(np.searchsorted(end, gap_start, side="left"), len(end) - 1)
    drained = (start[which] <= gap_start) & (gap_start <= end[which])
    cause_of = _blocking_cause(blocking.is_copy[order])
    charged = cause_of[which]
    row = np.maximum(op, 0)
    scalar_read = (
        (op >= 0)
        & (ops.equals("kind", "memcpy") & ops.equals("copy_kind", "DtoH"))[row]
        & (ops["bytes"][row] <= h.SMALL_COPY_BYTES)
    )
    # between two blocking calls this close, the host cannot get ahead of the device at all; a call
    # that found the device idle took nothing from a host that was behind by itself
    waited = overlap_per_window(gpu.busy, start, end) > 0
    following = np.minimum(np.searchsorted(start, gap_start, side="right"), len(start) - 1)
    previous = np.searchsorted(end, gap_start, side="right") - 1
    crowded = (previous >= 0) & (start[following] > gap_start) & waited[np.maximum(previous, 0)]
    crowded &= start[following] - end[np.maximum(previous, 0)] < CROWDED_NS
    charged_before = cause_of[np.maximum(previous, 0)]
    columns = {k: v.copy() for k, v in columns.items()}
    columns["cause"][late[crowded]] = charged_before[crowded]
    columns["cause"][late[scalar_read]] = _CODE["host_sync"]
    columns["cause"][late[drained]] = charged[drained]
    return columns


def _blocking_cause(is_copy: BoolArray) -> IntArray:
    """Cause of each blocking call."""
    return np.where(is_copy, _CODE["blocking_copy"], _CODE["host_sync"])


def _gap_start(gpu: GpuTimeline, op: IntArray, otherwise: IntArray) -> IntArray:
    """When the device went idle before each operation (a gap may be cut into several segments)."""
    busy_end = gpu.busy[1]
    if not len(busy_end):
        return otherwise
    begin = gpu.ops["start_ns"][np.maximum(op, 0)]
    index = np.searchsorted(busy_end, begin, side="right") - 1
    return np.where((op >= 0) & (index >= 0), busy_end[np.maximum(index, 0)], otherwise)


def _charge_lost_run_ahead(
    gpu: GpuTimeline,
    timeline: HostTimeline,
    columns: dict[str, IntArray],
    attributed: list[Attributed],
) -> dict[str, IntArray]:
    """Charge late launches to the waits and host work that took the host's run-ahead.

    The run-ahead that removing them would have left is a running balance: time spent waiting or
    working while the device was busy adds to it, a late launch uses up its own length, and the
    balance never falls below zero. With ``x`` the signed amounts and ``X`` their running sum, what
    could not be covered so far is ``-min(0, min X)``.
    """
    begin, stop = int(timeline.start_ns[0]), int(timeline.end_ns[-1])
    start, end, cause = _run_ahead_takers(gpu, timeline, begin, stop, attributed)
    taken = overlap_per_window(gpu.busy, start, end)
    real = taken > 0
    start, end, cause, taken = start[real], end[real], cause[real], taken[real]
    late = np.flatnonzero(columns["cause"] == _CODE["launch_bound"])
    if not len(taken) or not len(late):
        return columns
    length = columns["end_ns"][late] - columns["start_ns"][late]
    time = np.concatenate((end, columns["start_ns"][late]))
    amount = np.concatenate((taken, -length))
    order = np.lexsort((amount < 0, time))
    uncovered = -np.minimum(0, np.minimum.accumulate(np.cumsum(amount[order])))
    grown = np.empty(len(order), np.int64)
    grown[order] = np.diff(uncovered, prepend=0)
    covered = length - grown[len(taken) :]
    by_end = np.argsort(end, kind="stable")
    latest = np.searchsorted(end[by_end], columns["start_ns"][late], side="right") - 1
    charged_to = cause[by_end[np.maximum(latest, 0)]]
    covered = np.where(latest >= 0, covered, 0)
    return _move(columns, late, covered, charged_to)


def _run_ahead_takers(
    gpu: GpuTimeline, timeline: HostTimeline, begin: int, stop: int, attributed: list[Attributed]
) -> tuple[IntArray, IntArray, IntArray]:
    """Intervals in which the host could not enqueue, and the cause each belongs to."""
    api, blocking = gpu.host.api, timeline.blocking
    label_cause = {
        h.UNTRACED_CPU: "host_compute",
        h.INPUT: "input_starvation",
        h.ALLOCATION: "allocator_churn",
        h.MODULE: "compilation_or_warmup",
    }
    starts, ends, causes = [], [], []
    if len(blocking.call):
        order = np.argsort(api["start_ns"][blocking.call], kind="stable")
        call_start, call_end = (api[c][blocking.call][order] for c in ("start_ns", "end_ns"))
        # Blocking calls that crowd are a loop that reads value after value: what the host does
        # between two of them is part of reading the next one.
        previous = np.concatenate(([np.iinfo(np.int64).min // 2], call_end[:-1]))
        crowded = (call_start - previous < CROWDED_NS) & (previous < call_start)
        starts.append(np.where(crowded, previous, call_start))
        ends.append(call_end)
        causes.append(_blocking_cause(blocking.is_copy[order]))
    for label, cause in label_cause.items():
        rows = timeline.label == h.LABELS.index(label)
        starts.append(timeline.start_ns[rows])
        ends.append(timeline.end_ns[rows])
        causes.append(np.full(int(rows.sum()), _CODE[cause]))
    start, end, taker = (np.concatenate(parts) for parts in (starts, ends, causes))
    for cause_code, intervals in attributed:  # what happens inside an event is part of it
        apart = ~inside(intervals, (start + end) // 2)
        start = np.concatenate((start[apart], intervals[0]))
        end = np.concatenate((end[apart], intervals[1]))
        taker = np.concatenate((taker[apart], np.full(len(intervals[0]), cause_code)))
    return np.clip(start, begin, stop), np.clip(end, begin, stop), taker


def _charge_recording(
    columns: dict[str, IntArray], recording: RecordingOverhead, begin_ns: int, end_ns: int
) -> dict[str, IntArray]:
    """Charge late launches and silences to the capturing tool, up to its estimated cost.

    A silence is charged with what was recorded inside it. Late launches are charged evenly with
    the rest: what recording cost while the device was busy delayed them as well.
    """
    if not len(recording.at_ns):
        return columns
    untraced = np.flatnonzero(columns["cause"] == _CODE["host_compute"])
    length = columns["end_ns"][untraced] - columns["start_ns"][untraced]
    inside = recording.between(columns["start_ns"][untraced], columns["end_ns"][untraced])
    window = np.array([begin_ns]), np.array([end_ns])
    rest = int(recording.between(*window)[0]) - int(inside.sum())
    tool = _CODE["profiler_overhead"]
    columns = _move(columns, untraced, np.minimum(inside, length), np.full(len(untraced), tool))
    late = np.flatnonzero(columns["cause"] == _CODE["launch_bound"])
    length = columns["end_ns"][late] - columns["start_ns"][late]
    if not length.sum():
        return columns
    share = min(1.0, max(rest, 0) / int(length.sum()))
    upto = np.floor(np.cumsum(length) * share).astype(np.int64)
    take = np.minimum(np.diff(upto, prepend=0), length)
    return _move(columns, late, take, np.full(len(late), tool))


def _move(
    columns: dict[str, IntArray], rows: IntArray, take: IntArray, cause: IntArray
) -> dict[str, IntArray]:
    """Give the first ``take`` ns of some segments another cause, splitting where it is a part."""
    columns = {k: v.copy() for k, v in columns.items()}
    length = columns["end_ns"][rows] - columns["start_ns"][rows]
    whole, part = take >= length, (take > 0) & (take < length)
    columns["cause"][rows[whole]] = cause[whole]
    columns["inferred"][rows[whole]] = 1
    if not part.any():
        return columns
    split = rows[part]
    extra = {k: v[split].copy() for k, v in columns.items()}
    cut = columns["start_ns"][split] + take[part]
    extra["end_ns"] = cut
    extra["cause"] = cause[part]
    extra["inferred"][:] = 1
    columns["start_ns"][split] = cut
    joined = {k: np.concatenate((columns[k], extra[k])) for k in columns}
    order = np.argsort(joined["start_ns"], kind="stable")
    return {k: v[order] for k, v in joined.items()}
