"""A run history as text, as a picture, and as rows for other programs."""

from __future__ import annotations

import csv
import datetime
import io
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from stepscope.compare.changepoints import ENOUGH, FEW
from stepscope.render.compare import columns
from stepscope.render.fitted import wrapped
from stepscope.render.html import page
from stepscope.render.text import clean, no_formula, plural
from stepscope.trace.units import signed_percent

if TYPE_CHECKING:
    from stepscope.compare.history import Entry, Mark, Plot

_BAR: Final = 40
_REVISION: Final = 12
_WIDTH, _HEIGHT, _EDGE = 1000, 300, 40


def entries_text(entries: Sequence[Entry], width: int | None = None) -> str:
    """Recorded runs, one a line."""
    rows = [
        (str(e.id), _when(e), clean(e.name, 30), clean(e.revision, _REVISION), clean(e.label, 30),
         f"{e.figures.get('step_ms', 0):.3f}")
        for e in entries
    ]  # fmt: skip
    head = ("entry", "added", "name", "revision", "label", "step ms")
    return "\n".join(columns(head, rows, width)) + "\n"


def entries_csv(entries: Sequence[Entry]) -> str:
    """Recorded runs with all figures as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = list(dict.fromkeys(name for e in entries for name in e.figures))
    writer.writerow(["id", "added_ns", "name", "revision", "label", *map(no_formula, names)])
    for e in entries:
        texts = [no_formula(clean(text, 400)) for text in (e.name, e.revision, e.label)]
        writer.writerow([e.id, e.added_ns, *texts, *(e.figures.get(n, "") for n in names)])
    return out.getvalue()


def plot_text(p: Plot, width: int | None = None) -> str:
    """A series as bars, with its changes marked."""
    values = [e.figures[p.figure] for e in p.entries]
    top = max(values)
    marks = {m.entry.id: m for m in p.marks}
    head = f"{p.figure} of {clean(p.name)}, {plural(len(values), 'run')}, {_changes(p)}"
    lines = wrapped(head, width)
    lines += wrapped(_last(p), width) if _last(p) else []
    for e, value in zip(p.entries, values, strict=True):
        if e.id in marks:
            lines += wrapped(f"-- {mark_message(marks[e.id], p.figure)}", width, indent=2, hang=5)
        bar = "#" * max(round(_BAR * value / top), 1)
        lines.append(
            f"  {e.id:>5} {clean(e.revision, _REVISION):<{_REVISION}} {value:>12.6g} {bar}"
        )
    return "\n".join(lines) + "\n"


def _changes(p: Plot) -> str:
    """How often the level changed; with few runs, how many it takes to find that."""
    runs = len(p.entries)
    if p.marks or runs >= ENOUGH:
        return f"{plural(len(p.marks), 'change')} of level"
    return f"too few to find a change of level: {FEW}"


def _last(p: Plot) -> str:
    """How far the last run is from those before; empty where a mark tells, or there is one run."""
    values = [e.figures[p.figure] for e in p.entries]
    before = values[:-1]
    if len(p.marks) or not before:
        return ""
    usual = statistics.median(before)
    entry = p.entries[-1]
    if not usual:
        return ""
    return (
        f"the last run, entry {entry.id}, is {signed_percent(values[-1] / usual - 1)} against the "
        f"median of the {plural(len(before), 'run')} before it ({values[-1]:.6g}; {usual:.6g})"
    )


def mark_message(mark: Mark, figure: str) -> str:
    """A change of level in a sentence without end."""
    return (
        f"{figure} changed by {signed_percent(mark.ratio - 1)} after entry {mark.previous.id} "
        f"({clean(mark.previous.revision, _REVISION) or 'no revision'}), with entry "
        f"{mark.entry.id} ({clean(mark.entry.revision, _REVISION) or 'no revision'}); by chance in "
        f"{100 * mark.chance:.1f} of 100 such series"
    )


def plot_html(p: Plot) -> str:
    """A series as one HTML page without scripts and without requests."""
    values = [e.figures[p.figure] for e in p.entries]
    low, high = min(values), max(values)
    low -= 0.1 * (high - low or high)
    span = (high - low) * 1.05 or 1.0
    step = (_WIDTH - 2 * _EDGE) / max(len(values) - 1, 1)
    at = [(_EDGE + i * step, _HEIGHT - _EDGE - (v - low) / span * (_HEIGHT - 2 * _EDGE))
          for i, v in enumerate(values)]  # fmt: skip
    numbers = {e.id: i for i, e in enumerate(p.entries)}
    labels = [clean(f"{e.revision} {e.label} {e.figures[p.figure]:.6g}") for e in p.entries]
    return page(
        "history.html",
        title=f"{p.figure} of {clean(p.name)}",
        low=low,
        high=high,
        width=_WIDTH,
        height=_HEIGHT,
        edge=_EDGE,
        dots=[(f"{x:.1f}", f"{y:.1f}", label) for (x, y), label in zip(at, labels, strict=True)],
        marks=[f"{at[numbers[m.entry.id]][0] - step / 2:.1f}" for m in p.marks],
        notes=[_changes(p), _last(p), *(mark_message(m, p.figure) for m in p.marks)],
    )


def _when(entry: Entry) -> str:
    moment = datetime.datetime.fromtimestamp(entry.added_ns / 1e9, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M")
