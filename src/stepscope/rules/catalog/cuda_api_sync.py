"""Calls in which the host waits for the GPU."""

from __future__ import annotations

import re

import numpy as np

from stepscope.tabular.maths import dictionary
from stepscope.tabular.needs import CUDA_CALLS
from stepscope.tabular.report import ROWS, Answer, Argument, Arguments, Column, Report, limit
from stepscope.tabular.source import Source

_NAME = re.compile(r"cuda(Device|Stream)Synchronize", re.IGNORECASE)


def _run(source: Source, arguments: Arguments) -> Answer:
    calls = source.cuda_calls()
    keep = calls.that("raw_name", _NAME.match)
    for argument, column in (("process", "process_id"), ("thread", "thread_id")):
        if int(arguments[argument]) >= 0:
            keep &= calls[column] == int(arguments[argument])
    found = calls.where(keep)
    order = np.argsort(-found.duration, kind="stable")[limit(arguments)]
    return [
        found.duration[order],
        found["start_ns"][order],
        found["process_id"][order],
        found["thread_id"][order],
        dictionary(found["raw_name"][order], found.texts("raw_name")),
    ]


RULES = [
    Report(
        "cuda_api_sync",
        "CUDA Synchronization APIs",
        "Calls of cudaDeviceSynchronize and cudaStreamSynchronize, longest first.",
        (
            Column("Duration", "dur", "length of the call"),
            Column("Start", "ts", "begin of the call"),
            Column("PID", doc="process"),
            Column("TID", doc="thread"),
            Column("API Name", doc="function as recorded"),
        ),
        _run,
        arguments=(
            ROWS,
            Argument("process", "only this process (-1: all)", -1, low=-1),
            Argument("thread", "only this thread (-1: all)", -1, low=-1),
        ),
        needs=(CUDA_CALLS,),
        none_found="No call made the host wait for a device or stream.",
        advice="In these calls the host stands still until the work queued on the GPU is done, "
        "and the GPU then waits for new work. Synchronise less often; let streams wait for each "
        "other through events (cudaStreamWaitEvent) instead of through the host.",
    )
]
