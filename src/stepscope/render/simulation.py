"""Predictions and critical paths as text and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.render.text import clean, milliseconds

if TYPE_CHECKING:
    from stepscope.simulation.result import CriticalPath, PathPlace, WhatIf

_NAME = 90
_SHOWN = 10
_LEAST_SHARE = 0.005


def whatif_text(result: WhatIf) -> str:
    """A prediction: the answer first, then the budgets."""
    gain = result.measured_step_ns / max(result.predicted_step_ns, 1)
    lines = [
        f"Predicted step {milliseconds(result.predicted_step_ns)} "
        f"({milliseconds(result.prediction_low_ns)} to {milliseconds(result.prediction_high_ns)}), "
        f"measured {milliseconds(result.measured_step_ns)}: {gain:.2f} times as fast",
        *(f"  with: {clean(change, 400)}" for change in result.changes),
        "",
        f"{'':16}{'now':>10}{'then':>10}",
    ]
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
    lines += [f"  {n:14}{milliseconds(now):>10}{milliseconds(then):>10}" for n, now, then in rows]
    lines += ["", *(f"· {clean(warning, 400)}" for warning in result.warnings)]
    return "\n".join(lines) + "\n"


def critical_path_text(result: CriticalPath) -> str:
    """A critical path: by kind, then what is on it."""
    steps = max(len(result.steps), 1)
    which = f"{steps} steps" if steps > 1 else f"step {result.steps[0].step}"
    lines = [
        f"Critical path of {which} of rank {result.rank}, device {result.device}: "
        f"{milliseconds(result.total_ns / steps)} a step"
    ]
    for part in result.parts:
        name = part.kind.replace("_", " ") + (f": {part.cause}" if part.cause else "")
        lines.append(_line(name, part.ns / steps, part.share))
    if len(result.ranks) > 1:
        lines += ["", "By rank"]
        whole = max(result.total_ns, 1)
        lines += [_line(f"rank {r.rank}", r.ns / steps, r.ns / whole) for r in result.ranks]
    lines += _places("Kernels on it", result.kernels, steps)
    lines += _places("Ranges that enqueued it", result.ranges, steps)
    lines += _places("Operators that enqueued it", result.operators, steps)
    lines += ["", *(f"· {clean(warning, 400)}" for warning in result.warnings)]
    return "\n".join(lines) + "\n"


def critical_path_csv(result: CriticalPath) -> str:
    """One row for each step and kind."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["step", "kind", "cause", "ns"])
    for step in result.steps:
        writer.writerows([step.step, p.kind, p.cause or "", p.ns] for p in step.parts)
    return out.getvalue()


def _places(title: str, places: Sequence[PathPlace], steps: int) -> list[str]:
    shown = [place for place in places[:_SHOWN] if place.share >= _LEAST_SHARE]
    if not shown:
        return []
    return ["", title, *(_line(clean(p.name, _NAME), p.ns / steps, p.share) for p in shown)]


def _line(name: str, ns: float, share: float) -> str:
    return f"  {milliseconds(ns):>9}  {100 * share:z5.1f} %  {name}"
