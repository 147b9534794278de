"""What a cause that rests on late launches must say about the tool that captured them.

Late launches look the same whether the program or the tool makes the host slow. What the tool may
have made counts for nothing in the order of the causes, and the sentence says how much it may be.
"""

from __future__ import annotations

from typing import Final

from stepscope.analysis.call_cost import LARGEST_PART
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.evidence import STEADY_STEPS, STEP_SQL, idle_time_sql

_NOTABLE: Final = 0.2
"""The sentence says what the tool may have made from this part of the cause's time on."""

_WORTH_A_REMARK: Final = 0.08
"""Late launches that take this part of the step would be a finding (``launch_bound``)."""


def doubtful_ns(case: Case, late_ns: float) -> float:
    """Of so much time in late launches, what the capturing tool may have made, ns a step.

    Its cost lies on all late launches of the step alike. With torch.profiler the estimate itself
    is charged already; here stands that it may be twice as much.

    Args:
        case: the device.
        late_ns: late launches that a cause claims, ns a step.
    """
    e = case.explanation
    most = e.recording_ns / e.n_steady if e.tool is None else e.tool.most_ns
    all_late = max(case.idle_ns("launch_bound"), late_ns)
    return late_ns * min(1.0, most / all_late) if all_late > 0 else 0.0


def unclaimed_ns(case: Case) -> float:
    """Late launches that are not held against the program, ns a step.

    That is what twice the estimated cost of recording explains; where the estimate is charged to
    the tool already, once.
    """
    e = case.explanation
    return e.recording_ns / e.n_steady if e.tool is None else 2 * e.tool.typical_ns


def tool_figures(case: Case) -> list[Figure]:
    """Calls a step, and what the tool may have added to them, ns a step: middle, least, most."""
    tool = case.explanation.tool
    if tool is None:
        return []
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
    tool = case.explanation.tool
    if tool is None or tool.most_ns < _NOTABLE * late_ns:
        return ""
    return (
        f"; going by measurements elsewhere, {tool.unit.tool} itself adds "
        "some {typical_tool_ns_per_step} a step ({least_tool_ns_per_step} to "
        "{most_tool_ns_per_step}) to its {cuda_calls_per_step} CUDA calls, so only a run without "
        "it tells how much of this is the program's own"
    )


def unclaimed_figures(case: Case) -> list[Figure]:
    """Figures of :func:`unclaimed_remark`; none where it has nothing to say."""
    late, least = case.idle_ns("launch_bound"), _WORTH_A_REMARK * case.step_ns
    if case.explanation.tool is None or not late - unclaimed_ns(case) < least <= late:
        return []
    time = Figure("late_launches_ns_per_step", "ns_per_step", idle_time_sql("launch_bound"))
    return [time, *tool_figures(case)]


def unclaimed_remark(case: Case) -> str:
    """Why late launches are no finding, a template over :func:`unclaimed_figures`."""
    tool = case.explanation.tool
    if tool is None or not unclaimed_figures(case):
        return ""
    return (
        "the GPU waits for launches for {late_launches_ns_per_step} of a step, which is not held "
        f"against the program: {tool.unit.tool} itself may add some {{typical_tool_ns_per_step}} "
        "({least_tool_ns_per_step} to {most_tool_ns_per_step}) to the {cuda_calls_per_step} CUDA "
        "calls of a step; where a run without it is no faster, the program is launch-bound"
    )
