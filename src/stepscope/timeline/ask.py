"""What is asked about single rows: facts, arrows, neighbours of one name, names that match."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from stepscope.timeline.answers import Details, Hits, Links, NamedRows, Place
from stepscope.timeline.classes import CLASSES
from stepscope.timeline.explained import INFERRED
from stepscope.timeline.links import OperatorLinks, launching_ids
from stepscope.timeline.timeline import Timeline
from stepscope.timeline.track import Slices, Track
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import AnyArray, BoolArray, IntArray
from stepscope.trace.regex import Regex
from stepscope.trace.regex import regex as of_user
from stepscope.trace.schema import TABLES

MOST_HITS = 500
MOST_NAMES = 100
_RANKS = 64
"""Of so many ranks, names are put together."""
MOST_FLOWS = 50
LONGEST_SEARCHED = 2000
"""A name of this many characters is searched no further."""
SEARCH_TIMEOUT_S = 20.0
"""What an expression may take in all: RE2's time is linear, but a large one takes long even so."""
_PIECE = 1 << 18
_CLASS_KEYS = list(CLASSES)


class Asker:
    """Answers about rows of one timeline; keeps what takes long to make."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._calls: dict[int, IntArray] = {}
        self._operators = OperatorLinks(timeline, self._located)

    def row(self, track: int, row: int) -> Details:
        """One slice: where it is, its facts, its arrows.

        Raises:
            UsageError: there is no such track or row.
        """
        found, rows = self._slices(track, row)
        name = int(rows.name[row])
        count, total = rows.tally(name)
        return {
            **self.place(found, row),
            "table": found.table,
            "class": _CLASS_KEYS[int(rows.code[row])],
            "facts": self._facts(found, int(rows.id[row])),
            "same": {
                "count": count,
                "number": sum(int(np.count_nonzero(p == name)) for _, p in _pieces(rows.name, row))
                + 1,
                "total": total,
            },
            "arrows": self._arrows(found, int(rows.id[row])),
            "links": self._links_of(found, int(rows.id[row])),
        }

    def _slices(self, track: int, row: int) -> tuple[Track, Slices]:
        """A track and its slices, of which a row is one."""
        found = self.timeline.track(track)
        if not 0 <= row < len(found.slices):
            raise UsageError(f"there is no row {row} in {found.path}")
        return found, found.slices

    def place(self, track: Track, row: int) -> Place:
        """Where a row is drawn."""
        rows = track.slices
        return {
            "track": track.id,
            "row": row,
            "depth": rows.depth_of(row),
            "start": int(rows.start[row]),
            "end": int(rows.end[row]),
            "name": self.timeline.names.texts[int(rows.name[row])],
        }

    def near(self, track: int, row: int, step: int, *, same: bool) -> Place | None:
        """The next row of a track, or the one before; of the same name, or of the same depth.

        Raises:
            UsageError: there is no such track or row.
        """
        found, rows = self._slices(track, row)
        if same:
            other = _next(rows.name, row, step)
        else:
            of_depth = rows.at_depth(rows.depth_of(row))
            at = bisect_left(of_depth, row) + (1 if step > 0 else -1)
            other = int(of_depth[at]) if 0 <= at < len(of_depth) else -1
        return self.place(found, other) if other >= 0 else None

    def search(
        self, text: str, *, regex: bool, given_up: Callable[[], bool] = lambda: False
    ) -> Hits:
        """Rows whose names match, over all tracks.

        Args:
            text: part of a name, in any case; or a regular expression.
            regex: whether it is one.
            given_up: whether nobody waits for the answer any more.

        Raises:
            UsageError: the expression is wrong.
            LimitError: to look for it takes too long.
            GivenUpError: nobody waits.
        """
        pattern = of_user(text, ignore_case=True) if regex else None
        # causes and step numbers are no names, and may not be made yet
        tracks = [self.timeline.track(t.id) for t in self.timeline.tracks if not t.explained]
        wanted = self._matching(pattern, given_up) if pattern else self._holding(text)
        hits: list[Place] = []
        count = np.zeros(len(wanted), np.int64)
        total = np.zeros(len(wanted), np.int64)
        first = np.full(len(wanted), -1, np.int64)  # track that a name is seen in first
        for track in tracks:
            rows = track.slices
            if not len(rows):
                continue
            names, counts, totals = rows.tallies()
            of = wanted[names]
            used = names[of]
            if not len(used):
                continue
            count[used] += counts[of]
            total[used] += totals[of]
            first[used] = np.where(first[used] < 0, track.id, first[used])
            hits += [self.place(track, row) for row in _first(rows.name, wanted)]
        hits.sort(key=lambda hit: (hit["start"], hit["track"]))
        return {
            "total": int(count.sum()),
            "hits": hits[:MOST_HITS],
            "names": self._heaviest(count, total, first),
        }

    def _heaviest(self, count: IntArray, total: IntArray, first: IntArray) -> list[NamedRows]:
        """Names that occur, the longest total first, with one row of each to fly to."""
        found = np.flatnonzero(first >= 0)
        found = found[np.argsort(-total[found], kind="stable")][: _RANKS * MOST_NAMES]
        tally: dict[str, list[int]] = {}  # each rank has numbers of its own for one name
        for name in found.tolist():
            entry = tally.setdefault(self.timeline.names.texts[name], [0, 0, name])
            entry[0] += int(count[name])
            entry[1] += int(total[name])
            entry[2] = min(entry[2], name, key=lambda n: int(first[n]))
        best = sorted(tally.items(), key=lambda item: -item[1][1])[:MOST_NAMES]
        return [
            {
                "name": text,
                "count": counted,
                "total": ns,
                "track": int(first[name]),
                "row": _next(self._names_of(int(first[name])), -1, 1, wanted=name),
            }
            for text, (counted, ns, name) in best
        ]

    def _names_of(self, track: int) -> AnyArray:
        return self.timeline.track(track).slices.name

    def _holding(self, text: str) -> BoolArray:
        """Mask of the names that hold a text, in any case."""
        pattern = re.compile(re.escape(text), re.IGNORECASE)
        names = self.timeline.names
        found = np.zeros(len(names.texts), bool)
        begin = 0
        # of stored names the bytes are searched as they lie, where that gives the same
        if text.isascii() and "\n" not in text:
            for base, texts in names.stored:
                found[base + np.fromiter(texts.holding(text), np.int64)] = True
            begin = names.base
        for number in range(begin, len(found)):
            found[number] = pattern.search(names.texts[number][:LONGEST_SEARCHED]) is not None
        for number, full in names.long.items():
            if not found[number]:
                found[number] = any(pattern.search(one[:LONGEST_SEARCHED]) for one in full)
        return found

    def _matching(self, pattern: Regex, given_up: Callable[[], bool]) -> BoolArray:
        """Mask of the names in which an expression is found."""
        names = self.timeline.names
        numbers = [n for n, full in names.long.items() for _ in full]
        full_names = [one[:LONGEST_SEARCHED] for full in names.long.values() for one in full]
        ends = time.monotonic() + SEARCH_TIMEOUT_S

        def found_in(texts: list[str]) -> BoolArray:
            return pattern.search(texts, max(0.0, ends - time.monotonic()), given_up)

        found = np.zeros(len(names.texts), bool)
        for at in range(0, len(found), _PIECE):
            piece = range(at, min(at + _PIECE, len(found)))
            found[at : piece.stop] = found_in([names.texts[n][:LONGEST_SEARCHED] for n in piece])
        found[np.array(numbers, np.int64)[found_in(full_names)]] = True
        return found

    def _facts(self, track: Track, id_: int) -> list[tuple[str, Any]]:
        """Columns of the row that hold something, in the order of the schema."""
        if track.table == "gpu_op" and track.stream < 0:
            return []
        if track.table == "idle_gap":
            return self._gap_facts(track, id_)
        if track.table not in TABLES:
            return []
        row = self.timeline.rank_traces[track.rank_trace].trace.row(track.table, id_)
        left_out = {"start_ns", "end_ns"}
        return [
            (column.name, row[column.name])
            for column in TABLES[track.table].columns
            if column.name not in left_out and row.get(column.name) is not None
        ]

    def _gap_facts(self, track: Track, row: int) -> list[tuple[str, Any]]:
        from stepscope.gaps.untraced_cpu import EVIDENCE

        gap = self.timeline.gap(track, row)
        facts: list[tuple[str, Any]] = []
        if gap.evidence >= 0:
            facts.append(("evidence", EVIDENCE[gap.evidence]))
        if gap.inferred:
            facts.append(("inferred", INFERRED))
        read = self.timeline.rank_traces[track.rank_trace].trace.row
        if gap.op >= 0:
            facts.append(("ended_by", read("gpu_op", gap.op)["name"]))
        if gap.call >= 0:
            facts.append(("launching_call", read("api_call", gap.call)["name"]))
            facts.append(("call_began_after_ns", gap.late))
        return facts

    # --- arrows ----------------------------------------------------------------------------------

    def _launching(self, rank_trace: int) -> IntArray:
        """``api_call.id`` of what launched each operation; -1 where unknown."""
        if rank_trace not in self._calls:
            self._calls[rank_trace] = launching_ids(self.timeline.sources[rank_trace].read)
        return self._calls[rank_trace]

    def _call_of(self, rank_trace: int, op: int) -> int:
        """``api_call.id`` of what launched an operation; -1 where unknown."""
        stored = self.timeline.stored[rank_trace]
        if stored is not None:
            return stored.call_of(op)
        return int(self._launching(rank_trace)[op])

    def _ops_of(self, rank_trace: int, id_: int) -> IntArray:
        """``gpu_op.id`` of what a call launched."""
        stored = self.timeline.stored[rank_trace]
        if stored is not None:
            return stored.ops_of(id_)
        return np.flatnonzero(self._launching(rank_trace) == id_)

    def _arrows(self, track: Track, id_: int) -> Links:
        """Launching call of an operation, operations that a call enqueued, or what ended a gap."""
        ends: list[Place] = []
        more = 0
        if track.table == "gpu_op" and track.stream >= 0:
            ends = self._located(
                track.rank_trace, "api_call", [self._call_of(track.rank_trace, id_)]
            )
        elif track.table == "api_call":
            launched = self._ops_of(track.rank_trace, id_)
            more = max(0, len(launched) - MOST_FLOWS)
            ends = self._located(track.rank_trace, "gpu_op", launched[:MOST_FLOWS].tolist())
        elif track.table == "idle_gap":
            ends = self._located(track.rank_trace, "gpu_op", [self.timeline.gap(track, id_).op])
        message = {"api_call": "Launched", "idle_gap": "Ended by"}.get(track.table, "Launched by")
        return {
            "message": message,
            "forward": track.table in ("api_call", "idle_gap"),
            "ends": ends,
            "more": more,
        }

    def _links_of(self, track: Track, id_: int) -> list[Links]:
        """Other operators of an operator; of a gap, the call that launched what ended it."""
        if track.table != "idle_gap":
            return self._operators.ends(track, id_)
        call = self.timeline.gap(track, id_).call
        ends = self._located(track.rank_trace, "api_call", [call])
        message = "Launch of what ended it"
        return [{"message": message, "forward": False, "ends": ends, "more": 0}] if ends else []

    def _located(self, rank_trace: int, table: str, ids: Sequence[int]) -> list[Place]:
        """Where rows of a table are drawn."""
        found = []
        wanted = [id_ for id_ in ids if id_ >= 0]
        for track in self.timeline.tracks:
            if not wanted or track.rank_trace != rank_trace or track.table != table:
                continue
            if table == "gpu_op" and track.stream < 0:
                continue
            slices = self.timeline.track(track.id).slices
            rows = [slices.row_of(id_) for id_ in wanted]
            found += [self.place(track, row) for row in sorted(rows) if row >= 0]
        return found


def _pieces(values: AnyArray, stop: int, start: int = 0) -> Iterator[tuple[int, AnyArray]]:
    """(first position, values) of the pieces of an array, so that no copy of it is made."""
    for at in range(start, stop, _PIECE):
        yield at, values[at : min(at + _PIECE, stop)]


def _next(names: AnyArray, row: int, step: int, wanted: int | None = None) -> int:
    """The next row of the same name, or the one before; -1 where there is none."""
    name = names[row] if wanted is None else wanted
    if step > 0:
        for at, piece in _pieces(names, len(names), row + 1):
            found = np.flatnonzero(piece == name)
            if len(found):
                return at + int(found[0])
        return -1
    for stop in range(row, 0, -_PIECE):
        at = max(0, stop - _PIECE)
        found = np.flatnonzero(names[at:stop] == name)
        if len(found):
            return at + int(found[-1])
    return -1


def _first(names: AnyArray, wanted: BoolArray) -> list[int]:
    """The first rows whose names are wanted, as many as are shown."""
    rows: list[int] = []
    for at, piece in _pieces(names, len(names)):
        rows += (at + np.flatnonzero(wanted[piece])).tolist()
        if len(rows) >= MOST_HITS:
            break
    return rows[:MOST_HITS]
