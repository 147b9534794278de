"""When operations were enqueued, also where a call is missing, and how long a launch takes.

Operations of one stream run in the order in which they were enqueued. One whose call was lost was
therefore enqueued between its neighbours. And on an idle device an operation starts as soon as it
can, a few microseconds after its launching call has begun: which of the moments between it was
follows from the start.

Where the clocks of host and device are not quite aligned, the latency of a launch looks longer or
shorter by the same amount everywhere; so the capture's own is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity.device import UNKNOWN_NS, Lane
from stepscope.trace.frame import BoolArray, IntArray

LATENCY_NS: Final = 6_000
"""Launch latency where the capture shows none: 5 to 10 us from the begin of the launching call to
the start of the kernel on an idle device (CUDA 11 to 13, x86 hosts)."""

LONGEST_LATENCY_NS: Final = 50_000
"""What is longer is no launch latency, nor an error of the clocks, but something that waits."""

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
    """

    begin_ns: IntArray
    end_ns: IntArray
    recorded: BoolArray
    latency_ns: int


def enqueued(lane: Lane, ops: IntArray, idle_from_ns: IntArray) -> Enqueued:
    """When the operations were enqueued that each ended a time in which the device was idle.

    Args:
        lane: the device.
        ops: rows of ``lane.ops``; below 0 for none.
        idle_from_ns: since when the device was idle.
    """
    row = np.maximum(ops, 0)
    call = np.where(ops >= 0, lane.call[row], -1)
    recorded = call >= 0
    api = lane.host.api
    if not len(api):
        never = np.full(len(ops), UNKNOWN_NS)
        return Enqueued(never, never, recorded, LATENCY_NS)
    begin = np.where(recorded, api["start_ns"][np.maximum(call, 0)], UNKNOWN_NS)
    end = np.where(recorded, api["end_ns"][np.maximum(call, 0)], UNKNOWN_NS)
    start = lane.ops["start_ns"][row]
    alone = recorded & (begin >= idle_from_ns) & lane.ops.equals("kind", "kernel")[row]
    latency = _latency_ns((start - begin)[alone])
    lost = (ops >= 0) & ~recorded
    if lost.any():
        earliest, latest = (times[row] for times in _between(lane))
        inferred = np.maximum(earliest, np.minimum(start - latency, latest))
        begin = np.where(lost & (earliest > UNKNOWN_NS), inferred, begin)
        end = np.where(lost, begin, end)
    return Enqueued(begin, end, recorded, latency)


def _latency_ns(measured_ns: IntArray) -> int:
    """The lower quartile: 6 to 13 us in some sixty captures, whatever the program does."""
    if len(measured_ns) < MIN_LATENCIES:
        return LATENCY_NS
    return int(np.clip(np.percentile(measured_ns, 25), 0, LONGEST_LATENCY_NS))


def _between(lane: Lane) -> tuple[IntArray, IntArray]:
    """Begins of the calls ahead of and behind each operation on its stream.

    ``UNKNOWN_NS`` twice, where there is none, or more than ``FEW_LOST`` in a row have none.
    """
    n = len(lane.ops)
    order = np.lexsort((np.arange(n), lane.ops["start_ns"], lane.ops["stream"]))
    at, linked = np.arange(n), lane.call[order] >= 0
    ahead = np.maximum.accumulate(np.where(linked, at, -1))
    behind = np.minimum.accumulate(np.where(linked, at, n)[::-1])[::-1]
    few = np.empty(n, bool)
    few[order] = behind - ahead - 1 <= FEW_LOST
    earliest, latest = lane.enqueued_between_ns
    known = few & (earliest > UNKNOWN_NS) & (latest > UNKNOWN_NS)
    return np.where(known, earliest, UNKNOWN_NS), np.where(known, latest, UNKNOWN_NS)
