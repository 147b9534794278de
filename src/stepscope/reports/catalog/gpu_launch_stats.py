"""Launches against the work they launched: short kernels, slow calls, long delays."""

from __future__ import annotations

from dataclasses import replace

from stepscope.reports.gpu_work import (
    WITHOUT_LAST_STEP,
    described,
    described_columns,
    share,
    share_column,
)
from stepscope.reports.needs import CUDA_CALLS, GPU_WORK
from stepscope.reports.report import Argument, Column, Report

_KERNELS_ONLY = Argument("kernels", "only kernels, no copies and memsets")
_CALL = Argument("call", "calls that take longer than this many ns are outliers", 50_000, low=0)
_DELAY = Argument("delay", "delays longer than this many ns are outliers", 100_000, low=0)
# the time of a call that launched a whole graph says nothing of one operation
_LAUNCHED = """
WITH alone AS (
    SELECT call, any_value(op) AS op FROM launch JOIN {early}gpu_work AS work ON work.id = op
    GROUP BY call HAVING count(*) = 1
), launched AS (
    SELECT call.start_ns, call.duration_ns AS call_ns, work.duration_ns AS gpu_ns,
        greatest(work.start_ns - call.end_ns, 0) AS delay_ns, call.correlation_id,
        work.process_id, device, stream, function, work.name, op
    FROM alone JOIN gpu_work AS work ON work.id = op JOIN cuda_call AS call ON call.id = alone.call
    WHERE kind = 'kernel' OR NOT {kernels}
)
"""
_SUMMARY = f"""
{_LAUNCHED}, counted AS (
    SELECT function, count(*) FILTER (gpu_ns < call_ns AND call_ns <= {{call}}) AS short,
        count(*) FILTER (call_ns > {{call}}) AS slow,
        count(*) FILTER (delay_ns > {{delay}}) AS late, count(*) AS launches,
        {described("call_ns")}, {described("delay_ns").partition(", ")[2]}
    FROM launched GROUP BY function
)
SELECT function, short, {share("short", "launches")}, slow, {share("slow", "launches")},
    late, {share("late", "launches")}, counted.* EXCLUDE (function, short, slow, late, launches)
FROM counted ORDER BY launches DESC, function
"""
_TRACE = f"{_LAUNCHED} SELECT * EXCLUDE (op) FROM launched ORDER BY start_ns, op"


def _prefixed(prefix: str, columns: tuple[Column, ...]) -> tuple[Column, ...]:
    return tuple(replace(column, label=f"{prefix} {column.label}") for column in columns)


_NOT_GRAPHS = (
    "Operations of a CUDA graph are left out, as one call launches all of them; so is work without "
    "a recorded call."
)

REPORTS = [
    Report(
        "gpu_launch_stats",
        "Launches by Call",
        "Kernels, copies and memsets by the function that launched them, most frequent first. "
        "Short: the operation takes less than its call, which is no outlier. Outliers: calls "
        "longer than 'call', and delays from the return of the call to the begin of the operation "
        "(0 where it began before) longer than 'delay'. " + _NOT_GRAPHS,
        (
            Column("API Function", doc="launching function"),
            Column("Short", doc="operations that take less than their call"),
            share_column("Short Share", "of the launches"),
            Column("Call Outliers", doc="calls that take long"),
            share_column("Call Outlier Share", "of the launches"),
            Column("Delay Outliers", doc="operations that begin long after their call"),
            share_column("Delay Outlier Share", "of the launches"),
            Column("Launches", doc="number of launches"),
            *_prefixed("Call", described_columns("dur")[1:]),
            *_prefixed("Delay", described_columns("dur")[1:]),
        ),
        _SUMMARY,
        arguments=(_CALL, _DELAY, _KERNELS_ONLY, WITHOUT_LAST_STEP),
        needs=(GPU_WORK, CUDA_CALLS),
    ),
    Report(
        "gpu_launch_trace",
        "Launches",
        "Every kernel, copy and memset with the call that launched it, in order of the calls. "
        + _NOT_GRAPHS,
        (
            Column("API Start", "ts", "begin of the call"),
            Column("API Dur", "dur", "length of the call"),
            Column("GPU Dur", "dur", "length of the operation"),
            Column(
                "Launch Delay",
                "dur",
                "from the return of the call to the begin of the operation; 0 where it began "
                "before",
            ),
            Column("CorrId", doc="correlation of both"),
            Column("PID", doc="process"),
            Column("DevId", doc="device ordinal inside the process"),
            Column("Strm", doc="stream"),
            Column("API Function", doc="launching function"),
            Column("Name", doc="kernel, copy or memset"),
        ),
        _TRACE,
        arguments=(_KERNELS_ONLY, WITHOUT_LAST_STEP),
        aliases=("get_cuda_kernel_launch_stats",),
        needs=(GPU_WORK, CUDA_CALLS),
    ),
]
