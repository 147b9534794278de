"""What happens in a chosen window: where devices' time goes, their longest kernels, and calls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.intervals.distinct import with_first_and_inverse
from stepscope.timeline.answers import DeviceStatistics, NamedRows, Statistics
from stepscope.timeline.classes import CLASSES, by_class
from stepscope.timeline.hostwindow import threads
from stepscope.timeline.timeline import Timeline
from stepscope.timeline.track import Slices, Track
from stepscope.trace.frame import IntArray

TOP = 12
_PIECE = 1 << 18
"""Rows that are looked at together: bounds the memory of a window of any length."""


def statistics(timeline: Timeline, begin: int, end: int, *, explained: bool) -> Statistics:
    """Statistics of ``[begin, end)``.

    Args:
        timeline: the timeline.
        begin: begin on the job's clock, ns.
        end: end, ns.
        explained: whether causes of idle time are known by now.
    """
    devices: list[DeviceStatistics] = []
    for busy in timeline.tracks:
        if not busy.path.endswith("/busy"):
            continue
        own = [
            t
            for t in timeline.tracks
            if (t.rank_trace, t.process_id, t.device)
            == (busy.rank_trace, busy.process_id, busy.device)
        ]
        parts = _by_class(timeline.track(busy.id).slices, begin, end)
        streams = [timeline.track(t.id).slices for t in own if t.stream >= 0]
        idle: dict[str, int] = {}
        if explained:
            for gaps in own:
                if gaps.table == "idle_gap":
                    idle = _by_class(timeline.track(gaps.id).slices, begin, end)
        total = sum(parts.values())
        devices.append(
            {
                "title": timeline.group_of(busy),
                "busy": parts,
                "idle": max(0, end - begin - total),
                "idle_by_cause": idle,
                "categories": _sum([_by_class(s, begin, end) for s in streams]),
                "kernels": _top(timeline, [t for t in own if t.stream >= 0], begin, end),
            }
        )
    found = threads(timeline, begin, end)
    return {"begin": begin, "end": end, "devices": devices, "threads": found}


def _cut(slices: Slices, begin: int, end: int) -> Iterator[tuple[IntArray, IntArray]]:
    """(rows that may touch the window, how long each is inside it in ns), in pieces."""
    rows = slices.between(begin, end)
    for at in range(0, len(rows), _PIECE):
        piece = rows[at : at + _PIECE]
        inside = np.minimum(slices.end[piece], end) - np.maximum(slices.start[piece], begin)
        yield piece, np.maximum(inside, 0)


def _by_class(slices: Slices, begin: int, end: int) -> dict[str, int]:
    sums = np.zeros(len(CLASSES), np.int64)
    for rows, ns in _cut(slices, begin, end):
        np.add.at(sums, slices.code[rows], ns)
    return by_class(sums)


def _sum(parts: list[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for key, ns in part.items():
            found[key] = found.get(key, 0) + ns
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _top(timeline: Timeline, tracks: list[Track], begin: int, end: int) -> list[NamedRows]:
    """The names that take most time, with one row of each to fly to."""
    tally: dict[int, list[int]] = {}
    for track in tracks:
        slices = track.slices
        for rows, ns in _cut(slices, begin, end):
            distinct, first, inverse = with_first_and_inverse(slices.name[rows])
            total = np.zeros(len(distinct), np.int64)
            np.add.at(total, inverse, ns)
            count = np.bincount(inverse, weights=ns > 0).astype(int)
            for i, name in enumerate(distinct.tolist()):
                entry = tally.setdefault(name, [0, 0, track.id, int(rows[first[i]])])
                entry[0] += int(total[i])
                entry[1] += int(count[i])
    best = sorted(tally.items(), key=lambda item: -item[1][0])[:TOP]
    return [
        {
            "name": timeline.names.texts[name],
            "total": total,
            "count": count,
            "track": track,
            "row": row,
        }
        for name, (total, count, track, row) in best
        if total
    ]
