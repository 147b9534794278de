"""From ranked causes to a diagnosis in which every figure carries its evidence."""

from __future__ import annotations

from typing import Final

from stepscope.diagnosis import frameworks, vendors
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.combined import Both
from stepscope.diagnosis.evidence import (
    ACCOUNTED,
    STEP_SQL,
    UTILISATION,
    Compute,
    accounting_figures,
    all_evaluated,
    coverage_figures,
    evaluated,
    idle_time_sql,
    job_figures,
    places,
    predicted_sql,
)
from stepscope.diagnosis.kernel_split import kernel_split
from stepscope.diagnosis.lever import Pulled, lever_finding
from stepscope.diagnosis.loader import ready_batches_warning
from stepscope.diagnosis.own_waits import own_wait_warning
from stepscope.diagnosis.profiler_overhead_figures import (
    measured_warning,
    overhead,
    overhead_figures,
    unclaimed_warning,
)
from stepscope.diagnosis.rank_warnings import rank_figures, rank_warnings, shared_steps_warning
from stepscope.diagnosis.ranking import HIGH, INSUFFICIENT, Ranked, reported, severity_of
from stepscope.diagnosis.reliability import gaps_end_at, unaffected_figure, why_unreliable
from stepscope.diagnosis.result import (
    SCHEMA,
    Combined,
    DeviceAccounting,
    Diagnosis,
    Evidence,
    Finding,
    FurtherRepair,
    InnerSteps,
    Location,
    StepOptions,
    StepSummary,
    StepTime,
    TraceSummary,
)
from stepscope.diagnosis.sentence import by_step, costing, filled
from stepscope.diagnosis.side_by_side import outlier_rows, rank_rows
from stepscope.diagnosis.uncovered import uncovered_communication
from stepscope.diagnosis.unexplained import unexplained_warning
from stepscope.diagnosis.unknown_device import single_precision_warning
from stepscope.diagnosis.unrecorded import unrecorded_ns, unrecorded_warnings
from stepscope.diagnosis.warned import Warned
from stepscope.gaps.unrecorded import BUSY, HOLE
from stepscope.kernels.findings import further_id
from stepscope.trace.problems import Problem
from stepscope.trace.units import percent, shown

HEALTHY = "gpu_bound_healthy"

_NOTABLE = 0.1
_NEARLY_ALL = 0.95
_OUTSIDE = (
    "the steps hold {coverage_gpu} of the GPU's work and {coverage_time} of the time between its "
    "first and last operation; {before_steps_ns} lie before and {after_steps_ns} behind them, with "
    "{outside_kernels_ns} of kernels and {outside_copies_ns} of copies and memory sets"
)

_ELSEWHERE = "another bottleneck takes over once it is gone"
_HOST_LIMITS = "the host would then limit the step; a program that launches faster gains more"

_FURTHER = "; with {further} the step takes {further_predicted_step_ns}"
_PREDICTED: Final = {
    "predicted_step_ns": "predicted_step_ns",
    "prediction_low_ns": "low_ns",
    "prediction_high_ns": "high_ns",
}

_UNRECORDED = "unrecorded, it goes from {unrecorded_before_ns} to {unrecorded_step_ns}"


def diagnose(
    cases: list[Case],
    found: list[Ranked],
    compute: Compute,
    *,
    paths: list[str],
    source: str,
    assumptions: list[str],
    problems: list[Problem],
    options: StepOptions,
    levers: list[Pulled],
    together: Both | None = None,
) -> Diagnosis:
    """Name the causes of a job.

    Args:
        cases: one a device, ordered by rank; at least one.
        found: their causes, ranked.
        compute: evaluates evidence statements.
        paths: the inputs as the user named them.
        source: where they come from.
        assumptions: what was assumed before.
        problems: what the imports counted.
        options: what the user said a step is.
        levers: what is left to gain on the reference device.
        together: the first two findings repaired together.
    """
    reference = reference_of(cases)
    explanation = reference.explanation
    findings, hidden = _findings(found, compute)
    if not findings:
        findings = _uncovered(cases, compute)
    asked = [*job_figures(), *coverage_figures()]
    single = len(cases) == 1
    asked += [UTILISATION] * single
    asked += rank_figures(reference.job.view.collectives)
    asked += overhead_figures(reference)
    late_is_unclaimed = not {"launch_bound", INSUFFICIENT} & {item.cause.id for item in found}
    unclaimed = unclaimed_warning(reference) if late_is_unclaimed else None
    possible = [
        ready_batches_warning(reference),
        shared_steps_warning(reference),
        *unrecorded_warnings(reference),
        own_wait_warning(reference),
        unexplained_warning(reference),
        single_precision_warning(reference),
        unclaimed,
    ]
    warned = [one for one in possible if one is not None]
    asked += [figure for one in warned for figure in one.figures]
    about = {e.figure: e for e in all_evaluated(asked, reference, compute)}
    enough = not findings or findings[0].cause != INSUFFICIENT
    accounting, sums = [], []
    for case in cases:
        gpu, figures = _accounting(case, compute)
        accounting.append(gpu)
        sums += figures
    ranks, figures = rank_rows(cases, compute)
    outliers, more = outlier_rows(reference, compute)
    sums += [*figures, *more]
    per_step = by_step("per step", explanation.steps.kind)
    combined = _combined(together, compute) if together is not None else None
    if combined is not None:
        sums += combined[1]
    return Diagnosis(
        schema=SCHEMA,
        trace=TraceSummary(
            paths=paths,
            source=source,
            ranks=len({case.rank for case in cases}),
            devices=len(cases),
            steps=len(explanation.steps),
            steady_steps=(explanation.first, explanation.last),
            step=_step_summary(reference, about, options),
        ),
        step_ns=StepTime(
            median=int(about["median_step_ns"].value),
            mean=int(about["mean_step_ns"].value),
            p95=int(about["p95_step_ns"].value),
            coefficient_of_variation=about["step_variation"].value,
        ),
        accounting=accounting,
        verdict=findings[0].cause if findings else HEALTHY,
        findings=findings,
        warnings=[
            *_warnings(reference, findings, about, warned, unclaimed),
            *(
                f"{title}: {shown(time.value, time.unit)} {per_step}, beside something that takes "
                "as long; fixing it alone would gain nothing"
                for title, time in hidden.items()
            ),
            *assumptions,
        ],
        problems=problems,
        evidence=[*about.values(), *hidden.values(), *sums],
        profiler_overhead=overhead(about),
        levers=[lever_finding(item, compute) for item in levers] if enough else [],
        kernels=kernel_split(reference, compute) if enough else None,
        ranks=ranks,
        outlier_steps=outliers,
        combined=combined[0] if combined is not None else None,
        gpu_utilization=about["gpu_utilization"].value if single and enough else None,
    )


def _combined(together: Both, compute: Compute) -> tuple[Combined, list[Evidence]]:
    """The first two findings repaired together, and the evidence."""
    columns = _PREDICTED
    figures = [
        Figure(f"combined.{name}", "ns", predicted_sql(column, together.id))
        for name, column in columns.items()
    ]
    evidence = all_evaluated(figures, together.items[0].case, compute)
    values = dict(zip(columns, (int(one.value) for one in evidence), strict=True))
    causes = [item.cause.id for item in together.items]
    return Combined(causes=causes, replayed=together.replayed, **values), evidence


def reference_of(cases: list[Case]) -> Case:
    """The slowest device, which the figures of the whole job are about."""
    return max(cases, key=lambda case: case.step_ns)


def _step_summary(reference: Case, about: dict[str, Evidence], options: StepOptions) -> StepSummary:
    steps = reference.explanation.steps
    return StepSummary(
        kind=steps.kind,
        found_by=steps.source,
        inner=[InnerSteps(part.kind, part.count, part.median_ns) for part in steps.inner],
        coverage_gpu=about["coverage_gpu"].value,
        coverage_time=about["coverage_time"].value,
        options=options,
    )


def _findings(found: list[Ranked], compute: Compute) -> tuple[list[Finding], dict[str, Evidence]]:
    """The findings, and the time of each cause whose repair alone gains nothing, by its title.

    In a job, the title says whose time it is.
    """
    worth = reported(found)
    findings = [_finding(item, compute) for item in worth]
    hidden = {}
    for item in found:
        if item not in worth:
            name = f"{item.cause.id}.observed_ns_per_step"
            figure = _with_time(Figure(name, "ns", "{time}"), item, _time_sql(item))
            on_rank = f" on rank {item.case.rank}" if len(item.case.job.cases) > 1 else ""
            hidden[item.cause.title + on_rank] = evaluated(figure, item.case, compute)
    return findings, hidden


def _uncovered(cases: list[Case], compute: Compute) -> list[Finding]:
    """A finding instead of "healthy" where communication that nothing explains covers the step."""
    uncovered = uncovered_communication(cases, ())
    if uncovered is None:
        return []
    case = next(case for case in cases if case.rank == uncovered.rank)
    evidence = all_evaluated(uncovered.figures, case, compute)
    longest = reference_of(cases)
    step = evaluated(Figure("step_ns", "ns", STEP_SQL), longest, compute)
    summary = filled(uncovered.message, evidence, {})
    return [
        Finding(
            cause=INSUFFICIENT,
            severity="medium" if uncovered.share >= HIGH else "low",
            share_of_step=0.0,
            time_ns_per_step=0,
            predicted_step_ns=round(longest.step_ns),
            prediction_low_ns=round(longest.step_ns),
            prediction_high_ns=round(longest.step_ns),
            ranks=[uncovered.rank],
            where=Location(),
            message=summary[0].upper() + summary[1:],
            recommendations=[uncovered.advice],
            next_capture=None,
            root_cause=None,
            replay_error=None,
            names=[f"rank {uncovered.rank}"],
            evidence=[step, *evidence],
        )
    ]


def _finding(item: Ranked, compute: Compute) -> Finding:
    cause, case, detection = item.cause, item.case, item.detection
    known = cause.id != INSUFFICIENT
    gain_sql = _GAIN_SQL.format(cause=cause.id)
    time_sql = gain_sql if item.counts_by_its_gain else _time_sql(item)
    figures = [_with_time(figure, item, time_sql) for figure in _OF_EVERY_FINDING]
    if item.counts_by_its_gain:
        observed = Figure("observed_ns_per_step", "ns", "{time}")
        figures.append(_with_time(observed, item, _time_sql(item)))
    figures = [*detection.figures, *(figures if known else figures[:1])]
    if item.predicted.unrecorded is not None:
        figures += [
            Figure(name, "ns", predicted_sql(name, cause.id))
            for name in ("unrecorded_before_ns", "unrecorded_step_ns")
        ]
    repair, other = _repairs(item)
    further = item.predicted.further
    if further is not None:
        figures += [
            Figure(f"further_{name}", "ns", predicted_sql(column, further_id(cause.id)))
            for name, column in _PREDICTED.items()
        ]
    unreliable, ending = why_unreliable(item), gaps_end_at(item)
    unaffected = unaffected_figure(item)
    figures += [figure for figure in (unaffected, ending and ending[1]) if figure is not None]
    evidence = all_evaluated(figures, case, compute)
    value = {e.figure: e.value for e in evidence}
    kind = case.explanation.steps.kind
    reason = filled(by_step(detection.message, kind), evidence, detection.texts)
    if known:
        costs = _COSTS
        if item.counts_by_its_gain:
            costs = _PARTLY if item.is_partial else _MORE
        texts = {"costs": costing(cause.title)}
        if item.is_partial:
            reason += "; " + filled(_limit(item), evidence, {})
        if other and item.predicted.replay_error is not None:
            reason += f"; the prediction is for {repair}"
            if further is not None:
                reason += filled(by_step(_FURTHER, kind), evidence, {"further": other})
        stated = filled(by_step(costs, kind), evidence, texts)
        if item.recording_hides_gain:
            stated += f"; {filled(_UNRECORDED, evidence, {})}"
        message = f"{cause.title} {stated}: {reason}"
    else:
        message = reason[0].upper() + reason[1:]
    step = round(case.job_step_ns)
    return Finding(
        cause=cause.id,
        severity=severity_of(1 - value.get("predicted_step_ns", step) / value["step_ns"]),
        share_of_step=value.get("share_of_step", 0.0),
        time_ns_per_step=int(value.get("time_ns_per_step", 0)),
        predicted_step_ns=int(value.get("predicted_step_ns", step)),
        prediction_low_ns=int(value.get("prediction_low_ns", step)),
        prediction_high_ns=int(value.get("prediction_high_ns", step)),
        ranks=item.ranks,
        where=detection.where,
        message=message,
        reason=reason if known else "",
        recommendations=vendors.advice(_recommended(item), case),
        next_capture=vendors.next_capture(
            frameworks.for_program(detection.next_capture, case), case
        ),
        root_cause=detection.root_cause,
        replay_error=item.predicted.replay_error,
        at_least=detection.at_least,
        names=sorted(text.strip("'\"") for text in detection.texts.values()),
        evidence=evidence,
        unreliable=unreliable,
        unaffected_step_ns=int(value["unaffected_step_ns"]) if unaffected is not None else None,
        gaps_end_at=ending[0] if ending is not None else None,
        further=None
        if further is None
        else FurtherRepair(
            other,
            **{name: int(value[f"further_{name}"]) for name in _PREDICTED},
            is_first=item.predicted.by_further,
        ),
    )


def _repairs(item: Ranked) -> tuple[str, str]:
    """The repair that is predicted and the other one, in words; empty where there are not two."""
    both = item.detection.further
    if both is None:
        return "", ""
    return (both.repair, both.first) if item.predicted.by_further else (both.first, both.repair)


def _recommended(item: Ranked) -> list[str]:
    """What to do, the repair that is predicted first."""
    first, *rest = item.detection.recommendations or [""]
    if item.predicted.by_further and rest:
        return [rest[0], first, *rest[1:]]
    return item.detection.recommendations


def _limit(item: Ranked) -> str:
    """What limits the step once the cause is gone, a template."""
    return _ELSEWHERE if item.detection.repair is None else _HOST_LIMITS


_COSTS: Final = "{costs} {time_ns_per_step} of each {step_ns} step"
_PARTLY: Final = (
    "{costs} {observed_ns_per_step} of each {step_ns} step, of which fixing it alone recovers "
    "{time_ns_per_step}"
)
_MORE: Final = (
    "{costs} {observed_ns_per_step} of each {step_ns} step, and fixing it recovers "
    "{time_ns_per_step}"
)
_GAIN_SQL = (
    "SELECT greatest(step_ns - predicted_step_ns, 0) FROM prediction WHERE cause = '{cause}' "
    "AND {{gpu}}"
)

_OF_EVERY_FINDING = (
    Figure("step_ns", "ns", "{step}"),
    Figure("time_ns_per_step", "ns", "{time}"),
    Figure("share_of_step", "share", "SELECT round(({time}) / ({step}), 4)"),
    Figure("predicted_step_ns", "ns", "predicted_step_ns"),
    Figure("prediction_low_ns", "ns", "low_ns"),
    Figure("prediction_high_ns", "ns", "high_ns"),
)


def _time_sql(item: Ranked) -> str | None:
    """The statement for the time that was seen to pass in it; None for its idle time."""
    return item.detection.time_sql or item.cause.time_sql


def _with_time(figure: Figure, item: Ranked, time_sql: str | None) -> Figure:
    """One of the figures of every finding, for a cause.

    The time is that of the rank, the step that of the job, as the prediction is.
    """
    time = time_sql or idle_time_sql(item.cause.id)
    step = STEP_SQL.format(**places(reference_of(item.case.job.cases)))
    sql = figure.sql.replace("{time}", time).replace("{step}", step)
    if " " not in sql:
        sql = predicted_sql(sql, item.cause.id)
    return Figure(figure.name, figure.unit, sql)


def _accounting(case: Case, compute: Compute) -> tuple[DeviceAccounting, list[Evidence]]:
    """One device's accounting and the evidence of its figures."""
    idle = {"unexplained": 0} | case.explanation.idle_by_cause_ns
    figures = accounting_figures(case, list(idle))
    evidence = all_evaluated(figures, case, compute)
    value = {e.figure.split(".", 2)[2]: int(e.value) for e in evidence}
    gpu = DeviceAccounting(
        rank=case.rank,
        device=case.explanation.gpu.device,
        **{column: value[column] for column in ACCOUNTED},
        idle_by_cause_ns={cause: value[f"idle_by_cause_ns.{cause}"] for cause in idle},
        steps=value["steps"],
    )
    return gpu, evidence


def _warnings(
    reference: Case,
    findings: list[Finding],
    about: dict[str, Evidence],
    warned: list[Warned],
    unclaimed: Warned | None,
) -> list[str]:
    e = reference.explanation
    assumptions = [e.steps.message]
    if e.set_aside:
        assumptions.append(e.set_aside)
    if e.coverage.gpu < _NEARLY_ALL or e.coverage.time < _NEARLY_ALL:
        assumptions.append(filled(_OUTSIDE, about.values(), {}))
    # these are about the device with the longest steps
    on_rank = f"on rank {reference.rank}, " if len(reference.job.cases) > 1 else ""
    assumptions += rank_warnings(reference.job.view.collectives, findings, about)
    if measured := measured_warning(reference):
        assumptions.append(filled(measured, about.values(), {}))
    idle = about["idle_share"].value
    unrecorded = (
        unrecorded_ns(reference, BUSY) + unrecorded_ns(reference, HOLE)
    ) / reference.step_ns
    assumptions += [
        on_rank + filled(by_step(one.template, e.steps.kind), about.values(), {}) for one in warned
    ]
    if unclaimed is None and not findings and idle - unrecorded > _NOTABLE:
        assumptions.append(
            f"{on_rank}the GPU is idle for {percent(idle)} of the step, split over causes that are "
            "each too small to report"
        )
    return assumptions
