"""Samples of threads, scheduling and hardware counters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.importers.nsys.rows import Rows, code, may, must
from stepscope.importers.nsys.sink import Sink, process_of, thread_of
from stepscope.intervals.distinct import distinct_rows
from stepscope.trace.frame import BoolArray, IntArray

_GPU_MASK = 0xFF
_STATES = ("running", "runnable", "sleeping", "disk", "stopped")
_RUNNING = 0
_CODES = 16
# ENUM_SAMPLING_THREAD_STATE of a thread that loses its CPU -> place in _STATES. One that was
# "running" would have gone on, had it been let.
_WAITING = {1: 1, 2: 2, 3: 3, 4: 4, 7: 2}


def read_cpu_samples(sink: Sink) -> None:
    """Fill ``cpu_sample``."""
    import pyarrow as pa

    fields = (
        code("id"),
        must("start", "time"),
        code("cpu", "int32"),
        must("globalTid"),
        code("cpuCycles"),
    )
    for rows in sink.tables.read("COMPOSITE_EVENTS", fields, "cpu_sample"):
        tids = rows.ints("globalTid")
        sink.saw_threads(tids)
        sink.put(
            "cpu_sample",
            {
                "time_ns": rows["start"],
                "process_id": pa.array(process_of(tids)),
                "thread_id": pa.array(thread_of(tids)),
                "cpu": rows["cpu"],
                "weight": rows["cpuCycles"],
                "stack_id": rows["id"],
            },
        )


def read_stacks(sink: Sink) -> None:
    """Fill ``stack_frame`` with the call chains of the samples.

    Nsight Systems counts from the innermost frame, the canonical table from the outermost one, so
    the lengths of the stacks are read first.
    """
    import pyarrow as pa

    table, source = "stack_frame", "SAMPLING_CALLCHAINS"
    lengths = _lengths_of_stacks(sink, source)
    if lengths is None:
        return
    ids, deepest = lengths
    functions = sink.names(table, "function")
    modules = sink.names(table, "module")
    fields = (must("id"), must("symbol"), may("module"), must("stackDepth"))
    for rows in sink.tables.read(source, fields, table):
        stack, depth = rows.ints("id"), rows.ints("stackDepth")
        sink.put(
            table,
            {
                "stack_id": pa.array(stack),
                "depth": pa.array((deepest[np.searchsorted(ids, stack)] - depth).astype(np.int32)),
                "function": functions(rows["symbol"]),
                "module": modules(rows["module"]),
            },
        )


def _lengths_of_stacks(sink: Sink, source: str) -> tuple[IntArray, IntArray] | None:
    """(stack ids in order, depth of each one's outermost frame); None without stacks."""
    parts = [
        _deepest(rows.ints("id"), rows.ints("stackDepth"))
        for rows in sink.tables.read(source, (must("id"), must("stackDepth")), "stack_frame")
    ]
    if not parts:
        return None
    return _deepest(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _deepest(ids: IntArray, depths: IntArray) -> tuple[IntArray, IntArray]:
    """The largest depth of each id."""
    order = np.lexsort((depths, ids))
    last = np.ones(len(ids), dtype=bool)
    last[:-1] = np.diff(ids[order]) != 0
    return ids[order][last], depths[order][last]


@dataclass(frozen=True)
class Points:
    """Scheduling points, ordered by thread and time.

    Attributes:
        time: when, ns.
        cpu: where; ``NULL`` when unknown.
        into: True where the thread got the CPU, False where it lost it.
        thread: global thread id.
        state: code of the thread's state at the point; ``NULL`` when unknown.
    """

    time: IntArray
    cpu: IntArray
    into: BoolArray
    thread: IntArray
    state: IntArray

    @classmethod
    def of(cls, parts: list[Rows]) -> Points:
        """The points of all batches."""
        time, cpu, into, thread, state = (
            np.concatenate([part.ints(name) for part in parts])
            for name in ("start", "cpu", "isSchedIn", "globalTid", "threadState")
        )
        order = np.lexsort((into != 0, time, thread))  # at one instant, out comes before in
        return cls(time[order], cpu[order], into[order] != 0, thread[order], state[order])


def read_scheduling(sink: Sink) -> None:
    """Fill ``sched``: pair the points at which a thread got and lost a CPU.

    ``thread_state`` as well, where the export says why a thread lost it.
    """
    import pyarrow as pa

    fields = (
        must("start", "time"),
        code("cpu", "int32"),
        must("isSchedIn"),
        must("globalTid"),
        code("threadState"),
    )
    parts = list(sink.tables.read("SCHED_EVENTS", fields, "sched"))
    if not parts:
        return
    points = Points.of(parts)
    sink.saw_threads(points.thread)
    first, end, unpaired = paired(points, sink.window_end_ns)
    sink.tables.problems.count("unpaired_sched", unpaired, scope="sched")
    order = np.argsort(points.time[first], kind="stable")
    first, end = first[order], end[order]
    thread, cpu = points.thread[first], points.cpu[first]
    sink.put(
        "sched",
        {
            "process_id": pa.array(process_of(thread)),
            "thread_id": pa.array(thread_of(thread)),
            "start_ns": pa.array(points.time[first]),
            "end_ns": pa.array(end),
            "cpu": pa.array(cpu.astype(np.int32), mask=cpu < 0),
        },
    )
    on = np.full(len(first), _RUNNING)
    out, until, state = waits(points)
    if len(out):
        # waits lie between runs, so both together are the thread's states
        _put_states(
            sink,
            np.concatenate([thread, points.thread[out]]),
            np.concatenate([points.time[first], points.time[out]]),
            np.concatenate([end, until]),
            np.concatenate([on, state]),
        )


def waits(points: Points) -> tuple[IntArray, IntArray, IntArray]:
    """The intervals in which threads were without a CPU, where their state is known.

    Returns:
        Index of each interval's "out", its end, and the number of its state in ``_STATES``.
    """
    follows = np.zeros(len(points.time), dtype=bool)
    follows[:-1] = ~points.into[:-1] & points.into[1:] & (points.thread[1:] == points.thread[:-1])
    known = np.array([_WAITING.get(number, -1) for number in range(_CODES)], np.int64)
    inside = (points.state >= 0) & (points.state < _CODES)
    state = np.where(inside, known[np.where(inside, points.state, 0)], -1)
    out = np.flatnonzero(follows & (state >= 0))
    return out, points.time[np.minimum(out + 1, len(points.time) - 1)], state[out]


def _put_states(
    sink: Sink, thread: IntArray, start: IntArray, end: IntArray, state: IntArray
) -> None:
    import pyarrow as pa

    order = np.argsort(start, kind="stable")
    string_table = sink.string_table("thread_state", "state")
    codes = np.array([string_table.code(text) for text in _STATES], np.int32)
    thread = thread[order]
    sink.put(
        "thread_state",
        {
            "process_id": pa.array(process_of(thread)),
            "thread_id": pa.array(thread_of(thread)),
            "start_ns": pa.array(start[order]),
            "end_ns": pa.array(end[order]),
            "state": pa.array(codes[state[order]]),
        },
    )


def paired(points: Points, window_end_ns: int | None) -> tuple[IntArray, IntArray, int]:
    """Pair each "in" with the "out" that follows it on the same thread and CPU.

    A thread that is on a CPU after its last point stays there until the window's end.

    Returns:
        Index of each interval's "in", its end, and the number of points without a partner.
    """
    count = len(points.time)
    next_same = np.zeros(count, dtype=bool)
    next_same[:-1] = points.thread[1:] == points.thread[:-1]
    follows = np.zeros(count, dtype=bool)
    follows[:-1] = (
        next_same[:-1] & points.into[:-1] & ~points.into[1:] & (points.cpu[1:] == points.cpu[:-1])
    )
    last = points.into & ~next_same
    if window_end_ns is None:
        last[:] = False
    else:
        last &= points.time <= window_end_ns
    first = np.flatnonzero(follows | last)
    ends = np.where(
        follows[first], points.time[np.minimum(first + 1, count - 1)], window_end_ns or 0
    )
    unpaired = count - 2 * int(follows.sum()) - int(last.sum())
    return first, ends, unpaired


def read_metrics(sink: Sink) -> None:
    """Fill ``metric_sample`` from the GPU's hardware counters."""
    import pyarrow as pa

    table = "metric_sample"
    names = _metric_names(sink)
    string_table = sink.string_table(table, "metric")
    fields = (
        must("timestamp", "time"),
        must("typeId"),
        must("metricId"),
        must("value", "float64"),
    )
    for rows in sink.tables.read("GPU_METRICS", fields, table):
        keys = np.stack([rows.ints("typeId"), rows.ints("metricId")])
        first, inverse = distinct_rows(list(keys))
        known = [
            string_table.code(names.get((kind, metric), f"metric {metric}"))
            for kind, metric in keys[:, first].T.tolist()
        ]
        metrics = np.array(known, np.int32)[inverse]
        sink.put(
            table,
            {
                "time_ns": rows["timestamp"],
                "device": pa.array((keys[0] & _GPU_MASK).astype(np.int32)),
                "metric": pa.array(metrics),
                "value": rows["value"],
            },
        )


def _metric_names(sink: Sink) -> dict[tuple[int, int], str]:
    fields = (must("typeId"), must("metricId"), must("metricName", "text"))
    return {
        (kind, metric): name
        for rows in sink.tables.read("TARGET_INFO_GPU_METRICS", fields, "metric_sample")
        for kind, metric, name in zip(
            rows.ints("typeId").tolist(),
            rows.ints("metricId").tolist(),
            rows["metricName"].to_pylist(),
            strict=True,
        )
    }
