"""The planes of an XSpace, their tables of names, and their events as columns.

Numbers of fields are those of ``tsl/profiler/protobuf/xplane.proto``, which never change.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from stepscope.importers.common.protobuf import (
    Bytes,
    DamageError,
    Fields,
    distinct_texts,
    fields,
    others,
    places,
    texts_at,
    walk,
)
from stepscope.intervals.distinct import among, with_inverse
from stepscope.trace.frame import IntArray

_PLANES, _HOSTS = 1, 4
_PLANE_NAME, _LINES, _EVENT_NAMES, _STAT_NAMES, _PLANE_STATS = 2, 3, 4, 5, 6
_LINE_ID, _LINE_NAME, _TIMESTAMP_NS, _EVENTS, _DISPLAY_NAME = 1, 2, 3, 4, 11
_EVENT_NAME, _OFFSET_PS, _DURATION_PS, _EVENT_STATS, _OCCURRENCES = 1, 2, 3, 4, 5
_STAT_NAME, _DOUBLE, _UNSIGNED, _SIGNED, _STRING, _BYTES, _REFERENCE = 1, 2, 3, 4, 5, 6, 7
_MAP_KEY, _MAP_VALUE = 1, 2
_META_NAME, _META_DISPLAY, _META_STATS = 2, 4, 5

MISSING: Final = np.iinfo(np.int64).min
"""Stands for a number that an event does not tell."""
_EVENTS_AT_ONCE: Final = 1 << 17
_LONGEST_TEXT: Final = 1 << 16
_PS: Final = 1000


@dataclass(frozen=True)
class Span:
    """Where a message lies in the file."""

    begin: int
    end: int


@dataclass
class Events:
    """Events of one line, in the order of the file.

    Attributes:
        name: number of each one's name, as in ``Plane.names``.
        start_ns: begins, ns on the profile's clock.
        end_ns: ends, ns.
        stats: their stats; ``message`` is the event.
    """

    name: IntArray
    start_ns: IntArray
    end_ns: IntArray
    stats: Stats

    def __len__(self) -> int:
        return len(self.name)


@dataclass
class Stats:
    """What events or a plane tell, by the name of what is told.

    Attributes:
        plane: holds the names.
        owner: event of each stat.
        key: number of its name.
        kind: which field holds the value.
        value: its bits.
        begin: where a text begins.
        end: where a text ends.
        events: number of events.
    """

    plane: Plane
    owner: IntArray
    key: IntArray
    kind: IntArray
    value: IntArray
    begin: IntArray
    end: IntArray
    events: int

    def numbers(self, name: str) -> IntArray:
        """The whole number that each event tells under a name; ``MISSING`` where none."""
        found = np.full(self.events, MISSING, np.int64)
        for key in self.plane.keys(name):
            mine = np.flatnonzero(self.key == key)
            whole = mine[among(self.kind[mine], (_UNSIGNED, _SIGNED))]
            found[self.owner[whole]] = self.value[whole]
            real = mine[self.kind[mine] == _DOUBLE]
            if len(real):
                read = self.value[real].view(np.float64)
                sound = np.isfinite(read) & (np.abs(read) < 2**62)
                found[self.owner[real[sound]]] = read[sound].astype(np.int64)
            if len(mine) > len(whole) + len(real):
                self._written(name, found)
        return found

    def _written(self, name: str, found: IntArray) -> None:
        """Fill in the numbers that are written as text, as XLA does with contexts: ``$$1``."""
        texts: list[str] = []
        code = self.texts(name, texts)
        digits = [text.lstrip("$") for text in texts]
        sound = [d.isdecimal() and d.isascii() and len(d) < 19 for d in digits]
        values = [int(d) if good else MISSING for d, good in zip(digits, sound, strict=True)]
        held = np.array([*values, MISSING], np.int64)[code]
        np.copyto(found, held, where=held != MISSING)

    def texts(self, name: str, known: list[str]) -> IntArray:
        """Place in ``known`` of the text that each event tells under a name; -1 where none.

        Args:
            name: what is asked for.
            known: receives the distinct texts.
        """
        found = np.full(self.events, -1, np.int64)
        code_of = {text: code for code, text in enumerate(known)}

        def code(text: str) -> int:
            if text not in code_of:
                code_of[text] = len(known)
                known.append(text)
            return code_of[text]

        for key in self.plane.keys(name):
            mine = np.flatnonzero(self.key == key)
            by_name = mine[self.kind[mine] == _REFERENCE]
            if len(by_name):
                values, place = with_inverse(self.value[by_name])
                codes = [code(self.plane.stat_names.get(v, "")) for v in values.tolist()]
                found[self.owner[by_name]] = np.array(codes, np.int64)[place]
            written = mine[among(self.kind[mine], (_STRING, _BYTES))]
            if len(written):
                begin = self.begin[written]
                end = np.minimum(self.end[written], begin + _LONGEST_TEXT)
                raw, place = distinct_texts(self.plane.data, self.plane.bytes, begin, end)
                codes = [code(text.decode("utf-8", "replace")) for text in raw]
                found[self.owner[written]] = np.array(codes, np.int64)[place]
        return found

    def _text(self, row: int) -> str:
        if self.kind[row] == _REFERENCE:
            return self.plane.stat_names.get(int(self.value[row]), "")
        begin = int(self.begin[row])
        end = min(int(self.end[row]), begin + _LONGEST_TEXT)
        return self.plane.data[begin:end].decode("utf-8", "replace")

    def facts(self) -> dict[str, str | int | float]:
        """All of them as a dictionary, for the few of a plane."""
        found: dict[str, str | int | float] = {}
        for row in range(len(self.owner)):
            name = self.plane.stat_names.get(int(self.key[row]))
            if name is None:
                continue
            kind = int(self.kind[row])
            if kind == _DOUBLE:
                found[name] = float(self.value[row : row + 1].view(np.float64)[0])
            elif kind in (_UNSIGNED, _SIGNED):
                found[name] = int(self.value[row])
            elif kind in (_STRING, _BYTES, _REFERENCE):
                found[name] = self._text(row)
        return found

    def blobs(self, name: str) -> list[Span]:
        """Where the bytes lie that are told under a name."""
        keys = self.plane.keys(name)
        return [
            Span(int(self.begin[row]), int(self.end[row]))
            for row in range(len(self.owner))
            if int(self.key[row]) in keys and int(self.kind[row]) in (_STRING, _BYTES)
        ]


@dataclass
class Line:
    """One line of a plane: a stream, a thread, or what was derived of them.

    Attributes:
        plane: the plane.
        span: where it lies.
        id: its number.
        name: its name.
        timestamp_ns: what its events' offsets count from, ns.
    """

    plane: Plane
    span: Span
    id: int = 0
    name: str = ""
    timestamp_ns: int = 0

    def events(self) -> Iterator[Events]:
        """The events, some at a time.

        Raises:
            DamageError: they cannot be read.
        """
        plane = self.plane
        for begin, end in places(
            plane.data, self.span.begin, self.span.end, _EVENTS, _EVENTS_AT_ONCE
        ):
            found = fields(plane.bytes, begin, end)
            count = len(begin)
            name = found.numbers(_EVENT_NAME, count, 0)
            offset = found.numbers(_OFFSET_PS, count, 0)
            duration = found.numbers(_DURATION_PS, count, 0)
            timed = np.ones(count, bool)
            timed[found.of(_OCCURRENCES).message] = False
            # rounded down alike, so that what touches in picoseconds touches in nanoseconds
            start = self.timestamp_ns + offset // _PS
            past = self.timestamp_ns + (offset + duration) // _PS
            stats = plane.stats_of(found.of(_EVENT_STATS), count)
            if timed.all():
                yield Events(name, start, past, stats)
            else:
                yield _only(Events(name, start, past, stats), np.flatnonzero(timed))


def _only(events: Events, rows: IntArray) -> Events:
    place = np.full(len(events), -1, np.int64)
    place[rows] = np.arange(len(rows))
    old = events.stats
    kept = np.flatnonzero(place[old.owner] >= 0)
    stats = Stats(
        old.plane,
        place[old.owner[kept]],
        old.key[kept],
        old.kind[kept],
        old.value[kept],
        old.begin[kept],
        old.end[kept],
        len(rows),
    )
    return Events(events.name[rows], events.start_ns[rows], events.end_ns[rows], stats)


@dataclass
class Plane:
    """A device, the host, or what describes the profile.

    Attributes:
        data: the file.
        bytes: the same for numpy.
        name: its name.
        names: text of each event's name, by number.
        stat_names: names of stats, and texts that stats refer to, by number.
        lines: its lines.
    """

    data: mmap.mmap
    bytes: Bytes
    name: str = ""
    names: dict[int, str] = field(default_factory=dict)
    stat_names: dict[int, str] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    _stats: list[Span] = field(default_factory=list)
    _metadata: dict[int, Span] = field(default_factory=dict)

    @cached_property
    def _keys(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number, name in self.stat_names.items():
            found.setdefault(name, []).append(number)
        return found

    def keys(self, name: str) -> Collection[int]:
        """Numbers of the stats of a name."""
        return self._keys.get(name, ())

    def stats_of(self, found: Fields, events: int) -> Stats:
        """The stats in some fields of events."""
        each = fields(self.bytes, found.begin, found.end)
        count = len(found.message)
        key = each.numbers(_STAT_NAME, count, 0)
        kind = np.zeros(count, np.int64)
        value = np.zeros(count, np.int64)
        begin = np.zeros(count, np.int64)
        end = np.zeros(count, np.int64)
        reported = each.take((each.number >= _DOUBLE) & (each.number <= _REFERENCE))
        kind[reported.message] = reported.number
        value[reported.message] = reported.value.view(np.int64)
        begin[reported.message] = reported.begin
        end[reported.message] = reported.end
        return Stats(self, found.message, key, kind, value, begin, end, events)

    @cached_property
    def facts(self) -> dict[str, str | int | float]:
        """What the plane itself tells."""
        begin = np.array([span.begin for span in self._stats], np.int64)
        end = np.array([span.end for span in self._stats], np.int64)
        none = np.zeros(len(begin), np.int64)
        held = Fields(none, none + _PLANE_STATS, none.astype(np.uint64), begin, end)
        return self.stats_of(held, 1).facts()

    def metadata(self) -> Iterator[tuple[str, Stats]]:
        """Names of events with what is told of all events of the name."""
        for number, span in self._metadata.items():
            found = [
                (begin, end)
                for field_, begin, end, _ in walk(self.data, span.begin, span.end)
                if field_ == _META_STATS
            ]
            begin = np.array([b for b, _ in found], np.int64)
            end = np.array([e for _, e in found], np.int64)
            none = np.zeros(len(found), np.int64)
            held = Fields(none, none, none.astype(np.uint64), begin, end)
            yield self.names[number], self.stats_of(held, 1)


def planes_of(data: mmap.mmap) -> tuple[list[Plane], list[str]]:
    """The planes of a file, without their events, and the host names that it tells.

    Raises:
        DamageError: it is none, or not whole.
    """
    array = np.frombuffer(data, np.uint8)
    planes, hosts = [], []
    for number, begin, end, _ in walk(data, 0, len(data)):
        if number == _PLANES:
            planes.append(_plane(data, array, Span(begin, end)))
        elif number == _HOSTS:
            hosts.append(_text(data, begin, end))
    return planes, hosts


def _plane(data: mmap.mmap, array: Bytes, span: Span) -> Plane:
    plane = Plane(data, array)
    events: list[Span] = []
    stats: list[Span] = []
    for number, begin, end, _ in walk(data, span.begin, span.end):
        if number == _PLANE_NAME:
            plane.name = _text(data, begin, end)
        elif number == _LINES:
            plane.lines.append(_line(plane, Span(begin, end)))
        elif number == _EVENT_NAMES:
            events.append(Span(begin, end))
        elif number == _STAT_NAMES:
            stats.append(Span(begin, end))
        elif number == _PLANE_STATS:
            plane._stats.append(Span(begin, end))
    for key, name, held in _entries(data, array, events):
        plane.names[key] = name
        plane._metadata[key] = held
    plane.stat_names = {key: name for key, name, _ in _entries(data, array, stats)}
    return plane


def _entries(data: mmap.mmap, array: Bytes, spans: list[Span]) -> list[tuple[int, str, Span]]:
    """Entries of a map from numbers to messages that have a name: number, name, message."""
    begin = np.array([span.begin for span in spans], np.int64)
    end = np.array([span.end for span in spans], np.int64)
    entry = fields(array, begin, end)
    key = entry.numbers(_MAP_KEY, len(spans), 0)
    held_at = np.zeros(len(spans), np.int64)
    held_to = np.zeros(len(spans), np.int64)
    held = entry.of(_MAP_VALUE)
    held_at[held.message], held_to[held.message] = held.begin, held.end
    inner = fields(array, held_at, held_to)
    shown = [""] * len(spans)
    for number in (_META_NAME, _META_DISPLAY):
        texts = inner.of(number)
        for row, raw in zip(
            texts.message.tolist(), texts_at(data, texts.begin, texts.end), strict=True
        ):
            shown[row] = shown[row] or raw[:_LONGEST_TEXT].decode("utf-8", "replace")
    spans = [Span(a, b) for a, b in zip(held_at.tolist(), held_to.tolist(), strict=True)]
    return list(zip(key.tolist(), shown, spans, strict=True))


def _line(plane: Plane, span: Span) -> Line:
    line = Line(plane, span)
    shown = ""
    for number, begin, end, value in others(plane.data, span.begin, span.end, _EVENTS):
        if number == _LINE_ID:
            line.id = value - (1 << 64) if value >= 1 << 63 else value
        elif number == _LINE_NAME:
            line.name = _text(plane.data, begin, end)
        elif number == _DISPLAY_NAME:
            shown = _text(plane.data, begin, end)
        elif number == _TIMESTAMP_NS:
            if value >= 1 << 62:
                raise DamageError("a time beyond all others")
            line.timestamp_ns = value
    line.name = line.name or shown
    return line


def _text(data: mmap.mmap, begin: int, end: int) -> str:
    return data[begin : min(end, begin + _LONGEST_TEXT)].decode("utf-8", "replace")
