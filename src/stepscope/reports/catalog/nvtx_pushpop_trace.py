"""Every push/pop range with its place in the tree."""

from __future__ import annotations

import numpy as np

from stepscope.intervals.nesting import nest
from stepscope.tabular.attribution import range_ends, range_names, thread_keys
from stepscope.tabular.maths import dictionary, nullable
from stepscope.tabular.needs import RANGES
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Rows, Source
from stepscope.trace.frame import IntArray


def row_ids(ranges: Rows) -> IntArray:
    """The source's row id of each range; its place in the trace where the source has none."""
    ids: IntArray = ranges["source_row"]
    return ranges["id"] if len(ids) and (ids < 0).all() else ids


def tree(source: Source, ranges: Rows) -> tuple[IntArray, IntArray]:
    """Row of the parent (-1 at the top) and level of each range, by thread."""
    return nest(ranges["start_ns"], range_ends(source, ranges), thread_keys(ranges)[0])


def stacks(ids: IntArray, parent: IntArray, level: IntArray) -> list[str]:
    """``:id:id:id`` from the outermost range to each one itself."""
    found = [""] * len(ids)
    for row in np.argsort(level, kind="stable").tolist():
        above = found[parent[row]] if parent[row] >= 0 else ""
        found[row] = f"{above}:{ids[row]}"
    return found


def _run(source: Source, _: Arguments) -> Answer:
    import pyarrow as pa

    ranges = source.of_kind("range", "kind", "pushpop", "annotation")
    names = range_names(ranges)
    start, end = ranges["start_ns"], range_ends(source, ranges)
    duration = end - start
    ids = row_ids(ranges)
    parent, level = tree(source, ranges)
    has = parent >= 0
    inside = np.zeros(len(ranges), np.int64)
    np.add.at(inside, parent[has], duration[has])
    children = np.bincount(parent[has], minlength=len(ranges))
    order = np.lexsort((ids, level, duration, start))
    stack = np.array(stacks(ids, parent, level), dtype=object)[order]
    indented = [
        "--" * depth + names.texts[name]
        for depth, name in zip(level[order].tolist(), names.codes[order].tolist(), strict=True)
    ]
    return [
        start[order],
        end[order],
        duration[order],
        inside[order],
        (duration - inside)[order],
        dictionary(names.codes[order], names.texts),
        ranges["process_id"][order],
        ranges["thread_id"][order],
        level[order],
        children[order],
        ids[order],
        nullable(np.append(ids, -1)[parent][order]),
        pa.array(stack.tolist(), type=pa.string()),
        pa.array(indented, type=pa.string()),
    ]


REPORTS = [
    Report(
        "nvtx_pushpop_trace",
        "NVTX Push/Pop Range Trace",
        "Every push/pop range in order of start, with its place among the ranges of its thread: "
        "the parent is the tightest range that contains it, whatever their domains.",
        (
            Column("Start", "ts", "begin"),
            Column("End", "ts", "end"),
            Column("Duration", "dur", "length"),
            Column("DurChild", "dur", "sum of the direct children"),
            Column("DurNonChild", "dur", "the rest: time of the range itself"),
            Column("Name", doc="domain:text, or the text alone in the default domain"),
            Column("PID", doc="process"),
            Column("TID", doc="thread"),
            Column("Lvl", doc="0 at the top"),
            Column("NumChild", doc="number of direct children"),
            Column("RangeId", doc="the source's row id"),
            Column("ParentId", doc="row id of the parent"),
            Column("RangeStack", doc="row ids from the top to the range"),
            Column("NameTree", doc="name, indented by level"),
        ),
        _run,
        aliases=("nvtxpptrace",),
        needs=(RANGES,),
    )
]
