"""A run history as text, as a picture, and as rows for other programs."""

from __future__ import annotations

import csv
import datetime
import html
import io
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from stepscope.compare.changepoints import ENOUGH, FEW
from stepscope.render.compare import columns
from stepscope.render.fitted import wrapped
from stepscope.render.text import clean, no_formula, plural
from stepscope.trace.units import signed_percent

if TYPE_CHECKING:
    from stepscope.compare.history import Entry, Mark, Plot

_BAR: Final = 40
_REVISION: Final = 12
_WIDTH, _HEIGHT, _EDGE = 1000, 300, 40
_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 14px system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; }
svg { width: 100%; }
"""


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
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    dots = "".join(
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='#2e9e5b'><title>"
        f"{_dot(e, p.figure)}</title></circle>"
        for (x, y), e in zip(at, p.entries, strict=True)
    )
    numbers = {e.id: i for i, e in enumerate(p.entries)}
    marks = "".join(
        f"<line x1='{at[numbers[m.entry.id]][0] - step / 2:.1f}' y1='{_EDGE}' "
        f"x2='{at[numbers[m.entry.id]][0] - step / 2:.1f}' y2='{_HEIGHT - _EDGE}' stroke='#d33' "
        "stroke-dasharray='4'/>"
        for m in p.marks
    )
    stated = [_changes(p), _last(p), *(mark_message(m, p.figure) for m in p.marks)]
    message = "".join(f"<li>{html.escape(text)}</li>" for text in stated if text)
    title = html.escape(f"{p.figure} of {clean(p.name)}")
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta "
        "http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src "
        f"'unsafe-inline'\"><title>{title}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{title}</h1><p>{low:.6g} to {high:.6g}</p><svg "
        f"viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img'><polyline points='{line}' fill='none' "
        f"stroke='#8888'/>{marks}{dots}</svg><ul>{message}</ul></body></html>\n"
    )


def _dot(entry: Entry, figure: str) -> str:
    return html.escape(clean(f"{entry.revision} {entry.label} {entry.figures[figure]:.6g}"))


def _when(entry: Entry) -> str:
    moment = datetime.datetime.fromtimestamp(entry.added_ns / 1e9, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M")
