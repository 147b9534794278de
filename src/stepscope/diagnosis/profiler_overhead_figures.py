"""What a cause that rests on late launches must say about the tool that captured them.

Late launches look the same whether the program or the tool makes the host slow. What the tool may
have made counts for nothing in the order of the causes, and the sentence says how much it may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stepscope.breakdown.recurrence import is_disturbed
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.evidence import STEADY_STEPS, STEP_SQL, idle_time_sql
from stepscope.diagnosis.result import Evidence, ProfilerOverhead
from stepscope.diagnosis.warned import Warned
from stepscope.gaps.profiler_overhead import (
    DEVIATIONS,
    LARGEST_PART,
    PROFILED,
    TABLE,
)

_NOTABLE: Final = 0.2
"""The sentence says what the tool may have made from this part of the cause's time on."""

_OF_MEASURED: Final = ("profiler_overhead_ns", "least_overhead_ns", "most_overhead_ns")
_OF_CALLS: Final = (
    "typical_tool_ns_per_step",
    "least_tool_ns_per_step",
    "most_tool_ns_per_step",
)
_OF_CHARGED: Final = (
    "charged_overhead_ns",
    "least_charged_overhead_ns",
    "most_charged_overhead_ns",
)
OVERHEAD_NAMES: Final = (_OF_MEASURED, _OF_CALLS, _OF_CHARGED)
"""Names of the figures of the profiler overhead, its least and its most; the surest first."""

_CHARGED: Final = "profiler_overhead"
"""The cause that torch.profiler's estimated cost is charged to."""

_WORTH_A_WARNING: Final = 0.08
"""Late launches that take this part of the step would be a finding (``launch_bound``)."""


def uncertain_overhead_ns(case: Case, late_ns: float) -> float:
    """Of so much time in late launches, what the capturing tool may have made, ns per step.

    Its cost lies on all late launches of the step alike. What recording by torch.profiler takes is
    charged or replayed away; here stands how much more it may be at most.

    Args:
        case: the device.
        late_ns: late launches that a cause claims, ns per step.
    """
    e = case.explanation
    if e.measured is not None:
        most = max(e.measured.high_ns - case.idle_ns(_CHARGED), 0.0)
    else:
        more = PROFILED["low"] - PROFILED["expected"]
        most = more * _recorded_ns(case) if e.tool is None else e.tool.most_ns
    all_late = max(case.idle_ns("launch_bound"), late_ns)
    return late_ns * min(1.0, most / all_late) if all_late > 0 else 0.0


def unclaimed_ns(case: Case) -> float:
    """Late launches that are not held against the program, ns per step.

    That is the measured profiler overhead, as far as it is not charged to the tool already. Where
    none was measured it is what recording the captured events takes, likewise, or what twice the
    estimate explains.
    """
    e = case.explanation
    if e.measured is not None:
        return max(e.measured.cost_ns - case.idle_ns(_CHARGED), 0.0)
    if e.tool is not None:
        return 2 * e.tool.typical_ns
    return max(_recorded_ns(case) - e.recording_ns / e.n_steady, 0.0)


def _recorded_ns(case: Case) -> float:
    """What recording the captured events takes torch.profiler, ns per step."""
    e = case.explanation
    return e.recorded.cost_ns() / e.n_steady


def measured_figures(case: Case) -> list[Figure]:
    """The measured profiler overhead, ns per step, its bounds, and what it was measured by."""
    if case.explanation.measured is None:
        return []

    mean = "(end_ns - start_ns) / steps"
    # the stretch in the middle, of an even number the shorter one
    timed = (
        f"FROM (SELECT *, row_number() OVER (ORDER BY {mean}, start_ns) AS place, "
        f"count(*) OVER () AS stretches FROM {TABLE} WHERE {{process}} AND NOT recorded) "
        "WHERE place = (stretches + 1) // 2"
    )
    steady = "FROM step WHERE steady AND {gpu}"
    cost = f"(SELECT avg(wall_ns) {steady}) - {mean}"
    spread = f"(SELECT coalesce(stddev_samp(wall_ns), 0) {steady})"
    error = f"{DEVIATIONS} * {spread} * sqrt(1 / {STEADY_STEPS} + 1 / steps)"
    return [
        Figure("profiler_overhead_ns", "ns_per_step", f"SELECT round({cost})::BIGINT {timed}"),
        Figure(
            "least_overhead_ns", "ns_per_step", f"SELECT round({cost} - {error})::BIGINT {timed}"
        ),
        Figure(
            "most_overhead_ns", "ns_per_step", f"SELECT round({cost} + {error})::BIGINT {timed}"
        ),
        Figure(
            "unrecorded_steps",
            "count",
            f"SELECT steps {timed}",
        ),
        Figure(
            "mean_unrecorded_step_ns",
            "ns",
            f"SELECT round({mean})::BIGINT {timed}",
        ),
    ]


def overhead_figures(case: Case) -> list[Figure]:
    """The figures of :func:`overhead`; none where nothing tells what recording costs.

    What is charged to torch.profiler may be half or twice as much.
    """
    e = case.explanation
    if e.measured is not None or e.tool is not None:
        return tool_figures(case)
    if not case.idle_ns(_CHARGED):
        return []
    charged = f"FROM idle_gap WHERE cause = '{_CHARGED}' AND {{gpu}}"
    return [
        Figure(
            name,
            "ns_per_step",
            f"SELECT round({part} * sum(end_ns - start_ns) / {STEADY_STEPS})::BIGINT {charged}",
        )
        for name, part in zip(_OF_CHARGED, (1, 0.5, 2), strict=True)
    ]


def overhead(about: Mapping[str, Evidence]) -> ProfilerOverhead | None:
    """What recording adds to a step, from the values of :func:`overhead_figures`."""
    for names in OVERHEAD_NAMES:
        if all(name in about for name in names):
            middle, low, high = (int(about[name].value) for name in names)
            measured = names == _OF_MEASURED
            return ProfilerOverhead(
                middle, low, high, "unrecorded steps" if measured else "estimated"
            )
    return None


def measured_warning(case: Case) -> str:
    """What recording costs, a template over :func:`measured_figures`; empty where not measured."""
    measured = case.explanation.measured
    if measured is None:
        return ""
    if measured.high_ns < 0:
        return (
            "the recorded steps are not those of the run: {unrecorded_steps} steps of it that were "
            "not recorded took {mean_unrecorded_step_ns} on average, longer than these vary; what "
            "took longer in them is not in the capture"
        )
    if is_disturbed(case.explanation):
        return (
            "the outlier steps are by chance, or of the recording's making: steps of the same run "
            "that were not recorded hold hardly any ({unrecorded_steps} of them took "
            "{mean_unrecorded_step_ns} on average); what repairs gain is predicted from the other "
            "steps"
        )
    if measured.low_ns <= 0:
        return (
            "profiler overhead: too small to tell from the variation of the steps; "
            "{unrecorded_steps} steps of the same run that were not recorded took "
            "{mean_unrecorded_step_ns} on average"
        )
    return (
        "profiler overhead: {profiler_overhead_ns} of each step ({least_overhead_ns} to "
        "{most_overhead_ns}); {unrecorded_steps} steps of the same run that were not recorded took "
        "{mean_unrecorded_step_ns} on average"
    )


def tool_figures(case: Case) -> list[Figure]:
    """Calls a step, and what the tool may have added to them, ns per step: middle, least, most."""
    tool = case.explanation.tool
    if tool is None or case.explanation.measured is not None:
        return measured_figures(case)
    calls = "FROM api_call WHERE api IN ('runtime', 'driver') AND {process} AND {window}"

    def added(unit_ns: int) -> str:
        each = f"round(count(*) * {unit_ns} / {STEADY_STEPS})"
        return f"SELECT least({each}, round({LARGEST_PART} * ({STEP_SQL})))::BIGINT {calls}"

    return [
        Figure(
            "cuda_calls_per_step",
            "per_step",
            f"SELECT round(count(*) / {STEADY_STEPS}) {calls}",
        ),
        Figure("typical_tool_ns_per_step", "ns_per_step", added(tool.unit.typical_ns)),
        Figure("least_tool_ns_per_step", "ns_per_step", added(tool.unit.least_ns)),
        Figure("most_tool_ns_per_step", "ns_per_step", added(tool.unit.most_ns)),
    ]


def tool_text(case: Case, late_ns: float) -> str:
    """What a sentence about late launches adds; it uses :func:`tool_figures`."""
    measured = case.explanation.measured
    if measured is not None:
        if measured.low_ns <= 0 or measured.high_ns < _NOTABLE * late_ns:
            return ""
        return (
            "; profiler overhead, measured against {unrecorded_steps} unrecorded steps, is "
            "{profiler_overhead_ns} per step ({least_overhead_ns} to {most_overhead_ns})"
        )
    tool = case.explanation.tool
    if tool is None or tool.most_ns < _NOTABLE * late_ns:
        return ""
    return (
        "; profiler overhead, going by measurements elsewhere, is some {typical_tool_ns_per_step} "
        f"a step ({{least_tool_ns_per_step}} to {{most_tool_ns_per_step}}) for what "
        f"{tool.unit.tool} adds to its {{cuda_calls_per_step}} CUDA calls, so only a run without "
        "it tells how much of this is the program's own"
    )


def unclaimed_warning(case: Case) -> Warned | None:
    """Why late launches are no finding; None where the tool is not the reason."""
    late, least = case.idle_ns("launch_bound"), _WORTH_A_WARNING * case.step_ns
    e = case.explanation
    if e.tool is None or e.measured is not None or not late - unclaimed_ns(case) < least <= late:
        return None
    time = Figure("late_launches_ns_per_step", "ns_per_step", idle_time_sql("launch_bound"))
    return Warned(
        "the GPU waits for launches for {late_launches_ns_per_step} of a step, which is not held "
        "against the program: profiler overhead may be some {typical_tool_ns_per_step} "
        f"({{least_tool_ns_per_step}} to {{most_tool_ns_per_step}}), which {e.tool.unit.tool} adds "
        "to the {cuda_calls_per_step} CUDA calls of a step; where a run without it is no faster, "
        "the program is launch-bound",
        [time, *tool_figures(case)],
    )
