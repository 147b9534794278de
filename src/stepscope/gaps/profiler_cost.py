"""What torch.profiler itself costs the host, estimated from the events it recorded.

torch.profiler does not say what it costs, but the cost is paid per event, on the thread that
produces it. The unit costs were measured with ``benchmarks/captures/profiler_cost.py`` on an H200
machine (torch 2.11; medians, and the spread between runs of the same loop is up to a factor of
two for CUDA calls): an estimate, which is why results that rest on it say so. A slower host pays
more for each event; how slow it is shows in the operators that only make views, which take the
same instructions everywhere. Nsight Systems adds some 2 % to host-bound runs, below what matters
here, and records its own larger costs as events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity.device import Lane, Reader
from stepscope.intervals.distinct import among, distinct_values
from stepscope.trace.frame import IntArray

OPERATOR_NS: Final = 800
OPERATOR_SHAPES_NS: Final = 500
ENQUEUE_NS: Final = 4_000
PYTHON_FUNCTION_NS: Final = 400
MEMORY_EVENT_NS: Final = 300

VIEW_NS: Final = {
    "aten::as_strided": 480,
    "aten::t": 3_000,
    "aten::transpose": 1_650,
    "aten::view": 1_150,
    "aten::detach": 1_200,
}
"""Recorded median lengths of operators that only make views, on the machine of the unit costs."""

MIN_VIEWS = 30
"""So many calls of an operator give its median length."""

SLOWEST_PACE = 3.0
"""A host this many times slower than that machine is the most that the estimate is scaled by; it
is never scaled down, because the time of an event does not only depend on the processor."""


@dataclass(frozen=True)
class RecordedCost:
    """Estimated cost of recording, as a step function of time.

    Attributes:
        at_ns: times of the recorded events on launching threads, ascending.
        total_ns: cost of all events up to and including each.
    """

    at_ns: IntArray
    total_ns: IntArray

    def between(self, begin_ns: IntArray, end_ns: IntArray) -> IntArray:
        """Cost inside each window, ns."""
        upto = np.concatenate(([0], self.total_ns))
        high = np.searchsorted(self.at_ns, end_ns, side="left")
        low = np.searchsorted(self.at_ns, begin_ns, side="left")
        return np.asarray(upto[high] - upto[low], np.int64)


NOTHING: Final = RecordedCost(np.empty(0, np.int64), np.empty(0, np.int64))
"""For tools whose recording costs nothing worth charging."""


def recorded_cost(lane: Lane, read: Reader, source: str, options: dict[str, str]) -> RecordedCost:
    """Estimate the recording cost on the lane's launching threads.

    Args:
        lane: the device.
        read: gives tables as frames.
        source: the trace's source; only ``kineto`` is charged.
        options: capture options (``record_shapes`` raises the cost of an operator).
    """
    if source != "kineto":
        return NOTHING
    shapes = options.get("record_shapes", "") not in ("", "0", "false")
    operator_ns = OPERATOR_NS + (OPERATOR_SHAPES_NS if shapes else 0)
    times, costs = [], []
    for table, time, unit in (
        ("operator", "start_ns", operator_ns),
        ("python_function", "start_ns", PYTHON_FUNCTION_NS),
        ("memory_event", "time_ns", MEMORY_EVENT_NS),
    ):
        rows = read(table, "process_id", "thread_id", time)
        mine = among(rows["thread_id"], lane.host.launch_threads)
        times.append(rows[time][mine])
        costs.append(np.full(int(mine.sum()), unit, np.int64))
    enqueues = lane.calls_of(lane.call >= 0)
    times.append(lane.host.api["start_ns"][enqueues])
    costs.append(np.full(int(enqueues.sum()), ENQUEUE_NS, np.int64))
    at = np.concatenate(times)
    order = np.argsort(at, kind="stable")
    total = np.cumsum(np.concatenate(costs)[order]) * host_pace(lane, read)
    return RecordedCost(at[order], total.astype(np.int64))


def host_pace(lane: Lane, read: Reader) -> float:
    """How many times slower this host is than the machine of the unit costs, from 1 on.

    Args:
        lane: the device whose launching threads are looked at.
        read: gives tables as frames.
    """
    rows = read("operator", "process_id", "thread_id", "start_ns", "end_ns", "name")
    mine = rows.equals("name", *VIEW_NS) & among(rows["thread_id"], lane.host.launch_threads)
    mine &= rows["process_id"] == lane.process_id
    length, name = (rows["end_ns"] - rows["start_ns"])[mine], rows["name"][mine]
    ratios = [
        float(np.median(length[name == code])) / VIEW_NS[rows.texts["name"][code]]
        for code in distinct_values(name).tolist()
        if (name == code).sum() >= MIN_VIEWS
    ]
    return min(max(float(np.median(ratios)), 1.0), SLOWEST_PACE) if ratios else 1.0
