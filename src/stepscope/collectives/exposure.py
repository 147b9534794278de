"""Where the time of each rank goes between the same two moments of the job.

A rank whose device waits inside collectives need not be fast: its host may be just as slow as the
late rank's, hidden behind the waiting. Curing the late rank then gains nothing, because the next
one is as late. So what a rank would need on its own account is the longer of two times: what its
device did but wait, and what its host did but wait.

All ranks of a synchronous job take the same time per step. Cut at the same moments, their times
split differently: where one rank computes or idles longer, the others wait inside a collective.
The parts sum to the windows exactly, so the late rank's surplus over the others is their waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import host as h
from stepscope.activity import names as words
from stepscope.breakdown.explain import Explanation
from stepscope.collectives.calls import Participant
from stepscope.collectives.match import Matched, RankOps
from stepscope.gaps.idle import CAUSES
from stepscope.gaps.profiler_overhead import PROFILED, recorded_events
from stepscope.gaps.untraced_cpu import input_time
from stepscope.intervals import intersect, overlap_per_window, subtract, total, union
from stepscope.intervals.algebra import Intervals, clip
from stepscope.intervals.distinct import among, distinct_values
from stepscope.kernels.kernels import GRID_COLUMNS, launched_threads
from stepscope.steps.model import MIN_STEPS, account
from stepscope.trace.frame import BoolArray, IntArray

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
        untraced_ns: of it, long pauses without calls, and getting input.
        least_ns: what it needs at least: without the most that the capturing tool may have added.
            A host that had time to spare shows no limit by what it took.
    """

    need_ns: float
    recording_ns: float
    calling_ns: float
    untraced_ns: float
    least_ns: float = 0.0


def pace(p: Participant, e: Explanation) -> Pace:
    """Look at the host from the begin of the first steady step to the end of the last."""
    if len(e.steps) < MIN_STEPS or not len(e.gpu.host.api):
        return Pace(0.0, 0.0, 0.0, 0.0)
    begins = e.steps.begin_ns
    begin = int(begins[e.first])
    end = int(begins[e.last + 1]) if e.last + 1 < len(begins) else e.steps.end_ns
    if end <= begin:
        return Pace(0.0, 0.0, 0.0, 0.0)
    typical = int(np.median(e.steady_durations_ns))
    timeline = h.host_timeline(e.gpu, begin, end, typical, input_time(e.gpu, p.read))
    waited = clip(host_waits(e), begin, end)

    def of(*labels: str) -> float:
        rows = among(timeline.label, [h.LABELS.index(label) for label in labels])
        own = union(timeline.start_ns[rows], timeline.end_ns[rows])
        return total(subtract(own, waited)) / e.n_steady

    need = (end - begin - total(waited)) / e.n_steady
    recording, calling = e.recording_ns / e.n_steady, of(h.DISPATCH)
    if e.tool is not None:
        most = e.tool.most_ns
        if e.measured is not None:  # where the device sets the pace it costs the host more
            recording = min(max(e.measured.cost_ns, 0.0), most)
    else:  # of torch.profiler the part of launching is known better than the time
        if recording:
            launching = calling * e.n_steady
            recorded = recorded_events(p.gpu, p.read, begin, end)
            recording = recorded.cost_ns(launching) / e.n_steady
        most = PROFILED["low"] * recording
    return Pace(
        need_ns=need,
        recording_ns=recording,
        least_ns=max(need - most, 0.0),
        calling_ns=calling,
        untraced_ns=of(h.UNTRACED_CPU, h.INPUT),
    )


def host_waits(e: Explanation) -> Intervals:
    """When the host waited for a busy device: in synchronisations, copies, and for a full queue.

    Releases of memory wait for it as well.
    """
    api = e.gpu.host.api
    calls = np.flatnonzero(e.gpu.calls_of(e.gpu.call >= 0))
    length = api["end_ns"][calls] - api["start_ns"][calls]
    blocked = calls[length > _BLOCKED_LAUNCH * np.median(length)] if len(calls) else calls
    releases = np.flatnonzero(api.matches("name", words.RELEASE_CALL))
    rows = np.concatenate((e.timeline.blocking.call, blocked, releases)).astype(np.int64)
    rows = rows[among(api["thread_id"][rows], e.gpu.host.launch_threads)]
    return intersect(union(api["start_ns"][rows], api["end_ns"][rows]), e.gpu.busy)


_EDGE = 0.1
"""Part of a step that a window may stick out of another rank's steady steps: steps begin a little
apart on different ranks."""

_FLOOR = 10
"""Percentile of equal operations' times that shows what their transfer takes, where part of the
time may be waiting for a rank that is not there: waits differ, transfers hardly do."""

_LARGE_BYTES = 1 << 20
"""Messages from this size on take a time in proportion to it; latency rules smaller ones."""

_MIN_ALIKE = 4


Windows = tuple[IntArray, IntArray]
"""Begin and end of each window, ns."""


@dataclass(frozen=True)
class Parts:
    """Time of every device in every window, ns; arrays are windows x devices.

    For each: ``wall = compute + waiting + transfer + absent + unmatched + copy + memset + sum of
    idle``, exactly.

    Attributes:
        begin_ns: begin of each window on the job's clock.
        end_ns: end of each window on the job's clock.
        wall: its length.
        compute: compute kernels run.
        waiting: nothing but collectives that wait for the last rank.
        transfer: nothing but communication (or less), at least one of it under way.
        missing: communication alone, longer than equal operations take; the rank that is waited
            for is not in the capture. Zero when all ranks are there.
        unmatched: communication alone that has no counterpart on another rank; zero where ranks are
            compared step by step.
        copy: nothing but copies.
        memset: nothing but memory sets.
        idle: idle time by cause.
        alone: of compute, while no communication runs.
        blocking: of transfer, while the next work was enqueued, or its launching thread waited
            for the device: the time that the transfer costs, rather than a late host.
        bubble: of waiting, in sends and receives: the stages of a pipeline wait for each other.
    """

    begin_ns: IntArray
    end_ns: IntArray
    wall: IntArray
    compute: IntArray
    waiting: IntArray
    transfer: IntArray
    missing: IntArray
    unmatched: IntArray
    copy: IntArray
    memset: IntArray
    idle: dict[str, IntArray]
    alone: IntArray
    blocking: IntArray
    bubble: IntArray

    def __len__(self) -> int:
        return len(self.begin_ns)

    def own(self) -> dict[str, IntArray]:
        """The parts that a rank spends on its own account: all but waiting."""
        busy = {"compute": self.compute, "transfer": self.transfer, "copy": self.copy,
                "memset": self.memset}  # fmt: skip
        return busy | {f"idle {cause}": time for cause, time in self.idle.items()}


def windows(explained: list[Explanation], matched: Matched) -> tuple[IntArray, IntArray]:
    """Begin and end of the steady steps that all devices have in common, on the job's clock.

    The steps are those of the device with the most of them; where the devices' steady windows
    do not overlap by a whole step, what they share counts as one; empty when they share nothing.
    """
    clocks = [rank.clock for rank in matched.ranks]
    bounds = [
        clock.to(e.bounds_ns[e.first : e.last + 2])
        for e, clock in zip(explained, clocks, strict=True)
    ]
    lead = max(bounds, key=len)
    begin, end = lead[:-1], lead[1:]
    edge = _EDGE * float(np.median(end - begin))
    low, high = max(int(b[0]) for b in bounds), min(int(b[-1]) for b in bounds)
    inside = (begin >= low - edge) & (end <= high + edge)
    if inside.any():
        return begin[inside], end[inside]
    if high > low:
        return np.array([low]), np.array([high])
    return np.empty(0, np.int64), np.empty(0, np.int64)


def step_windows(explained: list[Explanation]) -> list[Windows]:
    """As many steady steps of each device as all have, on its own clock."""
    count = min(e.n_steady for e in explained)
    return [
        (e.bounds_ns[e.first : e.first + count], e.bounds_ns[e.first + 1 : e.first + count + 1])
        for e in explained
    ]


def transfer_limits(matched: Matched) -> list[IntArray]:
    """For each device the longest time that counts as transfer, ns: unlimited where all are there.

    Where members are missing, the time after the last known start may still be waiting. Then it
    is limited to what equal operations take at best.
    """
    limits = []
    instances = matched.instances
    partial = instances.members < instances.size
    for rank in matched.ranks:
        limit = rank.transfer_ns.copy()
        uncertain = partial[rank.instance] if len(rank.instance) else np.zeros(0, bool)
        if uncertain.any():
            row = rank.instance
            floor = usual(
                instances.looks[row], instances.kind[row], instances.bytes[row], rank.transfer_ns
            )
            limit = np.where(uncertain, np.minimum(limit, floor), limit)
        limits.append(limit)
    return limits


def usual(looks: IntArray, kind: IntArray, size: IntArray, time_ns: IntArray) -> IntArray:
    """What operations alike take at best, ns: a low percentile; their own time where few.

    Large messages of one kind are alike at any size, by their time a byte.
    """
    floor = time_ns.copy()
    large = size >= _LARGE_BYTES
    alike = np.where(large, -1 - kind, looks)
    unit = np.where(large, size, 1)
    for code in distinct_values(alike).tolist():
        rows = alike == code
        if rows.sum() >= _MIN_ALIKE:
            best = float(np.percentile(time_ns[rows] / unit[rows], _FLOOR))
            floor[rows] = np.rint(best * unit[rows]).astype(np.int64)
    return floor


def parts(
    explained: list[Explanation],
    matched: Matched,
    own_windows: list[Windows],
    begin_ns: IntArray,
    end_ns: IntArray,
    *,
    by_step: bool = False,
) -> Parts:
    """Split the given windows of the job for every device.

    Args:
        explained: the explained devices.
        matched: their collectives.
        own_windows: the windows on each device's own clock, ns.
        begin_ns: begin of each window on the job's clock.
        end_ns: end of each window on the job's clock.
        by_step: communication without a counterpart is compared step by step: what a device has of
            it beyond the device with least is taken for waiting.
    """
    limits = transfer_limits(matched)
    paired = np.array([c.point_to_point for c in matched.channels], bool)[matched.instances.channel]
    columns = [
        _of_device(e, rank, limit, paired[rank.instance], *own)
        for e, rank, limit, own in zip(explained, matched.ranks, limits, own_windows, strict=True)
    ]
    joined = {name: np.stack([c[name] for c in columns], axis=1) for name in columns[0]}
    if by_step:
        least = joined["unmatched"].min(axis=1, keepdims=True)
        joined["waiting"] = joined["waiting"] + joined["unmatched"] - least
        joined["transfer"] = joined["transfer"] + least
        joined["unmatched"] = np.zeros_like(joined["unmatched"])
    idle = {cause: joined.pop(f"idle {cause}") for cause in CAUSES}
    return Parts(
        begin_ns=begin_ns,
        end_ns=end_ns,
        idle={cause: time for cause, time in idle.items() if time.any()},
        **joined,
    )


def _of_device(
    e: Explanation,
    rank: RankOps,
    limit: IntArray,
    paired: BoolArray,
    begin: IntArray,
    end: IntArray,
) -> dict[str, IntArray]:
    spent = account(e.gpu, begin, end)
    compute = e.gpu.union_of(e.gpu.is_compute)

    def exposed(intervals: Intervals) -> Intervals:
        return subtract(intervals, compute)

    def inside(intervals: Intervals) -> IntArray:
        return overlap_per_window(intervals, begin, end)

    start = e.gpu.ops["start_ns"][rank.op]
    stop = e.gpu.ops["end_ns"][rank.op]
    joined = start + rank.waiting_ns
    moving = exposed(union(stop - limit, stop))
    waiting = subtract(exposed(union(start, joined)), moving)
    missing = subtract(subtract(exposed(union(joined, stop)), moving), waiting)
    transfer, waits, gone = inside(moving), inside(waiting), inside(missing)
    communication = e.gpu.union_of(e.gpu.is_communication)
    found = {
        "wall": spent.wall_ns,
        "compute": spent.compute_ns,
        "waiting": waits,
        "transfer": transfer,
        "missing": gone,
        "unmatched": spent.exposed_communication_ns - transfer - waits - gone,
        "copy": spent.exposed_copy_ns,
        "memset": spent.memset_ns,
        "alone": spent.compute_ns - inside(intersect(compute, communication)),
        "blocking": inside(blocking_parts(e, moving)),
        "bubble": inside(intersect(waiting, union(start[paired], joined[paired]))),
    }
    segments = e.gaps.segments
    left = spent.idle_ns.copy()
    for code, cause in enumerate(CAUSES):
        rows = segments["cause"] == code
        time = inside(union(segments["start_ns"][rows], segments["end_ns"][rows]))
        found[f"idle {cause}"] = time
        left -= time
    found["idle unexplained"] = found["idle unexplained"] + left
    return found


def blocking_parts(e: Explanation, moving: Intervals) -> Intervals:
    """The part of exposed transfers in which the device had other work to go on with.

    That is from the moment on at which the next operation was enqueued, and while the host itself
    waited for the device, because then the transfer is what held it up.
    """
    start, end = moving
    if not len(start):
        return moving
    other = np.flatnonzero(~e.gpu.is_communication)
    begins = e.gpu.ops["start_ns"][other]
    following = np.searchsorted(begins, end, side="left")
    there = following < len(other)
    row = other[np.minimum(following, len(other) - 1)] if len(other) else np.zeros(len(end), int)
    enqueued = np.where(there, e.gpu.enqueue_begin_ns[row], end)
    enqueued = np.where(there & (e.gpu.call[row] < 0), start, enqueued)
    held_up = intersect(moving, host_waits(e))
    return union(
        np.concatenate((np.clip(enqueued, start, end), held_up[0])),
        np.concatenate((end, held_up[1])),
    )


@dataclass(frozen=True)
class Work:
    """Work of every device in every window; arrays are windows x devices.

    Attributes:
        kernels: compute kernels that began.
        threads: threads that they were launched with.
    """

    kernels: IntArray
    threads: IntArray


def work(participants: list[Participant], own_windows: list[Windows]) -> Work:
    """Count the work that begins in each window (on each device's own clock)."""
    columns = []
    for p, (begin, end) in zip(participants, own_windows, strict=True):
        ops = p.gpu.ops
        shape = p.read("gpu_op", *GRID_COLUMNS)
        at = np.searchsorted(shape["id"], ops["id"])
        threads = launched_threads(shape.take(at))
        kernel = p.gpu.is_compute
        start = ops["start_ns"]
        low, high = np.searchsorted(start, begin), np.searchsorted(start, end)
        columns.append(
            [
                _sums(weight, low, high)
                for weight in (
                    kernel.astype(np.int64),
                    np.where(kernel, threads, 0),
                )
            ]
        )
    kernels, launched = (np.stack([c[i] for c in columns], axis=1) for i in range(2))
    return Work(kernels, launched)


def _sums(weight: IntArray, low: IntArray, high: IntArray) -> IntArray:
    done = np.concatenate(([0], np.cumsum(weight)))
    found: IntArray = done[high] - done[low]
    return found
