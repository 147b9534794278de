"""Find where a program stops training to save its state: checkpoint stalls.

Saving a state reads every tensor of it back to the host, one copy after another with hardly a
kernel between, then serialises and writes it while the device has nothing to do. It happens in a
few of the steps. Annotations, Python functions and file-writing calls say so directly; without
them the copies do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline, Reader
from stepscope.activity.host import LONG_UNTRACED_NS, HostEvents, blocking_calls, inside
from stepscope.intervals import intersect, overlap_per_window, subtract, union
from stepscope.intervals.algebra import EMPTY, Intervals
from stepscope.intervals.distinct import among
from stepscope.steps.model import host_device_copies
from stepscope.trace.frame import BoolArray, Frame, IntArray

NAMED: Final = 0

STALL_EVIDENCE: Final = (
    "an annotation or Python function says that state is saved",
    "many tensors are read back one after the other, in a few of the steps",
    "the thread writes a file, in a few of the steps",
)
"""What each evidence code means; the first is ``NAMED``."""

MIN_BYTES = 1 << 20
"""A state smaller than this is read back in some 100 us: its cost is not worth a finding."""

MIN_COPIES = 8
"""A model has at least a handful of tensors; one or two large copies are a result of some other
kind, unless a file is written next."""

FEW_COPIES = 3
"""So many copies are enough where the step launches no more kernels than others do and the host is
silent for most of the burst: it serialises one tensor after the other, as those of a recurrent
network, which are few and large. An evaluation that reads results back has launched kernels."""

SILENT_SHARE = 0.5
"""Share of a burst, and of what follows it, in which the host makes no call while it serialises."""

TIMES_NORMAL = 4
"""A step that saves reads this many times what the median step does. What is read in every step
alike is a blocking copy."""

KERNELS_BETWEEN = 3
"""Operations that may stand between two copies of one burst: making a tensor contiguous or
casting it takes one or two kernels, gathering its shards one more."""

TIMES_A_STEP = 2
"""A range that says checkpoint more often than this in a step is activation checkpointing."""

FEW_KERNELS = 0.02
"""Kernels, as a share of a step's, that saving may launch besides those that belong to copies."""

WRITING_SHARE = 0.3
"""A silence in which the thread writes files for this share is the writing of a file: the rest is
the serialisation before each write, which takes about as long as the write itself."""


@dataclass(frozen=True)
class Stalls(HostEvents):
    """The stalls of a window, in time order, disjoint.

    Attributes:
        start_ns: when the host begins to save.
        end_ns: when it goes on with training.
        copies: device-to-host copies of each.
        bytes: their bytes.
        copy_ns: device time in which only copies between host and device run.
        evidence: index into ``STALL_EVIDENCE``.
        read_ids: ``gpu_op.id`` of the copies of all stalls.
    """

    copies: IntArray
    bytes: IntArray
    copy_ns: IntArray
    evidence: IntArray
    read_ids: IntArray


_NOTHING = np.empty(0, np.int64)
NO_STALLS: Final = Stalls(*[_NOTHING] * 7)


def find_stalls(
    gpu: GpuTimeline,
    read: Reader,
    step_begin_ns: IntArray,
    window: Intervals,
    input_time: Intervals = EMPTY,
    returning: IntArray = _NOTHING,
) -> Stalls:
    """The checkpoint stalls inside a window.

    Args:
        gpu: the device that trains.
        read: gives tables as frames.
        step_begin_ns: when the host begins each steady step; the last one ends with the window.
        window: begin and end of the steady steps, one interval.
        input_time: when something says that a launching thread was getting input: the saving has
            ended by then.
        returning: rows of ``GPU.ops`` of copies of data that comes back to the device: what is
            offloaded is not saved.
    """
    begin, end = int(window[0][0]), int(window[1][0])
    named = _named(gpu, read, len(step_begin_ns))
    bursts = _bursts(gpu, step_begin_ns, returning)
    until = _until_training(gpu, bursts["end_ns"], input_time[0], end)
    spans, written = _writing(gpu, bursts["end_ns"], until, begin, end)
    rare = _rare(bursts["start_ns"], bursts["bytes"], step_begin_ns, begin, end, until)
    many = (bursts["copies"] >= MIN_COPIES) | written
    in_named = inside(named, bursts["start_ns"])
    many |= _serialised(gpu, bursts, until, step_begin_ns)
    chosen = (bursts["bytes"] >= MIN_BYTES) & rare & many & ~in_named
    rare_span = _rare(spans[0], spans[1] - spans[0], step_begin_ns, begin, end)
    since = _silent_since(gpu, bursts["start_ns"][chosen], input_time[1])
    found = [
        (named[0], _until_anything(gpu, named[1], end)),
        (since, until[chosen]),
        (spans[0][rare_span], spans[1][rare_span]),
    ]
    joined = union(
        np.concatenate([part[0] for part in found]), np.concatenate([part[1] for part in found])
    )
    joined = intersect(joined, window)
    if not len(joined[0]):
        return NO_STALLS
    return _described(gpu, joined, [union(*part) for part in found])


def _described(gpu: GpuTimeline, stalls: Intervals, by_evidence: list[Intervals]) -> Stalls:
    ops = gpu.ops
    start, end = stalls
    evidence = np.full(len(start), len(by_evidence) - 1, np.int64)
    for code in reversed(range(len(by_evidence))):  # the strongest evidence wins
        evidence[overlap_per_window(by_evidence[code], start, end) > 0] = code
    reads = np.flatnonzero(ops.equals("kind", "memcpy") & ops.equals("copy_kind", "DtoH"))
    which = np.searchsorted(start, gpu.enqueue_begin_ns[reads], side="right") - 1
    mine = (which >= 0) & (gpu.enqueue_begin_ns[reads] < end[np.maximum(which, 0)])
    which, reads = which[mine], reads[mine]
    copies = np.bincount(which, minlength=len(start))
    size = np.zeros(len(start), np.int64)
    np.add.at(size, which, np.maximum(ops["bytes"][reads], 0))
    done = end.copy()  # a copy that nobody waits for may end after the host has gone on
    np.maximum.at(done, which, ops["end_ns"][reads])
    done = np.minimum(done, np.append(start[1:], np.iinfo(np.int64).max))
    exposed = subtract(gpu.union_of(host_device_copies(gpu)), gpu.union_of(gpu.is_kernel))
    return Stalls(
        start_ns=start,
        end_ns=end,
        copies=copies.astype(np.int64),
        bytes=size,
        copy_ns=overlap_per_window(exposed, start, done),
        evidence=evidence,
        read_ids=ops["id"][reads],
    )


def _bursts(gpu: GpuTimeline, step_begin_ns: IntArray, returning: IntArray) -> Frame:
    """Runs of device-to-host copies of one step with hardly a kernel between, as enqueued.

    Columns ``start_ns`` and ``end_ns`` (of the enqueueing calls, or of the copies where the host
    waits for them), ``copies``, ``bytes``.
    """
    ops = gpu.ops
    order = np.argsort(gpu.enqueue_begin_ns, kind="stable")
    is_read = ops.equals("kind", "memcpy") & ops.equals("copy_kind", "DtoH")
    is_read[returning] = False
    at = np.flatnonzero(is_read[order])
    if not len(at):
        return Frame(dict.fromkeys(("start_ns", "end_ns", "copies", "bytes"), _NOTHING))
    rows = order[at]
    step = np.searchsorted(step_begin_ns, gpu.enqueue_begin_ns[rows], side="right")
    apart = (np.diff(at) > KERNELS_BETWEEN + 1) | (np.diff(step) > 0)
    first = np.flatnonzero(np.concatenate(([True], apart)))
    # a blocking copy's call lasts as long as the copy; one that does not block has ended before
    done = np.maximum(gpu.enqueue_end_ns, ops["end_ns"])[rows]
    return Frame(
        {
            "start_ns": gpu.enqueue_begin_ns[rows[first]],
            "end_ns": np.maximum.reduceat(done, first),
            "copies": np.diff(np.append(first, len(at))),
            "bytes": np.add.reduceat(np.maximum(ops["bytes"][rows], 0), first),
        }
    )


def _rare(
    start: IntArray,
    weight: IntArray,
    step_begin_ns: IntArray,
    begin: int,
    end: int,
    until: IntArray | None = None,
) -> BoolArray:
    """Events of the window whose steps hold far more of them than the median step does.

    Those that began in the step before the window and last into it count by themselves, where it
    is said until when they last.
    """
    held = (start >= begin) & (start < end)
    step = np.maximum(np.searchsorted(step_begin_ns, start, side="right") - 1, 0)
    total = np.zeros(max(len(step_begin_ns), 1), np.int64)
    np.add.at(total, step[held], weight[held])
    usual = TIMES_NORMAL * np.percentile(total, 50, method="lower")
    rare = held & (total[step] > usual)
    if until is not None:
        rare |= (start < begin) & (until > begin) & (weight > usual)
    return np.asarray(rare, np.bool_)


def _calls_of_host(gpu: GpuTimeline) -> Intervals:
    """When a launching thread is in a CUDA call."""
    api = gpu.host.api
    if not len(api):
        return EMPTY
    mine = among(api["thread_id"], gpu.host.launch_threads)
    return union(api["start_ns"][mine], api["end_ns"][mine])


def _silent_since(gpu: GpuTimeline, at: IntArray, other_ns: IntArray) -> IntArray:
    """Since when the host has been silent, where that is long, before each time.

    Saving begins with what copies nothing: an old file is cut to nothing, a new one opened, names
    are collected. In the steps that save, and only there, the host is silent before it reads.

    Args:
        gpu: the device.
        at: when bursts begin.
        other_ns: when other things end that the host is known to do; no silence reaches back
            beyond them.
    """
    waits = gpu.host.api["end_ns"][blocking_calls(gpu).call] if len(gpu.host.api) else _NOTHING
    ended = np.sort(np.concatenate((gpu.enqueue_end_ns, waits, other_ns)))
    index = np.searchsorted(ended, at, side="right") - 1
    since = np.where(index >= 0, ended[np.maximum(index, 0)], at)
    found: IntArray = np.where(at - since >= LONG_UNTRACED_NS, since, at)
    return found


def _serialised(
    gpu: GpuTimeline, bursts: Frame, until_ns: IntArray, step_begin_ns: IntArray
) -> BoolArray:
    """Bursts of few copies whose host is silent for most of them, in steps with no more kernels."""
    start = bursts["start_ns"]
    silent = (until_ns - start) - overlap_per_window(_calls_of_host(gpu), start, until_ns)
    kernels = np.searchsorted(step_begin_ns, gpu.enqueue_begin_ns[gpu.is_compute], side="right")
    count = np.bincount(kernels, minlength=len(step_begin_ns) + 1)
    usual = float(np.median(count[1:])) if len(step_begin_ns) else 0.0
    mine = count[np.searchsorted(step_begin_ns, start, side="right")]
    few = mine - usual <= KERNELS_BETWEEN * bursts["copies"] + FEW_KERNELS * usual
    enough = (bursts["copies"] >= FEW_COPIES) & (until_ns - start >= LONG_UNTRACED_NS)
    return np.asarray(enough & few & (silent >= SILENT_SHARE * (until_ns - start)), np.bool_)


def _until_training(gpu: GpuTimeline, at: IntArray, input_ns: IntArray, end_ns: int) -> IntArray:
    """When the host enqueues the next operation or gets input after each time, or ``end_ns``."""
    enqueued = np.append(np.sort(np.concatenate((gpu.enqueue_begin_ns, input_ns))), end_ns)
    index = np.minimum(np.searchsorted(enqueued[:-1], at, side="left"), len(enqueued) - 1)
    until: IntArray = np.maximum(at, np.minimum(enqueued[index], end_ns))
    return until


def _until_anything(gpu: GpuTimeline, at: IntArray, end_ns: int) -> IntArray:
    """When a launching thread makes the next CUDA call or opens the next range after each time.

    What it does silently until then is the end of the saving: releasing the copies takes a while.
    """
    api, ranges = gpu.host.api, gpu.host.ranges
    starts = [
        rows["start_ns"][among(rows["thread_id"], gpu.host.launch_threads)]
        for rows in (api, ranges)
        if len(rows)
    ]
    following = np.sort(np.concatenate([*starts, [end_ns]]))
    index = np.minimum(np.searchsorted(following, at, side="left"), len(following) - 1)
    until: IntArray = np.maximum(at, np.minimum(following[index], end_ns))
    return until


def _named(gpu: GpuTimeline, read: Reader, n_steps: int) -> Intervals:
    """When an annotation or a Python function says that a launching thread saves state."""
    host = gpu.host
    starts, ends = [], []
    ranges = host.ranges
    if len(ranges):
        hits = words.hits(ranges, "name", words.is_checkpoint_range)
        hits &= among(ranges["thread_id"], host.launch_threads)
        often = np.bincount(ranges["name"][hits], minlength=1) > TIMES_A_STEP * max(n_steps, 1)
        hits[hits] = ~often[ranges["name"][hits]]
        starts.append(ranges["start_ns"][hits])
        ends.append(ranges["end_ns"][hits])
    functions = read("python_function", "process_id", "thread_id", "start_ns", "end_ns", "name")
    if len(functions):
        hits = functions.matches("name", words.CHECKPOINT_FUNCTION)
        hits &= functions["process_id"] == gpu.process_id
        hits &= among(functions["thread_id"], host.launch_threads)
        starts.append(functions["start_ns"][hits])
        ends.append(functions["end_ns"][hits])
    if not starts:
        return EMPTY
    start, end = union(np.concatenate(starts), np.concatenate(ends))
    # What launches kernels without reading results back is training: activation checkpointing, or
    # a range around more than the saving.
    ops = gpu.ops
    launched = np.sort(gpu.enqueue_begin_ns[gpu.is_compute])
    read_back = np.sort(gpu.enqueue_begin_ns[
        ops.equals("kind", "memcpy") & ops.equals("copy_kind", "DtoH")
    ])  # fmt: skip
    kernels, copies = (
        np.searchsorted(at, end) - np.searchsorted(at, start) for at in (launched, read_back)
    )
    some = FEW_KERNELS * len(launched) / max(n_steps, 1)
    keep = kernels <= KERNELS_BETWEEN * copies + some
    return start[keep], end[keep]


def _writing(
    gpu: GpuTimeline, burst_end_ns: IntArray, until_ns: IntArray, begin_ns: int, end_ns: int
) -> tuple[Intervals, BoolArray]:
    """Pauses between enqueueing calls in which the thread writes files; bursts they follow."""
    calls, host = gpu.host.os_calls, gpu.host
    none: BoolArray = np.zeros(len(burst_end_ns), bool)
    if not len(calls):
        return EMPTY, none
    writes = calls.matches("name", words.WRITE_CALL) & among(
        calls["thread_id"], host.launch_threads
    )
    if not writes.any():
        return EMPTY, none
    writing = union(calls["start_ns"][writes], calls["end_ns"][writes])
    enqueued = np.sort(gpu.enqueue_begin_ns)
    edges = np.concatenate(([begin_ns], enqueued, [end_ns]))
    start, end = edges[:-1], edges[1:]
    share = overlap_per_window(writing, start, end)
    hold = (end - start >= LONG_UNTRACED_NS) & (share >= WRITING_SHARE * (end - start))
    pauses = start[hold], end[hold]
    written = overlap_per_window(writing, burst_end_ns, until_ns)
    enough = (written > 0) & (written >= WRITING_SHARE * (until_ns - burst_end_ns))
    return pauses, np.asarray(enough, np.bool_)
