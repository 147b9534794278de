"""One track of a timeline: slices in depths, or the samples of a counter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.analysis.timeline.classes import Codes
from stepscope.intervals.lod import Pyramid, levels
from stepscope.trace.frame import IntArray


class Names:
    """Distinct texts of all tracks, numbered.

    Attributes:
        texts: what is drawn.
        long: of a number, the full names that are drawn by that short text.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.long: dict[int, list[str]] = {}
        self._number: dict[str, int] = {}
        self._lock = threading.Lock()

    def number(self, text: str) -> int:
        """The number of a text, a new one where it is new."""
        with self._lock:
            found = self._number.setdefault(text, len(self.texts))
            if found == len(self.texts):
                self.texts.append(text)
            return found

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
    """

    time: IntArray
    value: npt.NDArray[np.float64]

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
        member: number of the trace.
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
    member: int
    rank: int
    build: Callable[[], Slices | Samples]
    kind: str = "slices"
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
                    for _, pyramid in made.rows:
                        pyramid.prepare()
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
