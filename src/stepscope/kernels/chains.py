"""Work that waits for memory: chains of small operations, and steps that are made of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.intervals.distinct import among, with_first
from stepscope.kernels.repair import Repair, scaled
from stepscope.kernels.view import FAMILY_NAMES, Kernels
from stepscope.trace.frame import BoolArray, IntArray

CHAIN = 4
"""Elementwise operations or reductions in a row that a layer of a framework does not leave behind:
activation, residual and scale make three. More are a function spelled out in primitives."""

DOMINATED = 0.7
"""Share of the compute time from which on memory-bound kernels dominate a step. Transformers spend
20 to 40 % in them, convolutional networks with batch normalisation some 50 %."""

NEAR_BANDWIDTH = 0.5
"""Share of the peak memory bandwidth from which on a kernel counts as waiting for memory."""

_MERGEABLE = ("elementwise", "dropout", "reduction")
_AROUND = (*_MERGEABLE, "copy", "random", "softmax", "normalisation", "loss", "index")
WAITING = (*_AROUND, "pooling")
"""Families that do next to no arithmetic for each byte."""


@dataclass(frozen=True)
class Chains:
    """Chains in the steady window.

    Attributes:
        repair: their kernels, each chain as long as its longest kernel.
        chains: number of them.
    """

    repair: Repair
    chains: int


@dataclass(frozen=True)
class MemoryBound:
    """A step that is made of memory-bound kernels.

    Attributes:
        repair: the kernels, with half the traffic.
        share: their part of the compute time.
        attained: bytes/s that those attain whose traffic is known.
    """

    repair: Repair
    share: float
    attained: float


def chains(kernels: Kernels, taken: BoolArray) -> Chains | None:
    """Runs of memory-bound kernels with at least ``CHAIN`` mergeable ones.

    Args:
        kernels: the device's kernels.
        taken: operations that belong to another finding already.
    """
    order = kernels.order[(kernels.lane.is_compute & kernels.steady)[kernels.order]]
    family = kernels.family[order]
    free = ~taken[order] & ~kernels.in_phase("optimizer")[order]
    around = among(family, [FAMILY_NAMES.index(f) for f in _AROUND]) & free
    mergeable = among(family, [FAMILY_NAMES.index(f) for f in _MERGEABLE]) & around
    # a run ends where something else stands, and where the thread that launches changes
    thread = kernels.attribution.thread[order]
    new_run = np.ones(len(order), bool)
    new_run[1:] = ~(around[1:] & around[:-1] & (thread[1:] == thread[:-1]))
    run = np.cumsum(new_run) - 1
    rows, run = order[mergeable], run[mergeable]
    if not len(rows):
        return None
    counts = np.bincount(run)
    long_ = counts[run] >= CHAIN
    rows, run = rows[long_], run[long_]
    if not len(rows):
        return None
    duration = kernels.duration_ns
    longest = np.zeros(int(run.max()) + 1, np.int64)
    np.maximum.at(longest, run, duration[rows])
    is_longest = np.flatnonzero(duration[rows] == longest[run])
    stays = np.zeros(len(rows), bool)
    stays[is_longest[with_first(run[is_longest])[1]]] = True
    by_row = np.argsort(rows, kind="stable")
    rows, stays = rows[by_row], stays[by_row]
    old = duration[rows]
    new = np.where(stays, old, 0)
    before, after = int(old.sum()), int(new.sum())
    repair = Repair(
        rows=rows,
        old_ns=old,
        new_ns=new,
        merged=~stays,
        idle_ns=np.zeros(len(rows), np.int64),
        low_ns=after,
        high_ns=(before + after) // 2,
    )
    return Chains(repair, int(stays.sum()))


def memory_bound(kernels: Kernels, taken: BoolArray) -> MemoryBound | None:
    """Memory-bound kernels where they dominate the step and run near the memory's speed.

    Args:
        kernels: the device's kernels.
        taken: operations that belong to another finding already.
    """
    duration = kernels.duration_ns
    compute = int(duration[kernels.lane.is_compute & kernels.steady].sum())
    waiting = kernels.in_family(*WAITING) & kernels.steady & ~taken
    waiting &= ~kernels.in_phase("optimizer")
    rows = np.flatnonzero(waiting)
    total = int(duration[rows].sum())
    if not kernels.bandwidth or not compute or total < DOMINATED * compute:
        return None
    known = rows[kernels.moved_bytes[rows] > 0]
    known_ns = int(duration[known].sum())
    if not known_ns:
        return None
    attained = float(kernels.moved_bytes[known].sum()) / known_ns * 1e9
    if attained < NEAR_BANDWIDTH * kernels.bandwidth:
        return None
    repair = Repair(
        rows=rows,
        old_ns=duration[rows],
        new_ns=scaled(duration[rows], 0.5),
        merged=np.zeros(len(rows), bool),
        idle_ns=np.zeros(len(rows), np.int64),
        low_ns=total // 4,
        high_ns=total * 3 // 4,
    )
    return MemoryBound(repair, total / compute, attained)


def taken_rows(kernels: Kernels, repairs: list[IntArray]) -> BoolArray:
    """Mask of the operations that any of some repairs changes."""
    taken = np.zeros(len(kernels.lane.ops), bool)
    for rows in repairs:
        taken[rows] = True
    return taken
