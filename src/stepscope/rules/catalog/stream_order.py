"""Streams that wait for each other though the program did not ask for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.gaps.idle import KERNEL_GAP_NS
from stepscope.intervals.distinct import distinct_values, with_first
from stepscope.tabular.attribution import launches, thread_keys
from stepscope.tabular.maths import dictionary, group, round_half_away, statistics
from stepscope.tabular.needs import CUDA_CALLS, GPU_WORK, Need
from stepscope.tabular.report import ROWS, Answer, Argument, Arguments, Column, Report, limit
from stepscope.tabular.source import Rows, Source
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

_MICROSECOND_NS = 1000
_WAIT_EVENT = "StreamWaitEvent"


@dataclass(frozen=True)
class Enqueued:
    """GPU work whose enqueuing call is recorded, outside of CUDA graphs.

    Attributes:
        work: kernels, copies and fills, in order of start.
        enqueued_ns: when the program enqueued each: begin of its call.
        ready_ns: when nothing in its own stream kept it any more: it was enqueued, and the
            operation before it in its stream had ended.
        ordered: whether the program asked, since the operation before it in its stream, for a
            stream to wait for an event: then it may have waited on purpose.
    """

    work: Rows
    enqueued_ns: IntArray
    ready_ns: IntArray
    ordered: BoolArray


def _enqueued(source: Source) -> Enqueued:
    """Work with what is known about its way to the GPU."""
    work, calls = source.gpu_work(), source.cuda_calls()
    at, call = launches(work, calls)
    at, first = with_first(at)  # the earliest of a runtime and a driver call
    outside = work["graph_node_id"][at] < 0  # a graph's own edges order what is in it
    mask = np.zeros(len(work), dtype=bool)
    mask[at[outside]] = True
    work, call = work.where(mask), call[first][outside]
    begin = calls["start_ns"][call]
    stream, _ = group(work["process_id"], work["context"], work["stream"])
    order = np.lexsort((work["start_ns"], stream))
    same = np.zeros(len(order), dtype=bool)
    same[1:] = stream[order[1:]] == stream[order[:-1]]
    least = np.iinfo(np.int64).min
    before_end, before_call = np.full(len(order), least), np.full(len(order), least)
    later, earlier = order[1:][same[1:]], order[:-1][same[1:]]
    before_end[later], before_call[later] = work["end_ns"][earlier], begin[earlier]
    ordered = _waits_between(calls, call, before_call, begin)
    return Enqueued(work, begin, np.maximum(begin, before_end), ordered)


def _waits_between(calls: Rows, call: IntArray, low: IntArray, high: IntArray) -> BoolArray:
    """Whether the thread of each call made a stream wait for an event in (low, high)."""
    waits = calls.where(calls.that("name", lambda text: _WAIT_EVENT in text))
    found = np.zeros(len(call), dtype=bool)
    if not len(waits) or not len(call):
        return found
    of_call, of_wait = thread_keys(calls, waits)
    of_call = of_call[call]
    for thread in distinct_values(of_wait).tolist():
        mine = np.flatnonzero(of_call == thread)
        times = waits["start_ns"][of_wait == thread]
        until = np.searchsorted(times, high[mine], side="left")
        found[mine] = until > np.searchsorted(times, low[mine], side="right")
    return found


@dataclass(frozen=True)
class Held:
    """Waits: row by row the operation that waited, what it waited for, and how long.

    Attributes:
        row: row of the work that waited.
        by: row of the work that ended right before it began.
        wait_ns: from when the first was ready until the second ended.
    """

    row: IntArray
    by: IntArray
    wait_ns: IntArray


def _held(
    found: Enqueued, place: AnyArray, waiting: BoolArray, holding: BoolArray, least_ns: int
) -> Held:
    """Work that began as soon as other work had ended, though it was ready long before.

    Args:
        found: the work.
        place: number of each operation's place; only work of one place can hold another.
        waiting: which may have waited.
        holding: which may have been waited for.
        least_ns: leave out shorter waits.
    """
    start, end = found.work["start_ns"], found.work["end_ns"]
    parts: list[Held] = []
    for number in distinct_values(place[waiting]).tolist():
        mine = np.flatnonzero(waiting & ~found.ordered & (place == number))
        theirs = np.flatnonzero(holding & (place == number))
        if not len(mine) or not len(theirs):
            continue
        theirs = theirs[np.argsort(end[theirs], kind="stable")]
        last = np.searchsorted(end[theirs], start[mine], side="right") - 1
        by = theirs[np.maximum(last, 0)]
        fits = (last >= 0) & (start[mine] - end[by] <= KERNEL_GAP_NS)
        fits &= end[by] - found.ready_ns[mine] >= least_ns
        parts.append(Held(mine[fits], by[fits], end[by[fits]] - found.ready_ns[mine[fits]]))
    return _joined(parts)


def _joined(parts: list[Held]) -> Held:
    none = np.empty(0, np.int64)
    return Held(
        np.concatenate([none, *(part.row for part in parts)]),
        np.concatenate([none, *(part.by for part in parts)]),
        np.concatenate([none, *(part.wait_ns for part in parts)]),
    )


def _stream_values(source: Source, work: Rows, column: str, unknown: int) -> IntArray:
    """A column of the table of streams for each operation.

    Args:
        source: the trace.
        work: the operations.
        column: a number, or a text, of which the code is given.
        unknown: stands where the capture does not tell.
    """
    streams = Rows(source.trace, "stream")
    known = streams.valid(column)
    keys = ("process_id", "context", "stream")
    columns = [streams[name][known].tolist() for name in (*keys, column)]
    values = {(p, c, s): value for p, c, s, value in zip(*columns, strict=True)}
    groups, firsts = group(*(work[name] for name in keys))
    places = zip(*(work[name][firsts].tolist() for name in keys), strict=True)
    found = [values.get(place, unknown) for place in places]
    return np.array(found, dtype=np.int64)[groups] if found else np.empty(0, np.int64)


def _default_stream(source: Source, arguments: Arguments) -> Answer:
    found = _enqueued(source)
    flags = Rows(source.trace, "stream").texts("flag")
    flag = _stream_values(source, found.work, "flag", -1)
    null, blocking = (
        flag == (flags.index(name) if name in flags else -2) for name in ("null", "default")
    )
    # the null stream orders the blocking streams of its context only
    place, _ = group(found.work["process_id"], found.work["context"])
    least_ns = int(arguments["us"]) * _MICROSECOND_NS
    waits = [
        _held(found, place, blocking, null, least_ns),
        _held(found, place, null, blocking, least_ns),
    ]
    both = _joined(waits)
    # only what was enqueued before can be waited for
    keep = found.enqueued_ns[both.by] < found.enqueued_ns[both.row]
    return _table(found, Held(both.row[keep], both.by[keep], both.wait_ns[keep]), arguments)


def _priority(source: Source, arguments: Arguments) -> Answer:
    found = _enqueued(source)
    unknown = np.iinfo(np.int64).min
    priority = _stream_values(source, found.work, "priority", unknown)
    kernel = found.work.equals("kind", ("kernel",)) & (priority != unknown)
    place, _ = group(found.work["process_id"], found.work["device"])
    least_ns = int(arguments["us"]) * _MICROSECOND_NS
    parts = []
    for level in distinct_values(priority[kernel]).tolist():
        # a smaller number is a higher priority
        lower = kernel & (priority > level)
        part = _held(found, place, kernel & (priority == level), lower, least_ns)
        # the lower one ran already when the higher one became ready
        running = found.work["start_ns"][part.by] <= found.ready_ns[part.row]
        parts.append(Held(part.row[running], part.by[running], part.wait_ns[running]))
    return _table(found, _joined(parts), arguments)


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
        "SMs it uses, or enqueue the urgent work before it.",
    ),
]
