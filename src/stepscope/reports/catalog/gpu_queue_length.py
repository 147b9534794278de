"""How many operations wait in the queue of each stream, over time."""

from __future__ import annotations

import numpy as np

from stepscope.activity.counters import Series, queue_length, until_next_ns
from stepscope.reports.gpu_work import (
    STREAM,
    WITHOUT_LAST_STEP,
    Work,
    describe,
    described_columns,
    share,
)
from stepscope.reports.needs import CUDA_CALLS, GPU_WORK
from stepscope.reports.report import Answer, Argument, Arguments, Column, Report
from stepscope.reports.source import Source
from stepscope.trace.frame import IntArray

_FULL = Argument("full", "the queue is full from this many operations on", 1024, low=1)


def _series(work: Work) -> tuple[Series, IntArray]:
    """The queues, and an operation of each stream."""
    pairs = work.launched
    stream, firsts = work.streams
    series = queue_length(
        stream[pairs.op], work.calls["start_ns"][pairs.call], work.ops["start_ns"][pairs.op]
    )
    return series, firsts


def _trace(source: Source, arguments: Arguments) -> Answer:
    work = Work(source, arguments)
    series, firsts = _series(work)
    return [
        series.time_ns,
        *work.place(firsts[series.counter], stream=True),
        series.value,
    ]


def _summary(source: Source, arguments: Arguments) -> Answer:
    work = Work(source, arguments)
    series, firsts = _series(work)
    number = len(firsts)
    length = until_next_ns(series)
    full = (series.value >= int(arguments["full"])) & ~np.isnan(length)
    blocked = np.zeros(number, np.int64)
    np.add.at(blocked, series.counter[full], length[full].astype(np.int64))
    covered = np.zeros(number, np.int64)
    known = ~np.isnan(length)
    np.add.at(covered, series.counter[known], length[known].astype(np.int64))
    found = describe(series.value, series.counter, number)
    rows = np.flatnonzero(found.count)
    return [
        *work.place(firsts[rows], stream=True),
        *found.columns(rows),
        blocked[rows],
        share(blocked[rows], covered[rows]),
    ]


_MEANING = (
    "The queue of a stream holds the operations whose launching call has begun and that have not "
    "begun on the GPU themselves; work without a recorded call is left out."
)

REPORTS = [
    Report(
        "gpu_queue_length_trace",
        "Queue Length Over Time",
        "Each change of the number of operations in a stream's queue; the value holds until the "
        "stream's next row. " + _MEANING,
        (
            Column("Time", "ts", "when the length changes"),
            *STREAM,
            Column("Length", doc="operations in the queue from then on"),
        ),
        _trace,
        arguments=(WITHOUT_LAST_STEP,),
        aliases=("get_queue_length_time_series",),
        needs=(GPU_WORK, CUDA_CALLS),
    ),
    Report(
        "gpu_queue_length_sum",
        "Queue Length by Stream",
        "Statistics of the queue's length over its changes (each counts once, however long it "
        "holds), and the time in which the queue was full, so that a launching call had to wait. "
        + _MEANING,
        (
            *STREAM,
            *described_columns(),
            Column("Full", "dur", "time in which the queue held at least 'full' operations"),
            Column("Full Share", "ratio", "of the time from the queue's first change to its last"),
        ),
        _summary,
        arguments=(_FULL, WITHOUT_LAST_STEP),
        aliases=("get_queue_length_summary", "get_time_spent_blocked_on_full_queue"),
        needs=(GPU_WORK, CUDA_CALLS),
    ),
]
