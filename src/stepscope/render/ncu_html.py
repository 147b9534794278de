"""Two Nsight Compute reports compared, as a page: the roofline, and a table for each kernel."""

from __future__ import annotations

from html import escape
from pathlib import PurePath
from typing import Final

from stepscope.ncu.limiters import LIMITERS
from stepscope.ncu.result import Pair, ReportDiff
from stepscope.ncu.units import shown
from stepscope.render.ncu import notable, ratio_text, renaming
from stepscope.render.roofline_svg import Point, roofline_svg
from stepscope.render.text import clean

_STYLE: Final = (
    "body{font:14px sans-serif;max-width:60em;margin:2em auto;color:#222}"
    "table{border-collapse:collapse}td,th{padding:2px 12px;text-align:right}"
    "td:first-child,th:first-child{text-align:left}tr:nth-child(even){background:#f4f4f4}"
    "h2{font-size:15px;overflow-wrap:anywhere;margin-top:2em}"
)


def report_diff_page(found: ReportDiff) -> str:
    """The comparison as one page that needs nothing else; metrics that changed by 5 % or more."""
    title = f"{PurePath(found.path).name} and {PurePath(found.other).name}"
    points = [
        Point(pair.name, pair.roofline_before, pair.roofline_after)
        for pair in found.pairs
        if pair.roofline_before is not None
    ]
    notes = [
        *(f"only before: {clean(name, 200)}" for name in found.only_before),
        *(f"only after: {clean(name, 200)}" for name in found.only_after),
        *found.warnings,
    ]
    parts = [
        f"<h1>{_text(title)}</h1>",
        roofline_svg(points, "Roofline, before (hollow) and after"),
        *(_pair(pair) for pair in found.pairs),
        *(f"<p>{_text(note)}</p>" for note in notes),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n"
        "</body></html>\n"
    )


def _pair(pair: Pair) -> str:
    was, now = LIMITERS[pair.limiter_before].title, LIMITERS[pair.limiter_after].title
    rows = [
        (c.label, shown(c.before, c.unit), shown(c.after, c.unit), ratio_text(c))
        for c in pair.changes
        if notable(c)
    ]
    head = f"<h2>{_text(clean(pair.name, 300))}</h2>"
    head += "".join(f"<p>{_text(line.strip())}</p>" for line in renaming(pair))
    head += f"<p>limited by {_text(was)}"
    head += f", now by {_text(now)}</p>" if was != now else ", as before</p>"
    if not rows:
        return head + "<p>no metric changed by more than 5 %</p>"
    cells = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"{head}<table><tr><th>metric</th><th>before</th><th>after</th><th>change</th></tr>"
        f"{cells}</table>"
    )


def _text(text: str) -> str:
    return escape(clean(text, 1000))
