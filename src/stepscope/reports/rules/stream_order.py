"""Streams that wait for each other though the program did not ask for it."""

from __future__ import annotations

from stepscope.gaps.idle import KERNEL_GAP_NS
from stepscope.reports.needs import CUDA_CALLS, GPU_WORK, Need
from stepscope.reports.report import ROWS, Argument, Column, Report

_MICROSECOND_NS = 1000
# work outside of CUDA graphs, whose own edges order what is in them, with the earliest call that
# enqueued it: it was ready once it was enqueued and the operation before it in its stream had
# ended; ``ordered`` where the program made a stream wait for an event since that operation's call,
# for then it may have waited on purpose
_WORK = """
WITH streams AS (
    SELECT process_id, coalesce(context, -1) AS place, stream, last(flag) AS flag,
        last(priority) AS priority
    FROM all_stream GROUP BY ALL
), enqueued AS (
    SELECT op.id, op.kind, op.process_id, op.device, op.stream, op.start_ns, op.end_ns,
        coalesce(op.context, -1) AS place, call.start_ns AS call_ns, call.thread_id
    FROM gpu_op AS op JOIN cuda_call AS call USING (process_id, correlation_id)
    WHERE op.kind IN ('kernel', 'memcpy', 'memset') AND op.correlation_id >= 0
        AND op.graph_node_id IS NULL AND (SELECT {possible} FROM streams)
    QUALIFY row_number() OVER (PARTITION BY op.id ORDER BY call.id) = 1
), waits AS (
    SELECT process_id, thread_id, start_ns FROM cuda_call WHERE name LIKE '%StreamWaitEvent%'
), previous AS (
    SELECT *, lag(end_ns) OVER streams AS before_ns, lag(call_ns) OVER streams AS before_call_ns
    FROM enqueued WINDOW streams AS (
        PARTITION BY process_id, place, stream ORDER BY start_ns, id
    )
), work AS (
    SELECT previous.* EXCLUDE (before_ns, before_call_ns),
        greatest(call_ns, coalesce(before_ns, call_ns)) AS ready_ns,
        waits.start_ns IS NOT NULL AND waits.start_ns > coalesce(before_call_ns, waits.start_ns - 1)
            AS ordered
    FROM previous ASOF LEFT JOIN waits ON waits.process_id = previous.process_id
        AND waits.thread_id = previous.thread_id AND waits.start_ns < previous.call_ns
)"""
# an operation began as soon as other work had ended, though it was ready long before: ``waiting``
# may have waited, for what is in ``holding`` of the same process and ``group``
_HELD = f"""holders AS (
    SELECT process_id, side, end_ns, max(id) AS id FROM holding GROUP BY ALL
), held AS (
    SELECT waiting.id, holders.id AS other, holders.end_ns - waiting.ready_ns AS wait_ns
    FROM (SELECT * FROM waiting WHERE NOT ordered) AS waiting ASOF JOIN holders
        ON holders.process_id = waiting.process_id AND holders.side = waiting.side
        AND holders.end_ns <= waiting.start_ns
    WHERE waiting.start_ns - holders.end_ns <= {KERNEL_GAP_NS}
        AND holders.end_ns - waiting.ready_ns >= {{us}} * {_MICROSECOND_NS}
)
SELECT sum(wait_ns)::BIGINT AS total, count(*), total::DOUBLE / count(*), max(wait_ns),
    mine.process_id, mine.device, mine.stream, other.stream, waited.name, held_by.name
FROM held JOIN work AS mine ON mine.id = held.id JOIN work AS other ON other.id = held.other
JOIN gpu_op AS waited ON waited.id = held.id JOIN gpu_op AS held_by ON held_by.id = held.other
WHERE {{condition}}
GROUP BY 5, 6, 7, 8, 9, 10
ORDER BY total DESC, arg_min(wait_ns, held.id), 5, 6, 7, 8, 9, 10 LIMIT {{rows}}
"""
# the null stream orders the blocking streams of its context, and only those; only what was
# enqueued before can be waited for
_FLAGS = "bool_or(flag = 'null') AND bool_or(flag = 'default')"
_DEFAULT_STREAM = f"""{_WORK.replace("{possible}", _FLAGS)}, sides AS (
    SELECT work.*, place || CASE flag WHEN 'null' THEN ' null' ELSE ' blocking' END AS own,
        place || CASE flag WHEN 'null' THEN ' blocking' ELSE ' null' END AS opposite
    FROM work JOIN streams USING (process_id, place, stream) WHERE flag IN ('null', 'default')
), waiting AS (
    SELECT * EXCLUDE (own, opposite), opposite AS side FROM sides
), holding AS (
    SELECT * EXCLUDE (own, opposite), own AS side FROM sides
), {_HELD.replace("{condition}", "other.call_ns < mine.call_ns")}"""
# a smaller number is a higher priority; the lower one ran already when the higher became ready
_LEVELS = "count(DISTINCT priority) > 1"
_PRIORITY = f"""{_WORK.replace("{possible}", _LEVELS)}, kernels AS (
    SELECT work.*, priority FROM work JOIN streams USING (process_id, place, stream)
    WHERE kind = 'kernel' AND priority IS NOT NULL
), waiting AS (
    SELECT *, device || ' ' || priority AS side FROM kernels
), levels AS (
    SELECT DISTINCT priority AS level FROM kernels
), holding AS (
    SELECT kernels.*, device || ' ' || level AS side
    FROM kernels JOIN levels ON priority > level
), {_HELD.replace("{condition}", "other.start_ns <= mine.ready_ns")}"""

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
