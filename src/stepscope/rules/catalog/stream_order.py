"""Streams that wait for each other though the program did not ask for it."""

from __future__ import annotations

import numpy as np

from stepscope.gaps.idle import TURNAROUND_NS
from stepscope.intervals.distinct import distinct_values
from stepscope.rules.limits import ROWS, limit
from stepscope.tabular.maths import dictionary, group, round_half_away, statistics
from stepscope.tabular.needs import CUDA_CALLS, GPU_WORK, Need
from stepscope.tabular.report import Answer, Argument, Arguments, Column, Report
from stepscope.tabular.source import Rows, Source
from stepscope.tabular.waits import Enqueued, Held, enqueued, held, stream_values
from stepscope.trace.frame import IntArray

_MICROSECOND_NS = 1000


def _default_stream(source: Source, arguments: Arguments) -> Answer:
    found = enqueued(source)
    flags = Rows(source.trace, "stream").texts("flag")
    flag = stream_values(source, found.work, "flag", -1)
    null, blocking = (
        flag == (flags.index(name) if name in flags else -2) for name in ("null", "default")
    )
    # the null stream orders the blocking streams of its context only
    place, _ = group(found.work["process_id"], found.work["context"])
    least_ns = int(arguments["us"]) * _MICROSECOND_NS
    waits = [
        held(found, place, blocking, null, least_ns),
        held(found, place, null, blocking, least_ns),
    ]
    both = Held(
        np.concatenate([part.row for part in waits]),
        np.concatenate([part.by for part in waits]),
        np.concatenate([part.wait_ns for part in waits]),
    )
    # only what was enqueued before can be waited for
    keep = found.enqueued_ns[both.by] < found.enqueued_ns[both.row]
    return _table(found, Held(both.row[keep], both.by[keep], both.wait_ns[keep]), arguments)


def _priority(source: Source, arguments: Arguments) -> Answer:
    found = enqueued(source)
    unknown = np.iinfo(np.int64).min
    priority = stream_values(source, found.work, "priority", unknown)
    kernel = found.work.equals("kind", ("kernel",)) & (priority != unknown)
    place, _ = group(found.work["process_id"], found.work["device"])
    least_ns = int(arguments["us"]) * _MICROSECOND_NS
    parts = []
    for level in distinct_values(priority[kernel]).tolist():
        # a smaller number is a higher priority
        lower = kernel & (priority > level)
        part = held(found, place, kernel & (priority == level), lower, least_ns)
        # the lower one ran already when the higher one became ready
        running = found.work["start_ns"][part.by] <= found.ready_ns[part.row]
        parts.append(Held(part.row[running], part.by[running], part.wait_ns[running]))
    joined = [
        np.concatenate([np.empty(0, np.int64), *(getattr(part, name) for part in parts)])
        for name in ("row", "by", "wait_ns")
    ]
    return _table(found, Held(*joined), arguments)


def _table(found: Enqueued, waits: Held, arguments: Arguments) -> Answer:
    work, row, by = found.work, waits.row, waits.by
    keys: list[IntArray] = [
        work["process_id"][row],
        work["device"][row],
        work["stream"][row],
        work["stream"][by],
        work["name"][row],
        work["name"][by],
    ]
    groups, firsts = group(*keys)
    stats = statistics(waits.wait_ns, groups, len(firsts))
    order = np.lexsort((waits.wait_ns[firsts], -stats.total))[limit(arguments)]
    process, device, stream, other, name, of_other = (key[firsts][order] for key in keys)
    texts = work.texts("name")
    return [
        stats.total[order],
        stats.count[order],
        round_half_away(stats.avg[order]),
        stats.high[order],
        process,
        device,
        stream,
        other,
        dictionary(name, texts),
        dictionary(of_other, texts),
    ]


def _known(column: str, source: Source) -> bool:
    return bool(Rows(source.trace, "stream").valid(column).any())


def _flags_known(source: Source) -> bool:
    return _known("flag", source)


def _priorities_known(source: Source) -> bool:
    return _known("priority", source)


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
    f"{TURNAROUND_NS // _MICROSECOND_NS} us from one operation to the next)",
    TURNAROUND_NS // _MICROSECOND_NS,
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
        _default_stream,
        arguments=(ROWS, _US),
        needs=(GPU_WORK, CUDA_CALLS, Need("flags of its streams", "stream", _NSYS, _flags_known)),
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
        _priority,
        arguments=(ROWS, _US),
        needs=(
            GPU_WORK,
            CUDA_CALLS,
            Need("priorities of its streams", "stream", _NSYS, _priorities_known),
        ),
        none_found="No kernel waited for one of lower priority.",
        advice="A priority decides which waiting thread blocks run next; blocks that run are not "
        "interrupted. A kernel whose long blocks fill the GPU therefore delays every other one. "
        "Split the long kernel (smaller blocks of work, fewer tiles a block), limit the "
        "multiprocessors it uses, or enqueue the urgent work before it.",
    ),
]
