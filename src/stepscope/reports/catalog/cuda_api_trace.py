"""Every CUDA API call."""

from __future__ import annotations

import numpy as np

from stepscope.tabular.attribution import call_names
from stepscope.tabular.maths import dictionary, group, nullable
from stepscope.tabular.needs import CUDA_CALLS
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Rows, Source
from stepscope.trace.frame import IntArray


def named_threads(names: Rows, rows: Rows) -> tuple[IntArray, IntArray]:
    """Pairs (row, row of ``names``); a row whose thread has no name pairs with -1.

    A thread with several names gives several pairs, as in Nsight Systems.
    """
    process = np.concatenate([rows["process_id"], names["process_id"]])
    thread = np.concatenate([rows["thread_id"], names["thread_id"]])
    number, _ = group(process, thread)
    mine, theirs = number[: len(rows)], number[len(rows) :]
    order = np.argsort(theirs, kind="stable")
    low = np.searchsorted(theirs[order], mine, side="left")
    count = np.searchsorted(theirs[order], mine, side="right") - low
    row = np.repeat(np.arange(len(rows)), np.maximum(count, 1))
    first = np.repeat(low - (np.cumsum(np.maximum(count, 1)) - np.maximum(count, 1)),
                      np.maximum(count, 1))  # fmt: skip
    at = first + np.arange(len(row))
    known = count[row] > 0
    found = np.append(order, -1)
    return row, np.where(known, found[np.where(known, at, -1)], -1)


def _run(source: Source, _: Arguments) -> Answer:
    calls = source.cuda_calls()
    # only Nsight Systems ranks the names of threads, and may have several for one
    ranked = source.trace.rows("thread_name") > 0
    threads = Rows(source.trace, "thread_name" if ranked else "thread")
    row, name = named_threads(threads, calls)
    priority = np.append(threads["priority"], -1)[name] if ranked else np.full(len(row), -1)
    thread_name = np.append(threads["name"], -1)[name]
    names = call_names(calls)
    return [
        calls["start_ns"][row],
        calls.duration[row],
        dictionary(names.codes[row], names.texts),
        nullable(calls["return_value"][row]),
        nullable(calls["correlation_id"][row]),
        calls["process_id"][row],
        calls["thread_id"][row],
        nullable(priority),
        dictionary(thread_name, threads.texts("name") if len(threads) else []),
    ]


REPORTS = [
    Report(
        "cuda_api_trace",
        "CUDA API Trace",
        "Every call of the CUDA runtime and driver, in order of start. A thread with several "
        "recorded names gives one row for each of them.",
        (
            Column("Start", "ts", "begin of the call"),
            Column("Duration", "dur", "length of the call"),
            Column("Name", doc="function, without interface version"),
            Column("Result", doc="what it returned"),
            Column("CorrID", doc="links the call to the work it enqueued"),
            Column("Pid", doc="process"),
            Column("Tid", doc="thread"),
            Column("T-Pri", doc="rank of the origin of the thread's name"),
            Column("Thread Name"),
        ),
        _run,
        aliases=("cudaapitrace",),
        needs=(CUDA_CALLS,),
    )
]
