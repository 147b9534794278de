"""One track of a timeline: slices in depths, or the samples of a counter."""

from __future__ import annotations

import re
import threading
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from stepscope.intervals.distinct import distinct_values, with_inverse
from stepscope.intervals.lod import Columns, Pyramid, levels
from stepscope.timeline.classes import Codes
from stepscope.trace.frame import IntArray


class _Texts(Sequence[str]):
    """Texts by number; what is behind the number is up to the kind."""

    @abstractmethod
    def _text(self, at: int) -> str:
        """The text of a number that is known to be there."""

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            return [self._text(i) for i in range(*at.indices(len(self)))]
        if not 0 <= at < len(self):
            raise IndexError(at)
        return self._text(at)


class Texts(_Texts):
    """Distinct texts as they are stored: one after the other as UTF-8.

    Args:
        data: the bytes of all, each followed by a line feed.
        ends: where each ends in ``data``, before its line feed.
    """

    def __init__(self, data: memoryview, ends: npt.NDArray[np.integer]) -> None:
        self.data = data
        self.ends = ends

    def __len__(self) -> int:
        return len(self.ends)

    def _text(self, at: int) -> str:
        begin = int(self.ends[at - 1]) + 1 if at else 0
        return bytes(self.data[begin : int(self.ends[at])]).decode("utf-8", "replace")

    def holding(self, text: str) -> Iterator[int]:
        """Numbers of the texts that hold another in any case (of ASCII letters), ascending."""
        pattern = re.compile(re.escape(text.encode()), re.IGNORECASE)
        at, behind = 0, int(self.ends[-1]) if len(self) else 0
        while at < behind and (match := pattern.search(self.data, at)):
            number = int(np.searchsorted(self.ends, match.start(), side="left"))
            at = int(self.ends[number]) + 1
            if match.end() < at:  # else it is the end of one text and the begin of the next
                yield number


class _Joined(_Texts):
    """Several sequences of texts as one; the last may grow."""

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self._parts = parts
        self.bases = [0]
        for part in parts[:-1]:
            self.bases.append(self.bases[-1] + len(part))

    def __len__(self) -> int:
        return self.bases[-1] + len(self._parts[-1])

    def _text(self, at: int) -> str:
        part = bisect_right(self.bases, at) - 1
        return self._parts[part][at - self.bases[part]]


class Names:
    """Distinct texts of all tracks, numbered.

    Args:
        stored: texts that are not held in memory; their numbers come first, in this order.

    Attributes:
        texts: what is drawn.
        long: of a number, the full names that are drawn by that short text.
        stored: first number and texts of each stored part.
        base: first number of the texts that are held in memory.
    """

    def __init__(self, stored: Sequence[Texts] = ()) -> None:
        self._own: list[str] = []
        self.texts: Sequence[str] = self._own
        self.stored: list[tuple[int, Texts]] = []
        self.base = 0
        if stored:
            self.texts = joined = _Joined([*stored, self._own])
            self.stored = list(zip(joined.bases[:-1], stored, strict=True))
            self.base = joined.bases[-1]
        self.long: dict[int, list[str]] = {}
        self._number: dict[str, int] = {}
        self._lock = threading.Lock()

    def number(self, text: str) -> int:
        """The number of a text, a new one where it is new."""
        with self._lock:
            found = self._number.setdefault(text, len(self._own))
            if found == len(self._own):
                self._own.append(text)
            return self.base + found

    def numbers(self, texts: list[str]) -> IntArray:
        """Numbers of distinct texts; the last one, for code -1, is that of the empty text."""
        return np.array([self.number(text) for text in [*texts, ""]], np.int64)


@dataclass(frozen=True)
class Slices:
    """Slices of one track, sorted by begin and, of equal begins, the longest first.

    Attributes:
        start: begins on the job's clock, ns.
        end: ends, ns.
        name: number in :class:`Names`.
        code: class.
        id: ``id`` in the table that they come from, or their own number where it has none.
    """

    start: IntArray
    end: IntArray
    name: IntArray
    code: Codes
    id: IntArray

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def depth(self) -> npt.NDArray[np.int16]:
        """Depth of each slice."""
        return levels(self.start, self.end)

    @cached_property
    def rows(self) -> list[tuple[IntArray, Pyramid]]:
        """Of each depth: rows of its slices, and their pyramid."""
        found = []
        if len(self) and not self.depth.any():
            return [(np.arange(len(self)), Pyramid(self.start, self.end, self.code))]
        for depth in range(int(self.depth.max(initial=-1)) + 1):
            rows = np.flatnonzero(self.depth == depth)
            found.append((rows, Pyramid(self.start[rows], self.end[rows], self.code[rows])))
        return found

    def prepare(self) -> None:
        """Make what is otherwise made by the first question."""
        for _, pyramid in self.rows:
            pyramid.prepare()

    @property
    def depths(self) -> int:
        """Number of depths."""
        return len(self.rows)

    def depth_of(self, row: int) -> int:
        """Depth of one slice."""
        return int(self.depth[row])

    def at_depth(self, depth: int) -> IntArray:
        """Rows of one depth, ascending; of these the ends ascend as well, but for the deepest."""
        return self.rows[depth][0]

    def window(self, begin: int, bucket: int, columns: int) -> Iterator[tuple[IntArray, Columns]]:
        """Of each depth: rows of its slices that take a column or more, and the columns."""
        for rows, pyramid in self.rows:
            long = pyramid.long(begin, begin + bucket * columns, bucket)
            yield rows[long], pyramid.columns(begin, bucket, columns, long)

    def between(self, begin: int, end: int) -> IntArray:
        """Rows of the slices that overlap ``[begin, end)`` or begin in it, ascending, ns."""
        found = []
        for rows, pyramid in self.rows:
            low, high = pyramid.between(begin, end)
            # an earlier slice that reaches far may have widened the range
            mine = np.arange(low, high)
            found.append(rows[mine[(pyramid.end[mine] > begin) | (pyramid.start[mine] >= begin)]])
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)

    def tally(self, name: int) -> tuple[int, int]:
        """How often a name occurs, and for how long in total, ns."""
        same = self.name == name
        return int(np.count_nonzero(same)), int((self.end[same] - self.start[same]).sum())

    def tallies(self) -> tuple[IntArray, IntArray, IntArray]:
        """Distinct names, how often each occurs, and for how long in total in ns."""
        names, inverse = with_inverse(self.name)
        total = np.zeros(len(names), np.int64)
        np.add.at(total, inverse, self.end - self.start)
        return names, np.bincount(inverse, minlength=len(names)), total

    def row_of(self, id_: int) -> int:
        """The row with an ``id``; -1 where there is none."""
        found = np.flatnonzero(self.id == id_)
        return int(found[0]) if len(found) else -1

    def names(self) -> IntArray:
        """Distinct names, ascending."""
        return distinct_values(self.name)


def slices(start: IntArray, end: IntArray, name: IntArray, code: Codes, id_: IntArray) -> Slices:
    """Slices in the order that :class:`Slices` wants."""
    end = np.asarray(end)
    later, same = start[1:] > start[:-1], start[1:] == start[:-1]
    if (later | (same & (end[1:] <= end[:-1]))).all():
        return Slices(start, end, name, code, id_)  # stored tables mostly are in this order
    order = np.lexsort((-end, start))
    return Slices(start[order], end[order], name[order], code[order], id_[order])


@dataclass(frozen=True)
class Samples:
    """Samples of one counter, sorted by time.

    Attributes:
        time: when, on the job's clock, ns.
        value: what was measured, in the counter's own unit.
        known_limits: least and most, where they are known already.
    """

    time: IntArray
    value: npt.NDArray[np.float64]
    known_limits: tuple[float, float] | None = None

    @property
    def limits(self) -> tuple[float, float]:
        """Least and most of all samples."""
        if self.known_limits is not None:
            return self.known_limits
        return float(np.nanmin(self.value)), float(np.nanmax(self.value))

    def __len__(self) -> int:
        return len(self.time)


@dataclass
class Track:
    """One track.

    Attributes:
        id: number, the position in ``Timeline.tracks``.
        title: what people read.
        table: table that its rows come from.
        kind: ``slices`` or ``counter``.
        path: stable name, by which views remember it.
        rank_trace: number of the trace.
        rank: rank of its trace or process.
        process_id: process; -1 where it has none.
        device: device; -1 for host tracks.
        stream: stream; -1 where it is of none.
        thread_id: thread; -1 for device tracks.
        explained: whether it needs the explanation of the job, which takes longer.
        unit: unit of a counter.
        build: makes its content.
    """

    id: int
    title: str
    table: str
    path: str
    rank_trace: int
    rank: int
    build: Callable[[], Slices | Samples]
    kind: Literal["slices", "counter"] = "slices"
    process_id: int = -1
    device: int = -1
    stream: int = -1
    thread_id: int = -1
    explained: bool = False
    unit: str = ""
    _content: Slices | Samples | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def content(self) -> Slices | Samples:
        """Its slices or samples, made when first asked for; one thread makes, others wait."""
        with self._lock:
            if self._content is None:
                made = self.build()
                if isinstance(made, Slices):
                    made.prepare()
                self._content = made
            return self._content

    @property
    def slices(self) -> Slices:
        """Its slices; none for a counter."""
        content = self.content
        if isinstance(content, Slices):
            return content
        none = np.empty(0, np.int64)
        return Slices(none, none, none, np.empty(0, np.uint8), none)
