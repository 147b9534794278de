"""A diagnosis on the terminal: the answer first, then why, then what to do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from stepscope.diagnosis.cause import causes
from stepscope.render import beside, budget
from stepscope.render.levers import lever_lines
from stepscope.render.problems import problem_notes
from stepscope.render.text import MAX_SENTENCE, clean, milliseconds, percent, plural

if TYPE_CHECKING:
    from stepscope.diagnosis.result import DeviceAccounting, Diagnosis, Finding

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
_LEVER_STYLES = {"title": "bold", "lever": "bold", "advice": "", "split": "", "note": "dim"}
_BLOCKS = {"exposed communication": "▓", "exposed copy": "▒"}
_BAR_CELLS = 60
_MOST_BARS = 16
_TIME_CELLS = 10
_LONG_PATH = 40


def print_diagnosis(diagnosis: Diagnosis, console: Console, *, evidence: bool = True) -> None:
    """Print a diagnosis.

    Args:
        diagnosis: what to print.
        console: where to.
        evidence: whether to print each finding's figures.
    """
    style = "bold green" if not diagnosis.findings else "bold"
    _print(console, Text(budget.headline(diagnosis), style=style))
    _print(console, Text(_about(diagnosis), style="dim"))
    console.print()
    for line in _bars(diagnosis, console.width):
        console.print(line)
    if utilisation := budget.utilisation(diagnosis):
        _print(console, Text(utilisation, style="dim"))
    for number, finding in enumerate(diagnosis.findings, 1):
        console.print()
        for indent, line in _finding(number, finding, diagnosis, evidence=evidence):
            _print(console, line, indent)
    for text in (beside.combined_text(diagnosis), beside.outlier_text(diagnosis)):
        if text:
            console.print()
            _print(console, Text(text))
    levers = lever_lines(diagnosis, evidence=evidence)
    if levers:
        console.print()
    for item in levers:
        _print(console, Text(item.text, style=_LEVER_STYLES[item.kind]), item.indent)
    notes = [clean(warning, MAX_SENTENCE) for warning in diagnosis.warnings]
    notes += problem_notes(diagnosis.problems)
    if notes:
        console.print()
    for note in notes:
        _print(console, Text(f"· {note}", style="dim"))


def _print(console: Console, text: Text, indent: int = 0) -> None:
    """Print wrapped text with a hanging indent and no trailing spaces."""
    hang = indent + (2 if text.plain.startswith(("→ ", "· ")) else 0)
    for number, line in enumerate(text.wrap(console, max(console.width - hang, 10))):
        line.rstrip()
        console.print(Text(" " * (indent if number == 0 else hang)) + line, soft_wrap=True)


def _about(diagnosis: Diagnosis) -> str:
    trace, step = diagnosis.trace, diagnosis.step_ns
    time = f"mean {milliseconds(step.mean)}, median {milliseconds(step.median)}"
    time += f", p95 {milliseconds(step.p95)}"
    time += f", variation {percent(step.coefficient_of_variation)}"
    steps = f"{plural(trace.steps, 'step')}, {budget.steady(diagnosis)}"
    if trace.steps == 1:
        time = milliseconds(step.mean)
        steps = "no step found" if trace.step.kind == "whole_capture" else "1 step"
    time += budget.longest(diagnosis)
    name = f"{len(trace.paths)} inputs"
    if len(trace.paths) == 1:
        path = trace.paths[0]
        name = clean(path if len(path) <= _LONG_PATH else Path(path).name)
    return (
        f"{name} · {trace.source} · {plural(trace.ranks, 'rank')} · "
        f"{plural(trace.devices, 'device')} · {steps} · {time}"
    )


def _bars(diagnosis: Diagnosis, width: int) -> list[Text]:
    """A bar for each device, and a line for each part of the mean step of all of them."""
    gpus = diagnosis.accounting
    gpu = budget.all_devices(diagnosis)
    shown = budget.parts(gpu)
    idle_styles = iter(_IDLE_STYLES)
    styles = {part.name: _STYLES.get(part.name) or next(idle_styles, "red") for part in shown}
    if len(gpus) == 1:
        bars = [_bar(gpu, styles, _BAR_CELLS)]
    else:
        bars = _rank_bars(diagnosis, styles, width)
    wall = max(gpu.wall_ns, 1)
    step = wall / gpu.steps
    label = max((len(_label(part)) for part in shown), default=0)
    legend = []
    for part in shown:
        block = _block(part)
        line = Text(f"{block} {_label(part):{label}}", style=styles[part.name])
        time = milliseconds(part.ns / wall * step)
        legend.append(line.append(f"  {100 * part.ns / wall:5.1f} %  {time:>9}", style="default"))
    which = "the capture" if diagnosis.trace.step.kind == "whole_capture" else "a step"
    title = f"Where {which} goes" + (", on all ranks together" if len(gpus) > 1 else "")
    return [Text(title), *bars, *legend]


def _rank_bars(diagnosis: Diagnosis, styles: dict[str, str], width: int) -> list[Text]:
    """A bar for each device of a job, with the times of its mean step where there is room."""
    gpus = diagnosis.accounting
    names = [f"rank {one.rank}" for one in gpus]
    if len({one.rank for one in gpus}) < len(gpus):
        names = [f"rank {one.rank} GPU {one.device}" for one in gpus]
    room = max(map(len, names))
    bars, times = [], {}
    headings = beside.rank_headings(diagnosis)
    if diagnosis.ranks and width >= _BAR_CELLS + _TIME_CELLS * len(headings):
        bars.append(Text(" " * _BAR_CELLS + _columns(headings), style="dim"))
        times = {key: _columns(row) for key, row in beside.rank_cells(diagnosis).items()}
    for name, one in list(zip(names, gpus, strict=True))[:_MOST_BARS]:
        line = Text(f"{name:<{room}} ").append_text(_bar(one, styles, _BAR_CELLS - room - 1))
        bars.append(line.append(times.get((one.rank, one.device), ""), style="default"))
    if len(gpus) > _MOST_BARS:
        bars.append(Text(f"... and {len(gpus) - _MOST_BARS} more", style="dim"))
    if times and (note := beside.rank_note(diagnosis)):
        bars.append(Text(note, style="dim"))
    return bars


def _columns(texts: Iterable[str]) -> str:
    return "".join(f"{text:>{_TIME_CELLS}}" for text in texts)


def _bar(gpu: DeviceAccounting, styles: dict[str, str], cells: int) -> Text:
    """One device's steady steps as a bar."""
    bar = Text()
    wall, drawn, passed = max(gpu.wall_ns, 1), 0, 0
    for part in budget.parts(gpu):
        passed += part.ns
        length = round(cells * passed / wall) - drawn
        drawn += length
        style = styles.get(part.name, _STYLES["other idle"])
        bar.append(_block(part) * length, style=style)
    return bar


def _block(part: budget.Part) -> str:
    """What a part is drawn with, so that bars can be read without colours."""
    return "░" if part.idle else _BLOCKS.get(part.name, "█")


def _label(part: budget.Part) -> str:
    return f"idle: {part.name}" if part.idle and part.name != "other idle" else part.name


def _without_times(finding: Finding) -> str:
    """The sentence without its times, which stand in the headline and the next line."""
    if not finding.reason:
        return finding.message
    return f"{causes()[finding.cause].title}: {finding.reason}"


def _taken(finding: Finding, diagnosis: Diagnosis) -> str:
    """What a finding costs, and what its repair recovers where that is much less or more."""
    cost, counted = budget.cost_ns(finding), finding.time_ns_per_step
    text = f"{milliseconds(cost)} {budget.per_step(diagnosis)}"
    if cost > counted:
        text += f", of which fixing it alone recovers {milliseconds(counted)}"
    elif cost < counted:
        text += f", and fixing it recovers {milliseconds(counted)}"
    return text


def _finding(
    number: int, finding: Finding, diagnosis: Diagnosis, *, evidence: bool
) -> list[tuple[int, Text]]:
    """(indent, line) of one finding."""
    title = Text(f"{number}. ", style="bold")
    title.append(finding.severity.upper(), style=_SEVERITY[finding.severity])
    title.append(f" {clean(_without_times(finding), MAX_SENTENCE)}", style="bold")
    lines = [(0, title)]
    if finding.cause != "insufficient_data":
        recovers = budget.cost_ns(finding) != finding.time_ns_per_step
        less = "" if recovers else budget.and_more(finding)
        lines.append(
            (
                3,
                Text(
                    f"{_taken(finding, diagnosis)}, {percent(finding.share_of_step)}; once fixed, "
                    f"the {budget.step_noun(diagnosis)} takes about "
                    f"{milliseconds(finding.predicted_step_ns)}{budget.or_less(finding)}"
                    f"{less} ({milliseconds(finding.prediction_low_ns)} to "
                    f"{milliseconds(finding.prediction_high_ns)})" + budget.unrecorded_text(finding)
                ),
            )
        )
        if note := beside.reliability_text(finding):
            lines.append((3, Text(note, style="yellow")))
    where = beside.where_text(finding, diagnosis)
    if where:
        lines.append((3, Text(f"where: {where}", style="dim")))
    if ending := beside.ending_text(finding):
        lines.append((3, Text(ending, style="dim")))
    lines += [(3, Text(f"→ {advice}")) for advice in finding.recommendations]
    for kernel in finding.inside:
        grid = "" if kernel.same_grid else " (another grid)"
        lines.append(
            (3, Text(f"inside {clean(kernel.kernel, 60)}{grid}: {clean(kernel.message, 300)}"))
        )
        lines += [(5, Text(f"→ {advice}")) for advice in kernel.recommendations]
    if finding.next_capture:
        lines.append((3, Text(f"next capture: {finding.next_capture}")))
    if evidence and (figures := beside.evidence_text(finding)):
        lines.append((3, Text(figures, style="dim")))
    return lines
