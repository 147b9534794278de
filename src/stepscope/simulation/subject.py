"""A program with its device, and what several changes do to it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from stepscope.activity.device import GpuTimeline
from stepscope.intervals.distinct import among, distinct_values
from stepscope.simulation.links import columns_of, without
from stepscope.simulation.program import LAUNCH, MARK, WAIT, C, Program, own_work
from stepscope.trace.frame import BoolArray, IntArray

Part = Literal["calls", "launching", "all"]
"""Of the host's time for an operation: the call that enqueues it, also what leads to that call, or
all before it."""


@dataclass(frozen=True)
class Subject:
    """A program with what is needed to change it.

    Attributes:
        rank: its rank.
        gpu: the device it was built from.
        program: the items.
        small: collectives that move no more than a value which is read back, by row of
            ``GPU.ops``; empty where none is known.
    """

    rank: int
    gpu: GpuTimeline
    program: Program
    small: BoolArray = field(default_factory=lambda: np.empty(0, bool))

    def becomes(self, **columns: object) -> Subject:
        """The same with some columns replaced."""
        return replace(self, program=replace(self.program, **columns))  # type: ignore[arg-type]

    @property
    def is_op(self) -> BoolArray:
        """Items that enqueue an operation."""
        return np.equal(self.program.kind, LAUNCH)

    def of_ops(self, mask: BoolArray) -> BoolArray:
        """Items whose operation a mask over ``GPU.ops`` selects."""
        return self.is_op & mask[np.maximum(self.program.op, 0)]

    def of_ids(self, ids: tuple[int, ...], rank: int | None) -> BoolArray:
        """Items of certain operations, by ``gpu_op.id``; none on another rank than theirs."""
        if rank is not None and rank != self.rank:
            return np.zeros(len(self.program), bool)
        return self.of_ops(among(self.gpu.ops["id"], np.array(ids, np.int64)))


def without_inferred(subject: Subject) -> Subject:
    """Without the dependencies between streams that the capture does not hold.

    Communication keeps its own: what it sends was computed before, and what it brings is used.
    """
    program = subject.program
    if not program.inferred:
        return subject
    m, moves = len(program), program.communication
    kept = {}
    for item, on in program.depends.items():
        if item in program.inferred and not moves[item]:
            sure = tuple(pair for pair in on if moves[pair[0] % m])
        else:
            sure = on
        if sure:
            kept[item] = sure
    return subject.becomes(depends=kept)


def without_waits(subject: Subject, gone: BoolArray) -> Subject:
    """The host does not wait at some items."""
    program = subject.program
    waits = without(program.waits, gone)
    return subject.becomes(
        waits=waits,
        blocks=program.blocks & ~gone,
        call_ns=np.where(gone & (program.kind == WAIT), 0, program.call_ns),
        return_ns=np.where(gone, 0, program.return_ns),
    )


def launching_ns(program: Program) -> IntArray:
    """What enqueueing costs the host before and in each call, ns."""
    found: IntArray = program.work_ns[:, C["launch_bound"]] + program.call_ns
    return found


def directly_after(program: Program, items: BoolArray) -> BoolArray:
    """What comes next after some items in the host's order, in which the run follows itself.

    The begin of a step that nothing marks is where the host is ahead of the device, and may lie
    between a copy and the wait for it.
    """
    others = np.flatnonzero(program.kind != MARK)
    found = np.zeros(len(program), bool)
    found[others] = np.roll(items[others], 1)
    return found


def without_items(subject: Subject, gone: BoolArray, part: Part) -> Subject:
    """Without some operations: neither the device nor the host spends time on them.

    Args:
        subject: the program.
        gone: the items.
        part: which of the host's time for them goes.
    """
    program = subject.program
    work = own_work(program)
    marks = program.kind == MARK
    gone = gone & ~marks
    if part == "all":
        work[gone] = 0
    elif part == "launching":
        work[gone, C["launch_bound"]] = 0
    # the synchronisation that completes a copy goes with it
    waits = program.kind == WAIT
    completing = waits & (program.wait_cause == C["blocking_copy"]) & directly_after(program, gone)
    # of a small copy it looks like any other synchronisation
    copied = gone & subject.of_ops(subject.gpu.ops.equals("copy_kind", "DtoH", "HtoD"))
    completing |= waits & (program.wait_cause == C["host_sync"]) & directly_after(program, copied)
    waited = columns_of(program.waits)
    stays = (waited.on < 0) | ~gone[np.maximum(waited.on, 0)]
    completing[waited.owner[stays]] = False
    return subject.becomes(
        work_ns=work,
        call_ns=np.where(gone, 0, program.call_ns),
        recording_ns=np.where(gone, 0, program.recording_ns),
        recording_untraced_ns=np.where(gone, 0, program.recording_untraced_ns),
        duration_ns=np.where(gone, 0, program.duration_ns),
        kernel_gap_ns=np.where(gone, 0, program.kernel_gap_ns),
        delay_ns=np.where(gone, 0, program.delay_ns),
        latency_ns=np.where(gone, 0, program.latency_ns),
        blocks=program.blocks & ~gone,
        waits=without(program.waits, gone | completing),
    )


def on_own_stream(subject: Subject, moved: BoolArray, *, after: bool = True) -> Subject:
    """Move operations to a new stream.

    Args:
        subject: the program.
        moved: the operation items.
        after: they still start after their predecessor on the old stream has ended.
    """
    program = subject.program
    if not moved.any():
        return subject
    depends = dict(program.depends)
    if after:
        previous = previous_items(program)
        for item in np.flatnonzero(moved).tolist():
            pair = (int(previous[item]), int(program.kernel_gap_ns[item]))
            depends[item] = (*depends.get(item, ()), pair)
    new = int(program.stream.max()) + 1
    return subject.becomes(stream=np.where(moved, new, program.stream), depends=depends)


def previous_items(program: Program) -> IntArray:
    """Predecessor of each operation on its stream; that of the first lies in the run before."""
    previous = np.full(len(program), -1, np.int64)
    for number in distinct_values(program.stream[program.stream >= 0]).tolist():
        items = np.flatnonzero(program.stream == number)
        previous[items[1:]] = items[:-1]
        previous[items[0]] = items[-1] - len(program)
    return previous
