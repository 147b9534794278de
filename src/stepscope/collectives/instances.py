"""Every collective on every rank, and what all-to-alls carry between each pair of ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stepscope.collectives import kinds
from stepscope.collectives.calls import Participant, described_by
from stepscope.collectives.job import Collectives, ranks_text
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.frame import Frame, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

INSTANCES: Final = {
    "instance": "number of the collective inside the job: the same on all its ranks",
    "step": "shared steady step that its last start lies in; null outside",
    "kind": "all_reduce, all_gather, ..., send_recv",
    "group": "ranks that take part",
    "group_size": "ranks that should take part",
    "members": "ranks found",
    "rank": "the rank",
    "device": "device ordinal inside its process",
    "stream": "stream of the kernel",
    "dtype": "element type; null where the capture does not tell",
    "start_ns": "begin on the job's clock, ns",
    "duration_ns": "length of the kernel",
    "lateness_ns": "from the first rank's begin to this rank's",
    "skew_ns": "from the first rank's begin to the last rank's",
    "waiting_ns": "from this rank's begin until the last rank has begun",
    "transfer_ns": "the rest of its time",
    "in_bytes": "bytes that this rank gives; null where the capture does not tell",
    "out_bytes": "bytes that this rank gets; null where the capture does not tell",
    "message_bytes": "message size as nccl-tests counts it; null where the capture does not tell",
    "algorithm_bandwidth": "message size over the instance's transfer time (the least of its "
    "ranks), bytes a second; null where one is unknown",
    "bus_bandwidth": "the same as the hardware sees it (nccl-tests), bytes a second",
    "last_rank": "rank that began last",
    "gpu_op_id": "gpu_op.id of the kernel",
}
"""Columns of :func:`instance_table`, and what they mean."""

SPLITS: Final = {
    "group": "ranks that take part",
    "from_rank": "rank that sends",
    "to_rank": "rank that receives",
    "operations": "all-to-alls that carried it, in the steady steps that all ranks share",
    "bytes": "sum over them",
    "stated_by": "from whose capture it is known: sender, or receiver where that one is missing",
}
"""Columns of :func:`split_table`, and what they mean."""

_SAID: Final = (
    *("process_id", "correlation_id", "dtype", "in_elements", "out_elements"),
    *("in_splits", "out_splits"),
)


@dataclass(frozen=True)
class _Described:
    """What the captures say of matched collectives; one value each, in the order of the facts.

    Attributes:
        dtype: element type; empty where unknown.
        given: bytes that the rank gives; -1 where unknown.
        taken: bytes that it gets; -1 where unknown.
        in_splits: parts sent, as text.
        out_splits: parts received, as text.
    """

    dtype: list[str]
    given: IntArray
    taken: IntArray
    in_splits: list[str]
    out_splits: list[str]


def _described(c: Collectives) -> _Described:
    found = _Described([], np.empty(0, np.int64), np.empty(0, np.int64), [], [])
    given: list[IntArray] = []
    taken: list[IntArray] = []
    for p, rank in zip(c.participants, c.matched.ranks, strict=True):
        stated = p.read("collective", *_SAID)
        row = described_by(stated, p.gpu, rank.op)
        found.dtype.extend(_texts(stated, "dtype", row))
        found.in_splits.extend(_texts(stated, "in_splits", row))
        found.out_splits.extend(_texts(stated, "out_splits", row))
        width = np.array([kinds.element_bytes(text) for text in found.dtype[-len(row) :]], np.int64)
        for parts, column in ((given, "in_elements"), (taken, "out_elements")):
            count = np.append(stated[column], -1)[row] if len(stated) else np.full(len(row), -1)
            parts.append(np.where((count >= 0) & (width > 0), count * width, -1))
    return _Described(
        found.dtype,
        np.concatenate(given) if given else found.given,
        np.concatenate(taken) if taken else found.taken,
        found.in_splits,
        found.out_splits,
    )


def _texts(stated: Frame, column: str, rows: IntArray) -> list[str]:
    if not len(stated):
        return [""] * len(rows)
    texts = [*stated.texts[column], ""]
    codes = np.append(stated[column], -1)[rows]
    return [texts[code] for code in codes.tolist()]


def instance_table(c: Collectives | None) -> pa.Table:
    """One row a collective and rank, in the order in which the collectives began."""
    import pyarrow as pa

    if c is None:
        return pa.table({name: pa.array([], pa.int64()) for name in INSTANCES})
    facts, matched = c.facts, c.matched
    instances, of = matched.instances, facts.instance
    described = _described(c)
    ranks = np.array([rank.rank for rank in matched.ranks], np.int64)
    step = c.step_of(instances.last_start_ns)[of]
    start = np.concatenate(
        [
            rank.clock.to(e.gpu.ops["start_ns"][rank.op])
            for e, rank in zip(c.explained, matched.ranks, strict=True)
        ]
    ).astype(np.int64)
    stream, op_id = (
        np.concatenate(
            [e.gpu.ops[name][r.op] for e, r in zip(c.explained, matched.ranks, strict=True)]
        )
        for name in ("stream", "id")
    )
    size = instances.bytes
    least = np.full(len(instances), np.iinfo(np.int64).max)
    np.minimum.at(least, of, facts.transfer)
    known = (size >= 0) & (least > 0) & (least < np.iinfo(np.int64).max)
    # one rank alone: its time may be waiting for the others
    known &= instances.members > 1
    speed = np.where(known, size * 1e9 / np.maximum(least, 1), 0.0)
    factor = kinds.bus_factor(instances.kind, instances.size)
    groups = pa.array([ranks_text(channel.ranks) for channel in matched.channels], pa.string())
    columns = {
        "instance": of,
        "step": pa.array(step, pa.int64(), mask=step < 0),
        "kind": pa.array(kinds.KINDS).take(pa.array(instances.kind[of])),
        "group": groups.take(pa.array(instances.channel[of])),
        "group_size": instances.size[of],
        "members": instances.members[of],
        "rank": ranks[facts.device],
        "device": np.array([r.device for r in matched.ranks], np.int64)[facts.device],
        "stream": stream.astype(np.int64),
        "dtype": pa.array([text or None for text in described.dtype], pa.string()),
        "start_ns": start,
        "duration_ns": facts.end - facts.start,
        "lateness_ns": facts.lateness,
        "skew_ns": (instances.last_start_ns - instances.first_start_ns)[of],
        "waiting_ns": facts.waiting,
        "transfer_ns": facts.transfer,
        "in_bytes": _unless_negative(described.given),
        "out_bytes": _unless_negative(described.taken),
        "message_bytes": _unless_negative(size[of]),
        "algorithm_bandwidth": pa.array(np.round(speed)[of].astype(np.int64), mask=~known[of]),
        "bus_bandwidth": pa.array(np.round(speed * factor)[of].astype(np.int64), mask=~known[of]),
        "last_rank": ranks[instances.last[of]],
        "gpu_op_id": op_id.astype(np.int64),
    }
    order = np.lexsort((ranks[facts.device], of, instances.first_start_ns[of]))
    return pa.table({name: columns[name] for name in INSTANCES}).take(pa.array(order))


def _unless_negative(values: IntArray) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.int64(), mask=values < 0)


def split_table(c: Collectives | None) -> pa.Table:
    """What all-to-alls carried from rank to rank; without rows where no capture tells.

    A sender states what it sends to whom. What a rank without capture sent is known from those that
    received it.
    """
    import pyarrow as pa

    sent: dict[tuple[str, int, int], list[int]] = {}
    received: dict[tuple[str, int, int], list[int]] = {}
    if c is not None:
        _collect(c, sent, received)
    rows = [(*key, *sums, "sender") for key, sums in sent.items()]
    rows += [
        (group, source, to, *sums, "receiver")
        for (group, source, to), sums in received.items()
        if (group, source, to) not in sent
    ]
    rows.sort(key=lambda row: row[:3])
    texts = ("group", "stated_by")
    return pa.table(
        {
            name: pa.array([row[at] for row in rows], pa.string() if name in texts else pa.int64())
            for at, name in enumerate(SPLITS)
        }
    )


def _collect(
    c: Collectives,
    sent: dict[tuple[str, int, int], list[int]],
    received: dict[tuple[str, int, int], list[int]],
) -> None:
    """Add up (operations, bytes) by group, sender and receiver, as each side states them."""
    facts, instances = c.facts, c.matched.instances
    described = _described(c)
    inside = c.step_of(instances.last_start_ns)[facts.instance] >= 0
    if not inside.any():  # a capture without steps
        inside[:] = True
    wanted = inside & (instances.kind[facts.instance] == kinds.CODE["all_to_all"])
    stated = [
        payload_parts(p, rank.op) for p, rank in zip(c.participants, c.matched.ranks, strict=True)
    ]
    first = np.searchsorted(facts.device, np.arange(len(stated)))
    for row in np.flatnonzero(wanted).tolist():
        channel = c.matched.channels[int(instances.channel[facts.instance[row]])]
        group, ranks = ranks_text(channel.ranks), list(channel.ranks)
        device = int(facts.device[row])
        own = c.matched.ranks[device].rank
        by_nccl = stated[device].get(row - int(first[device]), ({}, {}))
        for text, size, peers, into, outwards in (
            (described.in_splits[row], int(described.given[row]), by_nccl[0], sent, True),
            (described.out_splits[row], int(described.taken[row]), by_nccl[1], received, False),
        ):
            parts = parts_of(text, size, len(ranks))
            if not parts and peers.keys() <= set(range(len(ranks))):
                parts = [peers.get(peer, 0) for peer in range(len(ranks))] if peers else []
            for other, part in zip(ranks, parts, strict=False):
                key = (group, own, other) if outwards else (group, other, own)
                sums = into.setdefault(key, [0, 0])
                sums[0] += 1
                sums[1] += part


def parts_of(text: str, size: int, count: int) -> list[int]:
    """Bytes of each part of an all-to-all's message; empty where it cannot be told.

    Args:
        text: number of rows of each part, as JSON text; ``[]`` where all are equal.
        size: bytes of the whole message.
        count: number of ranks.
    """
    try:
        rows = json.loads(text) if text else None
    except (ValueError, RecursionError):  # shortened by the profiler, with dots
        return []
    if not isinstance(rows, list) or size < 0 or not count:
        return []
    if not rows:
        return [size // count] * count
    if len(rows) != count or not all(isinstance(r, int) and r >= 0 for r in rows):
        return []
    whole = sum(rows)
    # all rows of the tensor have the same size
    return [size * r // whole if whole else 0 for r in rows]


def payload_parts(p: Participant, op: IntArray) -> dict[int, tuple[dict[int, int], dict[int, int]]]:
    """What NCCL's own ranges state of the sends and receives that kernels consist of.

    NCCL annotates each ``ncclSend`` and ``ncclRecv`` with its size and peer. Those of a thread
    since its last communication kernel belong to the next one that it launches.

    Args:
        p: the device.
        op: rows of its communication kernels.

    Returns:
        By position in ``op``: bytes sent and bytes received, by rank inside the communicator.
    """
    ranges = p.read("range", "process_id", "thread_id", "start_ns", "name", "payload")
    found: dict[int, tuple[dict[int, int], dict[int, int]]] = {}
    if not len(ranges) or not len(p.gpu.host.api):
        return found
    sides = np.array([_SIDES.get(text, -1) for text in [*ranges.texts["name"], ""]], np.int64)
    side = sides[ranges["name"]]
    mine = np.flatnonzero(
        (ranges["process_id"] == p.gpu.process_id) & (ranges["payload"] >= 0) & (side >= 0)
    )
    call = p.gpu.call[op]
    api = p.gpu.host.api
    for thread in distinct_values(ranges["thread_id"][mine]).tolist():
        rows = mine[ranges["thread_id"][mine] == thread]
        launched = np.flatnonzero((call >= 0) & (api["thread_id"][call] == thread))
        launched = launched[np.argsort(api["start_ns"][call[launched]], kind="stable")]
        at = np.searchsorted(api["start_ns"][call[launched]], ranges["start_ns"][rows])
        for row, number in zip(rows.tolist(), at.tolist(), strict=True):
            if number == len(launched):
                continue  # its kernel was not recorded
            size, peer = _send(ranges.text("payload", row))
            if size >= 0 and peer >= 0:
                parts = found.setdefault(int(launched[number]), ({}, {}))[int(side[row])]
                parts[peer] = parts.get(peer, 0) + size
    return found


_SIDES: Final = {"ncclSend": 0, "ncclRecv": 1}


def _send(text: str) -> tuple[int, int]:
    """Size and peer that a payload states; -1 where it lacks them."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return -1, -1
    if not isinstance(fields, dict):
        return -1, -1
    size = peer = -1
    for key, value in fields.items():
        if not str(value).isdecimal():
            continue
        if key.lower().startswith("message size"):
            size = int(value)
        elif key.lower().startswith("peer"):
            peer = int(value)
    return size, peer
