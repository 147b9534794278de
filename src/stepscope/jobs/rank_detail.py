"""One rank of a job, as its panel shows it: budget, what is unlike its peers, where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from stepscope.jobs.digest import Digest
from stepscope.jobs.job import JobAnalysis
from stepscope.trace.frame import AnyArray, IntArray
from stepscope.trace.units import Unit

_KERNELS: Final = 6
_SLOWER: Final = 1.02
"""Kernels of one product differ by less between healthy ranks."""

_NOTABLE: Final = 0.01
"""A figure nearer to that of the peers is none to point at, however close these lie together."""

_LISTED: Final = 20


class RankPart(msgspec.Struct, frozen=True):
    """A part of the rank's steps; the parts of a step sum to its length.

    Attributes:
        part: ``compute``, ``waiting``, ``transfer``, ``missing``, ``unmatched``, ``copy``,
            ``memset``, or ``idle``.
        cause: of idle time, what it is charged to; else empty.
        mean_ns: mean of the shared steps, ns.
        peers_ns: median of the peers' means, ns; null without peers.
        steps_ns: the part of each shared step, ns.
    """

    part: str
    cause: str
    mean_ns: int
    peers_ns: int | None
    steps_ns: list[int]


class Deviation(msgspec.Struct, frozen=True):
    """One figure of the rank beside those of its peers.

    Attributes:
        figure: what is measured.
        unit: its unit; ``MHz`` and ``W`` beside those of tables.
        value: the rank's.
        peers: median of the peers.
        low: 5 in 100 of the peers have at most this.
        high: 95 in 100 of the peers have at most this.
        outside: whether the rank's lies outside of that, by more than a hundredth.
    """

    figure: str
    unit: str
    value: float
    peers: float
    low: float
    high: float
    outside: bool


class SlowKernel(msgspec.Struct, frozen=True):
    """A kernel that takes longer on the rank than on its peers.

    Attributes:
        name: its name, cut.
        category: kernel category.
        per_step: launches a step.
        median_ns: half of its launches take at most this on the rank, ns.
        peers_ns: the same on the median peer, ns.
        more_ns: what it takes beyond its peers, ns a step.
    """

    name: str
    category: str
    per_step: float
    median_ns: int
    peers_ns: int
    more_ns: int


class OwnFinding(msgspec.Struct, frozen=True):
    """A cause that the rank shows by itself.

    Attributes:
        cause: public id.
        message: one sentence.
        time_ns: what it takes, ns a step.
        predicted_ns: mean step of this rank without it, ns; null where it was not predicted.
        of_program: false where it lies in the measurement.
        advice: what to change first.
    """

    cause: str
    message: str
    time_ns: float
    predicted_ns: float | None
    of_program: bool
    advice: str


class Pointer(msgspec.Struct, frozen=True):
    """Where to look in the full capture.

    Attributes:
        what: what is to be seen.
        step: number of the step in the capture; -1 outside.
        start_ns: begin, ns since the capture's origin.
        end_ns: end, ns since the origin.
        sql: statement for ``stepscope query`` on the capture.
    """

    what: str
    step: int
    start_ns: int
    end_ns: int
    sql: str


class NamedTime(msgspec.Struct, frozen=True):
    """A time with its name.

    Attributes:
        name: a phase, or a call that waits for the device.
        host_ns: host time, ns a step.
        gpu_ns: device time, ns a step; null for calls.
        per_step: calls a step; null for phases.
    """

    name: str
    host_ns: int
    gpu_ns: int | None
    per_step: float | None


class RankStep(msgspec.Struct, frozen=True):
    """A shared step on the clock of the rank's capture.

    Attributes:
        number: number of the step in the capture.
        begin_ns: begin, ns since the origin.
        end_ns: end, ns since the origin.
    """

    number: int
    begin_ns: int
    end_ns: int


class RankCapture(msgspec.Struct, frozen=True):
    """Where the full capture of a rank is.

    Attributes:
        path: path of the capture, as the digest names it.
        hostname: machine that it was taken on.
        timeline: address of its timeline, relative to the page; empty where it is not here.
        command: what shows it, once it is here.
    """

    path: str
    hostname: str
    timeline: str
    command: str


class RankDetail(msgspec.Struct, frozen=True):
    """One device of one rank.

    Attributes:
        rank: the rank.
        device: CUDA device ordinal inside the process.
        device_name: product name of its GPU.
        hostname: its machine; empty where unknown.
        peers: ranks that it is compared with.
        score: robust standard deviations from its peers; null where they are too few.
        threshold: the score from which on a rank is an outlier; null likewise.
        verdict: the first cause that it shows by itself.
        parts: where its steps go.
        wall_ns: length of each shared step, ns.
        peers_wall_ns: median length over the peers, mean of the steps, ns; null without peers.
        deviations: its figures beside those of its peers.
        kernels: kernels that take longer than on its peers, the most time first.
        findings: what it shows by itself.
        phases: phases of its step.
        waits: calls in which its host waits for the device.
        evidence: where to look in the full capture.
        steps: the shared steps on the clock of its capture.
        capture: where its full capture is.
    """

    rank: int
    device: int
    device_name: str
    hostname: str
    peers: int
    score: float | None
    threshold: float | None
    verdict: str
    parts: list[RankPart]
    wall_ns: list[int]
    peers_wall_ns: int | None
    deviations: list[Deviation]
    kernels: list[SlowKernel]
    findings: list[OwnFinding]
    phases: list[NamedTime]
    waits: list[NamedTime]
    evidence: list[Pointer]
    steps: list[RankStep]
    capture: RankCapture


def rank_detail(job: JobAnalysis, at: int, whole: Digest, capture: RankCapture) -> RankDetail:
    """All that is known of one rank.

    Args:
        job: the job.
        at: position of the rank in it.
        whole: its digest with all lists.
        capture: where its full capture is.
    """
    digest, times = job.digests[at], job.times
    peers = _peers(job, at)
    score = float(job.needs.scored.score[at])
    known = bool(np.isfinite(score))
    bound = float(job.needs.scored.bounds(job.needs.comparisons)[at])
    wall = times.parts.wall
    return RankDetail(
        rank=digest.rank,
        device=digest.facts["device"] or 0,
        device_name=digest.facts["device_name"] or "",
        hostname=digest.hostname,
        peers=len(peers),
        score=round(score, 2) if known else None,
        threshold=round(bound, 2) if known and np.isfinite(bound) else None,
        verdict=digest.facts["verdict"] or "",
        parts=_parts(job, at, peers),
        wall_ns=wall[:, at].tolist(),
        peers_wall_ns=round(float(np.median(wall[:, peers].mean(axis=0)))) if len(peers) else None,
        deviations=_deviations(job, at, peers),
        kernels=_slow_kernels(job, at, peers),
        findings=[OwnFinding(**_only(row, OwnFinding)) for row in _rows(whole, "findings")],
        phases=[
            NamedTime(row["phase"], row["host_ns"], row["gpu_ns"], None)
            for row in _rows(whole, "phases")
        ],
        waits=_waits(whole),
        evidence=[Pointer(**row) for row in _rows(whole, "evidence")],
        steps=_steps(job, at),
        capture=capture,
    )


def _peers(job: JobAnalysis, at: int) -> IntArray:
    """Positions of the ranks of the same role."""
    same = np.flatnonzero(job.role == job.role[at])
    found: IntArray = same[same != at]
    return found


def _parts(job: JobAnalysis, at: int, peers: IntArray) -> list[RankPart]:
    parts = job.times.parts
    named = [
        (name, "", getattr(parts, name))
        for name in ("compute", "waiting", "transfer", "missing", "unmatched", "copy", "memset")
    ]
    named += [("idle", cause, time) for cause, time in parts.idle.items()]
    found = []
    for part, cause, time in named:
        usual = round(float(np.median(time[:, peers].mean(axis=0)))) if len(peers) else None
        if time[:, at].any() or usual:
            mean = round(float(time[:, at].mean()))
            found.append(RankPart(part, cause, mean, usual, time[:, at].tolist()))
    idle = [one for one in found if one.cause]
    return [
        *(one for one in found if not one.cause),
        *sorted(idle, key=lambda one: -max(one.mean_ns, one.peers_ns or 0)),
    ]


def _deviations(job: JobAnalysis, at: int, peers: IntArray) -> list[Deviation]:
    if not len(peers):
        return []
    facts = [digest.facts for digest in job.digests]

    def fact(name: str) -> AnyArray:
        return np.array([np.nan if f[name] is None else f[name] for f in facts], np.float64)

    work = job.times.work
    measured: list[tuple[str, Unit | str, AnyArray]] = [
        ("needs for a step", "ns", job.needs.device.mean(axis=0)),
        ("kernels take, to its peers", "ratio", job.rates),
        ("kernels a step", "count", work.kernels.mean(axis=0)),
        ("threads a step", "count", work.threads.mean(axis=0)),
        ("host needs", "ns", fact("host_need_ns")),
        ("host gets input", "ns", fact("input_ns")),
        ("SM clock", "MHz", fact("sm_clock_mhz")),
        ("lowest SM clock", "MHz", fact("sm_clock_low_mhz")),
        ("time throttled", "share", fact("throttled_share")),
        ("power", "W", fact("power_w")),
        ("memory reserved", "bytes", fact("memory_peak_bytes")),
    ]
    found = []
    for name, unit, values in measured:
        own, theirs = float(values[at]), values[peers]
        theirs = theirs[np.isfinite(theirs)]
        if not np.isfinite(own) or not len(theirs) or not (own or theirs.any()):
            continue
        low, middle, high = (float(v) for v in np.percentile(theirs, (5, 50, 95)))
        found.append(
            Deviation(
                name,
                unit,
                round(own, 4),
                round(middle, 4),
                round(low, 4),
                round(high, 4),
                not low <= own <= high and abs(own - middle) > _NOTABLE * abs(middle),
            )
        )
    return found


def _slow_kernels(job: JobAnalysis, at: int, peers: IntArray) -> list[SlowKernel]:
    digest = job.digests[at]
    steps = max(digest.facts["steady_steps"] or 1, 1)
    usual: dict[int, list[int]] = {key: [] for key in digest.ints("kernels", "key").tolist()}
    for peer in peers.tolist():
        other = job.digests[peer]
        rows = zip(
            other.ints("kernels", "key").tolist(),
            other.ints("kernels", "median_ns").tolist(),
            strict=True,
        )
        for key, time in rows:
            if key in usual:
                usual[key].append(time)
    found = []
    for row in _rows(digest, "kernels"):
        theirs = usual[row["key"]]
        middle = float(np.median(theirs)) if theirs else 0.0
        if not middle or row["median_ns"] < _SLOWER * middle:
            continue
        more = (row["median_ns"] - middle) * row["count"] / steps
        each = round(row["count"] / steps, 2)
        found.append(
            SlowKernel(
                row["name"], row["category"], each, row["median_ns"], round(middle), round(more)
            )
        )
    return sorted(found, key=lambda one: -one.more_ns)[:_KERNELS]


def _waits(whole: Digest) -> list[NamedTime]:
    steps = max(whole.facts["steady_steps"] or 1, 1)
    return [
        NamedTime(row["call"], row["time_ns"] // steps, None, round(row["count"] / steps, 2))
        for row in _rows(whole, "waits")
    ]


def _steps(job: JobAnalysis, at: int) -> list[RankStep]:
    """The shared steps, where the rank's own capture has them."""
    digest = job.digests[at]
    numbers = job.times.numbers[:, at].tolist()
    of_capture = digest.ints("steps", "number").tolist()
    begin, wall = digest.ints("steps", "begin_ns"), digest.ints("steps", "wall_ns")
    place = {number: row for row, number in enumerate(of_capture)}
    return [
        RankStep(n, int(begin[place[n]]), int(begin[place[n]] + wall[place[n]])) for n in numbers
    ]


def _rows(digest: Digest, table: str) -> Iterator[dict[str, Any]]:
    """The first rows of a list, as plain values."""
    columns = {
        name: _plain(values[:_LISTED] if table != "kernels" else values)
        for name, values in digest.lists[table].items()
    }
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _plain(values: Any) -> Sequence[Any]:
    if not isinstance(values, np.ndarray):
        return [text or "" for text in values]  # a file may hold nulls
    return [None if isinstance(v, float) and not np.isfinite(v) else v for v in values.tolist()]


def _only(row: dict[str, Any], struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: row[name] for name in struct.__struct_fields__}
