"""What is known of all ranks: their matched collectives, and changes that look at them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from stepscope.intervals import overlap_per_window, union
from stepscope.intervals.distinct import among, common_values, distinct_values
from stepscope.simulation import peers
from stepscope.simulation.changes import Scope
from stepscope.simulation.peers import Places
from stepscope.simulation.program import MARK, WAIT, C, Program, own_work
from stepscope.simulation.subject import Subject, without_waits
from stepscope.trace.frame import BoolArray, FloatArray, IntArray


class RankCollectives(Protocol):
    """The matched collectives of one device: what ``collectives.RankOps`` offers."""

    @property
    def rank(self) -> int:
        """The rank."""

    @property
    def process_id(self) -> int:
        """The process."""

    @property
    def device(self) -> int:
        """CUDA device ordinal inside the process."""

    @property
    def op(self) -> IntArray:
        """Rows of ``GPU.ops``."""

    @property
    def instance(self) -> IntArray:
        """Collective that each of them belongs to: equal on all its members."""

    @property
    def bytes(self) -> IntArray | None:
        """Message size of each, -1 where unknown; None where none is."""

    @property
    def start_ns(self) -> IntArray | None:
        """Begin of each on the job's clock; None where that is not known."""

    @property
    def transfer_ns(self) -> IntArray | None:
        """What each took after the last member had begun; None where that is not known."""

    @property
    def early(self) -> BoolArray | None:
        """Which of them waited for no other member; None for none."""


class Matched(Protocol):
    """Collectives matched across ranks."""

    @property
    def ranks(self) -> Sequence[RankCollectives]:
        """One for each device."""


@dataclass(frozen=True)
class MatchedOps:
    """The plainest :class:`RankCollectives`."""

    rank: int
    process_id: int
    device: int
    op: IntArray
    instance: IntArray
    start_ns: IntArray | None = None
    transfer_ns: IntArray | None = None
    early: BoolArray | None = None
    bytes: IntArray | None = None


@dataclass(frozen=True)
class MatchedJob:
    """The plainest :class:`Matched`."""

    ranks: list[MatchedOps]


_SLOWED: Final = 1.2
"""A transfer that takes so many times what the same one takes in other steps was slowed."""

_CLEAN: Final = 25
"""Percentile of a transfer's times over the steps that shows what it takes by itself: a device that
another process computes on is there for most of them."""

_SAME: Final = 1.25
"""Operations that differ by less between the ranks do not follow the uneven work."""

_DEVICE: Final = ("duration_ns", "delay_ns", "kernel_gap_ns")
"""What a device does to an operation: how long it takes, and what it waits for without a reason."""


def device_like(subjects: list[Subject], rank: int) -> list[Subject]:
    """The operations of one rank take what the same operations take on the others.

    Kernel by kernel: the same name at the same place of the step, in the median of the other ranks.
    What no other rank has is as much quicker as the rest. Pauses before a kernel become those of
    the others as well: a device that another process computes on pauses for it. Transfers that took
    longer than the same ones do in other steps take as long as there.
    """
    mine = [n for n, s in enumerate(subjects) if s.rank == rank]
    others = [n for n, s in enumerate(subjects) if s.rank != rank]
    if not mine or not others:
        return subjects
    subjects = unhindered(subjects)
    at = peers.places(subjects, [s.is_op & _alone(s.program) for s in subjects])
    found = without_slowed_transfers(subjects)
    wanted = {
        name: peers.median([at.table(n, getattr(subjects[n].program, name)) for n in others])
        for name in _DEVICE
    }
    for n in mine:
        found[n] = _with_values(found[n], n, at, wanted)
    return found


def _with_values(
    subject: Subject, number: int, at: Places, wanted: dict[str, FloatArray]
) -> Subject:
    """What a device does to its operations becomes what is wanted; what is not known scales."""
    program = subject.program
    columns = {}
    quicker = 1.0
    for name, table in wanted.items():
        own = getattr(program, name)
        value = at.of_items(number, table)
        usual = at.of_items(number, peers.median_of_steps(table))
        value = np.where(np.isnan(value), usual, value)
        known = ~np.isnan(value)
        if name == "duration_ns":
            taken, instead = float(own[known].sum()), float(value[known].sum())
            quicker = min(1.0, instead / taken) if taken else 1.0
        rest = own * quicker if name == "duration_ns" else own
        looked_at = at.place[number] >= 0
        columns[name] = np.round(np.where(known, value, np.where(looked_at, rest, own)))
    return subject.becomes(**{name: column.astype(np.int64) for name, column in columns.items()})


def without_slowed_transfers(subjects: list[Subject]) -> list[Subject]:
    """Matched collectives of which some instances took far longer take what the others do.

    The same one of other steps has the same size and the same members. All ranks replay an instance
    with one transfer, so that each finds the same.
    """
    at = peers.places(subjects, [s.is_op & (s.program.instance >= 0) for s in subjects])
    found = []
    for number, subject in enumerate(subjects):
        own = subject.program.duration_ns
        table = at.table(number, own)
        rows = np.flatnonzero((~np.isnan(table)).sum(axis=1) >= 2)
        clean = np.full(table.shape, np.nan)
        if len(rows):
            usual = np.nanpercentile(table[rows], _CLEAN, axis=1, method="lower")
            clean[rows] = usual[:, None]
        value = at.of_items(number, clean)
        slowed = ~np.isnan(value) & (own > _SLOWED * value)
        duration = np.where(slowed, value, own).astype(np.int64)
        found.append(subject.becomes(duration_ns=duration))
    return found


def unhindered(subjects: list[Subject]) -> list[Subject]:
    """What ran beside a collective that waits takes what the same takes beside none.

    A collective that waits for a late rank holds SMs and polls memory: of a GPT on two H200s, the
    kernels of the backward pass took 1.35 times as long on the rank that waited beside them as on
    the late one. Where no rank is late any more, none waits. What the same operation takes without
    is known from the ranks, and the steps, in which nothing waited beside it.
    """
    waited = [_beside_waits(s) for s in subjects]
    if not any(rows.any() for rows in waited):
        return subjects
    at = peers.places(subjects, [s.is_op & _alone(s.program) for s in subjects])
    tables = [
        at.table(n, np.where(waited[n], -1, s.program.duration_ns)) for n, s in enumerate(subjects)
    ]
    clean = peers.median([np.where(table < 0, np.nan, table) for table in tables])
    usual = peers.median_of_steps(clean)
    found = []
    for n, subject in enumerate(subjects):
        own = subject.program.duration_ns
        value = at.of_items(n, np.where(np.isnan(clean), usual, clean))
        quicker = waited[n] & (value < own)
        found.append(subject.becomes(duration_ns=np.where(quicker, value, own).astype(np.int64)))
    return found


def _beside_waits(subject: Subject) -> BoolArray:
    """Operations that ran mostly while a collective of their device waited for another rank."""
    program, ops = subject.program, subject.gpu.ops
    moves = np.flatnonzero(subject.is_op & (program.instance >= 0))
    begun = ops["start_ns"][program.op[moves]]
    joined = ops["end_ns"][program.op[moves]] - program.duration_ns[moves]
    waits = union(begun[joined > begun], joined[joined > begun])
    row = np.maximum(program.op, 0)
    beside = overlap_per_window(waits, ops["start_ns"][row], ops["end_ns"][row])
    length = ops["end_ns"][row] - ops["start_ns"][row]
    found: BoolArray = subject.is_op & _alone(program) & (2 * beside > length)
    return found


def rank_like(subjects: list[Subject], rank: int, other: str | int) -> list[Subject]:
    """One rank takes the time of the median of the others, or of one, between two collectives.

    Host time is compared by cause, each part of a step between collectives that all ranks share by
    itself. Device time is compared operation by operation; what the others have under other names,
    or not at all, part by part. Pauses of the device that nothing explains become those of the
    others where theirs are shorter.
    """
    chosen = [
        n for n, s in enumerate(subjects)
        if s.rank == other or (other == "median" and s.rank != rank)
    ]  # fmt: skip
    if not chosen:
        return subjects
    subjects = unhindered(subjects)
    at = peers.places(subjects, [s.is_op & _alone(s.program) for s in subjects])
    tables = [at.table(n, subjects[n].program.duration_ns) for n in chosen]
    wanted = peers.median(tables)
    rare = np.sum([~np.isnan(t) for t in tables], axis=0) <= len(tables) / 2
    wanted[rare] = np.nan
    paused = peers.median([at.table(n, subjects[n].program.delay_ns) for n in chosen])
    parts, count = _shared_parts(subjects)
    changed = list(subjects)
    for n in [n for n, s in enumerate(subjects) if s.rank == rank]:
        program = subjects[n].program
        value = at.of_items(n, wanted)
        mine = at.table(n, program.duration_ns)
        host = _ratio(
            _sums(program, parts[n], count),
            [_sums(subjects[o].program, parts[o], count) for o in chosen],
        )
        # what only one of the two has under this name
        left = _left(subjects[n], parts[n], count, at.place[n], np.isnan(value))
        theirs = [
            _left(subjects[o], parts[o], count, at.place[o], np.isnan(at.of_items(o, mine)))
            for o in chosen
        ]
        part = np.minimum(parts[n], count)
        scaled = program.duration_ns * _ratio(left[:, None], [t[:, None] for t in theirs])[part, 0]
        duration = np.where(np.isnan(value), scaled, value)
        duration = np.where(at.place[n] >= 0, duration, program.duration_ns)
        own_waits = _own_waits(subjects, n, chosen, parts, count)
        pauses = at.of_items(n, paused)
        paused_as = np.where(np.isnan(pauses), program.delay_ns, pauses)
        changed[n] = without_waits(subjects[n], own_waits).becomes(
            work_ns=np.round(program.work_ns * host[part, :-1]).astype(np.int64),
            call_ns=np.where(
                own_waits & (program.kind == WAIT), 0, np.round(program.call_ns * host[part, -1])
            ).astype(np.int64),
            duration_ns=np.round(duration).astype(np.int64),
            delay_ns=np.round(np.minimum(paused_as, program.delay_ns)).astype(np.int64),
            **_recording_like(subjects, n, chosen, parts, count),
        )
    return changed


def _recording_like(
    subjects: list[Subject], number: int, others: list[int], parts: list[IntArray], count: int
) -> dict[str, IntArray]:
    """What recording costs, as it is on the other ranks in the same part of the step.

    A host that takes the time of another one takes what recording is of that time: the cost of its
    own would be too much or too little of it.
    """
    columns = ("recording_ns", "recording_untraced_ns")

    def sums(n: int) -> IntArray:
        program, inside = subjects[n].program, parts[n] < count
        found = np.zeros((count, len(columns)), np.int64)
        values = np.column_stack([getattr(program, name) for name in columns])
        np.add.at(found, parts[n][inside], values[inside])
        return found

    part = np.minimum(parts[number], count)
    ratio = _ratio(sums(number), [sums(o) for o in others])[part]
    return {
        name: np.round(getattr(subjects[number].program, name) * ratio[:, at]).astype(np.int64)
        for at, name in enumerate(columns)
    }


def _own_waits(
    subjects: list[Subject], number: int, others: list[int], parts: list[IntArray], count: int
) -> BoolArray:
    """Items at which a host waits for its device although in the median no other one does there."""
    found = np.zeros(len(subjects[number].program), bool)
    waiting = [
        (s.program.wait_cause >= 0)
        & (s.program.blocks | among(np.arange(len(s.program)), np.array(sorted(s.program.waits))))
        for s in subjects
    ]
    for cause in distinct_values(subjects[number].program.wait_cause[waiting[number]]).tolist():
        theirs = [
            np.bincount(
                np.minimum(parts[o], count)[waiting[o] & (subjects[o].program.wait_cause == cause)],
                minlength=count + 1,
            )
            for o in others
        ]
        none = np.median(np.stack(theirs), axis=0) == 0
        mine = waiting[number] & (subjects[number].program.wait_cause == cause)
        found |= mine & none[np.minimum(parts[number], count)]
    return found


def _left(
    subject: Subject, part: IntArray, count: int, place: IntArray, without: BoolArray
) -> IntArray:
    """Device time of each part in operations that have no counterpart, ns."""
    rows = (place >= 0) & without & (part < count)
    time = np.bincount(part[rows], weights=subject.program.duration_ns[rows], minlength=count)
    return time.astype(np.int64)


def _ratio(own: IntArray, others: list[IntArray]) -> FloatArray:
    """The others' median over one's own, a last row of ones for what lies in no part."""
    wanted = np.median(np.stack(others), axis=0)
    ratio = np.where(own > 0, wanted / np.maximum(own, 1), 1.0)
    return np.vstack((ratio, np.ones((1, ratio.shape[1]))))


def _shared_parts(subjects: list[Subject]) -> tuple[list[IntArray], int]:
    """The part of the run that each item lies in, and how many there are on all ranks."""
    shared = subjects[0].program.instance
    for subject in subjects:
        shared = common_values(shared, subject.program.instance)
    parts = [_parts(s.program, shared) for s in subjects]
    return parts, min(int(part.max(initial=-1)) + 1 for part in parts)


def even_work(subjects: list[Subject], scope: Scope) -> list[Subject]:
    """The device work of the ranks is spread evenly over them; none of it is gone.

    Each rank computes the mean of all in each part: between collectives that all of them share, or
    in the run as a whole, where the ranks are stages of a pipeline. Operations that take the same
    on all ranks do not follow the work and stay. The messages of all-to-alls become as even.
    """
    subjects = unhindered(subjects)
    parts, count = _shared_parts(subjects)
    if scope == "stages":
        parts, count = [np.zeros(len(s.program), np.int64) for s in subjects], 1
    compute = [s.of_ops(s.gpu.is_compute) & _alone(s.program) for s in subjects]
    at = peers.places(subjects, compute)
    if scope == "stages":
        moves = compute
    else:
        tables = np.stack([at.table(n, s.program.duration_ns) for n, s in enumerate(subjects)])
        high, low = tables.max(axis=0), tables.min(axis=0)  # NaN where a rank has none
        same = high <= _SAME * np.maximum(low, 1)
        moves = [
            compute[n] & ~(at.of_items(n, same.astype(float)) > 0) for n in range(len(subjects))
        ]
    own: FloatArray = np.stack(
        [
            np.bincount(
                p[m & (p < count)], s.program.duration_ns[m & (p < count)].astype(float), count
            )
            for p, m, s in zip(parts, moves, subjects, strict=True)
        ]
    ).astype(float)
    mean = own.mean(axis=0)
    even = [np.ones(len(s.program)) for s in subjects]
    if scope == "parts":
        even = _even_messages(subjects, parts, own)
    found = []
    for n, subject in enumerate(subjects):
        ratio = np.append(np.where(own[n] > 0, mean / np.maximum(own[n], 1), 1.0), 1.0)
        scale = np.where(moves[n], ratio[np.minimum(parts[n], count)], even[n])
        duration = np.round(subject.program.duration_ns * scale).astype(np.int64)
        found.append(subject.becomes(duration_ns=duration))
    return _even_launches(found, compute) if scope == "stages" else found


def _even_launches(subjects: list[Subject], compute: list[BoolArray]) -> list[Subject]:
    """Hosts launch as many kernels each: a layer that moves takes its launches with it.

    A launch takes each host what it took, but no longer than that of the stage which launches most:
    the others wait for that one, and a host that waits is in no hurry.
    """
    counts = np.array([float(mask.sum()) for mask in compute])
    costs = np.array(
        [float(_launch_ns(s)[mask].sum()) for s, mask in zip(subjects, compute, strict=True)]
    )
    if not counts.all() or not costs.all():
        return subjects
    each = costs / counts
    wanted = counts.mean() * np.minimum(each, each[int(np.argmax(counts))])
    column = C["launch_bound"]
    found = []
    for subject, mask, ratio in zip(subjects, compute, wanted / costs, strict=True):
        program = subject.program
        work = own_work(program)
        work[mask, column] = np.round(work[mask, column] * ratio)
        scaled = {
            name: np.where(mask, np.round(getattr(program, name) * ratio), getattr(program, name))
            for name in ("call_ns", "recording_ns", "recording_untraced_ns")
        }
        found.append(
            subject.becomes(
                work_ns=work, **{name: values.astype(np.int64) for name, values in scaled.items()}
            )
        )
    return found


def _launch_ns(subject: Subject) -> IntArray:
    """What launching each item takes the host, ns."""
    program = subject.program
    cost: IntArray = program.work_ns[:, C["launch_bound"]] + program.call_ns
    return cost


def _even_messages(
    subjects: list[Subject], parts: list[IntArray], own: FloatArray
) -> list[FloatArray]:
    """What the transfer of each all-to-all becomes where all its parts are equal: a factor.

    The rank that gets most is what an uneven one waits for; its share is that of the work which
    stands between it and its neighbour. Each of n ranks then gets an n-th.
    """
    whole = own.sum(axis=0)
    worst = np.where(whole > 0, own.max(axis=0) / np.maximum(whole, 1), 0.0)
    uneven = np.append(np.maximum(worst, 1 / len(subjects)), 1 / len(subjects))
    found = []
    for subject, part in zip(subjects, parts, strict=True):
        program = subject.program
        names = np.array([_ALL_TO_ALL in text for text in subject.gpu.ops.texts["name"]] + [False])
        exchange = subject.of_ops(names[subject.gpu.ops["name"]]) & (program.instance >= 0)
        here = np.minimum(part, len(uneven) - 1)  # an exchange begins the part behind it
        before = np.maximum(here - 1, 0)
        share = np.maximum(uneven[here], uneven[before])
        factor = 1 / (len(subjects) * share)
        found.append(np.where(exchange, np.maximum(factor, 1 / len(subjects)), 1.0))
    return found


_ALL_TO_ALL: Final = "SendRecv"
"""In the name of the kernel that NCCL sends all-to-alls with."""


def _alone(program: Program) -> BoolArray:
    """Items whose operation no other rank takes part in."""
    return ~program.communication & (program.instance < 0)


def _parts(program: Program, shared: IntArray) -> IntArray:
    """Number of the part of the run that each item lies in: cut at steps and at collectives."""
    cuts = (program.kind == MARK) | among(program.instance, shared[shared >= 0])
    return np.cumsum(cuts).astype(np.int64)


def _sums(program: Program, part: IntArray, count: int) -> IntArray:
    """Host time by cause and time in calls of each part, ns."""
    columns = np.column_stack((program.work_ns, program.call_ns))
    sums = np.zeros((count, columns.shape[1]), np.int64)
    inside = part < count
    np.add.at(sums, part[inside], columns[inside])
    return sums
