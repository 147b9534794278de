"""Find state and computation that live on the CPU while the rest of the step is on the device.

Offloaded gradients and optimizer states (DeepSpeed ZeRO-Offload, FSDP's CPUOffload, a loop of
``.cpu()`` and ``.to(device)``) leave copies down and up of the same sizes in every step, with
the host at work in between. Offloaded activations leave the same with kernels in between. A batch
goes up only, and a checkpoint comes down only.

Moments that are fetched for an update on the device and put away behind it go the other way round,
and may all have one size: hardly a kernel but the update's stands in between.

Some of it leaves less. An average of the weights that the CPU keeps is updated from copies down in
each step, and nothing comes back: many tensors in a row, of the same sizes in the same order in
every step, unlike a loss, a few results, or a checkpoint. A layer on the CPU sends its result up in
the forward pass, and autograd's thread brings its gradient, of the same size, down again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline
from stepscope.activity.host import SMALL_COPY_BYTES, HostEvents
from stepscope.gaps.stalls import MIN_COPIES
from stepscope.intervals import intersect, overlap_per_window, subtract, union
from stepscope.intervals.algebra import EMPTY, Intervals
from stepscope.intervals.distinct import among, distinct_rows, distinct_values, with_inverse
from stepscope.steps.model import host_device_copies
from stepscope.trace.frame import BoolArray, IntArray

MIN_PAIRS = 4
"""Tensors that must come back in a step: one or two may be a result that looks like its input."""

MIN_SIZES = 2
"""Different sizes among them. Parameters of a model have several; images in and images out have
one. Where a range says optimizer or offload, neither is asked."""

UPDATE_KERNELS = 16
"""Kernels beside those of an optimizer's name that may stand between a copy up and the one down
again of an update on the device: Adam, written out, has twelve operations for a tensor. An image
passes through a model in between."""

MIN_BYTES = 1 << 20
"""Less than this goes down and up in some 100 us."""

MIN_SHARE = 0.5
"""Share of what goes down in a step that must come back up."""

KERNELS_BETWEEN = 3
"""Kernels that may stand between two copies of one journey, such as a cast or a norm."""

FEW_KERNELS = 0.02
"""... or this share of a step's kernels, whichever is more."""

SCALAR_BYTES = 8
"""A copy of no more than this is a number, and may be any."""

MOST_STEPS = 0.5
"""Share of the steps that must send down the same sizes in the same order: a model's tensors do not
change, while what is detected, decoded or saved now and then does."""

COMES_BACK, STAYS_DOWN, GRADIENT = range(3)

OFFLOAD_EVIDENCE: Final = (
    "as many bytes come back in the same sizes",
    "the same tensors go down one after the other in every step, and nothing comes back",
    "what the CPU sends up in the forward pass has its gradient come down in the backward pass",
)
"""What each evidence code means: ``COMES_BACK``, ``STAYS_DOWN``, ``GRADIENT``."""

NEARLY_ALL = 0.95
"""Share of the times between launches up to which one is the program's own."""

_MESSAGE_OFFLOAD: Final = re.compile(
    r"cpu_?adam|cpu_?offload|offload|save_on_cpu|^Optimizer\.step#|(?<![a-z])optim(izer)?[_.]?step",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Offload(HostEvents):
    """Journeys of data to the host and back, in time order, disjoint on the host.

    Attributes:
        start_ns: when the host begins to send or fetch.
        end_ns: when it has enqueued, or waited for, the last copy of the journey.
        downs: copies to the host of each.
        down_bytes: their bytes.
        ups: copies to the device of each.
        up_bytes: their bytes.
        copy_ns: device time in which these copies run and no kernel does.
        between_ns: host time from a copy down to the next one up, in which the host may work on
            what came down.
        evidence: index into ``OFFLOAD_EVIDENCE``.
        rows: rows of ``GPU.ops`` of all these copies.
        apart: stretches inside the journeys that stay when the copies go: in which the host
            launches kernels, and long silences that few of the steps hold.
    """

    downs: IntArray
    down_bytes: IntArray
    ups: IntArray
    up_bytes: IntArray
    copy_ns: IntArray
    between_ns: IntArray
    evidence: IntArray
    rows: IntArray
    apart: Intervals

    @property
    def intervals(self) -> Intervals:
        """The host's time that the offload owns: the journeys without what stays."""
        return subtract((self.start_ns, self.end_ns), self.apart)


_NOTHING = np.empty(0, np.int64)
NO_OFFLOAD: Final = Offload(
    *(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING),
    _NOTHING,
    EMPTY,
)


def returning(
    gpu: GpuTimeline, step_begin_ns: IntArray, more_than: int = SMALL_COPY_BYTES
) -> BoolArray:
    """Copies that have a counterpart of the same size in the other direction in their step.

    Args:
        gpu: the device.
        step_begin_ns: when the host begins each step.
        more_than: copies of so many bytes and less are left out.
    """
    ops = gpu.ops
    found = np.zeros(len(ops), bool)
    down = ops.equals("kind", "memcpy") & ops.equals("copy_kind", "DtoH")
    up = ops.equals("kind", "memcpy") & ops.equals("copy_kind", "HtoD")
    rows = np.flatnonzero((down | up) & (ops["bytes"] > more_than))
    if not len(rows):
        return found
    step = np.searchsorted(step_begin_ns, gpu.enqueue_begin_ns[rows], side="right")
    _, size = with_inverse(ops["bytes"][rows])
    group = step * (int(size.max()) + 1) + size.reshape(-1)
    _, group = with_inverse(group)
    group = group.reshape(-1)
    is_down = down[rows]
    number = int(group.max()) + 1
    pairs = np.minimum(
        np.bincount(group[is_down], minlength=number),
        np.bincount(group[~is_down], minlength=number),
    )
    for mask in (is_down, ~is_down):
        mine = np.flatnonzero(mask)
        order = np.lexsort((gpu.enqueue_begin_ns[rows[mine]], group[mine]))
        sorted_group = group[mine][order]
        first = np.concatenate(([True], sorted_group[1:] != sorted_group[:-1]))
        begin = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
        within = np.arange(len(order)) - begin
        kept = mine[order[within < pairs[sorted_group]]]
        found[rows[kept]] = True
    return found


def find_offload(
    gpu: GpuTimeline,
    step_begin_ns: IntArray,
    window: Intervals,
    *,
    trains: bool = True,
    input_ns: IntArray = _NOTHING,
    quiet: Intervals = EMPTY,
) -> Offload:
    """The journeys to the host and back inside a window.

    Args:
        gpu: the device.
        step_begin_ns: when the host begins each step of the capture.
        window: begin and end of the steady steps, one interval.
        trains: whether the program trains: only then are there averages of weights, and gradients.
        input_ns: when a launching thread begins to get input: the host's work on what came down has
            ended by then.
        quiet: long silences of the host that nothing explains.
    """
    ops = gpu.ops
    begin, end = int(window[0][0]), int(window[1][0])

    def held(rows: IntArray) -> IntArray:
        at = gpu.enqueue_begin_ns[rows]
        return rows[(at >= begin) & (at < end)]

    n_steps = max(len(step_begin_ns), 1)
    rows = np.flatnonzero(returning(gpu, step_begin_ns))
    rows = rows[np.argsort(gpu.enqueue_begin_ns[rows], kind="stable")]
    step = np.searchsorted(step_begin_ns, gpu.enqueue_begin_ns[rows], side="right")
    of_cpu = _of_layers_on_cpu(gpu, rows, step, n_steps) if trains else np.zeros(len(rows), bool)
    back = _offloading(gpu, rows, step, step_begin_ns, trains=trains)
    gradients = held(rows[of_cpu & ~back])
    small = np.flatnonzero(returning(gpu, step_begin_ns, 0) & (ops["bytes"] <= SMALL_COPY_BYTES))
    back_rows = _with_small(gpu, held(rows[back]), held(small), n_steps)
    kept = held(_kept_on_cpu(gpu, rows, step_begin_ns)) if trains else _NOTHING
    rows = np.concatenate((back_rows, kept, gradients))
    if not len(rows):
        return NO_OFFLOAD
    lengths = len(back_rows), len(kept), len(gradients)
    evidence = np.repeat((COMES_BACK, STAYS_DOWN, GRADIENT), lengths)
    order = np.argsort(gpu.enqueue_begin_ns[rows], kind="stable")
    rows, evidence = rows[order], evidence[order]
    first = _journeys(gpu, rows, n_steps, evidence)
    is_down = ops.equals("copy_kind", "DtoH")[rows]
    size = np.maximum(ops["bytes"][rows], 0)
    # a call that waits for its copy lasts as long as the copy
    done = np.maximum.accumulate(gpu.enqueue_end_ns[rows])
    start = np.clip(gpu.enqueue_begin_ns[rows[first]], begin, end)
    stop = np.append(done[first[1:] - 1], done[-1])
    # what stays down is worked on after the last of it, too
    stays = evidence[first] == STAYS_DOWN
    stop = np.clip(np.where(stays, _until_next(gpu, stop, input_ns, end), stop), begin, end)
    # a layer on the CPU is at work from the window's begin to its first result, and to the end
    if evidence[0] == GRADIENT and not is_down[0]:
        start[0] = begin
    if evidence[-1] == GRADIENT and is_down[-1]:
        stop[-1] = end
    mine = np.zeros(len(ops), bool)
    mine[rows] = True
    copies = intersect(gpu.union_of(mine & host_device_copies(gpu)), window)
    exposed = subtract(copies, gpu.union_of(gpu.is_kernel))
    opened = np.maximum.accumulate(np.minimum.reduceat(ops["start_ns"][rows], first))
    closed = np.append(opened[1:], np.iinfo(np.int64).max)
    opened[0] = np.iinfo(np.int64).min
    ending = np.minimum(stop, np.append(start[1:], end))
    turns = is_down & np.append(~is_down[1:], False)
    turns[np.append(first[1:], len(rows)) - 1] = False  # where the journey ends
    until_next = np.append(gpu.enqueue_begin_ns[rows[1:]], 0) - done
    # work on what came down is in every step that has journeys; what few hold is a pause
    in_step = np.searchsorted(step_begin_ns, start, side="right")
    working = distinct_values(in_step[overlap_per_window(quiet, start, ending) > 0])
    seldom = len(working) < MOST_STEPS * len(distinct_values(in_step))
    pauses = quiet if seldom else EMPTY
    return Offload(
        start_ns=start,
        end_ns=ending,
        downs=np.add.reduceat(is_down.astype(np.int64), first),
        down_bytes=np.add.reduceat(np.where(is_down, size, 0), first),
        ups=np.add.reduceat((~is_down).astype(np.int64), first),
        up_bytes=np.add.reduceat(np.where(is_down, 0, size), first),
        copy_ns=overlap_per_window(exposed, opened, closed),
        between_ns=np.add.reduceat(np.where(turns, np.maximum(until_next, 0), 0), first),
        evidence=evidence[first],
        rows=np.sort(rows),
        apart=intersect(
            union(*map(np.concatenate, zip(_launching(gpu, rows), pauses, strict=True))),
            (start, ending),
        ),
    )


def _kept_on_cpu(gpu: GpuTimeline, coming_back: IntArray, step_begin_ns: IntArray) -> IntArray:
    """Copies down of a model's tensors, one after the other in every step, that do not come back.

    As many as in a checkpoint: a few of them are results.

    Args:
        gpu: the device.
        coming_back: rows of ``GPU.ops`` of copies that do.
        step_begin_ns: when the host begins each step of the capture.
    """
    ops = gpu.ops
    order = np.argsort(gpu.enqueue_begin_ns, kind="stable")
    is_down = ops.equals("kind", "memcpy") & ops.equals("copy_kind", "DtoH")
    is_down[coming_back] = False
    is_down &= ops["bytes"] > SCALAR_BYTES
    at = np.flatnonzero(is_down[order])
    if not len(at):
        return _NOTHING
    rows = order[at]
    step = np.searchsorted(step_begin_ns, gpu.enqueue_begin_ns[rows], side="right")
    # a cast may stand between two of them; a number among them interrupts nothing
    apart = (np.diff(at) > KERNELS_BETWEEN + 1) | (np.diff(step) > 0)
    edges = np.flatnonzero(np.concatenate(([True], apart, [True])))
    runs: dict[tuple[int, ...], list[IntArray]] = {}
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        sizes = tuple(ops["bytes"][rows[begin:end]].tolist())
        if len(sizes) >= MIN_COPIES and len(set(sizes)) >= MIN_SIZES and sum(sizes) >= MIN_BYTES:
            runs.setdefault(sizes, []).append(rows[begin:end])
    enough = MOST_STEPS * len(step_begin_ns)
    found = [row for same in runs.values() if len(same) >= max(enough, 2) for row in same]
    return np.concatenate(found) if found else _NOTHING


def _of_layers_on_cpu(gpu: GpuTimeline, rows: IntArray, step: IntArray, n_steps: int) -> BoolArray:
    """Which copies that have a counterpart are results of layers on the CPU, and their gradients.

    The main thread sends the result up, and in the same step another thread, which launches kernels
    as well, brings as many bytes down: autograd's thread, with the gradient.

    Args:
        gpu: the device.
        rows: rows of ``GPU.ops`` of the copies, as enqueued.
        step: step of each.
        n_steps: steps of the capture.
    """
    none = np.zeros(len(rows), bool)
    api, main = gpu.host.api, gpu.host.main_thread
    if not len(rows) or not len(api):
        return none
    thread = np.where(gpu.call >= 0, api["thread_id"][np.maximum(gpu.call, 0)], -1)
    launching = distinct_values(thread[gpu.is_compute])
    size = gpu.ops["bytes"][rows]
    down = gpu.ops.equals("copy_kind", "DtoH")[rows]
    result = ~down & (thread[rows] == main)
    gradient = down & (thread[rows] != main) & among(thread[rows], launching[launching >= 0])
    known: dict[tuple[int, int], int] = {}
    for i in np.flatnonzero(result).tolist():
        known.setdefault((int(step[i]), int(size[i])), i)
    mine = none.copy()
    for i in np.flatnonzero(gradient).tolist():
        up = known.get((int(step[i]), int(size[i])))
        if up is not None and up < i:
            mine[[up, i]] = True
    down_bytes = np.zeros(n_steps + 1, np.int64)
    np.add.at(down_bytes, step[mine & down], size[mine & down])
    mine &= (down_bytes >= MIN_BYTES)[step]
    steps_with = len(distinct_values(step[mine]))
    return mine if steps_with >= max(MOST_STEPS * n_steps, 2) else none


def _until_next(gpu: GpuTimeline, at: IntArray, input_ns: IntArray, end_ns: int) -> IntArray:
    """When the host next enqueues anything or gets input after each time, or ``end_ns``."""
    following = np.append(np.sort(np.concatenate((gpu.enqueue_begin_ns, input_ns))), end_ns)
    index = np.minimum(np.searchsorted(following, at), len(following) - 1)
    until: IntArray = np.maximum(at, np.minimum(following[index], end_ns))
    return until


def _launching(gpu: GpuTimeline, rows: IntArray) -> Intervals:
    """When the host prepares and launches kernels, at its pace where nothing is copied.

    The time from one launch to the next with no copy of a journey in between is the program's, but
    for what is longer than nearly all such times: the update on the host may lie there. Where a
    copy lies in between, the launch takes the median of them, after the copy has been enqueued.
    """
    order = np.argsort(gpu.enqueue_begin_ns[gpu.is_compute], kind="stable")
    begin = gpu.enqueue_begin_ns[gpu.is_compute][order]
    end = gpu.enqueue_end_ns[gpu.is_compute][order]
    done = np.maximum.accumulate(gpu.enqueue_end_ns[rows])
    copied = np.searchsorted(gpu.enqueue_begin_ns[rows], begin)
    alone = np.diff(copied) == 0
    if not alone.any():
        return _NOTHING, _NOTHING
    pace, most = np.quantile(np.diff(begin)[alone], [0.5, NEARLY_ALL]).astype(np.int64)
    own = np.where(np.concatenate(([False], alone)), most, pace)
    before = np.where(copied > 0, done[np.maximum(copied - 1, 0)], np.iinfo(np.int64).min)
    return union(np.minimum(np.maximum(end - own, before), begin), end)


def _offloading(
    gpu: GpuTimeline, rows: IntArray, step: IntArray, step_begin_ns: IntArray, *, trains: bool
) -> BoolArray:
    """Which of some copies lie in a step whose copies are an offload."""
    ops = gpu.ops
    if not len(rows):
        return np.zeros(0, bool)
    n = len(step_begin_ns) + 1
    is_down = ops.equals("copy_kind", "DtoH")
    size = np.maximum(ops["bytes"], 0)
    back = np.zeros(n, np.int64)
    np.add.at(back, step[is_down[rows]], size[rows[is_down[rows]]])
    read = np.flatnonzero(is_down & ops.equals("kind", "memcpy"))
    all_down = np.zeros(n, np.int64)
    at = np.searchsorted(step_begin_ns, gpu.enqueue_begin_ns[read], side="right")
    np.add.at(all_down, at, size[read])
    pairs = np.bincount(step[is_down[rows]], minlength=n)
    kinds, _ = distinct_rows((step, size[rows]))
    sizes = np.bincount(step[kinds], minlength=n)
    plain = (pairs >= MIN_PAIRS) & (sizes >= MIN_SIZES)
    stated = _named_optimizer(gpu, rows, step, n)
    if trains:
        fetching = np.bincount(_fetched_for_update(gpu, rows, step), minlength=n) >= MIN_PAIRS
        # of the last step the recording may hold the way up only
        stated |= fetching.sum() >= max(MOST_STEPS * len(step_begin_ns), 2)
    found: BoolArray = (
        (plain | stated) & (back >= MIN_BYTES) & (back >= MIN_SHARE * np.maximum(all_down, 1))
    )[step]
    return found


def _fetched_for_update(gpu: GpuTimeline, rows: IntArray, step: IntArray) -> IntArray:
    """Step of each copy up that goes down again after an update of it, once for each.

    The step may end in between: where the update ends it.

    Args:
        gpu: the device.
        rows: rows of ``GPU.ops`` of copies that have a counterpart, as enqueued.
        step: step of each.
    """
    ops = gpu.ops
    down = ops.equals("copy_kind", "DtoH")[rows]
    size = ops["bytes"][rows]
    is_other = ~ops.that("name", lambda text: bool(words.OPTIMIZER_KERNEL.search(text)))
    launched = np.sort(gpu.enqueue_begin_ns[gpu.is_compute & is_other])
    before = np.searchsorted(launched, gpu.enqueue_begin_ns[rows])
    found = []
    for one in distinct_values(size).tolist():
        up, back = np.flatnonzero(~down & (size == one)), np.flatnonzero(down & (size == one))
        back = back[back > up[0]] if len(up) else back
        pairs = min(len(up), len(back))  # the first one up belongs to the first one down behind it
        between = before[back[:pairs]] - before[up[:pairs]]
        found.append(step[up[:pairs][(between >= 0) & (between <= UPDATE_KERNELS)]])
    return np.concatenate(found) if found else _NOTHING


def _named_optimizer(gpu: GpuTimeline, rows: IntArray, step: IntArray, n: int) -> BoolArray:
    """Steps in which a range that says optimizer or offload holds most of the copies.

    Or in which such a range, with hardly a kernel launched in it, lies between two of them: an
    update on the host.
    """
    ranges = gpu.host.ranges
    none = np.zeros(n, bool)
    if not len(ranges):
        return none
    hits = words.hits(ranges, "name", lambda text: bool(_MESSAGE_OFFLOAD.search(text)))
    start, end = union(ranges["start_ns"][hits], ranges["end_ns"][hits])
    if not len(start):
        return none
    at = gpu.enqueue_begin_ns[rows]
    launched = np.sort(gpu.enqueue_begin_ns[gpu.is_compute])
    kernels = np.searchsorted(launched, end) - np.searchsorted(launched, start)
    on_host = start[kernels <= KERNELS_BETWEEN]
    # from a copy down to the next one up; a boundary found in the kernels may lie in between
    down = gpu.ops.equals("copy_kind", "DtoH")[rows]
    between = np.diff(np.searchsorted(on_host, at)) > 0
    turns = np.flatnonzero(down[:-1] & ~down[1:] & between)
    updated = np.zeros(n, bool)
    updated[step[turns]] = True
    updated[step[turns + 1]] = True
    which = np.searchsorted(start, at, side="right") - 1
    held = (which >= 0) & (end[np.maximum(which, 0)] > at)
    inside = np.bincount(step[held], minlength=n)
    most = inside >= MIN_SHARE * np.maximum(np.bincount(step, minlength=n), 1)
    return np.asarray(most | updated, np.bool_)


def _with_small(gpu: GpuTimeline, rows: IntArray, small: IntArray, n_steps: int) -> IntArray:
    """Copies of journeys, with those of small tensors (biases, norms) that travel along.

    A scalar that a step reads or writes anyway, such as its loss, may lie next to a journey: it
    travels along where it lies between others.

    Args:
        gpu: the device.
        rows: large copies of journeys, as enqueued.
        small: small copies that come back as well.
        n_steps: steps of the capture.
    """
    if not len(rows):
        return rows
    both = np.concatenate((rows, small))
    order = np.argsort(gpu.enqueue_begin_ns[both], kind="stable")
    both, large = both[order], order < len(rows)
    first = _journeys(gpu, both, n_steps)
    journey = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(both))))
    sure = np.flatnonzero(gpu.ops["bytes"][both] > SCALAR_BYTES)
    inside = np.zeros(len(both), bool)
    if len(sure):
        here = np.arange(len(both))
        before = sure[np.maximum(np.searchsorted(sure, here, side="right") - 1, 0)]
        after = sure[np.minimum(np.searchsorted(sure, here), len(sure) - 1)]
        inside = (before <= here) & (journey[before] == journey)
        inside &= (after >= here) & (journey[after] == journey)
    held = np.bincount(journey[large], minlength=len(first)) > 0
    return both[large | (inside & held[journey])]


def _journeys(
    gpu: GpuTimeline, rows: IntArray, n_steps: int, evidence: IntArray | None = None
) -> IntArray:
    """Index of the first copy of each journey: between the others hardly a kernel is enqueued.

    From the gradients of a layer on the CPU to its next results the device may update other layers.
    """
    launched = np.sort(gpu.enqueue_begin_ns[gpu.is_compute])
    some = max(KERNELS_BETWEEN, int(FEW_KERNELS * len(launched) / n_steps))
    kernels = np.searchsorted(launched, gpu.enqueue_begin_ns[rows])
    apart = np.concatenate(([True], np.diff(kernels) > some))
    if evidence is not None:
        down = gpu.ops.equals("copy_kind", "DtoH")[rows]
        apart[1:] &= ~((evidence[1:] == GRADIENT) & down[:-1] & ~down[1:])
        apart[1:] |= np.diff(evidence) != 0
    return np.flatnonzero(apart)
