"""What is left to gain in the kernels: their split, the levers, the least step, as plain lines.

Where nothing outside the kernels is worth fixing, this is the answer, and stands in full. Below
findings it is told briefly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.diagnosis.cause import causes
from stepscope.diagnosis.lever import levers
from stepscope.render.beside import evidence_text
from stepscope.render.budget import all_devices, per_step
from stepscope.render.text import clean, milliseconds, percent, plural

if TYPE_CHECKING:
    from stepscope.diagnosis.result import Diagnosis, Finding, KernelCategory, KernelSplit

_BRIEFLY = 3
"""Levers below findings."""
_CATEGORIES = 8
_SMALL = 0.01
_MOSTLY = 0.5
"""Share of the kernel time whose work must be known for a bound of the whole step."""
_NOT_MEASURED = ("AMD", "Intel")
"""Vendors on whose devices ``stepscope ceilings`` measures nothing."""
_TITLE = "What is left in the kernels"


@dataclass(frozen=True)
class Line:
    """One line of text.

    Attributes:
        text: it.
        indent: spaces before it.
        kind: ``title``, ``lever``, ``advice``, ``split`` or ``note``.
    """

    text: str
    indent: int = 0
    kind: str = "note"


def lever_lines(diagnosis: Diagnosis, *, evidence: bool = True) -> list[Line]:
    """The lines of a diagnosis about its kernels; none where nothing is known or left.

    Args:
        diagnosis: the diagnosis.
        evidence: whether each lever's figures stand below it.
    """
    split, levers = diagnosis.kernels, diagnosis.levers
    in_full = not diagnosis.findings
    if split is None or (not in_full and not levers):
        return []
    lines = [Line(_title(split), kind="title")]
    if in_full:
        lines += _split(split)
    shown = levers if in_full else levers[:_BRIEFLY]
    for number, lever in enumerate(shown, 1):
        lines.append(Line(f"{number}. {headline(lever, diagnosis)}", kind="lever"))
        if not in_full:
            lines.append(Line(f"→ {lever.recommendations[0]}", 3, "advice"))
            continue
        lines.append(Line(clean(lever.reason, 600), 3))
        lines += [Line(f"→ {advice}", 3, "advice") for advice in lever.recommendations]
        if where := _where(lever):
            lines.append(Line(f"where: {where}", 3))
        if lever.next_capture:
            lines.append(Line(f"next capture: {lever.next_capture}", 3))
        if evidence and (figures := evidence_text(lever)):
            lines.append(Line(figures, 3))
    if len(levers) > len(shown):
        lines.append(Line(f"{plural(len(levers) - len(shown), 'more lever')} (--format json)"))
    if in_full and not levers:
        lines.append(Line("no lever gains more than the steps vary"))
    if in_full and len(levers) > 1:
        lines.append(Line("each is predicted alone: gains in the same kernels do not add up"))
    if any(_more_than_left(lever, diagnosis) for lever in shown):
        lines.append(
            Line("these are gains of today's step: they do not add up with those of the findings")
        )
    bound = bound_lines(split)
    lines += [Line(text) for text in (bound if in_full else _bound_briefly(split, diagnosis))]
    if in_full and split.examine:
        lines.append(Line(f"inside the kernels worth it: {split.examine}"))
    return lines


def _more_than_left(lever: Finding, diagnosis: Diagnosis) -> bool:
    """Whether a lever gains more than what a finding leaves of the step."""
    gain = _step_ns(lever) - lever.predicted_step_ns
    return not lever.after_findings and any(
        gain > one.predicted_step_ns for one in diagnosis.findings
    )


def _step_ns(lever: Finding) -> float:
    return lever.value("step_ns") or 0.0


def headline(lever: Finding, diagnosis: Diagnosis) -> str:
    """What a lever gains, with the range."""
    step = _step_ns(lever)
    least, most = step - lever.prediction_high_ns, step - lever.prediction_low_ns
    gain = step - lever.predicted_step_ns
    beside = ", once the findings are fixed" if lever.after_findings else ""
    for cause, part in lever.includes_gain_of.items():
        of_it = "the gain" if part == "all" else "some of the gain"
        beside += f", {of_it} of '{causes()[cause].title}' included"
    about = "at least" if lever.at_least else "about"
    return (
        f"{levers()[lever.cause].title}: saves {about} {milliseconds(gain)} "
        f"{per_step(diagnosis)}, {percent(gain / step if step else 0.0)} "
        f"({milliseconds(max(least, 0.0))} to {milliseconds(most)}){beside}"
    )


def _bound_briefly(split: KernelSplit, diagnosis: Diagnosis) -> list[str]:
    """The bound below findings: where most of the kernels' work is known, and what stays in it."""
    bound = split.bound
    if bound is None:
        return bound_lines(split)
    if bound.known_share < _MOSTLY:
        return []
    gpu = all_devices(diagnosis)
    stays = [
        name
        for name, ns in (
            ("communication", gpu.exposed_communication_ns),
            ("copies", gpu.exposed_copy_ns),
        )
        if ns >= _SMALL * gpu.wall_ns
    ]
    beside = f", but {' and '.join(stays)} as today," if stays else ""
    return [
        f"roofline bound ({_source(split)}): with these kernels at their ceilings and no idle time"
        f"{beside} the step would take {milliseconds(bound.bound_ns)}"
    ]


def _derived(split: KernelSplit) -> bool:
    """Whether the ceilings follow from the architecture: their source then says from what."""
    return split.ceilings.startswith("derived")


def _source(split: KernelSplit) -> str:
    if _derived(split):
        return f"ceilings {split.ceilings}"
    return "measured ceilings" if split.measured else "ceilings of the datasheet"


def bound_lines(split: KernelSplit) -> list[str]:
    """The least step that the ceilings allow, and what is assumed, in sentences."""
    bound = split.bound
    if bound is None:
        if _derived(split):
            return [
                f"no roofline bound: the memory bandwidth is not known; rates are {split.ceilings}"
            ]
        unknown = f"the ceilings of {clean(split.device) or 'this device'} are not known"
        if split.vendor in _NOT_MEASURED:
            return [f"no roofline bound: {unknown}"]
        return [
            f"{unknown}: stepscope ceilings -o FILE measures them there, and --ceilings FILE "
            "takes them"
        ]
    source = _source(split)
    if not bound.known_share:
        return [f"no roofline bound ({source}): the work of no kernel is known"]
    if bound.known_share < _MOSTLY:
        first = (
            f"roofline bound ({source}): the work of only {percent(bound.known_share)} of the "
            "kernel time is known; with that at its ceiling and no idle time the step would take "
            f"{milliseconds(bound.bound_ns)}"
        )
    else:
        first = (
            f"roofline bound ({source}): with these kernels at their ceilings and no idle time the "
            f"step would take {milliseconds(bound.bound_ns)}, {bound.speedup:.1f} times as fast; "
            f"{milliseconds(bound.fused_bound_ns)}, {bound.fused_speedup:.1f} times, if kernels "
            "that wait for memory were merged into others and left none of their time"
        )
    return [first, *(f"assumed: {text}" for text in bound.assumed)]


def category_text(one: KernelCategory) -> str:
    """What a category achieves of its ceiling."""
    if one.achieved is None:
        return "its work is not known"
    text = f"at {percent(one.achieved)} of the {one.bound} ceiling"
    if one.known_share < 1 - _SMALL:
        text += f", where its work is known ({percent(one.known_share)} of it)"
    return text


def _title(split: KernelSplit) -> str:
    device = clean(split.device)
    return f"{_TITLE}: {device}" if device else _TITLE


def _split(split: KernelSplit) -> list[Line]:
    large = [one for one in split.categories if one.share_of_step >= _SMALL][:_CATEGORIES]
    width = max((len(one.category) for one in large), default=0)
    lines = [
        Line(
            f"{one.category:{width}}  {100 * one.share_of_step:5.1f} %  "
            f"{milliseconds(one.time_ns_per_step):>8}  {category_text(one)}",
            2,
            "split",
        )
        for one in large
    ]
    rest = [one for one in split.categories if one not in large]
    if rest:
        share = sum(one.share_of_step for one in rest)
        time = milliseconds(sum(one.time_ns_per_step for one in rest))
        name = f"{len(rest)} others"
        lines.append(Line(f"{name:{width}}  {100 * share:5.1f} %  {time:>8}", 2, "split"))
    return lines


def _where(lever: Finding) -> str:
    place = lever.where
    named = (
        ("range", place.range),
        ("operator", place.operator),
        ("source", place.source),
        ("function", place.function),
    )
    return " · ".join(f"{kind} {clean(name)}" for kind, name in named if name)
