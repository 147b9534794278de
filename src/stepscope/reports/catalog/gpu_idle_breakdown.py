"""Idle time of each stream between its operations: the host, the next kernel's start, other."""

from __future__ import annotations

import numpy as np

from stepscope.reports.arrays import dictionary
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

_CATEGORIES = ["host wait", "kernel wait", "other"]
_HOST, _KERNEL, _OTHER = range(3)
_DELAY = Argument(
    "delay",
    "gaps shorter than this many ns, which the host did not cause, are the wait between kernels "
    "that follow each other; Holistic Trace Analysis says 30 ns and compares with microseconds",
    30_000,
    low=0,
)


def _run(source: Source, arguments: Arguments) -> Answer:
    work = Work(source, arguments)
    start, end = work.ops["start_ns"], work.ops["end_ns"]
    stream, firsts = work.streams
    launched_ns = np.full(len(work.ops), -1, np.int64)
    pairs = work.launched
    launched_ns[pairs.op] = work.calls["start_ns"][pairs.call]
    order = np.lexsort((start, stream))
    before, after = order[:-1], order[1:]
    same = stream[before] == stream[after]
    before, after = before[same], after[same]
    gap = start[after] - end[before]
    category = np.where(
        launched_ns[after] > end[before],
        _HOST,
        np.where(gap < int(arguments["delay"]), _KERNEL, _OTHER),
    )
    number = len(firsts) * len(_CATEGORIES)
    groups = stream[after] * len(_CATEGORIES) + category
    total = np.zeros(number, np.int64)
    np.add.at(total, groups, gap)
    of_stream = np.repeat(np.add.reduceat(total, np.arange(0, number, 3)), 3) if number else total
    # a stream without a gap of some category has no row for it
    found = describe(gap, groups, number)
    rows = np.flatnonzero(found.count)
    return [
        *work.place(firsts[rows // len(_CATEGORIES)], stream=True),
        dictionary(rows % len(_CATEGORIES), _CATEGORIES),
        total[rows],
        share(total[rows], of_stream[rows]),
        *found.columns(rows),
    ]


REPORTS = [
    Report(
        "gpu_idle_breakdown",
        "GPU Idle Time by Stream",
        "Gaps between operations that follow each other on one stream. Host wait: the call that "
        "launched the next operation began after the one before had ended. Kernel wait: it did "
        "not, and the gap is shorter than 'delay'. Other: it did not, and the gap is longer, as "
        "when a stream waits for an event of another. Where operations of one stream overlap, the "
        "gap is negative and counts so. Idle time of the whole device by cause is what "
        "'stepscope diagnose' tells.",
        (
            *STREAM,
            Column("Category", doc="host wait, kernel wait or other"),
            Column("Idle", "dur", "sum of the gaps"),
            Column("Share", "ratio", "of the stream's gaps"),
            *described_columns("dur"),
        ),
        _run,
        arguments=(_DELAY, WITHOUT_LAST_STEP),
        aliases=("get_idle_time_breakdown",),
        needs=(GPU_WORK, CUDA_CALLS),
    )
]
