"""A diagnosis on the terminal: the answer first, then why, then what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope.render import budget
from stepscope.render.text import clean, figure, milliseconds, percent, plural

if TYPE_CHECKING:
    from stepscope.diagnosis.result import Diagnosis, Finding, LaneAccounting

_STYLES = {
    "compute": "green",
    "exposed communication": "magenta",
    "exposed copy": "blue",
    "memset": "cyan",
    "unexplained": "white",
    "other idle": "bright_black",
    "small_kernels": "bright_black",
}
_IDLE_STYLES = ("red", "yellow", "bright_red", "bright_yellow", "bright_magenta")
_SEVERITY = {"high": "bold red", "medium": "bold yellow", "low": "yellow"}
_BAR_CELLS = 60


def print_diagnosis(diagnosis: Diagnosis, console: Console, *, evidence: bool = True) -> None:
    """Print a diagnosis.

    Args:
        diagnosis: what to print.
        console: where to.
        evidence: whether to print each finding's figures.
    """
    style = "bold green" if not diagnosis.findings else "bold"
    console.print(Text(budget.headline(diagnosis), style=style))
    console.print(Text(_about(diagnosis), style="dim"))
    console.print()
    console.print(_bar(budget.reference_lane(diagnosis)))
    for number, finding in enumerate(diagnosis.findings, 1):
        console.print()
        console.print(_finding(number, finding, diagnosis, evidence=evidence))
    notes = [clean(remark, 400) for remark in diagnosis.remarks]
    notes += [
        f"{problem.severity}: {problem.count:,} x {problem.says} ({', '.join(problem.scope)}): "
        f"{problem.do}"
        for problem in diagnosis.problems
        if problem.severity != "info"
    ]
    if notes:
        console.print()
        for note in notes:
            console.print(Padding(Text(f"· {note}", style="dim"), (0, 0, 0, 0)))


def _about(diagnosis: Diagnosis) -> str:
    trace, step = diagnosis.trace, diagnosis.step_ns
    first, last = trace.steady_steps
    name = clean(trace.paths[0]) if len(trace.paths) == 1 else f"{len(trace.paths)} inputs"
    return (
        f"{name} · {trace.source} · {plural(trace.ranks, 'rank')} · "
        f"{plural(trace.devices, 'device')} · {plural(trace.steps, 'step')}, steady {first} to "
        f"{last} · median {milliseconds(step.median)}, p95 {milliseconds(step.p95)}, "
        f"variation {percent(step.coefficient_of_variation)}"
    )


def _bar(lane: LaneAccounting) -> Group:
    bar, legend = Text(), Table.grid(padding=(0, 3, 0, 0))
    legend.add_column()
    legend.add_column(justify="right")
    legend.add_column(justify="right")
    wall, drawn, passed = max(lane.wall_ns, 1), 0, 0
    idle_styles = iter(_IDLE_STYLES)
    for part in budget.parts(lane):
        passed += part.ns
        cells = round(_BAR_CELLS * passed / wall) - drawn
        drawn += cells
        style = _STYLES.get(part.name) or next(idle_styles, "red")
        bar.append(("░" if part.idle else "█") * cells, style=style)
        name = f"idle: {part.name}" if part.idle and part.name != "other idle" else part.name
        legend.add_row(
            Text(f"{'░' if part.idle else '█'} {name}", style=style),
            percent(part.ns / wall),
            "",
        )
    return Group(Text("Where a step goes"), bar, legend)


def _finding(number: int, finding: Finding, diagnosis: Diagnosis, *, evidence: bool) -> Group:
    from stepscope.diagnosis.cause import causes

    title = Text(f"{number}. {causes()[finding.cause].title} ", style="bold")
    title.append(finding.severity.upper(), style=_SEVERITY[finding.severity])
    if finding.cause != "insufficient_data":
        title.append(
            f"  {milliseconds(finding.time_ns_per_step)} a step "
            f"({percent(finding.share_of_step)}), fixed: "
            f"{milliseconds(finding.predicted_step_ns)} "
            f"({milliseconds(finding.prediction_low_ns)} to "
            f"{milliseconds(finding.prediction_high_ns)})"
        )
    if diagnosis.trace.ranks > 1:
        title.append(f"  ranks {', '.join(map(str, finding.ranks))}", style="dim")
    lines: list[Text | Padding] = [title, Padding(Text(clean(finding.says, 400)), (0, 0, 0, 3))]
    place = finding.where
    places = [("range", place.range), ("operator", place.operator), ("source", place.source)]
    where = " · ".join(f"{kind} {clean(name)}" for kind, name in places if name)
    if where:
        lines.append(Padding(Text(f"where: {where}", style="dim"), (0, 0, 0, 3)))
    lines += [Padding(Text(f"→ {advice}"), (0, 0, 0, 3)) for advice in finding.do]
    if finding.next_capture:
        lines.append(Padding(Text(f"to know more: {finding.next_capture}"), (0, 0, 0, 3)))
    if evidence:
        figures = " · ".join(
            f"{e.figure} {figure(e.value, e.unit)} ({plural(e.rows, 'row')})"
            for e in finding.evidence
        )
        lines.append(Padding(Text(f"evidence: {figures}", style="dim"), (0, 0, 0, 3)))
    return Group(*lines)
