"""From explained devices to a ranked, predicted and evidenced diagnosis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, causes
from stepscope.diagnosis.result import (
    SCHEMA,
    Diagnosis,
    Evidence,
    Finding,
    LaneAccounting,
    Severity,
    StepTime,
    TraceSummary,
)
from stepscope.trace.problems import Problem

HEALTHY = "gpu_bound_healthy"
INSUFFICIENT = "insufficient_data"

_FOLD_BELOW_FIRST = 0.2
_FOLD_BELOW_SHARE = 0.08
_HIGH, _MEDIUM = 0.20, 0.08

Compute = Callable[[str], "float | int"]
"""Runs a statement whose only cell is a number."""


def diagnose(
    cases: list[Case],
    compute: Compute,
    *,
    paths: list[str],
    source: str,
    remarks: list[str],
    problems: list[Problem],
) -> Diagnosis:
    """Name the causes of a job.

    Args:
        cases: one a device, ordered by rank; at least one.
        compute: evaluates evidence statements.
        paths: the inputs as the user named them.
        source: where they come from.
        remarks: what was assumed before.
        problems: what the imports counted.
    """
    reference = max(cases, key=lambda case: case.step_ns)
    explanation = reference.explanation
    findings = _findings(cases, compute)
    durations = explanation.steady_durations_ns
    return Diagnosis(
        schema=SCHEMA,
        trace=TraceSummary(
            paths=paths,
            source=source,
            ranks=len({case.rank for case in cases}),
            devices=len(cases),
            steps=len(explanation.steps),
            steady_steps=(explanation.first, explanation.last),
        ),
        step_ns=StepTime(
            median=int(np.median(durations)),
            p95=int(np.percentile(durations, 95)),
            coefficient_of_variation=round(float(durations.std() / durations.mean()), 4),
        ),
        accounting=[_accounting(case) for case in cases],
        verdict=findings[0].cause if findings else HEALTHY,
        findings=findings,
        remarks=[*_remarks(reference, cases, findings), *remarks],
        problems=problems,
    )


def _findings(cases: list[Case], compute: Compute) -> list[Finding]:
    seen: dict[str, list[tuple[Case, Detection]]] = {}
    for case in cases:
        for cause in causes().values():
            detection = cause.detect(case)
            if detection and detection.time_ns >= cause.min_share * case.step_ns:
                seen.setdefault(cause.id, []).append((case, detection))
    _fold_symptoms(seen)
    if INSUFFICIENT in seen:
        seen = {INSUFFICIENT: seen[INSUFFICIENT]}

    def gain(cause_id: str) -> tuple[bool, float]:
        return causes()[cause_id].of_program, max(d.time_ns for _, d in seen[cause_id])

    ranked = sorted(seen, key=gain, reverse=True)
    findings: list[Finding] = []
    for cause_id in ranked:
        case, detection = max(seen[cause_id], key=lambda pair: pair[1].time_ns)
        share = detection.time_ns / case.step_ns
        if (
            findings
            and share < _FOLD_BELOW_SHARE
            and (detection.time_ns < _FOLD_BELOW_FIRST * findings[0].time_ns_per_step)
        ):
            continue  # a side effect beside the first cause
        ranks = sorted({c.rank for c, _ in seen[cause_id]})
        findings.append(_finding(causes()[cause_id], case, detection, ranks, compute))
    return findings


def _fold_symptoms(seen: dict[str, list[tuple[Case, Detection]]]) -> None:
    """Leave out, rank by rank, what another finding says is only its symptom."""
    absorbed = {pair for found in seen.values() for _, d in found for pair in d.absorbs}
    for cause_id in list(seen):
        seen[cause_id] = [(c, d) for c, d in seen[cause_id] if (cause_id, c.rank) not in absorbed]
        if not seen[cause_id]:
            del seen[cause_id]


def _finding(
    cause: Cause, case: Case, detection: Detection, ranks: list[int], compute: Compute
) -> Finding:
    step, time = case.step_ns, detection.time_ns
    share = time / step
    # a repair inside the kernels changes what the device executes
    floor = 0.0 if detection.repair else _floor(case, cause.id)
    known = cause.id != INSUFFICIENT
    predicted = max(floor, step - time) if known else step
    low = max(floor, step - time - detection.unsure_ns) if known else step
    high = min(step, step - detection.direct_ns) if known else step
    time_text = f"{time / 1e6:.1f} ms of each {step / 1e6:.1f} ms step"
    says = detection.says[0].upper() + detection.says[1:]
    if known:
        says = f"{cause.title} costs {time_text}: {detection.says}"
    figures = [
        *detection.figures,
        Figure("steady_steps", "count", "SELECT count(*) FROM step WHERE steady AND {lane}"),
        Figure(
            "steady_wall_ns",
            "ns",
            "SELECT sum(wall_ns)::BIGINT FROM step WHERE steady AND {lane}",
        ),
    ]
    return Finding(
        cause=cause.id,
        severity=_severity(share),
        share_of_step=round(share, 4) if known else 0.0,
        time_ns_per_step=round(time) if known else 0,
        predicted_step_ns=round(predicted),
        prediction_low_ns=round(min(low, predicted)),
        prediction_high_ns=round(max(high, predicted)),
        ranks=ranks,
        where=detection.where,
        says=says,
        do=detection.do,
        next_capture=detection.next_capture,
        evidence=[_evidence(figure, case, compute) for figure in figures],
    )


def _floor(case: Case, cause_id: str) -> float:
    """What the device executes in a step whatever the host does, ns."""
    e = case.explanation
    names = ["compute_ns", "exposed_communication_ns", "memset_ns"]
    if cause_id != "blocking_copy":
        names.append("exposed_copy_ns")
    return sum(e.steady_total(name) for name in names) / e.n_steady


def _severity(share: float) -> Severity:
    if share >= _HIGH:
        return "high"
    return "medium" if share >= _MEDIUM else "low"


def _evidence(figure: Figure, case: Case, compute: Compute) -> Evidence:
    e = case.explanation
    process = f"process_id = {e.lane.process_id}"
    if case.trace_rank is not None:
        process = f"rank = {case.trace_rank} AND {process}"
    places = {
        "process": process,
        "lane": f"{process} AND device = {e.lane.device}",
        "window": f"start_ns >= {e.begin_ns} AND start_ns < {e.end_ns}",
    }
    sql = figure.sql.format(**places)
    counting = "SELECT count(*) FROM " + sql.split(" FROM ", 1)[1]
    return Evidence(figure.name, compute(sql), figure.unit, sql, int(compute(counting)))


def _accounting(case: Case) -> LaneAccounting:
    e = case.explanation
    return LaneAccounting(
        rank=case.rank,
        device=e.lane.device,
        wall_ns=e.steady_total("wall_ns"),
        compute_ns=e.steady_total("compute_ns"),
        exposed_communication_ns=e.steady_total("exposed_communication_ns"),
        exposed_copy_ns=e.steady_total("exposed_copy_ns"),
        memset_ns=e.steady_total("memset_ns"),
        idle_ns=e.steady_total("idle_ns"),
        idle_by_cause_ns={"unexplained": 0} | e.idle_by_cause_ns,
    )


def _remarks(reference: Case, cases: list[Case], findings: list[Finding]) -> list[str]:
    e = reference.explanation
    remarks = [e.steps.says]
    if e.set_aside:
        remarks.append(e.set_aside)
    wall = sum(c.explanation.steady_total("wall_ns") for c in cases)
    exposed = sum(c.explanation.steady_total("exposed_communication_ns") for c in cases)
    if exposed > 0.1 * wall:
        remarks.append(
            f"communication runs uncovered for {100 * exposed / wall:.0f} % of the time; a rank "
            "that waits inside a collective for a late peer looks the same as a slow network, so "
            "compare the ranks before blaming either"
        )
    idle = e.steady_total("idle_ns") / e.steady_total("wall_ns")
    if not findings and idle > 0.1:
        remarks.append(
            f"the GPU is idle for {100 * idle:.0f} % of the step, split over causes that are each "
            "too small to report"
        )
    return remarks
