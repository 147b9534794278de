"""Communication hidden behind compute: what it may run beside, and what that costs the compute."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.intervals import overlap_per_window, union
from stepscope.simulation.changes import Bound, OverlapCommunication, WithoutTransfers
from stepscope.simulation.program import LAUNCH, MARK, Program
from stepscope.simulation.subject import Subject, on_own_stream, without_items
from stepscope.trace.frame import BoolArray, IntArray

SLOWED: Final[dict[Bound, float]] = {"low": 0.1, "expected": 0.45, "high": 0.8}
"""Kernels beside communication share SMs and memory with it: of its time so much is added to them.
0.12 to 0.64 was found in jobs of two and four H200, 0.53 and 0.54 in two of them that were timed
with communication behind the backward pass and beside it; large persistent GEMMs lose most."""

ON_THE_PATH: Final[dict[Bound, float]] = {"low": 0.35, "expected": 0.75, "high": 1.0}
"""The same of what the next kernel works on: to have other work meanwhile, the batch is cut, and
products of a part of it fill the device less well. Of that, cutting gives back between two thirds
and nothing; on two H200, a tensor-parallel forward pass in four parts took longer than in one."""

SENT_LESS: Final[dict[Bound, float]] = {"low": 0.0, "expected": 0.1, "high": 0.8}
"""The same of what neither sums gradients nor is known to stand on the path: it is rather not sent
than sent beside compute. Of what was exposed 0.94 to 1.14 was gained in four jobs whose ranks then
sent no more than the others need (strips' borders, heads before they are repeated)."""

BUCKETS: Final = 16
"""Gradients that are reduced in one piece are cut into so many: buckets of 25 MiB hold a sixteenth
of 100 million parameters in single precision, and less of a larger model."""

_BEFORE_BACKWARD: Final = 1 / 3
"""Share of forward and backward pass that is over when the first gradient is ready: two of three
GEMMs are in the backward pass."""

_HEAVY: Final = 0.01
"""Behind the last reduction that takes more of all of a step come no gradients: a loss, a norm."""

_REDUCTIONS: Final = ("AllReduce", "ReduceScatter")


def overlap_communication(subject: Subject, change: OverlapCommunication, bound: Bound) -> Subject:
    """Nothing waits for communication before it must: at the latest the next step does.

    What was not beside compute and is now slows that compute. Sums of gradients begin as the
    backward pass makes them, and the update waits for them.
    """
    program = subject.program
    moved = program.communication
    gradients = change.of == "gradients"
    if (bound == "high" and not gradients) or not moved.any():
        return subject
    apart = on_own_stream(subject, moved)
    items = set(np.flatnonzero(moved).tolist())
    m = len(program)
    depends = {
        item: tuple(pair for pair in on if item in items or pair[0] % m not in items)
        for item, on in apart.program.depends.items()
    }
    beside = np.flatnonzero(moved)
    before = beside.copy()  # what each begins beside
    hosted = program.hosted.copy()
    if gradients:
        for at, on in _as_they_are_ready(subject).items():
            depends[at] = on
            before[np.searchsorted(beside, at)] = on[0][0]
            hosted[at] = False  # it is enqueued with what it waits for, and no later
    if bound != "low":
        for item, source in _needed(subject, gradients):
            depends[item] = (*depends.get(item, ()), (source, 0))
    share = {"gradients": SLOWED, "path": ON_THE_PATH, "any": SENT_LESS}[change.of][bound]
    more = np.rint(share * _exposed_ns(subject, beside)).astype(np.int64)
    duration = _slowed(program, before, more)
    return apart.becomes(
        depends={item: on for item, on in depends.items() if on},
        duration_ns=duration,
        hosted=hosted,
    )


_OTHER_END: Final[dict[Bound, Bound]] = {"low": "high", "expected": "expected", "high": "low"}


def without_transfers(
    subject: Subject, change: WithoutTransfers, bound: Bound
) -> tuple[Subject, int]:
    """Certain transfers are gone, and how many: the compute beside is slowed no more."""
    gone = subject.of_ids(change.ops, change.rank)
    if not gone.any():
        return subject, 0
    program, ops = subject.program, subject.gpu.ops
    rows = program.op[gone & program.communication]  # and not the copies of what they move
    busy = union(ops["start_ns"][rows], ops["end_ns"][rows])
    plain = np.flatnonzero((program.op >= 0) & ~program.communication)
    own = program.op[plain]
    beside = overlap_per_window(busy, ops["start_ns"][own], ops["end_ns"][own])
    duration = program.duration_ns.copy()
    share = SLOWED[_OTHER_END[bound]]  # what slows most, leaves most when it is gone
    duration[plain] -= np.rint(share * np.minimum(beside, duration[plain])).astype(np.int64)
    after = without_items(subject.becomes(duration_ns=duration), gone, "launching")
    return after, int(gone.sum())


def _needed(subject: Subject, gradients: bool) -> list[tuple[int, int]]:
    """Operations that wait for communication whatever is hidden, with what they wait for.

    The first one of a step waits for the last communication of the step before, and of gradients
    the update does.
    """
    program = subject.program
    m = len(program)
    moved = program.communication
    communication = np.flatnonzero(moved)
    operations = np.flatnonzero(subject.is_op & ~moved)
    found = []
    for mark in np.flatnonzero(program.kind == MARK).tolist():
        at = int(np.searchsorted(operations, mark))
        if at == len(operations):
            continue
        last = int(np.searchsorted(communication, mark)) - 1
        source = int(communication[last]) - (m if last < 0 else 0)
        found.append((int(operations[at]), source))
    if gradients:
        for reductions in _reductions(subject):
            at = int(np.searchsorted(operations, reductions[-1]))
            if at < len(operations):
                found.append((int(operations[at]), int(reductions[-1])))
    return found


def _reductions(subject: Subject) -> list[IntArray]:
    """Items that sum gradients, of each step that has some."""
    program = subject.program
    names = np.array(
        [any(word in text for word in _REDUCTIONS) for text in subject.gpu.ops.texts["name"]]
        + [False]
    )
    sums = np.flatnonzero(subject.of_ops(names[subject.gpu.ops["name"]]) & program.communication)
    step = np.cumsum(program.kind == MARK)[sums]
    found = []
    for number in range(int(step.max(initial=-1)) + 1):
        rows = sums[step == number]
        time = program.duration_ns[rows]
        heavy = np.flatnonzero(time > _HEAVY * time.sum())
        if len(heavy):
            found.append(rows[: heavy[-1] + 1])
    return found


def _as_they_are_ready(subject: Subject) -> dict[int, tuple[tuple[int, int], ...]]:
    """What sums of gradients wait for if each begins once the first bucket of it is ready.

    Gradients are made evenly over the backward pass, in the order in which they are sent. The last
    bucket is sent when the last gradient is there.
    """
    program = subject.program
    plain = np.flatnonzero((program.kind == LAUNCH) & ~program.communication)
    done = np.cumsum(program.duration_ns[plain])
    marks = np.flatnonzero(program.kind == MARK)
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for sums in _reductions(subject):
        earlier = int(np.searchsorted(marks, sums[0]))
        first = int(marks[earlier - 1]) if earlier else 0
        low, high = (int(np.searchsorted(plain, item)) for item in (first, sums[-1]))
        if high - low < 1:
            continue
        start = int(done[low - 1]) if low else 0
        end = int(done[high - 1])
        start += round(_BEFORE_BACKWARD * (end - start))
        rows = sums[done[np.maximum(np.searchsorted(plain, sums) - 1, 0)] >= start]
        time = program.duration_ns[rows].astype(float)
        sent = np.concatenate(([0.0], np.cumsum(time))) / max(float(time.sum()), 1.0)
        ready = start + (end - start) * sent
        bucket = ready[:-1] + np.diff(ready) / BUCKETS
        begin, whole = (
            plain[np.minimum(np.searchsorted(done, at), high - 1)] for at in (bucket, ready[1:])
        )
        for item, one, last, ns in zip(
            rows.tolist(), begin.tolist(), whole.tolist(), time.tolist(), strict=True
        ):
            if last < item:
                found[item] = (one, 0), (last, -round(ns * (1 - 1 / BUCKETS)))
    return found


def _exposed_ns(subject: Subject, items: IntArray) -> IntArray:
    """How much of the transfer of some items had no compute beside it, ns."""
    program, ops = subject.program, subject.gpu.ops
    end = ops["end_ns"][program.op[items]]
    begin = end - program.duration_ns[items]
    covered = overlap_per_window(subject.gpu.union_of(subject.gpu.is_compute), begin, end)
    found: IntArray = np.maximum(end - begin - covered, 0)
    return found


def _slowed(program: Program, before: IntArray, more_ns: IntArray) -> IntArray:
    """Durations with so much added to the next operation that is no communication."""
    duration = program.duration_ns.copy()
    plain: BoolArray = (program.op >= 0) & ~program.communication
    rows = np.flatnonzero(plain)
    if len(rows):
        at = rows[np.minimum(np.searchsorted(rows, before, side="right"), len(rows) - 1)]
        np.add.at(duration, at, more_ns)
    return duration
