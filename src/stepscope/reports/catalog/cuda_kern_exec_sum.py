"""Launch, queue and execution by kernel."""

from __future__ import annotations

from stepscope.reports.needs import CUDA_CALLS, KERNELS
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import KERNEL_NAMES, spread, spread_columns

_SQL = f"""
SELECT process_id, call_thread, device, count(*), count(*) FILTER (queue_ns >= 0),
    {spread("total_ns")}, {spread("call_ns")},
    {spread("CASE WHEN queue_ns >= 0 THEN queue_ns END")}, {spread("duration_ns")},
    function, {{kernel}} AS kernel
FROM {{executions}} GROUP BY ALL
-- the mean, rounded to one decimal
ORDER BY (sum(total_ns) * 20 + count(*)) // (count(*) * 2) DESC,
    process_id, call_thread, device, function, kernel
"""

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
        _SQL,
        arguments=KERNEL_NAMES,
        aliases=("kernexecsum",),
        needs=(KERNELS, CUDA_CALLS),
    )
]
