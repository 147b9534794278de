"""Launch, queue and execution of every kernel."""

from __future__ import annotations

from stepscope.reports.catalog.cuda_gpu_kern_gb_sum import BLOCK, GRID
from stepscope.reports.needs import CUDA_CALLS, KERNELS
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import KERNEL_NAMES

_SQL = f"""
SELECT call_start_ns, call_ns, CASE WHEN queue_ns >= 0 THEN call_end_ns END,
    CASE WHEN queue_ns >= 0 THEN queue_ns END, start_ns, duration_ns, total_ns,
    process_id, call_thread, device, function, {GRID}, {BLOCK}, {{kernel}}
FROM {{executions}} ORDER BY call, id
"""

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
        _SQL,
        arguments=KERNEL_NAMES,
        aliases=("kernexectrace",),
        needs=(KERNELS, CUDA_CALLS),
    )
]
