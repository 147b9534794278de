"""Calls in which the host waits for the GPU."""

from __future__ import annotations

import re

import numpy as np

from stepscope.rules.limits import ROWS, limit
from stepscope.tabular.maths import dictionary
from stepscope.tabular.needs import CUDA_CALLS
from stepscope.tabular.report import Answer, Argument, Arguments, Column, Report
from stepscope.tabular.source import Source

_NAME = re.compile(r"cuda(Device|Stream)Synchronize", re.IGNORECASE)


def _run(source: Source, arguments: Arguments) -> Answer:
    calls = source.cuda_calls()
    texts = calls.texts("raw_name")
    wanted = np.array([_NAME.match(text) is not None for text in texts] + [False], dtype=bool)
    keep = wanted[calls["raw_name"]]
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
        dictionary(found["raw_name"][order], texts),
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
