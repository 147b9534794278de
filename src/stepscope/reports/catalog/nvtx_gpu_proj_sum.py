"""Projected ranges by name."""

from __future__ import annotations

import numpy as np

from stepscope.reports.catalog.nvtx_gpu_proj_trace import PROJECTED, project
from stepscope.reports.summary import spread, spread_columns
from stepscope.tabular.attribution import STYLES
from stepscope.tabular.maths import (
    dictionary,
    group,
    round_half_away,
    statistics,
    text_ranks,
)
from stepscope.tabular.needs import CUDA_CALLS, GPU_WORK, RANGES
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Source


def _run(source: Source, _: Arguments) -> Answer:
    found = project(source)
    name, style = found.names.codes[found.row], found.style[found.row]
    groups, firsts = group(name, style)
    number = len(firsts)
    on_gpu = statistics(found.end_ns - found.start_ns, groups, number)
    on_host, ops, level, children = (
        statistics(values, groups, number)
        for values in (found.range_ns, found.ops, found.level, found.children)
    )
    rank = text_ranks(found.names.texts)[name[firsts]]
    order = np.lexsort((style[firsts], rank, -on_gpu.total))
    return [
        dictionary(name[firsts][order], found.names.texts),
        dictionary(style[firsts][order], STYLES),
        on_gpu.total[order],
        on_host.total[order],
        on_gpu.count[order],
        *spread(on_gpu, order),
        ops.total[order],
        *(round_half_away(part.avg[order]) for part in (ops, level, children)),
    ]


REPORTS = [
    Report(
        "nvtx_gpu_proj_sum",
        "NVTX GPU Projection Summary",
        f"Ranges that launched GPU work, by name. {PROJECTED} Longest total projection first.",
        (
            Column("Range", doc="domain:text, or the text alone in the default domain"),
            Column("Style", doc="PushPop or StartEnd"),
            Column("Total Proj Time", "dur", "sum of the projections"),
            Column("Total Range Time", "dur", "sum of the ranges themselves, on the host"),
            Column("Range Instances", doc="number of ranges"),
            *spread_columns("Proj "),
            Column("Total GPU Ops", doc="operations of all ranges"),
            Column("Avg GPU Ops", doc="operations a range"),
            Column("Avg Range Lvl", doc="mean level in the tree of ranges"),
            Column("Avg Num Child", doc="direct children with GPU work a range"),
        ),
        _run,
        needs=(RANGES, CUDA_CALLS, GPU_WORK),
    )
]
