"""Changes to a program that the simulator can replay, and the programs as they would be then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from stepscope.activity import host as h
from stepscope.activity.device import GpuTimeline
from stepscope.gaps.idle import CROWDED_NS
from stepscope.intervals.distinct import among, distinct_values, with_first
from stepscope.simulation.links import columns_of, without
from stepscope.simulation.program import (
    GRAPH_MEMSET_BYTES,
    GRAPH_MEMSET_NS,
    GRAPH_NS,
    LAUNCH,
    MARK,
    WAIT,
    C,
    Program,
    own_work,
)
from stepscope.simulation.setting import SettingChange
from stepscope.trace.frame import BoolArray, IntArray
from stepscope.trace.regex import regex


@dataclass(frozen=True)
class Free:
    """One cause of idle time is gone.

    Attributes:
        cause: id from ``gaps.idle.CAUSES``.
        ranks: the ranks it is gone on; None for all.
    """

    cause: str
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class LaunchesFree:
    """Launches cost the host nothing, and kernels follow one another as inside a CUDA graph."""


@dataclass(frozen=True)
class InGraphs:
    """Launches become CUDA graphs, without what the host did from one of them to the next.

    Attributes:
        scope: ``step`` for one graph that holds the update, too; ``model`` for graphs of the
            forward and the backward pass alone.
    """

    scope: Literal["step", "model"] = "step"

    @property
    def text(self) -> str:
        """The change in words."""
        whole = self.scope == "step"
        return "each step is one CUDA graph" if whole else "forward and backward are CUDA graphs"


@dataclass(frozen=True)
class ScaleKernels:
    """Kernels whose name matches take another time.

    Attributes:
        regex: searched for in the kernel's name.
        factor: new duration over measured duration.
    """

    regex: str
    factor: float


@dataclass(frozen=True)
class ScaleOps:
    """Certain GPU operations take another time.

    Attributes:
        ops: ``gpu_op.id`` of the operations.
        factor: new duration over measured duration.
        rank: the rank whose operations they are; None where there is only one.
    """

    ops: tuple[int, ...]
    factor: float
    rank: int | None = None


@dataclass(frozen=True)
class RemoveOps:
    """Certain GPU operations are gone, with the host work that enqueues them.

    Attributes:
        ops: ``gpu_op.id`` of the operations.
        rank: the rank whose operations they are; None where there is only one.
        inside: whether the operators that launch them stay (a convolution without its transposes):
            the calls that enqueue them go, what the host does before these stays.
    """

    ops: tuple[int, ...]
    rank: int | None = None
    inside: bool = False


@dataclass(frozen=True)
class FuseOps:
    """Certain GPU operations become one: the first of them a step takes their place.

    Name the operations of all steps; each step then has one of the given duration.

    Attributes:
        ops: ``gpu_op.id`` of the operations.
        duration_ns: how long the one that replaces those of a step takes.
        rank: the rank whose operations they are; None where there is only one.
        host_ns: what the host works before it enqueues that one, beside enqueueing it.
    """

    ops: tuple[int, ...]
    duration_ns: int
    rank: int | None = None
    host_ns: int = 0


@dataclass(frozen=True)
class CallCompiled:
    """Certain GPU operations are the first of those that a call of compiled code launches.

    Attributes:
        ops: ``gpu_op.id`` of the operations.
        rank: the rank whose operations they are; None where there is only one.
    """

    ops: tuple[int, ...]
    rank: int | None = None

    @property
    def text(self) -> str:
        """The change in words."""
        return f"compiled code is called before {len(self.ops):,} GPU operations"


@dataclass(frozen=True)
class LoadedBeside:
    """More processes than now make batches while the host works: they share its processor.

    Attributes:
        more: batches made in a time over those of today, less one; twice as many and more count 1.
    """

    more: float = 1.0

    @property
    def text(self) -> str:
        """The change in words."""
        return "more workers make batches on the host's processor"


@dataclass(frozen=True)
class OverlapCommunication:
    """Communication is hidden behind compute as far as dependencies allow.

    Attributes:
        of: what is communicated, which says what it can hide behind. ``gradients``: sums of
            gradients, ready one after the other in the backward pass, and parameters that are
            gathered. ``path``: what the next kernel works on, so that the batch has to be cut for
            it. ``any`` where that is not known.
    """

    of: Literal["any", "gradients", "path"] = "any"


@dataclass(frozen=True)
class RankLike:
    """One rank takes the time that the median of the others takes for the same part of a step.

    Attributes:
        rank: the rank.
        other: ``median``, or the number of another rank.
    """

    rank: int
    other: str | int = "median"


@dataclass(frozen=True)
class DeviceLike:
    """The kernels of one rank's device take what the same kernels take on the others.

    Hosts are replayed at the pace of the capture for the long end only: while the other ranks
    waited, theirs had time to spare, and the capturing tool slowed them.

    Attributes:
        rank: the rank.
    """

    rank: int


Scope = Literal["parts", "stages"]
"""Where work is uneven: between two collectives of all ranks, or from stage to stage."""


@dataclass(frozen=True)
class EvenWork:
    """The device work of the ranks is spread evenly over them; none of it is gone.

    Attributes:
        scope: ``parts`` spreads what lies between two collectives that all ranks share: tokens of
            experts, lengths of sequences, sizes of shards. ``stages`` spreads what the stages of a
            pipeline compute in the whole step: layers.
    """

    scope: Scope = "parts"


Change = (
    Free
    | LaunchesFree
    | InGraphs
    | ScaleKernels
    | ScaleOps
    | RemoveOps
    | FuseOps
    | CallCompiled
    | LoadedBeside
    | OverlapCommunication
    | RankLike
    | DeviceLike
    | EvenWork
    | SettingChange
)


Bound = Literal["low", "expected", "high"]
_Part = Literal["calls", "launching", "all"]
"""Which of the stated uncertainties to assume: those that make the step short, none, or long."""

RECORDING_FACTOR: Final[dict[Bound, float]] = {"low": 2.0, "expected": 1.0, "high": 0.5}
"""What recording costs over its estimate: unit costs of events vary by a factor of two between runs
of one loop (``gaps.profiler_overhead``)."""

COMPILED_CALL_NS: Final = {"low": 50_000, "expected": 150_000, "high": 250_000}
"""What calling compiled code costs the host, once for each part of the model, forward and backward:
guards are checked, arguments are wrapped for autograd (torch 2.11)."""

COMPILED_WHOLE_NS: Final = {"low": 0, "expected": 800_000, "high": 1_500_000}
"""What it costs in a step at most: a whole model is two compiled functions. Operators that launch
nothing, as views and their gradients, go with their dispatch, which pays for part of the calls, or
all of them: between nothing and 1.5 ms remain in programs that their hosts limit afterwards (a GPT,
vision transformers, a ResNet, a U-Net; torch 2.11)."""

COMPILED_MODEL: Final = {"low": (15, 0.10), "expected": (24, 0.13), "high": (35, 0.18)}
"""What graphs of the model cost the host in a step, in launches of the program as it is: so many,
and so many for each that is captured. The model is called, arguments are wrapped for autograd, the
loss is launched as before, and each parameter's gradient is handed over one by one. Least where
graphs replace the model's call (``make_graphed_callables``: 28, 71 and 125 launches' worth for
perceptrons of 88, 300 and 724 operations), most where a compiler checks its guards and looks for
the graph (``reduce-overhead``: 42, 89 and 137 for these, 55 and 78 for a GPT and a vision
transformer of 206 and 387; H200, torch 2.11)."""

COMPILED_INFERENCE: Final = {"low": (5, 0.0), "expected": (40, 0.0), "high": (80, 0.0)}
"""The same without a backward pass: 8 launches' worth for a GPT, 76 for a decoder whose cache is
written in each step (``reduce-overhead``)."""

READ_LAUNCHES: Final = 4
"""Reading a value takes a reduction of one to three kernels (a norm, a mean and a cast) and the
copy to the host; a loop with more launches from one read to the next does other work as well."""


@dataclass(frozen=True)
class Subject:
    """A program with what is needed to change it.

    Attributes:
        rank: its rank.
        gpu: the device it was built from.
        program: the items.
    """

    rank: int
    gpu: GpuTimeline
    program: Program

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


def free(subject: Subject, cause: str, bound: Bound) -> Subject:
    """One cause of idle time is gone."""
    special: dict[str, Callable[[Subject, Bound], Subject]] = {
        "launch_bound": launches_free,
        "host_sync": _no_synchronisation,
        "blocking_copy": _copies_overlap,
        "profiler_overhead": _unrecorded,
        "small_kernels": _no_kernel_gap,
        "unexplained": _no_delays,
        "checkpoint_stall": _saved_beside,
        "allocator_churn": _no_allocation,
    }
    if cause in special:
        return special[cause](subject, bound)
    return _no_work(subject, cause, bound)


def _no_work(subject: Subject, cause: str, bound: Bound) -> Subject:
    """Host time of a cause is gone, and its waits with it; recording goes on."""
    program = subject.program
    work = own_work(program)
    kept = np.zeros(len(program), np.int64)
    if cause == "host_compute":
        # what was recorded during a silence is the profiler's doing and would stay
        factor = RECORDING_FACTOR["high" if bound == "low" else "low" if bound == "high" else bound]
        untraced = (program.recording_untraced_ns * factor).astype(np.int64)
        kept = np.minimum(untraced, work[:, C[cause]])
    work[:, C[cause]] = kept
    if cause == "host_compute" and bound != "high":
        subject = _without_leading_reads(_without_trailing_waits(subject), work)
    return _without_waits(subject.becomes(work_ns=work), cause)


def _no_allocation(subject: Subject, bound: Bound) -> Subject:
    """Blocks come from the allocator's cache: without the calls, and without the way to them.

    A block that is not in the cache costs the host more than the calls: the search, the release of
    other blocks, the retry. Launches with such calls before them then take what the others take: on
    average (expected), or as the median one (low).
    """
    program = subject.program
    with_calls = program.work_ns[:, C["allocator_churn"]] > 0
    freed = _no_work(subject, "allocator_churn", bound)
    others = program.work_ns[subject.is_op & ~with_calls, C["launch_bound"]]
    if bound == "high" or not len(others) or not with_calls.any():
        return freed
    usual = int(np.median(others) if bound == "low" else others.mean())
    work = freed.program.work_ns.copy()
    launching = work[with_calls, C["launch_bound"]]
    work[with_calls, C["launch_bound"]] = np.minimum(launching, usual)
    return freed.becomes(work_ns=work)


def _without_trailing_waits(subject: Subject) -> Subject:
    """Without the synchronisations that end host work.

    With nothing enqueued in between they belong to it (timing and logging synchronise), and go
    where it goes.
    """
    program = subject.program
    ends = (program.kind == WAIT) & (program.wait_cause == C["host_sync"])
    ends &= program.work_ns[:, C["host_compute"]] > 0
    ends &= ~_directly_after(program, _reads(subject))
    return subject.becomes(
        waits=without(program.waits, ends),
        call_ns=np.where(ends, 0, program.call_ns),
    )


def _without_leading_reads(subject: Subject, freed_ns: IntArray) -> Subject:
    """Without the reads of a small value that host work begins with.

    With nothing enqueued in between the value is read for the work (a metric, a log, a choice),
    and is not read where the work goes.

    Args:
        subject: the program, with the host work in place.
        freed_ns: its host work by cause once the work is gone.
    """
    program = subject.program
    works = program.work_ns[:, C["host_compute"]] > freed_ns[:, C["host_compute"]]
    reads = _reads(subject)
    launches = np.flatnonzero(subject.is_op)
    last = len(program) - 1
    rows = np.flatnonzero(reads)
    following = np.append(launches, last)[np.searchsorted(launches, rows, side="right")]
    so_far = np.cumsum(works)
    rows = rows[so_far[following] > so_far[rows]]
    leads = np.zeros(len(program), bool)
    leads[rows] = True
    waits = (program.kind == WAIT) & (program.wait_cause == C["host_sync"])
    leads |= waits & _directly_after(program, leads)
    if not leads.any():
        return subject
    return _without_items(without_waits(subject, leads), leads & reads, "all")


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


def _without_waits(subject: Subject, cause: str) -> Subject:
    return without_waits(subject, subject.program.wait_cause == C[cause])


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


def launches_free(subject: Subject, bound: Bound) -> Subject:
    """Enqueueing takes the host no time, and kernels follow one another as inside a graph.

    That is the whole step as one graph (``graphs.model_alone`` is less than that).
    """
    program = subject.program
    work = own_work(program)
    work[:, C["launch_bound"]] = 0
    return subject.becomes(
        work_ns=work,
        call_ns=np.where(subject.is_op, 0, program.call_ns),
        kernel_gap_ns=program.kernel_gap_ns if bound == "high" else gap_in_graph_ns(subject),
    )


def gap_in_graph_ns(subject: Subject) -> IntArray:
    """From the end of the predecessor on the stream to the start where both are in one graph."""
    ops = subject.gpu.ops
    clears = ops.equals("kind", "memset") & (ops["bytes"] <= GRAPH_MEMSET_BYTES)
    quick = np.minimum(subject.program.kernel_gap_ns, GRAPH_NS)
    found: IntArray = np.where(subject.of_ops(clears), GRAPH_MEMSET_NS, quick)
    return found


NOT_LAUNCHING: Final = (
    "host_compute",
    "input_starvation",
    "checkpoint_stall",
    "cpu_offload",
    "compilation_or_warmup",
    "gil_contention",
)
"""What the host does where events are recorded that are no part of launching."""


def _unrecorded(subject: Subject, bound: Bound) -> Subject:
    return without_recording(subject, RECORDING_FACTOR[bound])


def without_recording(subject: Subject, factor: float = 1.0) -> Subject:
    """Less the cost of recording, from where it was paid.

    The estimate is what events cost, and is paid where they are. What recording costs beyond it is
    no event's: code and buffers push those of the program out of the caches, and a thread that
    writes takes its share of the memory. It slows what the host does between events, in proportion;
    but of a long stretch in which nothing is recorded only the begin.

    Args:
        subject: the program.
        factor: the cost over its estimate.
    """
    program = subject.program
    work = own_work(program)
    work[:, C["profiler_overhead"]] = 0
    # a loader or an optimizer on the CPU does one thing over and over, as the estimate's loops did
    untraced = (program.recording_untraced_ns * min(factor, 1.0)).astype(np.int64)
    of_events = (program.recording_ns - program.recording_untraced_ns) * min(factor, 1.0)
    beyond = max(factor - 1.0, 0.0) * program.recorded_share
    rest = (of_events + beyond * _between_events_ns(program)).astype(np.int64)
    for cause in NOT_LAUNCHING:
        taken = np.minimum(untraced, work[:, C[cause]])
        work[:, C[cause]] -= taken
        untraced -= taken
    call = program.call_ns.copy()
    taken = np.minimum(rest, work[:, C["launch_bound"]])
    work[:, C["launch_bound"]] -= taken
    rest -= taken
    return subject.becomes(work_ns=work, call_ns=call - np.minimum(rest, call))


def _between_events_ns(program: Program) -> IntArray:
    """What enqueueing costs the host, of long stretches for what is recorded in them so much only.

    A stretch is long as it is where a silence is (``host.LONG_UNTRACED_FACTOR``): many times the
    median of the process. A cache that recording has emptied is full again by then, and a library
    that plans or computes meets no recorder until it returns.
    """
    launching = launching_ns(program)
    recorded = program.recording_ns - program.recording_untraced_ns
    known = (recorded > 0) & (launching > 0)
    if not known.any():
        return launching
    usual = float(np.median(launching[known] / recorded[known]))
    found: IntArray = np.minimum(launching, h.LONG_UNTRACED_FACTOR * usual * recorded).astype(
        np.int64
    )
    return found


def launching_ns(program: Program) -> IntArray:
    """What enqueueing costs the host before and in each call, ns."""
    found: IntArray = program.work_ns[:, C["launch_bound"]] + program.call_ns
    return found


def _no_kernel_gap(subject: Subject, bound: Bound) -> Subject:
    return subject.becomes(kernel_gap_ns=np.minimum(subject.program.kernel_gap_ns, 0))


def _no_delays(subject: Subject, bound: Bound) -> Subject:
    work = own_work(subject.program)
    work[:, C["unexplained"]] = 0
    freed = subject.becomes(work_ns=work, delay_ns=np.zeros_like(subject.program.delay_ns))
    return _without_waits(freed, "unexplained")


def _no_synchronisation(subject: Subject, bound: Bound) -> Subject:
    """No wait for the device; values are not read back, nor computed only to be read."""
    reads = _reads(subject)
    gone = _without_waits(subject, "host_sync")
    work = own_work(gone.program)
    work[:, C["host_sync"]] = 0
    gone = gone.becomes(work_ns=work)
    if bound == "high":
        return gone
    if bound == "low":
        reads = reads | _only_to_read(subject, reads)
    return _without_items(gone, reads, "all")


def _reads(subject: Subject) -> BoolArray:
    """Copies that bring a small value to the host, which then waits for it."""
    program = subject.program
    ops = subject.gpu.ops
    small = ops.equals("kind", "memcpy") & ops.equals("copy_kind", "DtoH")
    small &= ops["bytes"] <= h.SMALL_COPY_BYTES
    reads = subject.of_ops(small)
    waits = program.wait_cause == C["host_sync"]
    others = np.flatnonzero(program.kind != MARK)
    following = np.zeros(len(program), bool)
    following[others] = np.roll(waits[others], -1)
    found: BoolArray = reads & (waits | following)
    return found


def _directly_after(program: Program, items: BoolArray) -> BoolArray:
    """What comes next after some items in the host's order, in which the run follows itself.

    The begin of a step that nothing marks is where the host is ahead of the device, and may lie
    between a copy and the wait for it.
    """
    others = np.flatnonzero(program.kind != MARK)
    found = np.zeros(len(program), bool)
    found[others] = np.roll(items[others], 1)
    return found


def _only_to_read(subject: Subject, reads: BoolArray) -> BoolArray:
    """What lies between two reads that follow one another closely, with little enqueued."""
    program = subject.program
    inside = np.zeros(len(program), bool)
    rows = np.flatnonzero(reads)
    if len(rows) < 2:
        return inside
    at = program.at_ns
    upto = np.cumsum(subject.is_op)
    marks = np.cumsum(program.kind == MARK)
    before, after = rows[:-1], rows[1:]
    close = (at[after] - at[before] < CROWDED_NS) & (marks[after] == marks[before])
    close &= upto[after] - upto[before] <= READ_LAUNCHES
    change = np.zeros(len(program) + 1, np.int64)
    np.add.at(change, before[close] + 1, 1)
    np.add.at(change, after[close] + 1, -1)
    inside = np.cumsum(change[:-1]) > 0
    return inside


def _without_items(subject: Subject, gone: BoolArray, part: _Part) -> Subject:
    """Without some operations: neither the device nor the host spends time on them.

    Args:
        subject: the program.
        gone: the items.
        part: of the host's time the calls that enqueue them, what leads to these (launching), or
            all before them.
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
    completing = waits & (program.wait_cause == C["blocking_copy"]) & _directly_after(program, gone)
    # of a small copy it looks like any other synchronisation
    copied = gone & subject.of_ops(subject.gpu.ops.equals("copy_kind", "DtoH", "HtoD"))
    completing |= waits & (program.wait_cause == C["host_sync"]) & _directly_after(program, copied)
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


def _copies_overlap(subject: Subject, bound: Bound) -> Subject:
    """Blocking copies become pinned and asynchronous.

    They stay in the order of their stream, where ``non_blocking=True`` leaves them; on a stream of
    their own (low) they run beside the kernels. Where the capture does not show how fast pinned
    copies are, they may be half as fast (high).
    """
    program, gpu = subject.program, subject.gpu
    ops = gpu.ops
    copies = program.blocks & (program.wait_cause == C["blocking_copy"])
    row = np.maximum(program.op, 0)
    slower = 2.0 if bound == "high" and not program.pinned_shown else 1.0
    duration = _pinned_ns(subject, copies, slower)
    work = own_work(program)
    work[:, C["blocking_copy"]] = 0
    delay = np.where(copies, 0, program.delay_ns)
    freed = _without_waits(
        subject.becomes(duration_ns=duration, work_ns=work, delay_ns=delay), "blocking_copy"
    )
    if bound != "low":
        return freed
    down = ops.equals("copy_kind", "DtoH")[row]
    return on_own_stream(on_own_stream(freed, copies & ~down, after=False), copies & down)


def _saved_beside(subject: Subject, bound: Bound) -> Subject:
    """The state is copied on a stream of its own, and another thread writes it."""
    program = subject.program
    copies = program.blocks & (program.wait_cause == C["checkpoint_stall"])
    freed = _no_work(subject, "checkpoint_stall", bound)
    if bound == "high":
        return freed
    delay = np.where(copies, 0, program.delay_ns)
    pinned = freed.becomes(duration_ns=_pinned_ns(freed, copies), delay_ns=delay)
    return on_own_stream(pinned, copies)


def _pinned_ns(subject: Subject, copies: BoolArray, slower: float = 1.0) -> IntArray:
    """Durations if some copies of pageable memory were pinned, at a part of the usual speed."""
    program, ops = subject.program, subject.gpu.ops
    row = np.maximum(program.op, 0)
    speed = program.pinned_bytes_per_ns / slower
    pageable = ops.equals("src_memory", "pageable") | ops.equals("dst_memory", "pageable")
    pinned_ns = (ops["bytes"][row] / speed).astype(np.int64)
    faster = copies & pageable[row] & (ops["bytes"][row] > h.SMALL_COPY_BYTES)
    return np.where(faster, np.minimum(pinned_ns, program.duration_ns), program.duration_ns)


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


def scale_kernels(subject: Subject, change: ScaleKernels) -> tuple[Subject, int]:
    """Kernels of some names take another time; how many there are."""
    mask = subject.gpu.is_kernel & subject.gpu.ops.found("name", regex(change.regex))
    return _scaled(subject, subject.of_ops(mask), change.factor)


def _scaled(subject: Subject, items: BoolArray, factor: float) -> tuple[Subject, int]:
    duration = subject.program.duration_ns.copy()
    duration[items] = np.round(duration[items] * factor)
    return subject.becomes(duration_ns=duration), int(items.sum())


def call_compiled(subject: Subject, change: CallCompiled, bound: Bound) -> tuple[Subject, int]:
    """The host calls compiled code before certain operations; how many there are."""
    if change.rank is not None and change.rank != subject.rank:
        return subject, 0
    items = subject.of_ops(among(subject.gpu.ops["id"], np.array(change.ops, np.int64)))
    count, steps = int(items.sum()), int((subject.program.kind == MARK).sum())
    a_step = count / max(steps, 1)
    each = min(COMPILED_CALL_NS[bound], COMPILED_WHOLE_NS[bound] / max(a_step, 1))
    work = own_work(subject.program)
    work[items, C["host_compute"]] += round(each)  # not recorded, and no quicker without
    return subject.becomes(work_ns=work), count


def change_ops(subject: Subject, change: ScaleOps | RemoveOps | FuseOps) -> tuple[Subject, int]:
    """Certain operations are scaled, removed or fused; how many there are."""
    if change.rank is not None and change.rank != subject.rank:
        return subject, 0
    items = subject.of_ops(among(subject.gpu.ops["id"], np.array(change.ops, np.int64)))
    count = int(items.sum())
    if isinstance(change, ScaleOps):
        return _scaled(subject, items, change.factor)
    if isinstance(change, RemoveOps):
        part: _Part = "calls" if change.inside else "launching"
        return _without_items(subject, items, part), count
    step = np.cumsum(subject.program.kind == MARK)
    rows = np.flatnonzero(items)
    _, first = with_first(step[rows])
    kept = rows[first]
    rest = items.copy()
    rest[kept] = False
    fused = _without_items(subject, rest, "launching")
    duration = fused.program.duration_ns.copy()
    duration[kept] = change.duration_ns
    work = own_work(fused.program)
    work[kept, C["host_compute"]] += change.host_ns  # not recorded, and no quicker without
    return fused.becomes(duration_ns=duration, work_ns=work), count
