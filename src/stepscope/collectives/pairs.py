"""Pairs of operations of two ranks, before their clocks are known."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.collectives import kinds
from stepscope.collectives.calls import Calls, JobCalls, Participant
from stepscope.collectives.clocks import Line, find_line, fit, pair_by_time
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
