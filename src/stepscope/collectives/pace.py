"""How fast each rank's host could go if it never had to wait for the device.

A rank whose device waits inside collectives need not be fast: its host may be just as slow as the
late rank's, hidden behind the waiting. Curing the late rank then gains nothing, because the next
one is as late. So what a rank would need on its own account is the longer of two times: what its
device did but wait, and what its host did but wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import host as h
from stepscope.breakdown.explain import Explanation
from stepscope.collectives.calls import Participant
from stepscope.gaps.untraced_cpu import input_time
from stepscope.intervals import intersect, subtract, total, union
from stepscope.intervals.algebra import Intervals, clip
from stepscope.intervals.distinct import among
from stepscope.steps.model import MIN_STEPS

_BLOCKED_LAUNCH: Final = 20
"""A launch that takes so many times the median waits for room in the queue, which holds about a
thousand launches, and not for the host."""


@dataclass(frozen=True)
class Pace:
    """What the host of one rank needs for a steady step, ns.

    Attributes:
        need_ns: all its time but waiting for the device; 0 where steps are not known.
        recording_ns: the estimated cost of recording in it.
        calling_ns: of it, calls and the short pauses between them.
        silent_ns: of it, long pauses without calls, and getting input.
        least_ns: what it needs at least: without the most that the capturing tool may have added.
            A host that had time to spare shows no limit by what it took.
    """

    need_ns: float
    recording_ns: float
    calling_ns: float
    silent_ns: float
    least_ns: float = 0.0


def pace(p: Participant, e: Explanation) -> Pace:
    """Look at the host from the begin of the first steady step to the end of the last."""
    if len(e.steps) < MIN_STEPS or not len(e.lane.host.api):
        return Pace(0.0, 0.0, 0.0, 0.0)
    begins = e.steps.begin_ns
    begin = int(begins[e.first])
    end = int(begins[e.last + 1]) if e.last + 1 < len(begins) else e.steps.end_ns
    if end <= begin:
        return Pace(0.0, 0.0, 0.0, 0.0)
    typical = int(np.median(e.steady_durations_ns))
    timeline = h.host_timeline(e.lane, begin, end, typical, input_time(e.lane, p.read))
    waited = clip(host_waits(e), begin, end)

    def of(*labels: str) -> float:
        rows = among(timeline.label, [h.LABELS.index(label) for label in labels])
        own = union(timeline.start_ns[rows], timeline.end_ns[rows])
        return total(subtract(own, waited)) / e.n_steady

    need = (end - begin - total(waited)) / e.n_steady
    recording = e.recording_ns / e.n_steady
    # an estimate for torch.profiler is good to a factor of two
    most = 2 * recording if e.tool is None else e.tool.most_ns
    return Pace(
        need_ns=need,
        recording_ns=recording,
        least_ns=max(need - most, 0.0),
        calling_ns=of(h.DISPATCH),
        silent_ns=of(h.SILENCE, h.INPUT),
    )


def host_waits(e: Explanation) -> Intervals:
    """When the host waited for a busy device: in synchronisations, copies, and for a full queue."""
    api = e.lane.host.api
    calls = np.flatnonzero(e.lane.calls_of(e.lane.call >= 0))
    length = api["end_ns"][calls] - api["start_ns"][calls]
    blocked = calls[length > _BLOCKED_LAUNCH * np.median(length)] if len(calls) else calls
    rows = np.concatenate((e.timeline.blocking.call, blocked)).astype(np.int64)
    rows = rows[among(api["thread_id"][rows], e.lane.host.launch_threads)]
    return intersect(union(api["start_ns"][rows], api["end_ns"][rows]), e.lane.busy)
