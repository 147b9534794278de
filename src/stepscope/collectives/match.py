"""Which communication kernels of several ranks are one operation, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.collectives import kinds
from stepscope.collectives.calls import Calls, JobCalls, Participant, job_calls
from stepscope.collectives.clocks import HOP_NS, SHARED_NS, Line, pair_by_time
from stepscope.collectives.communicators import Channel, channels, with_payloads
from stepscope.collectives.pairs import (
    LOOSE_NS,
    UNBOUND_NS,
    by_wall_clock,
    pair_line,
    pairs_by_number,
    with_exchanges,
)
from stepscope.intervals.distinct import among
from stepscope.trace.frame import BoolArray, IntArray


@dataclass(frozen=True)
class RankOps:
    """The matched communication of one device; all arrays have one value an operation.

    Attributes:
        rank: the rank.
        process_id: the process.
        device: CUDA device ordinal inside the process.
        op: rows of ``GPU.ops``, ascending.
        instance: which operation of the job each takes part in.
        bytes: message size; -1 where unknown.
        start_ns: begin on the job's clock.
        end_ns: end on the job's clock.
        waiting_ns: from its own start until the last member has begun (its own end at most), ns.
        transfer_ns: the rest of its time, ns.
        early: waits for no other member: it ended well before another did, which no member of an
            operation can that all wait in. So does a send whose data fits into a buffer.
        offset_ns: what to add to this trace's times at its first operation, ns.
        clock: the conversion from the trace's clock to the job's.
        unmatched: number of communication kernels without a counterpart.
    """

    rank: int
    process_id: int
    device: int
    op: IntArray
    instance: IntArray
    bytes: IntArray
    start_ns: IntArray
    end_ns: IntArray
    waiting_ns: IntArray
    transfer_ns: IntArray
    early: BoolArray
    offset_ns: int
    clock: Line
    unmatched: int


@dataclass(frozen=True)
class Instances:
    """Operations of the job; all arrays have one value an instance, in order of their last start.

    Attributes:
        kind: code of the kind (``kinds.KINDS``).
        channel: number of the communicator (``Matched.channels``).
        looks: code of what it looks like (kind, type, size); operations alike have the same.
        bytes: message size; -1 where unknown.
        members: devices found.
        size: devices it should have; equal to ``members`` where nothing tells.
        first_start_ns: begin of the earliest member, ns on the job's clock.
        last_start_ns: begin of the latest member.
        last: position in ``Matched.ranks`` of the latest member.
    """

    kind: IntArray
    channel: IntArray
    looks: IntArray
    bytes: IntArray
    members: IntArray
    size: IntArray
    first_start_ns: IntArray
    last_start_ns: IntArray
    last: IntArray

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True)
class Matched:
    """Several ranks as one job.

    Attributes:
        ranks: one for each device, in the order given.
        instances: the operations.
        channels: the communicators.
        missing_ranks: ranks that communicators or the world size name and that are not there.
        impossible: instances in which one member ends before another begins although all must
            wait for all: a measure of wrong matches and clocks.
        warnings: what could not be matched or had to be assumed, in sentences.
    """

    ranks: list[RankOps]
    instances: Instances
    channels: list[Channel]
    missing_ranks: list[int]
    impossible: int
    warnings: list[str]

    @property
    def offsets_ns(self) -> list[int]:
        """What to add to each device's times, ns."""
        return [rank.offset_ns for rank in self.ranks]

    @property
    def complete(self) -> bool:
        """Whether every rank of the job is there."""
        return not self.missing_ranks


def expected_size(job: JobCalls, channel: Channel, missing: list[int]) -> int:
    """How many ranks a communicator should have."""
    there = {p.rank for p in job.participants}
    if channel.point_to_point:
        return 2
    if len(there) == 1:
        return max(channel.size, 2, job.participants[0].world_size or 0)
    if not channel.declared and set(channel.ranks) == there:
        return channel.size + len(missing)  # a group of all ranks that are there has the others too
    return channel.size


def missing_ranks(job: JobCalls, found: list[Channel]) -> list[int]:
    """Ranks that are named somewhere and not there."""
    named: set[int] = set()
    for channel in found:
        named |= set(channel.ranks)
    for p in job.participants:
        named |= set(range(p.world_size or 0))
    return sorted(named - {p.rank for p in job.participants})


def _ranks(numbers: Sequence[int]) -> str:
    """The first few of some ranks, in words."""
    named = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {named}"


def _most(ranks: list[RankOps], unmatched: int) -> str:
    """The rank that most of the unmatched operations are on, in brackets."""
    most = max(ranks, key=lambda rank: rank.unmatched)
    if most.unmatched == unmatched:
        return f" (on rank {most.rank})"
    return f" (most on rank {most.rank}: {most.unmatched:,})"


def warnings(
    job: JobCalls, ranks: list[RankOps], missing: list[int], impossible: int, n: int
) -> list[str]:
    """What could not be matched or had to be assumed, in sentences."""
    stated = []
    unmatched = sum(rank.unmatched for rank in ranks) if len(ranks) > 1 else 0
    total = sum(len(calls) for calls in job.calls)
    if unmatched:
        has = "has" if unmatched == 1 else "have"
        stated.append(
            f"{unmatched:,} of {total:,} communication kernels {has} no counterpart on another rank"
            f"{_most(ranks, unmatched)}: captures that begin or end at different times, lost "
            "records, or ranks that are not there"
        )
    if impossible:
        stated.append(
            f"in {impossible:,} of {n:,} matched collectives one rank ends before another begins, "
            "so that the clocks or the matches are not to be trusted there"
        )
    moved = [rank for rank in ranks if abs(rank.offset_ns - _wall(job, rank, ranks)) > SHARED_NS]
    if moved:
        several = len(moved) > 1
        stated.append(
            f"the clock{'s' if several else ''} of {_ranks([rank.rank for rank in moved])} "
            f"{'were' if several else 'was'} set by the ends of collectives, because "
            + (
                "their wall clocks disagree or are "
                if several
                else "its wall clock disagrees or is "
            )
            + "unknown"
        )
    if missing:
        several = len(missing) > 1
        stated.append(
            f"{_ranks(missing)} {'are' if several else 'is'} not there: what looks like a transfer "
            f"may be waiting for {'them' if several else 'it'}; add "
            f"{'their captures' if several else 'its capture'}"
        )
    return stated


def _wall(job: JobCalls, rank: RankOps, ranks: list[RankOps]) -> float:
    number = next(i for i, r in enumerate(ranks) if r is rank)
    line = by_wall_clock(job.participants[0], job.participants[number])
    return line.offset_ns if line else float("inf")


def match(participants: Sequence[Participant]) -> Matched | None:
    """Match the communication of some devices.

    Returns:
        None when none of them communicates. A single one is matched with nobody: its operations
        are instances with one member, whose waiting cannot be told from transferring.
    """
    return match_calls(with_exchanges(with_payloads(job_calls(participants))))


def match_calls(job: JobCalls) -> Matched | None:
    """The same for calls that were read before."""
    if not any(len(calls) for calls in job.calls):
        return None
    found = channels(job)
    lines = _clocks(job, found)
    instance_of = [np.full(len(calls), -1, np.int64) for calls in job.calls]
    channel_of: list[int] = []
    for number, channel in enumerate(found):
        ids = _instances(job, channel, lines, len(channel_of))
        for member, (device, rows) in enumerate(channel.members):
            instance_of[device][rows] = ids[member]
        made = max((int(i.max()) + 1 for i in ids if len(i)), default=0)
        channel_of += [number] * max(0, made - len(channel_of))
    return assembled(job, found, lines, instance_of, np.array(channel_of, np.int64))


def _clocks(job: JobCalls, found: list[Channel]) -> list[Line]:
    """The conversion of each device's clock to the job's: that of the first connected device."""
    n = len(job.participants)
    clock = [p.clock for p in job.participants]
    edges: list[tuple[int, int, int, Line]] = []
    for channel in found:
        if len(channel.members) < 2 or channel.point_to_point:
            continue
        base, rows_a = channel.members[0]
        for other, rows_b in channel.members[1:]:
            if clock[other] == clock[base]:
                continue
            line = pair_line(job, base, rows_a, other, rows_b, len(channel.members))
            if line is not None:
                edges.append((line.pairs, base, other, line))
    edges.sort(key=lambda edge: -edge[0])
    known: dict[int, Line] = {}
    for start in range(n):
        if clock[start] in known:
            continue
        # devices that no collective connects keep the wall clock
        known[clock[start]] = by_wall_clock(job.participants[0], job.participants[start]) or Line()
        grown = True
        while grown:
            grown = False
            for _, a, b, line in edges:
                if clock[a] in known and clock[b] not in known:
                    known[clock[b]] = line.then(known[clock[a]])
                elif clock[b] in known and clock[a] not in known:
                    known[clock[a]] = line.reversed().then(known[clock[b]])
                else:
                    continue
                grown = True
                break
    return [known[c] for c in clock]


def _instances(job: JobCalls, channel: Channel, lines: list[Line], first_id: int) -> list[IntArray]:
    """Instance of each member's operations of one communicator; -1 where only one member has it."""
    members = channel.members
    ids = [np.full(len(rows), -1, np.int64) for _, rows in members]
    starts = [lines[d].to(job.calls[d].start_ns[rows]) for d, rows in members]
    ends = [lines[d].to(job.calls[d].end_ns[rows]) for d, rows in members]
    residual = max((lines[d].residual_ns for d, _ in members), default=0.0)
    tight = round(max(6 * residual, 5 * HOP_NS * max(len(members) - 1, 1)))
    order = sorted(range(len(members)), key=lambda m: -len(members[m][1]))
    made = first_id
    numbered = all((job.calls[d].sequence[rows] >= 0).all() for d, rows in members)
    if len(members) == 1:
        return [first_id + np.arange(len(members[0][1]))]
    for position, base in enumerate(order[:-1]):
        left = np.flatnonzero(ids[base] < 0)
        if not len(left):
            continue
        device, rows = members[base]
        fresh = np.full(len(left), -1, np.int64)
        hits = []
        for other in order[position + 1 :]:
            free = np.flatnonzero(ids[other] < 0)
            if not len(free):
                continue
            other_device, other_rows = members[other]
            if numbered:
                i, j = _positions(job.calls[device], rows[left], job.calls[other_device],
                                  other_rows[free])  # fmt: skip
            else:
                i, j = _near(job.calls[device], rows[left], starts[base][left], ends[base][left],
                             job.calls[other_device], other_rows[free], starts[other][free],
                             ends[other][free], tight)  # fmt: skip
            fresh[i] = 0
            hits.append((other, free[j], i))
        new = np.flatnonzero(fresh >= 0)
        fresh[new] = made + np.arange(len(new))
        made += len(new)
        ids[base][left] = fresh
        for other, row, i in hits:
            ids[other][row] = fresh[i]
    return ids


def _positions(a: Calls, rows_a: IntArray, b: Calls, rows_b: IntArray) -> tuple[IntArray, IntArray]:
    i, j = pairs_by_number(a, rows_a, b, rows_b)
    place_a, place_b = np.argsort(rows_a), np.argsort(rows_b)
    return (
        place_a[np.searchsorted(rows_a, i, sorter=place_a)],
        place_b[np.searchsorted(rows_b, j, sorter=place_b)],
    )


def _near(
    a: Calls, rows_a: IntArray, start_a: IntArray, end_a: IntArray,
    b: Calls, rows_b: IntArray, start_b: IntArray, end_b: IntArray, tight_ns: int,
) -> tuple[IntArray, IntArray]:  # fmt: skip
    """Positions in ``rows_a`` and ``rows_b`` that match, on one clock."""
    found: list[tuple[IntArray, IntArray]] = []
    sort_a, sort_b = _sort(a, rows_a), _sort(b, rows_b)
    limits = ((0, tight_ns, tight_ns), (1, LOOSE_NS, LOOSE_NS), (2, tight_ns, UNBOUND_NS))
    for sort, tolerance, between in limits:
        in_a, in_b = np.flatnonzero(sort_a == sort), np.flatnonzero(sort_b == sort)
        in_a = in_a[np.argsort(end_a[in_a], kind="stable")]
        in_b = in_b[np.argsort(end_b[in_b], kind="stable")]
        if not len(in_a) or not len(in_b):
            continue
        token_a, token_b = a.token[rows_a[in_a]], b.token[rows_b[in_b]]
        if not among(token_b, token_a).any():
            token_a, token_b = a.kind[rows_a[in_a]], b.kind[rows_b[in_b]]
        i, j = pair_by_time(end_a[in_a], token_a, end_b[in_b], token_b, tolerance, between)
        found.append((in_a[i], in_b[j]))
        if sort == 0:
            rest_a = np.delete(np.arange(len(in_a)), i)
            rest_b = np.delete(np.arange(len(in_b)), j)
            i, j = pair_by_time(end_a[in_a[rest_a]], token_a[rest_a],
                                end_b[in_b[rest_b]], token_b[rest_b], LOOSE_NS)  # fmt: skip
            i, j = in_a[rest_a[i]], in_b[rest_b[j]]
            # who waited for 150 ms noticed 0.1 ms late, on H100s, that the others had come; what
            # follows on one rank can overlap what went before on another by the error of clocks
            together = np.minimum(end_a[i], end_b[j]) - np.maximum(start_a[i], start_b[j])
            found.append((i[together > tight_ns], j[together > tight_ns]))
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    i, j = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return i, j


def _sort(calls: Calls, rows: IntArray) -> IntArray:
    """0 where all must end together, 2 for sends and receives, 1 for the rest."""
    firm = kinds.all_wait(calls.kind[rows])
    return np.where(firm, 0, np.where(calls.point_to_point[rows], 2, 1))


def assembled(
    job: JobCalls,
    found: list[Channel],
    lines: list[Line],
    instance_of: list[IntArray],
    channel_of: IntArray,
) -> Matched:
    """What the ranks' operations are, once it is known which belong together.

    Args:
        job: the calls of all ranks.
        found: the communicators.
        lines: conversion of each device's clock to the job's.
        instance_of: instance of each call of each device; -1 where it has none.
        channel_of: communicator of each instance.
    """
    n = len(channel_of)
    starts = [line.to(calls.start_ns) for line, calls in zip(lines, job.calls, strict=True)]
    ends = [line.to(calls.end_ns) for line, calls in zip(lines, job.calls, strict=True)]
    device = np.repeat(np.arange(len(job.calls)), [len(c) for c in job.calls])
    instance = np.concatenate(instance_of)
    keep = instance >= 0
    device, instance = device[keep], instance[keep]
    start, end = np.concatenate(starts)[keep], np.concatenate(ends)[keep]
    kind = np.concatenate([c.kind for c in job.calls])[keep]
    size_bytes = np.concatenate([c.bytes for c in job.calls])[keep]
    token = np.concatenate([c.token for c in job.calls])[keep]
    high = np.iinfo(np.int64).max
    order = np.lexsort((start, instance))
    last_of = np.searchsorted(instance[order], np.arange(n), side="right") - 1
    members = np.bincount(instance, minlength=n)
    last_start = start[order][last_of]
    first_start, first_end = np.full(n, high), np.full(n, high)
    largest = np.full(n, -1)
    last_end = np.full(n, -high)
    np.maximum.at(last_end, instance, end)
    np.minimum.at(first_start, instance, start)
    np.minimum.at(first_end, instance, end)
    np.maximum.at(largest, instance, size_bytes)
    kind_of = np.full(n, kinds.UNKNOWN)
    kind_of[instance] = kind
    looks = np.zeros(n, np.int64)
    looks[instance] = token
    missing = missing_ranks(job, found)
    size = np.array([expected_size(job, c, missing) for c in found], np.int64)[channel_of]
    instances = Instances(
        kind=kind_of,
        channel=channel_of,
        looks=looks,
        bytes=largest,
        members=members,
        size=np.maximum(size, members),
        first_start_ns=first_start,
        last_start_ns=last_start,
        last=device[order][last_of],
    )
    # operations of one device that point to point pairs leave in any order need a common instant
    residual = max((line.residual_ns for line in lines), default=0.0)
    allowed = max(6 * residual, HOP_NS)
    impossible = kinds.all_wait(kind_of) & (first_end + allowed < last_start)
    # from when on an end counts as that of the operation; never where all wait for all
    together = np.where(kinds.all_wait(kind_of), -high, last_end - allowed * (members - 1))
    ranks = []
    for number, calls in enumerate(job.calls):
        own = instance_of[number]
        rows = np.flatnonzero(own >= 0)
        p = job.participants[number]
        length = calls.end_ns[rows] - calls.start_ns[rows]
        waiting = np.clip(last_start[own[rows]] - starts[number][rows], 0, length)
        at = calls.start_ns[:1]
        ranks.append(
            RankOps(
                rank=p.rank,
                process_id=p.gpu.process_id,
                device=p.gpu.device,
                op=calls.op[rows],
                instance=own[rows],
                bytes=calls.bytes[rows],
                start_ns=starts[number][rows],
                end_ns=ends[number][rows],
                waiting_ns=waiting,
                transfer_ns=length - waiting,
                early=ends[number][rows] < together[own[rows]],
                offset_ns=int((lines[number].to(at) - at)[0]) if len(at) else 0,
                clock=lines[number],
                unmatched=len(calls) - len(rows),
            )
        )
    stated = warnings(job, ranks, missing, int(impossible.sum()), n)
    return Matched(ranks, instances, found, missing, int(impossible.sum()), stated)
