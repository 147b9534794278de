"""Sends and receives: an exchange among all ranks, or neighbours in a pipeline?

NCCL has one kernel for both. Where neither the framework nor a range says which it is (Nsight
Systems without NVTX), or the program itself sends and receives (a ring), the pattern does. In an
all-to-all, as in any exchange among all ranks, every rank runs the same program: the same number of
kernels lies between one exchange and the next on all of them, and no rank's exchange ends before
every rank's has begun. The stages of a pipeline are different programs (one has the embedding,
another the loss) in different phases, and each exchange binds two of them only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from stepscope.collectives import kinds
from stepscope.collectives.calls import JobCalls
from stepscope.collectives.clocks import HOP_NS, fit
from stepscope.collectives.pairs import by_wall_clock
from stepscope.trace.frame import IntArray

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


def with_exchanges(job: JobCalls) -> JobCalls:
    """The job with exchanges among all ranks told from sends and receives between neighbours."""
    if len(job.participants) < 2:
        return job
    rows = [np.flatnonzero(calls.point_to_point)[:_COMPARED] for calls in job.calls]
    devices = [device for device, own in enumerate(rows) if len(own)]
    if len(devices) < 2 or min(len(rows[device]) for device in devices) < _LEAST:
        return job
    between = [_kernels_between(job, device, rows[device]) for device in range(len(rows))]
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


def _kernels_between(job: JobCalls, device: int, rows: IntArray) -> IntArray:
    """How many compute kernels begin between one exchange and the next."""
    lane = job.participants[device].lane
    begins = lane.ops["start_ns"][lane.is_compute]
    at: IntArray = np.searchsorted(begins, job.calls[device].start_ns[rows]).astype(np.int64)
    return np.diff(at)


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
