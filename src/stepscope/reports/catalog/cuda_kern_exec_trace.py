"""Launch, queue and execution of every kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.tabular.attribution import (
    KERNEL_NAMES,
    Names,
    call_names,
    kernel_names,
    launches,
    triples,
)
from stepscope.tabular.maths import dictionary, nullable
from stepscope.tabular.needs import CUDA_CALLS, KERNELS
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Source
from stepscope.trace.frame import BoolArray, IntArray


@dataclass(frozen=True)
class Executions:
    """One entry a kernel and launching call.

    Attributes:
        kernel: row of the kernel.
        call: row of the call.
        queue_ns: from the end of the call to the start of the kernel; negative where the kernel
            started before the call returned.
        total_ns: from the start of the call to the later of both ends.
        names: of the kernels.
        api_names: of the calls.
    """

    kernel: IntArray
    call: IntArray
    queue_ns: IntArray
    total_ns: IntArray
    names: Names
    api_names: Names

    @property
    def queued(self) -> BoolArray:
        """Which kernels waited in the queue (or began exactly when the call returned)."""
        return np.asarray(self.queue_ns >= 0, dtype=bool)


def executions(source: Source, arguments: Arguments) -> Executions:
    """All kernels with a recorded launch."""
    kernels, calls = source.kernels(), source.cuda_calls()
    kernel, call = launches(kernels, calls)
    names = kernel_names(source, kernels, arguments)
    api_names = call_names(calls)
    returned, began = calls["end_ns"][call], calls["start_ns"][call]
    start, end = kernels["start_ns"][kernel], kernels["end_ns"][kernel]
    return Executions(
        kernel,
        call,
        start - returned,
        np.maximum(returned, end) - began,
        Names(names.codes[kernel], names.texts),
        Names(api_names.codes[call], api_names.texts),
    )


def _run(source: Source, arguments: Arguments) -> Answer:
    found = executions(source, arguments)
    kernels, calls = source.kernels(), source.cuda_calls()
    grid, block = triples(kernels, "grid"), triples(kernels, "block")
    order = np.lexsort((found.kernel, found.call, calls["start_ns"][found.call]))
    kernel, call = found.kernel[order], found.call[order]
    queue = found.queue_ns[order]
    return [
        calls["start_ns"][call],
        calls.duration[call],
        nullable(calls["end_ns"][call], queue < 0),
        nullable(queue, queue < 0),
        kernels["start_ns"][kernel],
        kernels.duration[kernel],
        found.total_ns[order],
        calls["process_id"][call],
        calls["thread_id"][call],
        kernels["device"][kernel],
        dictionary(found.api_names.codes[order], found.api_names.texts),
        dictionary(grid.codes[kernel], grid.texts),
        dictionary(block.codes[kernel], block.texts),
        dictionary(found.names.codes[order], found.names.texts),
    ]


REPORTS = [
    Report(
        "cuda_kern_exec_trace",
        "CUDA Kernel Launch & Exec Time Trace",
        "Every kernel with the call that launched it, in order of the call's start. The queue time "
        "runs from the return of the call to the start of the kernel; it is empty where the kernel "
        "started earlier.",
        (
            Column("API Start", "ts", "begin of the launching call"),
            Column("API Dur", "dur", "length of the call"),
            Column("Queue Start", "ts", "return of the call"),
            Column("Queue Dur", "dur", "from there to the start of the kernel"),
            Column("Kernel Start", "ts", "begin on the GPU"),
            Column("Kernel Dur", "dur", "length on the GPU"),
            Column("Total Dur", "dur", "begin of the call to the later of both ends"),
            Column("PID", doc="process of the call"),
            Column("TID", doc="thread of the call"),
            Column("DevId", doc="device ordinal inside the process"),
            Column("API Function", doc="launching function"),
            Column("GridXYZ", doc="blocks in x, y, z"),
            Column("BlockXYZ", doc="threads a block in x, y, z"),
            Column("Kernel Name"),
        ),
        _run,
        arguments=KERNEL_NAMES,
        aliases=("kernexectrace",),
        needs=(KERNELS, CUDA_CALLS),
    )
]
