"""Build the program of one rank from its lane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.analysis import host as h
from stepscope.analysis.explain import Explanation
from stepscope.analysis.gaps import CAUSE_OF_LABEL, CAUSES
from stepscope.analysis.host import blocking_calls, host_timeline
from stepscope.analysis.lanes import Lane, Reader
from stepscope.analysis.profiler_cost import RecordedCost
from stepscope.analysis.silence import explain_silences, input_time
from stepscope.analysis.simulation.costs import delays, typical_call_ns
from stepscope.analysis.simulation.program import (
    LAUNCH,
    MARK,
    QUEUE_DEPTH,
    WAIT,
    C,
    Program,
)
from stepscope.analysis.simulation.waits import (
    LONG_CALL_NS,
    HostWaits,
    Order,
    enqueue_order,
    host_waits,
    operation_waits,
    recorded_events,
)
from stepscope.analysis import vocabulary as words
from stepscope.trace.frame import BoolArray, IntArray

_NEARLY_FULL: Final = 512
"""A launch that takes long with at least this many operations outstanding waits for the queue."""


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
        mine = e.lane.enqueue_begin_ns >= begins[last]
        end = int(e.lane.enqueue_end_ns[mine].max()) if mine.any() else e.steps.end_ns
    else:
        end = e.steps.end_ns
    measured = int(e.bounds_ns[last + 1] - e.bounds_ns[first])
    return Run(first, last, int(begins[first]), max(end, int(begins[last]) + 1), measured)


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
        rows: rows of ``lane.ops`` that are matched collectives.
        instances: ids of the collectives.
    """
    lane = e.lane
    order = enqueue_order(lane)
    events = recorded_events(lane, read, order)
    waiting, inferred = operation_waits(lane, order, events)
    waits = host_waits(lane, order, events, run.begin_ns, run.end_ns)
    called_end = lane.enqueue_end_ns[order.ops]
    usual = typical_call_ns(lane)
    single = _own_call(lane, order)
    full, depth = _queue(order, lane, usual, single)
    called = np.where(full, np.maximum(order.begin_ns, called_end - usual), order.begin_ns)
    late = delays(lane, order, waiting, called)
    blocks, reads = _blocking_copies(e, order)

    inside = np.flatnonzero((order.begin_ns >= run.begin_ns) & (order.begin_ns < run.end_ns))
    n_op, n_wait, n_mark = len(inside), len(waits.call), run.steps
    api = lane.host.api
    at = np.concatenate(
        (
            e.steps.begin_ns[run.first : run.last + 1],
            order.begin_ns[inside],
            api["start_ns"][waits.call] if n_wait else np.empty(0, np.int64),
        )
    )
    until = np.concatenate(
        (
            at[:n_mark],
            called_end[inside],
            api["end_ns"][waits.call] if n_wait else np.empty(0, np.int64),
        )
    )
    kind = np.repeat(np.array([MARK, LAUNCH, WAIT], np.int64), (n_mark, n_op, n_wait))
    hosted = np.concatenate(
        (np.ones(n_mark, bool), lane.call[order.ops[inside]] >= 0, np.ones(n_wait, bool))
    )
    # a call that both launches and waits (a graph) waits first
    rank_in_time = np.repeat(np.array([0, 2, 1]), (n_mark, n_op, n_wait))
    sequence = np.lexsort((np.arange(len(at)), rank_in_time, at))
    place = np.empty(len(at), np.int64)
    place[sequence] = np.arange(len(at))
    item_of = np.full(len(order.ops), -1, np.int64)
    item_of[inside] = place[n_mark : n_mark + n_op]
    wait_item = place[n_mark + n_op :]
    at, until, kind, hosted = at[sequence], until[sequence], kind[sequence], hosted[sequence]
    m = len(at)
    position = np.full(m, -1, np.int64)
    position[item_of[inside]] = inside
    is_op = position >= 0
    reference = _references(order, inside, item_of, m)

    # one program order: what other threads do meanwhile ends a call's turn; operations that
    # share a call, and those of unknown call, take no host time of their own
    until = np.where(hosted, until, at)
    until = np.maximum(np.minimum(until, np.append(at[1:], run.end_ns)), at)
    work, recording, silent = _host_work(e, read, run, at, until)
    call = until - at
    cut = np.zeros(m, bool)  # another thread went on while this call waited
    cut[wait_item] = _cut_short(lane, waits, until[wait_item])

    def of_ops(values: IntArray, otherwise: int = 0) -> IntArray:
        return np.where(is_op, values[np.maximum(position, 0)], otherwise).astype(np.int64)

    start, end = (lane.ops[c][order.ops] for c in ("start_ns", "end_ns"))
    duration = of_ops(end - start)
    is_blocking = is_op & blocks[np.maximum(position, 0)] & (call > 0)
    wait_cause = np.full(m, -1, np.int64)
    returns = np.zeros(m, np.int64)
    own_end = of_ops(end)
    returns[is_blocking] = until[is_blocking] - own_end[is_blocking]
    wait_cause[is_blocking] = C["blocking_copy"]
    wait_cause[is_op & reads[np.maximum(position, 0)] & is_blocking] = C["host_sync"]
    call = np.where(is_blocking, np.minimum(call, usual), call)
    is_full = is_op & full[np.maximum(position, 0)] & ~is_blocking
    call = np.where(is_full, np.minimum(call, usual), call)

    wait_of: dict[int, tuple[int, ...]] = {}
    causes = _wait_causes(lane, waits)
    for item, targets, cause in zip(wait_item.tolist(), waits.targets, causes, strict=True):
        wait_cause[item] = cause
        if cut[item]:
            continue
        items = tuple(r for t in targets if (r := reference(t)) is not None)
        finished = max((int(end[t]) for t in targets), default=int(at[item]))
        if finished > at[item]:
            returns[item] = max(int(until[item]) - finished, 0)
            call[item] = min(int(call[item]), usual)
        else:
            returns[item] = min(int(call[item]), usual)
        if items:
            wait_of[item] = items
    depends: dict[int, tuple[tuple[int, int], ...]] = {}
    for target, sources in waiting.items():
        if item_of[target] >= 0:
            pairs = tuple(
                (r, int(late.dependency_ns[target]))
                for s in sorted(sources)
                if (r := reference(s)) is not None
            )
            if pairs:
                depends[int(item_of[target])] = pairs
    instance = np.full(m, -1, np.int64)
    if rows is not None and instances is not None:
        of_row = np.full(len(lane.ops), -1, np.int64)
        of_row[rows] = instances
        instance[is_op] = of_row[order.ops[position[is_op]]]
    return Program(
        kind=kind,
        op=np.where(is_op, order.ops[np.maximum(position, 0)], -1).astype(np.int64),
        at_ns=at,
        work_ns=work,
        call_ns=call,
        recording_ns=recording,
        recording_silent_ns=silent,
        stream=of_ops(order.stream, -1),
        latency_ns=of_ops(late.latency_ns),
        turnaround_ns=of_ops(late.turnaround_ns),
        delay_ns=of_ops(late.delay_ns),
        duration_ns=duration,
        hosted=hosted,
        blocks=is_blocking,
        wait_cause=wait_cause,
        return_ns=returns,
        instance=instance,
        depends=depends,
        waits=wait_of,
        inferred=frozenset(int(item_of[t]) for t in inferred if item_of[t] >= 0),
        behind=_behind(order, inside, item_of, m, depth, single),
        streams=order.streams,
        communication=is_op & lane.is_communication[order.ops[np.maximum(position, 0)]],
    )


def _own_call(lane: Lane, order: Order) -> BoolArray:
    """Operations that are the only one of their call (not the nodes of a graph)."""
    call = lane.call[order.ops]
    if not len(lane.host.api):
        return np.zeros(len(call), bool)
    count = np.bincount(call[call >= 0], minlength=len(lane.host.api))
    alone: BoolArray = (call >= 0) & (count[np.maximum(call, 0)] == 1)
    return alone


def _queue(order: Order, lane: Lane, usual: int, single: BoolArray) -> tuple[BoolArray, list[int]]:
    """Launches that waited for a place in the queue of their stream, and its depth.

    A launch that takes long while about a thousand are outstanding waits for the device; the
    number that were outstanding when it went on is the depth.
    """
    start = lane.ops["start_ns"][order.ops]
    end = lane.enqueue_end_ns[order.ops]
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


def _behind(
    order: Order,
    inside: IntArray,
    item_of: IntArray,
    m: int,
    depth: list[int],
    single: BoolArray,
) -> IntArray:
    """For each item the one whose operation must have started before its call goes on."""
    behind = np.zeros(m, np.int64)
    for number, distance in enumerate(depth):
        mine = inside[order.stream[inside] == number]
        items = item_of[mine]
        if not len(items) or distance < 1:
            continue
        target = np.arange(len(items)) - distance
        behind[items] = items[target % len(items)] + m * (target // len(items))
    behind[item_of[inside[~single[inside]]]] = -2 * m
    return np.maximum(behind, -2 * m)


def _references(
    order: Order, inside: IntArray, item_of: IntArray, m: int
) -> Callable[[int], int | None]:
    """Translate positions in the order into item references, those before the run included."""
    of_stream = {
        number: (positions, item_of[positions[item_of[positions] >= 0]])
        for number, positions in enumerate(order.of_stream)
    }

    def reference(position: int) -> int | None:
        if item_of[position] >= 0:
            return int(item_of[position])
        positions, items = of_stream[int(order.stream[position])]
        if not len(items) or position > inside[-1]:
            return None
        at = int(np.searchsorted(positions, position))
        first = int(np.searchsorted(positions, inside[0]))
        back = at - first  # negative: this many before the stream's first of the run
        return int(items[back]) - m if -len(items) <= back < 0 else None

    return reference


def _blocking_copies(e: Explanation, order: Order) -> tuple[BoolArray, BoolArray]:
    """Copies whose own call waits for them, and those of them that only read a small value."""
    lane = e.lane
    ops, api = lane.ops, lane.host.api
    none = np.zeros(len(order.ops), bool)
    if not len(api):
        return none, none
    call = np.maximum(lane.call, 0)
    by_name = api.matches("name", words.COPY_CALL) & ~api.matches("name", words.ASYNC_COPY_CALL)
    pageable = ops.equals("src_memory", "pageable") | ops.equals("dst_memory", "pageable")
    small = ops["bytes"] <= h.SMALL_COPY_BYTES
    upload, read_back = ops.equals("copy_kind", "HtoD"), ops.equals("copy_kind", "DtoH")
    waits = ops.equals("kind", "memcpy") & (lane.call >= 0) & (pageable | by_name[call])
    waits &= ~(small & upload) & ~ops.equals("copy_kind", "DtoD")
    # what the call did, not what its name promises: it returned when most of the copy was done
    waits &= lane.enqueue_end_ns >= (ops["start_ns"] + ops["end_ns"]) // 2
    return waits[order.ops], (waits & small & read_back)[order.ops]


def _cut_short(lane: Lane, waits: HostWaits, until: IntArray) -> BoolArray:
    """Waits during which another thread went on enqueueing."""
    if not len(waits.call):
        return np.empty(0, bool)
    cut: BoolArray = until < lane.host.api["end_ns"][waits.call]
    return cut


def _wait_causes(lane: Lane, waits: HostWaits) -> list[int]:
    """Column of the cause of each wait."""
    api = lane.host.api
    if not len(waits.call):
        return []
    blocking = blocking_calls(lane)
    cause = np.full(len(api), C["unexplained"], np.int64)
    cause[lane.calls_of(lane.call >= 0)] = C["launch_bound"]
    cause[api.matches("name", words.MODULE_CALL)] = C["compilation_or_warmup"]
    cause[api.matches("name", words.ALLOCATION_CALL)] = C["allocator_churn"]
    cause[blocking.call] = np.where(blocking.is_copy, C["blocking_copy"], C["host_sync"])
    found: list[int] = cause[waits.call].tolist()
    return found


def _host_work(
    e: Explanation, read: Reader, run: Run, at: IntArray, until: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Host time before each item by cause; and recording cost in it and in the item's call."""
    lane = e.lane
    step = (run.end_ns - run.begin_ns) // run.steps
    timeline = host_timeline(lane, run.begin_ns, run.end_ns, step, input_time(lane, read))
    cause = np.array([C[CAUSE_OF_LABEL[label]] for label in h.LABELS])[timeline.label]
    silent = np.flatnonzero(timeline.label == h.LABELS.index(h.SILENCE))
    if len(silent):
        is_input, _ = explain_silences(lane, timeline.quiet, e.steps.label)
        which = np.searchsorted(timeline.quiet[1], timeline.start_ns[silent], side="right")
        which = np.minimum(which, len(is_input) - 1)
        cause[silent[is_input[which]]] = C["input_starvation"]
    # what comes before the first item is what the host does after the last one
    begin = np.append(until[-1], until[:-1])
    stop = np.append(run.end_ns, at[1:])
    work = np.zeros((len(at), len(CAUSES)), np.int64)
    for column in np.unique(cause).tolist():
        rows = cause == column
        upto = _running(timeline.start_ns[rows], timeline.end_ns[rows])
        work[:, column] = upto(stop) - upto(begin)
    recording = e.recording
    if not len(recording.at_ns):
        none = np.zeros(len(at), np.int64)
        return work, none, none
    total = recording.between(begin, np.append(run.end_ns, until[1:]))
    quiet_at = np.searchsorted(timeline.quiet[0], recording.at_ns, side="right") - 1
    in_quiet = quiet_at >= 0
    in_quiet &= recording.at_ns < np.append(timeline.quiet[1], 0)[quiet_at]
    costs = np.diff(recording.total_ns, prepend=0)
    quiet = RecordedCost(recording.at_ns[in_quiet], np.cumsum(costs[in_quiet]))
    return work, total, quiet.between(begin, stop)


def _running(start: IntArray, end: IntArray) -> Callable[[IntArray], IntArray]:
    """How much of a disjoint set lies before a time."""
    covered = np.concatenate(([0], np.cumsum(end - start)))

    def upto(time: IntArray) -> IntArray:
        at = np.searchsorted(start, time, side="right")
        last = np.maximum(at - 1, 0)
        over = np.where(at > 0, np.maximum(end[last] - time, 0), 0)
        return np.asarray(covered[at] - over, np.int64)

    return upto
