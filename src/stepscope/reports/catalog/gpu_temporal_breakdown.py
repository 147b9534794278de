"""Computation, other work and idle time of each device."""

from __future__ import annotations

import numpy as np

from stepscope.intervals.algebra import intersect, total, union
from stepscope.reports.gpu_work import (
    COMMUNICATION,
    COMPUTATION,
    DEVICE,
    WITHOUT_LAST_STEP,
    Work,
    share,
)
from stepscope.reports.needs import GPU_WORK, KERNELS
from stepscope.reports.report import Answer, Arguments, Column, Report
from stepscope.reports.source import Source


def _breakdown(source: Source, arguments: Arguments) -> Answer:
    work = Work(source, arguments)
    device, firsts = work.devices
    start, end = work.ops["start_ns"], work.ops["end_ns"]
    found = np.zeros((4, len(firsts)), np.int64)
    for number in range(len(firsts)):
        mine = device == number
        compute = mine & (work.kind == COMPUTATION)
        span = int(end[mine].max()) - int(start[mine].min())
        busy = total(union(start[mine], end[mine]))
        computing = total(union(start[compute], end[compute]))
        found[:, number] = span - busy, computing, busy - computing, span
    return [*work.place(firsts), *found, *(share(part, found[3]) for part in found[:3])]


def _overlap(source: Source, arguments: Arguments) -> Answer:
    work = Work(source, arguments)
    device, firsts = work.devices
    start, end = work.ops["start_ns"], work.ops["end_ns"]
    found = np.zeros((3, len(firsts)), np.int64)
    for number in range(len(firsts)):
        compute, communicate = (
            union(start[rows], end[rows])
            for rows in (
                (device == number) & (work.kind == COMPUTATION),
                (device == number) & (work.kind == COMMUNICATION),
            )
        )
        both = total(intersect(compute, communicate))
        found[:, number] = total(communicate), both, total(communicate) - both
    return [*work.place(firsts), *found, share(found[1], found[0])]


REPORTS = [
    Report(
        "gpu_temporal_breakdown",
        "GPU Temporal Breakdown",
        "How each device spent the time from the first begin to the last end of its work: a "
        "computation kernel runs; only communication, copies or memsets run; nothing runs. "
        "Operations that run at the same time count once.",
        (
            *DEVICE,
            Column("Idle", "dur", "nothing runs"),
            Column("Compute", "dur", "a computation kernel runs"),
            Column("Non-Compute", "dur", "other work runs, and no computation kernel"),
            Column("Total", "dur", "from the first begin to the last end"),
            Column("Idle Share", "ratio", "of the total"),
            Column("Compute Share", "ratio", "of the total"),
            Column("Non-Compute Share", "ratio", "of the total"),
        ),
        _breakdown,
        arguments=(WITHOUT_LAST_STEP,),
        aliases=("get_temporal_breakdown",),
        needs=(GPU_WORK,),
    ),
    Report(
        "comm_compute_overlap",
        "Communication and Computation Overlap",
        "For each device, the time in which communication kernels run, and the part of it in which "
        "a computation kernel runs as well. Without share where nothing communicates.",
        (
            *DEVICE,
            Column("Communication", "dur", "a communication kernel runs"),
            Column("Overlapped", "dur", "of it, a computation kernel runs as well"),
            Column("Exposed", "dur", "of it, none does"),
            Column("Overlap", "ratio", "overlapped part of the communication"),
        ),
        _overlap,
        arguments=(WITHOUT_LAST_STEP,),
        aliases=("get_comm_comp_overlap",),
        needs=(KERNELS,),
    ),
]
