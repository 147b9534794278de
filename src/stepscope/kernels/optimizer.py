"""An optimizer that launches several kernels for every parameter, and what a fused one takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.gaps.idle import CAUSES, Gaps
from stepscope.intervals.distinct import among, with_counts
from stepscope.kernels.repair import Repair
from stepscope.kernels.view import UPDATE_RUN, Kernels
from stepscope.trace.frame import IntArray

LAUNCH_FLOOR_NS = 1_000
"""A kernel that does next to nothing takes about this long on the device."""

WHOLLY_LATE = 2 / 3
"""Share of the time outside the loop that the device waits for launches, from which on the step is
launch-bound as a whole, and the loop only a part of it."""

ADAM_PASSES = 7  # reads parameter, gradient and two states; writes all but the gradient
_OTHER_PASSES = 5  # the same with one state


@dataclass(frozen=True)
class UnfusedOptimizer:
    """The loop over the parameters in the steady window.

    Attributes:
        repair: the kernels of the loop, and the fused update instead.
        kernels: number of them.
        parameters: estimated number of parameter tensors.
        behind_launch_bound: whether the loop is what makes the step launch-bound.
    """

    repair: Repair
    kernels: int
    parameters: int
    behind_launch_bound: bool


def unfused_optimizer(kernels: Kernels, gaps: Gaps) -> UnfusedOptimizer | None:
    """Find the loop; None where the updates are fused or few.

    Args:
        kernels: the device's kernels.
        gaps: its idle time in the steady window.
    """
    ops = kernels.lane.ops
    looped = kernels.in_phase("optimizer") & kernels.in_family("elementwise", "copy")
    rows = kernels.order[(looped & kernels.steady)[kernels.order]]
    if len(rows) < UPDATE_RUN * kernels.n_steady:
        return None
    operation = np.array([c.operation for c in kernels.classes] + [""])[ops["name"][rows]]
    names, counts = with_counts(operation)
    # every operation of the update is launched once or a few times for every parameter
    regular = counts[counts >= counts.max() / 8]
    parameters = max(int(regular.min()) // kernels.n_steady, 1)
    if parameters < UPDATE_RUN // 8:
        return None
    duration = kernels.duration_ns
    moving = np.maximum(duration[rows] - LAUNCH_FLOOR_NS, 0)
    tensors = np.array([c.tensors for c in kernels.classes] + [0])[ops["name"][rows]]
    passes = float(tensors.sum()) / (parameters * kernels.n_steady)
    adam = bool(among(["addcdiv", "sqrt"], names).all())
    needed = ADAM_PASSES if adam else _OTHER_PASSES
    share = min(needed / passes, 1.0) if passes else 1.0
    fused = moving.sum() * share
    known = (kernels.moved_bytes[rows] > 0) & (tensors > 0)
    if kernels.bandwidth and known.any():
        # caches let short chains of kernels run faster than the memory; a fused update cannot
        one_tensor = (kernels.moved_bytes[rows[known]] / tensors[known]).sum()  # bytes
        each = parameters * kernels.n_steady / known.sum()
        at_best = kernels.attainable_bandwidth
        fused = max(fused, needed * one_tensor * each / at_best * 1e9)
    fused = min(float(fused), float(duration[rows].sum()))
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
        low_ns=int(fused),
        high_ns=int(most) + int(idle.behind_ns.sum()),
        replaced=True,
    )
    rest = kernels.end_ns - kernels.begin_ns - int(duration[rows].sum()) - idle.in_loops_ns
    whole = idle.late_outside_ns >= WHOLLY_LATE * max(rest, 1)
    charged = idle.launch_inside_ns + int(idle.behind_ns.sum())
    left = _launch_bound_ns(gaps) - charged
    behind = not whole and repair.saved_ns > left
    return UnfusedOptimizer(repair, len(rows), parameters, behind)


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
    place = np.empty(len(kernels.lane.ops), np.int64)
    place[kernels.order] = np.arange(len(place))
    return np.cumsum(np.diff(place[rows], prepend=place[rows[0]]) > UPDATE_RUN)


def _idle_of(kernels: Kernels, rows: IntArray, loop: IntArray, gaps: Gaps) -> _Idle:
    """Idle time of the loops: between their kernels, and after them.

    The gap before the first kernel of a loop is not the loop's. While the host goes through the
    parameters it cannot get ahead of the device: the time that this takes, less what the device
    was already idle meanwhile, is lead that the launches after the loop lack.
    """
    lane, segments = kernels.lane, gaps.segments
    of_loop = np.full(len(lane.ops) + 1, -1, np.int64)
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
    np.minimum.at(begin, loop, lane.enqueue_begin_ns[rows])
    np.maximum.at(end, loop, lane.enqueue_end_ns[rows])
    idle_in = np.bincount(which[inside], weights=length[inside], minlength=n)
    lead = np.maximum(end - begin - idle_in, 0)
    last = np.zeros(n, np.int64)
    np.maximum.at(last, loop, lane.ops["end_ns"][rows])
    after = np.searchsorted(last, segments["start_ns"], side="right") - 1
    later = launch & ~inside & (after >= 0)
    lacking = np.bincount(after[later], weights=length[later], minlength=n)
    explained = np.minimum(lead, lacking).astype(np.int64)
    behind = np.zeros(len(rows), np.int64)
    behind[np.append(np.flatnonzero(loop[1:] != loop[:-1]), len(rows) - 1)] = explained
    before = np.zeros(len(lane.ops) + 1, np.int64)
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
