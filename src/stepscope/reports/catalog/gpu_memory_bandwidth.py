"""Bandwidth of copies and memsets by kind, over time."""

from __future__ import annotations

import numpy as np

from stepscope.activity.counters import Series, bandwidth
from stepscope.reports.arrays import dictionary
from stepscope.reports.gpu_work import (
    DEVICE,
    MEMORY,
    WITHOUT_LAST_STEP,
    Work,
    describe,
    described_columns,
    ordered,
)
from stepscope.reports.needs import MEMORY_OPS
from stepscope.reports.report import Answer, Arguments, Column, Report
from stepscope.reports.source import Source
from stepscope.trace.frame import IntArray


def _series(work: Work) -> tuple[Series, IntArray, list[str]]:
    """The bandwidths, an operation of each counter, and the kinds by :func:`_kinds`."""
    rows = np.flatnonzero((work.kind == MEMORY) & (work.ops["bytes"] >= 0))
    ops = work.ops
    counter, firsts = ordered(
        ops["process_id"][rows], ops["device"][rows], _kinds(work)[rows]
    )  # fmt: skip
    series = bandwidth(counter, ops["start_ns"][rows], ops["end_ns"][rows], ops["bytes"][rows])
    copies = [f"Memcpy {kind}" for kind in ops.texts("copy_kind")]
    return series, rows[firsts], [*copies, "Memset", "Memcpy Unknown"]


def _kinds(work: Work) -> IntArray:
    """Kind of each operation: of copies as recorded, else the numbers behind those."""
    kinds = len(work.ops.texts("copy_kind"))
    code = work.ops["copy_kind"].astype(np.int64)
    memset = work.ops.equals("kind", ("memset",))
    return np.where(memset, kinds, np.where(code < 0, kinds + 1, code))


def _trace(source: Source, arguments: Arguments) -> Answer:
    work = Work(source, arguments)
    series, firsts, kinds = _series(work)
    at = firsts[series.counter]
    return [series.time_ns, *work.place(at), dictionary(_kinds(work)[at], kinds), series.value]


def _summary(source: Source, arguments: Arguments) -> Answer:
    work = Work(source, arguments)
    series, firsts, kinds = _series(work)
    moving = series.value > 0
    found = describe(series.value[moving], series.counter[moving], len(firsts))
    rows = np.flatnonzero(found.count)
    at = firsts[rows]
    return [*work.place(at), dictionary(_kinds(work)[at], kinds), *found.columns(rows)]


_MEANING = (
    "The bandwidth of a copy or memset is its size over its length, from its begin to its end; "
    "those that run at the same time add up."
)

REPORTS = [
    Report(
        "gpu_memory_bandwidth_trace",
        "Bandwidth of Copies Over Time",
        "Each change of the bandwidth of one kind of copies or of memsets; the value holds until "
        "the next row of the kind. " + _MEANING,
        (
            Column("Time", "ts", "when the bandwidth changes"),
            *DEVICE,
            Column("Kind", doc="kind of the copies, or memset"),
            Column("Bandwidth", "thru", "from then on"),
        ),
        _trace,
        arguments=(WITHOUT_LAST_STEP,),
        aliases=("get_memory_bw_time_series",),
        needs=(MEMORY_OPS,),
    ),
    Report(
        "gpu_memory_bandwidth_sum",
        "Bandwidth of Copies by Kind",
        "Statistics of the bandwidth over its changes, without those to nothing: each counts once, "
        "however long it holds. " + _MEANING,
        (*DEVICE, Column("Kind", doc="kind of the copies, or memset"), *described_columns("thru")),
        _summary,
        arguments=(WITHOUT_LAST_STEP,),
        aliases=("get_memory_bw_summary",),
        needs=(MEMORY_OPS,),
    ),
]
