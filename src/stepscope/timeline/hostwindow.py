"""What the threads did in a chosen window: their CUDA calls by kind."""

from __future__ import annotations

import numpy as np

from stepscope.timeline import classes
from stepscope.timeline.answers import ThreadStatistics
from stepscope.timeline.build import CUDA_CALLS
from stepscope.timeline.timeline import Timeline

_PIECE = 1 << 18
MOST_THREADS = 4
"""Threads that are told: a program launches from two, seldom from more."""


def threads(timeline: Timeline, begin: int, end: int) -> list[ThreadStatistics]:
    """Time in CUDA calls of the threads that spend most in them, in ``[begin, end)``.

    Args:
        timeline: the timeline.
        begin: begin on the job's clock, ns.
        end: end, ns.
    """
    found: list[ThreadStatistics] = []
    for track in timeline.tracks:
        if track.table != "api_call" or track.title != CUDA_CALLS:
            continue
        slices = timeline.track(track.id).slices
        # a call that waits may have begun long before the window
        stop = int(np.searchsorted(slices.start, end, side="left"))
        kinds = np.zeros(len(classes.CLASSES), np.int64)
        calls = 0
        for at in range(0, stop, _PIECE):  # bounds the memory of a window over everything
            part = slice(at, min(at + _PIECE, stop))
            start, last = slices.start[part], slices.end[part]
            inside = np.maximum(np.minimum(last, end) - np.maximum(start, begin), 0)
            np.add.at(kinds, slices.code[part], inside)
            calls += int(np.count_nonzero(start >= begin))
        if kinds.any():
            facts = classes.by_class(kinds)
            found.append({"title": timeline.group_of(track), "calls": calls, "kinds": facts})
    found.sort(key=lambda thread: -sum(thread["kinds"].values()))
    return found[:MOST_THREADS]
