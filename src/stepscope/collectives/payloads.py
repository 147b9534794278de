"""What NCCL itself states of a collective: communicator and message size.

NCCL annotates its calls with NVTX ranges of the domain ``NCCL``, whose payload holds both (NCCL's
``nvtx_payload_schemas.h``). Stepscope's collector keeps payloads; exports of Nsight Systems hold
them as JSON text or not at all. A call enqueues its kernel inside its range, unless it is part of a
group of calls, whose kernel nothing is said about here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.collectives import kinds
from stepscope.collectives.calls import Calls, GroupName, JobCalls, Participant
from stepscope.intervals import stab_innermost
from stepscope.intervals.distinct import among, distinct_values, with_inverse
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
        op: its communication kernels, rows of ``p.lane.ops``.
    """
    communicator = np.full(len(op), -1, np.int64)
    size = np.full(len(op), -1, np.int64)
    found = Stated(communicator, size, [])
    call = p.lane.call[op] if len(op) else np.empty(0, np.int64)
    if not (call >= 0).any():
        return found
    ranges = p.read("range", *_COLUMNS)
    if not len(ranges):
        return found
    own = ranges.take(
        (ranges["process_id"] == p.lane.process_id)
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
    api = p.lane.host.api
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


def with_payloads(job: JobCalls) -> JobCalls:
    """The job with what NCCL states, where the framework says nothing.

    Communicators are used only where every collective has one, else members of one collective would
    stand in different groups. Their size is the number of ranks seen in them, if the capture holds
    all ranks of the job.
    """
    lacking = any(len(calls) and (calls.bytes < 0).any() for calls in job.calls)
    if not lacking:
        return job
    told = [stated(p, calls.op) for p, calls in zip(job.participants, job.calls, strict=True)]
    if not any((s.bytes >= 0).any() for s in told):
        return job
    members = _members(job.participants, told)
    world = max((p.world_size or 0 for p in job.participants), default=0)
    whole = world > 0 and len({p.rank for p in job.participants}) == world
    grouped = all(
        ((s.communicator >= 0) | calls.point_to_point).all() and (calls.group < 0).all()
        for s, calls in zip(told, job.calls, strict=True)
    )
    groups = list(job.groups)
    code_of: dict[str, int] = {}
    if grouped:
        for name, ranks in members.items():
            code_of[name] = len(groups)
            groups.append(GroupName(tuple(sorted(ranks)) if whole else (), name))
    calls = [
        _completed(own, s, members if whole else {}, code_of)
        for own, s in zip(job.calls, told, strict=True)
    ]
    return JobCalls(job.participants, calls, groups)


def _members(participants: Sequence[Participant], told: Sequence[Stated]) -> dict[str, set[int]]:
    members: dict[str, set[int]] = {}
    for p, s in zip(participants, told, strict=True):
        for number in distinct_values(s.communicator[s.communicator >= 0]).tolist():
            members.setdefault(s.names[number], set()).add(p.rank)
    return members


def _completed(
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
