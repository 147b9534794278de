"""Programs without a cause of idle time: one function a cause that is more than host time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from stepscope.activity import host as h
from stepscope.gaps.idle import CROWDED_NS
from stepscope.intervals.distinct import among, distinct_values
from stepscope.simulation.changes import Bound
from stepscope.simulation.links import without
from stepscope.simulation.program import (
    GRAPH_MEMSET_BYTES,
    GRAPH_MEMSET_NS,
    GRAPH_NS,
    MARK,
    SLOW_GRAPH_NS,
    WAIT,
    C,
    Program,
    own_work,
)
from stepscope.simulation.subject import (
    Subject,
    directly_after,
    launching_ns,
    on_own_stream,
    without_items,
    without_waits,
)
from stepscope.trace.frame import BoolArray, IntArray

RECORDING_FACTOR: Final[dict[Bound, float]] = {"low": 2.0, "expected": 1.0, "high": 0.5}
"""What recording costs over its estimate: unit costs of events vary by a factor of two between runs
of one loop (``gaps.profiler_overhead``)."""

READ_LAUNCHES: Final = 4
"""Reading a value takes a reduction of one to three kernels (a norm, a mean and a cast) and the
copy to the host; a loop with more launches from one read to the next does other work as well."""


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
    ends &= ~directly_after(program, _reads(subject))
    return subject.becomes(
        waits=without(program.waits, ends),
        call_ns=np.where(ends, 0, program.call_ns),
    )


def _without_leading_reads(subject: Subject, freed_ns: IntArray) -> Subject:
    """Without the reads that host work begins with.

    With nothing enqueued in between a value is read for the work (a metric, a log, a choice), and
    so are results that NumPy computes with; they are not read where the work goes.

    Args:
        subject: the program, with the host work in place.
        freed_ns: its host work by cause once the work is gone.
    """
    program = subject.program
    works = program.work_ns[:, C["host_compute"]] > freed_ns[:, C["host_compute"]]
    reads = _reads(subject, large=True)
    launches = np.flatnonzero(subject.is_op)
    last = len(program) - 1
    rows = np.flatnonzero(reads)
    following = np.append(launches, last)[np.searchsorted(launches, rows, side="right")]
    so_far = np.cumsum(works)
    rows = rows[so_far[following] > so_far[rows]]
    leads = np.zeros(len(program), bool)
    leads[rows] = True
    waits = (program.kind == WAIT) & among(program.wait_cause, _OF_READS)
    leads |= waits & directly_after(program, leads)
    if not leads.any():
        return subject
    return without_items(without_waits(subject, leads), leads & reads, "all")


def _without_waits(subject: Subject, cause: str) -> Subject:
    return without_waits(subject, subject.program.wait_cause == C[cause])


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
        kernel_gap_ns=gap_in_graph_ns(subject, bound),
    )


def gap_in_graph_ns(subject: Subject, bound: Bound) -> IntArray:
    """From the end of the predecessor on the stream to the start where both are in one graph."""
    ops = subject.gpu.ops
    clears = ops.equals("kind", "memset") & (ops["bytes"] <= GRAPH_MEMSET_BYTES)
    most = SLOW_GRAPH_NS if bound == "high" else GRAPH_NS
    quick = np.minimum(subject.program.kernel_gap_ns, most)
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
    rest = (program.recording_ns - program.recording_untraced_ns) * min(factor, 1.0)
    if beyond := max(factor - 1.0, 0.0) * program.recorded_share:
        rest = rest + beyond * _between_events_ns(program)
    rest = rest.astype(np.int64)
    if untraced.any():
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


def _no_kernel_gap(subject: Subject, bound: Bound) -> Subject:
    return subject.becomes(kernel_gap_ns=np.minimum(subject.program.kernel_gap_ns, 0))


def _no_delays(subject: Subject, bound: Bound) -> Subject:
    work = own_work(subject.program)
    work[:, C["unexplained"]] = 0
    freed = subject.becomes(work_ns=work, delay_ns=np.zeros_like(subject.program.delay_ns))
    return _without_waits(freed, "unexplained")


def _no_synchronisation(subject: Subject, bound: Bound) -> Subject:
    """No wait for the device; values are not read back, nor computed only to be read.

    Nor are they summed over the ranks for that: of what each rank keeps, the sum can wait until it
    is read.
    """
    reads = _reads(subject)
    gone = _without_waits(subject, "host_sync")
    work = own_work(gone.program)
    work[:, C["host_sync"]] = 0
    gone = gone.becomes(work_ns=work)
    if bound == "high":
        return gone
    shared = _shared_to_read(subject, reads)
    if bound == "low":
        shared |= _only_to_read(subject, reads, shared)
    return without_items(gone, reads | shared, "all")


_OF_READS: Final = (C["host_sync"], C["blocking_copy"])
"""What the host's wait for a copy is charged to: for a small one, and for a large one."""


def _reads(subject: Subject, *, large: bool = False) -> BoolArray:
    """Copies that bring a small value, or any, to the host, which then waits for it."""
    program = subject.program
    ops = subject.gpu.ops
    copies = ops.equals("kind", "memcpy") & ops.equals("copy_kind", "DtoH")
    if not large:
        copies &= ops["bytes"] <= h.SMALL_COPY_BYTES
    reads = subject.of_ops(copies)
    waits = among(program.wait_cause, _OF_READS[: 1 + large])
    others = np.flatnonzero(program.kind != MARK)
    following = np.zeros(len(program), bool)
    following[others] = np.roll(waits[others], -1)
    found: BoolArray = reads & (waits | following)
    return found


def _shared_to_read(subject: Subject, reads: BoolArray) -> BoolArray:
    """Collectives of a small value that are enqueued directly before it is read."""
    found = np.zeros(len(subject.program), bool)
    launches = np.flatnonzero(subject.is_op)
    if len(subject.small) and len(launches):
        found[launches] = np.append(reads[launches[1:]], False)
        found &= subject.of_ops(subject.small)
    return found


def _only_to_read(subject: Subject, reads: BoolArray, shared: BoolArray) -> BoolArray:
    """What lies between two reads that follow one another closely, with little enqueued.

    Args:
        subject: the program.
        reads: the reads.
        shared: what shares a value with other ranks to read it, which is no work of its own.
    """
    program = subject.program
    inside = np.zeros(len(program), bool)
    rows = np.flatnonzero(reads)
    if len(rows) < 2:
        return inside
    at = program.at_ns
    upto = np.cumsum(subject.is_op & ~shared)
    marks = np.cumsum(program.kind == MARK)
    before, after = rows[:-1], rows[1:]
    close = (at[after] - at[before] < CROWDED_NS) & (marks[after] == marks[before])
    close &= upto[after] - upto[before] <= READ_LAUNCHES
    change = np.zeros(len(program) + 1, np.int64)
    np.add.at(change, before[close] + 1, 1)
    np.add.at(change, after[close] + 1, -1)
    inside = np.cumsum(change[:-1]) > 0
    return inside


def _copies_overlap(subject: Subject, bound: Bound) -> Subject:
    """Blocking copies become pinned and asynchronous; where none blocks, uploads run beside.

    They stay in the order of their stream, where ``non_blocking=True`` leaves them; on a stream of
    their own (low) they run beside the kernels. Where the capture does not show how fast pinned
    copies are, they may be half as fast (high). Uploads that do not block already, but stand
    between kernels of their stream, have no other repair than that stream.
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
    if not copies.any():
        uploads = ops.equals("copy_kind", "HtoD") & (ops["bytes"] > h.SMALL_COPY_BYTES)
        computes = distinct_values(program.stream[subject.of_ops(gpu.is_kernel)])
        moved = subject.of_ops(uploads) & among(program.stream, computes)
        return on_own_stream(freed, moved, after=False)
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
