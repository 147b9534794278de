"""The operations of one device as kernels: category, phase, order, device; and repairs of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline, Reader
from stepscope.intervals.distinct import among, distinct_rows, with_inverse
from stepscope.kernels.attribution import OF_BACKWARD, Attribution
from stepscope.kernels.categories import CATEGORIES, MATHS, PRODUCTS, KernelClass, classify
from stepscope.kernels.ceilings import Ceilings, Peaks, peaks_from, peaks_of
from stepscope.kernels.derived_peaks import derived_peaks
from stepscope.kernels.sharing import own_time_ns
from stepscope.kernels.vendors import Vendor, vendor_of
from stepscope.trace.frame import BoolArray, FloatArray, Frame, IntArray


@dataclass(frozen=True)
class Repair:
    """One repair of some operations of one device, in its steady window.

    Attributes:
        rows: rows of ``GPU.ops``, ascending.
        old_ns: length of each.
        new_ns: length of each after the repair; 0 for one that is merged into another.
        merged: which of them are not launched any more.
        idle_ns: late launches that go with each: before it, and behind the last of a loop.
        low_ns: the least that all of them together may take after the repair.
        high_ns: the most that they may take, with the idle time that may stay.
        replaced: whether one new operation a step takes the place of all of them, rather than
            those of them that are not merged.
        compiles: whether a compiler makes the kernels that are left, whose code the host calls.
        certain: whether those merged go in any case; else all may still be launched.
        leading: which of those merged are the first that an operator launches that stays, so that
            what the host does before them stays; None for none.
        further: what the same change repairs beside it where it is made of more of the program,
            in other operations; at best it goes, too.
    """

    rows: IntArray
    old_ns: IntArray
    new_ns: IntArray
    merged: BoolArray
    idle_ns: IntArray
    low_ns: int
    high_ns: int
    replaced: bool = False
    compiles: bool = False
    certain: bool = True
    leading: BoolArray | None = None
    further: Repair | None = None

    @property
    def saved_ns(self) -> int:
        """What the repair saves, ns of the steady window."""
        return int((self.old_ns - self.new_ns + self.idle_ns).sum())

    @property
    def saved_bounds_ns(self) -> tuple[int, int]:
        """Least and most that it may save, ns of the steady window."""
        before = int((self.old_ns + self.idle_ns).sum())
        beside = 0 if self.further is None else self.further.saved_bounds_ns[1]
        return max(before - self.high_ns, 0), max(before - self.low_ns, 0) + beside

    @property
    def total_idle_ns(self) -> int:
        """All late launches that go, ns of the steady window."""
        return int(self.idle_ns.sum())

    @property
    def factor(self) -> float:
        """New over old time of the operations that are still launched."""
        old = int(self.old_ns[~self.merged].sum())
        return float(self.new_ns[~self.merged].sum()) / old if old else 1.0

    def factors(self, kept: BoolArray, total_ns: int) -> FloatArray:
        """New over old length of those that are still launched, each.

        Args:
            kept: which they are; where some of them are merged at best, all change alike.
            total_ns: what they take together.
        """
        old, new = np.maximum(self.old_ns[kept], 1), self.new_ns[kept]
        if self.merged[kept].any() or not new.any():
            return np.full(len(old), total_ns / int(old.sum()))
        found: FloatArray = new / old * (total_ns / int(new.sum()))
        return found


def scaled(old_ns: IntArray, factor: float) -> IntArray:
    """Lengths times a factor, ns."""
    lengths: IntArray = np.rint(old_ns * factor).astype(np.int64)
    return lengths


def changed(
    rows: IntArray,
    old_ns: IntArray,
    new_ns: IntArray,
    low_ns: float,
    high_ns: float,
    *,
    certain: bool = True,
    stay: bool = False,
) -> Repair:
    """A change of some operations and of no idle time; those that take nothing then are gone.

    Args:
        rows: rows of ``GPU.ops``, in any order.
        old_ns: their lengths.
        new_ns: their lengths afterwards.
        low_ns: the least that all of them may take.
        high_ns: the most.
        certain: whether those that take nothing go in any case.
        stay: whether all are launched as before, even those that take nothing.
    """
    order = np.argsort(rows, kind="stable")
    new = np.minimum(new_ns, old_ns)[order].astype(np.int64)
    total = int(new.sum())
    return Repair(
        rows=rows[order],
        old_ns=old_ns[order],
        new_ns=new,
        merged=np.zeros(len(rows), bool) if stay else new == 0,
        idle_ns=np.zeros(len(rows), np.int64),
        low_ns=min(int(low_ns), total),
        high_ns=min(max(int(high_ns), total), int(old_ns.sum())),
        certain=certain,
    )


CATEGORY_NAMES: Final = tuple(CATEGORIES)
MATH_NAMES: Final = tuple(MATHS)
PHASES: Final = ("forward", "backward", "optimizer")
"""Phases of a step, as far as they can be told."""

ACHIEVED_BANDWIDTH = 0.8
"""Share of the datasheet memory bandwidth that a streaming kernel achieves: 80 to 90 % in STREAM
measurements on NVIDIA GPUs."""

_OPTIMIZER_RANGE = re.compile(
    r"^Optimizer\.step#|(?<![a-z])(optim(izer)?|opt)([_. ]?(step|update))?[^a-z]*$"
    r"|weight_?update|update_?(params|parameters|weights)|apply_?gradients",
    re.IGNORECASE,
)
_BACKWARD_RANGE = re.compile(r"(?<![a-z])(backward|bwd)(?![a-z])", re.IGNORECASE)
_CLOSURE = 0.3  # share of matrix work that no update of parameters has, but for a few optimizers
_LIGHT = ("elementwise", "copy", "dropout", "random")

GRID_COLUMNS = ("id", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def launched_threads(grid: Frame) -> IntArray:
    """Threads of each launch; a dimension that is not recorded counts as one.

    Args:
        grid: ``GRID_COLUMNS``.
    """
    threads = np.ones(len(grid), np.int64)
    for name in GRID_COLUMNS[1:]:
        threads *= np.maximum(grid[name], 1).astype(np.int64)
    return threads


class Kernels:
    """The kernels of one device; every array has one value an operation of ``GPU.ops``.

    Args:
        gpu: the device.
        read: gives tables as frames.
        step_label: stem of the ranges that mark steps.
        bounds_ns: step boundaries on the device's timeline.
        first: first steady step.
        last: last steady step.
        ceilings: measured ones; they count for devices of their product.
    """

    def __init__(
        self,
        gpu: GpuTimeline,
        read: Reader,
        step_label: str,
        bounds_ns: IntArray,
        first: int,
        last: int,
        ceilings: Ceilings | None = None,
    ) -> None:
        self.gpu = gpu
        self._ceilings = ceilings
        self._read = read
        self.begin_ns, self.end_ns = int(bounds_ns[first]), int(bounds_ns[last + 1])
        self.n_steady = last - first + 1
        self._bounds_ns = bounds_ns
        self.attribution = Attribution(gpu, read, step_label)

    @cached_property
    def duration_ns(self) -> IntArray:
        """Length of each operation."""
        ops = self.gpu.ops
        return ops["end_ns"] - ops["start_ns"]

    @cached_property
    def own_ns(self) -> IntArray:
        """The part of it that each has the device to itself (``own_time_ns``)."""
        return own_time_ns(self.gpu)

    @cached_property
    def steady(self) -> BoolArray:
        """Operations that start in the steady window."""
        start = self.gpu.ops["start_ns"]
        return (start >= self.begin_ns) & (start < self.end_ns)

    @cached_property
    def step(self) -> IntArray:
        """Number of the step that each operation starts in; -1 before the first."""
        return np.searchsorted(self._bounds_ns, self.gpu.ops["start_ns"], side="right") - 1

    @cached_property
    def classes(self) -> list[KernelClass]:
        """Class of each distinct name."""
        return [classify(text) for text in self.gpu.ops.texts["name"]]

    @cached_property
    def category(self) -> IntArray:
        """Index into ``CATEGORY_NAMES``; -1 for copies and sets by the copy engine."""
        codes = np.array([CATEGORY_NAMES.index(c.category) for c in self.classes] + [-1])
        category = codes[self.gpu.ops["name"]]
        category = np.where(
            self.gpu.ops.equals("kind", "graph"), CATEGORY_NAMES.index("graph"), category
        )
        return np.where(self.gpu.is_kernel, category, -1)

    def in_category(self, *categories: str) -> BoolArray:
        """Mask of the kernels of some categories."""
        return among(self.category, [CATEGORY_NAMES.index(f) for f in categories])

    def of_operation(self, *operations: str, tensors: int = 0) -> BoolArray:
        """Mask of the kernels that compute one of some operations; on so many tensors, unless 0."""
        of_name = np.array(
            [c.operation in operations and tensors in (0, c.tensors) for c in self.classes]
            + [False]
        )
        found: BoolArray = of_name[self.gpu.ops["name"]]
        return found

    @cached_property
    def math(self) -> IntArray:
        """Index into ``MATH_NAMES``; -1 where it does not apply or is not known."""
        codes = np.array([MATH_NAMES.index(c.math) if c.math else -1 for c in self.classes] + [-1])
        return np.where(self.gpu.is_kernel, codes[self.gpu.ops["name"]], -1)

    @cached_property
    def grid(self) -> Frame:
        """Launch dimensions of each operation; -1 where not recorded."""
        frame = self._read("gpu_op", *GRID_COLUMNS)
        row = np.searchsorted(frame["id"], self.gpu.ops["id"])
        return frame.take(row)

    @cached_property
    def blocks(self) -> IntArray:
        """Blocks of each kernel; 0 where not recorded."""
        grid = self.grid
        sizes = [np.maximum(grid[f"grid_{axis}"].astype(np.int64), 0) for axis in "xyz"]
        return sizes[0] * sizes[1] * sizes[2]

    @cached_property
    def threads(self) -> IntArray:
        """Threads a block of each kernel; 0 where not recorded."""
        grid = self.grid
        sizes = [np.maximum(grid[f"block_{axis}"].astype(np.int64), 0) for axis in "xyz"]
        return sizes[0] * sizes[1] * sizes[2]

    @cached_property
    def moved_bytes(self) -> IntArray:
        """Bytes that each operation reads and writes, as far as they are known; 0 elsewhere.

        Copies and sets have recorded them. Of PyTorch's contiguous elementwise kernels the name
        tells the tensors, their type and the elements of each thread, and the launch the threads.
        """
        ops = self.gpu.ops
        recorded = np.maximum(ops["bytes"], 0)
        recorded = np.where(ops.equals("kind", "memcpy") & ops.equals("copy_kind", "DtoD"),
                            2 * recorded, recorded)  # fmt: skip
        each = np.array([c.element_bytes * c.thread_elements for c in self.classes] + [0])
        by_launch = self.blocks * self.threads * each[ops["name"]]
        return np.where(self.gpu.is_kernel, by_launch, recorded)

    @cached_property
    def order(self) -> IntArray:
        """Rows in the order in which they were enqueued."""
        ops = self.gpu.ops
        return np.lexsort((ops["start_ns"], self.gpu.enqueue_begin_ns))

    @cached_property
    def phase(self) -> IntArray:
        """Index into ``PHASES``; -1 where nothing tells.

        The optimizer's range or category, and long runs of elementwise kernels that update
        parameters; the backward pass is launched by another thread than the main one,
        or inside an operator or range that says so.
        """
        gpu = self.gpu
        phase = np.full(len(gpu.ops), PHASES.index("forward"))
        who = self.attribution
        backward = (who.thread >= 0) & (who.thread != gpu.host.main_thread)
        backward |= _inside(who.ranges, who.range, _is_backward)
        backward |= _inside(who.operators, who.outermost, _is_backward_operator)
        phase[backward] = PHASES.index("backward")
        optimizer = self._in_optimizer_range()
        if not optimizer.any():
            optimizer = self.in_category("optimizer")
        optimizer |= self._update_runs(optimizer)
        phase[optimizer] = PHASES.index("optimizer")
        crossing = gpu.ops.equals("kind", "memcpy") & ~gpu.ops.equals("copy_kind", "DtoD")
        return np.where(crossing, -1, phase)

    def in_phase(self, phase: str) -> BoolArray:
        """Mask of the kernels of a phase."""
        mask: BoolArray = np.equal(self.phase, PHASES.index(phase))
        return mask

    @cached_property
    def device(self) -> tuple[str, int, int]:
        """Product name, SMs and recorded memory bandwidth (bytes/s; 0 if unknown)."""
        table, row = self._device_row
        if row < 0:
            return "", 0, 0
        sms, bandwidth = (max(int(table[c][row]), 0) for c in ("sm_count", "memory_bandwidth"))
        return table.text("name", row), sms, bandwidth

    @property
    def capability(self) -> int:
        """Major compute capability of the device; 0 where the capture does not tell."""
        table, row = self._device_row
        return max(int(table["compute_major"][row]), 0) if row >= 0 else 0

    @cached_property
    def vendor(self) -> Vendor:
        """Who made the device."""
        return vendor_of(self.gpu, self.device[0])

    @cached_property
    def _device_row(self) -> tuple[Frame, int]:
        """The table of devices, and the row of this one; -1 where it is not there."""
        numbers = ("sm_count", "memory_bandwidth", "compute_major", "compute_minor", "clock_hz")
        table = self._read("device", "process_id", "device", "name", *numbers)
        if not len(table):
            return table, -1
        mine = among(table["process_id"], [self.gpu.process_id, -1])
        rows = np.flatnonzero(mine & (table["device"] == self.gpu.device))
        return table, int(rows[0]) if len(rows) else -1

    @cached_property
    def peaks(self) -> Peaks | None:
        """Peaks of the device; None where nothing tells.

        They are measured, of its datasheet, or else derived from its architecture. Of a device that
        the capture does not name, those that the user gives.
        """
        if self._ceilings is not None and self.device[0] in ("", self._ceilings.device):
            return peaks_from(self._ceilings)
        product, sms, bandwidth = self.device
        table, row = self._device_row
        sheet = peaks_of(product)
        if sheet is not None or row < 0:
            return sheet
        major, minor, clock = (
            int(table[column][row]) for column in ("compute_major", "compute_minor", "clock_hz")
        )
        return derived_peaks(product, (major, minor), sms, max(clock, 0), bandwidth)

    @cached_property
    def bandwidth(self) -> float:
        """Peak memory bandwidth, bytes/s: measured, else recorded, else of the datasheet; or 0."""
        if self.peaks and self.peaks.measured:
            return self.peaks.bandwidth
        return float(self.device[2] or (self.peaks.bandwidth if self.peaks else 0))

    @property
    def attainable_bandwidth(self) -> float:
        """What a streaming kernel achieves, bytes/s; 0 if unknown."""
        measured = self.peaks is not None and self.peaks.measured
        return self.bandwidth * (1.0 if measured else ACHIEVED_BANDWIDTH)

    def per_step(self, time_ns: float) -> float:
        """A time of the steady window as ns a step."""
        return time_ns / self.n_steady

    def _in_optimizer_range(self) -> BoolArray:
        """Kernels launched inside a range that is the optimizer's, at any depth of the range.

        None where the whole step runs inside it, as a closure that the optimizer calls.
        """
        who = self.attribution
        table = who.ranges
        inside = np.zeros(len(self.gpu.ops), bool)
        if not len(table):
            return inside
        hits = words.hits(table, "name", _is_optimizer)
        hits &= table["thread_id"] == self.gpu.host.main_thread
        start, end = table["start_ns"][hits], np.maximum.accumulate(table["end_ns"][hits])
        if len(start):
            at = self.gpu.enqueue_begin_ns
            row = np.searchsorted(start, at, side="right") - 1
            inside = (row >= 0) & (end[np.maximum(row, 0)] >= at)
        inside &= ~self.gpu.is_communication
        heavy = inside & self.in_category(*PRODUCTS)
        if self.duration_ns[heavy].sum() > _CLOSURE * self.duration_ns[inside].sum():
            return np.zeros(len(inside), bool)
        return inside

    def _update_runs(self, known: BoolArray) -> BoolArray:
        """Runs of elementwise kernels that update parameters one by one, apart from known ones.

        Runs of one thread in the order of enqueueing, longer than any layer's (``UPDATE_RUN``):
        those with the operations that optimizers chain, else those at the end of a step. A copy
        between host and device, which brings the next batch, ends a run.
        """
        order = self.order
        light = self.in_category(*_LIGHT) | self.gpu.ops.equals("kind", "memset")
        light |= self.gpu.ops.equals("copy_kind", "DtoD")
        light, thread = light[order], self.attribution.thread[order]
        goes_on = np.zeros(len(order) + 1, bool)
        goes_on[1:-1] = light[1:] & light[:-1] & (thread[1:] == thread[:-1])
        begin = np.flatnonzero(light & ~goes_on[:-1])
        end = np.flatnonzero(light & ~goes_on[1:]) + 1
        met = np.concatenate(([0], np.cumsum(known[order])))
        apart = met[end] == met[begin]
        begin, end = begin[apart], end[apart]
        # casts of the last gradients come before the first update, of weights after the last
        plain = np.append(np.flatnonzero(~self.in_category("copy")[order]), len(order))
        begin = np.minimum(plain[np.searchsorted(plain, begin)], end)
        earlier = np.concatenate(([-1], plain[:-1]))  # the last plain one before each place
        end = np.maximum(earlier[np.searchsorted(plain, end)] + 1, begin)
        found = np.zeros(len(self.gpu.ops), bool)
        if not len(begin):
            return found
        telling = self.of_operation("addcdiv", "addcmul", "lerp_scalar", "lerp_tensor")
        facts = np.concatenate(([0], np.cumsum(telling[order])))
        long_ = end - begin >= UPDATE_RUN
        updates = long_ & (facts[end] - facts[begin] >= UPDATE_RUN // 8)
        if not updates.any():
            updates = long_ & self._last_of_step(order, end)
            # what is marked as the step may end with the optimizer, before an average of weights
            behind = long_ & ~updates & (begin > 0) & known[order[np.maximum(begin - 1, 0)]]
            for at in np.flatnonzero(behind).tolist():
                updates[at] = self._goes_through_parameters(order[begin[at] : end[at]])
        for first, last in zip(begin[updates].tolist(), end[updates].tolist(), strict=True):
            found[order[first:last]] = True
        return found

    def _goes_through_parameters(self, rows: IntArray) -> bool:
        """Whether most kernels of a run repeat their operation for tensors of several sizes."""
        kinds, at = with_inverse(self.gpu.ops["name"][rows])
        launches = np.bincount(at)
        first, _ = distinct_rows((at, self.blocks[rows]))
        several = np.bincount(at[first], minlength=len(kinds))
        repeated = (launches >= UPDATE_RUN // 4) & (several >= _SIZES)
        return bool(2 * launches[repeated].sum() >= len(rows))

    def _last_of_step(self, order: IntArray, end: IntArray) -> BoolArray:
        """Runs that no heavy kernel of the same step follows."""
        step = self.step[order]
        after = np.minimum(end, len(order) - 1)
        last: BoolArray = (end >= len(order)) | np.not_equal(step[after], step[end - 1])
        return last


LAYOUT_CHANGE = re.compile(
    r"nchwToNhwc|nhwcToNchw|tensorTransformGeneric|nchw2nhwc|nhwc2nchw|batched_transpose_",
    re.IGNORECASE,
)
"""Kernels that reorder the channels of images before and after convolutions."""

NOT_VECTORISED: Final = r"(?<!vectorized_)(?<!unrolled_)elementwise_kernel"
"""Kernels that compute where each element is: that takes longer than to move it."""

SCATTERED_COPY = re.compile(f"{NOT_VECTORISED}.*direct_copy")
"""Copies by a kernel that go across the rows of what they read or write."""

WIDENS: Final = re.compile(r"unrolled_elementwise_kernel<.*direct_copy_kernel")
"""Copies that change the type, to single precision: those to half have names of their own."""

UPDATE_RUN = 32
"""Elementwise kernels in a row from which on they can be no layer's: layers put a GEMM,
reduction or normalisation between fewer of them. An optimizer without fusion launches several for
each of dozens of parameters."""

_SIZES = 3
"""Distinct sizes of what a loop over parameters goes through: weights, biases, tables."""


def _is_optimizer(text: str) -> bool:
    return _OPTIMIZER_RANGE.search(text) is not None


def _is_backward(text: str) -> bool:
    return _BACKWARD_RANGE.search(text) is not None


def _is_backward_operator(text: str) -> bool:
    return OF_BACKWARD.search(text) is not None


def _inside(table: Frame, rows: IntArray, holds: Callable[[str], bool]) -> BoolArray:
    if not len(table):
        return np.zeros(len(rows), bool)
    hits = np.append(words.hits(table, "name", holds), False)
    inside: BoolArray = hits[rows]
    return inside
