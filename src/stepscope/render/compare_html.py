"""A comparison as one HTML page without scripts and without requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stepscope.render.compare import facts, sections, setup_lines
from stepscope.render.html import page
from stepscope.render.palette import CAUSES, KINDS
from stepscope.render.text import clean, milliseconds

if TYPE_CHECKING:
    from stepscope.compare.profile import Profile
    from stepscope.compare.result import Comparison

_WIDTH: Final = 1000
_ROW: Final = 18
_DEPTHS: Final = 4
_LEAST_LABEL: Final = 40  # narrower ranges have no room for their name


@dataclass
class _Picture:
    """What is drawn of two steps; places in pixels."""

    height: int = 0
    headings: list[tuple[int, str]] = field(default_factory=list)
    shapes: list[tuple[str, str, str]] = field(default_factory=list)
    marks: list[tuple[float, int, str, str, str]] = field(default_factory=list)


def compare_html(c: Comparison) -> str:
    """The page."""
    causes = [cause for cause in CAUSES if any(k == cause for run in c.runs for *_, k in run.idle)]
    return page(
        "compare.html",
        title=clean(c.message, 600),
        facts=facts(c),
        picture=_steps(c.runs, causes) if len(c.runs) == 2 else None,
        width=_WIDTH,
        kinds=list(KINDS.items()),
        causes=[(cause, CAUSES[cause]) for cause in causes],
        sections=sections(c),
        notes=[*(p.message for p in c.predictions), *setup_lines(c), *c.warnings],
    )


def _steps(runs: list[Profile], causes: list[str]) -> _Picture:
    """Both steps begin at the same left edge; both have the same scale."""
    longest = max((_length(run) for run in runs), default=1)
    made = _Picture()
    for run, name in zip(runs, ("before", "after"), strict=True):
        made.headings.append((made.height + 12, f"{name}: {milliseconds(_length(run))}"))
        made.height += _ROW
        for kind, (label, colour) in enumerate(KINDS.items()):
            mine = [(a, b) for a, b, k in run.timeline if k == kind]
            if mine:
                made.shapes.append((_path(mine, longest, made.height), colour, label))
                made.height += _ROW
        for cause in causes:
            mine = [(a, b) for a, b, c in run.idle if c == cause]
            if mine:
                path = _path(mine, longest, made.height)
                made.shapes.append((path, f"url(#{cause})", f"idle: {cause}"))
        if run.idle:
            made.height += _ROW
        made.height += _ROW * _marks(run, longest, made) + _ROW // 2
    return made


def _path(pieces: list[tuple[int, int]], longest: int, top: int) -> str:
    """Pieces of one row as one shape."""
    return "".join(
        f"M{_x(a, longest)} {top}h{max(_x(b, longest) - _x(a, longest), 0.3):.2f}v14H"
        f"{_x(a, longest)}z"
        for a, b in pieces
    )


def _length(run: Profile) -> int:
    ends = [end for _, end, _ in run.timeline]
    return max([round(run.step_ns), *ends])


def _x(ns: int, longest: int) -> float:
    return round(_WIDTH * max(min(ns, longest), 0) / longest, 2)


def _marks(run: Profile, longest: int, made: _Picture) -> int:
    """Annotations, one row a depth; returns how many rows."""
    ends: list[int] = []
    used = 0
    for start, end, name in sorted(run.marks, key=lambda mark: (mark[0], -mark[1])):
        while ends and ends[-1] <= start:
            ends.pop()
        if len(ends) >= _DEPTHS or start > longest:
            continue
        y = made.height + _ROW * len(ends)
        ends.append(end)
        used = max(used, len(ends))
        left, width = _x(start, longest), _x(end, longest) - _x(start, longest)
        label = clean(name, max(int(width / 7), 1)) if width >= _LEAST_LABEL else ""
        title = f"{clean(name, 600)}: {milliseconds(end - start)}"
        made.marks.append((left, y, f"{max(width, 0.3):.2f}", label, title))
    return used
