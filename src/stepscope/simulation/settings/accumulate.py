"""Gradient accumulation: forward and backward several times for one update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stepscope.collectives import kinds
from stepscope.simulation.changes import Bound
from stepscope.simulation.program import LAUNCH, MARK, C
from stepscope.simulation.setting import Validity
from stepscope.simulation.settings.base import (
    Edit,
    Facts,
    Setting,
    launch_cost_ns,
    launches,
    steps_of,
    whole,
)
from stepscope.simulation.settings.items import arranged, highest_instance
from stepscope.simulation.subject import Subject
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import BoolArray, IntArray

MOST: Final = 64

SUM_BYTES: Final = 12
"""Bytes moved to add a gradient to the sum of the earlier ones: two read, one written."""


@dataclass(frozen=True)
class Accumulate(Edit):
    """So many micro-batches of the captured size for each update.

    Attributes:
        times: how many.
    """

    times: int
    order = 6

    @property
    def text(self) -> str:  # type: ignore[override]
        """In words."""
        return f"gradients of {self.times} batches accumulated for each update"

    def samples(self, devices: int) -> float:
        """Samples of a step over those before."""
        return float(self.times)

    @property
    def batches(self) -> float:
        """What workers make for a step over that before."""
        return float(self.times)

    def apply(self, facts: Sequence[Facts], subjects: list[Subject], bound: Bound) -> list[Subject]:
        """The programs with forward and backward repeated."""
        stride = highest_instance(subjects)
        return [repeated(s, f, self.times, stride) for s, f in zip(subjects, facts, strict=True)]

    def assumptions(self, facts: Sequence[Facts]) -> list[str]:
        """What is assumed."""
        return [
            f"a step is {self.times} batches of the captured size, each loaded and uploaded; the "
            "optimizer runs once, and gradients are reduced once (DDP's no_sync())"
        ]

    def validity(self, facts: Sequence[Facts]) -> Validity:
        """Modelled."""
        return "modelled"


def repeated(subject: Subject, facts: Facts, times: int, stride: int) -> Subject:
    """The program with the items up to the end of each step's backward pass several times.

    Raises:
        UsageError: nothing tells where the backward pass ends.
    """
    program = subject.program
    part = micro_batch(subject, facts)
    if part is None:
        raise UsageError(
            f"accumulate={times}: nothing in the capture tells where the backward pass of rank "
            f"{facts.rank} ends; mark it with a range, or record the CUDA calls and their threads"
        )
    once = part & of_gradients(subject, facts)
    step = steps_of(subject)
    pieces: list[IntArray] = []
    extra: list[IntArray] = []
    for number in range(-1, int(step.max(initial=-1)) + 1):
        items = np.flatnonzero(step == number)
        mine = items[part[items]]
        for turn in range(times - 1 if len(mine) else 0):
            piece = mine[~once[mine]]
            pieces.append(
                np.append(items[program.kind[items] == MARK], piece) if not turn else piece
            )
            extra.append(np.full(len(pieces[-1]), turn, np.int64))
        rest = items if not len(mine) or times == 1 else items[program.kind[items] != MARK]
        pieces.append(rest)
        extra.append(np.full(len(rest), times - 1 if len(mine) else 0, np.int64))
    source, turn_of = np.concatenate(pieces), np.concatenate(extra)
    after = arranged(subject, source, stride=stride)
    return _with_sums(after, facts, source, turn_of, part, subject)


def micro_batch(subject: Subject, facts: Facts) -> BoolArray | None:
    """Items of each step up to the last of its backward pass; None where that is not known."""
    step = steps_of(subject)
    kernels = facts.kernels
    backward = launches(subject, kernels.gpu.is_compute & kernels.in_phase("backward"))
    if not backward.any():
        return None
    last = np.full(int(step.max(initial=0)) + 2, -1, np.int64)
    np.maximum.at(last, step[backward] + 1, np.flatnonzero(backward))
    found: BoolArray = (np.arange(len(step)) <= last[step + 1]) & (step >= 0)
    found &= subject.program.kind != MARK
    return found


def of_gradients(subject: Subject, facts: Facts) -> BoolArray:
    """Items that reduce gradients over ranks: all-reduces that the backward pass enqueues."""
    gpu = facts.gpu
    texts = gpu.ops.texts["name"]
    kind = np.array([kinds.kind_of_kernel(text) for text in texts] + [kinds.UNKNOWN])
    reduces = gpu.is_communication & (kind[gpu.ops["name"]] == kinds.CODE["all_reduce"])
    reduces &= ~facts.kernels.in_phase("forward")
    put_in = (subject.program.kind == LAUNCH) & (subject.program.op < 0)
    found: BoolArray = launches(subject, reduces) | (put_in & subject.program.communication)
    return found


def _with_sums(
    after: Subject,
    facts: Facts,
    source: IntArray,
    turn: IntArray,
    part: BoolArray,
    before: Subject,
) -> Subject:
    """From the second batch on, gradients are added to those that are there.

    Device and host time are added to the last operation of each backward pass.
    """
    known = facts.parameters
    program = after.program
    is_op = program.kind == LAUNCH
    mine = np.flatnonzero(is_op & part[source] & (turn > 0) & (program.op >= 0))
    if not len(mine) or not known.count:
        return after
    key = steps_of(after)[mine] * MOST + turn[mine]
    last = mine[np.append(np.flatnonzero(np.diff(key)), len(mine) - 1)]
    duration, work = program.duration_ns.copy(), program.work_ns.copy()
    if facts.bandwidth:
        duration[last] += round(known.count * SUM_BYTES / facts.bandwidth)
    work[last, C["launch_bound"]] += known.tensors * launch_cost_ns(before, 25)  # by C++
    return replace(after, program=replace(program, duration_ns=duration, work_ns=work))


def read(text: str) -> Accumulate:
    """A number of batches."""
    return Accumulate(whole(text, 2, MOST))


SETTING = Setting(
    name="accumulate",
    title="Gradient accumulation",
    values="BATCHES",
    example="4",
    help="so many forward and backward passes for each update of the parameters",
    model=(
        "all that a step does up to the end of its backward pass is done so many times, with input "
        "and upload; all-reduces of gradients and what follows, once. Each further batch adds the "
        "sum of its gradients: three passes over them, and a launch for each parameter. For the "
        "same samples in smaller pieces, set the batch as well: --set batch=0.25x"
    ),
    assumes="gradients are reduced with the last batch only (no_sync); sharded parameters are "
    "gathered for every batch",
    checked="four batches an update, on one GPU and on two",
    refuses="where nothing tells the end of the backward pass; more than 64 batches",
    reads=read,
)
