"""Tell what long untraced CPU time was: waiting for input, noise, or work of its own.

Untraced CPU time is a stretch without any CUDA call on the threads that enqueue work. The
evidence, in the order it is trusted: an annotation or Python function that says so; a wait in the
operating system where there is a loader to wait for; what the thread did with the batch right
afterwards. Without evidence it is host work.

An upload alone is weak evidence, for all host work may end in one. It counts where the program
trains, as far as anyone can tell, where the upload is the first thing in a step and not a mere
scalar, where it does not bring back what went to the host before, and where no kernel needed the
part of a batch that was uploaded before it: the host then had the batch.

Work of the program comes at its place in the step: the same number of operations after the step's
begin, or before its end, as in other steps. A pause at a place that takes microseconds in the
other steps is the machine's doing (another thread or process, a clock interrupt, a page fault).
It costs device time only because the host has no run-ahead, which is what launch-bound means.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from stepscope.activity import host as h
from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline, HostSide, Reader
from stepscope.activity.host import SMALL_COPY_BYTES, HostTimeline, host_timeline
from stepscope.gaps.emptying import with_collections
from stepscope.gaps.offload import returning
from stepscope.intervals import intersect, overlap_per_window, stab_innermost, union
from stepscope.intervals.algebra import EMPTY, Intervals
from stepscope.intervals.distinct import among, distinct_rows, with_counts
from stepscope.trace.frame import BoolArray, IntArray

NO_EVIDENCE: Final = 0
NAMED_INPUT: Final = 1
NAMED_OTHER: Final = 2
OS_WAIT: Final = 3
BATCH_PINNED: Final = 4
BATCH_UPLOADED: Final = 5

EVIDENCE: Final = (
    "the capture does not show what the host did",
    "seen in an annotation or a Python function that gets input",
    "an annotation names other work",
    "the thread waited in the operating system",
    "the thread pinned and copied a batch right afterwards",
    "the thread uploaded a batch right afterwards",
)
"""What each evidence code means."""

_WAIT_SHARE = 0.6

MIN_BATCH_BYTES = 256
"""Less than this is a learning rate or a step's number, but no batch."""

BEGINNING = 0.1
"""Share of a step's operations that may lie between its boundary and the upload of its batch."""


@dataclass(frozen=True)
class Loop:
    """What is known of the loop that the silences lie in.

    Attributes:
        step_label: name or stem of the ranges that mark steps; they say nothing about a part.
        step_begin_ns: when the host begins each step; empty where that is not asked.
        infers: whether the program is known not to train.
    """

    step_label: str = ""
    step_begin_ns: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    infers: bool = False


def input_time(gpu: GpuTimeline, read: Reader) -> Intervals:
    """When an annotation or a Python function says that a launching thread is getting input."""
    annotated = input_ranges(gpu.host)
    functions = read("python_function", "process_id", "thread_id", "start_ns", "end_ns", "name")
    if not len(functions):
        return annotated
    hits = (
        functions.matches("name", words.INPUT_FUNCTION)
        & (functions["process_id"] == gpu.process_id)
        & among(functions["thread_id"], gpu.host.launch_threads)
    )
    return union(
        np.concatenate((annotated[0], functions["start_ns"][hits])),
        np.concatenate((annotated[1], functions["end_ns"][hits])),
    )


def explain_untraced_cpu(
    gpu: GpuTimeline, quiet: Intervals, loop: Loop
) -> tuple[BoolArray, IntArray]:
    """Which silences are waits for input, and by what evidence.

    Args:
        gpu: the device.
        quiet: the silences, a disjoint set.
        loop: the loop that they lie in.

    Returns:
        Mask of the input waits, and an index into ``EVIDENCE``, one value a silence. A silence may
        have evidence that does not suffice.
    """
    n = len(quiet[0])
    evidence = np.full(n, NO_EVIDENCE, np.int64)
    if not n:
        return np.zeros(0, bool), evidence
    host = gpu.host
    batch = np.zeros(n, bool)
    if not len(input_ranges(host)[0]):  # where loading is annotated, silence elsewhere is not it
        uploaded, pinned, batch = _batch_follows(gpu, quiet, loop)
        evidence[uploaded] = BATCH_UPLOADED
        evidence[pinned] = BATCH_PINNED
    is_input = batch | (evidence == BATCH_PINNED)
    waits = _os_waits(host, quiet)
    evidence[waits] = OS_WAIT
    is_input |= waits & has_loader(host)
    named = _named(host, quiet, loop.step_label)
    evidence[named >= 0] = named[named >= 0]
    return np.where(named >= 0, named == NAMED_INPUT, is_input), evidence


def has_loader(host: HostSide) -> bool:
    """Whether a thread or a range is that of a loader of batches."""
    if any(words.LOADER_WITH_WORKERS.search(name) for name in host.thread_names):
        return True
    return bool(len(host.ranges)) and bool(
        (
            host.ranges.matches("name", words.LOADER_WITH_WORKERS)
            | host.ranges.matches("name", words.LOADER_WITHOUT_WORKERS)
        ).any()
    )


def input_ranges(host: HostSide) -> Intervals:
    """When an annotation says that a thread is getting input.

    Only threads that enqueue GPU work count: a worker thread's loading hides behind the step.
    """
    ranges = host.ranges
    if not len(ranges):
        return EMPTY
    launching = among(ranges["thread_id"], host.launch_threads)
    hits = words.hits(ranges, "name", words.is_input_range) & launching
    return union(ranges["start_ns"][hits], ranges["end_ns"][hits])


def _named(host: HostSide, quiet: Intervals, step_label: str) -> IntArray:
    """NAMED_INPUT or NAMED_OTHER by the innermost telling range in mid-silence; -1 for none."""
    n = len(quiet[0])
    ranges = host.ranges
    if not len(ranges):
        return np.full(n, -1, np.int64)
    telling = ~np.append(words.marking_steps(ranges.texts["name"], step_label), True)
    rows = np.flatnonzero(telling[ranges["name"]] & (ranges["thread_id"] == host.main_thread))
    if not len(rows):
        return np.full(n, -1, np.int64)
    middle = (quiet[0] + quiet[1]) // 2
    inner = stab_innermost(ranges["start_ns"][rows], ranges["end_ns"][rows], middle)
    is_input = words.hits(ranges, "name", words.is_input_range)[rows]
    return np.where(inner < 0, -1, np.where(is_input[inner], NAMED_INPUT, NAMED_OTHER))


def _os_waits(host: HostSide, quiet: Intervals) -> BoolArray:
    calls = host.os_calls
    if not len(calls):
        return np.zeros(len(quiet[0]), bool)
    waiting = calls.matches("name", words.WAIT_CALL) & (calls["thread_id"] == host.main_thread)
    waits = union(calls["start_ns"][waiting], calls["end_ns"][waiting])
    covered = overlap_per_window(intersect(waits, quiet), quiet[0], quiet[1])
    return covered >= _WAIT_SHARE * (quiet[1] - quiet[0])


def _batch_follows(
    gpu: GpuTimeline, quiet: Intervals, loop: Loop
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Silences after which the thread's first real call uploads data, pins it, uploads a batch.

    Pinning a batch on the training thread is what a loader without workers does; an upload alone
    is weaker evidence, because any host work at the end of a step ends the same way.
    """
    api = gpu.host.api
    none = np.zeros(len(quiet[0]), bool)
    if not len(api):
        return none, none, none
    mine = among(api["thread_id"], gpu.host.launch_threads)
    is_upload = gpu.calls_of(gpu.ops.equals("kind", "memcpy") & gpu.ops.equals("copy_kind", "HtoD"))
    is_pinning = api.matches("name", words.PINNING_CALL)
    is_query = api.matches("name", words.QUERY_CALL)

    def first_after(mask: BoolArray) -> IntArray:
        rows = np.append(np.flatnonzero(mask & mine), len(api))
        return rows[np.searchsorted(api["start_ns"][rows[:-1]], quiet[1])]

    first_real = first_after(~is_pinning & ~is_query)
    uploaded = np.append(is_upload, False)[first_real]
    pinned = uploaded & (first_after(is_pinning) < first_real)
    op_of = np.full(len(api) + 1, -1, np.int64)
    linked = np.flatnonzero(gpu.call >= 0)[::-1]
    op_of[gpu.call[linked]] = linked
    op = op_of[first_real]
    batch = uploaded & (op >= 0) & ~np.bool_(loop.infers)
    batch[batch] = _is_batch(gpu, op[batch], loop.step_begin_ns)
    return uploaded, pinned, batch


def _is_batch(gpu: GpuTimeline, op: IntArray, step_begin_ns: IntArray) -> BoolArray:
    """Which uploads look like a batch: first in a step, no scalars, nothing that comes back."""
    if not len(op) or not len(step_begin_ns):
        return np.ones(len(op), bool)
    ops, enqueued = gpu.ops, gpu.enqueue_begin_ns
    is_up = ops.equals("kind", "memcpy") & ops.equals("copy_kind", "HtoD")
    order = np.argsort(enqueued, kind="stable")
    place = np.empty(len(ops), np.int64)
    place[order] = np.arange(len(ops))
    # what is uploaded before the next kernel is one batch
    kernels = np.append(np.flatnonzero(gpu.is_kernel[order]), len(order))
    until = kernels[np.searchsorted(kernels[:-1], place[op])]
    size = np.where(is_up, np.maximum(ops["bytes"], 0), 0)[order]
    total = np.concatenate(([0], np.cumsum(size)))
    enough = total[until] - total[place[op]] >= MIN_BATCH_BYTES
    # and what was uploaded since the last kernel is a part of the same one
    after = np.concatenate(([0], kernels[:-1] + 1))
    first_of_it = after[np.searchsorted(kernels[:-1], place[op])]
    enough &= total[place[op]] - total[first_of_it] < MIN_BATCH_BYTES
    back = ~returning(gpu, step_begin_ns)[op] | (ops["bytes"][op] <= SMALL_COPY_BYTES)
    at = np.sort(enqueued[gpu.is_kernel])
    few = BEGINNING * len(at) / max(len(step_begin_ns), 1)
    step = np.searchsorted(step_begin_ns, enqueued[op], side="right")
    edges = np.concatenate(([np.iinfo(np.int64).min], step_begin_ns, [np.iinfo(np.int64).max]))
    begun, here, closed = (
        np.searchsorted(at, times) for times in (edges[step], enqueued[op], edges[step + 1])
    )
    first = (here - begun <= few) | (closed - here <= few)
    # A boundary found in the kernels may lie anywhere in the loop: where updates of parameters are
    # known, the batch comes soon after one. Micro-batches have the same size.
    updates = np.sort(enqueued[gpu.is_kernel & gpu.ops.matches("name", words.OPTIMIZER_KERNEL)])
    latest = np.searchsorted(updates, enqueued[op]) - 1
    if len(updates):
        since = here - np.searchsorted(at, updates[np.maximum(latest, 0)])
        soon = (latest < 0) | (since <= few + 1)
        amount = total[until] - total[place[op]]
        first &= soon | among(amount, amount[soon & first & (latest >= 0)])
    return np.asarray(enough & back & first, np.bool_)


MIN_STEPS = 4
"""Fewer steps cannot tell what recurs."""

RECURS_IN = 0.25
"""Share of the steps, two at least, in which a pause at one place is the program's own."""


def classified_timeline(
    gpu: GpuTimeline,
    window_ns: tuple[int, int],
    step_ns: int,
    getting_input: Intervals,
    step_begin_ns: IntArray,
    loop: Loop,
) -> HostTimeline:
    """What the host did in a window; collections and noise are no untraced CPU time of their own.

    Args:
        gpu: the device.
        window_ns: begin and end of the window, ns.
        step_ns: length of a step, ns; it says from when on a silence is long.
        getting_input: when the host is known to be getting input.
        step_begin_ns: when the host begins each step of the window, ns.
        loop: the loop of the steps.
    """
    timeline = host_timeline(gpu, *window_ns, step_ns, getting_input)
    timeline = with_collections(timeline, gpu, loop.step_label)
    return _without_noise(timeline, gpu, step_begin_ns, loop)


def _without_noise(
    timeline: HostTimeline, gpu: GpuTimeline, step_begin_ns: IntArray, loop: Loop
) -> HostTimeline:
    """The timeline with noise among its silences labelled as part of the dispatch.

    Args:
        timeline: what the host did in the steady window.
        gpu: the device.
        step_begin_ns: when the host begins each steady step.
        loop: the loop of the steps.
    """
    start, end = timeline.quiet
    short = end - start < h.LONGEST_UNTRACED_NS
    if len(step_begin_ns) < MIN_STEPS or not short.any():
        return timeline
    noise = short & ~_recurs(gpu, end, step_begin_ns)
    if noise.any():  # a loader may be late now and then
        noise &= ~explain_untraced_cpu(gpu, timeline.quiet, loop)[0]
    if not noise.any():
        return timeline
    return replace(timeline.with_silences(noise, h.DISPATCH), irregular=(start[noise], end[noise]))


def _recurs(gpu: GpuTimeline, at: IntArray, step_begin_ns: IntArray) -> BoolArray:
    """Whether silences that end at some times have their like at the same place in other steps."""
    enqueued = np.sort(gpu.enqueue_begin_ns)
    edges = np.searchsorted(enqueued, np.append(step_begin_ns, np.iinfo(np.int64).max))
    step = np.maximum(np.searchsorted(step_begin_ns, at, side="right") - 1, 0)
    position = np.searchsorted(enqueued, at)
    needed = max(2.0, RECURS_IN * len(step_begin_ns))
    found = np.zeros(len(at), bool)
    for place in (position - edges[step], edges[step + 1] - position):
        places, steps = with_counts(place[distinct_rows((place, step))[0]])
        found |= steps[np.searchsorted(places, place)] >= needed
    return found
