"""Build the program of one rank from its GPU."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.activity import host as h
from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline, Reader
from stepscope.activity.host import blocking_calls, inside
from stepscope.breakdown.explain import Explanation
from stepscope.intervals.distinct import among
from stepscope.simulation.host_work import host_work
from stepscope.simulation.layout import Layout, lay_out
from stepscope.simulation.links import Depends, Waits, columns_of
from stepscope.simulation.program import (
    LONG_AGO_NS,
    QUEUE_DEPTH,
    C,
    Delays,
    Program,
    delays,
    pinned_bandwidth,
    typical_call_ns,
)
from stepscope.simulation.run import Run
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
        rows: rows of ``GPU.ops`` that are matched collectives.
        instances: ids of the collectives.
    """
    gpu = e.gpu
    order = enqueue_order(gpu)
    events = recorded_events(gpu, read, order)
    waiting, inferred = operation_waits(gpu, order, events)
    waits = host_waits(gpu, order, events, run.begin_ns, run.end_ns)
    usual = typical_call_ns(gpu)
    single = _own_call(gpu, order)
    full, depth = _queue(order, gpu, usual, single)
    # what had to wait for a place in the queue, for a graph, or for its code to be loaded, was
    # handed over at the call's end
    before = np.concatenate((waits.call[waits.call >= 0], e.loading.call))
    held = full | among(gpu.call[order.ops], before)
    handed = np.maximum(order.begin_ns, gpu.enqueue_end_ns[order.ops] - usual)
    called = np.where(held, handed, order.begin_ns)
    late = delays(gpu, order, waiting, called)
    lay = lay_out(e, order, waits, run, np.where(full, order.begin_ns, called))
    work, recording, untraced = host_work(e, read, run, lay.at_ns, lay.until_ns)
    if not (lay.hosted & (lay.position >= 0)).any():
        # without its calls nothing says whether the host was ahead of the device
        work = np.zeros_like(work)

    blocks, reads = _blocking_copies(e, order)
    call = lay.until_ns - lay.at_ns
    blocking = (lay.of_ops(blocks) > 0) & (call > 0)
    wait_cause = np.where(blocking, C["blocking_copy"], -1)
    wait_cause[blocking & (lay.of_ops(reads) > 0)] = C["host_sync"]
    own_end = lay.of_ops(gpu.ops["end_ns"][order.ops])
    returns = np.where(blocking, lay.until_ns - own_end, 0)
    waited = blocking | (lay.of_ops(full) > 0)
    call = np.where(waited, np.minimum(call, usual), call)
    wait_of = _host_waits(gpu, order, waits, lay, usual, (call, returns, wait_cause))
    for cause, attributed in e.events.items():  # a wait inside an event goes when the event goes
        wait_cause[(wait_cause >= 0) & inside(attributed, lay.at_ns)] = C[cause]
    speed, shown = pinned_bandwidth(gpu, _capability(gpu, read))
    instance = np.full(len(gpu.ops), -1, np.int64)
    if rows is not None and instances is not None:
        instance[rows] = instances
    return Program(
        kind=lay.kind,
        op=lay.of_ops(order.ops, -1),
        at_ns=lay.at_ns,
        work_ns=work,
        call_ns=call,
        recording_ns=recording,
        recording_untraced_ns=untraced,
        stream=lay.of_ops(order.stream, -1),
        latency_ns=lay.of_ops(late.latency_ns),
        kernel_gap_ns=lay.of_ops(late.kernel_gap_ns),
        delay_ns=lay.of_ops(late.delay_ns),
        duration_ns=lay.of_ops((gpu.ops["end_ns"] - gpu.ops["start_ns"])[order.ops]),
        hosted=lay.hosted,
        blocks=blocking,
        wait_cause=wait_cause,
        return_ns=returns,
        instance=lay.of_ops(instance[order.ops], -1),
        depends=Depends(columns_of(_depends(waiting, late, lay))),
        waits=Waits(columns_of(wait_of)),
        inferred=frozenset(int(i) for t in inferred if (i := lay.item_of[t]) >= 0),
        behind=_behind(order, lay, depth, single),
        communication=lay.of_ops(gpu.is_communication[order.ops]) > 0,
        busy_ns=_busy(order, gpu, lay, late),
        before_start_ns=_before(lay, gpu.ops["start_ns"]),
        before_end_ns=_before(lay, gpu.ops["end_ns"]),
        recorded_share=float(
            (recording - untraced).sum() / max(work[:, C["launch_bound"]].sum() + call.sum(), 1)
        ),
        pinned_bytes_per_ns=speed,
        pinned_shown=shown,
    )


def _capability(gpu: GpuTimeline, read: Reader) -> int:
    """Major compute capability of the device; 0 where the capture does not tell."""
    rows = read("device", "process_id", "device", "compute_major")
    mine = (rows["process_id"] == gpu.process_id) & (rows["device"] == gpu.device)
    return int(rows["compute_major"][mine].max(initial=0))


def _busy(order: Order, gpu: GpuTimeline, lay: Layout, late: Delays) -> IntArray:
    """By stream, how long after the first item it works on what was enqueued before, ns."""
    until = np.full(len(order.streams), lay.at_ns[0])
    before = np.flatnonzero(order.begin_ns < lay.at_ns[0])
    np.maximum.at(until, order.stream[before], gpu.ops["end_ns"][order.ops[before]])
    first = late.first
    if first >= 0 and lay.item_of[first] >= 0:
        ended = gpu.ops["start_ns"][order.ops[first]] - late.kernel_gap_ns[first]
        stream = order.stream[first]
        until[stream] = max(until[stream], ended)
    return np.asarray(until - lay.at_ns[0], np.int64)


def _before(lay: Layout, times: IntArray) -> IntArray:
    """By item, the time of the operation that it stands for in references to the run before."""
    found = np.full(len(lay), LONG_AGO_NS)
    for positions in lay.order.of_stream:
        items = lay.item_of[positions]
        own = np.flatnonzero(items >= 0)
        if len(own):
            # the run before had as many: its last one is the one before the run's first
            count = min(len(own), int(own[0]))
            found[items[own[len(own) - count :]]] = (
                times[lay.order.ops[positions[own[0] - count : own[0]]]] - lay.at_ns[0]
            )
    return found


def _host_waits(
    gpu: GpuTimeline,
    order: Order,
    waits: HostWaits,
    lay: Layout,
    usual: int,
    columns: tuple[IntArray, IntArray, IntArray],
) -> dict[int, tuple[int, ...]]:
    """What the waiting items wait for; fills in the host time, return time and cause of each.

    Args:
        gpu: the device.
        order: its operations.
        waits: the waits.
        lay: the items.
        usual: what a call costs that waits for nothing, ns.
        columns: ``call_ns``, ``return_ns`` and ``wait_cause`` of the items, to be filled in.
    """
    call, returns, wait_cause = columns
    end = gpu.ops["end_ns"][order.ops]
    found: dict[int, tuple[int, ...]] = {}
    causes = _wait_causes(gpu, waits)
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


def _own_call(gpu: GpuTimeline, order: Order) -> BoolArray:
    """Operations that are the only one of their call (not the nodes of a graph)."""
    call = gpu.call[order.ops]
    if not len(gpu.host.api):
        return np.zeros(len(call), bool)
    count = np.bincount(call[call >= 0], minlength=len(gpu.host.api))
    alone: BoolArray = (call >= 0) & (count[np.maximum(call, 0)] == 1)
    return alone


def _queue(
    order: Order, gpu: GpuTimeline, usual: int, single: BoolArray
) -> tuple[BoolArray, list[int]]:
    """Launches that waited for a place in the queue of their stream, and its depth.

    A launch that takes long while about a thousand are outstanding waits for the device; the
    number that were outstanding when it went on is the depth.
    """
    start = gpu.ops["start_ns"][order.ops]
    end = gpu.enqueue_end_ns[order.ops]
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
    gpu = e.gpu
    ops, api = gpu.ops, gpu.host.api
    none = np.zeros(len(order.ops), bool)
    if not len(api):
        return none, none
    call = np.maximum(gpu.call, 0)
    by_name = api.matches("name", words.COPY_CALL) & ~api.matches("name", words.ASYNC_COPY_CALL)
    pageable = ops.equals("src_memory", "pageable") | ops.equals("dst_memory", "pageable")
    small = ops["bytes"] <= h.SMALL_COPY_BYTES
    upload, read_back = ops.equals("copy_kind", "HtoD"), ops.equals("copy_kind", "DtoH")
    waits = ops.equals("kind", "memcpy") & (gpu.call >= 0) & (pageable | by_name[call])
    waits &= ~(small & upload) & ~ops.equals("copy_kind", "DtoD")
    # what the call did, not what its name promises: it returned when most of the copy was done
    waits &= gpu.enqueue_end_ns >= (ops["start_ns"] + ops["end_ns"]) // 2
    return waits[order.ops], (waits & small & read_back)[order.ops]


def _wait_causes(gpu: GpuTimeline, waits: HostWaits) -> list[int]:
    """Column of the cause of each wait."""
    api = gpu.host.api
    if not len(waits.call):
        return []
    blocking = blocking_calls(gpu)
    cause = np.full(len(api), C["unexplained"], np.int64)
    cause[gpu.calls_of(gpu.call >= 0)] = C["launch_bound"]
    cause[api.matches("name", words.MODULE_CALL)] = C["compilation_or_warmup"]
    cause[api.matches("name", words.ALLOCATION_CALL)] = C["allocator_churn"]
    cause[blocking.call] = np.where(blocking.is_copy, C["blocking_copy"], C["host_sync"])
    found: list[int] = cause[waits.call].tolist()
    return found
