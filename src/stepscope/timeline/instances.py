"""Where in a timeline a cause is seen: its instances, and what is responsible for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.gaps.idle import CAUSES
from stepscope.jobs.view import JobView
from stepscope.timeline import classes
from stepscope.timeline.answers import FoundInstance, Instance, Place, Responsible
from stepscope.timeline.ask import Asker
from stepscope.timeline.timeline import Timeline
from stepscope.timeline.track import Track
from stepscope.trace.frame import IntArray

if TYPE_CHECKING:
    import pyarrow as pa

MOST = 20
_RESPONSIBLE = 1
_STATES = ("thread_state", "sched")
_MOST_WAITING = 3
"""Kernels of other ranks that are shown with a late one."""
_BEFORE = 4
"""How many lengths of a gap before it are searched for what made the host late."""
_COMMUNICATION = ("exposed_communication", "straggler", "load_imbalance")


@dataclass(frozen=True)
class Spans:
    """Places of one device where a cause is seen, on its trace's clock.

    Attributes:
        device: position in ``JobView.devices``.
        begin: begins, ns.
        end: ends, ns.
        cost: what each costs, ns; the largest is the worst.
        thread: thread that was late; -1 where none was.
        what: in words.
        op: ``gpu_op.id`` of the operation itself, on its device; -1 where there is none.
        instance: number of a collective that others wait in; -1 where it is none.
    """

    device: int
    begin: IntArray
    end: IntArray
    cost: IntArray
    thread: IntArray
    what: str
    op: IntArray | None = None
    instance: IntArray | None = None


def instances(asker: Asker, view: JobView, cause: str, ranks: Sequence[int]) -> list[Instance]:
    """Instances of a cause: the typical one, then the largest, the largest first.

    Typical is the one in which half of the cause's whole time is reached when they are counted from
    the largest on: the median by time. The median by number would be one of many slivers where few
    long gaps cost everything.

    Args:
        asker: of the timeline in which they are looked up.
        view: the explained devices.
        cause: public id.
        ranks: ranks that show it.
    """
    of_cause = [
        spans
        for number, device in enumerate(view.devices)
        if not ranks or device.rank in ranks
        for spans in _spans(view, number, cause)
    ]
    if not of_cause:
        return []
    cost = np.concatenate([spans.cost for spans in of_cause])
    part = np.repeat(np.arange(len(of_cause)), [len(spans.cost) for spans in of_cause])
    row = np.concatenate([np.arange(len(spans.cost)) for spans in of_cause])
    order = np.argsort(-cost, kind="stable")
    if not len(order):
        return []
    reached = np.cumsum(np.maximum(cost[order], 0))
    typical = int(np.searchsorted(reached, reached[-1] / 2, side="left"))
    places = [typical, *(place for place in range(min(MOST, len(order))) if place != typical)]
    finder = _Finder(asker, view)
    return [
        {
            **finder.instance(of_cause[part[order[place]]], int(row[order[place]])),
            "number": place + 1,
            "of": len(order),
            "typical": place == typical,
        }
        for place in places[:MOST]
    ]


class _Finder:
    """Looks instances up in the timeline."""

    def __init__(self, asker: Asker, view: JobView) -> None:
        self.asker = asker
        self.view = view
        self.timeline: Timeline = asker.timeline

    def instance(self, spans: Spans, row: int) -> FoundInstance:
        """One instance: where it is, what is responsible, and what waits for it."""
        device = self.view.devices[spans.device]
        rank_trace = self._rank_trace(device.trace_rank)
        offset = self.timeline.offsets_ns[rank_trace]
        gpu = device.explanation.gpu
        begin, end = int(spans.begin[row]) + offset, int(spans.end[row]) + offset
        thread = int(spans.thread[row])
        own = [
            t
            for t in self.timeline.tracks
            if t.rank_trace == rank_trace and t.process_id in (gpu.process_id, -1)
        ]
        on_device = [t for t in own if t.device == gpu.device and t.table in ("idle_gap", "gpu_op")]
        threads = [t for t in own if 0 <= t.thread_id == thread]
        telling = [t for t in threads if t.table not in _STATES]
        waiting: list[Place] = []
        responsible: list[Responsible] = []
        if spans.op is not None:
            places = self._operation(on_device, int(spans.op[row]))
            responsible = [{**place, "overlap": place["end"] - place["start"]} for place in places]
        if spans.instance is not None:
            waiting = self._waiting(int(spans.instance[row]), spans.device)
            responsible = self._kept_busy(on_device, begin, end)
        # where nothing fills the gap, what took the host's run-ahead acted before it; that a thread
        # slept says least
        earlier = begin - _BEFORE * (end - begin)
        for tracks, since in ((telling, begin), (telling, earlier), (threads, begin)):
            responsible = responsible or _responsible(self.asker, tracks, since, end)
        return {
            "begin": begin,
            "end": end,
            "cost": int(spans.cost[row]),
            "rank": device.rank,
            "what": spans.what,
            "tracks": [t.id for t in on_device],
            "thread": thread,
            "responsible": responsible,
            "waiting": waiting,
        }

    @cached_property
    def _waits(self) -> pa.Table:
        from stepscope.derived.collective_wait import TABLE

        return TABLE.build(self.view)

    def _rank_trace(self, trace_rank: int) -> int:
        return next(i for i, m in enumerate(self.timeline.rank_traces) if m.rank == trace_rank)

    def _operation(self, tracks: Sequence[Track], op: int) -> list[Place]:
        """Where one operation of a device is drawn."""
        for track in tracks:
            if track.table != "gpu_op" or track.stream < 0:
                continue
            slices = self.timeline.track(track.id).slices
            row = slices.row_of(op)
            if row >= 0:
                return [self.asker.place(track, row)]
        return []

    def _kept_busy(self, tracks: Sequence[Track], begin: int, end: int) -> list[Responsible]:
        """What ran on the late device while others waited: the longest, communication left out.

        Nothing where the device was idle for most of the time: then the host was late.
        """
        found: list[tuple[int, Track, int]] = []
        busy = 0
        for track in tracks:
            if track.table != "gpu_op" or track.stream < 0:
                continue
            slices = self.timeline.track(track.id).slices
            near = slices.between(begin, end)
            near = near[slices.code[near] != classes.CODE["kernel_communication"]]
            if not len(near):
                continue
            overlap = np.minimum(slices.end[near], end) - np.maximum(slices.start[near], begin)
            busy += int(np.maximum(overlap, 0).sum())
            best = int(np.argmax(overlap))
            found.append((int(overlap[best]), track, int(near[best])))
        if not found or busy * 2 < end - begin:
            return []
        overlap, track, row = max(found, key=lambda item: item[0])
        return [{**self.asker.place(track, row), "overlap": overlap}] if overlap > 0 else []

    def _waiting(self, instance: int, late: int) -> list[Place]:
        """The kernels of a collective on the other devices, those that wait longest first."""
        table = self._waits
        rows = np.flatnonzero(_column(table, "instance") == instance)
        waited = _column(table, "exposed_waiting_ns")[rows]
        found: list[Place] = []
        for row in rows[np.argsort(-waited, kind="stable")].tolist():
            rank, device = int(_column(table, "rank")[row]), int(_column(table, "device")[row])
            process = int(_column(table, "process_id")[row])
            for number, other in enumerate(self.view.devices):
                gpu = other.explanation.gpu
                if number == late or (other.rank, gpu.process_id, gpu.device) != (
                    rank, process, device,
                ):  # fmt: skip
                    continue
                rank_trace = self._rank_trace(other.trace_rank)
                tracks = [
                    t
                    for t in self.timeline.tracks
                    if (t.rank_trace, t.process_id, t.device) == (rank_trace, process, device)
                ]
                op = int(_column(table, "gpu_op_id")[row])
                found += self._operation(tracks, op)
            if len(found) == _MOST_WAITING:
                break
        return found


def _column(rows: pa.Table, name: str) -> IntArray:
    return np.asarray(rows.column(name).fill_null(-1).to_numpy(), np.int64)


def _spans(view: JobView, number: int, cause: str) -> list[Spans]:
    e = view.devices[number].explanation
    gaps = _gaps(e, number, cause)
    if gaps is not None:
        return [gaps]
    if cause in e.events and len(e.events[cause][0]):
        start, end = e.events[cause]
        thread = np.full(len(start), e.gpu.host.main_thread)
        return [Spans(number, start, end, end - start, thread, "host event")]
    repair = e.inside_kernels.repairs.get(cause) if cause not in _COMMUNICATION else None
    if repair is not None and len(repair.rows):
        ops, rows = e.gpu.ops, repair.rows
        start, end = ops["start_ns"][rows], ops["end_ns"][rows]
        none = np.full(len(rows), -1)
        ids = np.asarray(ops["id"][rows], np.int64)
        return [Spans(number, start, end, end - start - repair.new_ns, none, "kernel", ids)]
    if cause in _COMMUNICATION:
        found = _collectives(view, number, cause)
        if len(found.begin):
            return [found]
    steps = slice(e.first, e.last + 1)
    start, end = e.bounds_ns[:-1][steps], e.bounds_ns[1:][steps]
    return [Spans(number, start, end, end - start, np.full(len(start), -1), "slow step")]


def _collectives(view: JobView, number: int, cause: str) -> Spans:
    """Collectives of a device by what they expose; for a late rank, by what the others wait for it.

    For ``straggler`` and ``load_imbalance`` a span is the time in which others wait for this
    device: it ends when this device's own kernel begins.
    """
    from stepscope.derived.collective_wait import TABLE

    e = view.devices[number].explanation
    rows = TABLE.build(view)

    def column(name: str) -> IntArray:
        return _column(rows, name)

    own = (column("rank") == view.devices[number].rank) & (column("device") == e.gpu.device)
    own &= column("step") >= 0
    start, end = column("start_ns"), column("end_ns")
    main = e.gpu.host.main_thread
    if cause == "exposed_communication":
        cost = (column("exposed_waiting_ns") + column("exposed_transfer_ns"))[own]
        none = np.full(len(cost), -1)
        ops = column("gpu_op_id")[own]
        return Spans(number, start[own], end[own], cost, none, "collective", ops)
    # how long others were exposed in each operation, added up
    instance = column("instance")
    waited = np.zeros(int(instance.max(initial=-1)) + 1, np.int64)
    np.maximum.at(waited, instance, column("exposed_waiting_ns"))
    late = own & (column("last_rank") == view.devices[number].rank) & (waited[instance] > 0)
    cost = waited[instance][late]
    return Spans(
        number,
        start[late] - cost,
        start[late],
        cost,
        np.full(len(cost), main),
        "others wait",
        instance=instance[late],
    )


def _gaps(e: Explanation, number: int, cause: str) -> Spans | None:
    """Idle pieces of a cause, with the thread whose launch ended them."""
    if cause not in CAUSES:
        return None
    rows = np.flatnonzero(e.segments_of(cause))
    if not len(rows):
        return None
    gap = e.gaps.segments
    start, end = gap["start_ns"][rows], gap["end_ns"][rows]
    thread = np.full(len(rows), e.gpu.host.main_thread, np.int64)
    op = gap["op"][rows]
    api = e.gpu.host.api
    if len(api) and len(e.gpu.call):
        call = np.where(op >= 0, e.gpu.call[np.maximum(op, 0)], -1)
        thread = np.where(call >= 0, api["thread_id"][np.maximum(call, 0)], thread)
    return Spans(number, start, end, end - start, thread, "idle gap")


def _responsible(asker: Asker, tracks: Sequence[Track], begin: int, end: int) -> list[Responsible]:
    """What the late thread did meanwhile: of each track the innermost slices that fill the gap."""
    found: list[Responsible] = []
    timeline: Timeline = asker.timeline
    for track in tracks:
        rows = timeline.track(track.id).slices
        near = rows.between(begin, end)
        overlap = np.minimum(rows.end[near], end) - np.maximum(rows.start[near], begin)
        inside = np.flatnonzero(overlap * 2 >= end - begin)
        if not len(inside):
            inside = np.flatnonzero(overlap * 10 >= end - begin)
        # of those that fill it, the innermost says most
        depth = np.array([rows.depth_of(int(row)) for row in near[inside]], np.int64)
        order = inside[np.lexsort((-overlap[inside], -depth))]
        found += [
            {**asker.place(track, int(near[at])), "overlap": int(overlap[at])}
            for at in order[:_RESPONSIBLE].tolist()
        ]
    return found
