"""Calls in which the host waits for the GPU."""

from __future__ import annotations

from stepscope.reports.needs import CUDA_CALLS
from stepscope.reports.report import ROWS, Argument, Column, Report

_SQL = """
SELECT duration_ns, start_ns, process_id, thread_id, raw_name FROM cuda_call
WHERE (raw_name ILIKE 'cudaDeviceSynchronize%' OR raw_name ILIKE 'cudaStreamSynchronize%')
    AND ({process} < 0 OR process_id = {process}) AND ({thread} < 0 OR thread_id = {thread})
ORDER BY duration_ns DESC, id LIMIT {rows}
"""

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
        _SQL,
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
