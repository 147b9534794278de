"""Which host calls wait for which GPU operations, and which operations wait for which.

Synchronisations are resolved by what the capture recorded (streams and events of the ``sync`` and
``event_record`` tables); where it recorded nothing, by what had ended when the call returned.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline, Reader
from stepscope.intervals.distinct import among, distinct_values, with_inverse
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

LEFT_OPEN: Final = 0.1
"""The same as a part of how long it waited, where that is more: what explains the rest of a wait is
what it waited for. A device that works on other streams does not hold an operation back for
milliseconds by itself."""

_EVENT_WAIT = re.compile(r"EventSynchronize")
_STREAM_WAIT = re.compile(r"StreamSynchronize")
_GRAPH_LAUNCH = re.compile(r"GraphLaunch")
_STREAM_WAITS_EVENT = re.compile(r"StreamWaitEvent")


@dataclass(frozen=True)
class Order:
    """Operations in the order in which the host enqueued them.

    Attributes:
        ops: rows of ``GPU.ops``.
        begin_ns: begin of the enqueueing call of each.
        streams: CUDA stream ids.
        stream: stream number of each.
        of_stream: positions in ``ops`` of each stream's operations, by stream number.
        begin_of_stream_ns: ``begin_ns`` of each stream's operations, by stream number.
    """

    ops: IntArray
    begin_ns: IntArray
    streams: IntArray
    stream: IntArray
    of_stream: list[IntArray]
    begin_of_stream_ns: list[IntArray]

    @cached_property
    def number_of(self) -> dict[int, int]:
        """CUDA stream id -> stream number."""
        return {stream: number for number, stream in enumerate(self.streams.tolist())}

    @cached_property
    def successor(self) -> IntArray:
        """Position of each operation's successor on its stream; behind all for none."""
        found = np.full(len(self.ops), len(self.ops), np.int64)
        for positions in self.of_stream:
            found[positions[:-1]] = positions[1:]
        return found

    def last_before(self, stream: int, time_ns: IntArray) -> IntArray:
        """Position of the stream's last operation enqueued before each time; -1 for none."""
        at = np.searchsorted(self.begin_of_stream_ns[stream], time_ns, side="left") - 1
        return np.where(at >= 0, self.of_stream[stream][at], -1)

    def first_from(self, stream: int, time_ns: IntArray) -> IntArray:
        """Position of the stream's first operation enqueued at or after each time; -1 for none."""
        positions = self.of_stream[stream]
        at = np.searchsorted(self.begin_of_stream_ns[stream], time_ns, side="left")
        return np.where(at < len(positions), positions[np.minimum(at, len(positions) - 1)], -1)

    def last_of_streams(self, begin: int, end: int) -> IntArray:
        """Of the positions from ``begin`` up to ``end`` the streams' last ones before ``end``."""
        return begin + np.flatnonzero(self.successor[begin:end] >= end)


def enqueue_order(gpu: GpuTimeline) -> Order:
    """The GPU's operations in enqueue order; those of unknown call where they started."""
    begin = gpu.enqueue_begin_ns
    order = np.lexsort((gpu.ops["start_ns"], begin)).astype(np.int64)
    begin = begin[order]
    streams, stream = with_inverse(gpu.ops["stream"][order])
    by_stream = np.argsort(stream, kind="stable").astype(np.int64)
    bounds = np.searchsorted(stream[by_stream], np.arange(len(streams) + 1))
    of_stream = [by_stream[a:b] for a, b in pairwise(bounds.tolist())]
    return Order(
        order,
        begin,
        streams,
        stream.astype(np.int64),
        of_stream,
        [begin[positions] for positions in of_stream],
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


def recorded_events(gpu: GpuTimeline, read: Reader, order: Order) -> Events:
    """Resolve the recorded events."""
    sync = read("sync", "process_id", "stream", "correlation_id", "start_ns", "kind", "event_id")
    record = read("event_record", "process_id", "stream", "correlation_id", "event_id")
    sync = sync.take(sync["process_id"] == gpu.process_id)
    record = record.take(record["process_id"] == gpu.process_id)
    api = gpu.host.api
    call_of_sync = _api_rows(api, sync["correlation_id"])
    call_of_record = _api_rows(api, record["correlation_id"])
    of_event = (call_of_sync >= 0) & (sync["event_id"] >= 0)
    of_stream = (call_of_sync >= 0) & ~of_event & (sync["stream"] >= 0)
    stream_of = dict(
        zip(call_of_sync[of_stream].tolist(), sync["stream"][of_stream].tolist(), strict=True)
    )
    recorded = (call_of_record >= 0) & (record["stream"] >= 0)
    call = np.concatenate((call_of_sync[of_event], call_of_record[recorded]))
    if not len(call):
        return Events(stream_of, {}, {}, known=False)
    stream_waits = api.matches("name", _STREAM_WAITS_EVENT)[call]
    stream_waits[int(of_event.sum()) :] = False
    code = np.where(stream_waits, _STREAM_WAIT_CODE, _HOST_WAIT_CODE)
    code[int(of_event.sum()) :] = _RECORD_CODE
    happenings = _Happenings(
        time_ns=api["start_ns"][call],
        code=code,
        stream=np.concatenate((sync["stream"][of_event], record["stream"][recorded])),
        event=np.concatenate((sync["event_id"][of_event], record["event_id"][recorded])),
        call=call,
    )
    sources, waiting = _resolved(order, happenings)
    return Events(stream_of, sources, waiting, bool(stream_waits.any()))


_RECORD_CODE, _STREAM_WAIT_CODE, _HOST_WAIT_CODE = 0, 1, 2


@dataclass(frozen=True)
class _Happenings:
    """Records of events and waits for them."""

    time_ns: IntArray
    code: IntArray
    stream: IntArray
    event: IntArray
    call: IntArray


def _resolved(
    order: Order, h: _Happenings
) -> tuple[dict[int, tuple[int, ...]], dict[int, set[int]]]:
    """What host waits and operations wait for, going through records and waits in host order.

    An event stands for what its stream had been given when it was recorded, and for what that
    stream had been told to wait for since its last operation. Of several operations of one stream
    the last stands for all.
    """
    sequence = np.lexsort((h.call, h.event, h.stream, h.code, h.time_ns))
    last, target = np.full((2, len(sequence)), -1, np.int64)
    for stream in distinct_values(h.stream).tolist():
        if (number := order.number_of.get(stream)) is not None:
            mine = np.flatnonzero(h.stream == stream)
            last[mine] = order.last_before(number, h.time_ns[mine])
            target[mine] = order.first_from(number, h.time_ns[mine])
    of_position = order.stream.tolist() if len(sequence) > len(order.stream) // 8 else order.stream
    meaning: dict[int, dict[int, int]] = {}  # event -> stream number -> position
    pending: dict[int, tuple[int, dict[int, int]]] = {}  # stream -> its last operation, sources
    nothing: dict[int, int] = {}
    sources: dict[int, tuple[int, ...]] = {}
    waiting: dict[int, set[int]] = defaultdict(set)
    columns = (h.code, h.stream, h.event, h.call, last, target)
    for code, stream, event, call, before, next_ in zip(
        *(column[sequence].tolist() for column in columns), strict=True
    ):
        if code == _HOST_WAIT_CODE:
            if event in meaning:
                sources[call] = tuple(sorted(meaning[event].values()))
            continue
        held = pending.get(stream, (-1, nothing))
        facts = held[1] if held[0] == before else nothing
        if code == _RECORD_CODE:
            own = {int(of_position[before]): before} if before >= 0 else nothing
            meaning[event] = {**facts, **own}
            continue
        meant = meaning.get(event, nothing)
        pending[stream] = (before, _latest(facts, meant))
        if next_ >= 0:
            number = int(of_position[next_])
            waiting[next_] |= {p for s, p in meant.items() if s != number}
    return sources, {target: on for target, on in waiting.items() if on}


def _latest(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    """The later position of each stream."""
    found = dict(one)
    for stream, position in other.items():
        if found.get(stream, -1) < position:
            found[stream] = position
    return found


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


def host_waits(
    gpu: GpuTimeline, order: Order, events: Events, begin_ns: int, end_ns: int
) -> HostWaits:
    """The host's waits that begin in ``[begin_ns, end_ns)`` on threads that launch."""
    api = gpu.host.api
    if not len(api):
        return HostWaits(np.empty(0, np.int64), [], [])
    start, end = api["start_ns"], api["end_ns"]
    inside = (start >= begin_ns) & (start < end_ns)
    inside &= among(api["thread_id"], gpu.host.launch_threads)
    by_name = inside & api.matches("name", words.SYNC_CALL)
    enqueues = gpu.calls_of(gpu.call >= 0)
    graphs = api.matches("name", _GRAPH_LAUNCH)
    long = inside & (end - start >= LONG_CALL_NS) & ~by_name & (~enqueues | graphs)
    is_event, is_stream = api.matches("name", _EVENT_WAIT), api.matches("name", _STREAM_WAIT)
    rows = np.flatnonzero(by_name | long)
    began, ended = start[rows], end[rows]
    enqueued = np.searchsorted(order.begin_ns, began, side="left")
    device = _Queued(order, gpu.ops["end_ns"][order.ops])
    in_graphs = _InGraphs(gpu, order, graphs) if (graphs[rows] & ~by_name[rows]).any() else None
    calls: list[int] = []
    targets: list[tuple[int, ...]] = []
    named: list[bool] = []
    columns = (
        rows,
        began,
        ended,
        enqueued,
        by_name[rows],
        graphs[rows],
        (is_event | is_stream)[rows],
    )
    for call, at, until, count, synchronises, graph, of_one in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        found: tuple[int, ...]
        if in_graphs is not None and graph and not synchronises:
            found = in_graphs.running(at, until, count)
        elif not synchronises:
            found = device.emptied(at, until, count)
        elif call in events.sources:
            found = events.sources[call]
        elif call in events.stream_of:
            found = device.last_of(events.stream_of[call], count)
        elif of_one:
            found = device.latest(until, count)
            if is_event[call] and not (found and device.end_ns[found[0]] > at):
                # it waits for one of them: the latest, or one before it that ended as it returned
                found = device.just_ended(at, until, count)
        else:
            found = device.everything(until, count)
        if not synchronises and not found:
            continue
        calls.append(call)
        targets.append(found)
        named.append(synchronises)
    return HostWaits(np.array(calls, np.int64), targets, named)


class _Queued:
    """What the device had been given before each of some calls, asked for in time order.

    Args:
        order: the operations.
        end_ns: their ends.
    """

    def __init__(self, order: Order, end_ns: IntArray) -> None:
        self.end_ns = end_ns
        self._order = order
        self._latest_end_ns = np.maximum.accumulate(end_ns)
        self._by_end = np.argsort(end_ns, kind="stable")
        self._sorted_ns = end_ns[self._by_end]
        self._left = np.empty(0, np.int64)  # given before the last wait for all, and not done by it
        self._seen = 0

    def last_of(self, stream: int, count: int) -> tuple[int, ...]:
        """The last operation of a CUDA stream among the first ``count``."""
        number = self._order.number_of.get(stream)
        if number is None:
            return ()
        positions = self._order.of_stream[number]
        at = int(np.searchsorted(positions, count)) - 1
        return (int(positions[at]),) if at >= 0 else ()

    def everything(self, until_ns: int, count: int) -> tuple[int, ...]:
        """The streams' last operations among the first ``count``, those that had ended by a time.

        What an earlier such wait has waited for is left out: the host has passed that wait.
        """
        successor = self._order.successor
        fresh = self._order.last_of_streams(min(self._seen, count), count)
        waited = np.concatenate((self._left[successor[self._left] >= count], fresh))
        done = self.end_ns[waited] <= until_ns
        self._left, self._seen = waited[~done], max(self._seen, count)
        found: list[int] = waited[done].tolist()
        return tuple(found)

    def latest(self, until_ns: int, count: int) -> tuple[int, ...]:
        """The streams' last operation among the first ``count`` that ended last, up to a time."""
        successor = self._order.successor
        place = int(np.searchsorted(self._sorted_ns, until_ns, side="right")) - 1
        for back in range(place, max(place - _FAR, -1), -1):
            position = int(self._by_end[back])
            if position < count <= successor[position]:
                return (position,)
        return ()

    def just_ended(self, began_ns: int, until_ns: int, count: int) -> tuple[int, ...]:
        """The operation among the first ``count`` that ended right before a call returned.

        An event may stand for work that has more behind it on its stream by then: loops that keep
        a step ahead of the device wait for the step before.
        """
        place = int(np.searchsorted(self._sorted_ns, until_ns, side="right")) - 1
        for back in range(place, max(place - _FAR, -1), -1):
            position = int(self._by_end[back])
            end = int(self.end_ns[position])
            if end <= began_ns or end < until_ns - RETURN_NS:
                return ()
            if position < count:
                return (position,)
        return ()

    def emptied(self, began_ns: int, until_ns: int, count: int) -> tuple[int, ...]:
        """What a call waited for that returned when everything had ended, and not long before.

        Calls that do not synchronise by name (allocations, module loading) may synchronise the
        device all the same: that is judged by when they returned.
        """
        if not count:
            return ()
        finished = int(self._latest_end_ns[count - 1])
        nearly = max(RETURN_NS, (until_ns - began_ns) // 2)
        if not (began_ns < finished <= until_ns and finished >= until_ns - nearly):
            return ()
        return self.everything(until_ns, count)


_FAR: Final = 4096
"""So many operations that ended before a wait returned are looked at for the one it waited for."""


class _InGraphs:
    """Operations of CUDA graphs: a launch of one waits until an earlier one has got far enough.

    Args:
        gpu: the device.
        order: its operations.
        graphs: API calls that launch graphs.
    """

    def __init__(self, gpu: GpuTimeline, order: Order, graphs: BoolArray) -> None:
        ops = gpu.ops
        self._rows = np.flatnonzero((gpu.call >= 0) & graphs[np.maximum(gpu.call, 0)])
        place = np.empty(len(ops), np.int64)
        place[order.ops] = np.arange(len(ops))
        self._position = place[self._rows]
        self._start_ns, self._end_ns = ops["start_ns"][self._rows], ops["end_ns"][self._rows]
        self._latest_end_ns = np.maximum.accumulate(self._end_ns)

    def running(self, began_ns: int, until_ns: int, count: int) -> tuple[int, ...]:
        """What ran when a call returned, of the first ``count``: that which ended last.

        The call waited for it to get so far, though not for its end.
        """
        low = int(np.searchsorted(self._latest_end_ns, began_ns, side="right"))
        high = int(np.searchsorted(self._start_ns, until_ns, side="right"))
        end = self._end_ns[low:high]
        running = np.flatnonzero((end > began_ns) & (self._position[low:high] < count))
        if not len(running):
            return ()
        ended = end[running]
        latest = running[ended == ended.max()]
        return (int(self._position[low:high][latest].min()),)


def operation_waits(
    gpu: GpuTimeline, order: Order, events: Events
) -> tuple[dict[int, set[int]], frozenset[int]]:
    """Operations (positions) that wait for operations of other streams.

    Returns:
        Operation -> what it waits for; and the operations for which that was inferred.
    """
    waiting: dict[int, set[int]] = {k: set(v) for k, v in events.waiting.items()}
    if len(order.streams) < 2:
        return waiting, frozenset()
    inferred: set[int] = set()
    start, end = (gpu.ops[c][order.ops] for c in ("start_ns", "end_ns"))
    if not events.known:
        for target, sources in _of_wait_calls(gpu, order, start, end).items():
            waiting.setdefault(target, set()).update(sources)
            inferred.add(target)
    for target, source in _of_times(gpu, order, waiting):
        waiting.setdefault(target, set()).add(source)
        inferred.add(target)
    return waiting, frozenset(inferred)


def _of_wait_calls(
    gpu: GpuTimeline, order: Order, start: IntArray, end: IntArray
) -> dict[int, set[int]]:
    """A stream was told to wait, but the capture does not say which, nor for what.

    The operation enqueued next waits for what the other streams had been given before, as far as
    that had ended when it started. Of many streams, those that were given something lately count.
    """
    api = gpu.host.api
    if not len(api):
        return {}
    times = api["start_ns"][api.matches("name", _STREAM_WAITS_EVENT)]
    targets = np.searchsorted(order.begin_ns, times, side="left")
    times, targets = times[targets < len(order.ops)], targets[targets < len(order.ops)]
    found: dict[int, set[int]] = defaultdict(set)
    if len(order.streams) <= _FEW_STREAMS:
        for stream in range(len(order.streams)):
            source = order.last_before(stream, times)
            holds = (source >= 0) & (order.stream[targets] != stream)
            holds &= end[source] <= start[targets]
            for target, one in zip(targets[holds].tolist(), source[holds].tolist(), strict=True):
                found[target].add(one)
        return found
    for target in distinct_values(targets).tolist():
        source = order.last_of_streams(max(target - _LATELY, 0), target)
        holds = (order.stream[source] != order.stream[target]) & (end[source] <= start[target])
        if holds.any():
            found[target] = set(source[holds][-_FEW_STREAMS:].tolist())
    return found


_FEW_STREAMS: Final = 16
_LATELY: Final = 256
"""Operations ahead among which those of other streams are looked for where streams are many."""


def _of_times(
    gpu: GpuTimeline, order: Order, waiting: dict[int, set[int]]
) -> list[tuple[int, int]]:
    """Operations enqueued well before that started right when one of another stream ended.

    All that they are known to wait for had ended before: libraries wait for events of their own
    streams, of which a capture may hold some and not others. Where it holds no launching call at
    all, what another stream worked on until then is what explains a wait, and nothing else does.
    """
    start, end = (gpu.ops[c][order.ops] for c in ("start_ns", "end_ns"))
    previous = previous_on_stream(order)
    before = np.where(previous >= 0, end[np.maximum(previous, 0)], np.iinfo(np.int64).min // 2)
    known = gpu.call[order.ops] >= 0
    unseen = not known.any()
    ready = before if unseen else np.maximum(order.begin_ns, before)
    for target, sources in waiting.items():
        ready[target] = max(ready[target], *(int(end[source]) for source in sources))
    late = np.flatnonzero((known | (unseen & (previous >= 0))) & (start - ready > DEPENDENCY_NS))
    open_ns = (1.0 if unseen else LEFT_OPEN) * (start - ready)
    within = np.maximum(DEPENDENCY_NS, open_ns.astype(np.int64))
    by_end = np.argsort(end, kind="stable")
    at = np.searchsorted(end[by_end], start[late], side="right") - 1
    found = []
    for target, place in zip(late.tolist(), at.tolist(), strict=True):
        for back in range(place, max(place - 4, -1), -1):
            source = int(by_end[back])
            if start[target] - end[source] > within[target] or end[source] <= ready[target]:
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
