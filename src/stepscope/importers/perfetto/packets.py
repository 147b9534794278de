"""Packets of a trace as columns: the tracks, and the begins and ends of slices on them.

Numbers of fields are those of ``perfetto/trace/trace_packet.proto`` and ``track_event/*.proto``.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from stepscope.importers.common.protobuf import (
    DamageError,
    Fields,
    fields,
    places,
    walk,
)
from stepscope.importers.common.texts import StringTable
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

_PACKET: Final = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS = 8, 10, 11, 12, 13
_CLEARED, _CLOCK, _DEFAULTS, _DESCRIPTOR = 41, 58, 59, 60
_EVENT_NAMES: Final = 2
_TYPE, _NAME_ID, _TRACK, _NAME, _FLOW, _FLOW_END = 9, 10, 11, 23, 47, 48
_OLD_FLOW, _OLD_FLOW_END = 36, 42
_BEGIN, _END, _INSTANT = 1, 2, 3
_UUID, _TITLE, _PROCESS, _THREAD, _PARENT, _STATIC = 1, 2, 3, 4, 5, 10
_RESET: Final = 1
_AT_ONCE: Final = 1 << 17
_FIRST_LOCAL_CLOCK: Final = 64
_LONGEST_TEXT: Final = 1 << 16
_KNOWN: Final = frozenset(
    {(8, 0), (10, 0), (13, 0), (41, 0), (42, 0), (58, 0), (79, 0), (87, 0)}
    | {(n, 2) for n in (1, 2, 6, 11, 12, 33, 35, 36, 43, 44, 45, 50, 53, 56, 59, 60, 67, 88, 89)}
)
"""Fields of a packet, and how each is written."""
_TELLING: Final = frozenset({(8, 0), (10, 0), (6, 2), (60, 2)})


def looks_like_packets(head: bytes) -> bool:
    """Whether the beginning of a file is a row of packets with times, sequences or tracks."""
    found: list[frozenset[tuple[int, int]]] = []
    at = 0
    while at < len(head) and len(found) < 8:
        try:
            number, begin, end, _ = next(walk(head, at, len(head)))
        except DamageError:
            break  # the last one is cut off
        if number != _PACKET:
            return False
        parts = _shape(head, begin, end)
        if parts is None:
            return False
        found.append(parts)
        at = end
    if not found and len(head) >= 1 << 12:  # one packet as long as all that is seen
        return False
    return (
        bool(found)
        and all(parts and parts <= _KNOWN for parts in found)
        and any(parts & _TELLING for parts in found)
    )


def _shape(data: bytes, begin: int, end: int) -> frozenset[tuple[int, int]] | None:
    """Numbers and kinds of a message's fields; None where it is none."""
    found = set()
    at = begin
    try:
        while at < end:
            kind = data[at] & 7
            number, _, after, _ = next(walk(data, at, end))
            found.add((number, kind))
            at = after
    except DamageError:
        return None
    return frozenset(found)


@dataclass(frozen=True)
class Track:
    """One track.

    Attributes:
        title: its name.
        parent: the track above it; 0 where it stands alone.
        process: operating-system process, 0 where not told.
        thread: operating-system thread, 0 where not told.
        owner: name of the process or thread.
    """

    title: str = ""
    parent: int = 0
    process: int = 0
    thread: int = 0
    owner: str = ""


@dataclass
class Trace:
    """What a trace holds.

    Attributes:
        tracks: by uuid.
        names: texts of slices.
        slices: columns ``track``, ``time``, ``begins`` (1, 0 for an end), ``name``, ``flow``.
        instants: events without duration.
        local_clocks: packets whose times are on a clock that only their writer knows.
    """

    tracks: dict[int, Track] = field(default_factory=dict)
    names: StringTable = field(default_factory=StringTable)
    parts: list[tuple[IntArray, IntArray, BoolArray, IntArray, IntArray]] = field(
        default_factory=list
    )
    instants: int = 0
    local_clocks: int = 0

    def slices(self) -> tuple[IntArray, IntArray, BoolArray, IntArray, IntArray]:
        """All begins and ends: track, time, whether it begins, name, flow."""
        if not self.parts:
            none = np.empty(0, np.int64)
            return none, none, np.empty(0, bool), none, none
        track, time, begins, name, flow = (
            np.concatenate(column) for column in zip(*self.parts, strict=True)
        )
        return track, time, begins, name, flow


def read_packets(data: mmap.mmap) -> Trace:
    """All packets of a file.

    Raises:
        DamageError: it is none, or not whole.
    """
    array: AnyArray = np.frombuffer(data, np.uint8)
    trace = Trace()
    interned = _Interned(trace.names)
    defaults: dict[int, tuple[int, int]] = {}
    for begin, end in _packets(data):
        found = fields(array, begin, end)
        count = len(begin)
        sequence = found.numbers(_SEQUENCE, count, 0)
        cleared = (found.numbers(_FLAGS, count, 0) & _RESET) > 0
        cleared |= found.numbers(_CLEARED, count, 0) > 0
        generation = interned.generations(sequence, cleared)
        for row, at, to in _each(found.of(_DEFAULTS)):
            defaults[int(sequence[row])] = _defaults(data, at, to)
        for _, at, to in _each(found.of(_DESCRIPTOR)):
            uuid, track = _track(data, at, to)
            trace.tracks[uuid] = track
        for row, at, to in _each(found.of(_INTERNED)):
            interned.add(data, at, to, (int(sequence[row]), int(generation[row])))
        clock = found.numbers(_CLOCK, count, 0)
        for own, (default, _) in defaults.items():
            clock = np.where((clock == 0) & (sequence == own), default, clock)
        trace.local_clocks += int((clock >= _FIRST_LOCAL_CLOCK).sum())
        events = found.of(_EVENT)
        if len(events.message):
            time = found.numbers(_TIMESTAMP, count, 0)
            _events(trace, array, data, events, (sequence, generation, time), interned, defaults)
    return trace


def _packets(data: mmap.mmap) -> Iterator[tuple[IntArray, IntArray]]:
    return places(data, 0, len(data), _PACKET, _AT_ONCE)


def _each(found: Fields) -> Iterator[tuple[int, int, int]]:
    return zip(found.message.tolist(), found.begin.tolist(), found.end.tolist(), strict=True)


class _Interned:
    """Texts that packets refer to by number, for each writer and each time it began again."""

    def __init__(self, names: StringTable) -> None:
        self._names = names
        self._began: dict[int, int] = {}
        self._codes: dict[tuple[int, int, int], int] = {}

    def generations(self, sequence: IntArray, cleared: BoolArray) -> IntArray:
        """How often the writer of each packet has begun again."""
        found = np.zeros(len(sequence), np.int64)
        for own in distinct_values(sequence).tolist():
            rows = np.flatnonzero(sequence == own)
            found[rows] = self._began.get(own, 0) + np.cumsum(cleared[rows])
            self._began[own] = int(found[rows[-1]])
        return found

    def add(self, data: mmap.mmap, begin: int, end: int, writer: tuple[int, int]) -> None:
        """Take over the texts of a packet."""
        for number, at, to, _ in walk(data, begin, end):
            if number == _EVENT_NAMES:
                held = {n: (a, b, value) for n, a, b, value in walk(data, at, to)}
                iid = held.get(1, (0, 0, 0))[2]
                a, b, _ = held.get(2, (0, 0, 0))
                text = data[a : min(b, a + _LONGEST_TEXT)].decode("utf-8", "replace")
                self._codes[(*writer, iid)] = self._names.code(text)

    def codes(self, sequence: IntArray, generation: IntArray, iid: IntArray) -> IntArray:
        """Codes of the names of events; -1 where nothing tells them."""
        found = self._codes
        keys = zip(sequence.tolist(), generation.tolist(), iid.tolist(), strict=True)
        return np.fromiter((found.get(key, -1) for key in keys), np.int64, len(iid))


def _events(
    trace: Trace,
    array: AnyArray,
    data: mmap.mmap,
    events: Fields,
    packet: tuple[IntArray, IntArray, IntArray],
    interned: _Interned,
    defaults: dict[int, tuple[int, int]],
) -> None:
    sequence, generation, time = (column[events.message] for column in packet)
    inner = fields(array, events.begin, events.end)
    count = len(events.message)
    kind = inner.numbers(_TYPE, count, 0)
    track = inner.numbers(_TRACK, count, 0)
    for own, (_, default) in defaults.items():
        track = np.where((track == 0) & (sequence == own), default, track)
    flow = np.full(count, -1, np.int64)
    for number in (_OLD_FLOW, _OLD_FLOW_END, _FLOW, _FLOW_END):
        known = inner.of(number)
        flow[known.message] = known.value.astype(np.int64)
    name = interned.codes(sequence, generation, inner.numbers(_NAME_ID, count, -1))
    written = inner.of(_NAME)
    for row, at, to in _each(written):
        text = data[at : min(to, at + _LONGEST_TEXT)].decode("utf-8", "replace")
        name[row] = trace.names.code(text)
    trace.instants += int((kind == _INSTANT).sum())
    rows = np.flatnonzero((kind == _BEGIN) | (kind == _END))
    trace.parts.append((track[rows], time[rows], kind[rows] == _BEGIN, name[rows], flow[rows]))


def _defaults(data: mmap.mmap, begin: int, end: int) -> tuple[int, int]:
    """Clock and track of packets that name none."""
    clock = track = 0
    for number, at, to, value in walk(data, begin, end):
        if number == _CLOCK:
            clock = value
        elif number == _EVENT:
            track = next((v for n, _, _, v in walk(data, at, to) if n == _TRACK), 0)
    return clock, _signed(track)


def _track(data: mmap.mmap, begin: int, end: int) -> tuple[int, Track]:
    uuid = parent = process = thread = 0
    title = owner = ""
    for number, at, to, value in walk(data, begin, end):
        if number == _UUID:
            uuid = _signed(value)
        elif number == _PARENT:
            parent = _signed(value)
        elif number in (_TITLE, _STATIC):
            title = data[at : min(to, at + _LONGEST_TEXT)].decode("utf-8", "replace")
        elif number in (_PROCESS, _THREAD):
            for n, a, b, v in walk(data, at, to):
                if n == 1:
                    process = v
                elif n == 2 and number == _THREAD:
                    thread = v
                elif n in (5, 6) and b > a and not v:
                    owner = data[a : min(b, a + _LONGEST_TEXT)].decode("utf-8", "replace")
    small = (process if process < 2**31 else 0, thread if thread < 2**31 else 0)
    return uuid, Track(title, parent, *small, owner)


def _signed(value: int) -> int:
    """A number of 64 bits as numpy holds it."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value
