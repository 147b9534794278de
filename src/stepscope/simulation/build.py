"""Build the program of one rank from its lane."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from stepscope.activity import host as h
from stepscope.activity import names as words
from stepscope.activity.device import Lane, Reader
from stepscope.activity.host import blocking_calls, host_timeline, inside
from stepscope.breakdown.explain import Explanation
from stepscope.gaps.idle import CAUSE_OF_LABEL, CAUSES
from stepscope.gaps.profiler_overhead import RecordedCost
from stepscope.gaps.untraced_cpu import explain_silences, input_time, without_noise
from stepscope.intervals import overlap_per_window, subtract, union
from stepscope.intervals.algebra import EMPTY, Intervals
from stepscope.intervals.distinct import among, distinct_values
from stepscope.simulation.costs import Delays, delays, typical_call_ns
from stepscope.simulation.layout import Layout, Run, lay_out
from stepscope.simulation.program import (
    QUEUE_DEPTH,
    C,
    Program,
)
from stepscope.simulation.waits import (
    LONG_CALL_NS,
    HostWaits,
    Order,
    enqueue_order,
    host_waits,
    operation_waits,
    recorded_events,
)
from stepscope.trace.frame import BoolArray, IntArray

_NEARLY_FULL: Final = 512
"""A launch that takes long with at least this many operations outstanding waits for the queue."""


def build(
    e: Explanation,
    read: Reader,
    run: Run,
    rows: IntArray | None = None,
    instances: IntArray | None = None,
) -> Program:
    """The program of one rank in a run of steps.

    Args:
        e: the explained device.
        read: gives its tables.
        run: the steps.
        rows: rows of ``lane.ops`` that are matched collectives.
        instances: ids of the collectives.
    """
    lane = e.lane
    order = enqueue_order(lane)
    events = recorded_events(lane, read, order)
    waiting, inferred = operation_waits(lane, order, events)
    waits = host_waits(lane, order, events, run.begin_ns, run.end_ns)
    usual = typical_call_ns(lane)
    single = _own_call(lane, order)
    full, depth = _queue(order, lane, usual, single)
    # what had to wait for a place in the queue, for a graph, or for its code to be loaded, was
    # handed over at the call's end
    before = np.concatenate((waits.call[waits.call >= 0], e.loading.call))
    held = full | among(lane.call[order.ops], before)
    handed = np.maximum(order.begin_ns, lane.enqueue_end_ns[order.ops] - usual)
    called = np.where(held, handed, order.begin_ns)
    late = delays(lane, order, waiting, called)
    lay = lay_out(e, order, waits, run, np.where(full, order.begin_ns, called))
    work, recording, silent = _host_work(e, read, run, lay.at_ns, lay.until_ns)
    if not (lay.hosted & (lay.position >= 0)).any():
        work[:] = 0  # without its calls nothing says whether the host was ahead of the device

    blocks, reads = _blocking_copies(e, order)
    call = lay.until_ns - lay.at_ns
    blocking = (lay.of_ops(blocks) > 0) & (call > 0)
    wait_cause = np.where(blocking, C["blocking_copy"], -1)
    wait_cause[blocking & (lay.of_ops(reads) > 0)] = C["host_sync"]
    own_end = lay.of_ops(lane.ops["end_ns"][order.ops])
    returns = np.where(blocking, lay.until_ns - own_end, 0)
    waited = blocking | (lay.of_ops(full) > 0)
    call = np.where(waited, np.minimum(call, usual), call)
    wait_of = _host_waits(lane, order, waits, lay, usual, (call, returns, wait_cause))
    for cause, owned in e.events.items():  # a wait inside an event goes when the event goes
        wait_cause[(wait_cause >= 0) & inside(owned, lay.at_ns)] = C[cause]
    instance = np.full(len(lane.ops), -1, np.int64)
    if rows is not None and instances is not None:
        instance[rows] = instances
    return Program(
        kind=lay.kind,
        op=lay.of_ops(order.ops, -1),
        at_ns=lay.at_ns,
        work_ns=work,
        call_ns=call,
        recording_ns=recording,
        recording_silent_ns=silent,
        stream=lay.of_ops(order.stream, -1),
        latency_ns=lay.of_ops(late.latency_ns),
        turnaround_ns=lay.of_ops(late.turnaround_ns),
        delay_ns=lay.of_ops(late.delay_ns),
        duration_ns=lay.of_ops((lane.ops["end_ns"] - lane.ops["start_ns"])[order.ops]),
        hosted=lay.hosted,
        blocks=blocking,
        wait_cause=wait_cause,
        return_ns=returns,
        instance=lay.of_ops(instance[order.ops], -1),
        depends=_depends(waiting, late, lay),
        waits=wait_of,
        inferred=frozenset(int(i) for t in inferred if (i := lay.item_of[t]) >= 0),
        behind=_behind(order, lay, depth, single),
        communication=lay.of_ops(lane.is_communication[order.ops]) > 0,
    )


def _host_waits(
    lane: Lane,
    order: Order,
    waits: HostWaits,
    lay: Layout,
    usual: int,
    columns: tuple[IntArray, IntArray, IntArray],
) -> dict[int, tuple[int, ...]]:
    """What the waiting items wait for; fills in the host time, return time and cause of each.

    Args:
        lane: the device.
        order: its operations.
        waits: the waits.
        lay: the items.
        usual: what a call costs that waits for nothing, ns.
        columns: ``call_ns``, ``return_ns`` and ``wait_cause`` of the items, to be filled in.
    """
    call, returns, wait_cause = columns
    end = lane.ops["end_ns"][order.ops]
    found: dict[int, tuple[int, ...]] = {}
    causes = _wait_causes(lane, waits)
    for item, targets, cause in zip(lay.wait_item.tolist(), waits.targets, causes, strict=True):
        wait_cause[item] = cause
        if lay.cut[item]:
            continue
        at, until = int(lay.at_ns[item]), int(lay.until_ns[item])
        finished = max((int(end[t]) for t in targets), default=at)
        waited = finished > at
        call[item] = min(until - at, usual) if waited else until - at
        early = cause == C["launch_bound"]  # a graph launch returns before the end
        since = until - finished if early else max(until - finished, 0)
        returns[item] = since if waited else min(until - at, usual)
        items = tuple(r for t in targets if (r := lay.reference(t)) is not None)
        if items:
            found[item] = items
        elif until - at > usual:
            call[item] = until - at  # it waited for something that the run does not hold
    return found


def _depends(
    waiting: dict[int, set[int]], late: Delays, lay: Layout
) -> dict[int, tuple[tuple[int, int], ...]]:
    """Dependencies between streams as item references, with the turnaround of each."""
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for target, sources in waiting.items():
        item = int(lay.item_of[target])
        if item < 0:
            continue
        between = int(late.dependency_ns[target])
        references = (lay.reference(source) for source in sorted(sources))
        pairs = tuple((r, between) for r in references if r is not None)
        if pairs:
            found[item] = pairs
    return found


def _own_call(lane: Lane, order: Order) -> BoolArray:
    """Operations that are the only one of their call (not the nodes of a graph)."""
    call = lane.call[order.ops]
    if not len(lane.host.api):
        return np.zeros(len(call), bool)
    count = np.bincount(call[call >= 0], minlength=len(lane.host.api))
    alone: BoolArray = (call >= 0) & (count[np.maximum(call, 0)] == 1)
    return alone


def _queue(order: Order, lane: Lane, usual: int, single: BoolArray) -> tuple[BoolArray, list[int]]:
    """Launches that waited for a place in the queue of their stream, and its depth.

    A launch that takes long while about a thousand are outstanding waits for the device; the
    number that were outstanding when it went on is the depth.
    """
    start = lane.ops["start_ns"][order.ops]
    end = lane.enqueue_end_ns[order.ops]
    full = np.zeros(len(order.ops), bool)
    depths = []
    for positions in order.of_stream:
        began = np.sort(start[positions])
        ordinal = np.arange(len(positions))
        outstanding = ordinal - np.searchsorted(began, order.begin_ns[positions])
        slow = end[positions] - order.begin_ns[positions] > max(LONG_CALL_NS, 4 * usual)
        waited = slow & single[positions] & (outstanding >= _NEARLY_FULL)
        full[positions] = waited
        left = ordinal - np.searchsorted(began, end[positions] - usual)
        depths.append(int(np.median(left[waited])) if waited.any() else QUEUE_DEPTH)
    return full, depths


def _behind(order: Order, lay: Layout, depth: list[int], single: BoolArray) -> IntArray:
    """For each item the one whose operation must have started before its call goes on."""
    m = len(lay)
    behind = np.full(m, -2 * m, np.int64)  # long before the first pass: nothing to wait for
    for number, distance in enumerate(depth):
        items = lay.item_of[lay.inside[order.stream[lay.inside] == number]]
        if len(items) and distance >= 1:
            target = np.arange(len(items)) - distance
            behind[items] = items[target % len(items)] + m * (target // len(items))
    behind[lay.item_of[lay.inside[~single[lay.inside]]]] = -2 * m
    return np.maximum(behind, -2 * m)


def _blocking_copies(e: Explanation, order: Order) -> tuple[BoolArray, BoolArray]:
    """Copies whose own call waits for them, and those of them that only read a small value."""
    lane = e.lane
    ops, api = lane.ops, lane.host.api
    none = np.zeros(len(order.ops), bool)
    if not len(api):
        return none, none
    call = np.maximum(lane.call, 0)
    by_name = api.matches("name", words.COPY_CALL) & ~api.matches("name", words.ASYNC_COPY_CALL)
    pageable = ops.equals("src_memory", "pageable") | ops.equals("dst_memory", "pageable")
    small = ops["bytes"] <= h.SMALL_COPY_BYTES
    upload, read_back = ops.equals("copy_kind", "HtoD"), ops.equals("copy_kind", "DtoH")
    waits = ops.equals("kind", "memcpy") & (lane.call >= 0) & (pageable | by_name[call])
    waits &= ~(small & upload) & ~ops.equals("copy_kind", "DtoD")
    # what the call did, not what its name promises: it returned when most of the copy was done
    waits &= lane.enqueue_end_ns >= (ops["start_ns"] + ops["end_ns"]) // 2
    return waits[order.ops], (waits & small & read_back)[order.ops]


def _wait_causes(lane: Lane, waits: HostWaits) -> list[int]:
    """Column of the cause of each wait."""
    api = lane.host.api
    if not len(waits.call):
        return []
    blocking = blocking_calls(lane)
    cause = np.full(len(api), C["unexplained"], np.int64)
    cause[lane.calls_of(lane.call >= 0)] = C["launch_bound"]
    cause[api.matches("name", words.MODULE_CALL)] = C["compilation_or_warmup"]
    cause[api.matches("name", words.ALLOCATION_CALL)] = C["allocator_churn"]
    cause[blocking.call] = np.where(blocking.is_copy, C["blocking_copy"], C["host_sync"])
    found: list[int] = cause[waits.call].tolist()
    return found


def _host_work(
    e: Explanation, read: Reader, run: Run, at: IntArray, until: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Host time before each item by cause; and recording cost in it and in the item's call."""
    lane = e.lane
    step = (run.end_ns - run.begin_ns) // run.steps
    timeline = host_timeline(lane, run.begin_ns, run.end_ns, step, input_time(lane, read))
    begins = e.steps.begin_ns[run.first : run.last + 1]
    timeline = without_noise(timeline, lane, begins, e.loop)
    cause = np.array([C[CAUSE_OF_LABEL[label]] for label in h.LABELS])[timeline.label]
    silent = np.flatnonzero(timeline.label == h.LABELS.index(h.SILENCE))
    if len(silent):
        is_input, _ = explain_silences(lane, timeline.quiet, e.loop)
        which = np.searchsorted(timeline.quiet[1], timeline.start_ns[silent], side="right")
        which = np.minimum(which, len(is_input) - 1)
        cause[silent[is_input[which]]] = C["input_starvation"]
    # what comes before the first item is what the host does after the last one
    begin = np.append(until[-1], until[:-1])
    stop = np.append(run.end_ns, at[1:])
    work = np.zeros((len(at), len(CAUSES)), np.int64)
    owned = _together(e.events.values())
    for column in distinct_values(cause).tolist():
        rows = cause == column
        labelled = timeline.start_ns[rows], timeline.end_ns[rows]
        work[:, column] = overlap_per_window(subtract(labelled, owned), begin, stop)
    for name, intervals in e.events.items():
        work[:, C[name]] += overlap_per_window(intervals, begin, stop)
    recording = e.recording
    if not len(recording.at_ns):
        none = np.zeros(len(at), np.int64)
        return work, none, none
    total = recording.between(begin, np.append(run.end_ns, until[1:]))
    quiet_at = np.searchsorted(timeline.quiet[0], recording.at_ns, side="right") - 1
    in_quiet = quiet_at >= 0
    in_quiet &= recording.at_ns < np.append(timeline.quiet[1], 0)[quiet_at]
    costs = np.diff(recording.total_ns, prepend=0)
    quiet = RecordedCost(recording.at_ns[in_quiet], np.cumsum(costs[in_quiet]))
    return work, total, quiet.between(begin, stop)


def _together(sets: Iterable[Intervals]) -> Intervals:
    """The union of some sets of intervals."""
    known = list(sets) or [EMPTY]
    return union(*(np.concatenate(column) for column in zip(*known, strict=True)))
