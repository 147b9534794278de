"""Two Nsight Compute reports compared, as a page: the roofline, and a table for each kernel."""

from __future__ import annotations

from pathlib import PurePath

from stepscope.ncu.limiters import LIMITERS
from stepscope.ncu.result import ReportDiff
from stepscope.ncu.units import shown
from stepscope.render.html import page
from stepscope.render.ncu import notable, ratio_text, renaming
from stepscope.render.roofline_svg import Point, roofline_svg
from stepscope.render.text import clean


def report_diff_page(found: ReportDiff) -> str:
    """The comparison as one page that needs nothing else; metrics that changed by 5 % or more."""
    points = [
        Point(pair.name, pair.roofline_before, pair.roofline_after)
        for pair in found.pairs
        if pair.roofline_before is not None
    ]
    return page(
        "ncu.html",
        title=clean(f"{PurePath(found.path).name} and {PurePath(found.other).name}", 1000),
        drawing=roofline_svg(points, "Roofline, before (hollow) and after"),
        pairs=[
            {
                "name": clean(pair.name, 300),
                "renaming": [line.strip() for line in renaming(pair)],
                "was": LIMITERS[pair.limiter_before].title,
                "now": LIMITERS[pair.limiter_after].title,
                "rows": [
                    (c.label, shown(c.before, c.unit), shown(c.after, c.unit), ratio_text(c))
                    for c in pair.changes
                    if notable(c)
                ],
            }
            for pair in found.pairs
        ],
        notes=[
            *(f"only before: {clean(name, 200)}" for name in found.only_before),
            *(f"only after: {clean(name, 200)}" for name in found.only_after),
            *found.warnings,
        ],
    )
