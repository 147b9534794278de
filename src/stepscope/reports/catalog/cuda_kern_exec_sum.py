"""Launch, queue and execution by kernel."""

from __future__ import annotations

import numpy as np

from stepscope.reports.catalog.cuda_kern_exec_trace import executions
from stepscope.reports.summary import spread, spread_columns
from stepscope.tabular.attribution import KERNEL_NAMES
from stepscope.tabular.maths import dictionary, group, statistics, text_ranks
from stepscope.tabular.needs import CUDA_CALLS, KERNELS
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Source


def _run(source: Source, arguments: Arguments) -> Answer:
    found = executions(source, arguments)
    kernels, calls = source.kernels(), source.cuda_calls()
    process = calls["process_id"][found.call]
    thread = calls["thread_id"][found.call]
    device = kernels["device"][found.kernel].astype(np.int64)
    api, name = found.api_names, found.names
    groups, firsts = group(process, thread, device, api.codes, name.codes)
    queued = found.queued
    total, call, queue, kernel = (
        statistics(values, rows, len(firsts))
        for values, rows in (
            (found.total_ns, groups),
            (calls.duration[found.call], groups),
            (found.queue_ns[queued], groups[queued]),
            (kernels.duration[found.kernel], groups),
        )
    )
    order = np.lexsort(
        (
            text_ranks(name.texts)[name.codes[firsts]],
            text_ranks(api.texts)[api.codes[firsts]],
            device[firsts],
            thread[firsts],
            process[firsts],
            -spread(total, np.arange(len(firsts)))[0].to_numpy(zero_copy_only=False),
        )
    )
    return [
        process[firsts][order],
        thread[firsts][order],
        device[firsts][order],
        total.count[order],
        queue.count[order],
        *(column for part in (total, call, queue, kernel) for column in spread(part, order)),
        dictionary(api.codes[firsts][order], api.texts),
        dictionary(name.codes[firsts][order], name.texts),
    ]


REPORTS = [
    Report(
        "cuda_kern_exec_sum",
        "CUDA Kernel Launch & Exec Time Summary",
        "Kernels by process, thread, device, launching function and name. T: from the begin of the "
        "call to the later of both ends; A: the call; Q: from its return to the kernel's start, "
        "over the kernels that waited; K: the kernel. Longest mean total first.",
        (
            Column("PID", doc="process of the calls"),
            Column("TID", doc="thread of the calls"),
            Column("DevId", doc="device ordinal inside the process"),
            Column("Count", doc="number of kernels"),
            Column("QCount", doc="number of kernels that waited in the queue"),
            *(column for prefix in "TAQK" for column in spread_columns(prefix)),
            Column("API Name", doc="launching function"),
            Column("Kernel Name"),
        ),
        _run,
        arguments=KERNEL_NAMES,
        aliases=("kernexecsum",),
        needs=(KERNELS, CUDA_CALLS),
    )
]
