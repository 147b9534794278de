"""What recording costs over its estimate: measured on unrecorded steps, or by what launching took.

The estimate (``gaps.profiler_overhead``) says where recording is paid for, and comes from loops
that do one thing over and over. In a training step each event costs more: code and buffers of the
profiler and of the framework push each other out of the caches. What is known better is which
*part* of a recorded host's time goes to recording, since a slow host is slow in both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stepscope.activity.device import Reader
from stepscope.activity.host import inside
from stepscope.breakdown.explain import Explanation
from stepscope.breakdown.recurrence import long_run, uneven_copies_ns
from stepscope.gaps.profiler_overhead import DEVIATIONS, UNIT_COSTS, MeasuredCost, recorded_events
from stepscope.intervals.algebra import Intervals
from stepscope.simulation import pace
from stepscope.simulation.changes import Bound
from stepscope.simulation.engine import steps_of
from stepscope.simulation.program import C
from stepscope.simulation.run import Run
from stepscope.simulation.subject import Subject

CALLED: Final[dict[str, dict[Bound, float]]] = {
    "stepscope": {"low": 1.85, "expected": 1.0, "high": 0.5},
    "nsys": {"low": 3.0, "expected": 1.0, "high": 0.5},
}
"""To either side of :func:`called_factor`, by the tool: what nine of ten programs lost (see there).
Of Nsight Systems, two programs lost 0.2 and 1.0 times the usual 1.5 us a call."""

USUAL_LAUNCHING_NS: Final = 30_000
"""What launching takes a recorded host for each launch, in the middle of these programs."""

OF_USUAL: Final = 1.5
"""What recording costs such a host, over what its calls show: the collector also slows what it does
not record."""

LAUNCHING_POWER: Final = 0.75
"""The same grows with this power of what launching takes."""

LAUNCHING_MEASURED_NS: Final = (10_000, 60_000)
"""Hosts that are quicker or slower count as these: there were none among those programs."""

_FACTORS: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0)
"""Costs over their estimate whose steps are replayed; between two of them steps lie on a line."""

_FINE: Final = np.arange(0, _FACTORS[-1], 0.005)

_ALIKE: Final = 0.005
"""Share of the step within which a replayed and a measured step are the same."""

_WORKING: Final = (
    "host_compute",
    "input_starvation",
    "allocator_churn",
    "checkpoint_stall",
    "cpu_offload",
)
"""Idle time in which the host works, but does not launch."""


def profiled_factor(
    subjects: Sequence[Subject],
    runs: Sequence[Run],
    readers: Sequence[Reader],
    apart: Sequence[Intervals],
) -> float:
    """What torch.profiler costs over its estimate, by the part of launching that goes to recording.

    That part follows from how many operators and launches there are, and grows where the host is
    slow; the rest of launching is the framework's own.

    Args:
        subjects: the unchanged programs, one a device.
        runs: the replayed steps of each.
        readers: gives tables of each.
        apart: when the host of each did something else (``host_work.not_launching``).
    """
    cost = estimate = 0.0
    for subject, run, read, beside in zip(subjects, runs, readers, apart, strict=True):
        program, gpu = subject.program, subject.gpu
        calls = subject.is_op & ~inside(beside, program.at_ns)
        launching = program.work_ns[:, C["launch_bound"]].sum() + program.call_ns[calls].sum()
        recorded = recorded_events(gpu, read, run.begin_ns, run.end_ns, beside)
        cost += recorded.cost_ns(float(launching))
        estimate += float((program.recording_ns - program.recording_untraced_ns).sum())
    return cost / estimate if cost and estimate else 1.0


def called_factor(tool: str, subjects: Sequence[Subject]) -> dict[Bound, float]:
    """What a tool costs that is known by its calls, over what these show, to either side.

    The collector costs the more the longer launching takes: of 48 programs whose host sets the pace
    (H100 and H200) that were timed with and without it in one process, those below 30 us a launch
    lost 1.1 times what their calls show, those above 40 us 2.3 times, in the middle. The steps of a
    program left out of that fit are met within 25 % in nine of ten; by a fixed factor within 42 %.

    Args:
        tool: its name, as users read it.
        subjects: the unchanged programs, one a device.
    """
    source = next(source for source, unit in UNIT_COSTS.items() if unit.tool == tool)
    if source != "stepscope":
        return CALLED[source]
    launching = launches = 0.0
    for subject in subjects:
        calls = subject.is_op & (subject.program.call_ns > 0)
        launching += float(pace.launching_ns(subject).sum())
        launches += float(calls.sum())
    each = float(np.clip(launching / max(launches, 1.0), *LAUNCHING_MEASURED_NS))
    usual = OF_USUAL * (each / USUAL_LAUNCHING_NS) ** LAUNCHING_POWER
    return {bound: usual * part for bound, part in CALLED[source].items()}


def measured_part(
    e: Explanation, measured: MeasuredCost, replayed_ns: int | None = None
) -> tuple[dict[Bound, float | None], float]:
    """What recording costs by steps that were timed without it, and the error of their mean.

    Both are shares of the recorded step.

    Where some steps are odd, those that were not recorded may have held one more or less of them
    than as many steps of the run do; where copies map pages in some steps, they may in all of these
    or in none. Host work that launches nothing takes more or less from one stretch of steps to the
    next. A cost that one of these hides is bounded, and not known.

    Args:
        e: the explained device.
        measured: steps of the run that were timed and not recorded.
        replayed_ns: mean of the replayed steps where odd ones are by chance and left out of them;
            it stands for the recorded step then.
    """
    run = long_run(e)
    by_cause = e.gaps.by_cause()
    work = pace.BETWEEN_TURNS * sum(by_cause.get(cause, 0) for cause in _WORKING) / e.n_steady
    uneven = uneven_copies_ns(e)
    deviation = run.spread_ns * (1 / e.n_steady + 1 / measured.unrecorded_steps) ** 0.5
    as_many, by_chance, sure = run.mean_of(measured.unrecorded_steps)
    error = math.hypot(DEVIATIONS * deviation, by_chance, work, uneven)
    cost = measured.cost_ns if not run.odd_ns else as_many - measured.unrecorded_ns
    step_ns = e.step_ns
    if replayed_ns is not None:
        step_ns, sure = replayed_ns, True
        cost = replayed_ns - measured.unrecorded_ns
        error = math.hypot(DEVIATIONS * deviation, work, uneven)
    known = sure and not uneven and work <= max(cost, 0.0)
    part: dict[Bound, float | None] = {
        "low": (cost + error) / step_ns,
        "expected": cost / step_ns if known else None,
        "high": (cost - error) / step_ns,
    }
    return part, deviation / step_ns


def measured_factor(
    subjects: list[Subject],
    cost: Mapping[Bound, float | None],
    estimated: Mapping[Bound, float],
    error: float,
) -> dict[Bound, float]:
    """The factors that make the replayed step as long as those that nobody recorded.

    The cost stays spread over what was recorded, as the estimate has it. A difference that is
    no more than noise is no measurement: a device that sets the pace hides what recording costs its
    host, and a factor that makes up for the noise would leave a host that does next to nothing.

    Args:
        subjects: the unchanged programs.
        cost: measured cost over the measured step: the most for ``low``, the least for ``high``.
            Where the measurement gives these two only, the estimate counts between them.
        estimated: the factors of the estimate.
        error: standard error of the cost, as a share of the step.
    """
    # what is known to be the recording's own goes with any factor
    jobs = [subjects, *(pace.unrecorded(subjects, factor) for factor in _FACTORS)]
    replayed = steps_of([[s.program for s in job] for job in jobs])
    recorded, *steps = (max(r.step_ns for r in ranks) for ranks in replayed)
    gained = np.maximum.accumulate(1 - np.array(steps, float) / max(recorded, 1.0))
    most, middle = cost["low"], cost["expected"]
    if middle is not None and middle > DEVIATIONS * error:
        error = 0.0  # steps tell a recorded run from others: the cost is what was measured
    found: dict[Bound, float] = {
        bound: factor_of(gained, share, estimated[bound], error if bound == "expected" else 0.0)
        for bound, share in cost.items()
        if share is not None
    }
    if most is not None and "expected" in found and most > gained[-1]:
        # no cost is too high for what was measured: the device hides it
        found["low"] = max(estimated["low"], found["expected"])
    if "expected" not in found:
        found["expected"] = min(max(estimated["expected"], found["high"]), found["low"])
    return found


def factor_of(
    gained: Sequence[float] | NDArray[np.float64], share: float, near: float, error: float = 0.0
) -> float:
    """The factor that gains so much of the step.

    Where the device sets the pace many do: the step then says no more than that, and of those
    factors the one that is nearest to the estimate counts.

    Args:
        gained: what the replay gains with each of the factors, as a share of the step.
        share: what is to be gained; what the replay cannot gain at all is taken as its most.
        near: the estimate's factor.
        error: standard error of the share; factors that gain as much within it are alike.
    """
    fine = np.interp(_FINE, _FACTORS, gained)
    target = min(max(share, 0.0), float(fine[-1]))
    alike = _FINE[np.abs(fine - target) <= max(error, _ALIKE)]
    return float(np.clip(near, alike[0], alike[-1])) if len(alike) else near
