"""Find where a thread waits for the GIL (the GIL).

PyTorch gives up the lock around every operator. While another Python thread computes, getting it
back takes a whole switch interval, and again as long for each further thread that is served
first. Who recorded the lock says so directly; who recorded the operating system's calls shows
waits that time out after the switch interval. Without either, the pauses themselves are the
fingerprint: none that is a little shorter than the switch interval, many that are as long or
longer, all over the program, at places that have nothing in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline, Reader
from stepscope.activity.host import inside
from stepscope.intervals import complement, overlap_per_window, union
from stepscope.intervals.algebra import EMPTY, Intervals, clip
from stepscope.intervals.distinct import among, with_inverse
from stepscope.trace.frame import IntArray

SWITCH_NS: Final = 5_000_000
"""CPython's default switch interval (sys.getswitchinterval): how long a thread that wants the
lock waits before it asks the holder to give it up."""

JUST_UNDER: Final = 0.97
"""A wait for the lock is no shorter than this part of the switch interval: timers do not ring
early, but the pause between two recorded calls may leave out a call's own time."""

ONE_INTERVAL: Final = 1.3
"""A pause up to this many switch intervals is the wait for one thread to give up the lock; the
rest is waking up and going on."""

RECORDED: Final = 0
TIMED_OUT: Final = 1
PATTERN: Final = 2

GIL_EVIDENCE: Final = (
    "the capture recorded waits for the lock",
    "waits in the operating system time out after the switch interval",
    "pauses all over the program are never shorter than the switch interval",
)
"""What each evidence code means."""

MIN_WAITS = 10
"""So many waits make a pattern; fewer may be any other pauses."""

MIN_PLACES = 5
"""Waits for the lock come wherever an operator ends. Host work of other kinds comes at a handful
of places in the program, the same in each step."""

UNDER = 0.5
"""Pauses from this part of the switch interval on are looked at."""

MAX_UNDER = 0.2
"""Pauses of half to the whole switch interval, per pause of at least its length, at most.
Host work comes in all lengths, the shorter the more often; waiting for the lock leaves this range
empty."""

MIN_ON_INTERVAL = 0.25
"""Share of the long pauses that end within a tenth of a switch interval after a multiple of it.
Lengths that know nothing of the interval do so in an eighth of the cases. Where more threads run
than there are cores the multiples smear; then ..."""

MAX_REGULAR = 0.5
"""... at most this share of the pauses' time may come in every step alike. Work of the program
takes its time at its place in each step; a wait for the lock is drawn by lot."""


@dataclass(frozen=True)
class GilWaits:
    """Waits of the launching threads for the lock.

    Attributes:
        intervals: the waits, a disjoint set, ns.
        evidence: index into ``GIL_EVIDENCE``; -1 where there are none.
        on_interval: share of the waits that last one or several switch intervals.
    """

    intervals: Intervals
    evidence: int
    on_interval: float


NO_WAITS: Final = GilWaits(EMPTY, -1, 0.0)


def gil_waits(
    gpu: GpuTimeline,
    read: Reader,
    step_begin_ns: IntArray,
    begin_ns: int,
    end_ns: int,
    input_time: Intervals = EMPTY,
) -> GilWaits:
    """The waits for the lock inside ``[begin_ns, end_ns)``.

    Args:
        gpu: the device whose launching threads matter.
        read: gives tables as frames.
        step_begin_ns: when the host begins each step.
        begin_ns: begin of the window.
        end_ns: end of the window.
        input_time: when something says that a launching thread was getting input; a pause there
            may be the wait for a worker, and is no evidence.
    """
    recorded = _recorded(gpu, read)
    if recorded is not None:
        waits = clip(recorded, begin_ns, end_ns)
        return GilWaits(waits, RECORDED, _on_interval(waits)) if len(waits[0]) else NO_WAITS
    pauses = _pauses(gpu, begin_ns, end_ns)
    timed = _timed_out(gpu, pauses)
    if timed is not None:
        return GilWaits(timed, TIMED_OUT, _on_interval(timed)) if len(timed[0]) else NO_WAITS
    middle = (pauses[0] + pauses[1]) // 2
    elsewhere = ~inside(input_time, middle)
    return _pattern(gpu, (pauses[0][elsewhere], pauses[1][elsewhere]), step_begin_ns)


def _recorded(gpu: GpuTimeline, read: Reader) -> Intervals | None:
    """Waits that the capture recorded; None where it did not record the lock."""
    rows = read("gil", "process_id", "thread_id", "start_ns", "end_ns", "state")
    if not len(rows):
        return None
    mine = rows.equals("state", "waiting") & (rows["process_id"] == gpu.process_id)
    mine &= among(rows["thread_id"], gpu.host.launch_threads)
    return union(rows["start_ns"][mine], rows["end_ns"][mine])


def _pauses(gpu: GpuTimeline, begin_ns: int, end_ns: int) -> Intervals:
    """Stretches of at least half a switch interval without a call on launching threads."""
    api = gpu.host.api
    mine = among(api["thread_id"], gpu.host.launch_threads)
    start, end = complement(union(api["start_ns"][mine], api["end_ns"][mine]), begin_ns, end_ns)
    long = end - start >= UNDER * SWITCH_NS
    return start[long], end[long]


def _timed_out(gpu: GpuTimeline, pauses: Intervals) -> Intervals | None:
    """Pauses spent in waits that time out after the switch interval.

    None where such calls were not recorded at all, so that they cannot tell.
    """
    calls = gpu.host.os_calls
    if not len(calls):
        return None
    waiting = calls.matches("name", words.LOCK_WAIT_CALL)
    waiting &= among(calls["thread_id"], gpu.host.launch_threads)
    length = calls["end_ns"] - calls["start_ns"]
    timed = waiting & (length >= JUST_UNDER * SWITCH_NS) & (length <= ONE_INTERVAL * SWITCH_NS)
    if not waiting.any():
        return None
    # The last wait of a series ends early, when the lock becomes free: it belongs to the pause.
    short = waiting & (length <= ONE_INTERVAL * SWITCH_NS)
    rung = union(calls["start_ns"][timed], calls["end_ns"][timed])
    waited = union(calls["start_ns"][short], calls["end_ns"][short])
    start, end = pauses
    enough = overlap_per_window(waited, start, end) >= 0.5 * (end - start)
    enough &= overlap_per_window(rung, start, end) > 0
    return start[enough], end[enough]


def _pattern(gpu: GpuTimeline, pauses: Intervals, step_begin_ns: IntArray) -> GilWaits:
    """The pauses, where all of them together bear the fingerprint of the lock."""
    start, end = pauses
    long = end - start >= JUST_UNDER * SWITCH_NS
    waits = start[long], end[long]
    n_long, n_under = int(long.sum()), int((~long).sum())
    if n_long < MIN_WAITS or n_under > MAX_UNDER * n_long:
        return NO_WAITS
    places, regular = _places(gpu, waits, step_begin_ns)
    share = _on_interval(waits)
    if places < MIN_PLACES or (share < MIN_ON_INTERVAL and regular > MAX_REGULAR):
        return NO_WAITS
    return GilWaits(waits, PATTERN, share)


def are_scattered(gpu: GpuTimeline, pauses: Intervals, step_begin_ns: IntArray) -> bool:
    """Whether pauses of any length lie all over the program, at other places in each step.

    Args:
        gpu: the device whose launching threads pause.
        pauses: a disjoint set.
        step_begin_ns: when the host begins each step.
    """
    if len(pauses[0]) < MIN_WAITS:
        return False
    places, regular = _places(gpu, pauses, step_begin_ns)
    return places >= MIN_PLACES and regular <= MAX_REGULAR


def _places(gpu: GpuTimeline, waits: Intervals, step_begin_ns: IntArray) -> tuple[int, float]:
    """Number of places in the step at which waits lie, and the share that every step has alike.

    A place is told by what the thread enqueues next, not by how much came before it: that moves
    with every record that the tool lost.
    """
    hosted = np.flatnonzero(gpu.call >= 0)
    order = hosted[np.argsort(gpu.enqueue_begin_ns[hosted], kind="stable")]
    name = np.append(gpu.ops["name"][order], -1)
    before = name[np.searchsorted(gpu.enqueue_begin_ns[order], waits[1])]
    step = np.maximum(np.searchsorted(step_begin_ns, waits[1], side="right") - 1, 0)
    steps, step = with_inverse(step)
    places, place = with_inverse(before)
    cells, cell = with_inverse(place * len(steps) + step)
    length = np.bincount(cell, weights=waits[1] - waits[0])
    least = np.full(len(places), np.inf)
    np.minimum.at(least, cells // len(steps), length)
    everywhere = np.bincount(cells // len(steps), minlength=len(places)) == len(steps)
    return len(places), float(least[everywhere].sum() * len(steps) / length.sum())


def _on_interval(waits: Intervals) -> float:
    """Share of intervals that end within a tenth of a switch interval after a multiple of it."""
    length = (waits[1] - waits[0]) / SWITCH_NS + (1 - JUST_UNDER)
    if not len(length):
        return 0.0
    return float(((length >= 1) & (length % 1.0 < 0.1 + (1 - JUST_UNDER))).mean())
