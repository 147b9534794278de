"""What statements of reports read and SQL does not do well, as columns: found with numpy.

Which ranges enclose a call, and how ranges nest, are joins of intervals within a thread; DuckDB
compares every range of the thread with every call of it. What an operation waited for takes the
operation before it in its stream, the last wait for an event before it and the last end before it:
windows and ASOF joins that sort all work several times. Steps are found by their own analysis, and
counters are those that exports of the timeline draw. What finds them is imported where that is
done: most statements read none of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from stepscope.activity.counters import Series, bandwidth, queue_length
from stepscope.intervals.distinct import common_values, distinct_values, with_inverse
from stepscope.intervals.nesting import nest, stab_innermost
from stepscope.reports.arrays import group
from stepscope.trace.frame import AnyArray, BoolArray, IntArray
from stepscope.trace.trace import Trace

Columns = dict[str, AnyArray]
Ask = Callable[[str], Columns]
"""Gives the columns of a statement."""

_PLACE = "id, process_id, thread_id, start_ns, end_ns"


def _threads(*tables: Columns) -> list[IntArray]:
    """One number a (process, thread), the same in all tables."""
    process, thread = (
        with_inverse(np.concatenate([table[name] for table in tables]))[1]
        for name in ("process_id", "thread_id")
    )
    number = process.astype(np.int64) * (int(thread.max(initial=0)) + 1) + thread
    return np.split(number, np.cumsum([len(table["id"]) for table in tables])[:-1])


def _enclosing(ranges: Columns, calls: Columns) -> tuple[IntArray, IntArray]:
    """Every pair (row of range, row of call) of one thread, bounds included."""
    of_range, of_call = _threads(ranges, calls)
    none = np.empty(0, np.int64)
    found = [(none, none)]
    for thread in common_values(of_range, of_call).tolist():
        mine, theirs = np.flatnonzero(of_range == thread), np.flatnonzero(of_call == thread)
        theirs = theirs[np.argsort(calls["start_ns"][theirs], kind="stable")]
        begin = calls["start_ns"][theirs]
        low = np.searchsorted(begin, ranges["start_ns"][mine], side="left")
        high = np.searchsorted(begin, ranges["end_ns"][mine], side="right")
        count = np.maximum(high - low, 0)
        row = np.repeat(mine, count)
        at = np.arange(len(row)) + np.repeat(low - (np.cumsum(count) - count), count)
        inside = calls["end_ns"][theirs[at]] <= ranges["end_ns"][row]
        found.append((row[inside], theirs[at[inside]]))
    rows, of = zip(*found, strict=True)
    return np.concatenate(rows), np.concatenate(of)


def _both(ask: Ask) -> tuple[Columns, Columns]:
    return (
        ask(f"SELECT {_PLACE} FROM own_range ORDER BY id"),
        ask(f"SELECT {_PLACE} FROM launching_call ORDER BY id"),
    )


def _range_call(ask: Ask, _: Trace) -> Columns:
    ranges, calls = _both(ask)
    row, call = _enclosing(ranges, calls)
    return {"range": ranges["id"][row], "call": calls["id"][call]}


def _innermost_range(ask: Ask, _: Trace) -> Columns:
    """Of the ranges that enclose a call, the one that begins last; of equal begins the shortest."""
    ranges, calls = _both(ask)
    row, call = _enclosing(ranges, calls)
    innermost = np.full(len(calls["id"]), -1, np.int64)
    order = np.lexsort((-row, -ranges["end_ns"][row], ranges["start_ns"][row]))
    innermost[call[order]] = row[order]
    known = innermost >= 0
    return {"range": ranges["id"][innermost[known]], "call": calls["id"][known]}


def _operator_call(ask: Ask, _: Trace) -> Columns:
    """The innermost operator around each launching call, and that of ATen; -1 for none."""
    operators = ask(
        f"SELECT {_PLACE}, starts_with(name, 'aten::') AS aten FROM operator ORDER BY id"
    )
    calls = ask(f"SELECT {_PLACE} FROM launching_call ORDER BY id")
    aten = operators.pop("aten").astype(bool)
    of_aten = {name: column[aten] for name, column in operators.items()}
    return {
        "call": calls["id"],
        "operator": _innermost(operators, calls),
        "aten": _innermost(of_aten, calls),
    }


def _innermost(host: Columns, calls: Columns) -> IntArray:
    """Id of the innermost of properly nested host events around each call; -1 for none."""
    found = np.full(len(calls["id"]), -1, np.int64)
    of_host, of_call = _threads(host, calls)
    for thread in common_values(of_host, of_call).tolist():
        rows, mine = np.flatnonzero(of_host == thread), np.flatnonzero(of_call == thread)
        start, stop = host["start_ns"][rows], host["end_ns"][rows]
        order = np.lexsort((-stop, start))
        rows, start, stop = rows[order], start[order], stop[order]
        end = calls["end_ns"][mine]
        at = stab_innermost(start, stop, calls["start_ns"][mine])
        parent, _ = nest(start, stop, np.zeros(len(rows), np.int64))
        # one that ends inside the call does not launch it
        cut = np.flatnonzero((at >= 0) & (stop[at] < end))
        while len(cut):
            at[cut] = parent[at[cut]]
            cut = cut[at[cut] >= 0]
            cut = cut[stop[at[cut]] < end[cut]]
        found[mine] = np.where(at >= 0, host["id"][rows[at]], -1)
    return found


def _tree(view: str) -> Callable[[Ask, Trace], Columns]:
    """Place of each range among those of its thread: the parent is the tightest around it."""

    def find(ask: Ask, _: Trace) -> Columns:
        ranges = ask(f"SELECT {_PLACE}, row_id FROM {view} ORDER BY id")
        ids = ranges["id"]
        parent, level = nest(ranges["start_ns"], ranges["end_ns"], _threads(ranges)[0])
        stacks = [""] * len(ids)
        names = ranges["row_id"].tolist()
        for row in np.argsort(level, kind="stable").tolist():
            above = stacks[parent[row]] if parent[row] >= 0 else ""
            stacks[row] = f"{above}:{names[row]}"
        stack = np.array(stacks, dtype=object)
        return {"id": ids, "parent": np.append(ids, -1)[parent], "level": level, "stack": stack}

    return find


# Streams with work and another level than a stream beside them. They are asked for first: mostly
# there are none, and then nothing else is read.
_STREAMS = """
WITH used AS (
    SELECT DISTINCT process_id, device, coalesce(context, -1) AS place, stream FROM gpu_op
    WHERE kind IN ('kernel', 'memcpy', 'memset') AND graph_node_id IS NULL
), known AS (
    SELECT process_id, coalesce(context, -1) AS place, stream, {level} AS level
    FROM all_stream GROUP BY process_id, place, stream
), beside AS (
    SELECT process_id, place, stream, level
    FROM used JOIN known USING (process_id, place, stream) WHERE level IS NOT NULL
    WINDOW same AS (PARTITION BY process_id, {beside})
    QUALIFY min(level) OVER same < max(level) OVER same
), chosen AS (SELECT DISTINCT * FROM beside)
"""
# their work outside of CUDA graphs, whose own edges order what is in them, and what enqueued it
_ENQUEUED = """
SELECT op.id, op.process_id, op.device, chosen.place, op.stream, op.start_ns, op.end_ns,
    op.kind = 'kernel' AS kernel, level, call.id AS call, call.start_ns AS call_ns, call.thread_id
FROM gpu_op AS op JOIN chosen ON chosen.process_id = op.process_id
    AND chosen.place = coalesce(op.context, -1) AND chosen.stream = op.stream
JOIN cuda_call AS call ON call.process_id = op.process_id
    AND call.correlation_id = op.correlation_id
WHERE op.kind IN ('kernel', 'memcpy', 'memset') AND op.graph_node_id IS NULL
    AND op.correlation_id >= 0
"""
_EVENT_WAITS = """
SELECT process_id, thread_id, start_ns, id FROM cuda_call WHERE name LIKE '%StreamWaitEvent%'
ORDER BY start_ns
"""
_NO_WAITS = np.empty((3, 0), np.int64)


def _enqueued(ask: Ask, streams: str) -> Columns:
    """Work in order of id with the earliest call that enqueued it.

    ``ready_ns`` is when it was enqueued and the operation before it in its stream had ended;
    ``ordered`` is whether the program made a stream wait for an event since that operation's call,
    for then it may have waited on purpose.
    """
    found = ask(streams + _ENQUEUED)
    order = np.lexsort((found["call"], found["id"]))
    order = order[np.diff(found["id"][order], prepend=-1) != 0]
    work = {name: column[order] for name, column in found.items()}
    stream, _ = group(work["process_id"], work["place"], work["stream"])
    order = np.lexsort((work["start_ns"], stream))
    same = stream[order[1:]] == stream[order[:-1]]
    later, earlier = order[1:][same], order[:-1][same]
    before_end, before_call = np.full((2, len(order)), np.iinfo(np.int64).min)
    before_end[later], before_call[later] = work["end_ns"][earlier], work["call_ns"][earlier]
    work["ready_ns"] = np.maximum(work["call_ns"], before_end)
    work["ordered"] = _waits_between(ask(_EVENT_WAITS), work, before_call)
    return work


def _waits_between(waits: Columns, work: Columns, low: IntArray) -> BoolArray:
    """Whether the thread that enqueued work made a stream wait between ``low`` and that call."""
    found = np.zeros(len(low), dtype=bool)
    of_work, of_wait = _threads(work, waits)
    for thread in common_values(of_work, of_wait).tolist():
        mine = np.flatnonzero(of_work == thread)
        times = waits["start_ns"][of_wait == thread]
        until = np.searchsorted(times, work["call_ns"][mine], side="left")
        found[mine] = until > np.searchsorted(times, low[mine], side="right")
    return found


def _held(work: Columns, beside: str, waiting: BoolArray, holding: BoolArray) -> IntArray:
    """Work that began as soon as other work had ended, though it was ready long before.

    Args:
        work: the work.
        beside: column; only work of one process with one value in it can hold another.
        waiting: which may have waited.
        holding: which may have been waited for.

    Returns:
        Row that waited, row that it waited for, length of the wait.
    """
    from stepscope.gaps.idle import KERNEL_GAP_NS

    start, end = work["start_ns"], work["end_ns"]
    place, _ = group(work["process_id"], work[beside])
    waiting = waiting & ~work["ordered"]
    parts = [_NO_WAITS]
    for number in common_values(place[waiting], place[holding]).tolist():
        mine = np.flatnonzero(waiting & (place == number))
        theirs = np.flatnonzero(holding & (place == number))
        theirs = theirs[np.argsort(end[theirs], kind="stable")]
        last = np.searchsorted(end[theirs], start[mine], side="right") - 1
        by = theirs[np.maximum(last, 0)]
        wait = end[by] - work["ready_ns"][mine]
        fits = (last >= 0) & (start[mine] - end[by] <= KERNEL_GAP_NS) & (wait > 0)
        parts.append(np.stack([mine[fits], by[fits], wait[fits]]))
    return np.concatenate(parts, axis=1)


def _waits(work: Columns, held: IntArray) -> Columns:
    row, by, wait = held
    return {"id": work["id"][row], "other": work["id"][by], "wait_ns": wait}


def _default_stream_wait(ask: Ask, _: Trace) -> Columns:
    # the null stream orders the blocking streams of its context, and only those
    level = "CASE last(flag) WHEN 'null' THEN 1 WHEN 'default' THEN 0 END"
    streams = _STREAMS.format(level=level, beside="place")
    if not len(ask(f"{streams} SELECT level FROM chosen")["level"]):
        return _waits({"id": _NO_WAITS[0]}, _NO_WAITS)
    work = _enqueued(ask, streams)
    null = work["level"] == 1
    both = [_held(work, "place", ~null, null), _held(work, "place", null, ~null)]
    held = np.concatenate(both, axis=1)
    # only what was enqueued before can be waited for
    return _waits(work, held[:, work["call_ns"][held[1]] < work["call_ns"][held[0]]])


def _priority_wait(ask: Ask, _: Trace) -> Columns:
    streams = _STREAMS.format(level="last(priority)", beside="device")
    if not len(ask(f"{streams} SELECT level FROM chosen")["level"]):
        return _waits({"id": _NO_WAITS[0]}, _NO_WAITS)
    work = _enqueued(ask, streams)
    kernel, priority = work["kernel"].astype(bool), work["level"]
    # a smaller number is a higher priority
    parts = [
        _held(work, "device", kernel & (priority == level), kernel & (priority > level))
        for level in distinct_values(priority[kernel]).tolist()
    ]
    held = np.concatenate([_NO_WAITS, *parts], axis=1)
    # the lower one ran already when the higher one became ready
    return _waits(work, held[:, work["start_ns"][held[1]] <= work["ready_ns"][held[0]]])


def _steady_step(_: Ask, trace: Trace) -> Columns:
    # most reports ask for no steps, and what explains them takes a while to load
    from stepscope.breakdown.explain import explain

    rows = [
        (place, gpu.gpu.process_id, gpu.gpu.device, start, end)
        for place, gpu in enumerate(explain(trace.frame, trace.meta))
        for start, end in zip(
            gpu.bounds_ns[gpu.first : gpu.last + 1].tolist(),
            gpu.bounds_ns[gpu.first + 1 : gpu.last + 2].tolist(),
            strict=True,
        )
    ]
    table = np.array(rows, np.int64).reshape(-1, 5)
    names = ("place", "process_id", "device", "start_ns", "end_ns")
    return {name: table[:, column] for column, name in enumerate(names)}


def _communication(ask: Ask, _: Trace) -> Columns:
    from stepscope.activity.communication import is_communication

    names = ask("SELECT DISTINCT name FROM kernel")["name"]
    return {"name": np.array([name for name in names if is_communication(name)], dtype=object)}


def _queue_length(work: str) -> Callable[[Ask, Trace], Columns]:
    def find(ask: Ask, _: Trace) -> Columns:
        ops = ask(
            "SELECT work.id, work.process_id, device, stream, call.start_ns AS call_ns, "
            f"work.start_ns FROM launch JOIN {work} AS work ON work.id = launch.op "
            "JOIN cuda_call AS call ON call.id = launch.call"
        )
        counter, firsts = group(ops["process_id"], ops["device"], ops["stream"])
        return _changes(queue_length(counter, ops["call_ns"], ops["start_ns"]), ops["id"][firsts])

    return find


def _bandwidth(work: str) -> Callable[[Ask, Trace], Columns]:
    def find(ask: Ask, _: Trace) -> Columns:
        ops = ask(
            "SELECT id, process_id, device, start_ns, end_ns, bytes, dense_rank() OVER "
            f"(ORDER BY kind, copy_kind) AS kind FROM {work} WHERE kind <> 'kernel' AND bytes >= 0"
        )
        counter, firsts = group(ops["process_id"], ops["device"], ops["kind"])
        series = bandwidth(counter, ops["start_ns"], ops["end_ns"], ops["bytes"])
        return _changes(series, ops["id"][firsts])

    return find


def _changes(series: Series, firsts: IntArray) -> Columns:
    """The changes of counters in order, each counter named by an operation of its own."""
    return {
        "id": firsts[series.counter],
        "number": np.arange(len(series.value)),
        "time_ns": series.time_ns,
        "value": series.value,
    }


COMPUTED: Final[dict[str, Callable[[Ask, Trace], Columns]]] = {
    "range_call": _range_call,
    "innermost_range": _innermost_range,
    "range_tree": _tree("own_range"),
    "pushpop_tree": _tree("pushpop"),
    "default_stream_wait": _default_stream_wait,
    "priority_wait": _priority_wait,
    "steady_step": _steady_step,
    "communication": _communication,
    "operator_call": _operator_call,
    "queue_length": _queue_length("gpu_work"),
    "early_queue_length": _queue_length("early_gpu_work"),
    "bandwidth": _bandwidth("gpu_work"),
    "early_bandwidth": _bandwidth("early_gpu_work"),
}
"""Name in statements -> what finds its columns."""
