"""What the panels of the page ask: tables, instances and flame graphs of a window."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from stepscope.cache.arrays import ArrayWriter
from stepscope.derived.kernel_category import category_table
from stepscope.intervals.distinct import distinct_values
from stepscope.jobs.view import JobView
from stepscope.kernels.statements import GROUPINGS
from stepscope.timeline.answers import (
    ExtractOfPanels,
    FlameAnswer,
    FlameOfWindow,
    Instances,
    PackedGroups,
    PackedTables,
    TableAnswer,
)
from stepscope.timeline.extract import in_page, linked_rows, packed
from stepscope.timeline.stacks import WEIGHTS, Stacks
from stepscope.timeline.stored_tables import DeviceSteps, StoredTables, write_tables
from stepscope.timeline.tables import LONGEST_NAME, Window, Work, shown
from stepscope.timeline.timeline import Timeline
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import IntArray, from_arrow

_COLUMNS: Final = [
    *("gpu_op_id", "start_ns", "end_ns", "steady"),
    *dict.fromkeys(name for by in GROUPINGS.values() for name in (*by.keys, by.rather) if name),
]
"""What the tables need of ``kernel_category``."""


class Panels:
    """Answers about windows of one timeline; keeps what takes long to make.

    Args:
        timeline: the timeline.
        view: gives the explained devices; asked only by tables that are not stored.
    """

    def __init__(self, timeline: Timeline, view: Callable[[], JobView]) -> None:
        self._timeline = timeline
        self._view = view
        self._stored: StoredTables | None = None
        self._lock = threading.Lock()
        self._stacks = Stacks(timeline)

    @property
    def is_stored(self) -> bool:
        """Whether tables are made from stored ones."""
        return self._stored is not None

    def use(self, stored: StoredTables) -> None:
        """Make tables from stored ones; before the first table is asked for."""
        with self._lock:
            self._stored = stored

    def table(self, by: str, begin: int | None, end: int | None) -> TableAnswer:
        """GPU time of a window by what it belongs to, see :meth:`Work.table`.

        Args:
            by: key of ``GROUPINGS``.
            begin: begin on the job's clock, ns; None for the steady steps.
            end: end, ns.

        Raises:
            InputError: a trace holds no GPU work.
            UsageError: there is no such table.
        """
        with self._lock:
            return self._work.table(by, self._window(begin, end))

    def instances(self, by: str, group: int, begin: int | None, end: int | None) -> Instances:
        """Where the operations of one row of a table are drawn, in order of time.

        Raises:
            InputError: a trace holds no GPU work.
            UsageError: there is no such table or row.
        """
        with self._lock:
            work = self._work
            rows, total = work.instances(by, group, self._window(begin, end))
            track, row = self._places[0][rows], self._places[1][rows]
            depth = np.zeros(len(rows), np.int64)
            for number in distinct_values(track).tolist():
                mine = track == number
                depth[mine] = self._timeline.track(number).slices.depth[row[mine]]
        start = work.start_ns[rows]
        return {
            "total": total,
            "start": start.tolist(),
            "end": (start + work.ns[rows]).tolist(),
            "track": track.tolist(),
            "row": row.tolist(),
            "depth": depth.tolist(),
        }

    def flame(
        self, kind: str, weight: str, begin: int | None, end: int | None, *, reverse: bool
    ) -> FlameOfWindow:
        """The flame graph of a window, see :meth:`Stacks.graph`.

        Args:
            kind: what is stacked; empty for the first that there is.
            weight: ``cpu`` or ``gpu``.
            begin: begin on the job's clock, ns; None for the steady steps.
            end: end, ns.
            reverse: whether leaves stand on top.

        Raises:
            InputError: the steady steps are asked for, and a trace holds no GPU work.
            UsageError: there is none of that kind.
        """
        if begin is None or end is None:
            with self._lock:
                window = self._window(None, None)
            begin, end = window.begin, window.end
        with self._lock:
            kinds = self._stacks.kinds
            if not kinds:
                raise UsageError("the capture holds no ranges, operators, functions or samples")
            made = self._stacks.graph(kind or kinds[0], weight, begin, end, reverse=reverse)
        return {**made, "begin": begin, "end": end}

    # --- operations ------------------------------------------------------------------------------

    @cached_property
    def _devices(self) -> list[DeviceSteps]:
        if self._stored is not None:
            return self._stored.devices
        return [
            DeviceSteps(
                rank=device.trace_rank,
                bounds_ns=device.explanation.bounds_ns,
                first=device.explanation.first,
                last=device.explanation.last,
                operations=len(device.explanation.gpu.ops),
            )
            for device in self._view().devices
        ]

    @cached_property
    def _rank_traces(self) -> list[int]:
        """Of each device, the number of its trace."""
        rank_trace = {m.rank: i for i, m in enumerate(self._timeline.rank_traces)}
        return [rank_trace[device.rank] for device in self._devices]

    @cached_property
    def _bounds_ns(self) -> list[IntArray]:
        """Of each device, the boundaries of its steps on the job's clock, ns."""
        devices = zip(self._devices, self._rank_traces, strict=True)
        return [device.bounds_ns + self._timeline.offsets_ns[m] for device, m in devices]

    @cached_property
    def _work(self) -> Work:
        offsets = np.array([self._timeline.offsets_ns[m] for m in self._rank_traces], np.int64)
        late = np.repeat(offsets, [device.operations for device in self._devices])
        steady = [
            (int(b[d.first]), int(b[d.last + 1]))
            for d, b in zip(self._devices, self._bounds_ns, strict=True)
        ]
        window = Window(
            chosen=np.empty(0, bool),
            wall_ns=sum(end - begin for begin, end in steady),
            steps=sum(d.last - d.first + 1 for d in self._devices),
            begin=min(begin for begin, _ in steady),
            end=max(end for _, end in steady),
        )
        if self._stored is not None:
            return self._stored.work(late, window)
        frame = from_arrow(category_table(self._view()).select(_COLUMNS))
        return Work(frame, frame["start_ns"] + late, replace(window, chosen=frame["steady"]))

    def write(self, writer: ArrayWriter) -> dict[str, Any]:
        """Write what the tables of all windows need, for :class:`StoredTables`.

        Returns:
            What readers are told.

        Raises:
            InputError: a trace holds no GPU work.
            OSError: the file cannot be written.
        """
        with self._lock:
            return write_tables(writer, self._devices, self._work)

    def _window(self, begin: int | None, end: int | None) -> Window:
        work = self._work
        if begin is None or end is None:
            return work.steady
        if end <= begin:
            raise UsageError("the window is empty")
        starts = [(bounds[:-1] >= begin) & (bounds[:-1] < end) for bounds in self._bounds_ns]
        return Window(
            chosen=(work.start_ns >= begin) & (work.start_ns < end),
            wall_ns=(end - begin) * len(self._bounds_ns),
            steps=sum(int(inside.sum()) for inside in starts),
            begin=begin,
            end=end,
        )

    @cached_property
    def _places(self) -> tuple[IntArray, IntArray]:
        """Track and row of each operation of ``_work``."""
        ids, of = self._work.ids, self._rank_traces
        sizes = [device.operations for device in self._devices]
        rank_trace = np.repeat(np.array(of, np.int64), sizes)
        track = np.full(len(ids), -1, np.int64)
        row = track.copy()
        for number in sorted(set(of)):
            mine = np.flatnonzero(rank_trace == number)
            most = int(ids[mine].max(initial=-1)) + 1
            track_of, row_of = np.full(most, -1, np.int64), np.full(most, -1, np.int64)
            for candidate in self._timeline.tracks:
                if candidate.rank_trace == number and candidate.stream >= 0:
                    drawn = self._timeline.track(candidate.id).slices.id
                    known = drawn < most
                    track_of[drawn[known]] = candidate.id
                    row_of[drawn[known]] = np.flatnonzero(known)
            track[mine], row[mine] = track_of[ids[mine]], row_of[ids[mine]]
        return track, row

    # --- a page without a server -----------------------------------------------------------------

    def extract(self, begin: int, end: int, *, tables: bool) -> ExtractOfPanels:
        """What the page's own panels need of ``[begin, end)``; arrays as base64.

        Args:
            begin: begin on the job's clock, ns.
            end: end, ns.
            tables: whether the job could be explained; tables need that.
        """
        flames: dict[str, FlameAnswer] = {}
        with self._lock:
            for kind in self._stacks.kinds:
                for weight in ("cpu",) if kind == "samples" else WEIGHTS:
                    for reverse in (False, True):
                        flames[f"{kind} {weight} {int(reverse)}"] = self._stacks.graph(
                            kind, weight, begin, end, reverse=reverse, most=_PAGE_NODES
                        )
            return {
                "tables": self._tables(begin, end) if tables else None,
                "flames": flames,
                "links": packed(linked_rows(self._timeline, begin, end), "u4"),
            }

    def _tables(self, begin: int, end: int) -> PackedTables:
        work = self._work
        track, row = self._places
        stop = work.start_ns + work.ns
        inside = (work.start_ns < end) & ((stop > begin) | (work.start_ns >= begin))
        rows = np.flatnonzero(inside)
        kept, depth = row[rows], np.zeros(len(rows), np.int64)
        for number in distinct_values(track[rows]).tolist():
            slices = self._timeline.track(number).slices
            mine = track[rows] == number
            depth[mine] = slices.depth[kept[mine]]
            # rows of the page are those of its window, numbered again
            kept[mine] = np.cumsum(in_page(slices, begin, end))[kept[mine]] - 1
        kernel, texts = work.categories["kernel"][rows], work.categories.texts["kernel"]
        groups: dict[str, PackedGroups] = {}
        for by, grouped in GROUPINGS.items():
            grouping = work.grouping(by)
            code = grouping.code[rows]
            groups[by] = {
                "keys": list(grouped.keys),
                "names": {g: shown(grouping.names[g]) for g in distinct_values(code).tolist()},
                "code": packed(code, "u4"),
            }
        bounds = zip(self._devices, self._bounds_ns, strict=True)
        return {
            "start": packed(work.start_ns[rows], "f8"),
            "ns": packed(work.ns[rows], "f8"),
            "steady": packed(work.steady.chosen[rows], "u1"),
            "track": packed(track[rows], "u4"),
            "row": packed(kept, "u4"),
            "depth": packed(depth, "u4"),
            "kernel": packed(kernel, "u4"),
            "kernels": {
                c: texts[c][:LONGEST_NAME] for c in distinct_values(kernel).tolist() if c >= 0
            },
            "groups": groups,
            "bounds": [b.tolist() for b in self._bounds_ns],
            "steps": [(int(b[d.first]), int(b[d.last + 1])) for d, b in bounds],
        }


_PAGE_NODES = 3_000
"""Nodes of a flame graph inside a page: a page holds up to 16 of them."""
