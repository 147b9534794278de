"""A roofline as SVG or as a page that holds it: log axes, each launch a point at each level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from stepscope.ncu.roofline import LEVELS, PRECISIONS, Roof, Roofline
from stepscope.render.html import page
from stepscope.render.roofline import log10_of
from stepscope.render.text import clean, percent

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 30, 40, 60
_COLOURS: Final = {"l1": "#2a7f62", "l2": "#2b6cb0", "dram": "#c05621"}
_DECADES_BELOW = 5


@dataclass(frozen=True)
class Point:
    """One launch to draw.

    Attributes:
        name: for the title of the point.
        roofline: where it is.
        after: where it is afterwards, joined by a line; None for a single report.
    """

    name: str
    roofline: Roofline
    after: Roofline | None = None


def roofline_svg(points: Sequence[Point], title: str) -> str:
    """The drawing; launches without arithmetic are left out, and said so.

    Args:
        points: launches of one device; the ceilings are those of the first with arithmetic.
        title: heading.
    """
    drawn = [p for p in points if p.roofline.peak_flop_per_s and p.roofline.flop_per_s]
    heading = f'<text x="{_LEFT}" y="24" class="h">{escape(clean(title, 110))}</text>'
    if not drawn:
        note = "no launch does arithmetic that the report counts"
        return _document(heading + f'<text x="{_LEFT}" y="80">{note}</text>')
    base = max(drawn, key=lambda p: p.roofline.flop_per_s).roofline
    lines = [r for p in drawn for r in (p.roofline, p.after) if r is not None and r.flop_per_s]
    scale = _Scale(base, lines)
    parts = [heading, *_axes(scale), *_ceilings(scale, base)]
    for point in drawn:
        parts += _marks(scale, point)
    out = len(points) - len(drawn)
    if out:
        parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 6}" class="s">{out:,} launches without '
                     "arithmetic are left out</text>")  # fmt: skip
    return _document("\n".join(parts))


def roofline_page(points: Sequence[Point], title: str) -> str:
    """A page that holds the drawing and needs nothing else."""
    return page("roofline.html", title=clean(title, 110), drawing=roofline_svg(points, title))


class _Scale:
    """Decimal logarithms to pixels."""

    def __init__(self, base: Roofline, lines: Sequence[Roofline]) -> None:
        ridges = [base.peak_flop_per_s / r.peak_bytes_per_s for r in base.roofs]
        intensities = [r.intensity for line in lines for r in line.roofs if r.intensity]
        around = [log10_of(x) for x in [*ridges, *intensities]] or [0.0]
        self.left, self.right = math.floor(min(around) - 0.3), math.ceil(max(around) + 0.3)
        self.top = math.ceil(log10_of(max(base.ceilings_flop_per_s.values())))
        lowest = min(log10_of(line.flop_per_s) for line in lines)
        self.bottom = math.floor(min(self.top - _DECADES_BELOW, lowest))

    def x(self, intensity: float) -> float:
        share = (log10_of(intensity) - self.left) / (self.right - self.left)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, flop_per_s: float) -> float:
        share = (self.top - log10_of(flop_per_s)) / (self.top - self.bottom)
        return _TOP + share * (_HEIGHT - _TOP - _BOTTOM)


def _axes(scale: _Scale) -> list[str]:
    low, high = _HEIGHT - _BOTTOM, _TOP
    parts = []
    for decade in range(scale.left, scale.right + 1):
        x = scale.x(10.0**decade)
        parts.append(f'<line x1="{x:.1f}" y1="{high}" x2="{x:.1f}" y2="{low}" class="g"/>')
        parts.append(f'<text x="{x:.1f}" y="{low + 18}" class="m">{_power(decade)}</text>')
    for decade in range(scale.bottom, scale.top + 1):
        y = scale.y(10.0**decade)
        parts.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" class="g"/>'
        )
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="e">{_power(decade)}</text>')
    parts.append(f'<text x="{(_WIDTH + _LEFT) / 2}" y="{low + 40}" class="m">FLOP/byte</text>')
    parts.append(f'<text x="14" y="{_TOP - 8}">FLOP/s</text>')
    return parts


def _power(decade: int) -> str:
    return f"1e{decade}"


def _ceilings(scale: _Scale, base: Roofline) -> list[str]:
    parts = []
    right = 10.0**scale.right
    fastest = max((r.peak_bytes_per_s for r in base.roofs), default=0.0)
    by_peak: dict[float, list[str]] = {}
    for kind, peak in sorted(base.ceilings_flop_per_s.items()):
        by_peak.setdefault(peak, []).append(kind)
    for peak, kinds in by_peak.items():
        start = max(peak / fastest, 10.0**scale.left) if fastest else right
        if start >= right:
            continue
        y = scale.y(peak)
        name = ", ".join(PRECISIONS.get(kind, kind) for kind in kinds)
        style = "c" if base.precision in kinds else "d"
        parts.append(
            f'<line x1="{scale.x(start):.1f}" y1="{y:.1f}" x2="{scale.x(right):.1f}" '
            f'y2="{y:.1f}" class="{style}"/>'
        )
        parts.append(
            f'<text x="{scale.x(right) - 4:.1f}" y="{y - 4:.1f}" class="e s">{name} '
            f"{peak / 1e12:,.1f} TFLOP/s</text>"
        )
    for at, roof in enumerate(base.roofs):
        parts.append(
            f'<text x="{_LEFT + 8}" y="{_TOP + 18 + 16 * at}" class="s" '
            f'style="fill:{_COLOURS[roof.level]}">{LEVELS[roof.level]} '
            f"{roof.peak_bytes_per_s / 1e12:.2f} TB/s</text>"
        )
    top = max(base.ceilings_flop_per_s.values())
    for roof in base.roofs:
        start = max(10.0**scale.left, 10.0**scale.bottom / roof.peak_bytes_per_s)
        end = min(top / roof.peak_bytes_per_s, right)
        colour = _COLOURS[roof.level]
        if start >= end:
            continue
        parts.append(
            f'<line x1="{scale.x(start):.1f}" y1="{scale.y(start * roof.peak_bytes_per_s):.1f}" '
            f'x2="{scale.x(end):.1f}" y2="{scale.y(end * roof.peak_bytes_per_s):.1f}" '
            f'stroke="{colour}" stroke-width="1.5"><title>{LEVELS[roof.level]} '
            f"{roof.peak_bytes_per_s / 1e12:.2f} TB/s</title></line>"
        )
    return parts


def _marks(scale: _Scale, point: Point) -> list[str]:
    parts = []
    after = {r.level: r for r in point.after.roofs} if point.after is not None else {}
    for roof in point.roofline.roofs:
        if not roof.intensity:
            continue
        colour = _COLOURS[roof.level]
        x, y = scale.x(roof.intensity), scale.y(point.roofline.flop_per_s)
        then = after.get(roof.level)
        if then is not None and then.intensity and point.after is not None:
            x2, y2 = scale.x(then.intensity), scale.y(point.after.flop_per_s)
            parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                         f'stroke="{colour}" stroke-dasharray="3 3"/>')  # fmt: skip
            parts.append(_dot(x2, y2, colour, f"{point.name} after, {LEVELS[roof.level]}", then))
        parts.append(
            _dot(x, y, colour, f"{point.name}, {LEVELS[roof.level]}", roof, hollow=bool(after))
        )
    return parts


def _dot(x: float, y: float, colour: str, name: str, roof: Roof, *, hollow: bool = False) -> str:
    fill = "white" if hollow else colour
    message = escape(
        clean(
            f"{name}: {roof.intensity:.3g} FLOP/byte, {percent(roof.achieved, 1)} of its roof", 200
        )
    )
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" stroke="{colour}">'
        f"<title>{message}</title></circle>"
    )


def _document(body: str) -> str:
    style = (
        "text{font:12px sans-serif;fill:#222}.h{font-size:15px;font-weight:600}"
        ".m{text-anchor:middle}"
        ".e{text-anchor:end}.s{font-size:11px;fill:#555}.g{stroke:#ddd}"
        ".c{stroke:#222;stroke-width:1.8}.d{stroke:#999;stroke-dasharray:5 4}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img"><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>'
    )
