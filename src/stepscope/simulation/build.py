"""Build the program of one rank from its GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from stepscope.activity import host as h
from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline, Reader
from stepscope.activity.host import HostTimeline, blocking_calls, inside
from stepscope.breakdown.explain import Explanation
from stepscope.gaps.idle import CAUSE_OF_LABEL, CAUSES
from stepscope.gaps.profiler_overhead import NO_COST, RecordingOverhead, call_cost_ns
from stepscope.gaps.untraced_cpu import classified_timeline, explain_untraced_cpu, input_time
from stepscope.intervals import overlap_per_window, subtract, union
from stepscope.intervals.algebra import EMPTY, Intervals
from stepscope.intervals.distinct import among, distinct_values
from stepscope.simulation.links import Depends, Waits, columns_of
from stepscope.simulation.program import (
    LAUNCH,
    LONG_AGO_NS,
    MARK,
    QUEUE_DEPTH,
    WAIT,
    C,
    Delays,
    Program,
    delays,
    pinned_bandwidth,
    typical_call_ns,
)
from stepscope.simulation.waits import (
    LONG_CALL_NS,
    HostWaits,
    Order,
    enqueue_order,
    host_waits,
    operation_waits,
    recorded_events,
)
from stepscope.trace.frame import AnyArray, BoolArray, IntArray


@dataclass(frozen=True)
class Run:
    """A contiguous run of steps of one rank.

    Attributes:
        first: first step.
        last: last step.
        begin_ns: when the host begins it.
        end_ns: when the host begins the step after it.
        measured_ns: length on the device's timeline, in total.
    """

    first: int
    last: int
    begin_ns: int
    end_ns: int
    measured_ns: int

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.last - self.first + 1


def run_of(e: Explanation, first: int, last: int) -> Run:
    """The run of the given steps."""
    begins = e.steps.begin_ns
    if last + 1 < len(begins):
        end = int(begins[last + 1])
    elif e.steps.open_end:
        # nothing marks the end of the last step: the host's part ends with its last launch
        mine = e.gpu.enqueue_begin_ns >= begins[last]
        end = int(e.gpu.enqueue_end_ns[mine].max()) if mine.any() else e.steps.end_ns
    else:
        stopped = _stopped(e, int(begins[first]), int(begins[last]))
        end = _returned(e, int(begins[last]), e.steps.end_ns) if stopped is None else stopped
    measured = int(e.bounds_ns[last + 1] - e.bounds_ns[first])
    return Run(first, last, int(begins[first]), max(end, int(begins[last]) + 1), measured)


def _stopped(e: Explanation, begin_ns: int, last_ns: int) -> int | None:
    """When the host begins the synchronisation that ends the recording and not the step.

    Who stops a recording after so many steps waits for all that was enqueued, and so does who times
    these steps. The steps of the run go on without that. A loop that synchronises by itself does so
    in other steps, too.

    Args:
        e: the explained device.
        begin_ns: when the host begins the run.
        last_ns: when it begins the last step of it.
    """
    host = e.gpu.host
    if not len(host.api) or not len(e.gpu.ops):
        return None
    start = host.api["start_ns"]
    whole = host.api.matches("name", words.DEVICE_SYNC_CALL)
    whole &= among(host.api["thread_id"], host.launch_threads) & (start >= begin_ns)
    calls = start[whole]
    enqueued = int(e.gpu.enqueue_begin_ns.max())
    if not len(calls) or calls[0] < max(last_ns, enqueued) or calls[0] >= e.steps.end_ns:
        return None
    return int(calls[0])


def _returned(e: Explanation, begin_ns: int, end_ns: int) -> int:
    """When the host has returned from the calls that it makes in the last step.

    A synchronisation that ends the step returns some microseconds after the last kernel has ended;
    cut off there it would wait for nothing, and hold the end of the step whatever is changed.
    """
    host = e.gpu.host
    if not len(host.api):
        return end_ns
    start = host.api["start_ns"]
    mine = (
        (start >= begin_ns) & (start < end_ns) & among(host.api["thread_id"], host.launch_threads)
    )
    return max(end_ns, int(host.api["end_ns"][mine].max(initial=end_ns)))


@dataclass(frozen=True)
class Layout:
    """The items of a run in host order; arrays have one value an item unless they say otherwise.

    Attributes:
        order: the operations.
        kind: ``LAUNCH``, ``WAIT`` or ``MARK``.
        at_ns: begin of the item's call.
        until_ns: end of the call, or of the item's turn where another thread went on.
        hosted: whether the enqueueing call is known.
        position: position in ``order`` of its operation; -1 for none.
        item_of: item of each position in ``order``; -1 outside the run.
        wait_item: item of each wait.
        cut: another thread went on enqueueing while this call waited.
    """

    order: Order
    kind: IntArray
    at_ns: IntArray
    until_ns: IntArray
    hosted: BoolArray
    position: IntArray
    item_of: IntArray
    wait_item: IntArray
    cut: BoolArray

    def __len__(self) -> int:
        return len(self.kind)

    def of_ops(self, values: AnyArray, otherwise: int = 0) -> IntArray:
        """Values by position as values by item."""
        if not len(values):
            return np.full(len(self), otherwise, np.int64)
        taken = values[np.maximum(self.position, 0)]
        return np.where(self.position >= 0, taken, otherwise).astype(np.int64)

    @cached_property
    def inside(self) -> IntArray:
        """Positions in the run."""
        return np.flatnonzero(self.item_of >= 0)

    @cached_property
    def _by_stream(self) -> list[tuple[IntArray, IntArray]]:
        """Of each stream: positions, and the items of those in the run."""
        found = []
        for positions in self.order.of_stream:
            items = self.item_of[positions]
            found.append((positions, items[items >= 0]))
        return found

    def reference(self, position: int) -> int | None:
        """The item of a position; those before the run count back from its end (negative)."""
        if self.item_of[position] >= 0:
            return int(self.item_of[position])
        positions, items = self._by_stream[int(self.order.stream[position])]
        if not len(items) or position > self.inside[-1]:
            return None
        at = int(np.searchsorted(positions, position))
        first = int(np.searchsorted(positions, self.inside[0]))
        back = at - first
        return int(items[back]) - len(self) if -len(items) <= back < 0 else None


def lay_out(
    e: Explanation, order: Order, waits: HostWaits, run: Run, called_ns: IntArray
) -> Layout:
    """Put everything that begins in the run into host order.

    Args:
        e: the explained device.
        order: its operations.
        waits: the host's waits in the run.
        run: the steps.
        called_ns: begin of the enqueueing call of each position; its later part where the call
            first waits, so that the wait is an item of its own.
    """
    gpu, api = e.gpu, e.gpu.host.api
    inside = np.flatnonzero((order.begin_ns >= run.begin_ns) & (order.begin_ns < run.end_ns))
    n_mark, n_op, n_wait = run.steps, len(inside), len(waits.call)
    none = np.empty(0, np.int64)
    marks = e.steps.begin_ns[run.first : run.last + 1]
    wait_at = api["start_ns"][waits.call] if n_wait else none
    wait_until = api["end_ns"][waits.call] if n_wait else none
    own = order.ops[inside]
    at = np.concatenate((marks, called_ns[inside], wait_at))
    until = np.concatenate((marks, gpu.enqueue_end_ns[own], wait_until))
    hosted = np.concatenate((np.ones(n_mark, bool), gpu.call[own] >= 0, np.ones(n_wait, bool)))
    kind = np.repeat(np.array([MARK, LAUNCH, WAIT], np.int64), (n_mark, n_op, n_wait))
    # of what begins at once, steps come first, and waits before what waits
    first = np.repeat(np.array([0, 2, 1]), (n_mark, n_op, n_wait))
    sequence = np.lexsort((np.arange(len(at)), first, at))
    place = np.empty(len(at), np.int64)
    place[sequence] = np.arange(len(at))
    item_of = np.full(len(order.ops), -1, np.int64)
    item_of[inside] = place[n_mark : n_mark + n_op]
    position = np.full(len(at), -1, np.int64)
    position[item_of[inside]] = inside
    wait_item = place[n_mark + n_op :]
    at, until, kind, hosted = at[sequence], until[sequence], kind[sequence], hosted[sequence]
    # One program order: what another thread does meanwhile ends a call's turn. Operations that
    # share a call, and those of unknown call, take no host time of their own.
    until = np.where(hosted, until, at)
    turn = np.maximum(np.minimum(until, np.append(at[1:], run.end_ns)), at)
    joint = np.zeros(len(at), bool)
    joint[item_of[inside[among(gpu.call[own], waits.call)]]] = True
    cut = (kind == WAIT) & (turn < until) & ~np.append(joint[1:], False)
    return Layout(order, kind, at, turn, hosted, position, item_of, wait_item, cut)


_NEARLY_FULL: Final = 512
"""A launch that takes long with at least this many operations outstanding waits for the queue."""


def build(
    e: Explanation,
    read: Reader,
    run: Run,
    rows: IntArray | None = None,
    instances: IntArray | None = None,
) -> Program:
    """The program of one rank in a run of steps.

    Args:
        e: the explained device.
        read: gives its tables.
        run: the steps.
        rows: rows of ``GPU.ops`` that are matched collectives.
        instances: ids of the collectives.
    """
    gpu = e.gpu
    order = enqueue_order(gpu)
    events = recorded_events(gpu, read, order)
    waiting, inferred = operation_waits(gpu, order, events)
    waits = host_waits(gpu, order, events, run.begin_ns, run.end_ns)
    usual = typical_call_ns(gpu)
    single = _own_call(gpu, order)
    full, depth = _queue(order, gpu, usual, single)
    # what had to wait for a place in the queue, for a graph, or for its code to be loaded, was
    # handed over at the call's end
    before = np.concatenate((waits.call[waits.call >= 0], e.loading.call))
    held = full | among(gpu.call[order.ops], before)
    handed = np.maximum(order.begin_ns, gpu.enqueue_end_ns[order.ops] - usual)
    called = np.where(held, handed, order.begin_ns)
    late = delays(gpu, order, waiting, called)
    lay = lay_out(e, order, waits, run, np.where(full, order.begin_ns, called))
    work, recording, untraced = _host_work(e, read, run, lay.at_ns, lay.until_ns)
    if not (lay.hosted & (lay.position >= 0)).any():
        work = np.zeros_like(
            work
        )  # without its calls nothing says whether the host was ahead of the device

    blocks, reads = _blocking_copies(e, order)
    call = lay.until_ns - lay.at_ns
    blocking = (lay.of_ops(blocks) > 0) & (call > 0)
    wait_cause = np.where(blocking, C["blocking_copy"], -1)
    wait_cause[blocking & (lay.of_ops(reads) > 0)] = C["host_sync"]
    own_end = lay.of_ops(gpu.ops["end_ns"][order.ops])
    returns = np.where(blocking, lay.until_ns - own_end, 0)
    waited = blocking | (lay.of_ops(full) > 0)
    call = np.where(waited, np.minimum(call, usual), call)
    wait_of = _host_waits(gpu, order, waits, lay, usual, (call, returns, wait_cause))
    for cause, attributed in e.events.items():  # a wait inside an event goes when the event goes
        wait_cause[(wait_cause >= 0) & inside(attributed, lay.at_ns)] = C[cause]
    speed, shown = pinned_bandwidth(gpu, _capability(gpu, read))
    instance = np.full(len(gpu.ops), -1, np.int64)
    if rows is not None and instances is not None:
        instance[rows] = instances
    return Program(
        kind=lay.kind,
        op=lay.of_ops(order.ops, -1),
        at_ns=lay.at_ns,
        work_ns=work,
        call_ns=call,
        recording_ns=recording,
        recording_untraced_ns=untraced,
        stream=lay.of_ops(order.stream, -1),
        latency_ns=lay.of_ops(late.latency_ns),
        kernel_gap_ns=lay.of_ops(late.kernel_gap_ns),
        delay_ns=lay.of_ops(late.delay_ns),
        duration_ns=lay.of_ops((gpu.ops["end_ns"] - gpu.ops["start_ns"])[order.ops]),
        hosted=lay.hosted,
        blocks=blocking,
        wait_cause=wait_cause,
        return_ns=returns,
        instance=lay.of_ops(instance[order.ops], -1),
        depends=Depends(columns_of(_depends(waiting, late, lay))),
        waits=Waits(columns_of(wait_of)),
        inferred=frozenset(int(i) for t in inferred if (i := lay.item_of[t]) >= 0),
        behind=_behind(order, lay, depth, single),
        communication=lay.of_ops(gpu.is_communication[order.ops]) > 0,
        busy_ns=_busy(order, gpu, lay, late),
        before_start_ns=_before(lay, gpu.ops["start_ns"]),
        before_end_ns=_before(lay, gpu.ops["end_ns"]),
        recorded_share=float(
            (recording - untraced).sum() / max(work[:, C["launch_bound"]].sum() + call.sum(), 1)
        ),
        pinned_bytes_per_ns=speed,
        pinned_shown=shown,
    )


def _capability(gpu: GpuTimeline, read: Reader) -> int:
    """Major compute capability of the device; 0 where the capture does not tell."""
    rows = read("device", "process_id", "device", "compute_major")
    mine = (rows["process_id"] == gpu.process_id) & (rows["device"] == gpu.device)
    return int(rows["compute_major"][mine].max(initial=0))


def _busy(order: Order, gpu: GpuTimeline, lay: Layout, late: Delays) -> IntArray:
    """By stream, how long after the first item it works on what was enqueued before, ns."""
    until = np.full(len(order.streams), lay.at_ns[0])
    before = np.flatnonzero(order.begin_ns < lay.at_ns[0])
    np.maximum.at(until, order.stream[before], gpu.ops["end_ns"][order.ops[before]])
    first = late.first
    if first >= 0 and lay.item_of[first] >= 0:
        ended = gpu.ops["start_ns"][order.ops[first]] - late.kernel_gap_ns[first]
        stream = order.stream[first]
        until[stream] = max(until[stream], ended)
    return np.asarray(until - lay.at_ns[0], np.int64)


def _before(lay: Layout, times: IntArray) -> IntArray:
    """By item, the time of the operation that it stands for in references to the run before."""
    found = np.full(len(lay), LONG_AGO_NS)
    for positions in lay.order.of_stream:
        items = lay.item_of[positions]
        own = np.flatnonzero(items >= 0)
        if len(own):
            # the run before had as many: its last one is the one before the run's first
            count = min(len(own), int(own[0]))
            found[items[own[len(own) - count :]]] = (
                times[lay.order.ops[positions[own[0] - count : own[0]]]] - lay.at_ns[0]
            )
    return found


def _host_waits(
    gpu: GpuTimeline,
    order: Order,
    waits: HostWaits,
    lay: Layout,
    usual: int,
    columns: tuple[IntArray, IntArray, IntArray],
) -> dict[int, tuple[int, ...]]:
    """What the waiting items wait for; fills in the host time, return time and cause of each.

    Args:
        gpu: the device.
        order: its operations.
        waits: the waits.
        lay: the items.
        usual: what a call costs that waits for nothing, ns.
        columns: ``call_ns``, ``return_ns`` and ``wait_cause`` of the items, to be filled in.
    """
    call, returns, wait_cause = columns
    end = gpu.ops["end_ns"][order.ops]
    found: dict[int, tuple[int, ...]] = {}
    causes = _wait_causes(gpu, waits)
    for item, targets, cause in zip(lay.wait_item.tolist(), waits.targets, causes, strict=True):
        wait_cause[item] = cause
        if lay.cut[item]:
            continue
        at, until = int(lay.at_ns[item]), int(lay.until_ns[item])
        finished = max((int(end[t]) for t in targets), default=at)
        waited = finished > at
        call[item] = min(until - at, usual) if waited else until - at
        early = cause == C["launch_bound"]  # a graph launch returns before the end
        since = until - finished if early else max(until - finished, 0)
        returns[item] = since if waited else min(until - at, usual)
        items = tuple(r for t in targets if (r := lay.reference(t)) is not None)
        if items:
            found[item] = items
        elif until - at > usual:
            call[item] = until - at  # it waited for something that the run does not hold
    return found


def _depends(
    waiting: dict[int, set[int]], late: Delays, lay: Layout
) -> dict[int, tuple[tuple[int, int], ...]]:
    """Dependencies between streams as item references, with the turnaround of each."""
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for target, sources in waiting.items():
        item = int(lay.item_of[target])
        if item < 0:
            continue
        between = int(late.dependency_ns[target])
        references = (lay.reference(source) for source in sorted(sources))
        pairs = tuple((r, between) for r in references if r is not None)
        if pairs:
            found[item] = pairs
    return found


def _own_call(gpu: GpuTimeline, order: Order) -> BoolArray:
    """Operations that are the only one of their call (not the nodes of a graph)."""
    call = gpu.call[order.ops]
    if not len(gpu.host.api):
        return np.zeros(len(call), bool)
    count = np.bincount(call[call >= 0], minlength=len(gpu.host.api))
    alone: BoolArray = (call >= 0) & (count[np.maximum(call, 0)] == 1)
    return alone


def _queue(
    order: Order, gpu: GpuTimeline, usual: int, single: BoolArray
) -> tuple[BoolArray, list[int]]:
    """Launches that waited for a place in the queue of their stream, and its depth.

    A launch that takes long while about a thousand are outstanding waits for the device; the
    number that were outstanding when it went on is the depth.
    """
    start = gpu.ops["start_ns"][order.ops]
    end = gpu.enqueue_end_ns[order.ops]
    full = np.zeros(len(order.ops), bool)
    depths = []
    for positions in order.of_stream:
        began = np.sort(start[positions])
        ordinal = np.arange(len(positions))
        outstanding = ordinal - np.searchsorted(began, order.begin_ns[positions])
        slow = end[positions] - order.begin_ns[positions] > max(LONG_CALL_NS, 4 * usual)
        waited = slow & single[positions] & (outstanding >= _NEARLY_FULL)
        full[positions] = waited
        left = ordinal - np.searchsorted(began, end[positions] - usual)
        depths.append(int(np.median(left[waited])) if waited.any() else QUEUE_DEPTH)
    return full, depths


def _behind(order: Order, lay: Layout, depth: list[int], single: BoolArray) -> IntArray:
    """For each item the one whose operation must have started before its call goes on."""
    m = len(lay)
    behind = np.full(m, -2 * m, np.int64)  # long before the first pass: nothing to wait for
    for number, distance in enumerate(depth):
        items = lay.item_of[lay.inside[order.stream[lay.inside] == number]]
        if len(items) and distance >= 1:
            target = np.arange(len(items)) - distance
            behind[items] = items[target % len(items)] + m * (target // len(items))
    behind[lay.item_of[lay.inside[~single[lay.inside]]]] = -2 * m
    return np.maximum(behind, -2 * m)


def _blocking_copies(e: Explanation, order: Order) -> tuple[BoolArray, BoolArray]:
    """Copies whose own call waits for them, and those of them that only read a small value."""
    gpu = e.gpu
    ops, api = gpu.ops, gpu.host.api
    none = np.zeros(len(order.ops), bool)
    if not len(api):
        return none, none
    call = np.maximum(gpu.call, 0)
    by_name = api.matches("name", words.COPY_CALL) & ~api.matches("name", words.ASYNC_COPY_CALL)
    pageable = ops.equals("src_memory", "pageable") | ops.equals("dst_memory", "pageable")
    small = ops["bytes"] <= h.SMALL_COPY_BYTES
    upload, read_back = ops.equals("copy_kind", "HtoD"), ops.equals("copy_kind", "DtoH")
    waits = ops.equals("kind", "memcpy") & (gpu.call >= 0) & (pageable | by_name[call])
    waits &= ~(small & upload) & ~ops.equals("copy_kind", "DtoD")
    # what the call did, not what its name promises: it returned when most of the copy was done
    waits &= gpu.enqueue_end_ns >= (ops["start_ns"] + ops["end_ns"]) // 2
    return waits[order.ops], (waits & small & read_back)[order.ops]


def _wait_causes(gpu: GpuTimeline, waits: HostWaits) -> list[int]:
    """Column of the cause of each wait."""
    api = gpu.host.api
    if not len(waits.call):
        return []
    blocking = blocking_calls(gpu)
    cause = np.full(len(api), C["unexplained"], np.int64)
    cause[gpu.calls_of(gpu.call >= 0)] = C["launch_bound"]
    cause[api.matches("name", words.MODULE_CALL)] = C["compilation_or_warmup"]
    cause[api.matches("name", words.ALLOCATION_CALL)] = C["allocator_churn"]
    cause[blocking.call] = np.where(blocking.is_copy, C["blocking_copy"], C["host_sync"])
    found: list[int] = cause[waits.call].tolist()
    return found


def _host_work(
    e: Explanation, read: Reader, run: Run, at: IntArray, until: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Host time before each item by cause; and recording cost in it and in the item's call."""
    gpu = e.gpu
    timeline = _timeline(e, read, run)
    cause = np.array([C[CAUSE_OF_LABEL[label]] for label in h.LABELS])[timeline.label]
    untraced = np.flatnonzero(timeline.label == h.LABELS.index(h.UNTRACED_CPU))
    if len(untraced):
        is_input, _ = explain_untraced_cpu(gpu, timeline.quiet, e.loop)
        which = np.searchsorted(timeline.quiet[1], timeline.start_ns[untraced], side="right")
        which = np.minimum(which, len(is_input) - 1)
        cause[untraced[is_input[which]]] = C["input_starvation"]
    # what comes before the first item is what the host does after the last one
    begin = np.append(until[-1], until[:-1])
    stop = np.append(run.end_ns, at[1:])
    # by column: those of causes that do not occur take no memory
    work = np.zeros((len(CAUSES), len(at)), np.int64).T
    attributed = _together(e.events.values())
    for column in distinct_values(cause).tolist():
        rows = cause == column
        labelled = timeline.start_ns[rows], timeline.end_ns[rows]
        work[:, column] = overlap_per_window(subtract(labelled, attributed), begin, stop)
    for name, intervals in e.events.items():
        work[:, C[name]] += overlap_per_window(intervals, begin, stop)
    recording = e.recording if len(e.recording.at_ns) else _of_calls(e)
    if not len(recording.at_ns):
        none = np.zeros(len(at), np.int64)
        return work, none, none
    total = recording.between(begin, np.append(run.end_ns, until[1:]))
    apart = inside(_apart(timeline, attributed), recording.at_ns)
    costs = np.diff(recording.total_ns, prepend=0)
    beside = RecordingOverhead(recording.at_ns[apart], np.cumsum(costs[apart]))
    return work, total, beside.between(begin, np.append(run.end_ns, until[1:]))


def _timeline(e: Explanation, read: Reader, run: Run) -> HostTimeline:
    """What the host did in a run of steps."""
    step_ns = (run.end_ns - run.begin_ns) // run.steps
    begins = e.steps.begin_ns[run.first : run.last + 1]
    window = run.begin_ns, run.end_ns
    return classified_timeline(e.gpu, window, step_ns, input_time(e.gpu, read), begins, e.loop)


def not_launching(e: Explanation, read: Reader, run: Run) -> Intervals:
    """When the host of a run does what is no launching.

    Those are long silences, getting input, and the events that own their time. What is recorded
    meanwhile (operators of a loader on the training thread, or of an optimizer on the CPU) is paid
    for there, and costs launching nothing.
    """
    return _apart(_timeline(e, read, run), _together(e.events.values()))


def _apart(timeline: HostTimeline, attributed: Intervals) -> Intervals:
    getting = timeline.label == h.LABELS.index(h.INPUT)
    sets = [timeline.quiet, attributed, (timeline.start_ns[getting], timeline.end_ns[getting])]
    return _together(sets)


def _of_calls(e: Explanation) -> RecordingOverhead:
    """What a tool that does not charge itself adds to the calls of the launching threads."""
    api, tool = e.gpu.host.api, e.tool
    if tool is None or not tool.calls:
        return NO_COST
    at = np.sort(api["start_ns"][among(api["thread_id"], e.gpu.host.launch_threads)])
    each = call_cost_ns(e.gpu, tool)
    return RecordingOverhead(at, np.floor(each * np.arange(1, len(at) + 1)).astype(np.int64))


def _together(sets: Iterable[Intervals]) -> Intervals:
    """The union of some sets of intervals."""
    known = list(sets) or [EMPTY]
    return union(*(np.concatenate(column) for column in zip(*known, strict=True)))
