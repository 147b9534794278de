"""What the capture tells about delays: launch latency, turnaround, cost of calls, bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity.device import Lane
from stepscope.gaps.idle import BETWEEN_NS, LATENCY_NS, TURNAROUND_NS
from stepscope.simulation.waits import Order, previous_on_stream
from stepscope.trace.frame import BoolArray, IntArray

GRAPH_NS: Final = 1_000
"""Turnaround between the kernels of a CUDA graph (some 1 us on current devices)."""

PINNED_BYTES_PER_NS: Final = 20.0
"""Bandwidth of pinned copies between host and device where the capture shows none, in bytes a ns
(GB/s): PCI Express 4.0 with 16 lanes delivers 20 to 25 GB/s, version 5.0 about twice that."""

LARGE_COPY_BYTES: Final = 1 << 20
"""Copies from this size on show the bandwidth; smaller ones mostly latency."""


@dataclass(frozen=True)
class Delays:
    """Delays of each operation, by position in the order; with them a replay gives its start.

    Attributes:
        latency_ns: from the begin of the call to the earliest start.
        turnaround_ns: from the end of the stream's predecessor.
        dependency_ns: from the end of what it waits for on other streams.
        delay_ns: what none of these explains.
        typical_latency_ns: median of the operations that waited for their launch.
        typical_turnaround_ns: median of those that waited for their predecessor.
    """

    latency_ns: IntArray
    turnaround_ns: IntArray
    dependency_ns: IntArray
    delay_ns: IntArray
    typical_latency_ns: int
    typical_turnaround_ns: int


def delays(lane: Lane, order: Order, waiting: dict[int, set[int]], called_ns: IntArray) -> Delays:
    """Split what passed before each operation's start over what it waited for.

    The latest of the things it waits for decided its start; what the others would have allowed
    is taken as typical.

    Args:
        lane: the device.
        order: its operations in enqueue order.
        waiting: operations that wait for others of other streams.
        called_ns: when each was really handed to the device: begin of the call, later where the
            call had to wait for a place in the queue.
    """
    n = len(order.ops)
    start, end = (lane.ops[c][order.ops] for c in ("start_ns", "end_ns"))
    known = lane.call[order.ops] >= 0
    never = np.iinfo(np.int64).min // 4
    previous = previous_on_stream(order)
    before = np.where(previous >= 0, end[np.maximum(previous, 0)], never)
    other = np.full(n, never, np.int64)
    for target, sources in waiting.items():
        other[target] = max(int(end[s]) for s in sources)
    called = np.where(known, called_ns, never)
    # the first operation of a stream may have waited for what the capture did not see
    alone = known & (called > np.maximum(before, other) + TURNAROUND_NS) & (previous >= 0)
    typical_latency = _median(start[alone] - called[alone], LATENCY_NS)
    queued = (before > called + typical_latency) & (before > other) & (start - before >= 0)
    queued &= start - before <= TURNAROUND_NS
    between = _median(start[queued] - before[queued], BETWEEN_NS)
    crossing = (other > called + typical_latency) & (other > before)
    crossing &= (start - other >= 0) & (start - other <= TURNAROUND_NS)
    across = _median(start[crossing] - other[crossing], 2 * between)

    by_launch = called + typical_latency
    by_stream = before + between
    by_other = other + across
    latest = np.maximum(np.maximum(by_launch, by_stream), by_other)
    late = start - latest
    delay = np.where(late > TURNAROUND_NS, late, 0)
    due = start - delay
    free = latest == never + max(typical_latency, between, across)

    def wait(since: IntArray, typical: int, decided: BoolArray) -> IntArray:
        measured = due - since
        return np.where(decided, measured, np.minimum(typical, measured)).astype(np.int64)

    launch_decides = by_launch == latest
    stream_decides = ~launch_decides & (by_stream == latest)
    other_decides = ~launch_decides & ~stream_decides
    return Delays(
        latency_ns=np.where(known, wait(called, typical_latency, launch_decides), 0),
        turnaround_ns=np.where(previous >= 0, wait(before, between, stream_decides), between),
        dependency_ns=np.where(other > never, wait(other, across, other_decides), across),
        delay_ns=np.where(free, 0, delay),
        typical_latency_ns=typical_latency,
        typical_turnaround_ns=between,
    )


def _median(values: IntArray, otherwise: int) -> int:
    return int(np.median(values)) if len(values) else otherwise


def pinned_bandwidth(lane: Lane) -> tuple[float, bool]:
    """Bytes a ns of a pinned copy between host and device, and whether the capture shows it."""
    ops = lane.ops
    pinned = ops.equals("kind", "memcpy") & ops.equals("copy_kind", "HtoD", "DtoH")
    pinned &= ops.equals("src_memory", "pinned") | ops.equals("dst_memory", "pinned")
    pinned &= ops["bytes"] >= LARGE_COPY_BYTES
    length = ops["end_ns"][pinned] - ops["start_ns"][pinned]
    if not pinned.any() or not length.sum():
        return PINNED_BYTES_PER_NS, False
    return float(np.median(ops["bytes"][pinned] / np.maximum(length, 1))), True


def typical_call_ns(lane: Lane) -> int:
    """What a call that enqueues something and waits for nothing costs the host, ns.

    The lower decile: where the launch queue is full, most of the launches wait.
    """
    enqueued = (lane.call >= 0) & lane.is_kernel  # copies may wait, kernels rarely do
    if not enqueued.any():
        return LATENCY_NS
    calls = (lane.enqueue_end_ns - lane.enqueue_begin_ns)[enqueued]
    return int(np.percentile(calls, 10))
