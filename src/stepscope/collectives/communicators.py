"""Which operations of which ranks go through one communicator.

NCCL annotates its calls with NVTX ranges of the domain ``NCCL``, whose payload holds the
communicator and the message size (``nvtx_payload_schemas.h``). Stepscope's collector keeps
payloads; exports of Nsight Systems hold them as JSON text or not at all. A call enqueues its kernel
inside its range, unless it is part of a group of calls, whose kernel nothing is said about here.

Where the framework names the group, that decides. Nsight Systems does not: there the operations of
one stream are taken for those of one communicator, and two streams of different ranks for the same
communicator when their operations look the same, end together again and again, and never end on
one rank before they begin on the other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.collectives import kinds
from stepscope.collectives.calls import Calls, GroupName, JobCalls, Participant
from stepscope.collectives.clocks import HOP_NS, SHARED_NS, Line, fit, pair_by_time
from stepscope.collectives.neighbours import message_pairs
from stepscope.collectives.pairs import by_wall_clock, pairs
from stepscope.intervals import stab_innermost
from stepscope.intervals.distinct import among, distinct_values, values_without, with_inverse
from stepscope.trace.frame import IntArray

_COLUMNS = ("process_id", "thread_id", "start_ns", "end_ns", "domain", "payload")
_PER_RANK = tuple(
    kinds.CODE[name] for name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
)
"""Kinds of which NCCL states what one rank gives or gets; the message is that of all ranks."""


@dataclass(frozen=True)
class Stated:
    """What NCCL states of the kernels of one device.

    Attributes:
        communicator: number of the communicator, an index into ``names``; -1 where not stated.
        bytes: message size as NCCL states it; -1 where not stated.
        names: identities of the communicators, the same on all ranks.
    """

    communicator: IntArray
    bytes: IntArray
    names: list[str]


def stated(p: Participant, op: IntArray) -> Stated:
    """Read the payloads of the ranges in which kernels were enqueued.

    Args:
        p: the device.
        op: its communication kernels, rows of ``p.GPU.ops``.
    """
    communicator = np.full(len(op), -1, np.int64)
    size = np.full(len(op), -1, np.int64)
    found = Stated(communicator, size, [])
    call = p.gpu.call[op] if len(op) else np.empty(0, np.int64)
    if not (call >= 0).any():
        return found
    ranges = p.read("range", *_COLUMNS)
    if not len(ranges):
        return found
    own = ranges.take(
        (ranges["process_id"] == p.gpu.process_id)
        & ranges.equals("domain", "NCCL")
        & (ranges["payload"] >= 0)
    )
    if not len(own):
        return found
    # One reading of each distinct text, of those that are used.
    codes, inverse = with_inverse(own["payload"])
    read = [_payload(own.texts["payload"][code]) for code in codes.tolist()]
    numbers: dict[str, int] = {}
    of_code = np.array(
        [(numbers.setdefault(name, len(numbers)) if name else -1, count) for name, count in read],
        np.int64,
    ).reshape(-1, 2)
    api = p.gpu.host.api
    row = np.maximum(call, 0)
    thread, at = api["thread_id"][row], api["start_ns"][row]
    for one in distinct_values(own["thread_id"]).tolist():
        there = np.flatnonzero(own["thread_id"] == one)
        mine = np.flatnonzero((thread == one) & (call >= 0))
        mine = mine[np.argsort(at[mine], kind="stable")]
        inside = stab_innermost(own["start_ns"][there], own["end_ns"][there], at[mine])
        hit = inside >= 0
        facts = of_code[inverse[there[inside[hit]]]]
        communicator[mine[hit]], size[mine[hit]] = facts[:, 0], facts[:, 1]
    return Stated(communicator, size, list(numbers))


def with_payloads(job: JobCalls, details: Sequence[Stated] | None = None) -> JobCalls:
    """The job with what NCCL states, where the framework says nothing.

    Communicators are used only where every collective has one, else members of one collective would
    stand in different groups. Their size is the number of ranks seen in them, if the capture holds
    all ranks of the job.

    Args:
        job: the calls of all ranks.
        details: what NCCL states of each rank's; read from the captures where it is not given.
    """
    lacking = any(len(calls) and (calls.bytes < 0).any() for calls in job.calls)
    if not lacking:
        return job
    if details is None:
        details = [
            stated(p, calls.op) for p, calls in zip(job.participants, job.calls, strict=True)
        ]
    if not any((s.bytes >= 0).any() for s in details):
        return job
    members = _members(job.participants, details)
    world = max((p.world_size or 0 for p in job.participants), default=0)
    whole = world > 0 and len({p.rank for p in job.participants}) == world
    grouped = all(
        ((s.communicator >= 0) | calls.point_to_point).all() and (calls.group < 0).all()
        for s, calls in zip(details, job.calls, strict=True)
    )
    groups = list(job.groups)
    code_of: dict[str, int] = {}
    if grouped:
        for name, ranks in members.items():
            code_of[name] = len(groups)
            groups.append(GroupName(tuple(sorted(ranks)) if whole else (), name))
    calls = [
        _with_stated(own, s, members if whole else {}, code_of)
        for own, s in zip(job.calls, details, strict=True)
    ]
    return JobCalls(job.participants, calls, groups)


def _members(participants: Sequence[Participant], details: Sequence[Stated]) -> dict[str, set[int]]:
    members: dict[str, set[int]] = {}
    for p, s in zip(participants, details, strict=True):
        for number in distinct_values(s.communicator[s.communicator >= 0]).tolist():
            members.setdefault(s.names[number], set()).add(p.rank)
    return members


def _with_stated(
    calls: Calls, s: Stated, members: dict[str, set[int]], code_of: dict[str, int]
) -> Calls:
    sizes = np.array([len(members.get(name, ())) for name in s.names] + [0], np.int64)
    ranks = sizes[s.communicator]  # -1: the last element
    codes = np.array([code_of.get(name, -1) for name in s.names] + [-1], np.int64)
    per_rank = among(calls.kind, _PER_RANK)
    whole = np.where(per_rank, np.where(ranks > 0, s.bytes * ranks, -1), s.bytes)
    empty = calls.bytes < 0
    grouped = (calls.group < 0) & ~calls.point_to_point
    return replace(
        calls,
        bytes=np.where(empty & (s.bytes >= 0), whole, calls.bytes),
        size=np.where((calls.size < 0) & (ranks > 0), ranks, calls.size),
        group=np.where(grouped, codes[s.communicator], calls.group),
    )


def _payload(text: str) -> tuple[str, int]:
    """Identity of the communicator and message size; empty and -1 where the text lacks them."""
    try:
        fields = json.loads(text)
    except ValueError:
        return "", -1
    if not isinstance(fields, dict):
        return "", -1
    name, size = "", -1
    for key, value in fields.items():
        if "communicator" in key.lower() and isinstance(value, int | str):
            name = str(value)
        if key.lower().startswith("message size") and str(value).isdecimal():
            size = int(value)
    return name, size


Participation = tuple[int, IntArray]
"""Position of a device in ``JobCalls.participants``, and rows of its ``Calls``."""

_MIN_SHARE = 0.3
_MIN_PAIRS = 3
_MAX_IMPOSSIBLE = 0.1
_TOGETHER = 3
_FITS = 0.8
_WHOLE = 0.7


@dataclass(frozen=True)
class Channel:
    """One communicator, or the pair of streams of a point-to-point connection.

    Attributes:
        members: the devices and their operations, by device.
        ranks: ranks that belong to it, ascending; those found where nothing names them.
        size: number of ranks that belong to it.
        declared: whether the framework named the ranks.
        point_to_point: whether it holds sends and receives.
    """

    members: list[Participation]
    ranks: tuple[int, ...]
    size: int
    declared: bool
    point_to_point: bool = False


def channels(job: JobCalls) -> list[Channel]:
    """Every communicator that at least two of the devices use; with one device, all of its."""
    found = _declared(job)
    if len(job.participants) == 1:
        rank = (job.participants[0].rank,)
        for point_to_point in (False, True):
            for rows in _by_stream(job, 0, point_to_point):
                found.append(Channel([(0, rows)], rank, 2, False, point_to_point))
        return found
    streams = [_by_stream(job, device, False) for device in range(len(job.calls))]
    found += _completed(job, _linked(job, streams), streams)
    pairs_of = [_by_stream(job, device, True) for device in range(len(job.calls))]
    found += _by_message(job, pairs_of) or _paired(job, pairs_of)
    return [channel for channel in found if len(channel.members) > 1]


def _declared(job: JobCalls) -> list[Channel]:
    found = []
    for group, name in enumerate(job.groups):
        members: list[Participation] = []
        for device, calls in enumerate(job.calls):
            rows = np.flatnonzero((calls.group == group) & ~calls.point_to_point)
            if len(rows):
                members.append((device, rows))
        if not members:
            continue
        there = tuple(sorted({job.participants[d].rank for d, _ in members}))
        stated = max(int(job.calls[d].size[rows].max()) for d, rows in members)
        ranks = name.ranks or there
        found.append(Channel(members, ranks, max(stated, len(ranks)), bool(name.ranks)))
    return found


def _by_stream(job: JobCalls, device: int, point_to_point: bool) -> list[IntArray]:
    """Operations without a named group (or sends and receives) of one device, by stream."""
    calls = job.calls[device]
    mine = calls.point_to_point if point_to_point else (
        ~calls.point_to_point & (calls.group < 0)
    )  # fmt: skip
    rows = np.flatnonzero(mine)
    order = np.argsort(calls.stream[rows], kind="stable")
    cuts = np.flatnonzero(np.diff(calls.stream[rows][order])) + 1
    return [part for part in np.split(rows[order], cuts) if len(part)]


def _linked(job: JobCalls, streams: list[list[IntArray]]) -> list[Channel]:
    """Streams of different devices that belong together, the longest streams first."""
    todo = sorted(
        ((len(rows), device, number) for device, own in enumerate(streams)
         for number, rows in enumerate(own)),
        reverse=True,
    )  # fmt: skip
    taken: set[tuple[int, int]] = set()
    found = []
    for _, device, number in todo:
        if (device, number) in taken:
            continue
        taken.add((device, number))
        seed = streams[device][number]
        links = _links(job, streams, taken, device, seed)
        if not links:
            continue
        # another replica of the same group keeps pace with this one, but not as exactly
        closest = min(residual for _, residual, _, _ in links)
        links = [k for k in links if k[1] <= max(3 * closest, HOP_NS * len(links))]
        members: list[Participation] = [(device, seed)]
        for _, _, other, candidate in links:
            taken.add((other, candidate))
            members.append((other, streams[other][candidate]))
        members.sort(key=lambda member: member[0])
        ranks = tuple(sorted({job.participants[d].rank for d, _ in members}))
        found.append(Channel(members, ranks, len(members), False))
    return found


def _by_message(job: JobCalls, streams: list[list[IntArray]]) -> list[Channel]:
    """Sends and receives of two devices each, told message by message; empty where that fails.

    Streams that have one neighbour each need no such look.
    """
    if max((len(own) for own in streams), default=0) > 1 or not any(len(own) for own in streams):
        return []
    found = message_pairs(job, streams)
    channels = []
    for pair in found or ():
        members = [(d, np.sort(r)) for d, r in zip(pair.devices, pair.rows, strict=True)]
        ranks = tuple(sorted({job.participants[d].rank for d in pair.devices}))
        channels.append(Channel(members, ranks, 2, False, True))
    return channels


def _paired(job: JobCalls, streams: list[list[IntArray]]) -> list[Channel]:
    """Sends and receives of two devices each, the longest streams first.

    One stream may hold the messages to several neighbours: what ends together with those of one
    belongs to it, the rest is looked at again. What finds no other neighbour stays.
    """
    left = [list(own) for own in streams]
    taken: set[tuple[int, int]] = set()
    found: list[Channel] = []
    rest_of: dict[tuple[int, int], int] = {}
    unlinked: dict[int, list[Participation]] = {}
    while todo := [
        (len(rows), device, number)
        for device, own in enumerate(left)
        for number, rows in enumerate(own)
        if (device, number) not in taken
    ]:
        _, device, number = max(todo)
        taken.add((device, number))
        seed = left[device][number]
        links = _links(job, left, taken, device, seed)
        if not links:
            if (device, number) in rest_of:
                unlinked.setdefault(rest_of[device, number], []).append((device, seed))
            continue
        _, _, other, candidate = max(links, key=lambda link: (link[0], -link[1]))
        taken.add((other, candidate))
        whole = ((device, seed), (other, left[other][candidate]))
        both = _of_both(job, device, seed, other, left[other][candidate])
        members: list[Participation] = sorted(zip((device, other), both, strict=True), key=_device)
        ranks = tuple(sorted({job.participants[d].rank for d, _ in members}))
        found.append(Channel(members, ranks, 2, False, True))
        for (one, rows), part in zip(whole, both, strict=True):
            rest = values_without(rows, part)
            if len(rest):
                rest_of[one, len(left[one])] = len(found) - 1
                left[one].append(rest)
    for channel, stayed in unlinked.items():
        members = [
            (device, np.sort(np.concatenate([rows, *(r for d, r in stayed if d == device)])))
            for device, rows in found[channel].members
        ]
        found[channel] = replace(found[channel], members=members)
    return found


def _device(member: Participation) -> int:
    return member[0]


def _links(
    job: JobCalls,
    streams: list[list[IntArray]],
    taken: set[tuple[int, int]],
    device: int,
    seed: IntArray,
) -> list[tuple[float, float, int, int]]:
    """(share, residual in ns, device, stream) of the best free stream of every other device."""
    links: list[tuple[float, float, int, int]] = []
    for other, own in enumerate(streams):
        if other == device:
            continue
        best: tuple[float, float, int, int] | None = None
        for candidate, rows in enumerate(own):
            if (other, candidate) in taken:
                continue
            link = _link(job, device, seed, other, rows)
            if link is not None and (best is None or link[0] > best[0]):
                best = (*link, other, candidate)
        if best is not None:
            links.append(best)
    return links


def _of_both(
    job: JobCalls, a: int, rows_a: IntArray, b: int, rows_b: IntArray
) -> tuple[IntArray, IntArray]:
    """The operations of two streams that belong to each other: all, unless many surely do not."""
    i, j, line = _together(job, a, rows_a, b, rows_b)
    end_a, end_b = job.calls[a].end_ns, line.to(job.calls[b].end_ns)
    close = np.abs(end_a[i] - end_b[j]) <= _TOGETHER * HOP_NS
    if close.sum() >= _WHOLE * max(len(rows_a), len(rows_b)):
        return rows_a, rows_b
    by_end_a, by_end_b = rows_a[np.argsort(end_a[rows_a])], rows_b[np.argsort(end_b[rows_b])]
    same = np.zeros(max(len(end_a), len(end_b)), np.int64)
    i, j = pair_by_time(
        end_a[by_end_a], same[by_end_a], end_b[by_end_b], same[by_end_b], _TOGETHER * HOP_NS
    )
    return np.sort(by_end_a[i]), np.sort(by_end_b[j])


def _completed(job: JobCalls, found: list[Channel], streams: list[list[IntArray]]) -> list[Channel]:
    """The communicators with the streams that found none, where they fit one.

    Ends that scatter more than those of the closest members tell another replica of a group from
    its own members, and members of an uneven all-to-all do not end together either. A stream
    without any other group is therefore taken for a member of the one that it fits best.
    """
    taken = {(device, rows.tobytes()) for channel in found for device, rows in channel.members}
    completed = list(found)
    for device, streams_of in enumerate(streams):
        for rows in streams_of:
            if (device, rows.tobytes()) in taken:
                continue
            best: tuple[float, int] | None = None
            for number, channel in enumerate(completed):
                if any(device == member for member, _ in channel.members):
                    continue
                links = [
                    _link(job, other, theirs, device, rows) for other, theirs in channel.members
                ]
                if any(link is None for link in links):
                    continue
                share = min(link[0] for link in links if link is not None)
                if share >= _FITS and (best is None or share > best[0]):
                    best = share, number
            if best is None:
                continue
            channel = completed[best[1]]
            members = sorted([*channel.members, (device, rows)], key=lambda member: member[0])
            ranks = tuple(sorted({job.participants[d].rank for d, _ in members}))
            completed[best[1]] = replace(channel, members=members, ranks=ranks, size=len(members))
    return completed


def _together(
    job: JobCalls, a: int, rows_a: IntArray, b: int, rows_b: IntArray
) -> tuple[IntArray, IntArray, Line]:
    """Rows that two devices have in common, and what converts the second's clock to the first's."""
    shared = by_wall_clock(job.participants[a], job.participants[b])
    i, j = pairs(job.calls[a], rows_a, job.calls[b], rows_b, shared)
    if not len(i):
        return i, j, shared or Line()
    end_a, end_b = job.calls[a].end_ns[i], job.calls[b].end_ns[j]
    order = np.argsort(end_b, kind="stable")
    return i, j, fit(end_b[order], (end_a - end_b)[order], 2, shared)


def _link(
    job: JobCalls, a: int, rows_a: IntArray, b: int, rows_b: IntArray
) -> tuple[float, float] | None:
    """(share of the operations that match, residual in ns), or None when they do not fit."""
    first, second = job.participants[a], job.participants[b]
    shared = by_wall_clock(first, second)
    i, j, line = _together(job, a, rows_a, b, rows_b)
    fewest = min(len(rows_a), len(rows_b))
    if len(i) < max(1, min(_MIN_PAIRS, fewest)) or len(i) < _MIN_SHARE * fewest:
        return None
    end_a, end_b = job.calls[a].end_ns[i], job.calls[b].end_ns[j]
    one_clock = first.clock == second.clock or (first.machine and first.machine == second.machine)
    if one_clock and shared is not None and _apart(line, shared, end_b) > SHARED_NS:
        return None
    firm = kinds.all_wait(job.calls[a].kind[i])
    begins = np.maximum(job.calls[a].start_ns[i], line.to(job.calls[b].start_ns[j]))
    ends = np.minimum(end_a, line.to(end_b))
    if job.calls[a].point_to_point[i].all():
        # a send may end before its receive begins; those that waited for each other end together
        together = float((np.abs(end_a - line.to(end_b)) <= _TOGETHER * HOP_NS).mean())
        return (together, line.residual_ns) if together >= _MIN_SHARE else None
    impossible = float((firm & (ends + HOP_NS < begins)).mean())
    if impossible > _MAX_IMPOSSIBLE:
        return None
    return (1 - impossible) * len(i) / fewest, line.residual_ns


def _apart(line: Line, shared: Line, time_ns: IntArray) -> float:
    edges = np.array([time_ns.min(), time_ns.max()])
    return float(np.abs(line.to(edges) - shared.to(edges)).max())
