"""Where the time of each rank goes, step by step, from digests: as ``collectives.exposure`` does.

Each rank is cut at its own steps; a step of the job is the step of each rank that begins at the
same time on the job's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.collectives.clocks import Line
from stepscope.collectives.exposure import Pace, Parts, Work, transfer_limits
from stepscope.collectives.match import Matched, RankOps
from stepscope.intervals import subtract, union
from stepscope.intervals.algebra import Intervals
from stepscope.jobs.digest import Digest
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

_MATCHED: Final = 0.5
"""Ranks of which less of the communication has a counterpart are compared step by step."""


@dataclass(frozen=True)
class Times:
    """The times of a job; arrays are steps x devices.

    Attributes:
        parts: where the time goes.
        work: what was launched.
        paces: what the hosts need for a step.
        numbers: number of each step in the capture of each device.
        by_step: whether communication was compared step by step, for want of matches.
        warnings: what had to be assumed, in sentences.
    """

    parts: Parts
    work: Work
    paces: list[Pace]
    numbers: IntArray
    by_step: bool
    warnings: list[str]


def times_of(digests: Sequence[Digest], matched: Matched | None) -> Times:
    """Split the steps that all digests share."""
    lines = [r.clock for r in matched.ranks] if matched is not None else [Line()] * len(digests)
    first, count, stated = _shared_steps(digests, lines, clocked=matched is not None)
    limits = transfer_limits(matched) if matched is not None else []
    columns, numbers, shares = [], [], []
    for number, digest in enumerate(digests):
        rows = slice(int(first[number]), int(first[number]) + count)
        steps = {
            name: digest.ints("steps", name)[rows]
            for name in ("number", "begin_ns", "wall_ns", "compute_ns", "communication_ns",
                         "copy_ns", "memset_ns", "idle_ns", "alone_ns", "kernels", "threads")
        }  # fmt: skip
        found = {k.removesuffix("_ns"): v for k, v in steps.items()}
        numbers.append(found.pop("number"))
        found |= _idle(digest, rows, count)
        if matched is not None:
            found |= _communication(digest, matched, number, limits[number], steps)
            calls = digest.ints("calls", "start_ns")
            inside = _within(calls, steps)
            mine = _within(calls[matched.ranks[number].op], steps)
            if inside.any():
                shares.append(float(mine.sum()) / float(inside.sum()))
        else:
            nothing = np.zeros(count, np.int64)
            found |= dict.fromkeys(
                ("waiting", "transfer", "missing", "blocking", "bubble"), nothing
            )
            found["unmatched"] = found["communication"]
            shares.append(0.0)
        columns.append(found)
    several = matched is not None and bool((matched.instances.members > 1).any())
    by_step = len(digests) > 1 and min(shares, default=1.0) < _MATCHED
    by_step = by_step and (several or len({d.facts["capture_digest"] for d in digests}) == 1)
    return Times(
        _parts(columns, by_step),
        Work(*(np.stack([c[n] for c in columns], axis=1) for n in ("kernels", "threads"))),
        [_pace(digest) for digest in digests],
        np.stack(numbers, axis=1),
        by_step,
        stated,
    )


def _parts(columns: list[dict[str, IntArray]], by_step: bool) -> Parts:
    causes = sorted({name for c in columns for name in c if name.startswith("idle ")})
    nothing = np.zeros(len(columns[0]["wall"]), np.int64)

    def of(name: str) -> IntArray:
        return np.stack([c.get(name, nothing) for c in columns], axis=1)

    waiting, transfer, unmatched = of("waiting"), of("transfer"), of("unmatched")
    if by_step:
        least = unmatched.min(axis=1, keepdims=True)
        waiting, transfer = waiting + unmatched - least, transfer + least
        unmatched = np.zeros_like(unmatched)
    return Parts(
        begin_ns=columns[0]["begin"],
        end_ns=columns[0]["begin"] + columns[0]["wall"],
        wall=of("wall"),
        compute=of("compute"),
        waiting=waiting,
        transfer=transfer,
        missing=of("missing"),
        unmatched=unmatched,
        copy=of("copy"),
        memset=of("memset"),
        idle={name.removeprefix("idle "): of(name) for name in causes},
        alone=of("alone"),
        blocking=of("blocking"),
        bubble=of("bubble"),
    )


def _within(at: IntArray, steps: dict[str, IntArray]) -> BoolArray:
    if not len(steps["begin_ns"]):
        return np.zeros(len(at), bool)
    end = steps["begin_ns"][-1] + steps["wall_ns"][-1]
    inside: BoolArray = (at >= steps["begin_ns"][0]) & (at < end)
    return inside


def _idle(digest: Digest, rows: slice, count: int) -> dict[str, IntArray]:
    step, time = digest.ints("idle", "step") - rows.start, digest.ints("idle", "time_ns")
    found: dict[str, IntArray] = {}
    for place, cause in enumerate(digest.texts("idle", "cause")):
        if 0 <= step[place] < count:
            own = found.setdefault(f"idle {cause}", np.zeros(count, np.int64))
            own[step[place]] += time[place]
    return found


def _communication(
    digest: Digest, matched: Matched, number: int, limit: IntArray, steps: dict[str, IntArray]
) -> dict[str, IntArray]:
    """Exposed communication of one device, split into waiting, transferring and the rest."""
    rank = matched.ranks[number]
    begin, end = steps["begin_ns"], steps["begin_ns"] + steps["wall_ns"]
    moving, waiting, missing, bubble = call_intervals(digest, matched, rank, limit)
    found = {
        "waiting": exposed_in(digest, waiting, begin, end),
        "transfer": exposed_in(digest, moving, begin, end),
        "missing": exposed_in(digest, missing, begin, end),
        "bubble": exposed_in(digest, bubble, begin, end),
        "blocking": exposed_in(digest, moving, begin, end, "blocking_ns"),
    }
    left = steps["communication_ns"] - found["waiting"] - found["transfer"] - found["missing"]
    # the sums of short stretches are spread over them: what they give too much, waiting gives back
    over = np.minimum(left, 0)
    found["waiting"] = found["waiting"] + over
    found["bubble"] = np.minimum(found["bubble"], found["waiting"])
    found["unmatched"] = left - over
    return found


def call_intervals(
    digest: Digest, matched: Matched, rank: RankOps, limit: IntArray
) -> tuple[Intervals, Intervals, Intervals, Intervals]:
    """When the matched calls of a device move data, wait, wait for missing ranks; bubbles."""
    start = digest.ints("calls", "start_ns")[rank.op]
    stop = start + digest.ints("calls", "duration_ns")[rank.op]
    joined = start + rank.waiting_ns
    moving = union(stop - limit, stop)
    waiting = subtract(union(start, joined), moving)
    missing = subtract(subtract(union(joined, stop), moving), waiting)
    paired = np.array([c.point_to_point for c in matched.channels], bool)
    own = paired[matched.instances.channel[rank.instance]] if len(paired) else paired[:0]
    bubble = subtract(union(start[own], joined[own]), moving)
    return moving, waiting, missing, bubble


def exposed_in(
    digest: Digest, within: Intervals, begin: IntArray, end: IntArray, column: str = "exposed_ns"
) -> IntArray:
    """Exposed communication inside some intervals, in each window, ns."""
    knots = digest.ints("exposure", "start_ns")
    if not len(knots) or not len(within[0]):
        return np.zeros(len(begin), np.int64)
    each = digest.ints("exposure", column)
    done: AnyArray = np.concatenate(([0], np.cumsum(each)[:-1])).astype(np.float64)
    low, high = within
    spent = np.interp(high, knots, done) - np.interp(low, knots, done)
    whole = np.concatenate(([0.0], np.cumsum(spent)))

    def upto(at: IntArray) -> AnyArray:
        place = np.searchsorted(low, at, side="right") - 1
        there = np.maximum(place, 0)
        part = np.interp(np.minimum(at, high[there]), knots, done) - np.interp(
            low[there], knots, done
        )
        total: AnyArray = np.where(place >= 0, whole[there] + part, 0.0)
        return total

    found: IntArray = np.rint(upto(end) - upto(begin)).astype(np.int64)
    return found


def _pace(digest: Digest) -> Pace:
    facts = digest.facts
    return Pace(
        need_ns=facts["host_need_ns"] or 0.0,
        recording_ns=facts["host_recording_ns"] or 0.0,
        calling_ns=facts["host_calling_ns"] or 0.0,
        untraced_ns=facts["host_untraced_ns"] or 0.0,
        least_ns=facts["host_least_ns"] or 0.0,
    )


def _shared_steps(
    digests: Sequence[Digest], lines: Sequence[Line], *, clocked: bool
) -> tuple[IntArray, int, list[str]]:
    """Position of the first shared step in each digest, how many there are, and warnings."""
    counts = np.array([min(d.n_steps, d.facts["steps_with_calls"] or d.n_steps) for d in digests])
    at = np.zeros(len(digests), np.int64)
    if clocked and counts.min() > 1:
        begins = [
            line.to(digest.ints("steps", "begin_ns"))
            for digest, line in zip(digests, lines, strict=True)
        ]
        base = begins[int(np.argmax(counts))]
        for number, own in enumerate(begins):
            nearest = np.searchsorted((base[1:] + base[:-1]) // 2, own)
            inside = (own >= base[0] - (base[1] - base[0]) // 2) & (nearest < len(base))
            if not inside.any():
                continue
            at[number] = int(np.median(nearest[inside] - np.flatnonzero(inside)))
        low, high = int(at.max()), int((at + counts).min())
        if high > low:
            return low - at, high - low, []
        return (
            np.zeros(len(digests), np.int64),
            int(counts.min()),
            ["the steps of the ranks do not overlap in time, so that they are compared in order"],
        )
    return at, int(counts.min()), []
