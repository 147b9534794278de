"""Stretches of the host's time that one cause owns, and the idle time that is charged to them.

Most idle time is explained moment by moment. Some causes are events of their own, which hold many
moments of several kinds: saving a checkpoint copies, waits, computes and writes; a thread that
waits for a lock is merely silent. What finds such events gives their intervals, and all idle time
inside them belongs to their cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.intervals import subtract, union
from stepscope.intervals.algebra import EMPTY, Intervals
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.frame import BoolArray, IntArray

Owned = tuple[int, Intervals]
"""A cause's number, and the disjoint set of intervals that it owns, ns."""


def apart(events: Mapping[str, Intervals]) -> dict[str, Intervals]:
    """The intervals of each cause without overlap: what several claim goes to the first."""
    taken = EMPTY
    owned = {}
    for cause, intervals in events.items():
        owned[cause] = subtract(intervals, taken)
        taken = union(
            np.concatenate((taken[0], intervals[0])), np.concatenate((taken[1], intervals[1]))
        )
    return owned


def charge_owned(columns: dict[str, IntArray], owned: Sequence[Owned]) -> dict[str, IntArray]:
    """Give the parts of segments that lie in owned intervals to their owner.

    Args:
        columns: ``start_ns``, ``end_ns``, ``cause``, ``evidence`` and any others; disjoint, in
            time order.
        owned: disjoint intervals of each cause.

    Returns:
        The same columns, cut where an owned interval begins or ends inside a segment.
    """
    for cause, (begin, end) in owned:
        if not len(begin) or not len(columns["start_ns"]):
            continue
        edges = distinct_values(np.concatenate((begin, end)))
        columns = cut(columns, edges)
        held = inside((begin, end), columns["start_ns"])
        columns["cause"] = np.where(held, cause, columns["cause"])
        columns["evidence"] = np.where(held, -1, columns["evidence"])
    return columns


def cut(columns: dict[str, IntArray], edges: IntArray) -> dict[str, IntArray]:
    """Cut segments at the given times, which come ascending; the other columns are repeated."""
    start, end = columns["start_ns"], columns["end_ns"]
    first = np.searchsorted(edges, start, side="right")
    last = np.searchsorted(edges, end, side="left")
    pieces = np.maximum(last - first, 0) + 1
    row = np.repeat(np.arange(len(start)), pieces)
    number = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    known = np.append(edges, np.iinfo(np.int64).max)
    done = {name: values[row] for name, values in columns.items()}
    at = np.minimum(first[row] + number, len(edges))
    done["end_ns"] = np.where(number == pieces[row] - 1, end[row], known[at])
    done["start_ns"] = np.where(number == 0, start[row], known[np.maximum(at - 1, 0)])
    return done


def inside(intervals: Intervals, at: IntArray) -> BoolArray:
    """Whether each time lies in a disjoint set."""
    if not len(intervals[0]):
        return np.zeros(len(at), bool)
    which = np.searchsorted(intervals[0], at, side="right") - 1
    held: BoolArray = (which >= 0) & (intervals[1][np.maximum(which, 0)] > at)
    return held
