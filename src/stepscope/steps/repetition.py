"""Steps from what the device was given to do: repeating operations, optimizers, whole graphs.

A sequence of operations that repeats is not yet a loop of steps: the layers of a model repeat as
well. A repetition counts as an iteration only if it holds what an iteration must hold, see
:func:`is_iteration`; else it is what repeats inside the one step there is.

Uploading weights, building models, compiling and the search for the fastest kernels launch more
than a short loop does, and nothing of it repeats as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline, HostSide
from stepscope.activity.host import SMALL_COPY_BYTES
from stepscope.activity.names import hits
from stepscope.intervals.distinct import (
    among,
    distinct_rows,
    distinct_values,
    with_counts,
    with_inverse,
)
from stepscope.steps.model import MIN_STEPS, Steps
from stepscope.steps.periodicity import bursts, find_period
from stepscope.trace.frame import BoolArray, IntArray

_SAME_LENGTH: Final = 0.05
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
_PASS = re.compile(r"^(forward|fwd|backward|bwd)([ _]?pass)?$", re.IGNORECASE)
"""Ranges that hold one pass through a model, by their name alone."""
IN_MOST: Final = 0.8
"""What an iteration must hold has to be in this share of the repetitions at least."""
_STRANGE: Final = 3
"""So many operations behind the last repetition that occur in none are what follows a model's
layers (the last norm, the head, sampling), and no beginning of another iteration."""


PART_OF_ONE: Final = 0.5
"""What launches less than this share of what an iteration launches is no iteration."""
_PRODUCT = re.compile(
    r"gemm|(?<![a-z])conv|convol|fprop|dgrad|wgrad|winograd|cutlass|xmma|Cijk_",
    re.IGNORECASE,
)
"""Kernels that multiply matrices or convolve."""

OFTEN: Final = 8
"""So many repetitions at least make a loop of what only a later part of a capture holds: among
many parts of a sequence, one may seem to repeat by chance."""


@dataclass(frozen=True)
class Launches:
    """What the host enqueued, in order: each operation, or all of one launching call as one.

    Attributes:
        gpu: the device.
        op: row of ``GPU.ops``: the first of each launch.
        token: what it looks like from outside: name, for copies also the size.
        several: whether the launch started several operations, or a whole graph.
    """

    gpu: GpuTimeline
    op: IntArray
    token: IntArray
    several: BoolArray

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def optimizer(self) -> BoolArray:
        """Which launches update parameters."""
        kernels = self.gpu.ops.matches("name", words.OPTIMIZER_KERNEL) & self.gpu.is_kernel
        return kernels[self.op]

    @cached_property
    def product(self) -> BoolArray:
        """Which launches multiply matrices or convolve."""
        return (self.gpu.ops.matches("name", _PRODUCT) & self.gpu.is_kernel)[self.op]

    @cached_property
    def upload(self) -> BoolArray:
        """Which launches copy from host to device."""
        return self._copies("HtoD")

    @cached_property
    def readback(self) -> BoolArray:
        """Which launches copy from device to host."""
        return self._copies("DtoH")

    def _copies(self, kind: str) -> BoolArray:
        ops = self.gpu.ops
        return (ops.equals("kind", "memcpy") & ops.equals("copy_kind", kind))[self.op]

    def take(self, rows: IntArray) -> Launches:
        """Some of the launches, in the same order."""
        return Launches(self.gpu, self.op[rows], self.token[rows], self.several[rows])


def launches(gpu: GpuTimeline) -> Launches:
    """All launches of a device in the order in which they were enqueued.

    The nodes of a graph share the call that launched it, so that they are one launch: what
    repeats inside a graph is no iteration of the host's loop.
    """
    enqueued = gpu.enqueue_begin_ns
    order = np.lexsort((np.arange(len(enqueued)), enqueued))
    ops, call = gpu.ops, gpu.call[order]
    again = np.zeros(len(order), bool)
    again[1:] = (call[1:] == call[:-1]) & (call[1:] >= 0)
    first = np.flatnonzero(~again)
    size = np.diff(np.append(first, len(order)))
    token = ops["name"].astype(np.int64) * 64
    log_size = np.log2(np.maximum(ops["bytes"], 1)).astype(np.int64)
    token = np.where(ops.equals("kind", "memcpy"), token + log_size, token)
    several = (size > 1) | ops.equals("kind", "graph")[order[first]]
    graph_id = np.where(several, ops["graph_id"][order[first]] + 2, 0)
    merged = token[order[first]] + (graph_id << 40)
    return Launches(gpu, order[first], merged, several)


def optimizer_runs(gpu: GpuTimeline, found: Launches) -> int:
    """How often the optimizer ran, as far as ranges or kernels tell; 0 where they do not."""
    ranges = gpu.host.ranges
    named = int(ranges.matches("name", _OPTIMIZER_STEP).sum()) if len(ranges) else 0
    return named or len(bursts(found.optimizer))


@dataclass(frozen=True)
class Repetition:
    """A repeating sequence of launches.

    Attributes:
        anchors: positions among the launches at which it begins, ascending.
        floor: position from which it was looked for.
    """

    anchors: IntArray
    floor: int

    def __len__(self) -> int:
        return len(self.anchors)


def find_repetition(found: Launches) -> Repetition | None:
    """The sequence of launches that repeats; None where none does.

    Repetitions are looked for without what is read back: a checkpoint every few steps reads every
    tensor, and would make those few steps look like one.
    """
    steady = np.flatnonzero(~found.readback)
    if len(steady) < 2 * MIN_STEPS:
        return None
    # What was enqueued before the capture began has no time of its own; where nothing repeats in
    # what came later, its order still tells.
    known = found.gpu.call[found.op[steady]] >= 0
    later = steady[int(np.argmax(known)) :]
    for rows in (later, steady) if len(later) < len(steady) else (steady,):
        kept = found.take(rows)
        anchors = find_period(kept.token, kept.optimizer, kept.upload) if len(kept) else None
        if anchors is not None and len(anchors) >= MIN_STEPS - 1:
            return Repetition(rows[anchors], int(rows[0]))
    return None


def outer_repetition(found: Launches, repeated: Repetition) -> Repetition | None:
    """The loop around a repetition: every so many of them, the same further launches lie between.

    Twelve layers, the end of the model and its beginning, again twelve layers: each run of equal
    repetitions with what follows it is an iteration. None where there are no such runs, or where
    each repetition takes a batch in, and so is an iteration with more to do every so many times.
    """
    anchors = repeated.anchors
    if takes_batch(found, anchors):
        return None
    # a checkpoint every few iterations reads tensors back, and is no other part of a model
    place = np.cumsum(~found.readback)
    length = np.diff(place[anchors])
    values, counts = with_counts(length)
    if not len(values):
        return None
    usual = int(values[np.argmax(counts)])
    longer = np.flatnonzero(length > usual)
    every = distinct_values(np.diff(longer))
    if len(longer) < MIN_STEPS - 1 or len(every) != 1 or every[0] < 2:
        return None
    between = np.flatnonzero(length != usual)
    if len(between) != len(longer):
        return None
    begins = anchors[longer + 1]
    whole = longer[0] + 1 == every[0]  # the first run is complete as well
    return Repetition(np.append(anchors[:1], begins) if whole else begins, repeated.floor)


def is_iteration(found: Launches, repeated: Repetition, runs: int, passes: int = 0) -> bool:
    """Whether a repetition holds what an iteration of the program's loop must hold.

    Where the optimizer is seen, each repetition must hold one of its runs. Else ranges may say
    that each is another layer of the model. Else most repetitions must take a batch in, or begin
    with a DataLoader or a graph of their own. Small copies and waits are weaker: layers have them
    as well (tokens of an expert), but layers are followed by what ends the model, and iterations
    by nothing that none of them holds; and a few repetitions with little of the device's work may
    be of a part of a model. Without any of these, all must launch equally much, and nothing else
    may lead to the first one.

    Args:
        found: the launches.
        repeated: the repetitions.
        runs: how often the optimizer ran; 0 where it is not seen.
        passes: how often the model ran from one end to the other, at most; 0 where no operator
            tells.
    """
    anchors, n = repeated.anchors, len(repeated)
    begin_ns = found.gpu.enqueue_begin_ns[found.op[anchors]]
    host = found.gpu.host
    small = np.flatnonzero(found.upload | found.readback)
    kernels = np.flatnonzero(found.gpu.is_kernel[found.op])

    def sees(calls: re.Pattern[str]) -> bool:
        return _in_most(begin_ns, _call_times(host, calls))

    rules: tuple[tuple[Callable[[], bool], bool], ...] = (  # the first that holds decides
        (lambda: runs > 0, runs >= n - 1),
        (lambda: not _in_most(anchors, kernels), False),  # pages of managed memory move, too
        (lambda: 0 < 2 * passes < n, False),
        (lambda: _numbered_layers(host, begin_ns), False),
        (lambda: _in_one_pass(host, begin_ns), False),
        # parts of a graph, which is recorded here, not run
        (lambda: sees(words.BEGIN_CAPTURE), False),
        (lambda: takes_batch(found, anchors), True),
        (lambda: _tail(found, anchors), False),
        (lambda: n < OFTEN and _is_little(found, int(begin_ns[0])), False),
        (lambda: _in_most(anchors, small), True),
        (lambda: sees(words.SYNC_CALL), True),
        (lambda: not _is_regular(anchors) or _head(found, anchors), False),
    )
    return next((verdict for rule, verdict in rules if rule()), True)


def takes_batch(found: Launches, anchors: IntArray) -> bool:
    """Whether most repetitions upload more than a scalar, launch a graph, or ask a loader."""
    large = found.gpu.ops["bytes"][found.op] > SMALL_COPY_BYTES
    if _in_most(anchors, np.flatnonzero((found.upload & large) | found.several)):
        return True
    begin_ns = found.gpu.enqueue_begin_ns[found.op[anchors]]
    return _in_most(begin_ns, _load_times(found.gpu.host))


def _in_most(anchors: IntArray, at: IntArray) -> bool:
    return _held(anchors, at) >= IN_MOST * (len(anchors) - 1)


def _held(anchors: IntArray, at: IntArray) -> int:
    """In how many repetitions, the first and last taken as one, some of the places lie."""
    segment = np.searchsorted(anchors, at, side="right")
    inner = distinct_values(segment)
    inside = int(((inner > 0) & (inner < len(anchors))).sum())
    return inside + int(bool(len(inner)) and (inner[0] == 0 or inner[-1] == len(anchors)))


def _is_regular(anchors: IntArray) -> bool:
    """Whether most repetitions hold equally many launches, as iterations of one loop do.

    Of many it is the same number: an iteration that takes nothing in and waits for nothing has
    nothing to depend on, while the layers of a model may be of several kinds. The first few
    iterations also choose their kernels.
    """
    length = np.diff(anchors)
    usual = float(np.median(length))
    away = _SAME_LENGTH * usual if len(anchors) < OFTEN else 0.0
    return float((np.abs(length - usual) <= away).mean()) >= IN_MOST


def _is_little(found: Launches, begin_ns: int) -> bool:
    """Whether the kernels enqueued from a time on are less than half of the device's work.

    Copies do not count: a program uploads its weights before its loop, which takes as long as they
    are large and as the bus is slow, and says nothing of what repeats behind it.
    """
    took = (found.gpu.ops["end_ns"] - found.gpu.ops["start_ns"])[found.gpu.is_kernel]
    later = found.gpu.enqueue_begin_ns[found.gpu.is_kernel] >= begin_ns
    return float(took[later].sum()) < PART_OF_ONE * float(took.sum())


def _call_times(host: HostSide, pattern: re.Pattern[str]) -> IntArray:
    """When the host makes the calls of some names, ns."""
    if not len(host.api):
        return np.empty(0, np.int64)
    times: IntArray = host.api["start_ns"][host.api.matches("name", pattern)]
    return times


def _load_times(host: HostSide) -> IntArray:
    """When the host begins to get a batch, as ranges say, ns."""
    if not len(host.ranges):
        return np.empty(0, np.int64)
    times: IntArray = host.ranges["start_ns"][hits(host.ranges, "name", words.is_input_range)]
    return times


def _numbered_layers(host: HostSide, begin_ns: IntArray) -> bool:
    """Whether ranges with the number of a layer say that each repetition is another one.

    A repetition may begin in the middle of a layer and so hold two numbers; an iteration holds
    those of all layers.
    """
    ranges = host.ranges
    if not len(ranges):
        return False
    number = np.array(
        [
            int(m[1][-9:]) if (m := words.LAYER_NUMBER.search(name)) else -1
            for name in ranges.texts["name"]
        ]
        + [-1]
    )[ranges["name"]]
    at = np.searchsorted(begin_ns, ranges["start_ns"][number >= 0], side="right")
    numbers = number[number >= 0]
    pairs, _ = distinct_rows((at, numbers))
    several = np.bincount(at[pairs], minlength=len(begin_ns) + 1)[1:-1]
    layers = len(distinct_values(numbers))
    one_each = (several == 1) | (several == 2)
    return layers >= max(3, len(several) // 2) and float(one_each.mean()) >= IN_MOST


def _in_one_pass(host: HostSide, begin_ns: IntArray) -> bool:
    """Whether a single range that is named as a pass through the model holds most repetitions.

    Each iteration of a loop makes a pass of its own; what repeats within one are layers.
    """
    ranges = host.ranges
    if not len(ranges):
        return False
    rows = np.flatnonzero(ranges.matches("name", _PASS))
    held = np.searchsorted(begin_ns, ranges["end_ns"][rows]) - np.searchsorted(
        begin_ns, ranges["start_ns"][rows]
    )
    return bool((held >= IN_MOST * len(begin_ns)).any())


def _tail(found: Launches, anchors: IntArray) -> bool:
    """Whether launches follow the last repetition that occur in none.

    Copies alone are the results of a loop; a model ends with kernels.
    """
    length = int(np.median(np.diff(anchors)))
    first = int(anchors[-1]) + length
    inside = found.token[int(anchors[0]) : int(anchors[-1])]
    strange = np.flatnonzero(~among(found.token[first:], inside)) + first
    computes = bool(found.gpu.is_kernel[found.op[strange]].any())
    return computes and len(strange) >= _STRANGE


def _head(found: Launches, anchors: IntArray) -> bool:
    """Whether launches lead to the first repetition that occur in none.

    What uploads before a loop is the initialisation of a program, which fills and draws random
    numbers, but multiplies nothing. Products behind the last upload are the way into a model (the
    embedding of patches, its first convolution), unless they belong to an iteration that chose
    other kernels than the later ones: that launches what else an iteration launches.
    """
    first = int(anchors[0])
    inside = found.token[first : int(anchors[-1])]
    uploads = np.flatnonzero(found.upload[:first])
    begin = int(uploads[-1]) + 1 if len(uploads) else 0
    lead = found.token[begin:first]
    strange = ~among(lead, inside)
    if int(strange.sum()) < _STRANGE:
        return False
    if not len(uploads):
        return True
    usual = distinct_values(inside)
    known = float(among(usual, lead).mean())
    return known < PART_OF_ONE and bool(found.product[begin:first][strange].any())


def from_kernels(found: Launches, repeated: Repetition, window_start_ns: int) -> Steps:
    """Steps from repetitions that are iterations.

    Args:
        found: the launches.
        repeated: the repetitions.
        window_start_ns: begin of the capture, ns.
    """
    gpu = found.gpu
    begin = _begins(found, repeated, window_start_ns)
    message = (
        f"no annotations hold the steps; they were found as {len(begin)} repetitions of the "
        "sequence of GPU operations"
    )
    return Steps(begin, _last_end(gpu), "kernel_sequence", message)


def from_graphs(found: Launches, window_start_ns: int) -> Steps | None:
    """Steps that are one whole graph each: the graph that takes most of the device's time.

    Of a graph that is launched often that is the time from its first launch on: what a program
    does before it goes into its loop, such as uploading weights, may take longer than the loop.
    """
    gpu = found.gpu
    graphs = np.flatnonzero(found.several)
    if len(graphs) < MIN_STEPS:
        return None
    # the time of a launch's operations: those of a graph's nodes follow the first
    cost = np.add.reduceat(
        (gpu.ops["end_ns"] - gpu.ops["start_ns"])[_in_order(gpu)], _first_of(found)
    )
    _, which = with_inverse(found.token[graphs])
    total = np.bincount(which, weights=cost[graphs])
    largest = int(np.argmax(total))
    anchors = graphs[which == largest]
    often = len(anchors) >= OFTEN
    all_of = float(cost[anchors[0] if often else 0 :].sum())
    if len(anchors) < MIN_STEPS or total[largest] < 0.5 * all_of:
        return None
    begin = _begins(found, Repetition(anchors, 0), window_start_ns)
    message = (
        f"no annotations hold the steps; each of the {len(begin)} launches of the CUDA graph that "
        "takes most of the GPU's time counts as one"
    )
    return Steps(begin, _last_end(gpu), "graph_replay", message, kind="graph_replay")


def replayed_graph(found: Launches) -> IntArray:
    """Positions at which the graph is launched that is launched most often; empty without any."""
    graphs = np.flatnonzero(found.several)
    if not len(graphs):
        return graphs
    _, which = with_inverse(found.token[graphs])
    at: IntArray = graphs[which == int(np.argmax(np.bincount(which)))]
    return at


def from_optimizer_ranges(gpu: GpuTimeline, window_start_ns: int) -> Steps | None:
    """Steps that end where PyTorch's optimizer has stepped, which its profiler always records.

    What follows the last of them is a step that the capture cuts short, and belongs to none.
    """
    ranges = gpu.host.ranges
    if not len(ranges):
        return None
    rows = np.flatnonzero(ranges.matches("name", _OPTIMIZER_STEP))
    codes, counts = with_counts(ranges["name"][rows])
    if not len(codes):
        return None
    # one of several optimizers: the one that runs least often ends the iteration
    chosen = int(codes[np.argmin(counts)])
    ends = np.sort(ranges["end_ns"][rows[ranges["name"][rows] == chosen]])
    enqueued = np.sort(gpu.enqueue_begin_ns)
    begin = min(_capture_begin(gpu.host, window_start_ns), int(enqueued[0]))
    held = np.diff(np.searchsorted(enqueued, np.append(begin, ends)))
    if len(ends) < MIN_STEPS or (held == 0).any():
        return None
    name = ranges.texts["name"][chosen]
    message = f"no range holds a whole step; each ends with {name!r}"
    return Steps(np.append(begin, ends[:-1]), int(ends[-1]), "optimizer_range", message)


def _begins(found: Launches, repeated: Repetition, window_start_ns: int) -> IntArray:
    """Begins of the steps on the host, ns.

    A step begins when the one before has enqueued its last work: what the host does before its
    own first call, getting a batch, belongs to it.
    """
    gpu, anchors = found.gpu, repeated.anchors
    end_ns = gpu.enqueue_end_ns[found.op]
    start = int(gpu.enqueue_begin_ns[found.op[repeated.floor]])
    first = min(_capture_begin(gpu.host, window_start_ns), start)
    begin = np.where(anchors > repeated.floor, end_ns[np.maximum(anchors - 1, 0)], first)
    ascending: IntArray = np.maximum.accumulate(begin)  # calls of several threads may overlap
    return ascending


def _in_order(gpu: GpuTimeline) -> IntArray:
    enqueued = gpu.enqueue_begin_ns
    return np.lexsort((np.arange(len(enqueued)), enqueued))


def _first_of(found: Launches) -> IntArray:
    """Place of each launch's first operation in the order of enqueueing."""
    place = np.empty(len(found.gpu.ops), np.int64)
    place[_in_order(found.gpu)] = np.arange(len(found.gpu.ops))
    return place[found.op]


def _last_end(gpu: GpuTimeline) -> int:
    return int(max(gpu.enqueue_begin_ns.max(), gpu.ops["end_ns"].max()))


def _capture_begin(host: HostSide, window_start_ns: int) -> int:
    """When the program could go on after the capture began; starting a capture takes a while."""
    started = host.api["end_ns"][host.api.matches("name", words.CAPTURE_START_CALL)]
    return int(started[0]) if len(started) else window_start_ns


def late_repetition(found: Launches, runs: int) -> Repetition | None:
    """The iterations in the last half, quarter, eighth and so on of what was launched.

    To be asked only where nothing in the whole is an iteration: a loop that does not hold half of
    a sequence lies in its last half entirely, where it lasts until the end. Each repetition must
    hold a run of the optimizer or take a batch in, since a part of a capture may be a part of a
    step, in which layers repeat.

    Args:
        found: the launches.
        runs: how often the optimizer ran; 0 where it is not seen.
    """
    size = len(found) // 2
    while size >= 2 * OFTEN:
        first = len(found) - size
        last = found.take(np.arange(first, len(found)))
        repeated = find_repetition(last)
        if (
            repeated is not None
            and len(repeated) >= OFTEN
            and is_iteration(last, repeated, runs)
            and (runs or takes_batch(last, repeated.anchors))
        ):
            return Repetition(repeated.anchors + first, 0)
        size //= 2
    return None
