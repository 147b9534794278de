"""What a diagnosis remarks about the communication of its ranks, beside the findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.collectives.job import Collectives
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.evidence import STEP_SQL
from stepscope.diagnosis.result import Evidence, Finding
from stepscope.diagnosis.warned import Warned
from stepscope.trace.units import percent, shown

_NOTABLE = 0.1
_MOSTLY = 0.5
_BY_FAR = 2
_ABOUT_RANKS = {"straggler", "load_imbalance", "pipeline_bubble"}


def rank_figures(c: Collectives | None) -> list[Figure]:
    """Figures that the remarks use."""
    if c is None or not len(c.parts):
        return []
    last = _mostly_last(c)
    share = "SELECT sum({}) / sum(step_ns) FROM rank_pace"
    figures = [
        Figure("waiting_share", "share", share.format("waiting_ns")),
        Figure("transfer_share", "share", share.format("transfer_ns + missing_ns")),
    ]
    if c.alone:
        figures += [
            Figure(
                "communication_share",
                "share",
                "SELECT sum(communication_ns) / sum(wall_ns) FROM step WHERE steady",
            ),
            Figure("blocking_share", "share", share.format("blocking_ns")),
        ]
    if last is not None:
        rank = f"FROM rank_pace WHERE rank = {c.participants[last].rank}"
        figures += [
            Figure("joined_last", "count", f"SELECT sum(joined_last)::BIGINT {rank}"),
            Figure("operations", "count", f"SELECT sum(operations)::BIGINT {rank}"),
            Figure(
                "waiting_for_it_ns",
                "ns_per_step",
                "SELECT median(waiting_ns)::BIGINT FROM rank_pace WHERE rank <> "
                f"{c.participants[last].rank}",
            ),
        ]
    return figures


def rank_warnings(
    c: Collectives | None, findings: Sequence[Finding], about: Mapping[str, Evidence]
) -> list[str]:
    """Sentences about waiting, transferring and who is last."""
    if c is None or not len(c.parts):
        return [] if c is None else list(c.warnings)
    waiting, transfer = (about[name].value for name in ("waiting_share", "transfer_share"))
    warnings = []
    if c.alone and transfer > _NOTABLE:
        warnings.append(
            f"communication is exposed for {percent(transfer)} of the time; the capture of one "
            "rank cannot tell moving data from waiting for a late rank, so give the captures of "
            "all ranks together"
        )
    elif c.alone and about["communication_share"].value > _NOTABLE:
        warnings.append(
            f"communication runs for {percent(about['communication_share'].value)} of the time, "
            f"{percent(transfer)} of the time with no compute beside it (exposed) and for "
            f"{percent(about['blocking_share'].value)} while other work was ready (blocking)"
        )
    elif not c.alone and waiting + transfer > _NOTABLE:
        warnings.append(
            f"{percent(waiting)} of the GPU time of all ranks is spent waiting inside collectives "
            f"for a slower rank; {percent(transfer)} is exposed data transfer"
        )
    last = _mostly_last(c)
    if last is not None and not _says_why(findings, c.participants[last].rank):
        joined, operations, others = (
            shown(about[name].value, about[name].unit)
            for name in ("joined_last", "operations", "waiting_for_it_ns")
        )
        warnings.append(
            f"rank {c.participants[last].rank} joins last at {joined} of {operations} collectives; "
            f"the others wait {others} per step for it, {_reason(c, last)}"
        )
    return [*warnings, *c.warnings]


def shared_steps_warning(case: Case) -> Warned | None:
    """Which steps waits and transfers are of, where the slowest rank has more steady steps.

    None where these are the same.
    """
    c = case.job.view.collectives
    if c is None or c.alone or len(c.parts) in (0, case.explanation.n_steady):
        return None
    return Warned(
        "{own_steps} steps are steady, of {own_step_ns} on average: predictions are of these; "
        "waits and transfers are of the {shared_steps} steps that are steady on all ranks, of "
        "{shared_step_ns}",
        [
            Figure("own_steps", "count", "SELECT count(*) FROM step WHERE steady AND {gpu}"),
            Figure("own_step_ns", "ns", STEP_SQL),
            Figure("shared_steps", "count", "SELECT max(steps) FROM rank_pace"),
            Figure("shared_step_ns", "ns", "SELECT max(step_ns) FROM rank_pace"),
        ],
    )


def _says_why(findings: Sequence[Finding], rank: int) -> bool:
    """Whether findings say already why a rank is late: they are about ranks, or about it alone."""
    return any(
        one.cause in _ABOUT_RANKS or (one.ranks == [rank] and one.cause != "profiler_overhead")
        for one in findings
    )


def _reason(c: Collectives, last: int) -> str:
    late = c.lateness
    if late is not None and late.common:
        return (
            "but the same costs them time as well, hidden behind that wait, so the trouble is not "
            "this rank's alone"
        )
    tool = c.parts.idle.get("profiler_overhead")
    own = {name: time.mean(axis=0) for name, time in c.parts.own().items()}
    more = {name: time[last] - np.median(np.delete(time, last)) for name, time in own.items()}
    part = max(more, key=lambda name: more[name])
    if part == "idle profiler_overhead" or any(pace.recording_ns for pace in c.paces):
        return "which the profiler may explain: it slows the hosts, and not all of them alike"
    if tool is None and late is not None and last in late.devices:
        return "too little to report"
    cause = part.removeprefix("idle ")
    if cause != part:
        return f"and it has more idle time than the others, most of it {cause}"
    what = {"copy": "copies take", "memset": "memory sets take"}.get(part, f"{part} takes")
    return f"and its {what} more of the step than on the others"


def _mostly_last(c: Collectives) -> int | None:
    """The device that is last by far most often, where that costs the others time."""
    instances = c.matched.instances
    several = (c.step_of(instances.last_start_ns) >= 0) & (instances.members > 1)
    if c.alone or not several.any():
        return None
    counts = np.bincount(instances.last[several], minlength=len(c.participants))
    device = int(np.argmax(counts))
    others = np.delete(c.parts.waiting.mean(axis=0), device)
    costs = float(np.median(others)) > 0.5 * _NOTABLE * c.step_ns
    often = counts[device] >= max(
        _MOSTLY * several.sum(), _BY_FAR * np.delete(counts, device).max(initial=0)
    )
    return device if costs and often else None
