"""What recording costs the program: estimated from recorded events and calls, or measured.

torch.profiler does not say what it costs, but the cost is paid per event, on the thread that
produces it. The unit costs were measured with ``benchmarks/captures/profiler_cost.py`` on an H200
machine (torch 2.11; medians, and the spread between runs of the same loop is up to a factor of
two for CUDA calls): an estimate, which is why results that rest on it say so. A slower host pays
more for each event; how slow it is shows in the operators that only make views, which take the
same instructions everywhere. Nsight Systems adds some 2 % to host-bound runs, below what matters
here, and records its own larger costs as events.

Nsight Systems and Stepscope's collector do not say what they cost, and unlike with torch.profiler
one figure does not fit all machines. Programs whose host sets the pace were run with and without
Nsight Systems 2025.3 (docs/guides/run.md, and the captures of ``benchmarks/captures``): divided by
the CUDA calls of a step, the difference was 0.25 us on one machine, and 3.5 to 9 us on four
others. The geometric middle is 1.5 us, which is also what is usually said of it. The collector
added two thirds of that in the same minutes, for half as many recorded calls. Such an estimate is
no ground to move time from one cause to another. It says how much of the late launches the tool may
have made.

The cost is measured where ``stepscope run --steps`` timed some whole steps after the recording, by
the program's clock and with no work on the GPU at either end. The difference of the means
is what recording adds to a step, whatever the tool, the machine and the program are. The first
recorded steps are no part of it where they were set aside: beginning to record costs once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from stepscope.activity.device import GpuTimeline, Reader
from stepscope.activity.host import inside
from stepscope.intervals.algebra import EMPTY, Intervals
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
class RecordingOverhead:
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


NO_COST: Final = RecordingOverhead(np.empty(0, np.int64), np.empty(0, np.int64))
"""For tools whose recording costs nothing worth charging."""


def recording_overhead(
    gpu: GpuTimeline, read: Reader, source: str, options: dict[str, str]
) -> RecordingOverhead:
    """Estimate the recording cost on the GPU's launching threads.

    Args:
        gpu: the device.
        read: gives tables as frames.
        source: the trace's source; only ``kineto`` is charged.
        options: capture options (``record_shapes`` raises the cost of an operator).
    """
    if source != "kineto":
        return NO_COST
    shapes = options.get("record_shapes", "") not in ("", "0", "false")
    operator_ns = OPERATOR_NS + (OPERATOR_SHAPES_NS if shapes else 0)
    times, costs = [], []
    for table, time, unit in (
        ("operator", "start_ns", operator_ns),
        ("python_function", "start_ns", PYTHON_FUNCTION_NS),
        ("memory_event", "time_ns", MEMORY_EVENT_NS),
    ):
        rows = read(table, "process_id", "thread_id", time)
        mine = among(rows["thread_id"], gpu.host.launch_threads)
        times.append(rows[time][mine])
        costs.append(np.full(int(mine.sum()), unit, np.int64))
    enqueues = gpu.calls_of(gpu.call >= 0)
    times.append(gpu.host.api["start_ns"][enqueues])
    costs.append(np.full(int(enqueues.sum()), ENQUEUE_NS, np.int64))
    at = np.concatenate(times)
    order = np.argsort(at, kind="stable")
    total = np.cumsum(np.concatenate(costs)[order]) * host_pace(gpu, read)
    return RecordingOverhead(at[order], total.astype(np.int64))


def host_pace(gpu: GpuTimeline, read: Reader) -> float:
    """How many times slower this host is than the machine of the unit costs, from 1 on.

    Args:
        gpu: the device whose launching threads are looked at.
        read: gives tables as frames.
    """
    rows = read("operator", "process_id", "thread_id", "start_ns", "end_ns", "name")
    mine = rows.equals("name", *VIEW_NS) & among(rows["thread_id"], gpu.host.launch_threads)
    mine &= rows["process_id"] == gpu.process_id
    length, name = (rows["end_ns"] - rows["start_ns"])[mine], rows["name"][mine]
    ratios = [
        float(np.median(length[name == code])) / VIEW_NS[rows.texts["name"][code]]
        for code in distinct_values(name).tolist()
        if (name == code).sum() >= MIN_VIEWS
    ]
    return min(max(float(np.median(ratios)), 1.0), SLOWEST_PACE) if ratios else 1.0


@dataclass(frozen=True)
class UnitCost:
    """What a tool adds to one recorded CUDA call.

    Attributes:
        tool: its name.
        least_ns: the least that was measured.
        typical_ns: the geometric middle.
        most_ns: the most that was measured.
    """

    tool: str
    least_ns: int
    typical_ns: int
    most_ns: int


UNIT_COSTS: Final = {
    "nsys": UnitCost("Nsight Systems", 250, 1_500, 9_000),
    "stepscope": UnitCost("the collector", 300, 2_000, 12_000),
}
"""By the trace's source. torch.profiler is not here: :func:`recording_overhead` charges it."""

LARGEST_PART: Final = 0.55
"""The tool makes no more than this part of a step: of the programs that were measured, the one that
suffered most took 2.2 times as long under Nsight Systems as without."""


@dataclass(frozen=True)
class CallOverhead:
    """What a tool may have added to the CUDA calls of one process, ns a steady step.

    Attributes:
        unit: what it adds to a call.
        calls: recorded CUDA calls a step.
        least_ns: by the least that was measured.
        typical_ns: by the middle.
        most_ns: by the most that was measured.
    """

    unit: UnitCost
    calls: float
    least_ns: float
    typical_ns: float
    most_ns: float


def call_overhead(
    gpu: GpuTimeline, source: str, begin_ns: int, end_ns: int, n_steps: int
) -> CallOverhead | None:
    """What the capturing tool may have added; None for tools that are accounted for otherwise.

    Args:
        gpu: the device whose process is looked at.
        source: the trace's source.
        begin_ns: begin of the steady window.
        end_ns: end of the steady window.
        n_steps: steps in it.
    """
    unit = UNIT_COSTS.get(source)
    api = gpu.host.api
    if unit is None or not len(api):
        return None
    low, high = np.searchsorted(api["start_ns"], (begin_ns, end_ns))
    calls = float(high - low) / n_steps
    limit = LARGEST_PART * (end_ns - begin_ns) / n_steps
    least, typical, most = (
        min(calls * ns, limit) for ns in (unit.least_ns, unit.typical_ns, unit.most_ns)
    )
    return CallOverhead(unit, calls, least, typical, most)


UNRECORDED_LAUNCH_NS: Final = 2_200
"""What a call that launches a kernel takes where nothing records it: 2 to 2.5 us on current hosts
(``benchmarks/captures/launch_cost.cu``)."""


def call_cost_ns(gpu: GpuTimeline, tool: CallOverhead) -> float:
    """What the tool adds to one recorded call, as the calls themselves show it, ns.

    The collector works inside the call that it records, so what a launch takes beyond an unrecorded
    one is its doing. In thirteen pairs of recorded and unrecorded runs whose host sets the pace the
    difference was 0.3 to 9 us a call, more where recorded launches took longer: 3 us at a median of
    5 us, 7 us at 6.6 us. The launches of Nsight Systems show no such thing: its middle counts.
    """
    typical = tool.typical_ns / max(tool.calls, 1.0)
    if tool.unit is not UNIT_COSTS["stepscope"]:
        return typical
    call = distinct_values(gpu.call[gpu.is_kernel & (gpu.call >= 0)])
    if not len(call):
        return typical
    api = gpu.host.api
    median = float(np.median((api["end_ns"] - api["start_ns"])[call]))
    limit = tool.most_ns / max(tool.calls, 1.0)
    return min(max(median - UNRECORDED_LAUNCH_NS, float(tool.unit.least_ns)), limit)


TABLE: Final = "timed_stretch"
DEVIATIONS: Final = 2.0
"""The bounds lie so many standard errors beside the middle."""


@dataclass(frozen=True)
class MeasuredCost:
    """What recording adds to a step of one process, ns.

    Attributes:
        cost_ns: the difference of the mean steps; negative where recorded steps were the faster.
        low_ns: its lower bound.
        high_ns: its upper bound.
        unrecorded_steps: steps in a row that were timed and not recorded.
        unrecorded_ns: their mean.
        stretches: the same of every such stretch: its steps, and their mean.
    """

    cost_ns: float
    low_ns: float
    high_ns: float
    unrecorded_steps: int
    unrecorded_ns: float
    stretches: tuple[tuple[int, float], ...] = ()


def measured_cost(read: Reader, process_id: int, steady_ns: IntArray) -> MeasuredCost | None:
    """What recording adds to a step; None where nothing was timed without it.

    Stretches of steps were timed before the recording and after it; the middle one counts, of an
    even number the shorter one in the middle. What disturbs some steps makes them longer: before
    it the collector is there and waits to be told to begin, and the program may still warm up;
    afterwards the host may be slow for a while. Of 106 programs on a host that often was, and of 86
    on one that was not, the shorter of two stretches differed from the program by itself by 15 and
    12 % in the mean, that afterwards by 20 and 13 %.

    Args:
        read: gives tables as frames.
        process_id: the process.
        steady_ns: lengths of the steady steps, whose variation says how far means can be trusted.
    """
    rows = read(TABLE, "process_id", "start_ns", "end_ns", "steps", "recorded")
    if len(rows):
        rows = rows.take((rows["process_id"] == process_id) & ~rows["recorded"].astype(bool))
    if not len(rows) or not len(steady_ns):
        return None
    means = (rows["end_ns"] - rows["start_ns"]) / rows["steps"]
    middle = np.lexsort((rows["start_ns"], means))[(len(rows) - 1) // 2]
    mean, steps = float(means[middle]), int(rows["steps"][middle])
    spread = float(np.std(steady_ns, ddof=1)) if len(steady_ns) > 1 else 0.0
    error = DEVIATIONS * spread * (1 / len(steady_ns) + 1 / steps) ** 0.5
    cost = float(steady_ns.mean()) - mean
    stretches = tuple(zip(rows["steps"].tolist(), means.tolist(), strict=True))
    return MeasuredCost(cost, cost - error, cost + error, steps, mean, stretches)


IN_STEP_OPERATOR_NS: Final = (2_350, 5_200)
"""In training steps recorded by torch.profiler, what an operator takes the launching threads: for
its recording, on the host of the unit costs, and in all."""

IN_STEP_LAUNCH_NS: Final = (2_900, 11_600)
"""The same of a call that launches something.

What recording takes was fitted, with ``PACE_POWER`` and ``SLOWNESS_POWER``, to 39 programs on H200s
whose host sets the pace and that were timed with and without it in one process. The steps without
recording of a program left out of the fit are then met within 9 % in the middle, and 26 % in nine
of ten; by a fixed part of launching within 14 and 31 %. The cost is a seventh less than that fit
has it, which is the middle of 60 later programs on H100s and H200s whose host sets the pace: with
the fit's they would take 12 % less unrecorded than they do.
"""

PACE_POWER: Final = 0.65
"""Recording an event takes longer on a slower host, with this power of how many times slower its
operators that make views are (:func:`host_pace`)."""

SLOWNESS_POWER: Final = 0.5
"""The same of how many times longer launching took than its operators and launches would: a program
whose operators are slow in themselves (autograd, autocast, cold caches) pays half of that for their
recording."""

SLOWEST_FITTED_PACE: Final = 2.0
"""A host that is slower counts as one that slow: none of those programs had a slower one."""

LARGEST_PART_OF_LAUNCHING: Final = 0.75
"""Recording took no more than this of launching in any of those programs."""

PROFILED: Final[dict[Literal["low", "expected", "high"], float]] = {
    "low": 1.35,
    "expected": 1.0,
    "high": 0.65,
}
"""What recording by torch.profiler costs over :meth:`RecordedEvents.cost_ns`, to either side: eight
of ten of those 60 programs lost 0.66 to 1.38 times as much."""


@dataclass(frozen=True)
class RecordedEvents:
    """What torch.profiler recorded of the launching threads in a window.

    Attributes:
        operators: operators that begin in it.
        launches: calls that launch something.
        python_functions: Python functions that begin in it.
        slower: how many times slower the host is (:func:`host_pace`).
    """

    operators: int
    launches: int
    python_functions: int
    slower: float

    def cost_ns(self, launching_ns: float | None = None) -> float:
        """What recording them takes the host, ns.

        Args:
            launching_ns: what launching took in the window; it says less without.
        """
        of_tool, whole = (
            self.operators * IN_STEP_OPERATOR_NS[n]
            + self.launches * IN_STEP_LAUNCH_NS[n]
            + self.python_functions * PYTHON_FUNCTION_NS
            for n in (0, 1)
        )
        cost: float = of_tool * min(self.slower, SLOWEST_FITTED_PACE) ** PACE_POWER
        if launching_ns is None:
            return cost
        slowness: float = (launching_ns / max(whole, 1)) ** SLOWNESS_POWER
        return min(cost * slowness, LARGEST_PART_OF_LAUNCHING * launching_ns)


def recorded_events(
    gpu: GpuTimeline, read: Reader, begin_ns: int, end_ns: int, without: Intervals = EMPTY
) -> RecordedEvents:
    """What torch.profiler recorded of a device's launching threads between two times.

    Args:
        gpu: the device.
        read: gives tables as frames.
        begin_ns: begin of the window.
        end_ns: its end.
        without: what begins in these is not counted.
    """

    def begun(table: str) -> int:
        rows = read(table, "process_id", "thread_id", "start_ns")
        mine = among(rows["thread_id"], gpu.host.launch_threads)
        mine &= (rows["process_id"] == gpu.process_id) & (rows["start_ns"] >= begin_ns)
        mine &= (rows["start_ns"] < end_ns) & ~inside(without, rows["start_ns"])
        return int(mine.sum())

    enqueued = gpu.enqueue_begin_ns
    mine = (enqueued >= begin_ns) & (enqueued < end_ns) & ~inside(without, enqueued)
    called = gpu.call[mine]
    launches = len(distinct_values(called[called >= 0]))
    slower = host_pace(gpu, read)
    return RecordedEvents(begun("operator"), launches, begun("python_function"), slower)
