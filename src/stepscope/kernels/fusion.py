"""What fused kernels would save: chains of small operations, steps of such, optimizers.

Chains wait for memory; an optimizer may launch several kernels for every parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.gaps.idle import CAUSES, Gaps
from stepscope.intervals.distinct import among, with_counts, with_inverse
from stepscope.kernels.categories import PRODUCTS
from stepscope.kernels.efficiency import with_few_blocks
from stepscope.kernels.kernels import (
    CATEGORY_NAMES,
    LAYOUT_CHANGE,
    SCATTERED_COPY,
    UPDATE_RUN,
    WIDENS,
    Kernels,
    Repair,
    changed,
    scaled,
)
from stepscope.kernels.merging import UNLIKE_PASSES
from stepscope.kernels.runs import compiled, merged_repair, with_copies
from stepscope.kernels.written_out import HALF_CASTS
from stepscope.trace.frame import BoolArray, IntArray

CHAIN = 4
"""Elementwise operations or reductions in a row that a layer of a framework does not leave behind:
activation, residual and scale make three. More are a function spelled out in primitives."""

SHORT = 0.1
"""Part of the longest kernel of a run under which one works on a value a row, or on a parameter."""

DOMINATED = 0.7
"""Share of the compute time from which on memory-bound kernels dominate a step. Transformers spend
20 to 40 % in them, convolutional networks with batch normalisation some 50 %."""

NEAR_BANDWIDTH = 0.5
"""Share of the peak memory bandwidth from which on a kernel counts as waiting for memory."""

_MERGEABLE = ("elementwise", "dropout", "reduction")
_AROUND = (*_MERGEABLE, "copy", "random", "softmax", "normalisation", "loss", "index")
_LAYERS = ("normalisation", "softmax", "loss", "dropout", "random")
"""What a layer of the framework launches by itself."""
_BETWEEN: Final = ("normalisation", "dropout")
"""Those of them that stand between functions, and hardly in one."""
WAITING = (*_AROUND, "pooling")
"""Categories that do next to no arithmetic for each byte."""


@dataclass(frozen=True)
class Chains:
    """Chains in the steady window.

    Attributes:
        repair: their kernels, each chain as one kernel and the reductions that stay (``merging``).
        chains: number of them.
    """

    repair: Repair
    chains: int


@dataclass(frozen=True)
class MemoryBound:
    """A step that is made of memory-bound kernels.

    Attributes:
        repair: the kernels, with half the traffic.
        share: their part of the compute time.
        achieved: bytes/s that those achieve whose traffic is known.
    """

    repair: Repair
    share: float
    achieved: float


def chains(kernels: Kernels, taken: BoolArray) -> Chains | None:
    """Runs of memory-bound kernels with at least ``CHAIN`` mergeable ones.

    Args:
        kernels: the device's kernels.
        taken: operations that belong to another finding already.
    """
    order = kernels.order[(kernels.gpu.is_compute & kernels.steady)[kernels.order]]
    category = kernels.category[order]
    free = ~taken[order] & ~kernels.in_phase("optimizer")[order]
    # a softmax over a few long rows is slow by itself
    free &= ~(with_few_blocks(kernels) & kernels.in_category("softmax"))[order]
    merges = compiled(kernels)[order]
    around = (among(category, [CATEGORY_NAMES.index(f) for f in _AROUND]) | merges) & free
    mergeable = among(category, [CATEGORY_NAMES.index(f) for f in _MERGEABLE]) & around
    mergeable &= ~_of_layers(category, kernels.in_phase("backward")[order])
    # a run ends where something else stands, and where the thread that launches changes
    thread = kernels.attribution.thread[order]
    new_run = np.ones(len(order), bool)
    new_run[1:] = ~(around[1:] & around[:-1] & (thread[1:] == thread[:-1]))
    run = np.cumsum(new_run) - 1
    mergeable &= _large(kernels, order, run, mergeable)
    counts = np.bincount(run[mergeable], minlength=int(run[-1]) + 1 if len(run) else 0)
    chosen = around & merges & (counts[run] >= CHAIN) if len(run) else around
    rows, run = order[chosen], run[chosen]
    if not len(rows):
        return None
    rows, run = _apart(kernels, rows, run)
    inside = _inside(_spelled_out(kernels, rows, run), run)
    if not inside.any():  # losses and dropout alone
        return None
    rows, run = rows[inside], with_inverse(run[inside])[1]
    repair = with_copies(kernels, merged_repair(kernels, rows, run), rows, run)
    return Chains(repair, int(run[-1]) + 1)


def _large(kernels: Kernels, rows: IntArray, run: IntArray, which: BoolArray) -> BoolArray:
    """Kernels that are not short beside the longest of some in their run.

    Batch normalisation counts its batches by kernels that work on one value. Scans and means over
    windows take longer than what they move would.
    """
    old = kernels.duration_ns[rows]
    tells = which & ~kernels.gpu.ops.matches("name", UNLIKE_PASSES)[rows]
    longest = np.zeros(int(run[-1]) + 1 if len(run) else 0, np.int64)
    np.maximum.at(longest, run[tells], old[tells])
    found: BoolArray = old >= SHORT * longest[run]
    return found


def _spelled_out(kernels: Kernels, rows: IntArray, run: IntArray) -> BoolArray:
    """Kernels of runs that no layer of the framework launches, and that are not short beside those.

    A loss of the library begins and ends with a value a row and fills its gradient with zeros.
    """
    own = ~kernels.in_category(*_LAYERS)[rows]
    own &= ~kernels.of_operation("Fill")[rows]
    own &= ~_cast_for_products(kernels)[rows]
    own &= ~kernels.gpu.ops.matches("name", SCATTERED_COPY)[rows]
    return own & _large(kernels, rows, run, own)


def _apart(kernels: Kernels, rows: IntArray, run: IntArray) -> tuple[IntArray, IntArray]:
    """Runs without the layers of the framework in them, where a function stands beside these.

    A norm and a function that is spelled out behind it are one run; of several of them only what
    has enough kernels for a function is left.

    Args:
        kernels: the device's kernels.
        rows: rows of ``GPU.ops`` in the order of enqueueing.
        run: number of the run of each, ascending.
    """
    layer = kernels.in_category(*_BETWEEN)[rows]
    merges = kernels.in_category(*_MERGEABLE)[rows] & ~layer
    merges &= _large(kernels, rows, run, merges)
    begins = np.diff(run, prepend=-1) != 0
    begins[1:] |= layer[1:] != layer[:-1]
    part = np.cumsum(begins) - 1
    function = np.bincount(part, merges)[part] >= CHAIN
    cut = (np.bincount(run, function) > 0)[run]
    keep = function | ~cut
    number = np.where(cut, part, len(part) + run)
    return rows[keep], np.cumsum(np.diff(number[keep], prepend=-1) != 0) - 1


def _cast_for_products(kernels: Kernels) -> BoolArray:
    """Casts right before a product, and right behind one: autocast makes them for the product.

    They stay where the function beside them alone is compiled, as it neither begins nor ends with
    them.
    """
    order = kernels.order[(kernels.gpu.is_compute & kernels.steady)[kernels.order]]
    product = kernels.in_category(*PRODUCTS)[order]
    backward = kernels.in_phase("backward")[order]
    narrows = kernels.of_operation(*HALF_CASTS)[order]
    widens = kernels.gpu.ops.matches("name", WIDENS)[order]
    found = np.zeros(len(kernels.gpu.ops), bool)
    found[order[:-1]] = (narrows & ~backward)[:-1] & product[1:]
    found[order[1:]] |= (widens & backward)[1:] & product[:-1]
    return found


def _inside(spelled_out: BoolArray, run: IntArray) -> BoolArray:
    """Kernels of runs from the first to the last that is spelled out.

    A function that is spelled out stands behind a normalisation or before a dropout or a loss,
    which stay where the function alone is compiled.

    Args:
        spelled_out: whether each kernel is, rather than one of a layer.
        run: number of the run of each, ascending.
    """
    own = np.flatnonzero(spelled_out)
    place = np.arange(len(run))
    first = np.full(int(run[-1]) + 1, len(run))
    last = np.full(int(run[-1]) + 1, -1)
    np.minimum.at(first, run[own], own)
    np.maximum.at(last, run[own], own)
    found: BoolArray = (place >= first[run]) & (place <= last[run])
    return found


def _of_layers(category: IntArray, backward: BoolArray) -> BoolArray:
    """Sums that the backward pass of a framework's layer leaves behind, and nobody spelled out.

    The gradient of a bias is a sum behind the GEMMs or convolutions of its layer; a normalisation
    adds up the parts of its parameters' gradients. Copies (casts, in mixed precision) may stand
    between.

    Args:
        category: of kernels in the order of enqueueing.
        backward: whether they belong to the backward pass.
    """
    adds, copy, *layers = (
        CATEGORY_NAMES.index(c)
        for c in ("reduction", "copy", "matmul", "convolution", "normalisation")
    )
    at = np.where((category != adds) & (category != copy), np.arange(len(category)), -1)
    before = np.maximum.accumulate(at)
    behind = (before >= 0) & among(category[np.maximum(before, 0)], layers)
    found: BoolArray = (category == adds) & backward & behind
    return found


def memory_bound(kernels: Kernels, taken: BoolArray) -> MemoryBound | None:
    """Memory-bound kernels where they dominate the step and run near the memory's speed.

    Args:
        kernels: the device's kernels.
        taken: operations that belong to another finding already.
    """
    duration = kernels.duration_ns
    compute = int(duration[kernels.gpu.is_compute & kernels.steady].sum())
    waiting = kernels.in_category(*WAITING) & kernels.steady & ~taken
    waiting &= ~kernels.in_phase("optimizer")
    total = int(duration[waiting].sum())
    if not kernels.bandwidth or not compute or total < DOMINATED * compute:
        return None
    dominating = total / compute
    # transposes between layouts are not halved but go, which is a lever of its own
    rows = np.flatnonzero(waiting & ~kernels.gpu.ops.matches("name", LAYOUT_CHANGE))
    total = int(duration[rows].sum())
    known = rows[kernels.moved_bytes[rows] > 0]
    known_ns = int(duration[known].sum())
    if not known_ns:
        return None
    achieved = float(kernels.moved_bytes[known].sum()) / known_ns * 1e9
    if achieved < NEAR_BANDWIDTH * kernels.bandwidth:
        return None
    old = duration[rows]
    repair = changed(rows, old, scaled(old, 0.5), total // 4, total * 3 // 4, stay=True)
    return MemoryBound(repair, dominating, achieved)


def taken_rows(kernels: Kernels, repairs: list[IntArray]) -> BoolArray:
    """Mask of the operations that any of some repairs changes."""
    taken = np.zeros(len(kernels.gpu.ops), bool)
    for rows in repairs:
        taken[rows] = True
    return taken


LAUNCH_FLOOR_NS = 1_000
"""A kernel that does next to nothing takes about this long on the device."""

WHOLLY_LATE = 2 / 3
"""Share of the time outside the loop that the device waits for launches, from which on the step is
launch-bound as a whole, and the loop only a part of it."""

FUSED_BANDWIDTH = 0.7
"""Of the peak bandwidth that a fused update achieves: 0.72 of 44 million parameters and 0.61 of 309
million (H200, PyTorch 2.11). Its blocks go through four lists of tensors, a launch of them at a
time, which a plain stream does not."""

ADAM_PASSES = 7  # reads parameter, gradient and two states; writes all but the gradient
_OTHER_PASSES = 5  # the same with one state
_AVERAGE_PASSES = 3
"""An average of the weights, or a step along the gradient without a state: two are read, one is
written."""
_OF_AVERAGES: Final = frozenset({"mul", "add", "copy"})
_ADDS_OF_AVERAGES: Final = 1.1
"""Sums for each parameter, at most: with a state there are two."""


@dataclass(frozen=True)
class UnfusedOptimizer:
    """The loop over the parameters in the steady window.

    Attributes:
        repair: the kernels of the loop, and the fused update instead.
        kernels: number of them.
        parameters: estimated number of parameter tensors.
        behind_launch_bound: whether the loop is what makes the step launch-bound.
        averages: whether it averages the weights, rather than to update them.
    """

    repair: Repair
    kernels: int
    parameters: int
    behind_launch_bound: bool
    averages: bool


def unfused_optimizer(kernels: Kernels, gaps: Gaps) -> UnfusedOptimizer | None:
    """Find the loop; None where the updates are fused or few.

    Args:
        kernels: the device's kernels.
        gaps: its idle time in the steady window.
    """
    ops = kernels.gpu.ops
    copied = ops.equals("copy_kind", "DtoD")
    looped = kernels.in_phase("optimizer") & (kernels.in_category("elementwise", "copy") | copied)
    rows = kernels.order[(looped & kernels.steady)[kernels.order]]
    if len(rows) < UPDATE_RUN * kernels.n_steady:
        return None
    operation = np.array([c.operation for c in kernels.classes] + [""])[ops["name"][rows]]
    operation = np.where(copied[rows], "copy", operation)
    names, counts = with_counts(operation)
    # every operation of the update is launched once or a few times for every parameter
    regular = counts[counts >= counts.max() / 8]
    parameters = max(int(regular.min()) // kernels.n_steady, 1)
    if parameters < UPDATE_RUN // 8:
        return None
    duration = kernels.duration_ns
    moving = np.maximum(duration[rows] - LAUNCH_FLOOR_NS, 0)
    tensors = np.array([c.tensors for c in kernels.classes] + [0])[ops["name"][rows]]
    tensors = np.where(copied[rows], 2, tensors)
    passes = float(tensors.sum()) / (parameters * kernels.n_steady)
    most_adds = _ADDS_OF_AVERAGES * parameters * kernels.n_steady
    adam = bool(among(["addcdiv", "sqrt"], names).all())
    usual = {name.lower() for name in names[counts >= counts.max() / 8].tolist()}
    once = usual <= _OF_AVERAGES and int((operation == "add").sum()) <= most_adds
    needed = ADAM_PASSES if adam else _AVERAGE_PASSES if once else _OTHER_PASSES
    share = min(needed / passes, 1.0) if passes else 1.0
    fused = moving.sum() * share
    known = (kernels.moved_bytes[rows] > 0) & (tensors > 0)
    if kernels.bandwidth and known.any():
        # caches let short chains of kernels run faster than the memory; a fused update cannot
        one_tensor = (kernels.moved_bytes[rows[known]] / tensors[known]).sum()  # bytes
        each = parameters * kernels.n_steady / known.sum()
        least = needed * one_tensor * each / kernels.attainable_bandwidth * 1e9
        fused = max(fused, needed * one_tensor * each / (FUSED_BANDWIDTH * kernels.bandwidth) * 1e9)
        fused, least = max(fused, least), max(float(moving.sum()) * share, least)
    else:
        least = fused
    fused = min(float(fused), float(duration[rows].sum()))
    least = min(least, fused)
    loop = _loops(kernels, rows)
    first = np.concatenate(([True], loop[1:] != loop[:-1]))
    new = np.zeros(len(rows), np.int64)
    new[first] = int(fused) // int(first.sum())
    idle = _idle_of(kernels, rows, loop, gaps)
    # at most what multi-tensor kernels (foreach) take: the same traffic without the launches
    most = max(float(moving.sum()), fused)
    by_row = np.argsort(rows)
    repair = Repair(
        rows=rows[by_row],
        old_ns=duration[rows[by_row]],
        new_ns=new[by_row],
        merged=~first[by_row],
        idle_ns=(idle.inside_ns + idle.behind_ns)[by_row],
        low_ns=int(least),
        high_ns=int(most) + int(idle.behind_ns.sum()),
        replaced=True,
    )
    rest = kernels.end_ns - kernels.begin_ns - int(duration[rows].sum()) - idle.in_loops_ns
    whole = idle.late_outside_ns >= WHOLLY_LATE * max(rest, 1)
    charged = idle.launch_inside_ns + int(idle.behind_ns.sum())
    left = _launch_bound_ns(gaps) - charged
    behind = not whole and repair.saved_ns > left
    # beside an update by kernels of its own; alone it is one by hand, without a state
    updated = bool((kernels.in_category("optimizer") & kernels.steady).any())
    averages = once and updated and "mul" in usual
    return UnfusedOptimizer(repair, len(rows), parameters, behind, averages)


@dataclass(frozen=True)
class _Idle:
    """Idle time around the loops, ns; arrays have one value a kernel of them.

    Attributes:
        inside_ns: late launches before each, without what the profiler is charged with.
        launch_inside_ns: of it, what is charged to ``launch_bound``.
        in_loops_ns: all idle time inside the loops.
        behind_ns: late launches after a loop that its time on the host explains, at its last.
        late_outside_ns: other late launches outside the loops, the profiler's share included.
    """

    inside_ns: IntArray
    launch_inside_ns: int
    in_loops_ns: int
    behind_ns: IntArray
    late_outside_ns: int


def _launch_bound_ns(gaps: Gaps) -> int:
    """All idle time that is charged to ``launch_bound``."""
    return gaps.by_cause().get("launch_bound", 0)


def _loops(kernels: Kernels, rows: IntArray) -> IntArray:
    """Number of the loop that each kernel belongs to, for rows in the order of enqueueing."""
    place = np.empty(len(kernels.gpu.ops), np.int64)
    place[kernels.order] = np.arange(len(place))
    return np.cumsum(np.diff(place[rows], prepend=place[rows[0]]) > UPDATE_RUN)


def _idle_of(kernels: Kernels, rows: IntArray, loop: IntArray, gaps: Gaps) -> _Idle:
    """Idle time of the loops: between their kernels, and after them.

    The gap before the first kernel of a loop is not the loop's. While the host goes through the
    parameters it cannot get ahead of the device: the time that this takes, less what the device
    was already idle meanwhile, is lead that the launches after the loop lack.
    """
    gpu, segments = kernels.gpu, gaps.segments
    of_loop = np.full(len(gpu.ops) + 1, -1, np.int64)
    of_loop[rows] = loop
    of_loop[rows[np.concatenate(([True], loop[1:] != loop[:-1]))]] = -1
    which = of_loop[segments["op"]]
    length = segments["end_ns"] - segments["start_ns"]
    cause = segments["cause"]
    inside = which >= 0
    launch = cause == CAUSES.index("launch_bound")
    charged = inside & (launch | (cause == CAUSES.index("small_kernels")))
    n = int(loop[-1]) + 1
    begin = np.full(n, np.iinfo(np.int64).max)
    end = np.zeros(n, np.int64)
    np.minimum.at(begin, loop, gpu.enqueue_begin_ns[rows])
    np.maximum.at(end, loop, gpu.enqueue_end_ns[rows])
    idle_in = np.bincount(which[inside], weights=length[inside], minlength=n)
    lead = np.maximum(end - begin - idle_in, 0)
    last = np.zeros(n, np.int64)
    np.maximum.at(last, loop, gpu.ops["end_ns"][rows])
    after = np.searchsorted(last, segments["start_ns"], side="right") - 1
    later = launch & ~inside & (after >= 0)
    lacking = np.bincount(after[later], weights=length[later], minlength=n)
    explained = np.minimum(lead, lacking).astype(np.int64)
    behind = np.zeros(len(rows), np.int64)
    behind[np.append(np.flatnonzero(loop[1:] != loop[:-1]), len(rows) - 1)] = explained
    before = np.zeros(len(gpu.ops) + 1, np.int64)
    np.add.at(before, segments["op"][charged], length[charged])
    overhead = cause == CAUSES.index("profiler_overhead")
    outside = int(length[(launch | overhead) & ~inside].sum()) - int(explained.sum())
    return _Idle(
        inside_ns=before[rows],
        launch_inside_ns=int(length[inside & launch].sum()),
        in_loops_ns=int(length[inside].sum()),
        behind_ns=behind,
        late_outside_ns=outside,
    )
