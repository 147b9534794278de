"""Pairs of operations of two ranks, and whether sends and receives are exchanges of all ranks.

NCCL has one kernel for an exchange among all ranks and for neighbours in a pipeline. Where neither
the framework nor a range says which it is (Nsight Systems without NVTX), or the program itself
sends and receives (a ring), the pattern does. In an all-to-all, as in any exchange among all ranks,
every rank runs the same program: the same number of kernels lies between one exchange and the next
on all of them, and no rank's exchange ends before every rank's has begun. The stages of a pipeline
are different programs (one has the embedding, another the loss) in different phases, and each
exchange binds two of them only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from stepscope.collectives import kinds
from stepscope.collectives.calls import Calls, JobCalls, Participant
from stepscope.collectives.clocks import HOP_NS, Line, find_line, fit, pair_by_time
from stepscope.intervals.distinct import among, where_common
from stepscope.trace.frame import IntArray

LOOSE_NS: Final = 1_000_000
"""How far ends may lie apart before the clocks are known well, and in operations with a root,
whose members need not end together."""

UNBOUND_NS: Final = 60_000_000_000
"""The same for sends and receives whose order decides: a send may end long before its receive
begins, because its data waits in a buffer."""


def pair_line(
    job: JobCalls, a: int, rows_a: IntArray, b: int, rows_b: IntArray, ranks: int
) -> Line | None:
    """What converts the clock of device ``b`` to that of ``a``; None when nothing matches."""
    shared = by_wall_clock(job.participants[a], job.participants[b])
    i, j = pairs(job.calls[a], rows_a, job.calls[b], rows_b, shared)
    if not len(i):
        return None
    firm = kinds.all_wait(job.calls[a].kind[i])
    if firm.sum() >= 3:
        i, j = i[firm], j[firm]
    end_a, end_b = job.calls[a].end_ns[i], job.calls[b].end_ns[j]
    order = np.argsort(end_b, kind="stable")
    return fit(end_b[order], (end_a - end_b)[order], ranks, shared)


def pairs(
    a: Calls, rows_a: IntArray, b: Calls, rows_b: IntArray, shared: Line | None
) -> tuple[IntArray, IntArray]:
    """Rows of the operations that two devices have in common, before their clocks are known."""
    if (a.sequence[rows_a] >= 0).all() and (b.sequence[rows_b] >= 0).all():
        i, j = pairs_by_number(a, rows_a, b, rows_b)
        if len(i):
            return i, j
    by_end_a, by_end_b = np.argsort(a.end_ns[rows_a]), np.argsort(b.end_ns[rows_b])
    rows_a, rows_b = rows_a[by_end_a], rows_b[by_end_b]
    prior = shared.offset_ns if shared else None
    token_a, token_b = a.token[rows_a], b.token[rows_b]
    if not among(token_b, token_a).any():  # they look different, as uneven pieces do
        token_a, token_b = a.kind[rows_a], b.kind[rows_b]
    line = find_line(a.end_ns[rows_a], token_a, b.end_ns[rows_b], token_b, prior)
    if line is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    between = None
    if a.point_to_point[rows_a].all():
        between = UNBOUND_NS
    i, j = pair_by_time(
        a.end_ns[rows_a], token_a, line.to(b.end_ns[rows_b]), token_b, LOOSE_NS, between
    )
    return rows_a[i], rows_b[j]


def pairs_by_number(
    a: Calls, rows_a: IntArray, b: Calls, rows_b: IntArray
) -> tuple[IntArray, IntArray]:
    """Pairs by sequence number, which the framework counted."""
    i, j = where_common(_numbered(a, rows_a), _numbered(b, rows_b))
    same = a.kind[rows_a[i]] == b.kind[rows_b[j]]
    return rows_a[i[same]], rows_b[j[same]]


def _numbered(calls: Calls, rows: IntArray) -> IntArray:
    """Sequence number and, where several operations share one, which of them."""
    number = calls.sequence[rows]
    order = np.argsort(number, kind="stable")
    first = np.searchsorted(number[order], number[order], side="left")
    again = np.empty(len(rows), np.int64)
    again[order] = np.arange(len(rows)) - first
    return number * (int(again.max(initial=0)) + 1) + again


def by_wall_clock(a: Participant, b: Participant) -> Line | None:
    """What the wall clocks say converts times of ``b`` to those of ``a``; None where unknown."""
    if a.clock == b.clock:
        return Line()
    if a.epoch_ns is None or b.epoch_ns is None:
        return None
    return Line(float(b.epoch_ns - a.epoch_ns))


_LEAST: Final = 4
"""Fewer exchanges show no pattern."""

_SAME: Final = 0.98
"""Share of the stretches between exchanges that must hold the same number of kernels: of a pipeline
with two stages, those at the begin and the end of a step differ, and all by embedding and loss."""

_BOUND: Final = 0.95
"""Share of the exchanges that must overlap on both ranks."""

_LAGS: Final = 64
"""How many exchanges more one capture may hold at its begin."""

_COMPARED: Final = 2048
_PEERS: Final = 8


def with_exchanges(job: JobCalls, before: Sequence[IntArray] | None = None) -> JobCalls:
    """The job with exchanges among all ranks told from sends and receives between neighbours.

    Args:
        job: the calls of all ranks.
        before: compute kernels that began before each call of each rank; counted in the captures
            where it is not given.
    """
    if len(job.participants) < 2:
        return job
    rows = [np.flatnonzero(calls.point_to_point)[:_COMPARED] for calls in job.calls]
    devices = [device for device, own in enumerate(rows) if len(own)]
    if len(devices) < 2 or min(len(rows[device]) for device in devices) < _LEAST:
        return job
    if before is None:
        before = [
            kernels_before(p, calls) for p, calls in zip(job.participants, job.calls, strict=True)
        ]
    between = [np.diff(count[own]) for count, own in zip(before, rows, strict=True)]
    seed = devices[0]
    if not all(_lags(between[seed], between[device]) for device in devices[1:]):
        return job
    for place, device in enumerate(devices):
        peers = [*devices[place + 1 :], *devices[:place]][:_PEERS]
        if not any(_bound(job, rows, between, device, peer) for peer in peers):
            return job
    common = 1 + max(int(calls.token.max(initial=-1)) for calls in job.calls)
    changed = []
    for calls in job.calls:
        among_all = calls.point_to_point
        changed.append(
            replace(
                calls,
                # who says that it sends and receives does so itself: an all-to-all has its own name
                kind=np.where(
                    among_all,
                    np.where(calls.stated, kinds.CODE["exchange"], kinds.CODE["all_to_all"]),
                    calls.kind,
                ),
                token=np.where(among_all, common, calls.token),
                # numbers and groups are those of messages between two
                group=np.where(among_all, -1, calls.group),
                sequence=np.where(among_all, -1, calls.sequence),
            )
        )
    return JobCalls(job.participants, changed, job.groups)


def kernels_before(p: Participant, calls: Calls) -> IntArray:
    """How many compute kernels begin before each call of a rank."""
    begins = p.gpu.ops["start_ns"][p.gpu.is_compute]
    count: IntArray = np.searchsorted(begins, calls.start_ns).astype(np.int64)
    return count


def _lags(a: IntArray, b: IntArray) -> list[int]:
    """By how many exchanges ``b`` may be shifted so that both hold the same between them."""
    found = []
    for lag in sorted(range(-_LAGS, _LAGS + 1), key=abs):
        low, high = max(0, lag), min(len(a), len(b) + lag)
        if high - low < max(_LEAST - 1, min(len(a), len(b)) // 2):
            continue
        same = np.equal(a[low:high], b[low - lag : high - lag])
        # where nothing at all lies between them, equal counts say nothing
        if same.mean() >= _SAME and a[low:high].any():
            found.append(lag)
    return found


def _bound(
    job: JobCalls, rows: list[IntArray], between: list[IntArray], first: int, second: int
) -> bool:
    """Whether no exchange of one of two devices ends before that of the other has begun."""
    a, b = job.calls[first], job.calls[second]
    shared = by_wall_clock(job.participants[first], job.participants[second])
    for lag in _lags(between[first], between[second]):
        low, high = max(0, lag), min(len(rows[first]), len(rows[second]) + lag)
        i, j = rows[first][low:high], rows[second][low - lag : high - lag]
        line = fit(b.end_ns[j], a.end_ns[i] - b.end_ns[j], 2, shared)
        begins = np.maximum(a.start_ns[i], line.to(b.start_ns[j]))
        ends = np.minimum(a.end_ns[i], line.to(b.end_ns[j]))
        if float((begins <= ends + HOP_NS).mean()) >= _BOUND:
            return True
    return False
