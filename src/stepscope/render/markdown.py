"""A diagnosis as Markdown, for a pull request or an issue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.render import beside, budget
from stepscope.render.levers import category_text, lever_lines
from stepscope.render.problems import problem_notes
from stepscope.render.text import (
    MAX_SENTENCE,
    clean,
    figure,
    figure_title,
    milliseconds,
    percent,
    plural,
)

if TYPE_CHECKING:
    from stepscope.diagnosis.result import Diagnosis, Finding

_SPECIAL = str.maketrans(
    # a backslash does not keep @name from being a mention, an invisible space does
    {c: f"\\{c}" for c in "\\`*_{}[]()#+!|~$"} | {"<": "&lt;", ">": "&gt;", "@": "@&#8203;"}
)


def escape(text: str) -> str:
    """Trace text, safe inside Markdown: no markup, no HTML, no mentions, one line."""
    return clean(text, MAX_SENTENCE).replace("&", "&amp;").translate(_SPECIAL)


def diagnosis_markdown(diagnosis: Diagnosis) -> str:
    """The diagnosis as a Markdown document."""
    trace, step = diagnosis.trace, diagnosis.step_ns
    whole = trace.step.kind == "whole_capture"
    counted = (
        f"no step found, {milliseconds(step.mean)}"
        if whole
        else f"{plural(trace.steps, 'step')} ({budget.steady(diagnosis)}), mean "
        f"{milliseconds(step.mean)}, median {milliseconds(step.median)}, "
        f"p95 {milliseconds(step.p95)}"
    )
    of = ("part of the capture", "time") if whole else ("part of the step", "time per step")
    lines = [
        f"### {escape(budget.headline(diagnosis))}",
        "",
        f"{escape(', '.join(trace.paths))}: {trace.source}, {plural(trace.ranks, 'rank')}, "
        f"{plural(trace.devices, 'device')}, {counted}.",
        "",
        f"| rank | device | {of[0]} | share | {of[1]} |",
        "|---|---|---|---:|---:|",
    ]
    for gpu in diagnosis.accounting:
        steps = budget.steps_of(gpu, diagnosis)
        for part in budget.parts(gpu):
            name = f"idle: {part.name}" if part.idle else part.name
            lines.append(
                f"| {gpu.rank} | {gpu.device} | {escape(name)} | "
                f"{percent(part.ns / max(gpu.wall_ns, 1))} | {milliseconds(part.ns / steps)} |"
            )
    if utilisation := budget.utilisation(diagnosis):
        lines += ["", f"{utilisation}."]
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += ["", *_finding(number, finding, diagnosis)]
    lines += _ranks(diagnosis)
    for text in (beside.combined_text(diagnosis), beside.outlier_text(diagnosis)):
        lines += ["", escape(text)] if text else []
    lines += _levers(diagnosis)
    notes = [*diagnosis.warnings]
    notes += problem_notes(diagnosis.problems)
    if notes:
        lines += ["", *(f"- {escape(note)}" for note in notes)]
    return "\n".join(lines) + "\n"


def _ranks(diagnosis: Diagnosis) -> list[str]:
    """One row a rank; nothing for a single device."""
    cells = beside.rank_cells(diagnosis)
    if not cells:
        return []
    headings = beside.rank_headings(diagnosis)
    return [
        "",
        "| rank | device | " + " | ".join(headings) + " |",
        "|---|---|" + "---:|" * len(headings),
        *(f"| {rank} | {gpu} | {' | '.join(row)} |" for (rank, gpu), row in cells.items()),
        *(["", note] if (note := beside.rank_note(diagnosis)) else []),
    ]


def _levers(diagnosis: Diagnosis) -> list[str]:
    """What is left in the kernels: the same lines as on a terminal, with the evidence folded."""
    split = diagnosis.kernels
    lines = lever_lines(diagnosis, evidence=False)
    found = [""] if lines else []
    if split is not None and not diagnosis.findings:
        found += [f"**{escape(lines[0].text)}**", ""]
        found += ["| category | share of the step | time per step | against its ceiling |"]
        found += ["|---|---:|---:|---|"]
        found += [
            f"| {escape(one.category)} | {percent(one.share_of_step)} | "
            f"{milliseconds(one.time_ns_per_step)} | {escape(category_text(one))} |"
            for one in split.categories
        ]
        lines = [line for line in lines[1:] if line.kind != "split"]
        found.append("")
    for line in lines:
        text = escape(line.text.removeprefix("→ "))
        if line.indent:
            found.append(f"- {text}")
            continue
        if found and found[-1]:
            found.append("")  # else it would go on with the list before it
        found += [f"**{text}**" if line.kind in ("title", "lever") else text, ""]
    for lever in diagnosis.levers if not diagnosis.findings else []:
        found += ["", *_evidence(lever, f"evidence of {lever.cause}")]
    return found


def _finding(number: int, finding: Finding, diagnosis: Diagnosis) -> list[str]:
    lines = [
        f"**{number}. `{finding.cause}`** ({finding.severity}): {escape(finding.message)}. "
        f"Fixed: {milliseconds(finding.predicted_step_ns)}{budget.or_less(finding)} "
        f"({milliseconds(finding.prediction_low_ns)} to "
        f"{milliseconds(finding.prediction_high_ns)})."
        + escape(f" Note: {note}." if (note := beside.reliability_text(finding)) else ""),
        "",
        *(f"- {escape(advice)}" for advice in finding.recommendations),
    ]
    if where := beside.where_text(finding, diagnosis):
        lines.append(f"- where: {escape(where)}")
    for kernel in finding.inside:
        grid = "" if kernel.same_grid else " (another grid)"
        lines.append(f"- inside {escape(clean(kernel.kernel, 60))}{grid}: {escape(kernel.message)}")
        lines += [f"  - {escape(advice)}" for advice in kernel.recommendations]
    if finding.next_capture:
        lines.append(f"- next capture: {escape(finding.next_capture)}")
    return [*lines, "", *_evidence(finding, "evidence")]


def _evidence(finding: Finding, title: str) -> list[str]:
    lines = [
        f"<details><summary>{title}</summary>",
        "",
        "| figure | value | SQL |",
        "|---|---:|---|",
    ]
    for item in finding.evidence:
        sql = clean(item.sql, 2000).replace("|", "\\|").replace("`", "'")
        lines.append(
            f"| {escape(figure_title(item.figure))} | {figure(item.value, item.unit)} | `{sql}` |"
        )
    return [*lines, "", "</details>"]
