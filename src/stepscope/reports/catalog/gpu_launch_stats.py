"""Launches against the work they launched: short kernels, slow calls, long delays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.reports.arrays import dictionary, group
from stepscope.reports.gpu_work import (
    WITHOUT_LAST_STEP,
    Work,
    describe,
    described_columns,
    share,
)
from stepscope.reports.launches import Names, call_names
from stepscope.reports.needs import CUDA_CALLS, GPU_WORK
from stepscope.reports.report import Answer, Argument, Arguments, Column, Report
from stepscope.reports.source import Source
from stepscope.trace.frame import BoolArray, IntArray

_KERNELS_ONLY = Argument("kernels", "only kernels, no copies and memsets")
_CALL = Argument("call", "calls that take longer than this many ns are outliers", 50_000, low=0)
_DELAY = Argument("delay", "delays longer than this many ns are outliers", 100_000, low=0)


@dataclass(frozen=True)
class _Launches:
    """One entry an operation that a call of its own launched.

    Attributes:
        work: all operations.
        op: rows of the operations.
        call: rows of the calls.
        call_ns: how long each call took.
        gpu_ns: how long each operation took.
        delay_ns: from the return of the call to the begin of the operation; 0 where it began
            before.
        names: of the calls.
    """

    work: Work
    op: IntArray
    call: IntArray
    call_ns: IntArray
    gpu_ns: IntArray
    delay_ns: IntArray
    names: Names

    @property
    def short(self) -> BoolArray:
        """Operations that take less than the call that launched them."""
        return np.asarray(self.gpu_ns < self.call_ns, bool)


def _launches(source: Source, arguments: Arguments) -> _Launches:
    work = Work(source, arguments)
    op, call = work.launched.op, work.launched.call
    # the time of a call that launched a whole graph says nothing of one operation
    several = np.bincount(call, minlength=len(work.calls))[call] > 1
    keep = ~several
    if arguments.get(_KERNELS_ONLY.name):
        keep &= work.ops.equals("kind", ("kernel",))[op]
    op, call = op[keep], call[keep]
    names = call_names(work.calls)
    return _Launches(
        work,
        op,
        call,
        work.calls.duration[call],
        work.ops.duration[op],
        np.maximum(work.ops["start_ns"][op] - work.calls["end_ns"][call], 0),
        Names(names.codes[call], names.texts),
    )


def _summary(source: Source, arguments: Arguments) -> Answer:
    found = _launches(source, arguments)
    cutoff, longest = int(arguments["call"]), int(arguments["delay"])
    slow, late = found.call_ns > cutoff, found.delay_ns > longest
    groups, firsts = group(found.names.codes)
    number = len(firsts)
    count = np.bincount(groups, minlength=number)
    order = np.argsort(-count, kind="stable")

    def counted(mask: BoolArray) -> IntArray:
        return np.bincount(groups[mask], minlength=number)[order]

    parts = [counted(found.short & ~slow), counted(slow), counted(late)]
    return [
        dictionary(found.names.codes[firsts][order], found.names.texts),
        *(column for part in parts for column in (part, share(part, count[order]))),
        *describe(found.call_ns, groups, number).columns(order),
        *(column for column in describe(found.delay_ns, groups, number).columns(order)[1:]),
    ]


def _trace(source: Source, arguments: Arguments) -> Answer:
    found = _launches(source, arguments)
    calls, ops = found.work.calls, found.work.ops
    order = np.lexsort((found.op, calls["start_ns"][found.call]))
    op, call = found.op[order], found.call[order]
    return [
        calls["start_ns"][call],
        found.call_ns[order],
        found.gpu_ns[order],
        found.delay_ns[order],
        calls["correlation_id"][call],
        *found.work.place(op, stream=True),
        dictionary(found.names.codes[order], found.names.texts),
        dictionary(ops["name"][op], ops.texts("name")),
    ]


def _prefixed(prefix: str, columns: tuple[Column, ...]) -> tuple[Column, ...]:
    return tuple(Column(f"{prefix} {c.label}", c.unit, c.doc) for c in columns)


_NOT_GRAPHS = (
    "Operations of a CUDA graph are left out, as one call launches all of them; so is work without "
    "a recorded call."
)

REPORTS = [
    Report(
        "gpu_launch_stats",
        "Launches by Call",
        "Kernels, copies and memsets by the function that launched them, most frequent first. "
        "Short: the operation takes less than its call, which is no outlier. Outliers: calls "
        "longer than 'call', and delays from the return of the call to the begin of the operation "
        "(0 where it began before) longer than 'delay'. " + _NOT_GRAPHS,
        (
            Column("API Function", doc="launching function"),
            Column("Short", doc="operations that take less than their call"),
            Column("Short Share", "ratio", "of the launches"),
            Column("Call Outliers", doc="calls that take long"),
            Column("Call Outlier Share", "ratio", "of the launches"),
            Column("Delay Outliers", doc="operations that begin long after their call"),
            Column("Delay Outlier Share", "ratio", "of the launches"),
            Column("Launches", doc="number of launches"),
            *_prefixed("Call", described_columns("dur")[1:]),
            *_prefixed("Delay", described_columns("dur")[1:]),
        ),
        _summary,
        arguments=(_CALL, _DELAY, _KERNELS_ONLY, WITHOUT_LAST_STEP),
        needs=(GPU_WORK, CUDA_CALLS),
    ),
    Report(
        "gpu_launch_trace",
        "Launches",
        "Every kernel, copy and memset with the call that launched it, in order of the calls. "
        + _NOT_GRAPHS,
        (
            Column("API Start", "ts", "begin of the call"),
            Column("API Dur", "dur", "length of the call"),
            Column("GPU Dur", "dur", "length of the operation"),
            Column(
                "Launch Delay",
                "dur",
                "from the return of the call to the begin of the operation; 0 where it began "
                "before",
            ),
            Column("CorrId", doc="correlation of both"),
            Column("PID", doc="process"),
            Column("DevId", doc="device ordinal inside the process"),
            Column("Strm", doc="stream"),
            Column("API Function", doc="launching function"),
            Column("Name", doc="kernel, copy or memset"),
        ),
        _trace,
        arguments=(_KERNELS_ONLY, WITHOUT_LAST_STEP),
        aliases=("get_cuda_kernel_launch_stats",),
        needs=(GPU_WORK, CUDA_CALLS),
    ),
]
