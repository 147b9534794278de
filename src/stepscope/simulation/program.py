"""What one rank does, as items that can be replayed; its delays; and when everything would happen.

An *item* is something the host does in program order that matters to the device: it enqueues a GPU
operation, waits for one, or begins a step. All other host time is the *work* before an item.

The host of a rank works through its items one after the other; an operation starts when it has
been launched, its predecessor on the stream and what it depends on have ended; a collective
transfers when its last member has started it. One tight loop a rank over plain lists: the host
waits for the device and the device for the host, so that there is nothing to vectorise over.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
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
        recording_untraced_ns: of that, what was recorded during long silences.
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
    depends: dict[int, tuple[tuple[int, int], ...]]
    waits: dict[int, tuple[int, ...]]
    inferred: frozenset[int]
    behind: IntArray
    communication: BoolArray

    def __len__(self) -> int:
        return len(self.kind)


GRAPH_NS: Final = 1_000
"""Turnaround between the kernels of a CUDA graph (some 1 us on current devices)."""

PINNED_BYTES_PER_NS: Final = 20.0
"""Bandwidth of pinned copies between host and device where the capture shows none, in bytes a ns
(GB/s): PCI Express 4.0 with 16 GPUs delivers 20 to 25 GB/s, version 5.0 about twice that."""

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
        typical_latency_ns: median of the operations that waited for their launch.
        typical_kernel_gap_ns: median of those that waited for their predecessor.
    """

    latency_ns: IntArray
    kernel_gap_ns: IntArray
    dependency_ns: IntArray
    delay_ns: IntArray
    typical_latency_ns: int
    typical_kernel_gap_ns: int


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
    typical_latency = _median(start[alone] - called[alone], LATENCY_NS)
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
        typical_latency_ns=typical_latency,
        typical_kernel_gap_ns=between,
    )


def _median(values: IntArray, otherwise: int) -> int:
    return int(np.median(values)) if len(values) else otherwise


def pinned_bandwidth(gpu: GpuTimeline) -> tuple[float, bool]:
    """Bytes a ns of a pinned copy between host and device, and whether the capture shows it."""
    ops = gpu.ops
    pinned = ops.equals("kind", "memcpy") & ops.equals("copy_kind", "HtoD", "DtoH")
    pinned &= ops.equals("src_memory", "pinned") | ops.equals("dst_memory", "pinned")
    pinned &= ops["bytes"] >= LARGE_COPY_BYTES
    length = ops["end_ns"][pinned] - ops["start_ns"][pinned]
    if not pinned.any() or not length.sum():
        return PINNED_BYTES_PER_NS, False
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
class Replay:
    """Times of one rank's replayed program; one value an item and pass, ns.

    Attributes:
        host_ns: when the host had done with the item.
        start_ns: start of its operation; 0 for items without.
        end_ns: end of its operation; 0 for items without.
        bounds_ns: boundaries of the steps of all passes.
        steps: number of steps of one pass.
    """

    host_ns: list[int]
    start_ns: list[int]
    end_ns: list[int]
    bounds_ns: list[int]
    steps: int

    @property
    def step_ns(self) -> float:
        """Mean step of the last pass."""
        return (self.bounds_ns[-1] - self.bounds_ns[-1 - self.steps]) / self.steps


_Arrival = Generator[tuple[int, int, int, int], int, None]


def replay(programs: list[Program], passes: int = PASSES) -> list[Replay]:
    """Replay the programs of all ranks together.

    Args:
        programs: one a device; equal ids in ``instance`` are one collective.
        passes: how often in a row.
    """
    results = []
    running: list[_Arrival] = []
    rank_traces: dict[int, int] = {}
    for program in programs:
        size = len(program) * passes
        times = ([0] * size, [0] * size, [0] * size)
        bounds: list[int] = []
        results.append(Replay(*times, bounds, int((program.kind == MARK).sum())))
        for instance in program.instance[program.instance >= 0].tolist():
            rank_traces[instance] = rank_traces.get(instance, 0) + 1
        running.append(_run(program, *times, bounds, passes))
    _coordinate(running, rank_traces)
    return results


def _coordinate(running: list[_Arrival], rank_traces: dict[int, int]) -> None:
    """Run every rank up to its next collective; let a collective go when all have arrived."""
    arrived: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    ready: list[tuple[int, int | None]] = [(number, None) for number in range(len(running))]
    while ready or arrived:
        if not ready:
            # ranks wait for different collectives: their order differs between the ranks, or some
            # of them lie outside the run; the earliest goes on with those that are there
            key = min(arrived, key=lambda k: (k[0], max(a for _, a, _ in arrived[k])))
            ready = _go(arrived.pop(key))
            continue
        number, end = ready.pop()
        try:
            pass_, instance, arrival, transfer = _advance(running[number], end)
        except StopIteration:
            continue
        waiting = arrived.setdefault((pass_, instance), [])
        waiting.append((number, arrival, transfer))
        if len(waiting) == rank_traces[instance]:
            ready += _go(arrived.pop((pass_, instance)))


def _go(waiting: list[tuple[int, int, int]]) -> list[tuple[int, int | None]]:
    end = max(arrival for _, arrival, _ in waiting) + max(transfer for _, _, transfer in waiting)
    return [(number, end) for number, _, _ in waiting]


def _advance(rank: _Arrival, end: int | None) -> tuple[int, int, int, int]:
    return next(rank) if end is None else rank.send(end)


def _special(program: Program) -> list[bool]:
    """Items that need more than launch and stream order."""
    special = (program.kind != 0) | ~program.hosted | program.blocks | (program.instance >= 0)
    special[list(program.depends)] = True
    special[list(program.waits)] = True
    found: list[bool] = special.tolist()
    return found


def _run(  # noqa: PLR0912, PLR0915 - one loop: calls would make it several times slower
    program: Program,
    host: list[int],
    start: list[int],
    end: list[int],
    bounds: list[int],
    passes: int,
) -> _Arrival:
    """One rank; yields (pass, collective, arrival, transfer), is sent the collective's end."""
    m = len(program)
    work: list[int] = program.work_ns.sum(axis=1).tolist()
    # lists of the columns once: numpy scalars would make the loop several times slower
    call, latency, kernel_gap, delay, duration, returns, behind = (
        column.tolist()
        for column in (
            program.call_ns,
            program.latency_ns,
            program.kernel_gap_ns,
            program.delay_ns,
            program.duration_ns,
            program.return_ns,
            program.behind,
        )
    )
    stream: list[int] = program.stream.tolist()
    special = _special(program)
    free = [0] * (int(program.stream.max(initial=0)) + 1)
    depends, waits = program.depends, program.waits
    kind: list[int] = program.kind.tolist()
    hosted: list[bool] = program.hosted.tolist()
    blocks: list[bool] = program.blocks.tolist()
    instance: list[int] = program.instance.tolist()
    # references to before the first pass are negative: they find zeros behind the lists' end
    start += [0] * (2 * m)
    end += [0] * (2 * m)
    h = 0
    latest = 0
    for pass_ in range(passes):
        base = pass_ * m
        j = base
        for w, c, s, lat, turn, wait, d, back, odd in zip(
            work, call, stream, latency, kernel_gap, delay, duration, behind, special, strict=True
        ):
            h += w
            if not odd:
                # comparisons, not max(): millions of calls would take a third of the time
                room = start[base + back]
                h = room if room > h else h
                at = h + lat
                t = free[s] + turn
                at = (t if t > at else at) + wait
                start[j] = at
                at += d
                end[j] = free[s] = at
                h += c
                host[j] = h
                j += 1
                continue
            i = j - base
            what = kind[i]
            if what == MARK:
                latest = max(latest, *free)
                bounds.append(max(h, latest))
            elif what == WAIT:
                h += c
                if i in waits:
                    done = max([end[base + k] for k in waits[i]]) + returns[i]
                    h = max(h, done)
            else:
                at = 0
                if hosted[i]:
                    room = start[base + back]
                    h = max(h, room)
                    at = h + lat
                if s >= 0:
                    at = max(at, free[s] + turn)
                if i in depends:
                    for k, between in depends[i]:
                        t = end[base + k] + between
                        at = max(at, t)
                at += wait
                start[j] = at
                at = at + d if instance[i] < 0 else (yield pass_, instance[i], at, d)
                end[j] = at
                if s >= 0:
                    free[s] = at
                h += c
                if blocks[i] and at + returns[i] > h:
                    h = at + returns[i]
            host[j] = h
            j += 1
    del start[m * passes :], end[m * passes :]
    h += work[0] if work else 0
    bounds.append(max(h, latest, *free))
