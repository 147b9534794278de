"""Which host calls wait for which GPU operations, and which operations wait for which.

Synchronisations are resolved by what the capture recorded (streams and events of the ``sync`` and
``event_record`` tables); where it recorded nothing, by what had ended when the call returned.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from stepscope.analysis import vocabulary as words
from stepscope.analysis.lanes import Lane, Reader
from stepscope.trace.frame import BoolArray, Frame, IntArray

RETURN_NS: Final = 50_000
"""A call that waited returns within this time after what it waited for has ended: the device's
interrupt or polling and the thread's wake-up take some 5 to 20 us, several times that on a busy
machine."""

LONG_CALL_NS: Final = 50_000
"""Calls that neither launch nor synchronise by name, and yet wait for the device, take longer than
this; their own work takes a few us, allocations from the system aside."""

DEPENDENCY_NS: Final = 20_000
"""An operation that waited for one of another stream starts within this time after its end."""

_EVENT_WAIT = re.compile(r"EventSynchronize")
_STREAM_WAIT = re.compile(r"StreamSynchronize")
_GRAPH_LAUNCH = re.compile(r"GraphLaunch")
_STREAM_WAITS_EVENT = re.compile(r"StreamWaitEvent")


@dataclass
class Order:
    """Operations in the order in which the host enqueued them.

    Attributes:
        ops: rows of ``lane.ops``.
        begin_ns: begin of the enqueueing call of each.
        streams: CUDA stream ids.
        of_stream: positions in ``ops`` of each stream's operations, by stream number.
        stream: stream number of each.
    """

    ops: IntArray
    begin_ns: IntArray
    streams: IntArray
    stream: IntArray
    of_stream: list[IntArray] = field(default_factory=list)

    def last_before(self, stream: int, time_ns: int) -> int:
        """Position of the stream's last operation enqueued before a time; -1 for none."""
        positions = self.of_stream[stream]
        at = int(np.searchsorted(self.begin_ns[positions], time_ns, side="left")) - 1
        return int(positions[at]) if at >= 0 else -1

    def first_from(self, stream: int, time_ns: int) -> int:
        """Position of the stream's first operation enqueued at or after a time; -1 for none."""
        positions = self.of_stream[stream]
        at = int(np.searchsorted(self.begin_ns[positions], time_ns, side="left"))
        return int(positions[at]) if at < len(positions) else -1


def enqueue_order(lane: Lane) -> Order:
    """The lane's operations in enqueue order; those of unknown call where they started."""
    begin = lane.enqueue_begin_ns
    order = np.lexsort((lane.ops["start_ns"], begin)).astype(np.int64)
    streams, stream = np.unique(lane.ops["stream"][order], return_inverse=True)
    by_stream = np.argsort(stream, kind="stable").astype(np.int64)
    bounds = np.searchsorted(stream[by_stream], np.arange(len(streams) + 1))
    return Order(
        order,
        begin[order],
        streams,
        stream.astype(np.int64),
        [by_stream[a:b] for a, b in pairwise(bounds.tolist())],
    )


@dataclass(frozen=True)
class Events:
    """Recorded events and synchronisations of one process and device, by API row.

    Attributes:
        stream_of: call that synchronises one stream -> the stream.
        sources: call that waits for an event, on the host or on a stream -> positions of the
            operations that the event stands for.
        waiting: positions of operations -> positions of operations of other streams that they
            wait for, because a stream was told to.
        known: whether the capture holds stream waits at all.
    """

    stream_of: dict[int, int]
    sources: dict[int, tuple[int, ...]]
    waiting: dict[int, set[int]]
    known: bool


def recorded_events(lane: Lane, read: Reader, order: Order) -> Events:
    """Resolve the recorded events."""
    sync = read("sync", "process_id", "stream", "correlation_id", "start_ns", "kind", "event_id")
    record = read("event_record", "process_id", "stream", "correlation_id", "event_id")
    sync = sync.take(sync["process_id"] == lane.process_id)
    record = record.take(record["process_id"] == lane.process_id)
    call_of_sync = _api_rows(lane.host.api, sync["correlation_id"])
    call_of_record = _api_rows(lane.host.api, record["correlation_id"])
    api = lane.host.api
    stream_waits = api.matches("name", _STREAM_WAITS_EVENT) if len(api) else np.zeros(0, np.bool_)
    stream_of: dict[int, int] = {}
    happenings: list[_Happening] = []
    for call, stream, event in zip(
        call_of_sync.tolist(), sync["stream"].tolist(), sync["event_id"].tolist(), strict=True
    ):
        if call >= 0 and event >= 0:
            kind = _STREAM_WAIT_CODE if stream_waits[call] else _HOST_WAIT_CODE
            happenings.append((int(api["start_ns"][call]), kind, stream, event, call))
        elif call >= 0 and stream >= 0:
            stream_of[call] = stream
    for call, stream, event in zip(
        call_of_record.tolist(), record["stream"].tolist(), record["event_id"].tolist(), strict=True
    ):
        if call >= 0 and stream >= 0:
            happenings.append((int(api["start_ns"][call]), _RECORD_CODE, stream, event, call))
    sources, waiting = _resolved(order, sorted(happenings))
    known = any(h[1] == _STREAM_WAIT_CODE for h in happenings)
    return Events(stream_of, sources, waiting, known)


_RECORD_CODE, _STREAM_WAIT_CODE, _HOST_WAIT_CODE = 0, 1, 2
_Happening = tuple[int, int, int, int, int]
"""Time in ns, code, stream, event, API row."""


def _resolved(
    order: Order, happenings: list[_Happening]
) -> tuple[dict[int, tuple[int, ...]], dict[int, set[int]]]:
    """What host waits and operations wait for, going through records and waits in host order.

    An event stands for what its stream had been given when it was recorded, and for what that
    stream had been told to wait for since its last operation.
    """
    number = {int(stream): n for n, stream in enumerate(order.streams.tolist())}
    meaning: dict[int, frozenset[int]] = {}
    pending: dict[int, tuple[int, frozenset[int]]] = {}  # stream -> its last operation, sources
    sources: dict[int, tuple[int, ...]] = {}
    waiting: dict[int, set[int]] = defaultdict(set)
    for time, code, stream, event, call in happenings:
        if code == _HOST_WAIT_CODE:
            if event in meaning:
                sources[call] = tuple(sorted(meaning[event]))
            continue
        last = order.last_before(number[stream], time) if stream in number else -1
        held = pending.get(stream, (-1, frozenset()))
        told: frozenset[int] = held[1] if held[0] == last else frozenset()
        if code == _RECORD_CODE:
            meaning[event] = told | ({last} if last >= 0 else set())
            continue
        pending[stream] = (last, told | meaning.get(event, frozenset()))
        target = order.first_from(number[stream], time) if stream in number else -1
        if target >= 0:
            own = int(order.stream[target])
            others = meaning.get(event, frozenset())
            waiting[target] |= {s for s in others if int(order.stream[s]) != own}
    return sources, {target: on for target, on in waiting.items() if on}


def _api_rows(api: Frame, correlation: IntArray) -> IntArray:
    """Earliest call with each correlation id; -1 for none."""
    if not len(api) or not len(correlation):
        return np.full(len(correlation), -1, np.int64)
    rows = np.flatnonzero(api["correlation_id"] > 0)
    ids = api["correlation_id"][rows]
    by_id = np.argsort(ids, kind="stable")
    at = np.searchsorted(ids[by_id], correlation)
    at = np.minimum(at, max(len(ids) - 1, 0))
    if not len(ids):
        return np.full(len(correlation), -1, np.int64)
    hit = (ids[by_id][at] == correlation) & (correlation > 0)
    return np.where(hit, rows[by_id[at]], -1).astype(np.int64)


@dataclass(frozen=True)
class HostWaits:
    """Host calls that wait, in time order.

    Attributes:
        call: API rows.
        targets: positions of the operations that each waits for.
        by_name: whether the call synchronises by its name (else it waited in fact).
    """

    call: IntArray
    targets: list[tuple[int, ...]]
    by_name: list[bool]


def host_waits(lane: Lane, order: Order, events: Events, begin_ns: int, end_ns: int) -> HostWaits:
    """The host's waits that begin in ``[begin_ns, end_ns)`` on threads that launch."""
    api = lane.host.api
    if not len(api):
        return HostWaits(np.empty(0, np.int64), [], [])
    start, end = api["start_ns"], api["end_ns"]
    inside = (start >= begin_ns) & (start < end_ns)
    inside &= np.isin(api["thread_id"], lane.host.launch_threads)
    by_name = inside & api.matches("name", words.SYNC_CALL)
    enqueues = lane.calls_of(lane.call >= 0)
    graphs = api.matches("name", _GRAPH_LAUNCH)
    long = inside & (end - start >= LONG_CALL_NS) & ~by_name & (~enqueues | graphs)
    graph_ops = (lane.call >= 0) & graphs[np.maximum(lane.call, 0)]
    is_event, is_stream = api.matches("name", _EVENT_WAIT), api.matches("name", _STREAM_WAIT)
    calls: list[int] = []
    targets: list[tuple[int, ...]] = []
    named: list[bool] = []
    op_end = lane.ops["end_ns"][order.ops]
    numbers = range(len(order.streams))
    number = {int(stream): n for n, stream in enumerate(order.streams.tolist())}
    for call in np.flatnonzero(by_name | long).tolist():
        began, ended = int(start[call]), int(end[call])
        last = [p for n in numbers if (p := order.last_before(n, began)) >= 0]
        ends = {p: int(op_end[p]) for p in last}
        found: tuple[int, ...]
        if graphs[call] or not by_name[call]:
            in_graph = graph_ops if graphs[call] else None
            found = _waited_in_fact(lane, order, op_end, last, began, ended, in_graph)
            if not found:
                continue
        elif call in events.sources:
            found = events.sources[call]
        elif call in events.stream_of:
            stream = number.get(events.stream_of[call])
            found = (
                () if stream is None else tuple(p for p in last if int(order.stream[p]) == stream)
            )
        else:
            found = tuple(p for p in last if ends[p] <= ended)
            if (is_event[call] or is_stream[call]) and found:
                # it waits for one of them; the latest, if the call waited at all
                latest = max(found, key=ends.__getitem__)
                waited = ends[latest] > began
                found = (latest,) if waited or is_stream[call] else ()
        calls.append(call)
        targets.append(found)
        named.append(bool(by_name[call]))
    return HostWaits(np.array(calls, np.int64), targets, named)


def _waited_in_fact(
    lane: Lane,
    order: Order,
    op_end: IntArray,
    last: list[int],
    began: int,
    ended: int,
    in_graph: BoolArray | None,
) -> tuple[int, ...]:
    """What a call that does not synchronise by name waited for, judging by when it returned.

    A launch of a graph waits until an earlier one has got far enough: for what was running when
    it returned, though not for its end. Other calls (allocations, module
    loading) synchronise the device: everything had ended when they returned, and not long before.
    """
    if in_graph is not None:
        low = int(np.searchsorted(order.begin_ns, began, side="left"))
        running = (lane.ops["start_ns"][order.ops[:low]] <= ended) & (op_end[:low] > began)
        running &= in_graph[order.ops[:low]]
        done = np.flatnonzero(running)
        return (int(done[np.argmax(op_end[done])]),) if len(done) else ()
    if not last:
        return ()
    latest = max(last, key=lambda p: int(op_end[p]))
    finished = int(op_end[latest])
    if began < finished <= ended and finished >= ended - max(RETURN_NS, (ended - began) // 2):
        return tuple(last)
    return ()


def operation_waits(
    lane: Lane, order: Order, events: Events
) -> tuple[dict[int, set[int]], frozenset[int]]:
    """Operations (positions) that wait for operations of other streams.

    Returns:
        Operation -> what it waits for; and the operations for which that was inferred.
    """
    waiting: dict[int, set[int]] = {k: set(v) for k, v in events.waiting.items()}
    if len(order.streams) < 2:
        return waiting, frozenset()
    inferred: set[int] = set()
    start, end = (lane.ops[c][order.ops] for c in ("start_ns", "end_ns"))
    if not events.known:
        for target, sources in _of_wait_calls(lane, order, start, end).items():
            waiting.setdefault(target, set()).update(sources)
            inferred.add(target)
    for target, source in _of_times(lane, order, start, end):
        if target not in waiting:
            waiting[target] = {source}
            inferred.add(target)
    return waiting, frozenset(inferred)


def _of_wait_calls(lane: Lane, order: Order, start: IntArray, end: IntArray) -> dict[int, set[int]]:
    """A stream was told to wait, but the capture does not say which, nor for what.

    The operation enqueued next waits for what the other streams had been given before, as far as
    that had ended when it started.
    """
    api = lane.host.api
    if not len(api):
        return {}
    calls = np.flatnonzero(api.matches("name", _STREAM_WAITS_EVENT))
    found: dict[int, set[int]] = {}
    for time in api["start_ns"][calls].tolist():
        target = int(np.searchsorted(order.begin_ns, time, side="left"))
        if target >= len(order.ops):
            continue
        own = int(order.stream[target])
        for stream in range(len(order.streams)):
            source = order.last_before(stream, time) if stream != own else -1
            if source >= 0 and end[source] <= start[target]:
                found.setdefault(target, set()).add(source)
    return found


def _of_times(lane: Lane, order: Order, start: IntArray, end: IntArray) -> list[tuple[int, int]]:
    """Operations enqueued well before that started right when one of another stream ended."""
    previous = previous_on_stream(order)
    before = np.where(previous >= 0, end[np.maximum(previous, 0)], np.iinfo(np.int64).min // 2)
    ready = np.maximum(order.begin_ns, before)
    known = lane.call[order.ops] >= 0
    late = np.flatnonzero(known & (start - ready > DEPENDENCY_NS))
    by_end = np.argsort(end, kind="stable")
    at = np.searchsorted(end[by_end], start[late], side="right") - 1
    found = []
    for target, place in zip(late.tolist(), at.tolist(), strict=True):
        for back in range(place, max(place - 4, -1), -1):
            source = int(by_end[back])
            if start[target] - end[source] > DEPENDENCY_NS or end[source] <= ready[target]:
                break
            if source < target and order.stream[source] != order.stream[target]:
                found.append((target, source))
                break
    return found


def previous_on_stream(order: Order) -> IntArray:
    """Position of each operation's predecessor on its stream; -1 for none."""
    previous = np.full(len(order.ops), -1, np.int64)
    for positions in order.of_stream:
        previous[positions[1:]] = positions[:-1]
    return previous
