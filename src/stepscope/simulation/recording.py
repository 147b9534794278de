"""What recording costs over its estimate: measured on unrecorded steps, or by what launching took.

The estimate (``gaps.profiler_overhead``) says where recording is paid for, and comes from loops
that do one thing over and over. In a training step each event costs more: code and buffers of the
profiler and of the framework push each other out of the caches. What is known better is which
*part* of a recorded host's time goes to recording, since a slow host is slow in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stepscope.activity.device import GpuTimeline, Reader
from stepscope.gaps.profiler_overhead import PYTHON_FUNCTION_NS, UNIT_COSTS, host_pace
from stepscope.intervals.distinct import among, distinct_values
from stepscope.simulation import pace
from stepscope.simulation.build import Run
from stepscope.simulation.changes import Bound, Subject
from stepscope.simulation.engine import steps_of
from stepscope.simulation.program import C

OPERATOR_NS: Final = (2_750, 5_200)
"""In training steps recorded by torch.profiler, what an operator takes the launching threads: for
its recording, on the host of the unit costs, and in all."""

LAUNCH_NS: Final = (3_350, 11_600)
"""The same of a call that launches something.

What recording takes was fitted, with ``PACE_POWER`` and ``SLOWNESS_POWER``, to 39 programs on H200s
whose host sets the pace and that were timed with and without it in one process. The steps without
recording of a program left out of the fit are then met within 9 % in the middle, and 26 % in nine
of ten; by a fixed part of launching, as before, within 14 and 31 %."""

PACE_POWER: Final = 0.65
"""Recording an event takes longer on a slower host, with this power of how many times slower its
operators that make views are (``gaps.profiler_overhead.host_pace``)."""

SLOWNESS_POWER: Final = 0.5
"""The same of how many times longer launching took than its operators and launches would: a program
whose operators are slow in themselves (autograd, autocast, cold caches) pays half of that for their
recording."""

SLOWEST_PACE: Final = 2.0
"""A host that is slower counts as one that slow: none of those programs had a slower one."""

LARGEST_PART: Final = 0.75
"""Recording took no more than this of launching in any of those programs."""

PROFILED: Final[dict[Bound, float]] = {"low": 1.35, "expected": 1.0, "high": 0.6}
"""What recording by torch.profiler costs over :func:`profiled_factor`, to either side: nine of ten
of the 39 programs lost 0.62 to 1.3 times as much."""

CALLED: Final[dict[str, dict[Bound, float]]] = {
    "stepscope": {"low": 3.0, "expected": 1.5, "high": 0.5},
    "nsys": {"low": 3.0, "expected": 1.0, "high": 0.5},
}
"""The same over what the calls themselves show, by the tool. The collector also slows what it does
not record: half of thirteen programs whose host sets the pace lost 1.5 times the estimate and more.
Of Nsight Systems, two programs lost 0.2 and 1.0 times the usual 1.5 us a call."""

_FACTORS: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0)
"""Costs over their estimate whose steps are replayed; between two of them steps lie on a line."""

_FINE: Final = np.arange(0, _FACTORS[-1], 0.005)

_ALIKE: Final = 0.005
"""Share of the step within which a replayed and a measured step are the same."""


def profiled_factor(
    subjects: Sequence[Subject], runs: Sequence[Run], readers: Sequence[Reader]
) -> float:
    """What torch.profiler costs over its estimate, by the part of launching that goes to recording.

    That part follows from how many operators and launches there are, and grows where the host is
    slow; the rest of launching is the framework's own.

    Args:
        subjects: the unchanged programs, one a device.
        runs: the replayed steps of each.
        readers: gives tables of each.
    """
    cost = estimate = 0.0
    for subject, run, read in zip(subjects, runs, readers, strict=True):
        program, gpu = subject.program, subject.gpu
        launching = (
            program.work_ns[:, C["launch_bound"]].sum() + program.call_ns[subject.is_op].sum()
        )
        window = run.begin_ns, run.end_ns
        operators = _events(read, "operator", gpu, window)
        launches = len(distinct_values(gpu.call[program.op[subject.is_op & program.hosted]]))
        functions = _events(read, "python_function", gpu, window) * PYTHON_FUNCTION_NS
        of_tool, whole = (
            operators * OPERATOR_NS[n] + launches * LAUNCH_NS[n] + functions for n in (0, 1)
        )
        slowness = (float(launching) / max(whole, 1)) ** SLOWNESS_POWER
        slower = min(host_pace(gpu, read), SLOWEST_PACE) ** PACE_POWER
        cost += min(of_tool * slower * slowness, LARGEST_PART * float(launching))
        estimate += float((program.recording_ns - program.recording_untraced_ns).sum())
    return cost / estimate if cost and estimate else 1.0


def of_events_ns(gpu: GpuTimeline, read: Reader, begin_ns: int, end_ns: int) -> float:
    """What torch.profiler costs in a window by what it records alone, ns.

    Launching need not be known for it; it says less than :func:`profiled_factor`.

    Args:
        gpu: the device.
        read: gives its tables.
        begin_ns: begin of the window.
        end_ns: end of the window.
    """
    window = begin_ns, end_ns
    enqueued = (gpu.enqueue_begin_ns >= begin_ns) & (gpu.enqueue_begin_ns < end_ns)
    launches = len(distinct_values(gpu.call[enqueued & (gpu.call >= 0)]))
    cost = _events(read, "operator", gpu, window) * OPERATOR_NS[0] + launches * LAUNCH_NS[0]
    cost += _events(read, "python_function", gpu, window) * PYTHON_FUNCTION_NS
    slower: float = min(host_pace(gpu, read), SLOWEST_PACE) ** PACE_POWER
    return cost * slower


def _events(read: Reader, table: str, gpu: GpuTimeline, window: tuple[int, int]) -> int:
    """Rows of a table that begin on the launching threads in a window."""
    rows = read(table, "process_id", "thread_id", "start_ns")
    mine = among(rows["thread_id"], gpu.host.launch_threads)
    mine &= (rows["process_id"] == gpu.process_id) & (rows["start_ns"] >= window[0])
    return int((mine & (rows["start_ns"] < window[1])).sum())


def of_calls(tool: str) -> dict[Bound, float]:
    """The factors of a tool that is known by its calls, by the name that users read."""
    return next(CALLED[source] for source, unit in UNIT_COSTS.items() if unit.tool == tool)


def measured_factor(
    subjects: list[Subject],
    cost: Mapping[Bound, float | None],
    estimated: Mapping[Bound, float],
) -> dict[Bound, float]:
    """The factors that make the replayed step as long as those that nobody recorded.

    The cost stays spread over what was recorded, as the estimate has it.

    Args:
        subjects: the unchanged programs.
        cost: measured cost over the measured step: the most for ``low``, the least for ``high``.
            Where the measurement gives these two only, the estimate counts between them.
        estimated: the factors of the estimate.
    """
    jobs = [pace.unrecorded(subjects, factor) for factor in _FACTORS]
    replayed = steps_of([[s.program for s in job] for job in jobs])
    steps = np.array([max(r.step_ns for r in ranks) for ranks in replayed], float)
    gained = np.maximum.accumulate(1 - steps / max(steps[0], 1.0))
    found: dict[Bound, float] = {
        bound: factor_of(gained, share, estimated[bound])
        for bound, share in cost.items()
        if share is not None
    }
    if "expected" not in found:
        found["expected"] = min(max(estimated["expected"], found["high"]), found["low"])
    return found


def factor_of(gained: Sequence[float] | NDArray[np.float64], share: float, near: float) -> float:
    """The factor that gains so much of the step.

    Where the device sets the pace many do: the step then says no more than that, and of those
    factors the one that is nearest to the estimate counts.

    Args:
        gained: what the replay gains with each of the factors, as a share of the step.
        share: what is to be gained; what the replay cannot gain at all is taken as its most.
        near: the estimate's factor.
    """
    fine = np.interp(_FINE, _FACTORS, gained)
    target = min(max(share, 0.0), float(fine[-1]))
    alike = _FINE[np.abs(fine - target) <= _ALIKE]
    return float(np.clip(near, alike[0], alike[-1])) if len(alike) else near
