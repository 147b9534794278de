"""What every exported format needs of a timeline: slices that nest, and launch flows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.activity.device import launching_calls
from stepscope.intervals.distinct import distinct_values, with_first
from stepscope.timeline.timeline import Timeline
from stepscope.timeline.track import Slices, Track
from stepscope.trace.frame import BoolArray, IntArray

_MOST_LANES = 8
CHUNK = 1 << 16
"""Slices that are written together: bounds the memory, however long a track is."""


@dataclass(frozen=True)
class Piece:
    """Slices of one track, of which any two nest or are apart.

    Attributes:
        track: the track.
        number: 0, or more where slices overlap in part and need further layers.
        rows: rows of the track, in their order.
    """

    track: Track
    number: int
    rows: IntArray

    @property
    def title(self) -> str:
        """Name of the layer."""
        return self.track.title + (f" (overlapping {self.number})" if self.number else "")


def pieces(timeline: Timeline, track: Track) -> Iterator[Piece]:
    """The slices of a track in layers in which they nest: other viewers demand that.

    A slice that overlaps another in part goes into a further layer, unchanged.
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
    """Slices that begin inside another and end behind it.

    Each is compared with those before it that do not.
    """
    start, end = np.asarray(slices.start[rows]), np.asarray(slices.end[rows])
    odd = np.zeros(len(rows), bool)
    if len(rows) < 2 or bool((start[1:] >= np.maximum.accumulate(end)[:-1]).all()):
        return odd
    if bool((end[1:] > end[:-1]).all()):
        return ~_one_after_the_other(start, end)
    for group in _entangled(start, end):
        open_: list[int] = []
        for i, begin, stop in zip(
            group.tolist(), start[group].tolist(), end[group].tolist(), strict=True
        ):
            while open_ and open_[-1] <= begin:
                open_.pop()
            if open_ and stop > open_[-1]:
                odd[i] = True
            else:
                open_.append(stop)
    return odd


def _one_after_the_other(start: IntArray, end: IntArray) -> BoolArray:
    """Of slices of which none lies in another: the first, the first behind that, and so on."""
    n = len(start)
    # the one behind each; then the second behind, the fourth, ... so that few rounds reach all
    jump = np.append(np.maximum(np.searchsorted(start, end), np.arange(1, n + 1)), n)
    chosen = np.zeros(n + 1, bool)
    chosen[0] = True
    found = np.array([0])
    for _ in range(n.bit_length()):
        found = np.concatenate((found, jump[found]))
        jump = jump[jump]
        if jump[0] == n:
            break
    chosen[found] = True
    # after the last round, what is behind the last ones may still be missing
    found = np.flatnonzero(chosen)
    while True:
        following = jump[found]
        new = following[~chosen[following]]
        if not len(new):
            break
        chosen[new] = True
        found = new
    return chosen[:n]


def _entangled(start: IntArray, end: IntArray) -> Iterator[IntArray]:
    """Groups of slices that overlap, in which any two cross; groups do not touch one another."""
    _, begins, row = _sequence(start, end)
    depth = np.cumsum(np.where(begins, 1, -1))
    level = np.where(begins, depth, depth + 1)
    # where all nest, what begins at a depth is what ends there next
    order = np.argsort(level, kind="stable")
    crossed = row[order[0::2]] != row[order[1::2]]
    group = np.cumsum(begins & (depth == 1)) - 1  # of each begin and end
    wanted = distinct_values(group[order[0::2][crossed]])
    of_row = group[begins]
    rows = row[begins]
    low = np.searchsorted(of_row, wanted, side="left")
    high = np.searchsorted(of_row, wanted, side="right")
    for first, last in zip(low.tolist(), high.tolist(), strict=True):
        yield np.sort(rows[first:last])


def _sequence(start: IntArray, end: IntArray) -> tuple[IntArray, BoolArray, IntArray]:
    """(time, whether it begins, position) of each begin and end, in an order in which they nest.

    At one time, what ends comes first, the inner before the outer; an instant begins and ends
    inside; of what begins, the outer comes first.
    """
    instant = np.flatnonzero(end == start)
    longer = np.flatnonzero(end > start)
    # a stable sort keeps this order of what is at one time
    row = np.concatenate((longer[::-1], np.repeat(instant, 2), longer))
    time = np.concatenate((end[longer[::-1]], np.repeat(start[instant], 2), start[longer]))
    begins = np.ones(len(row), bool)
    begins[: len(longer)] = False
    begins[len(longer) + 1 : len(longer) + 2 * len(instant) : 2] = False
    order = np.argsort(time, kind="stable")
    return time[order], begins[order], row[order]


def begins_and_ends(slices: Slices, rows: IntArray) -> tuple[IntArray, BoolArray, IntArray]:
    """(time, whether it begins, row) of each begin and end, in an order in which they nest."""
    start, end = np.asarray(slices.start[rows]), np.asarray(slices.end[rows])
    if bool((start[1:] >= end[:-1]).all()):  # nothing nests
        time = np.stack((start, end), 1).ravel()
        return time, np.tile([True, False], len(rows)), np.repeat(rows, 2)
    time, begins, at = _sequence(start, end)
    return time, begins, rows[at]


@dataclass(frozen=True)
class Flows:
    """Flows from the launches of one track.

    Attributes:
        number: number of the flow at each row; -1 where there is none.
        leaves: whether they leave this track, else they arrive.
    """

    number: IntArray
    leaves: bool


def launches(timeline: Timeline) -> dict[int, Flows]:
    """Flows from launch to kernel, by number of the track."""
    found: dict[int, Flows] = {}
    number = 0
    for source in timeline.sources:
        gpu = source.read("gpu_op", "id", "process_id", "correlation_id", "start_ns")
        api = source.read("api_call", "api", "id", "process_id", "correlation_id", "start_ns")
        calls = len(api)
        api = api.take(api.equals("api", "runtime", "driver"))
        call = launching_calls(gpu, api)
        ops = np.flatnonzero(call >= 0)
        # a call that enqueued several operations has one flow, to the first
        _, first = with_first(call[ops])
        ops = ops[first]
        numbers = np.arange(number, number + len(ops))
        of_op = np.full(len(gpu), -1, np.int64)
        of_op[ops] = numbers
        of_call = np.full(calls, -1, np.int64)
        of_call[api["id"][call[ops]]] = numbers
        number += len(ops)
        for track in timeline.tracks:
            if track.rank_trace != source.rank_trace:
                continue
            is_op = track.table == "gpu_op" and track.stream >= 0
            if not is_op and track.table != "api_call":
                continue
            flows = of_op if is_op else of_call
            found[track.id] = Flows(flows[timeline.track(track.id).slices.id], not is_op)
    return found
