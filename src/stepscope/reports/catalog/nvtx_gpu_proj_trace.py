"""Ranges projected onto the GPU work that was launched inside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.intervals.distinct import distinct_values
from stepscope.reports.catalog.nvtx_pushpop_trace import row_ids, stacks, tree
from stepscope.tabular.attribution import (
    STYLES,
    Names,
    launches,
    range_ends,
    range_names,
    range_styles,
    ranges_around,
    usable_ranges,
)
from stepscope.tabular.maths import dictionary, group, nullable
from stepscope.tabular.needs import CUDA_CALLS, GPU_WORK, RANGES
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Rows, Source
from stepscope.trace.frame import IntArray


@dataclass(frozen=True)
class Projection:
    """One entry a range that launched GPU work, in order of the source's row ids.

    Attributes:
        ranges: all ranges.
        row: row of the range.
        names: of all ranges.
        style: of all ranges.
        start_ns: begin of the earliest operation.
        end_ns: end of the latest.
        ops: number of operations (those of one call count once).
        level: place in the tree of ranges, 0 at the top.
        children: direct children that launched GPU work themselves.
        parent: row of the parent, of all ranges.
        range_ns: length on the host.
        outside: start, end, operations, process and thread of the work in no range.
    """

    ranges: Rows
    row: IntArray
    names: Names
    style: IntArray
    start_ns: IntArray
    end_ns: IntArray
    ops: IntArray
    level: IntArray
    children: IntArray
    parent: IntArray
    range_ns: IntArray
    outside: tuple[int, int, int, int, int] | None


def project(source: Source) -> Projection:
    """Project all ranges."""
    work, calls = source.gpu_work(), source.cuda_calls()
    ranges = usable_ranges(source, own_thread=True)
    op, call = launches(work, calls)
    pair, row = ranges_around(source, ranges, calls, call)
    which = op[pair]
    outside = np.bincount(pair, minlength=len(call)) == 0
    first = np.full(len(ranges), np.iinfo(np.int64).max)
    last = np.full(len(ranges), np.iinfo(np.int64).min)
    np.minimum.at(first, row, work["start_ns"][which])
    np.maximum.at(last, row, work["end_ns"][which])
    pairs, firsts = group(row, work["correlation_id"][which])
    del pairs
    ops = np.bincount(row[firsts], minlength=len(ranges))
    parent, level = tree(source, ranges)
    ranges_of_ops = np.flatnonzero(ops)
    above = parent[ranges_of_ops]
    children = np.bincount(above[above >= 0], minlength=len(ranges))
    shown = ranges_of_ops[np.argsort(row_ids(ranges)[ranges_of_ops], kind="stable")]
    return Projection(
        ranges,
        shown,
        range_names(ranges),
        range_styles(ranges),
        first[shown],
        last[shown],
        ops[shown],
        level[shown],
        children[shown],
        parent,
        (range_ends(source, ranges) - ranges["start_ns"])[shown],
        _outside(work, calls, op[outside], call[outside]),
    )


def _outside(
    work: Rows, calls: Rows, op: IntArray, call: IntArray
) -> tuple[int, int, int, int, int] | None:
    """Start, end, number of operations, process and thread of the work in no range."""
    if not len(op):
        return None
    one = call[int(np.argmax(work["end_ns"][op]))]  # the thread of the latest to end
    return (
        int(work["start_ns"][op].min()),
        int(work["end_ns"][op].max()),
        len(distinct_values(work["correlation_id"][op])),
        int(calls["process_id"][one]),
        int(calls["thread_id"][one]),
    )


def _run(source: Source, arguments: Arguments) -> Answer:
    import pyarrow as pa

    del arguments
    found = project(source)
    ranges, row = found.ranges, found.row
    ids = row_ids(ranges)
    level = tree(source, ranges)[1]
    stack = np.array(stacks(ids, found.parent, level), dtype=object)[row].tolist()
    columns = [
        dictionary(found.names.codes[row], found.names.texts),
        pa.array(found.start_ns),
        pa.array(found.end_ns - found.start_ns),
        pa.array(ranges["start_ns"][row]),
        pa.array(found.range_ns),
        dictionary(found.style[row], STYLES),
        pa.array(ranges["process_id"][row]),
        pa.array(ranges["thread_id"][row]),
        pa.array(found.ops),
        pa.array(found.level),
        pa.array(found.children),
        pa.array(ids[row]),
        nullable(np.append(ids, -1)[found.parent][row]),
        pa.array(stack, type=pa.string()),
    ]
    if found.outside is None:
        return columns
    start, end, ops, process, thread = found.outside
    blank = [None, None, None]
    head = [None, start, end - start, *blank, process, thread, ops, None, 0, *blank]
    return [
        pa.concat_arrays([pa.array([value], type=_plain(column).type), _plain(column)])
        for value, column in zip(head, columns, strict=True)
    ]


def _plain(column: Any) -> Any:
    import pyarrow as pa

    if isinstance(column, pa.DictionaryArray):
        return column.dictionary_decode()
    return column


PROJECTED = (
    "The projection of a range runs from the start of the earliest to the end of the latest "
    "operation that a call inside the range (same thread) launched; idle time in between counts."
)
REPORTS = [
    Report(
        "nvtx_gpu_proj_trace",
        "NVTX GPU Projection Trace",
        f"Every range that launched GPU work, in order of the source's row ids. {PROJECTED} A row "
        "without name holds the work launched outside all ranges.",
        (
            Column("Name", doc="domain:text, or the text alone in the default domain"),
            Column("Projected Start", "ts", "begin on the GPU"),
            Column("Projected Duration", "dur", "length on the GPU"),
            Column("Orig Start", "ts", "begin on the host"),
            Column("Orig Duration", "dur", "length on the host"),
            Column("Style", doc="PushPop or StartEnd"),
            Column("PID", doc="process"),
            Column("TID", doc="thread"),
            Column("NumGPUOps", doc="operations; those of one call count once"),
            Column("Lvl", doc="0 at the top"),
            Column("NumChild", doc="direct children that launched GPU work"),
            Column("RangeId", doc="the source's row id"),
            Column("ParentId", doc="row id of the parent"),
            Column("RangeStack", doc="row ids from the top to the range"),
        ),
        _run,
        aliases=("nvtxgpuproj",),
        needs=(RANGES, CUDA_CALLS, GPU_WORK),
    )
]
