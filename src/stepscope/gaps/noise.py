"""Tell the host's own noise from work of the program among the long silences.

Work of the program comes at its place in the step: the same number of operations after the step's
begin, or before its end, as in other steps. A pause at a place that takes microseconds in the
other steps is the machine's doing (another thread or process, a clock interrupt, a page fault).
It costs device time only because the host has no lead, which is what launch-bound means.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.activity import host as h
from stepscope.activity.device import Lane
from stepscope.activity.host import HostTimeline, inside
from stepscope.gaps.untraced_cpu import Loop, explain_silences
from stepscope.intervals.distinct import distinct_rows, with_counts
from stepscope.trace.frame import BoolArray, IntArray

MIN_STEPS = 4
"""Fewer steps cannot tell what recurs."""

RECURS_IN = 0.25
"""Share of the steps, two at least, in which a pause at one place is the program's own."""


def without_noise(
    timeline: HostTimeline, lane: Lane, step_begin_ns: IntArray, loop: Loop
) -> HostTimeline:
    """The timeline with noise among its silences labelled as part of the dispatch.

    Args:
        timeline: what the host did in the steady window.
        lane: the device.
        step_begin_ns: when the host begins each steady step.
        loop: the loop of the steps.
    """
    start, end = timeline.quiet
    short = end - start < h.LONGEST_SILENCE_NS
    if len(step_begin_ns) < MIN_STEPS or not short.any():
        return timeline
    noise = short & ~_recurs(lane, end, step_begin_ns)
    if noise.any():  # a loader may be late now and then
        noise &= ~explain_silences(lane, timeline.quiet, loop)[0]
    if not noise.any():
        return timeline
    middle = (timeline.start_ns + timeline.end_ns) // 2
    relabel = inside((start[noise], end[noise]), middle)
    relabel &= timeline.label == h.LABELS.index(h.SILENCE)
    return replace(
        timeline,
        label=np.where(relabel, h.LABELS.index(h.DISPATCH), timeline.label),
        quiet=(start[~noise], end[~noise]),
    )


def _recurs(lane: Lane, at: IntArray, step_begin_ns: IntArray) -> BoolArray:
    """Whether silences that end at some times have their like at the same place in other steps."""
    enqueued = np.sort(lane.enqueue_begin_ns)
    edges = np.searchsorted(enqueued, np.append(step_begin_ns, np.iinfo(np.int64).max))
    step = np.maximum(np.searchsorted(step_begin_ns, at, side="right") - 1, 0)
    position = np.searchsorted(enqueued, at)
    needed = max(2.0, RECURS_IN * len(step_begin_ns))
    found = np.zeros(len(at), bool)
    for place in (position - edges[step], edges[step + 1] - position):
        places, steps = with_counts(place[distinct_rows((place, step))[0]])
        found |= steps[np.searchsorted(places, place)] >= needed
    return found
