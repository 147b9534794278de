"""Streams that wait for each other though the program did not ask for it."""

from __future__ import annotations

from stepscope.gaps.idle import KERNEL_GAP_NS
from stepscope.reports.needs import CUDA_CALLS, GPU_WORK, Need
from stepscope.reports.report import ROWS, Argument, Column, Report

_MICROSECOND_NS = 1000
# rows of who waited for whom, and how long
_SQL = f"""
SELECT sum(wait_ns)::BIGINT AS total, count(*), total::DOUBLE / count(*), max(wait_ns),
    waited.process_id, waited.device, waited.stream, held_by.stream, waited.name, held_by.name
FROM {{waits}} AS held
JOIN gpu_op AS waited ON waited.id = held.id JOIN gpu_op AS held_by ON held_by.id = held.other
WHERE wait_ns >= {{us}} * {_MICROSECOND_NS}
GROUP BY 5, 6, 7, 8, 9, 10
ORDER BY total DESC, arg_min(wait_ns, held.id), 5, 6, 7, 8, 9, 10 LIMIT {{rows}}
"""
_DEFAULT_STREAM = _SQL.replace("{waits}", "default_stream_wait")
_PRIORITY = _SQL.replace("{waits}", "priority_wait")

_NSYS = "nsys profile -t cuda, with Nsight Systems 2023.4 or newer"
_COLUMNS = (
    Column("Total Wait", "dur", "sum of the waits"),
    Column("Instances", doc="number of operations that waited"),
    Column("Avg Wait", "dur", "mean wait"),
    Column("Max Wait", "dur", "longest wait"),
    Column("PID", doc="process"),
    Column("Device ID", doc="device ordinal inside the process"),
    Column("Stream ID", doc="stream that waited"),
    Column("Waited For", doc="stream it waited for"),
    Column("Operation", doc="what waited"),
    Column("Held By", doc="what it waited for"),
)
_US = Argument(
    "us",
    "leave out waits of less than so many us (the GPU itself takes up to "
    f"{KERNEL_GAP_NS // _MICROSECOND_NS} us from one operation to the next)",
    KERNEL_GAP_NS // _MICROSECOND_NS,
    low=1,
)
_READY = (
    "A wait is the time from when an operation was enqueued, and the one before it in its stream "
    "had ended, until the other operation ended, if it then began at once. Operations before "
    "which the program made a stream wait for an event, and those inside CUDA graphs, are left out."
)
RULES = [
    Report(
        "default_stream_serialization",
        "Streams Serialised by the Default Stream",
        "Operations of blocking streams that waited for the legacy default stream, and the other "
        f"way round, by streams and operations. Longest total first. {_READY}",
        _COLUMNS,
        _DEFAULT_STREAM,
        arguments=(ROWS, _US),
        needs=(
            GPU_WORK,
            CUDA_CALLS,
            Need("flags of its streams", "stream", _NSYS, "stream WHERE flag IS NOT NULL"),
        ),
        none_found="No stream waited for the default stream, or it for another.",
        advice="Work in the legacy default stream (stream 0 of the CUDA API) begins only when all "
        "blocking streams of its context are done, and they wait until it is done, so nothing runs "
        "beside it. Create the other streams with cudaStreamNonBlocking (those of PyTorch are), "
        "or keep work out of the default stream (compile with --default-stream per-thread), and "
        "order what depends on each other with events.",
    ),
    Report(
        "stream_priority_inversion",
        "High-Priority Kernels Behind Low-Priority Ones",
        "Kernels that waited for a kernel of a stream of lower priority that was running already, "
        f"by streams and kernels. Longest total first. {_READY}",
        _COLUMNS,
        _PRIORITY,
        arguments=(ROWS, _US),
        needs=(
            GPU_WORK,
            CUDA_CALLS,
            Need("priorities of its streams", "stream", _NSYS, "stream WHERE priority IS NOT NULL"),
        ),
        none_found="No kernel waited for one of lower priority.",
        advice="A priority decides which waiting thread blocks run next; blocks that run are not "
        "interrupted. A kernel whose long blocks fill the GPU therefore delays every other one. "
        "Split the long kernel (smaller blocks of work, fewer tiles a block), limit the "
        "SMs it uses, or enqueue the urgent work before it.",
    ),
]
