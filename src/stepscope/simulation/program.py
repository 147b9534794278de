"""What one rank does, as items that can be replayed; its delays; and when everything would happen.

An *item* is something the host does in program order that matters to the device: it enqueues a GPU
operation, waits for one, or begins a step. All other host time is the *work* before an item.

The host of a rank works through its items one after the other; an operation starts when it has
been launched, its predecessor on the stream and what it depends on have ended; a collective
transfers when its last member has started it. :mod:`~stepscope.simulation.reference` is that as
code, :mod:`~stepscope.simulation.engine` the same compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from stepscope.activity.device import GpuTimeline
from stepscope.gaps.idle import BETWEEN_NS, CAUSES, KERNEL_GAP_NS, LATENCY_NS
from stepscope.simulation.waits import Order, previous_on_stream
from stepscope.trace.frame import BoolArray, IntArray

LAUNCH = 0
WAIT = 1
MARK = 2

C = {cause: column for column, cause in enumerate(CAUSES)}
"""Column of each cause in :attr:`Program.work_ns`."""

QUEUE_DEPTH = 1024
"""Launches that a stream holds before a launching call has to wait. Not documented by NVIDIA;
1022 or 1023 operations were outstanding on an H200 whenever a launch blocked."""

LONG_AGO_NS: Final = -(1 << 60)
"""In :attr:`Program.before_end_ns`: nothing waits for it."""

PINNED_BYTES_PER_NS: Final = 20.0
"""Bandwidth of pinned copies between host and device where the capture shows none, in bytes a ns
(GB/s): PCI Express 4.0, sixteen wide, delivers 20 to 25 GB/s."""

PINNED_BYTES_PER_NS_5: Final = 50.0
"""The same of version 5.0: 48 to 55 GB/s on H200s."""

EXPRESS_5: Final = 9
"""Major compute capability of the first devices for data centres that have it (Hopper)."""


@dataclass(frozen=True)
class Program:
    """The items of a run of whole steps, in host order; arrays have one value an item.

    References to other items are item numbers. A negative number ``-k`` is the k-th item from the
    end of the run before: the run is replayed several times in a row.

    Attributes:
        kind: ``LAUNCH``, ``WAIT`` or ``MARK``.
        op: row of ``GPU.ops``; -1 for other items.
        at_ns: measured begin of the item's call.
        work_ns: host time before the item by cause, one column a cause of ``gaps.CAUSES``; that of
            the first item is the host time after the last one.
        call_ns: host time inside the item's call, without waiting.
        recording_ns: part of both that is the estimated cost of recording.
        recording_untraced_ns: of that, what was recorded while the host did not launch.
        stream: number of the operation's stream.
        latency_ns: from the begin of the call to the earliest start of the operation.
        kernel_gap_ns: from the end of the predecessor on the stream to the earliest start.
        delay_ns: further delay of the start that nothing explains.
        duration_ns: of the operation; of a matched collective the transfer.
        hosted: whether the enqueueing call is known.
        blocks: the call waits for its own operation.
        wait_cause: cause of the wait of an item that waits (a column), else -1.
        return_ns: from the end of what an item waits for to the return of its call; may be
            negative for a copy whose call returns while the last piece is under way.
        instance: id of the matched collective; -1 for none.
        depends: operation item -> items on other streams that must have ended, with the
            turnaround from each, ns.
        waits: waiting item -> items that must have ended.
        inferred: operation items whose dependencies were inferred, not recorded.
        behind: item whose operation must have started before the call goes on: the one that is
            the depth of the launch queue before it on its stream.
        communication: operation items that are communication kernels.
        posts: members of a collective that the others wait for and that wait for none of them: a
            send whose data fits into a buffer. Empty where there are none.
        begin_ns: when this host begins the first pass, after the earliest of the job.
        busy_ns: by stream, how long after the first item it still works on what was enqueued
            before; streams that are not named are free.
        before_start_ns: by item, when the operation of the run before that it stands for in
            references started, after the first item; ``LONG_AGO_NS`` where there is none. Empty
            where nothing is known of the run before.
        before_end_ns: likewise, when it ended. These four hold for the first pass only.
        recorded_share: the estimated cost of recording events, over what launching took with it.
        pinned_bytes_per_ns: bandwidth of a pinned copy between host and device, GB/s.
        pinned_shown: whether the capture shows that bandwidth.
    """

    kind: IntArray
    op: IntArray
    at_ns: IntArray
    work_ns: IntArray
    call_ns: IntArray
    recording_ns: IntArray
    recording_untraced_ns: IntArray
    stream: IntArray
    latency_ns: IntArray
    kernel_gap_ns: IntArray
    delay_ns: IntArray
    duration_ns: IntArray
    hosted: BoolArray
    blocks: BoolArray
    wait_cause: IntArray
    return_ns: IntArray
    instance: IntArray
    depends: Mapping[int, tuple[tuple[int, int], ...]]
    waits: Mapping[int, tuple[int, ...]]
    inferred: frozenset[int]
    behind: IntArray
    communication: BoolArray
    posts: BoolArray = field(default_factory=lambda: np.empty(0, bool))
    begin_ns: int = 0
    busy_ns: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    before_start_ns: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    before_end_ns: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    recorded_share: float = 0.0
    pinned_bytes_per_ns: float = PINNED_BYTES_PER_NS
    pinned_shown: bool = False

    def __len__(self) -> int:
        return len(self.kind)


def from_rest(program: Program) -> Program:
    """The same program, begun by a device that is busy with what was given to it before only.

    A device that began late because the host waited would be a backlog to a host that does not
    wait, and a host that is little slower than its device would need more steps than are replayed
    to work that off. What was enqueued before the run and ended in it is known to be one.
    """
    if not len(program.busy_ns):
        return program
    known = np.zeros(len(program.busy_ns), np.int64)
    items = np.flatnonzero((program.stream >= 0) & (program.stream < len(known)))
    if len(program.before_end_ns):
        np.maximum.at(known, program.stream[items], program.before_end_ns[items])
    return replace(program, busy_ns=np.minimum(program.busy_ns, known))


_SMALL_WORK_BYTES: Final = 4 << 20
"""Host work by item and cause that a processor's cache holds."""


def own_work(program: Program) -> IntArray:
    """A copy of a program's host work by cause, to be changed.

    By column, as it was built: where there is much of it, those of causes that do not occur take
    neither memory nor time.
    """
    if program.work_ns.nbytes <= _SMALL_WORK_BYTES:  # to look for them takes longer than to copy
        return program.work_ns.copy(order="K")
    items, causes = program.work_ns.shape
    found = np.zeros((causes, items), np.int64).T
    for cause in range(causes):
        if program.work_ns[:, cause].any():
            found[:, cause] = program.work_ns[:, cause]
    return found


GRAPH_NS: Final = 100
"""Turnaround between the kernels of a CUDA graph, beyond what each of them took where it was
launched by itself. Of nine whole steps that were captured as graphs of 65 to 623 operations, each
operation took 0.07 to 0.15 us more than alone (H200); replayed, one kernel follows 0.10 us after
the other (median of ten graphs; 0.42 us in two of half precision with attention of cuDNN)."""

SLOW_GRAPH_NS: Final = 420
"""The same of the slowest of these graphs."""

GRAPH_MEMSET_NS: Final = 1_400
"""The same of a small memset among kernels: 1.3 us a memset in a graph of 909 operations, 1.35 and
1.9 in two others, of up to 16 KiB."""

GRAPH_MEMSET_BYTES: Final = 64 << 10
"""Larger ones are done by kernels and take no longer to follow than these (0.3 us for 200 kB)."""

LARGE_COPY_BYTES: Final = 1 << 20
"""Copies from this size on show the bandwidth; smaller ones mostly latency."""


@dataclass(frozen=True)
class Delays:
    """Delays of each operation, by position in the order; with them a replay gives its start.

    Attributes:
        latency_ns: from the begin of the call to the earliest start.
        kernel_gap_ns: from the end of the stream's predecessor.
        dependency_ns: from the end of what it waits for on other streams.
        delay_ns: what none of these explains.
        first: position of the operation that the device began with, where it began late: it was
            busy with something that the capture does not hold; -1 for none.
    """

    latency_ns: IntArray
    kernel_gap_ns: IntArray
    dependency_ns: IntArray
    delay_ns: IntArray
    first: int


def delays(
    gpu: GpuTimeline, order: Order, waiting: dict[int, set[int]], called_ns: IntArray
) -> Delays:
    """Split what passed before each operation's start over what it waited for.

    The latest of the things it waits for decided its start; what the others would have allowed
    is taken as typical.

    Args:
        gpu: the device.
        order: its operations in enqueue order.
        waiting: operations that wait for others of other streams.
        called_ns: when each was really handed to the device: begin of the call, later where the
            call had to wait for a place in the queue.
    """
    n = len(order.ops)
    start, end = (gpu.ops[c][order.ops] for c in ("start_ns", "end_ns"))
    known = gpu.call[order.ops] >= 0
    never = np.iinfo(np.int64).min // 4
    previous = previous_on_stream(order)
    before = np.where(previous >= 0, end[np.maximum(previous, 0)], never)
    other = np.full(n, never, np.int64)
    for target, sources in waiting.items():
        other[target] = max(int(end[s]) for s in sources)
    called = np.where(known, called_ns, never)
    # the first operation of a stream may have waited for what the capture did not see
    alone = known & (called > np.maximum(before, other) + KERNEL_GAP_NS) & (previous >= 0)
    typical_latency = _latency(start[alone] - called[alone])
    queued = (before > called + typical_latency) & (before > other) & (start - before >= 0)
    queued &= start - before <= KERNEL_GAP_NS
    between = _median(start[queued] - before[queued], BETWEEN_NS)
    crossing = (other > called + typical_latency) & (other > before)
    crossing &= (start - other >= 0) & (start - other <= KERNEL_GAP_NS)
    across = _median(start[crossing] - other[crossing], 2 * between)

    by_launch = called + typical_latency
    by_stream = before + between
    by_other = other + across
    latest = np.maximum(np.maximum(by_launch, by_stream), by_other)
    late = start - latest
    delay = np.where(late > KERNEL_GAP_NS, late, 0)
    due = start - delay
    first = int(np.argmin(start)) if n else -1
    if n and delay[first]:
        delay[first] = 0
    else:
        first = -1
    free = latest == never + max(typical_latency, between, across)

    def wait(since: IntArray, typical: int, decided: BoolArray) -> IntArray:
        measured = due - since
        return np.where(decided, measured, np.minimum(typical, measured)).astype(np.int64)

    launch_decides = by_launch == latest
    stream_decides = ~launch_decides & (by_stream == latest)
    other_decides = ~launch_decides & ~stream_decides
    return Delays(
        latency_ns=np.where(known, wait(called, typical_latency, launch_decides), 0),
        kernel_gap_ns=np.where(previous >= 0, wait(before, between, stream_decides), between),
        dependency_ns=np.where(other > never, wait(other, across, other_decides), across),
        delay_ns=np.where(free, 0, delay),
        first=first,
    )


LONG_LATENCY_NS: Final = 100_000
"""An idle device begins with what it is given within a few microseconds. Where it takes longer than
this for most operations, it was not idle: another process had it."""

_UNDISTURBED: Final = 10.0
"""Percentile of the latencies that holds nothing of that. Clocks that differ shift it as well."""


def _latency(values: IntArray) -> int:
    """The typical latency of launches; what others delay more is no part of it.

    A launch that comes earlier waits for the other process all the same, so that the rest is a
    delay of the device, and not hidden behind a host that is ahead.
    """
    usual = _median(values, LATENCY_NS)
    return usual if usual <= LONG_LATENCY_NS else int(np.percentile(values, _UNDISTURBED))


def _median(values: IntArray, otherwise: int) -> int:
    return int(np.median(values)) if len(values) else otherwise


def pinned_bandwidth(gpu: GpuTimeline, capability: int = 0) -> tuple[float, bool]:
    """Bytes a ns of a pinned copy between host and device, and whether the capture shows it.

    Args:
        gpu: the device.
        capability: its major compute capability; 0 where that is not known.
    """
    ops = gpu.ops
    pinned = ops.equals("kind", "memcpy") & ops.equals("copy_kind", "HtoD", "DtoH")
    pinned &= ops.equals("src_memory", "pinned") | ops.equals("dst_memory", "pinned")
    pinned &= ops["bytes"] >= LARGE_COPY_BYTES
    length = ops["end_ns"][pinned] - ops["start_ns"][pinned]
    if not pinned.any() or not length.sum():
        usual = PINNED_BYTES_PER_NS_5 if capability >= EXPRESS_5 else PINNED_BYTES_PER_NS
        return usual, False
    return float(np.median(ops["bytes"][pinned] / np.maximum(length, 1))), True


def typical_call_ns(gpu: GpuTimeline) -> int:
    """What a call that enqueues something and waits for nothing costs the host, ns.

    The lower decile: where the launch queue is full, most of the launches wait.
    """
    enqueued = (gpu.call >= 0) & gpu.is_kernel  # copies may wait, kernels rarely do
    if not enqueued.any():
        return LATENCY_NS
    calls = (gpu.enqueue_end_ns - gpu.enqueue_begin_ns)[enqueued]
    return int(np.percentile(calls, 10))


PASSES = 2
"""The run is replayed this often in a row: the first time to reach the steady state."""


@dataclass(frozen=True)
class Steps:
    """The steps of one rank's replayed program.

    Attributes:
        bounds_ns: boundaries of the steps of all passes, ns.
        steps: number of steps of one pass.
    """

    bounds_ns: IntArray
    steps: int

    @property
    def step_ns(self) -> float:
        """Mean step of the last pass."""
        return int(self.bounds_ns[-1] - self.bounds_ns[-1 - self.steps]) / self.steps


@dataclass(frozen=True)
class Replay(Steps):
    """Times of one rank's replayed program; one value an item and pass, ns.

    Attributes:
        host_ns: when the host had done with the item.
        start_ns: start of its operation; 0 for items without.
        end_ns: end of its operation; 0 for items without.
    """

    host_ns: IntArray
    start_ns: IntArray
    end_ns: IntArray


def slowest_ns(replays: Sequence[Steps]) -> float:
    """Mean step of the slowest device, ns."""
    return max(r.step_ns for r in replays)
