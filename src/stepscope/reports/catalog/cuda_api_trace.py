"""Every CUDA API call."""

from __future__ import annotations

from stepscope.reports.needs import CUDA_CALLS
from stepscope.reports.report import Column, Report

# only Nsight Systems ranks the names of threads, and may have several for one
_SQL = """
WITH named AS (
    SELECT *, row_number() OVER () AS place FROM (
        SELECT process_id, thread_id, name, priority FROM all_thread_name
        UNION ALL
        SELECT process_id, thread_id, name, NULL FROM all_thread
        WHERE NOT EXISTS (SELECT 1 FROM all_thread_name)
    )
)
SELECT start_ns, duration_ns, function, return_value, correlation_id, process_id, thread_id,
    named.priority, named.name
FROM cuda_call LEFT JOIN named USING (process_id, thread_id) ORDER BY id, place
"""

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
        _SQL,
        aliases=("cudaapitrace",),
        needs=(CUDA_CALLS,),
    )
]
