"""Runs of kernels that wait for memory: which ones a compiler merges, and what is left of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from stepscope.intervals.distinct import among
from stepscope.kernels.caches import grown_caches
from stepscope.kernels.efficiency import with_few_blocks
from stepscope.kernels.kernels import CATEGORY_NAMES, LAYOUT_CHANGE, Kernels, Repair
from stepscope.kernels.merging import LIKE_THE_LARGEST, SCAN, WINDOWS, launched_elements, merged
from stepscope.trace.frame import BoolArray, IntArray

COMPILED: Final = (
    "elementwise",
    "dropout",
    "random",
    "copy",
    "reduction",
    "softmax",
    "normalisation",
    "loss",
)
"""Categories that a compiler merges with their neighbours."""

_FLIP: Final = re.compile(r"flip_kernel_impl")
"""Reversals: a compiler reads in the other order. The gradient of a sum along a dimension has one
before the sum and one behind it, and what reads a kernel's result in the other order is a kernel of
its own (PyTorch 2.11)."""

_LEAST_KERNELS = 2
_LIKE: Final = 0.05
"""Elements that padding adds, and whole blocks, at most."""
SAME_SIZE: Final = 0.02  # grids are rounded up to whole blocks


def short_runs(kernels: Kernels, taken: BoolArray) -> Repair | None:
    """Kernels that follow each other, launched by one thread, and what they take merged.

    Args:
        kernels: the device's kernels.
        taken: operations that belong to another repair already.
    """
    order = kernels.order[(kernels.gpu.is_compute & kernels.steady)[kernels.order]]
    can = compiled(kernels)[order] & ~taken[order]
    thread, phase = kernels.attribution.thread[order], kernels.phase[order]
    starts = np.ones(len(order), bool)
    starts[1:] = ~(can[1:] & can[:-1] & (thread[1:] == thread[:-1]) & (phase[1:] == phase[:-1]))
    run = np.cumsum(starts) - 1
    length = np.bincount(run[can], minlength=int(run[-1]) + 1 if len(run) else 0)
    inside = can & (length[run] >= _LEAST_KERNELS) if len(run) else can
    rows, run = order[inside], run[inside]
    elements = launched_elements(kernels, rows)
    apart = _casts_of_weights(kernels, rows, run, elements)
    rows, run, elements = rows[~apart], run[~apart], elements[~apart]
    # casts of one weight after the other stand in a row and have nothing to do with each other
    joined = np.zeros(len(rows) + 1, bool)
    joined[1:-1] = (run[1:] == run[:-1]) & _may_hand_on(elements[:-1], elements[1:])
    part_of = joined[:-1] | joined[1:]
    rows, run, elements = rows[part_of], run[part_of], elements[part_of]
    if not len(rows):
        return None
    linked = np.zeros(len(rows), bool)
    linked[1:] = (run[1:] == run[:-1]) & _may_hand_on(elements[:-1], elements[1:])
    return merged_repair(kernels, rows, np.cumsum(~linked) - 1)


def _casts_of_weights(
    kernels: Kernels, rows: IntArray, run: IntArray, elements: IntArray
) -> BoolArray:
    """Copies of runs that are smaller than what the runs are about.

    Mixed precision casts each weight before its product, and its gradient behind it: between a
    normalisation and the cast of its result. A compiler moves them out of the way.
    """
    count = int(run[-1]) + 1 if len(run) else 0
    copy = kernels.in_category("copy")[rows]
    largest, of_copies = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.maximum.at(largest, run[~copy], elements[~copy])
    np.maximum.at(of_copies, run[copy], elements[copy])
    others = np.bincount(run[~copy], minlength=count)
    size = np.where(largest > 0, largest, of_copies)
    small = elements < LIKE_THE_LARGEST * size[run]
    found: BoolArray = copy & (elements > 0) & small & (others[run] > 0)
    return found


def merged_repair(kernels: Kernels, rows: IntArray, run: IntArray) -> Repair:
    """Runs as merged kernels, as a repair.

    Args:
        kernels: the device's kernels.
        rows: rows of ``GPU.ops`` in the order of enqueueing; at least one.
        run: number of the run of each, ascending from 0.
    """
    found = merged(kernels, rows, _split_at_reversals(kernels, rows, run))
    by_row = np.argsort(rows, kind="stable")
    return Repair(
        rows=rows[by_row],
        old_ns=kernels.duration_ns[rows[by_row]],
        new_ns=found.new_ns[by_row],
        merged=found.goes[by_row],
        idle_ns=np.zeros(len(rows), np.int64),
        low_ns=found.low_ns,
        high_ns=found.high_ns,
        compiles=True,
    )


def _split_at_reversals(kernels: Kernels, rows: IntArray, run: IntArray) -> IntArray:
    """Runs that end where a sum along a dimension is read in the other order."""
    scan, flip = (kernels.gpu.ops.matches("name", name)[rows] for name in (SCAN, _FLIP))
    starts = np.ones(len(rows), bool)
    starts[1:] = (run[1:] != run[:-1]) | (scan[:-1] & flip[1:])
    found: IntArray = np.cumsum(starts) - 1
    return found


def with_copies(kernels: Kernels, repair: Repair, rows: IntArray, run: IntArray) -> Repair:
    """The same without the copies on the device inside of runs, which are elementwise, too.

    PyTorch copies contiguous tensors by a memcpy and others by a kernel, which merges as such:
    ``clone``, and ``pow(x, 1)``, which the gradient of a square computes.

    Args:
        kernels: the device's kernels.
        repair: of the runs.
        rows: rows of ``GPU.ops`` of the runs in the order of enqueueing.
        run: number of the run of each.
    """
    ops, order = kernels.gpu.ops, kernels.order
    of_run = np.full(len(ops), -1, np.int64)
    of_run[rows] = run
    copies = ops.equals("copy_kind", "DtoD") & kernels.steady
    others = order[~copies[order]]
    place = np.empty(len(ops), np.int64)
    place[order] = np.arange(len(order))
    found = np.flatnonzero(copies)
    next_ = np.searchsorted(place[others], place[found])
    inner = (next_ > 0) & (next_ < len(others))
    found, next_ = found[inner], next_[inner]
    before, after = of_run[others[next_ - 1]], of_run[others[next_]]
    thread = kernels.attribution.thread
    alike = (before >= 0) & (before == after) & (thread[found] == thread[others[next_]])
    found = found[alike]
    if not len(found):
        return repair
    all_rows = np.append(repair.rows, found)
    by_row = np.argsort(all_rows, kind="stable")
    none = np.zeros(len(found), np.int64)
    spent = kernels.duration_ns[found]
    return replace(
        repair,
        rows=all_rows[by_row],
        old_ns=np.append(repair.old_ns, spent)[by_row],
        new_ns=np.append(repair.new_ns, none)[by_row],
        merged=np.append(repair.merged, none == 0)[by_row],
        idle_ns=np.append(repair.idle_ns, none)[by_row],
        # they may be written by themselves
        high_ns=repair.high_ns + int(spent.sum()),
    )


def compiled(kernels: Kernels) -> BoolArray:
    """Kernels that a compiler of the model merges with their neighbours.

    Not those of the optimizer, not the transposes that a library puts around convolutions, and not
    scans of so few rows that most of the device has nothing to do, whoever wrote their kernel; nor
    the growth of a cache, which is kept for the next step.
    """
    found: BoolArray = among(kernels.category, [CATEGORY_NAMES.index(name) for name in COMPILED])
    ops = kernels.gpu.ops
    scans = ops.matches("name", SCAN) & ~with_few_blocks(kernels)
    found |= scans | ops.matches("name", _FLIP) | _windows_of_all(kernels)
    found &= ~kernels.in_phase("optimizer") & ~grown_caches(kernels)
    return found & ~ops.matches("name", LAYOUT_CHANGE)


def _windows_of_all(kernels: Kernels) -> BoolArray:
    """Means over windows around each element, beside kernels that make as many.

    Fewer windows than elements make a tensor smaller for the next layer.
    """
    windows = kernels.gpu.ops.matches("name", WINDOWS)
    if not windows.any():
        return windows
    order = kernels.order[kernels.gpu.is_compute[kernels.order]]
    each = np.where(windows, kernels.blocks * kernels.threads, 0)[order]
    made = np.where(each > 0, each, launched_elements(kernels, order))
    like = (made[1:] > 0) & (made[:-1] > 0) & as_large(made[1:], made[:-1], _LIKE)
    beside = np.zeros(len(order), bool)
    beside[1:] |= like
    beside[:-1] |= like
    found = np.zeros(len(windows), bool)
    found[order[beside]] = True
    return found & windows


def _may_hand_on(before: IntArray, after: IntArray) -> BoolArray:
    """Whether one kernel's result may be the next one's operand: of one size, if that is known."""
    unknown = (before == 0) | (after == 0)
    found: BoolArray = unknown | as_large(before, after)
    return found


def as_large(one: IntArray, other: IntArray, apart: float = SAME_SIZE) -> BoolArray:
    """Whether numbers of elements differ by at most a share of the larger one."""
    found: BoolArray = np.abs(one - other) <= apart * np.maximum(one, other)
    return found
