"""What every exported format needs of a timeline: slices that nest, and launch arrows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.analysis.launch import launching_calls
from stepscope.analysis.timeline.timeline import Timeline
from stepscope.analysis.timeline.track import Slices, Track
from stepscope.trace.frame import BoolArray, IntArray

_MOST_LANES = 8


@dataclass(frozen=True)
class Piece:
    """Slices of one track, of which any two nest or are apart.

    Attributes:
        track: the track.
        number: 0, or more where slices overlap in part and need further lanes.
        rows: rows of the track, in their order.
    """

    track: Track
    number: int
    rows: IntArray

    @property
    def title(self) -> str:
        """Name of the lane."""
        return self.track.title + (f" (overlapping {self.number})" if self.number else "")


def pieces(timeline: Timeline, track: Track) -> Iterator[Piece]:
    """The slices of a track in lanes in which they nest: other viewers demand that.

    A slice that overlaps another in part goes into a further lane, unchanged.
    """
    slices = timeline.track(track.id).slices
    rows = np.arange(len(slices))
    for number in range(_MOST_LANES):
        if not len(rows):
            return
        odd = _crossing(slices, rows) if number < _MOST_LANES - 1 else np.zeros(len(rows), bool)
        yield Piece(track, number, rows[~odd])
        rows = rows[odd]


def _crossing(slices: Slices, rows: IntArray) -> BoolArray:
    """Slices that begin inside another and end behind it."""
    start, end = slices.start[rows], slices.end[rows]
    odd = np.zeros(len(rows), bool)
    open_: list[int] = []
    if len(rows) > 1 and (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
        return odd
    for i, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while open_ and open_[-1] <= begin:
            open_.pop()
        if open_ and stop > open_[-1]:
            odd[i] = True
        else:
            open_.append(stop)
    return odd


def begins_and_ends(slices: Slices, rows: IntArray) -> tuple[IntArray, BoolArray, IntArray]:
    """(time, whether it begins, row) of each begin and end, in an order in which they nest."""
    start, end = slices.start[rows], slices.end[rows]
    # at one time: what ends comes first, the inner before the outer; an instant begins and ends
    # inside; of what begins, the outer comes first
    n = len(rows)
    time = np.concatenate((start, end))
    begins = np.concatenate((np.ones(n, bool), np.zeros(n, bool)))
    instant = np.concatenate((end == start, end == start))
    length = np.concatenate((-(end - start), end - start))
    phase = np.where(instant, 1, np.where(begins, 2, 0))
    order_of = np.concatenate((np.arange(n), np.arange(n)))
    inner = np.where(begins, order_of, -order_of)
    pair = np.where(instant, order_of * 2 + ~begins, 0)
    order = np.lexsort((inner, pair, length, phase, time))
    of = np.concatenate((rows, rows))
    return time[order], begins[order], of[order]


def launches(timeline: Timeline) -> dict[int, dict[int, tuple[int, bool]]]:
    """Track number to row to (number of the arrow, whether it leaves): launch to kernel."""
    found: dict[int, dict[int, tuple[int, bool]]] = {}
    number = 0
    for source in timeline.sources:
        gpu = source.read("gpu_op", "id", "process_id", "correlation_id", "start_ns")
        api = source.read("api_call", "api", "id", "process_id", "correlation_id", "start_ns")
        api = api.take(api.equals("api", "runtime", "driver"))
        call = launching_calls(gpu, api)
        ops = np.flatnonzero(call >= 0)
        # a call that enqueued several operations has one arrow, to the first
        _, first = np.unique(call[ops], return_index=True)
        ops = ops[first]
        arrow_of_op = dict(zip(ops.tolist(), range(number, number + len(ops)), strict=True))
        calls = api["id"][call[ops]].tolist()
        arrow_of_call = dict(zip(calls, range(number, number + len(ops)), strict=True))
        number += len(ops)
        for track in timeline.tracks:
            if track.member != source.member:
                continue
            is_op = track.table == "gpu_op" and track.stream >= 0
            if not is_op and track.table != "api_call":
                continue
            arrows = arrow_of_op if is_op else arrow_of_call
            ids = timeline.track(track.id).slices.id.tolist()
            found[track.id] = {
                row: (arrows[id_], not is_op) for row, id_ in enumerate(ids) if id_ in arrows
            }
    return found
