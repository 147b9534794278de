"""What is asked about single rows: facts, arrows, neighbours of one name, names that match."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from stepscope.analysis.launch import launching_calls
from stepscope.analysis.timeline.classes import CLASSES
from stepscope.analysis.timeline.links import OperatorLinks
from stepscope.analysis.timeline.timeline import Timeline
from stepscope.analysis.timeline.track import Track
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import Frame, IntArray
from stepscope.trace.schema import TABLES

MOST_HITS = 500
MOST_ARROWS = 50
LONGEST_SEARCHED = 2000
"""A name of this many characters is searched no further: expressions can be slow on long texts."""
_LINK = ("id", "process_id", "correlation_id", "start_ns")
_CLASS_KEYS = list(CLASSES)


class Asker:
    """Answers about rows of one timeline; keeps what takes long to make."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._calls: dict[int, tuple[Frame, Frame, IntArray]] = {}
        self._operators = OperatorLinks(timeline, self._located)

    def row(self, track: int, row: int) -> dict[str, Any]:
        """One slice: where it is, its facts, its arrows.

        Raises:
            UsageError: there is no such track or row.
        """
        found = self.timeline.track(track)
        rows = found.slices
        if not 0 <= row < len(rows):
            raise UsageError(f"there is no row {row} in {found.path}")
        same = rows.name == rows.name[row]
        before = int(np.count_nonzero(same[:row]))
        return {
            **self.place(found, row),
            "table": found.table,
            "class": _CLASS_KEYS[int(rows.code[row])],
            "facts": self._facts(found, int(rows.id[row])),
            "same": {
                "count": int(np.count_nonzero(same)),
                "number": before + 1,
                "total": int((rows.end - rows.start)[same].sum()),
            },
            "arrows": self._arrows(found, int(rows.id[row])),
            "links": self._operators.ends(found, int(rows.id[row])),
        }

    def place(self, track: Track, row: int) -> dict[str, Any]:
        """Where a row is drawn."""
        rows = track.slices
        return {
            "track": track.id,
            "row": row,
            "depth": int(rows.depth[row]),
            "start": int(rows.start[row]),
            "end": int(rows.end[row]),
            "name": self.timeline.names.texts[int(rows.name[row])],
        }

    def near(self, track: int, row: int, step: int, *, same: bool) -> dict[str, Any] | None:
        """The next row of a track, or the one before; of the same name, or of the same depth.

        Raises:
            UsageError: there is no such track or row.
        """
        found = self.timeline.track(track)
        rows = found.slices
        if not 0 <= row < len(rows):
            raise UsageError(f"there is no row {row} in {found.path}")
        alike = rows.name == rows.name[row] if same else rows.depth == rows.depth[row]
        others = np.flatnonzero(alike)
        at = int(np.searchsorted(others, row)) + (1 if step > 0 else -1)
        return self.place(found, int(others[at])) if 0 <= at < len(others) else None

    def search(self, text: str, *, regex: bool) -> dict[str, Any]:
        """Rows whose names match, over all tracks.

        Args:
            text: part of a name, in any case; or a regular expression.
            regex: whether it is one.

        Raises:
            UsageError: the expression is wrong.
        """
        try:
            pattern = re.compile(text if regex else re.escape(text), re.IGNORECASE)
        except re.error as error:
            raise UsageError(f"{text!r} is no regular expression: {error}") from error
        hits: list[dict[str, Any]] = []
        tally: dict[int, list[int]] = {}
        total = 0
        for number in range(len(self.timeline.tracks)):
            if self.timeline.tracks[number].explained:
                continue  # its names are causes and numbers, and it may not be made yet
            track = self.timeline.track(number)
            rows = track.slices
            if not len(rows):
                continue
            used = np.unique(rows.name)
            wanted = used[[self._matches(pattern, n) for n in used.tolist()]]
            if not len(wanted):
                continue
            at = np.flatnonzero(np.isin(rows.name, wanted))
            total += len(at)
            ns = rows.end - rows.start
            for name in wanted.tolist():
                mine = rows.name == name
                entry = tally.setdefault(name, [0, 0, track.id, int(np.argmax(mine))])
                entry[0] += int(np.count_nonzero(mine))
                entry[1] += int(ns[mine].sum())
            hits += [self.place(track, int(row)) for row in at[:MOST_HITS]]
        hits.sort(key=lambda hit: (hit["start"], hit["track"]))
        names = sorted(tally.items(), key=lambda item: -item[1][1])[:100]
        return {
            "total": total,
            "hits": hits[:MOST_HITS],
            "names": [
                {
                    "name": self.timeline.names.texts[name],
                    "count": count,
                    "total": ns,
                    "track": track,
                    "row": row,
                }
                for name, (count, ns, track, row) in names
            ],
        }

    def _matches(self, pattern: re.Pattern[str], name: int) -> bool:
        names = self.timeline.names
        texts = [names.texts[name], *names.long.get(name, ())]
        return any(pattern.search(text[:LONGEST_SEARCHED]) for text in texts)

    def _facts(self, track: Track, id_: int) -> list[tuple[str, Any]]:
        """Columns of the row that hold something, in the order of the schema."""
        if track.table == "gpu_op" and track.stream < 0:
            return []
        if track.table == "idle_gap":
            return self._gap_facts(track, id_)
        if track.table not in TABLES:
            return []
        row = self.timeline.members[track.member].trace.row(track.table, id_)
        left_out = {"start_ns", "end_ns"}
        return [
            (column.name, row[column.name])
            for column in TABLES[track.table].columns
            if column.name not in left_out and row.get(column.name) is not None
        ]

    def _gap_facts(self, track: Track, row: int) -> list[tuple[str, Any]]:
        from stepscope.analysis.silence import EVIDENCE

        e = self.timeline.explanation(track)
        gap = e.gaps.segments
        facts: list[tuple[str, Any]] = []
        if gap["evidence"][row] >= 0:
            facts.append(("evidence", EVIDENCE[int(gap["evidence"][row])]))
        if gap["inferred"][row]:
            facts.append(("inferred", "the cause acted earlier, or this is an estimate"))
        op = int(gap["op"][row])
        if op >= 0:
            facts.append(("ended_by", e.lane.ops.text("name", op)))
            call = int(e.lane.call[op])
            if call >= 0:
                late = int(e.lane.host.api["start_ns"][call]) - int(gap["start_ns"][row])
                facts.append(("launching_call", e.lane.host.api.text("name", call)))
                facts.append(("call_began_after_ns", late))
        return facts

    # --- arrows ----------------------------------------------------------------------------------

    def _links(self, member: int) -> tuple[Frame, Frame, IntArray]:
        """GPU operations, CUDA calls, and which call enqueued each operation."""
        if member not in self._calls:
            read = self.timeline.sources[member].read
            gpu = read("gpu_op", *_LINK)
            api = read("api_call", "api", *_LINK)
            api = api.take(api.equals("api", "runtime", "driver"))
            self._calls[member] = gpu, api, launching_calls(gpu, api)
        return self._calls[member]

    def _arrows(self, track: Track, id_: int) -> dict[str, Any]:
        """Launching call of an operation, or the operations that a call enqueued."""
        ends: list[dict[str, Any]] = []
        more = 0
        if track.table == "gpu_op" and track.stream >= 0:
            _, api, call = self._links(track.member)
            if call[id_] >= 0:
                ends = self._located(track.member, "api_call", api["id"][call[id_ : id_ + 1]])
        elif track.table == "api_call":
            _, api, call = self._links(track.member)
            at = np.flatnonzero(api["id"] == id_)
            if len(at):
                launched = np.flatnonzero(call == at[0])
                more = max(0, len(launched) - MOST_ARROWS)
                ends = self._located(track.member, "gpu_op", launched[:MOST_ARROWS])
        elif track.table == "idle_gap":
            e = self.timeline.explanation(track)
            op = int(e.gaps.segments["op"][id_])
            if op >= 0:
                ends = self._located(track.member, "gpu_op", e.lane.ops["id"][op : op + 1])
                call_row = int(e.lane.call[op])
                if call_row >= 0:
                    ids = e.lane.host.api["id"][call_row : call_row + 1]
                    ends += self._located(track.member, "api_call", ids)
        return {
            "forward": track.table == "api_call",
            "ends": ends,
            "more": more,
        }

    def _located(self, member: int, table: str, ids: IntArray) -> list[dict[str, Any]]:
        """Where rows of a table are drawn."""
        found = []
        for track in self.timeline.tracks:
            if track.member != member or track.table != table:
                continue
            if table == "gpu_op" and track.stream < 0:
                continue
            rows = self.timeline.track(track.id).slices
            at = np.flatnonzero(np.isin(rows.id, ids))
            found += [self.place(track, int(row)) for row in at]
        return found
