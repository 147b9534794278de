"""The diagnosis of a job in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepscope.render.fitted import PROSE_WIDTH, Column, fitted, name_column, wrapped
from stepscope.render.text import clean, figure, percent, plural

if TYPE_CHECKING:
    from stepscope.jobs.job_result import (
        CollectiveLogs,
        HeatMap,
        JobDiagnosis,
        JobFinding,
        LoggedRow,
        RankRow,
    )

_SHADES: Final = " ·░▒▓█"
_FIRST_SHADE: Final = 0.01
"""Lateness in parts of the step from which on a cell is marked; each shade is twice the last."""

_ROWS: Final = 16
_STEPS: Final = 48
_FRAME: Final = 5
"""Characters around the cells and the name of a row."""
_RANKS: Final = 10
_GROUPS: Final = 8
_MESSAGES: Final = 6
_LOG_FINDINGS: Final = 6


def job_text(found: JobDiagnosis, width: int | None) -> str:
    """The diagnosis, as wide as the terminal."""
    lines = [*_head(found, width), ""]
    for stuck in found.stuck:
        lines += wrapped(f"hang: {clean(stuck.message, 500)}", width, hang=2)
    if found.stuck:
        lines.append("")
    for number, finding in enumerate(found.findings, 1):
        lines += [*_finding(number, finding, width), ""]
    if found.collective_logs is not None:
        lines += _logs(found.collective_logs, width)
    if not found.findings and found.ranks:
        nobody = "No rank stands out, and nothing that the ranks show by themselves costs the job"
        alone = "Nothing that this rank shows by itself costs it"
        text = f"{nobody if len(found.ranks) > 1 else alone} anything."
        lines += [*wrapped(text, width), ""]
    if len(found.ranks) > 1:
        lines += [*_heat_map(found, width), ""]
        lines += [*_ranks(found, width), ""]
    lines += _tables(found, width)
    if found.fetch and found.findings:
        lines.append("fetch next")
        for one in found.fetch:
            where = f" on {clean(one.hostname)}" if one.hostname else ""
            text = f"rank {one.rank}{where}: {clean(one.why)}, step {one.step}"
            lines += wrapped(f"{text}: {clean(one.capture, 200)}", width, indent=2, hang=4)
        lines.append("")
    for note in _notes(found):
        lines += wrapped(f"· {note}", width, hang=2)
    return "\n".join(lines).rstrip() + "\n"


def _tables(found: JobDiagnosis, width: int | None) -> list[str]:
    lines = []
    if found.communicators:
        lines += [*_communicators(found, width), ""]
    if found.collective_logs is not None and found.collective_logs.rows:
        lines += [*_logged_rows(found.collective_logs, width), ""]
    return lines


def _notes(found: JobDiagnosis) -> list[str]:
    notes = [clean(text, 400) for text in found.warnings[:_MESSAGES]]
    if len(found.warnings) > _MESSAGES:
        notes.append(f"and {len(found.warnings) - _MESSAGES} more such messages")
    if found.collective_logs is not None:
        notes += [clean(text, 600) for text in found.collective_logs.cannot_tell]
    notes += [
        f"left out: {clean(s.path, 200)}: {clean(s.reason, 300)}" for s in found.job.skipped[:8]
    ]
    if len(found.job.skipped) > 8:
        notes.append(f"and {len(found.job.skipped) - 8} more were left out")
    return notes


def title(found: JobDiagnosis) -> str:
    """The verdict in words."""
    from stepscope.diagnosis.cause import causes

    cause = causes().get(found.verdict)
    return cause.title if cause is not None else found.verdict.replace("_", " ").capitalize()


def _head(found: JobDiagnosis, width: int | None) -> list[str]:
    job = found.job
    whole = f" of {job.world_size}" if job.world_size and job.world_size != job.ranks else ""
    ranks = f"{job.ranks}{whole} ranks" if whole else plural(job.ranks, "rank")
    text = f"{title(found)}: {ranks} on {plural(job.nodes, 'node')}"
    if job.steps:
        step = found.step_ns
        steps, whose = plural(job.steps, "step"), ""
        if job.digests > 1:
            steps, whose = plural(job.steps, "shared step"), " of the slowest rank"
        text += (
            f", {steps}, {figure(step.mean, 'ns')} a step{whose} "
            f"(median {figure(step.median, 'ns')}, p95 {figure(step.p95, 'ns')})"
        )
        if found.all_repaired_step_ns < 0.99 * step.mean:
            repaired = figure(found.all_repaired_step_ns, "ns")
            text += f"; with all late ranks like their peers {repaired}"
    elif not found.ranks:
        where = f" on {plural(job.nodes, 'node')}" if job.nodes else ""
        text = f"{title(found)}: records of collectives of {ranks}{where}"
        if found.collective_logs is not None:
            logs = found.collective_logs
            text += f", {plural(logs.operations, 'operation')} of " + plural(
                logs.communicators, "communicator"
            )
    return wrapped(text, width)


def _finding(number: int, finding: JobFinding, width: int | None) -> list[str]:
    lines = wrapped(f"{number}. {clean(finding.message, 600)}", width, hang=3)
    facts = f"repaired: {figure(finding.predicted_step_ns, 'ns')} a step"
    ends = [figure(ns, "ns") for ns in (finding.prediction_low_ns, finding.prediction_high_ns)]
    if ends[0] != ends[1]:
        facts += f" ({ends[0]} to {ends[1]})"
    if finding.score is not None and finding.threshold is not None:
        facts += (
            f"; {finding.score:.1f} robust standard deviations from its peers, where "
            f"{finding.threshold:.1f} count"
        )
    if finding.where:
        facts += f"; in {clean(finding.where)!r}"
    lines += wrapped(facts, width, indent=3, hang=3)
    for advice in finding.recommendations[:3]:
        lines += wrapped(f"- {clean(advice, 400)}", width, indent=3, hang=5)
    return lines


def _logs(logs: CollectiveLogs, width: int | None) -> list[str]:
    """What logs of NCCL Inspector tell, one paragraph a finding."""
    lines = []
    for finding in logs.findings[:_LOG_FINDINGS]:
        lines += wrapped(f"- {clean(finding.message, 600)}", width, hang=2)
        if finding.score is not None and finding.threshold is not None:
            text = (
                f"{finding.score:.1f} robust standard deviations from those alike, where "
                f"{finding.threshold:.1f} count"
            )
            lines += wrapped(text, width, indent=2, hang=2)
        for advice in finding.recommendations:
            lines += wrapped(f"- {clean(advice, 400)}", width, indent=2, hang=4)
        lines.append("")
    if len(logs.findings) > _LOG_FINDINGS:
        lines += [f"and {len(logs.findings) - _LOG_FINDINGS} more findings, in --format json", ""]
    if not logs.findings and logs.rows:
        text = (
            "In the logs of NCCL Inspector no rank comes last beyond chance, and no communicator "
            "is slower than those alike."
        )
        lines += [*wrapped(text, width), ""]
    return lines


def _logged_rows(logs: CollectiveLogs, width: int | None) -> list[str]:
    shown = logs.rows[:_GROUPS]
    return [
        f"logged collectives (the {len(shown)} with most time, of {len(logs.rows)})",
        *fitted(
            [
                name_column("communicator", [row.name for row in shown], least=8, weight=9),
                Column("ranks", [f"{row.ranks} of {row.size}" for row in shown]),
                Column("operation", [clean(row.operation) for row in shown]),
                Column("size", [figure(row.bytes, "bytes") for row in shown]),
                Column("count", [f"{row.matched:,}" for row in shown], 4),
                Column("transfer", [figure(row.transfer_ns, "ns") for row in shown], 6),
                Column("waits", [figure(row.waiting_ns, "ns") for row in shown]),
                Column("bus GB/s", [_bus(row.bus_gbs) for row in shown]),
                Column("5 to 95 %", [_spread(row) for row in shown], 2),
                name_column("last", [row.last for row in shown], least=4, weight=8),
                Column("how often", [percent(row.last_share) for row in shown]),
            ],
            width,
        ),
    ]


def _bus(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _spread(row: LoggedRow) -> str:
    if row.bus_low_gbs is None or row.bus_high_gbs is None:
        return ""
    return f"{row.bus_low_gbs:.1f}-{row.bus_high_gbs:.1f}"


def _heat_map(found: JobDiagnosis, width: int | None) -> list[str]:
    """Ranks x steps: how much more than its peers a rank needs; many ranks share a row."""
    heat = found.heat_map
    step = max(found.step_ns.mean, 1)
    rows = _heat_rows(found, heat)
    label = max((len(name) for name, _ in rows), default=0)
    room = max((width or PROSE_WIDTH) - label - _FRAME, 1)
    columns = range(min(len(heat.steps), _STEPS, room))
    title = (
        f"later than the peers, rank by rank; steps {heat.steps[0]} to "
        f"{heat.steps[columns[-1]]}; {_legend(step)}"
    )
    lines = wrapped(title, width)
    for name, members in rows:
        cells = "".join(
            _shade(max(heat.late_ns[m][column] for m in members) / step) for column in columns
        )
        lines.append(f"  {name:>{label}} |{cells}|")
    return lines


def _heat_rows(found: JobDiagnosis, heat: HeatMap) -> list[tuple[str, list[int]]]:
    """(label, positions of the ranks) of each row: what is late by itself, then the others."""
    n = len(heat.ranks)
    if n <= _ROWS:
        return [(str(rank), [at]) for at, rank in enumerate(heat.ranks)]
    late = _late_rows(found, heat)[: _ROWS // 2]
    apart = {at for _, members in late for at in members}
    size = -(-n // (_ROWS - len(late)))
    rows = late
    for low in range(0, n, size):
        members = [at for at in range(low, min(low + size, n)) if at not in apart]
        if members:
            rows.append((f"{heat.ranks[low]}-{heat.ranks[min(low + size, n) - 1]}", members))
    return rows


def _late_rows(found: JobDiagnosis, heat: HeatMap) -> list[tuple[str, list[int]]]:
    """A row for each late rank, and one for all ranks of a late place, as they are told."""
    position = {rank: at for at, rank in enumerate(heat.ranks)}
    rows: list[tuple[str, list[int]]] = []
    for finding in found.findings:
        members = [position[rank] for rank in finding.ranks if rank in position]
        if not finding.reason or not members:
            continue
        if finding.place:
            rows.append((clean(finding.place, 24), members))
        else:
            rows += [(str(heat.ranks[at]), [at]) for at in members]
    return rows


def _shade(share: float) -> str:
    shade = 0
    bound = _FIRST_SHADE
    while share >= bound and shade < len(_SHADES) - 1:
        shade, bound = shade + 1, bound * 2
    return _SHADES[shade]


def _legend(step: int) -> str:
    bounds = [_FIRST_SHADE * 2**k for k in range(len(_SHADES) - 1)]
    return ", ".join(
        f"{shade} from {figure(round(bound * step), 'ns')}"
        for shade, bound in zip(_SHADES[1:], bounds, strict=True)
    )


def _ranks(found: JobDiagnosis, width: int | None) -> list[str]:
    shown = sorted(found.ranks, key=lambda row: (not row.late, -(row.score or 0.0), -row.need_ns))
    shown = shown[:_RANKS]
    return [
        f"ranks that need most (of {len(found.ranks)})",
        *fitted(
            [
                Column("rank", [str(row.rank) for row in shown]),
                name_column("node", [row.hostname for row in shown], least=6, weight=7),
                Column("late", ["yes" if row.late else "" for row in shown]),
                Column("needs", [figure(row.need_ns, "ns") for row in shown]),
                Column("compute", [figure(row.compute_ns, "ns") for row in shown]),
                Column("waits", [figure(row.waiting_ns, "ns") for row in shown]),
                Column("moves data", [figure(row.transfer_ns, "ns") for row in shown], 3),
                Column("idle", [figure(row.idle_ns, "ns") for row in shown], 5),
                Column("kernels take", [f"{row.kernel_rate:.2f}x" for row in shown], 2),
                Column("last", [percent(row.joined_last) for row in shown], 4),
                Column("score", [_score(row) for row in shown], 6),
            ],
            width,
        ),
    ]


def _score(row: RankRow) -> str:
    return "" if row.score is None else f"{row.score:.1f}"


def _communicators(found: JobDiagnosis, width: int | None) -> list[str]:
    shown = found.communicators[:_GROUPS]
    return [
        f"communicators (the {len(shown)} with most transfer, of {len(found.communicators)})",
        *fitted(
            [
                name_column("ranks", [row.name for row in shown], least=8, weight=9),
                name_column("use", [row.use for row in shown], least=8, weight=7),
                Column("found", [f"{row.members} of {row.size}" for row in shown]),
                Column("a step", [f"{row.operations:.1f}" for row in shown], 2),
                Column("transfer", [figure(row.transfer_ns, "ns") for row in shown]),
                Column("skew", [figure(row.skew_ns, "ns") for row in shown], 3),
                Column("last", [str(row.last_rank) for row in shown]),
                Column("how often", [percent(row.last_share) for row in shown]),
            ],
            width,
        ),
    ]
