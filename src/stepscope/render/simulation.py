"""Predictions and critical paths as text and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from stepscope.render.fitted import wrapped
from stepscope.render.text import MAX_SENTENCE, clean, milliseconds
from stepscope.simulation.result import PathPlace
from stepscope.simulation.setting import VALIDITIES

if TYPE_CHECKING:
    from stepscope.simulation.result import CriticalPath, MemoryNeed, WhatIf
    from stepscope.simulation.settings.base import Setting

_TIME = 10
"""Characters of a time."""
_NAME = 90
_LEAST_NAME = 16
_SETTING = ("name", "title", "values", "example", "help", "model", "assumes", "checked", "refuses")
_SHOWN = 10
_LEAST_SHARE = 0.005


def whatif_text(result: WhatIf, width: int | None = None) -> str:
    """A prediction: the answer first, then the budgets; prose is broken to a width."""
    gain = result.measured_step_ns / max(result.predicted_step_ns, 1)
    # with other samples per step its length says little; the line of the samples does
    faster = f": {gain:.2f} times as fast" if result.samples_factor == 1 else ""
    answer = (
        f"Predicted step {milliseconds(result.predicted_step_ns)} "
        f"({milliseconds(result.prediction_low_ns)} to {milliseconds(result.prediction_high_ns)}), "
        f"measured {milliseconds(result.measured_step_ns)}{faster}"
    )
    facts = [f"with: {clean(change, 400)}" for change in result.changes]
    facts += filter(None, [_samples(result), _unrecorded(result)])
    lines = [*wrapped(answer, width, hang=2), *_facts(facts, width)]
    lines += ["", f"{'':16}{'now':>{_TIME}}{'then':>{_TIME}}"]
    rows = [
        (name, getattr(result.budget_before, column), getattr(result.budget_after, column))
        for name, column in (
            ("compute", "compute_ns"),
            ("communication", "communication_ns"),
            ("copy", "copy_ns"),
            ("idle", "idle_ns"),
        )
    ]
    rows.append(("step", result.measured_step_ns, result.predicted_step_ns))
    lines += [
        f"  {n:14}{milliseconds(now):>{_TIME}}{milliseconds(then):>{_TIME}}"
        for n, now, then in rows
    ]
    lines += _alone(result, width)
    lines += _facts([_memory(need) for need in result.memory], width)
    notes = list(result.warnings)
    if result.assumptions:
        notes += [f"{name}: {text}" for name, text in VALIDITIES.items() if name == result.validity]
        notes += result.assumptions
    return "\n".join([*lines, "", *_notes(notes, width)]) + "\n"


def _facts(texts: Sequence[str], width: int | None) -> list[str]:
    return [line for text in texts for line in wrapped(text, width, indent=2, hang=4)]


def _notes(texts: Sequence[str], width: int | None) -> list[str]:
    notes = (f"· {clean(text, MAX_SENTENCE)}" for text in texts)
    return [line for note in notes for line in wrapped(note, width, hang=2)]


def _samples(result: WhatIf) -> str:
    """Samples a second, where a step has more or fewer of them."""
    if result.samples_factor == 1:
        return ""
    return (
        f"{result.samples_factor:.3g} times the samples per step, "
        f"{result.throughput_factor:.2f} times as many a second"
    )


def _unrecorded(result: WhatIf) -> str:
    """The step without the cost of recording, where settings are tried."""
    if result.unrecorded_step_ns is None or not result.assumptions:
        return ""
    now, then = map(milliseconds, result.unrecorded_step_ns)
    return f"without the estimated cost of recording: {now} now, {then} then"


def _alone(result: WhatIf, width: int | None) -> list[str]:
    """What each of several changes gives alone."""
    if not result.alone:
        return []
    lines = ["", "Each alone"]
    for one in result.alone:
        low, high = map(milliseconds, (one.prediction_low_ns, one.prediction_high_ns))
        more = f", {one.samples_factor:.3g} times the samples" if one.samples_factor != 1 else ""
        text = (
            f"{milliseconds(one.predicted_step_ns):>{_TIME - 1}}  {clean(one.change, 200)} "
            f"({low} to {high}{more}; {one.validity})"
        )
        lines += wrapped(text, width, indent=2, hang=_TIME + 3)
    return lines


def _memory(need: MemoryNeed) -> str:
    """What a device needs of its memory."""
    gb = 1e9
    times = need.peak_bytes / max(need.now_bytes, 1)
    whole = f" of {need.device_bytes / gb:.0f}" if need.device_bytes else ""
    fits = {True: ": it fits", False: ": it does not fit", None: ""}[need.fits]
    return (
        f"memory of rank {need.rank}: {times:.2g} times as much at the peak, "
        f"{need.peak_bytes / gb:.1f}{whole} GB ({need.low_bytes / gb:.1f} to "
        f"{need.high_bytes / gb:.1f}){fits}"
    )


def settings_json(known: Sequence[Setting]) -> str:
    """What can be set, for scripts."""
    rows = [{name: getattr(one, name) for name in _SETTING} for one in known]
    document = {"schema": "stepscope.settings/1", "settings": rows}
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"


def settings_text(known: Sequence[Setting], width: int | None = None) -> str:
    """What can be set, for a terminal."""
    lines = ["What stepscope whatif --set NAME=VALUE can set", ""]
    for one in known:
        usage = f"{one.name}={one.values}   e.g. --set {one.name}={one.example}"
        lines += wrapped(usage, width, hang=2)
        for title, text in (
            ("", f"{one.title}: {one.help}"),
            ("model", one.model),
            ("assumes", one.assumes),
            ("checked", one.checked),
            ("refused", one.refuses),
        ):
            head = f"{title}: " if title else ""
            lines += wrapped(head + text, width, indent=4, hang=6)
        lines.append("")
    return "\n".join(lines)


def critical_path_text(result: CriticalPath, width: int | None = None) -> str:
    """A critical path: by kind, then what is on it; as wide as a terminal."""
    steps = max(len(result.steps), 1)
    which = f"{steps} steps" if steps > 1 else f"step {result.steps[0].step}"
    title = (
        f"Critical path of {which} of rank {result.rank}, device {result.device}: "
        f"{milliseconds(result.total_ns / steps)} per step"
    )
    lines = wrapped(title, width)
    for part in result.parts:
        name = part.kind.replace("_", " ") + (f": {part.cause}" if part.cause else "")
        lines.append(_line(name, part.ns / steps, part.share, width))
    if len(result.ranks) > 1:
        lines += ["", "By rank"]
        whole = max(result.total_ns, 1)
        lines += [_line(f"rank {r.rank}", r.ns / steps, r.ns / whole, width) for r in result.ranks]
    lines += _places("Kernels on it", _by_label(result.kernels), steps, width)
    lines += _places("Ranges that enqueued it", result.ranges, steps, width)
    lines += _places("Operators that enqueued it", result.operators, steps, width)
    return "\n".join([*lines, "", *_notes(result.warnings, width)]) + "\n"


def critical_path_csv(result: CriticalPath) -> str:
    """One row for each step and kind."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["step", "kind", "cause", "ns"])
    for step in result.steps:
        writer.writerows([step.step, p.kind, p.cause or "", p.ns] for p in step.parts)
    return out.getvalue()


def _by_label(kernels: Sequence[PathPlace]) -> list[PathPlace]:
    """Kernels under the short names that ``stepscope kernels`` shows, longest first."""
    sums = dict[str, PathPlace]()
    for kernel in kernels:
        label = kernel.label or kernel.name
        known = sums.get(label, PathPlace(name=label, ns=0, share=0.0))
        sums[label] = PathPlace(label, known.ns + kernel.ns, known.share + kernel.share)
    return sorted(sums.values(), key=lambda place: -place.ns)


def _places(title: str, places: Sequence[PathPlace], steps: int, width: int | None) -> list[str]:
    shown = [place for place in places[:_SHOWN] if place.share >= _LEAST_SHARE]
    if not shown:
        return []
    return ["", title, *(_line(p.name, p.ns / steps, p.share, width) for p in shown)]


def _line(name: str, ns: float, share: float, width: int | None) -> str:
    """A time, its share, and a name, which is cut where it finds no room."""
    figures = f"  {milliseconds(ns):>{_TIME - 1}}  {100 * share:z5.1f} %  "
    room = _NAME if width is None else max(min(_NAME, width - len(figures)), _LEAST_NAME)
    return figures + clean(name, room)
