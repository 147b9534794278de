"""Where in a timeline a cause is seen: its worst instances, and what the host did in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.gaps.idle import CAUSES
from stepscope.jobs.view import JobView
from stepscope.timeline.ask import Asker
from stepscope.timeline.timeline import Timeline
from stepscope.timeline.track import Track
from stepscope.trace.frame import IntArray

MOST = 20
_RESPONSIBLE = 1
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
    """

    device: int
    begin: IntArray
    end: IntArray
    cost: IntArray
    thread: IntArray
    what: str


def instances(
    asker: Asker, view: JobView, cause: str, ranks: Sequence[int]
) -> list[dict[str, Any]]:
    """The worst instances of a cause, the worst first.

    Args:
        asker: of the timeline in which they are looked up.
        view: the explained devices.
        cause: public id.
        ranks: ranks that show it.
    """
    timeline = asker.timeline
    of_cause = [
        spans
        for number, device in enumerate(view.devices)
        if not ranks or device.rank in ranks
        for spans in _spans(view, number, cause)
    ]
    found: list[dict[str, Any]] = []
    for spans in of_cause:
        device = view.devices[spans.device]
        member = next(i for i, m in enumerate(timeline.members) if m.rank == device.trace_rank)
        offset = timeline.offsets_ns[member]
        lane = device.explanation.lane
        tracks = [
            t
            for t in timeline.tracks
            if t.member == member and t.process_id in (lane.process_id, -1)
        ]
        for row in np.argsort(-spans.cost, kind="stable")[:MOST].tolist():
            begin, end = int(spans.begin[row]) + offset, int(spans.end[row]) + offset
            found.append(
                {
                    "begin": begin,
                    "end": end,
                    "cost": int(spans.cost[row]),
                    "rank": device.rank,
                    "what": spans.what,
                    "tracks": [
                        t.id
                        for t in tracks
                        if t.device == lane.device and t.table in ("idle_gap", "gpu_op")
                    ],
                    "thread": int(spans.thread[row]),
                    "_tracks": [t for t in tracks if 0 <= t.thread_id == spans.thread[row]],
                }
            )
    found.sort(key=lambda item: -item["cost"])
    for item in found[:MOST]:
        begin, end = item["begin"], item["end"]
        item["responsible"] = _responsible(asker, item["_tracks"], begin, end)
        if not item["responsible"]:
            # nothing fills the gap: what took the host's lead acted before it
            earlier = begin - _BEFORE * (end - begin)
            item["responsible"] = _responsible(asker, item["_tracks"], earlier, end)
    return [{k: v for k, v in item.items() if k != "_tracks"} for item in found[:MOST]]


def _spans(view: JobView, number: int, cause: str) -> list[Spans]:
    e = view.devices[number].explanation
    gaps = _gaps(e, number, cause)
    if gaps is not None:
        return [gaps]
    if cause in e.events and len(e.events[cause][0]):
        start, end = e.events[cause]
        thread = np.full(len(start), e.lane.host.main_thread)
        return [Spans(number, start, end, end - start, thread, "host event")]
    repair = e.inside_kernels.repairs.get(cause) if cause not in _COMMUNICATION else None
    if repair is not None and len(repair.rows):
        ops, rows = e.lane.ops, repair.rows
        start, end = ops["start_ns"][rows], ops["end_ns"][rows]
        none = np.full(len(rows), -1)
        return [Spans(number, start, end, end - start - repair.new_ns, none, "kernel")]
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
        return np.asarray(rows.column(name).fill_null(-1).to_numpy(), np.int64)

    own = (column("rank") == view.devices[number].rank) & (column("device") == e.lane.device)
    own &= column("step") >= 0
    start, end = column("start_ns"), column("end_ns")
    main = e.lane.host.main_thread
    if cause == "exposed_communication":
        cost = (column("exposed_waiting_ns") + column("exposed_transfer_ns"))[own]
        none = np.full(len(cost), -1)
        return Spans(number, start[own], end[own], cost, none, "collective")
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
    thread = np.full(len(rows), e.lane.host.main_thread, np.int64)
    op = gap["op"][rows]
    api = e.lane.host.api
    if len(api) and len(e.lane.call):
        call = np.where(op >= 0, e.lane.call[np.maximum(op, 0)], -1)
        thread = np.where(call >= 0, api["thread_id"][np.maximum(call, 0)], thread)
    return Spans(number, start, end, end - start, thread, "idle gap")


def _responsible(
    asker: Asker, tracks: Sequence[Track], begin: int, end: int
) -> list[dict[str, Any]]:
    """What the late thread did meanwhile: of each track the innermost slices that fill the gap."""
    found = []
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
