"""The number of a pipeline's micro-batches: its schedule replayed with more or fewer of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stepscope.collectives.calls import Participant, job_calls
from stepscope.gaps.idle import CAUSES
from stepscope.simulation.changes import Bound
from stepscope.simulation.engine import replay
from stepscope.simulation.program import LAUNCH, MARK, C, Program
from stepscope.simulation.setting import Validity
from stepscope.simulation.settings.base import Edit, Facts, Setting, launches, rescaled, whole
from stepscope.simulation.settings.batch import lengths
from stepscope.simulation.settings.shapes import names_with
from stepscope.simulation.subject import Subject
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import BoolArray

MOST: Final = 1024


@dataclass(frozen=True)
class Stage:
    """What one stage of a pipeline does, ns; the first four for one micro-batch.

    Attributes:
        forward_ns: its kernels of the forward pass.
        backward_ns: those of the backward pass.
        forward_host_ns: what the host needs to enqueue the former.
        backward_host_ns: what it needs for the latter.
        rest_ns: kernels of the step that are in neither: the update.
        rest_host_ns: what the host needs for them, and what it does but launch.
        recording: share of what the host needs that recording it costs, as far as is estimated.
        recorded_share: ``Program.recorded_share``.
    """

    forward_ns: int
    backward_ns: int
    forward_host_ns: int
    backward_host_ns: int
    rest_ns: int
    rest_host_ns: int
    recording: float = 0.0
    recorded_share: float = 0.0


@dataclass(frozen=True)
class MicroBatches(Edit):
    """The batch of a pipeline is cut into another number of micro-batches.

    Attributes:
        now: how many there are.
        then: how many there will be.
    """

    now: int
    then: int
    order = 9

    @property
    def text(self) -> str:  # type: ignore[override]
        """In words."""
        return f"{self.then} micro-batches instead of {self.now}"

    def apply(self, facts: Sequence[Facts], subjects: list[Subject], bound: Bound) -> list[Subject]:
        """The pipeline's schedule, at the scale of the captured programs."""
        _refuse(self, facts, subjects)
        smaller = [
            rescaled(s, f, lengths(f, self.now / self.then, bound))
            for s, f in zip(subjects, facts, strict=True)
        ]
        before = [stage(s, f, self.now) for s, f in zip(subjects, facts, strict=True)]
        after = [stage(s, f, self.now) for s, f in zip(smaller, facts, strict=True)]
        made = schedule(after, self.then, _scale(subjects, before, self.now))
        return [replace(s, program=p) for s, p in zip(subjects, made, strict=True)]

    def limited(self, facts: Sequence[Facts], subjects: list[Subject]) -> list[Subject]:
        """The same schedule with as many as there are: only the ratio of both counts."""
        _refuse(self, facts, subjects)
        before = [stage(s, f, self.now) for s, f in zip(subjects, facts, strict=True)]
        made = schedule(before, self.now, _scale(subjects, before, self.now))
        return [replace(s, program=p) for s, p in zip(subjects, made, strict=True)]

    def assumptions(self, facts: Sequence[Facts]) -> list[str]:
        """What is assumed."""
        return [
            "stages are the ranks in order, each of one GPU, in the 1F1B schedule; what is not "
            "schedule (transfers, other waiting) grows or shrinks with the step; kernels of a "
            "smaller micro-batch as with another batch size"
        ]

    def validity(self, facts: Sequence[Facts]) -> Validity:
        """A single pipeline was measured with two numbers of them."""
        return "extrapolated"


def _scale(subjects: Sequence[Subject], stages: Sequence[Stage], micro_batches: int) -> float:
    """The captured step over the plain schedule: transfers, and what the schedule leaves out."""
    captured = _step_ns([s.program for s in subjects])
    return captured / max(_step_ns(schedule(stages, micro_batches)), 1.0)


def _refuse(change: MicroBatches, facts: Sequence[Facts], subjects: Sequence[Subject]) -> None:
    wanted = f"micro_batches={change.now}:{change.then}"
    if len(subjects) < 2:
        raise UsageError(f"{wanted}: a pipeline has several stages; give the captures of all ranks")
    for subject, one in zip(subjects, facts, strict=True):
        calls = job_calls([Participant(one.rank, one.gpu, one.read, one.rank)]).calls[0]
        sends = np.zeros(len(one.gpu.ops), bool)
        sends[calls.op[calls.point_to_point]] = True  # not the messages of all-to-alls
        count = int(launches(subject, sends).sum())
        if not count:
            raise UsageError(f"{wanted}: rank {one.rank} sends nothing to a neighbour; no pipeline")
        # each micro-batch crosses every border of stages, in a message of its own
        steps = max(int((subject.program.kind == MARK).sum()), 1)
        if change.now > math.ceil(count / steps):
            raise UsageError(
                f"{wanted}: rank {one.rank} has {count / steps:.3g} messages with its neighbours a "
                f"step, which are too few for {change.now:,} micro-batches; state the number that "
                "the capture was made with"
            )
        if not backward_of(subject, one).any():
            raise UsageError(
                f"{wanted}: nothing tells which kernels of rank {one.rank} are backward"
            )


def backward_of(subject: Subject, facts: Facts) -> BoolArray:
    """Items of the backward pass: by their thread or range, else by the kernels' names."""
    kernels = facts.kernels
    named = launches(subject, kernels.in_phase("backward") & kernels.gpu.is_compute)
    if named.any():
        return named
    return launches(subject, names_with(kernels, _BACKWARD) & kernels.gpu.is_compute)


_BACKWARD: Final = r"backward|bwd|dgrad|wgrad"


def stage(subject: Subject, facts: Facts, micro_batches: int) -> Stage:
    """What a rank's program does in the mean step.

    Args:
        subject: the program.
        facts: its device.
        micro_batches: micro-batches of a step.
    """
    program = subject.program
    steps = max(int((program.kind == MARK).sum()), 1)
    own = subject.is_op & ~program.communication
    host = program.work_ns[:, C["launch_bound"]] + np.where(subject.is_op, program.call_ns, 0)
    once = program.work_ns.sum(axis=1) - program.work_ns[:, C["launch_bound"]]
    kernels = facts.kernels
    recorded = float(program.recording_ns.sum() + program.work_ns[:, C["profiler_overhead"]].sum())
    whole_host = max(float(host[subject.is_op].sum() + once.sum()), 1.0)
    backward = backward_of(subject, facts)
    update = launches(subject, kernels.in_phase("optimizer"))
    forward = subject.is_op & ~backward & ~update

    def mean(values: np.ndarray, chosen: np.ndarray, parts: int) -> int:
        return round(float(values[chosen].sum()) / steps / parts)

    return Stage(
        mean(program.duration_ns, own & forward, micro_batches),
        mean(program.duration_ns, own & backward, micro_batches),
        mean(host, forward, micro_batches),
        mean(host, backward, micro_batches),
        mean(program.duration_ns, own & update, 1),
        mean(host, update, 1) + mean(once, np.ones(len(program), bool), 1),
        min(recorded / whole_host, 1.0),
        program.recorded_share,
    )


def order_of(place: int, stages: int, micro_batches: int) -> Iterator[tuple[str, int]]:
    """Passes of a stage in the 1F1B schedule (Narayanan et al., PipeDream-2BW): kind, number."""
    ahead = min(stages - place - 1, micro_batches)
    yield from (("forward", n) for n in range(ahead))
    for n in range(micro_batches - ahead):
        yield "forward", ahead + n
        yield "backward", n
    yield from (("backward", n) for n in range(micro_batches - ahead, micro_batches))


def schedule(stages: Sequence[Stage], micro_batches: int, scale: float = 1.0) -> list[Program]:
    """The 1F1B schedule as programs, one a stage; messages are meeting points that take no time.

    Args:
        stages: what each stage does.
        micro_batches: micro-batches of a step.
        scale: of all times.
    """
    return [
        _program(one, place, len(stages), micro_batches, scale) for place, one in enumerate(stages)
    ]


def _program(one: Stage, place: int, stages: int, micro_batches: int, scale: float) -> Program:
    """One stage: kernels on the first stream; a message to or from a neighbour has its own."""
    rows: list[tuple[int, int, int, int]] = []  # duration, host, stream, instance
    depends: dict[int, tuple[tuple[int, int], ...]] = {}
    ahead = min(stages - place - 1, micro_batches)
    held: list[tuple[int, int]] = []  # what the last forward pass sends: its item, and the message
    for kind, number in order_of(place, stages, micro_batches):
        forward = kind == "forward"
        source = place - 1 if forward else place + 1
        target = place + 1 if forward else place - 1
        received = 0 <= source < stages
        if received:
            rows.append((0, 0, 1 if forward else 2, _message(forward, number, place, source)))
            at = len(rows)
        # between neighbours that pass each other, the one behind receives before it sends
        while held:
            _send(rows, depends, *held.pop(), 3)
        duration = one.forward_ns if forward else one.backward_ns
        host = one.forward_host_ns if forward else one.backward_host_ns
        rows.append((duration, host, 0, -1))
        if received:
            depends[len(rows)] = ((at, 0),)
        if 0 <= target < stages:
            message = _message(forward, number, target, place)
            if forward and number >= ahead:
                held.append((len(rows), message))
            else:
                _send(rows, depends, len(rows), message, 3 if forward else 4)
    rows.append((one.rest_ns, one.rest_host_ns, 0, -1))
    return _columns(rows, depends, scale, one)


def _send(
    rows: list[tuple[int, int, int, int]],
    depends: dict[int, tuple[tuple[int, int], ...]],
    item: int,
    message: int,
    stream: int,
) -> None:
    """A message that leaves when an item has ended."""
    rows.append((0, 0, stream, message))
    depends[len(rows)] = ((item, 0),)


def _message(forward: bool, number: int, to: int, source: int) -> int:
    """Id of what one stage sends to another: the same on both."""
    return ((number * 2 + forward) << 16) + min(to, source)


def _columns(
    rows: Sequence[tuple[int, int, int, int]],
    depends: dict[int, tuple[tuple[int, int], ...]],
    scale: float,
    one: Stage,
) -> Program:
    size = len(rows) + 1
    zeros = np.zeros(size, np.int64)
    duration, host, stream, instance = (
        np.array([0 if at < 3 else -1, *(row[at] for row in rows)], np.int64) for at in range(4)
    )
    stream[0] = -1
    work = np.zeros((size, len(CAUSES)), np.int64)
    work[:, C["launch_bound"]] = np.rint(host * scale)
    return Program(
        kind=np.array([MARK] + [LAUNCH] * len(rows), np.int64),
        op=np.full(size, -1, np.int64),
        at_ns=np.arange(size, dtype=np.int64),
        work_ns=work,
        call_ns=zeros,
        recording_ns=np.rint(host * scale * one.recording).astype(np.int64),
        recorded_share=one.recorded_share,
        recording_untraced_ns=zeros,
        stream=stream,
        latency_ns=zeros,
        kernel_gap_ns=zeros,
        delay_ns=zeros,
        duration_ns=np.rint(duration * scale).astype(np.int64),
        hosted=np.ones(size, bool),
        blocks=np.zeros(size, bool),
        wait_cause=np.full(size, -1, np.int64),
        return_ns=zeros,
        instance=instance,
        depends=depends,
        waits={},
        inferred=frozenset(),
        behind=np.full(size, -2 * size, np.int64),
        communication=instance >= 0,
    )


def _step_ns(programs: Sequence[Program]) -> float:
    return max(result.step_ns for result in replay(list(programs)))


def read(text: str) -> MicroBatches:
    """``4:16``."""
    now, colon, then = text.partition(":")
    if not colon:
        raise ValueError(text)
    return MicroBatches(whole(now, 1, MOST), whole(then, 1, MOST))


SETTING = Setting(
    name="micro_batches",
    title="Micro-batches of a pipeline",
    values="NOW:THEN",
    example="4:16",
    help="the batch of a pipeline is cut into another number of micro-batches",
    model=(
        "what each stage computes for a micro-batch, forward and backward, and what its host needs "
        "to enqueue it, is put into the 1F1B schedule with the messages between neighbours as "
        "meeting points, and replayed with either number; the ratio of both is that of the steps. "
        "With equal stages that is the bubble of (stages - 1) of (micro-batches + stages - 1). "
        "Kernels of another size take what another batch size makes of them"
    ),
    assumes="1F1B, stages in the order of the ranks, one rank a stage, transfers hidden",
    checked="within 5 % of exact simulations of four stages, equal and not; one pipeline on two "
    "H200, whose hosts set the pace, with eight micro-batches instead of two: 2.75 times the step, "
    "and 2.84 was measured",
    refuses="a single rank, ranks that send nothing to a neighbour or less often than there are "
    "micro-batches, and unknown backward passes",
    reads=read,
)
