"""The tracks of one trace as they are stored: made once, then mapped and read where looked at.

One file holds all tracks of a trace that need no explanation: their slices, the
:mod:`levels of detail <stepscope.intervals.mipmap>`, the names, how often each occurs, and which
call launched which operation. Times are those of the trace's own clock; names are numbered within
the file. Arrays of track 3 are called ``3.start`` and so on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

import stepscope
from stepscope.cache.arrays import ArrayFile
from stepscope.cache.revisions import digest, revision_of
from stepscope.intervals import mipmap
from stepscope.intervals.distinct import with_inverse
from stepscope.intervals.lod import Columns, Pyramid
from stepscope.intervals.mipmap import Levels
from stepscope.timeline import classes
from stepscope.timeline.track import Samples, Slices, Texts, Track
from stepscope.trace.frame import IntArray
from stepscope.trace.trace import Trace

REVISION = 3
"""Of the file's content; raised whenever the same trace gives other arrays."""
_CLASSES = 256
"""More than there are: a class takes one byte."""

Ints = npt.NDArray[np.integer]


def revision_of_tracks(trace: Trace) -> str:
    """What the stored tracks of a trace depend on: its tables, and what makes tracks of them."""
    return digest([stepscope.__version__, str(REVISION), *classes.CLASSES, revision_of(trace)])


class StoredSlices(Slices):
    """Slices in a file; see :class:`Slices`. Questions about a window read only what is in it.

    Args:
        file: the file.
        key: begin of the names of its arrays.
        facts: what the writer said.
        offset: what is added to stored times, ns.
        number: gives the numbers of names from those in the file.
    """

    _levels: Levels

    def __init__(
        self,
        file: ArrayFile,
        key: str,
        facts: dict[str, Any],
        offset: int,
        number: Callable[[Ints], IntArray],
    ) -> None:
        start, end = file[f"{key}.start"], file[f"{key}.end"]
        super().__init__(
            start + offset if offset else start,
            end + offset if offset else end,
            number(file[f"{key}.name"]),
            file[f"{key}.code"],
            file[f"{key}.id"],
        )
        parts = {
            name: file[f"{key}.level.{name}"]
            for name in ("table", "index", "covered", "dominant", "count", "long")
        }
        parts["table"] = parts["table"].reshape(-1, 6)
        object.__setattr__(self, "_opened", (file, key, facts, offset))
        object.__setattr__(self, "_levels", Levels(**parts))
        object.__setattr__(self, "_number", number)

    @property
    def _parts(self) -> tuple[ArrayFile, str, dict[str, Any], int]:
        found: tuple[ArrayFile, str, dict[str, Any], int] = self.__dict__["_opened"]
        return found

    @cached_property
    def depth(self) -> npt.NDArray[np.int16]:
        """Depth of each slice; for a few of them, :meth:`depth_of` copies nothing."""
        file, key, _, _ = self._parts
        return file[f"{key}.depth"].astype(np.int16)

    def depth_of(self, row: int) -> int:
        """Depth of one slice."""
        file, key, _, _ = self._parts
        return int(file[f"{key}.depth"][row])

    def prepare(self) -> None:
        """Everything has been made."""

    @property
    def depths(self) -> int:
        """Number of depths."""
        edges = self._parts[2]["depths"]
        return len(edges) - 1 if len(self) else 0

    def at_depth(self, depth: int) -> IntArray:
        """Rows of one depth, ascending."""
        file, key, facts, _ = self._parts
        if f"{key}.rows" not in file:
            return np.arange(len(self))
        return file[f"{key}.rows"][facts["depths"][depth] : facts["depths"][depth + 1]]

    def window(self, begin: int, bucket: int, columns: int) -> Iterator[tuple[IntArray, Columns]]:
        """Of each depth: rows of its slices that take a column or more, and the columns."""
        low, high = self._levels.powers()
        power = bucket.bit_length() - 1
        local = begin - self._parts[3]
        whole = bucket == 1 << power and local % bucket == 0 and low <= power <= high
        for depth in range(self.depths):
            if whole:
                yield self._level(depth, power, local, columns)
            elif power - mipmap.FINER >= low and high >= low:
                yield self._regrouped(
                    depth, min(power - mipmap.FINER, high), begin, bucket, columns
                )
            else:
                rows = self._rows_between(depth, begin, begin + bucket * columns)
                pyramid = Pyramid(self.start[rows], self.end[rows], self.code[rows])
                long = pyramid.long(begin, begin + bucket * columns, bucket)
                yield rows[long], pyramid.columns(begin, bucket, columns, long)

    def _level(self, depth: int, power: int, local: int, columns: int) -> tuple[IntArray, Columns]:
        """From the level of exactly this width."""
        levels = self._levels
        of_columns, of_long = levels.at(depth, power)
        index = levels.index[of_columns]
        first = local >> power
        at = _positions(of_columns.start, index, first, first + columns)
        offset = self._parts[3]
        long = self._touching(
            levels.long[of_long], local + offset, local + offset + (columns << power)
        )
        return long, Columns(
            levels.index[at].astype(np.int64) - first,
            levels.covered[at].astype(np.int64),
            levels.dominant[at].astype(np.int64),
            levels.count[at].astype(np.int64),
        )

    def _regrouped(
        self, depth: int, power: int, begin: int, bucket: int, columns: int
    ) -> tuple[IntArray, Columns]:
        """From a narrower level: each of its columns goes to the one that holds its middle."""
        levels, offset = self._levels, self._parts[3]
        of_columns, of_long = levels.at(depth, power)
        end = begin + bucket * columns
        index = levels.index[of_columns]
        first, stop = (begin - offset) >> power, -((offset - end) >> power)
        at = _positions(of_columns.start, index, first, stop)
        narrow = levels.index[at].astype(np.int64)
        to = ((narrow << power) + (1 << power >> 1) + offset - begin) // bucket
        kept = (to >= 0) & (to < columns)
        to, covered = to[kept], levels.covered[at][kept].astype(np.int64)
        rows = self._touching(levels.long[of_long], begin, end)
        middle = Pyramid(self.start[rows], self.end[rows], self.code[rows])
        long = middle.long(begin, end, bucket)
        own = middle.columns(begin, bucket, columns, long)
        sums = np.zeros(columns, np.int64)
        begun = np.zeros(columns, np.int64)
        np.add.at(sums, to, covered)
        np.add.at(begun, to, levels.count[at][kept].astype(np.int64))
        # of each column and class, the sum of the narrow columns in which it covers most
        pairs, inverse = with_inverse(to * _CLASSES + levels.dominant[at][kept].astype(np.int64))
        of_pair = np.zeros(len(pairs), np.int64)
        np.add.at(of_pair, inverse, covered)
        most = np.zeros(columns, np.int64)
        dominant = np.zeros(columns, np.int64)
        order = np.argsort(of_pair, kind="stable")  # the last one written covers most
        dominant[pairs[order] // _CLASSES] = pairs[order] % _CLASSES
        most[pairs[order] // _CLASSES] = of_pair[order]
        stronger = own.covered_ns > most[own.index]
        dominant[own.index[stronger]] = own.dominant[stronger]
        sums[own.index] += own.covered_ns
        begun[own.index] += own.count
        found = np.flatnonzero((sums > 0) | (begun > 0))
        return rows[long], Columns(found, sums[found], dominant[found], begun[found])

    def _rows_between(self, depth: int, begin: int, end: int) -> IntArray:
        """Rows of one depth that overlap a window or begin in it."""
        file, key, facts, _ = self._parts
        if f"{key}.rows" not in file:
            high = int(np.searchsorted(self.start, end, side="left"))
            low = int(np.searchsorted(self.end, begin, side="left")) if facts["tidy"] else 0
            if not facts["tidy"]:
                rows = np.arange(low, max(low, high))
                return rows[(self.end[rows] > begin) | (self.start[rows] >= begin)]
            while low < high and self.end[low] == begin and self.start[low] < begin:
                low += 1  # it only touches the window
            return np.arange(low, max(low, high))
        return self._touching(self.at_depth(depth), begin, end)

    def _touching(self, rows: Ints, begin: int, end: int) -> IntArray:
        """Of some rows of one depth, those that overlap a window or begin in it."""
        every = range(len(rows))
        high = bisect_left(every, end, key=lambda i: self.start[rows[i]])
        low = 0
        if self._parts[2]["tidy"]:
            low = min(high, bisect_left(every, begin, key=lambda i: self.end[rows[i]]))
        found = rows[low:high].astype(np.int64)
        return found[(self.end[found] > begin) | (self.start[found] >= begin)]

    def between(self, begin: int, end: int) -> IntArray:
        """Rows of the slices that overlap ``[begin, end)`` or begin in it, ascending, ns."""
        found = [self._rows_between(depth, begin, end) for depth in range(self.depths)]
        if len(found) == 1:
            return found[0]
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)

    def tally(self, name: int) -> tuple[int, int]:
        """How often a name occurs, and for how long in total, ns."""
        file, key, _, _ = self._parts
        at = self._named(name)
        if at < 0:
            return 0, 0
        return int(file[f"{key}.names.count"][at]), int(file[f"{key}.names.total"][at])

    def tallies(self) -> tuple[IntArray, IntArray, IntArray]:
        """Distinct names, how often each occurs, and for how long in total in ns."""
        file, key, _, _ = self._parts
        return self.names(), file[f"{key}.names.count"], file[f"{key}.names.total"]

    def _named(self, name: int) -> int:
        names = self.names()
        at = int(np.searchsorted(names, name))
        return at if at < len(names) and names[at] == name else -1

    def names(self) -> IntArray:
        """Distinct names, ascending."""
        file, key, _, _ = self._parts
        numbers: IntArray = self.__dict__["_number"](file[f"{key}.names"])
        return numbers

    def row_of(self, id_: int) -> int:
        """The row with an ``id``; -1 where there is none."""
        file, key, facts, _ = self._parts
        if facts["ascending"]:
            at = bisect_left(range(len(self)), id_, key=lambda i: self.id[i])
            return at if at < len(self) and self.id[at] == id_ else -1
        order = file[f"{key}.id.order"]
        at = bisect_left(range(len(order)), id_, key=lambda i: self.id[order[i]])
        row = int(order[at]) if at < len(order) else -1
        return row if row >= 0 and self.id[row] == id_ else -1


@dataclass(frozen=True)
class Stored:
    """The stored tracks of one trace.

    Attributes:
        file: the file.
    """

    file: ArrayFile

    @property
    def texts(self) -> Texts:
        """Names, by their number in the file."""
        return Texts(self.file["names.text"].data, self.file["names.ends"])

    @property
    def long(self) -> dict[int, list[str]]:
        """Full names by the number of the text that is drawn."""
        return {int(number): texts for number, texts in self.file.about["long"].items()}

    def tracks(self, rank_trace: int, rank: int, offset: int, base: int) -> Iterator[Track]:
        """The tracks; ids are given later.

        Args:
            rank_trace: number of the trace.
            rank: its rank.
            offset: what is added to times, ns.
            base: number of the first name of the file.
        """
        for number, facts in enumerate(self.file.about["tracks"]):
            yield Track(
                0,
                facts["title"],
                facts["table"],
                f"{rank}/{facts['path']}",
                rank_trace,
                rank,
                build=partial(self._content, number, facts, offset, base),
                kind=facts["kind"],
                process_id=facts["process_id"],
                device=facts["device"],
                stream=facts["stream"],
                thread_id=facts["thread_id"],
                unit=facts["unit"],
            )

    def _content(
        self, number: int, facts: dict[str, Any], offset: int, base: int
    ) -> Slices | Samples:
        if facts["kind"] == "counter":
            time = self.file[f"{number}.time"]
            low, high = (float("nan") if v is None else float(v) for v in facts["limits"])
            times = time + offset if offset else time
            return Samples(times, self.file[f"{number}.value"], (low, high))
        return StoredSlices(self.file, str(number), facts, offset, partial(_moved, base))

    def call_of(self, op: int) -> int:
        """``api_call.id`` of what launched a ``gpu_op``; -1 where unknown."""
        calls = self.file["links.call"]
        return int(calls[op]) if 0 <= op < len(calls) else -1

    def ops_of(self, call: int) -> IntArray:
        """``gpu_op.id`` of what a call launched, ascending."""
        calls, ops = self.file["links.call"], self.file["links.ops"]
        low = bisect_left(range(len(ops)), call, key=lambda i: calls[ops[i]])
        high = bisect_left(range(len(ops)), call + 1, key=lambda i: calls[ops[i]])
        return ops[low:high].astype(np.int64)

    @property
    def threads(self) -> dict[tuple[int, int], str]:
        """Names of threads by process and thread."""
        return {(process, thread): name for process, thread, name in self.file.about["threads"]}

    @property
    def devices(self) -> dict[int, str]:
        """Names of devices."""
        return dict(self.file.about["devices"])


def _positions(base: int, ascending: Ints, first: int, stop: int) -> slice:
    """Where the numbers from ``first`` to before ``stop`` stand."""
    # keys of the array's own type: of another one, numpy would convert the whole array
    limits = np.iinfo(ascending.dtype)
    keys = np.clip(np.array([first, stop]), limits.min, limits.max).astype(ascending.dtype)
    low, high = np.searchsorted(ascending, keys).tolist()
    if stop > limits.max:
        high = len(ascending)
    return slice(base + low, base + max(low, high))


def _moved(base: int, names: Ints) -> IntArray:
    """Numbers of names from those in the file; the mapped ones themselves where they are equal."""
    moved: Any = names + base if base else names
    return np.asarray(moved)
