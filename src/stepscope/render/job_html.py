"""The diagnosis of a job as one page without scripts: the heat map leads to the rank's row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepscope.render.html import page
from stepscope.render.job import title
from stepscope.render.text import figure, percent, plural

if TYPE_CHECKING:
    from stepscope.jobs.job_result import JobDiagnosis

_WIDTH, _LABEL = 1100, 60
_TALL, _LEAST = 14, 1.0
_MOST_HEIGHT: Final = 1100
_FIRST: Final = 0.01
_ROWS: Final = 64


def job_page(found: JobDiagnosis) -> str:
    """The page."""
    rows = sorted(found.ranks, key=lambda row: (not row.late, -(row.score or 0.0), -row.need_ns))
    return page(
        "job.html",
        title=f"{title(found)}: {plural(found.job.ranks, 'rank')}",
        found=found,
        heat=_heat(found),
        ranks=rows[:_ROWS],
        time=lambda value: figure(value, "ns"),
        size=lambda value: figure(value, "bytes"),
        percent=percent,
        plural=plural,
    )


def _heat(found: JobDiagnosis) -> dict[str, object]:
    """Cells of the map: only what is later than its peers by a hundredth of the step is drawn."""
    heat = found.heat_map
    n, steps = len(heat.ranks), max(len(heat.steps), 1)
    tall = min(_TALL, max(_LEAST, _MOST_HEIGHT / max(n, 1)))
    wide = (_WIDTH - _LABEL) / steps
    mean = max(found.step_ns.mean, 1)
    listed = {
        row.rank
        for row in sorted(
            found.ranks, key=lambda row: (not row.late, -(row.score or 0.0), -row.need_ns)
        )[:_ROWS]
    }
    cells = []
    for at, (rank, values) in enumerate(zip(heat.ranks, heat.late_ns, strict=True)):
        for column, late in enumerate(values):
            share = late / mean
            if share < _FIRST:
                continue
            cells.append(
                {
                    "x": round(_LABEL + column * wide, 1),
                    "y": round(at * tall, 2),
                    "opacity": round(min(0.15 + 3 * share, 1.0), 2),
                    "tip": f"rank {rank}, step {heat.steps[column]}: {figure(late, 'ns')} later",
                    "rank": rank if rank in listed else None,
                }
            )
    every = max(1, -(-n // 32))
    labels = [
        {"y": round((at + 0.8) * tall, 1), "text": str(heat.ranks[at])} for at in range(0, n, every)
    ]
    return {
        "width": _WIDTH,
        "height": round(n * tall + 1),
        "left": _LABEL,
        "wide": round(wide, 2),
        "tall": round(tall, 2),
        "cells": cells,
        "labels": labels,
    }
