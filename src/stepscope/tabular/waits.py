"""GPU work that was ready to run but waited for work of another stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.gaps.idle import TURNAROUND_NS
from stepscope.intervals.distinct import distinct_values, with_first
from stepscope.tabular.attribution import launches, thread_keys
from stepscope.tabular.maths import group
from stepscope.tabular.source import Rows, Source
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

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


def enqueued(source: Source) -> Enqueued:
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


def held(
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
    parts: list[tuple[IntArray, IntArray]] = []
    for number in distinct_values(place[waiting]).tolist():
        mine = np.flatnonzero(waiting & ~found.ordered & (place == number))
        theirs = np.flatnonzero(holding & (place == number))
        if not len(mine) or not len(theirs):
            continue
        theirs = theirs[np.argsort(end[theirs], kind="stable")]
        last = np.searchsorted(end[theirs], start[mine], side="right") - 1
        by = theirs[np.maximum(last, 0)]
        fits = (last >= 0) & (start[mine] - end[by] <= TURNAROUND_NS)
        fits &= end[by] - found.ready_ns[mine] >= least_ns
        parts.append((mine[fits], by[fits]))
    rows = np.concatenate([np.empty(0, np.int64), *(row for row, _ in parts)])
    held_by = np.concatenate([np.empty(0, np.int64), *(by for _, by in parts)])
    return Held(rows, held_by, end[held_by] - found.ready_ns[rows])


def stream_values(source: Source, work: Rows, column: str, unknown: int) -> IntArray:
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
