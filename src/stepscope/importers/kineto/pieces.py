"""Cut the text of a trace between events, and decode it piece by piece.

The text is cut where something that looks like the gap between two events stands. It may be
something else (part of a string, a list inside ``args``), but then the part before the cut is not
a whole JSON array, the strict decoder refuses it, and the slow path finds the right place. A part
that decodes as an array from one event on therefore always ends between two events, so no guess
about the layout (pretty-printed, on one line, written by another tool) can give wrong events.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from stepscope.importers.common.stream import Read, truncated
from stepscope.importers.kineto.events import DECIMAL, FLOAT, KNOWN, STRICT_ERRORS, Event, Tolerant
from stepscope.trace.errors import InputError

# the letters first: text is searched ten times as fast for them as for what precedes them
_EVENTS_KEY = re.compile(rb'"traceEvents"(?<!\\"traceEvents")\s*:\s*\[')
_KEY_BYTES = 64  # the key with blanks around its colon, and more
_ARRAY = re.compile(rb"\s*\[")
_GAP = re.compile(rb"\}\s*,\s*\{")
_BETWEEN = re.compile(rb"[\s,]*")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]', re.S)
_ARRAY_END = re.compile(rb"\}\s*,?\s*\](?=\s*[,}]|\s*\Z)")
_FRACTION = re.compile(rb'"ts"\s*:\s*"?\d{14,}\.\d')
_HEADER_LIMIT = 256 << 20
_EVENT_LIMIT = 64 << 20
_NO_EVENT = re.compile(
    rb'(?:"(?:[^"\\]|\\.)*"|[-+\w.]+|\[(?:"(?:[^"\\]|\\.)*"|[^\[\]{}"])*\])(?=\s*[,\]])', re.S
)
"""A value among the events that is no object: a text, a number or another word, a plain list."""
_JOIN_LIMIT = 16  # gaps inside one undecodable event that are tried before it is given up
_LATE_GAPS = 2000  # gaps after an undecodable event that prove that it is not just cut off
_EXACT_FLOAT_US = 2.0**43


class EventReader:
    """Iterates over the events of a trace text, some hundred at a time.

    Args:
        read: gives the next piece of text, empty at the end.
        path: the file, for messages.

    Attributes:
        header: text before the events, with the opening brace; empty for a bare array.
        trailer: text after the array of events; complete after the iteration.
        tolerant: what had to be repaired.
        malformed: events that could not be decoded and were left out.
        first_malformed: the beginning of the first one.
    """

    def __init__(self, read: Read, path: Path) -> None:
        self._read = read
        self._path = path
        self._decoder: msgspec.json.Decoder[list[Event[Any, Any]]] = KNOWN
        self._exact = False
        self._gap = b""
        self._gap_close = 0
        self.header = b""
        self.trailer = b""
        self.tolerant = Tolerant()
        self.malformed = 0
        self.first_malformed = ""

    def __iter__(self) -> Iterator[list[Event[Any, Any]]]:
        """Yield lists of events in file order.

        Raises:
            InputError: not a trace, damaged, or cut short.
        """
        rest = self._find_events()
        done = False
        while not done:
            piece = self._read()
            cut = piece.rfind(self._gap) if self._gap else -1
            if cut >= 0:
                close = cut + self._gap_close
                events = self._strict(b"".join((b"[", rest, memoryview(piece)[:close], b"]")))
                if events is not None:
                    rest = piece[cut + len(self._gap) - 1 :]
                    yield events
                    continue
            text = rest + piece
            events, used, done = self._careful(text, last=not piece)
            if events:
                yield events
            rest = text[used:]
            if len(rest) > _EVENT_LIMIT and not done:
                raise InputError(
                    f"{self._path} holds one event of more than {_EVENT_LIMIT >> 20} MB, so it "
                    "is no profiler trace; check what wrote it"
                )
        self.trailer = rest
        self._read_trailer()

    def _find_events(self) -> bytes:
        """Read up to the first event; keep what stands before as the header."""
        text = self._read().removeprefix(b"\xef\xbb\xbf")
        array = _ARRAY.match(text)
        if array:
            return text[array.end() :]
        parts, size, last, at = [text], len(text), text, 0
        while not _EVENTS_KEY.search(last, at):
            more = self._read()
            if not more and last.rstrip().endswith(b"}"):
                raise InputError(
                    f"{self._path} is JSON without an array of traceEvents, so it is no profiler "
                    "trace; name the file that export_chrome_trace or tensorboard_trace_handler "
                    "wrote"
                )
            if not more:
                raise truncated(self._path)
            parts.append(more)
            size += len(more)
            last, at = last[-_KEY_BYTES:] + more, 1  # with the byte before: it may be a backslash
            if size > _HEADER_LIMIT:
                raise InputError(
                    f"{self._path} has no traceEvents in its first {_HEADER_LIMIT >> 20} MB, so "
                    "it is no profiler trace; check what wrote it"
                )
        text = b"".join(parts)
        key = _EVENTS_KEY.search(text, size - len(last) + at)
        assert key is not None
        self.header = text[: key.start()]
        return text[key.end() :]

    def _read_trailer(self) -> None:
        parts = [self.trailer]
        size = 0
        while piece := self._read():
            parts.append(piece)
            size += len(piece)
            if size > _HEADER_LIMIT:
                raise InputError(
                    f"{self._path} goes on for more than {_HEADER_LIMIT >> 20} MB after its "
                    "events; check what wrote it"
                )
        self.trailer = b"".join(parts)

    def _strict(self, array: bytes) -> list[Event[Any, Any]] | None:
        """Decode the text of an array of events; None when it is not one."""
        try:
            events = self._decoder.decode(array)
        except STRICT_ERRORS:
            if self._decoder is not KNOWN:
                return None
            try:
                events = FLOAT.decode(array)
            except STRICT_ERRORS:
                return None
            self._decoder = FLOAT  # other categories than today's: do not try twice each time
        if not self._exact and events and _is_large(events) and _FRACTION.search(array):
            self._exact = True
            self._decoder = DECIMAL
            return self._strict(array)
        return events

    def _careful(self, text: bytes, *, last: bool) -> tuple[list[Event[Any, Any]], int, bool]:
        """Decode what is whole at the beginning of ``text``, whatever its layout.

        Returns:
            The events; how much of the text is used up; whether the array of events ended there.
        """
        gaps = [match.start() for match in _GAP.finditer(text)]
        if gaps and not last:
            events = self._strict(b"[" + text[: gaps[-1] + 1] + b"]")
            if events is not None:
                self._learn_gap(text, gaps[-1])
                return events, text.index(b"{", gaps[-1]), False
        kept: list[Event[Any, Any]] = []
        start = _between(text, 0)
        while start < len(text):
            if text[start : start + 1] == b"]":
                return kept, start + 1, True
            event, end = self._next(text, start, gaps)
            if event is None:
                if other := _NO_EVENT.match(text, start):
                    end = other.end()
                else:
                    later = gaps[bisect_left(gaps, start) :]
                    if not last and len(later) < _LATE_GAPS:
                        return kept, start, False  # it may go on behind this text
                    ends = later or [m.start() for m in _ARRAY_END.finditer(text, start)][-1:]
                    if not ends:
                        self._cut()
                    end = ends[0] + 1
                    event = self.tolerant.salvage(text[start:end], exact=self._exact)
            if event is not None:
                kept.append(event)
            else:
                self.malformed += 1
                snippet = text[start : min(end, start + 200)].decode("utf-8", "replace")
                self.first_malformed = self.first_malformed or snippet
            start = _between(text, end)
        return kept, start, last and self._cut()

    def _cut(self) -> NoReturn:
        raise truncated(self._path)

    def _next(self, text: bytes, start: int, gaps: list[int]) -> tuple[Event[Any, Any] | None, int]:
        """Decode the event that begins at ``start``; None where no whole one is found."""
        end = _event_end(text, start)
        if end and (event := self._one(text[start:end])) is not None:
            return event, end
        first = bisect_left(gaps, start)
        for gap in gaps[first : first + _JOIN_LIMIT]:
            if gap + 1 != end and (event := self._one(text[start : gap + 1])) is not None:
                return event, gap + 1
        return None, start

    def _one(self, text: bytes) -> Event[Any, Any] | None:
        events = self._strict(b"[" + text + b"]")
        if events is not None:
            return events[0] if len(events) == 1 else None
        return self.tolerant.decode(text, exact=self._exact)

    def _learn_gap(self, text: bytes, close: int) -> None:
        """Remember what stands between two events, from white space before ``}`` to ``{``."""
        start = close
        while start > 0 and text[start - 1 : start].isspace():
            start -= 1
        self._gap = text[start : text.index(b"{", close) + 1]
        self._gap_close = close - start + 1


def _between(text: bytes, start: int) -> int:
    """Where the next event or the closing bracket stands."""
    match = _BETWEEN.match(text, start)
    return match.end() if match else start


def _event_end(text: bytes, start: int) -> int:
    """End of the JSON object that begins at ``start``; 0 where it does not end."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        first = token.group()[:1]
        if first == b"{":
            depth += 1
        elif first == b"}":
            depth -= 1
            if depth <= 0:
                return token.end()
    return 0


def _is_large(events: list[Event[Any, Any]]) -> bool:
    """Whether times may be too large for nanoseconds in a float."""
    some = (events[0], events[len(events) // 2], events[-1])
    return any(event.ts >= _EXACT_FLOAT_US for event in some)
