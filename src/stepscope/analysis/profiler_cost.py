"""What torch.profiler itself costs the host, estimated from the events it recorded.

torch.profiler does not say what it costs, but the cost is paid per event, on the thread that
produces it. The unit costs were measured with ``benchmarks/captures/profiler_cost.py`` on an H200
machine (torch 2.11; medians, and the spread between runs of the same loop is up to a factor of
two for CUDA calls): an estimate, which is why results that rest on it say so. Nsight Systems adds
some 2 % to host-bound runs, below what matters here, and records its own larger costs as events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.analysis.lanes import Lane, Reader
from stepscope.trace.frame import IntArray

OPERATOR_NS: Final = 800
OPERATOR_SHAPES_NS: Final = 500
ENQUEUE_NS: Final = 4_000
PYTHON_FUNCTION_NS: Final = 400
MEMORY_EVENT_NS: Final = 300


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
        mine = np.isin(rows["thread_id"], lane.host.launch_threads)
        times.append(rows[time][mine])
        costs.append(np.full(int(mine.sum()), unit, np.int64))
    enqueues = lane.calls_of(lane.call >= 0)
    times.append(lane.host.api["start_ns"][enqueues])
    costs.append(np.full(int(enqueues.sum()), ENQUEUE_NS, np.int64))
    at = np.concatenate(times)
    order = np.argsort(at, kind="stable")
    return RecordedCost(at[order], np.cumsum(np.concatenate(costs)[order]))
