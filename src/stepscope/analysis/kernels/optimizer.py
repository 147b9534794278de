"""An optimizer that launches several kernels for every parameter, and what a fused one takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analysis.gaps import CAUSES, Gaps
from stepscope.analysis.kernels.repair import Repair
from stepscope.analysis.kernels.view import ATTAINED_BANDWIDTH, UPDATE_RUN, Kernels
from stepscope.trace.frame import BoolArray, IntArray

LAUNCH_FLOOR_NS = 1_000
"""A kernel that does next to nothing takes about this long on the device."""

_ADAM_PASSES = 7  # reads parameter, gradient and two states; writes all but the gradient
_OTHER_PASSES = 5  # the same with one state
_LATE = tuple(CAUSES.index(c) for c in ("launch_bound", "small_kernels"))


@dataclass(frozen=True)
class UnfusedOptimizer:
    """The loop over the parameters in the steady window.

    Attributes:
        repair: the kernels of the loop, and the fused update instead.
        kernels: number of them.
        parameters: estimated number of parameter tensors.
        idle_launch_ns: the part of the saved idle time that is charged to ``launch_bound``.
    """

    repair: Repair
    kernels: int
    parameters: int
    idle_launch_ns: int


def unfused_optimizer(kernels: Kernels, gaps: Gaps) -> UnfusedOptimizer | None:
    """Find the loop; None where the updates are fused or few.

    Args:
        kernels: the device's kernels.
        gaps: its idle time in the steady window.
    """
    ops = kernels.lane.ops
    looped = kernels.in_phase("optimizer") & kernels.in_family("elementwise", "copy")
    rows = np.flatnonzero(looped & kernels.steady)
    if len(rows) < UPDATE_RUN * kernels.n_steady:
        return None
    operation = np.array([c.operation for c in kernels.classes] + [""])[ops["name"][rows]]
    names, counts = np.unique(operation, return_counts=True)
    # every operation of the update is launched once or a few times for every parameter
    regular = counts[counts >= counts.max() / 8]
    parameters = max(int(regular.min()) // kernels.n_steady, 1)
    if parameters < UPDATE_RUN // 8:
        return None
    duration = kernels.duration_ns
    moving = np.maximum(duration[rows] - LAUNCH_FLOOR_NS, 0)
    tensors = np.array([c.tensors for c in kernels.classes] + [0])[ops["name"][rows]]
    passes = float(tensors.sum()) / (parameters * kernels.n_steady)
    adam = bool(np.isin(["addcdiv", "sqrt"], names).all())
    needed = _ADAM_PASSES if adam else _OTHER_PASSES
    share = min(needed / passes, 1.0) if passes else 1.0
    fused = moving.sum() * share
    known = kernels.moved_bytes[rows].sum() * share
    if kernels.bandwidth:
        # caches let short chains of kernels run faster than the memory; a fused update cannot
        fused = max(fused, known / (kernels.bandwidth * ATTAINED_BANDWIDTH) * 1e9)
    fused = min(float(fused), float(duration[rows].sum()))
    first = _first_of_steps(kernels, rows)
    new = np.zeros(len(rows), np.int64)
    new[first] = int(fused) // max(int(first.sum()), 1)
    idle, launch = _idle_inside(kernels, rows, gaps)
    # at most what multi-tensor kernels (foreach) take: the same traffic without the launches
    most = max(float(moving.sum()), fused)
    repair = Repair(rows, new, ~first, idle, int(fused), int(most))
    return UnfusedOptimizer(repair, len(rows), parameters, launch)


def _first_of_steps(kernels: Kernels, rows: IntArray) -> BoolArray:
    step = kernels.step[rows]
    return np.concatenate(([True], step[1:] != step[:-1]))


def _idle_inside(kernels: Kernels, rows: IntArray, gaps: Gaps) -> tuple[int, int]:
    """Idle time that ends with a kernel of the loop: all launch-late, and ``launch_bound`` alone.

    The gap before the first kernel of a step's loop is not the loop's.
    """
    segments = gaps.segments
    of_loop = np.zeros(len(kernels.lane.ops) + 1, bool)
    of_loop[rows] = True
    of_loop[rows[_first_of_steps(kernels, rows)]] = False
    mine = of_loop[segments["op"]] & np.isin(segments["cause"], _LATE)
    length = (segments["end_ns"] - segments["start_ns"])[mine]
    launch = segments["cause"][mine] == CAUSES.index("launch_bound")
    return int(length.sum()), int(length[launch].sum())


