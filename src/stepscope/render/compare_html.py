"""A comparison as one HTML page without scripts and without requests."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

from stepscope.render.compare import facts, sections, setup_lines
from stepscope.render.palette import CAUSES, KINDS
from stepscope.render.text import clean, milliseconds

if TYPE_CHECKING:
    from stepscope.compare.profile import Profile
    from stepscope.compare.result import Comparison

_WIDTH: Final = 1000
_ROW: Final = 18
_DEPTHS: Final = 4
_LEAST_LABEL: Final = 40  # narrower ranges have no room for their name
_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
ul { padding-left: 1.2rem; }
"""  # noqa: E501


def compare_html(c: Comparison) -> str:
    """The page."""
    parts = [
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>",
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; "
        "style-src 'unsafe-inline'\">",
        f"<title>{_text(c.message)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(c.message)}.</h1>",
        *(f"<p>{_text(line)}</p>" for line in facts(c)),
    ]
    if len(c.runs) == 2:
        parts += ["<h2>A typical step of each, on one scale</h2>", _steps(c.runs)]
    for title, head, rows in sections(c):
        cells = "".join(f"<th>{_text(cell)}</th>" for cell in head)
        body = "".join(
            "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows
        )
        parts.append(f"<h2>{_text(title)}</h2><table><tr>{cells}</tr>{body}</table>")
    notes = [*(p.message for p in c.predictions), *setup_lines(c), *c.warnings]
    parts.append("<ul>" + "".join(f"<li>{_text(note)}</li>" for note in notes) + "</ul>")
    return "\n".join([*parts, "</body></html>\n"])


def _text(text: str) -> str:
    return html.escape(clean(text, 600))


def _steps(runs: list[Profile]) -> str:
    """Both steps begin at the same left edge; both have the same scale."""
    longest = max((_length(run) for run in runs), default=1)
    drawn, top = [], 0
    causes = [cause for cause in CAUSES if any(c == cause for run in runs for _, _, c in run.idle)]
    for run, name in zip(runs, ("before", "after"), strict=True):
        drawn.append(
            f"<text x='0' y='{top + 12}'>{name}: {_text(milliseconds(_length(run)))}</text>"
        )
        top += _ROW
        for kind, (label, colour) in enumerate(KINDS.items()):
            mine = [(a, b) for a, b, k in run.timeline if k == kind]
            if mine:
                drawn.append(_path(mine, longest, top, colour, label))
                top += _ROW
        for cause in causes:
            mine = [(a, b) for a, b, c in run.idle if c == cause]
            if mine:
                drawn.append(_path(mine, longest, top, f"url(#{cause})", f"idle: {cause}"))
        if run.idle:
            top += _ROW
        top = _marks(run, longest, top, drawn)
        top += _ROW // 2
    keys = "".join(
        f"<span class='key' style='background:{colour}'></span>{label}"
        for label, colour in KINDS.items()
    ) + "".join(
        f"<span class='key' style='background:repeating-linear-gradient(135deg,{CAUSES[cause]} "
        f"0 2px,transparent 2px 4px)'></span>idle: {cause.replace('_', ' ')}"
        for cause in causes
    )
    body = "".join([*map(_hatched, causes), *drawn])
    return (
        f"<p>{keys}</p><svg viewBox='0 0 {_WIDTH} {top}' role='img' "
        f"aria-label='typical steps'>{body}</svg>"
    )


def _path(pieces: list[tuple[int, int]], longest: int, top: int, fill: str, label: str) -> str:
    """Pieces of one row as one shape."""
    path = "".join(
        f"M{_x(a, longest)} {top}h{max(_x(b, longest) - _x(a, longest), 0.3):.2f}v14H"
        f"{_x(a, longest)}z"
        for a, b in pieces
    )
    return f"<path d='{path}' fill='{fill}'><title>{label}</title></path>"


def _hatched(cause: str) -> str:
    """The pattern of a cause: it shares its hue with a kind of work."""
    colour = CAUSES[cause]
    return (
        f"<pattern id='{cause}' width='4' height='4' patternUnits='userSpaceOnUse' "
        f"patternTransform='rotate(45)'><rect width='4' height='4' fill='{colour}' "
        f"fill-opacity='.35'/><rect width='2' height='4' fill='{colour}'/></pattern>"
    )


def _length(run: Profile) -> int:
    ends = [end for _, end, _ in run.timeline]
    return max([round(run.step_ns), *ends])


def _x(ns: int, longest: int) -> float:
    return round(_WIDTH * max(min(ns, longest), 0) / longest, 2)


def _marks(run: Profile, longest: int, top: int, drawn: list[str]) -> int:
    """Annotations, one row a depth."""
    ends: list[int] = []
    used = 0
    for start, end, name in sorted(run.marks, key=lambda mark: (mark[0], -mark[1])):
        while ends and ends[-1] <= start:
            ends.pop()
        if len(ends) >= _DEPTHS or start > longest:
            continue
        y = top + _ROW * len(ends)
        ends.append(end)
        used = max(used, len(ends))
        left, width = _x(start, longest), _x(end, longest) - _x(start, longest)
        label = _text(clean(name, max(int(width / 7), 1))) if width >= _LEAST_LABEL else ""
        drawn.append(
            f"<g><title>{_text(name)}: {_text(milliseconds(end - start))}</title>"
            f"<rect x='{left}' y='{y}' width='{max(width, 0.3):.2f}' height='14' fill='#8883' "
            f"stroke='#8888' stroke-width='.5'/>"
            f"<text x='{left + 3}' y='{y + 11}'>{label}</text></g>"
        )
    return top + _ROW * used
