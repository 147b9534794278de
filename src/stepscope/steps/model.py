"""A run's steps: what marks them, their windows on a device, and where the time of each goes.

Identity (per device and step window)::

    wall = compute + exposed communication + exposed copy + memset-only + idle

Overlaps are resolved by that priority: communication counts as exposed only where no compute
kernel runs, a copy only where neither runs, and so on. What was hidden is reported beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from stepscope.activity.device import GpuTimeline
from stepscope.activity.host import LONGEST_LATENCY_NS
from stepscope.intervals import overlap_per_window, subtract, union
from stepscope.intervals.algebra import Intervals, Ints
from stepscope.trace.frame import BoolArray, IntArray

Kind = Literal[
    "training_step",
    "forward",
    "decode_step",
    "engine_iteration",
    "denoising_step",
    "graph_replay",
    "step",
    "whole_capture",
]
"""What one step is; ``step`` where nothing tells whether the program trains."""

InnerKind = Literal[
    "training_step", "batch", "micro_batch", "denoising_step", "graph_replay", "layer", "repetition"
]
"""What repeats inside one step."""

INNER_PLURAL: Final[dict[str, str]] = {
    "training_step": "training steps",
    "batch": "batches",
    "micro_batch": "micro-batches",
    "denoising_step": "denoising steps",
    "graph_replay": "graph replays",
    "layer": "layers",
    "repetition": "repetitions of one sequence of kernels",
}

Source = Literal[
    "user",
    "profiler_step",
    "numbered_range",
    "repeating_range",
    "single_range",
    "optimizer_range",
    "kernel_sequence",
    "graph_replay",
    "whole_capture",
]
"""What the steps were found by; ``user`` where the caller said what a step is."""


@dataclass(frozen=True)
class Inner:
    """What repeats inside one step.

    Attributes:
        kind: what it is.
        count: how many of them a step launches.
        median_ns: from one to the next on the device, ns.
        within: how many of them run, at least by half, before the step ends: a mark may end while
            the device still runs what was launched under it.
    """

    kind: InnerKind
    count: int
    median_ns: int
    within: int


@dataclass(frozen=True)
class Steps:
    """Where the steps begin on the host.

    Attributes:
        begin_ns: begin of each step on the host, ascending.
        end_ns: the host's end of the last step.
        source: what the steps were found by.
        message: how they were found, in one sentence.
        label: range name or stem that marks them; empty where none does.
        kind: what one step is.
        inner: what repeats inside a step, if anything was seen to.
    """

    begin_ns: IntArray
    end_ns: int
    source: Source
    message: str
    label: str = ""
    kind: Kind = "step"
    inner: tuple[Inner, ...] = ()

    @property
    def open_end(self) -> bool:
        """Whether nothing marks the end of the last step."""
        return self.source in ("kernel_sequence", "graph_replay")

    @property
    def open_begin(self) -> bool:
        """Whether the first step begins where the capture does, since nothing marks its begin."""
        return self.open_end or self.source == "optimizer_range"

    @property
    def marked(self) -> bool:
        """Whether the program or the user marks the steps, so that none was inferred."""
        return self.source not in ("kernel_sequence", "graph_replay", "whole_capture")

    def __len__(self) -> int:
        return len(self.begin_ns)


@dataclass(frozen=True)
class StepChoice:
    """What the user says a step is; nothing chosen lets the capture tell.

    Attributes:
        mark: name of a range, or a regular expression that finds names of ranges; ``none`` for
            the whole capture as one step.
        kernel: regular expression that finds names of kernels, each of which begins a step.
    """

    mark: str = ""
    kernel: str = ""

    def __bool__(self) -> bool:
        return bool(self.mark or self.kernel)

    @property
    def text(self) -> str:
        """The options as they are written on a command line; empty for none."""
        parts = [("--step", self.mark), ("--step-kernel", self.kernel)]
        return " ".join(f"{name} {value!r}" for name, value in parts if value)


AUTOMATIC: Final = StepChoice()
"""The capture itself tells what a step is."""


MIN_STEPS = 3
_LACKS = 0.05
"""Share of a step that a first step lacks which is set aside: of so much the mean step is wrong by
as many percent as there are steps."""

_ONLY_LAUNCHES = 1.5
"""A mark whose work takes this many times as long on the device holds its launches only."""


def step_windows(gpu_timeline: GpuTimeline, steps: Steps) -> IntArray:
    """Boundaries of the steps on the device's timeline, ns; one more than there are steps.

    Step i begins when the host has begun it *and* the device has finished what earlier steps
    enqueued. A device that runs behind the host is thus charged to the step whose work it does,
    and an idle wait for the next step's input to the step that waits. Of a single step neither
    neighbour is known, see :func:`_single_window`.

    What was launched before the recording began was so before the first mark, which is recorded:
    it is work of the step ahead.
    """
    if len(steps) == 1 and steps.marked:
        return _single_window(gpu_timeline, steps)
    enqueued = gpu_timeline.enqueue_begin_ns
    if steps.marked:
        enqueued = np.where(gpu_timeline.launched_before, steps.begin_ns[0] - 1, enqueued)
    step_of = np.searchsorted(steps.begin_ns, enqueued, side="right") - 1
    n = len(steps)
    last_end = np.full(n + 1, np.iinfo(np.int64).min)
    counted = enqueued <= steps.end_ns  # work enqueued after the last step belongs to none
    # slot i holds what step i-1 enqueued
    np.maximum.at(last_end, step_of[counted] + 1, gpu_timeline.ops["end_ns"][counted])
    finished = np.maximum.accumulate(last_end)
    begin = np.maximum(steps.begin_ns, finished[:n])
    end = max(steps.end_ns, int(finished[n]))
    if steps.marked and n >= MIN_STEPS:
        # no launch ends the idle time behind the last step's work, which may be the recording's end
        pauses = np.maximum(steps.begin_ns[1:] - last_end[1:n], 0)[last_end[1:n] >= begin[:-1]]
        if len(pauses) and last_end[n] >= begin[-1]:
            end = min(end, int(last_end[n] + pauses.max()))
    bounds = np.maximum.accumulate(np.append(begin, end))
    return bounds.astype(np.int64)


def _single_window(gpu_timeline: GpuTimeline, steps: Steps) -> IntArray:
    """Begin and end of a single marked step, ns.

    In a loop the mark lasts as long as the step: the device sets the host's pace, too, once its
    queue is full. Where the first operation starts as it is launched, the device had nothing of
    earlier steps left to do, the host has no step's lead, and the step lasts until the device is
    done with it. That is not said of a ProfilerStep: torch.profiler waits for the device before it
    begins to record. Else a mark that only holds the launches, and returns long before the device
    is done, says nothing about the step: what lasts is the device's work from first to last
    operation.
    """
    begin, end = int(steps.begin_ns[0]), steps.end_ns
    enqueued = gpu_timeline.enqueue_begin_ns
    # only of these it is known that they were enqueued in it
    own = (enqueued >= begin) & (enqueued <= end) & (gpu_timeline.call >= 0)
    if own.any():
        first = int(gpu_timeline.ops["start_ns"][own].min())
        last = int(gpu_timeline.ops["end_ns"][own].max())
        waited_ns = first - int(gpu_timeline.enqueue_end_ns[own].min())
        if waited_ns <= LONGEST_LATENCY_NS and steps.source != "profiler_step":
            end = max(end, last)
        elif last - first > _ONLY_LAUNCHES * (end - begin):
            begin, end = first, last
    return np.array([begin, end], np.int64)


def begins_inside(gpu_timeline: GpuTimeline, steps: Steps) -> bool:
    """Whether the capture begins inside the first step, after what the host does at its begin.

    Such a step has all launches, and lacks host work between the steps (getting a batch, logging).
    """
    if not steps.open_begin or len(steps) <= MIN_STEPS:
        return False
    enqueued = np.sort(gpu_timeline.enqueue_begin_ns)
    if enqueued[0] < steps.begin_ns[0]:
        return False  # the capture shows what came before
    first = enqueued[np.minimum(np.searchsorted(enqueued, steps.begin_ns), len(enqueued) - 1)]
    lead = np.maximum(first - steps.begin_ns, 0)
    typical = float(np.median(np.diff(steps.begin_ns)))
    return bool(lead[0] < float(np.median(lead[1:])) - _LACKS * typical)


_WARM_UP = 1.3
"""A step this many times as long as usual is none of the steady ones."""


def begun_late(steps: Steps, bounds_ns: IntArray) -> bool:
    """Whether the host took far longer for the first step than the device, which began it late.

    The device had work of an earlier step; meanwhile the host did what begins a recording, which
    no other step holds.
    """
    if len(steps) < MIN_STEPS or bounds_ns[0] <= steps.begin_ns[0]:
        return False
    host, device = (int(times[1] - times[0]) for times in (steps.begin_ns, bounds_ns))
    return host > _WARM_UP * device


def steady_steps(
    duration_ns: IntArray, *, open_end: bool = False, inside: bool = False, behind: bool = False
) -> tuple[int, int, str]:
    """First and last steady step, and what was set aside, in one sentence.

    Leading steps that take over 1.3 times the median of the second half are warm-up (allocation,
    compilation, autotuning, profiler start). A last step under half the median was cut by the end
    of the capture; last steps of no length at all were only enqueued in it. Outlier steps in the
    middle stay: they are jitter, which is a finding of its own.

    Args:
        duration_ns: length of each step.
        open_end: nothing marks the end of the last step, so that it lacks what the host does
            between its last launch and the next step; it then counts only at nearly full length.
        inside: the capture begins inside the first step.
        behind: the first step is shorter than the host took for it, for the device began it late.
    """
    n = len(duration_ns)
    if n < MIN_STEPS:
        return 0, n - 1, "" if n > 1 else "a single step is one sample: how steps vary is unknown"
    unseen = n - 1 - int(np.flatnonzero(duration_ns > 0).max(initial=0))
    if unseen:
        first, last, stated = steady_steps(
            duration_ns[: n - unseen], open_end=open_end, inside=inside, behind=behind
        )
        which = "the last step" if unseen == 1 else f"the last {unseen} steps"
        unseen_text = f"{which} set aside, because the capture ends before the GPU gets to them"
        return first, last, f"{stated} and {unseen_text}" if stated else unseen_text
    typical = float(np.median(duration_ns[n // 2 :]))
    first, last = 0, n - 1
    while first < n // 2 and duration_ns[first] > _WARM_UP * typical:
        first += 1
    # where long steps are frequent they may be half of the second half, but not of all
    typical = min(typical, float(np.median(duration_ns)))
    cut = first == 0 and (
        behind or (inside and n > MIN_STEPS) or bool(duration_ns[0] < 0.7 * typical)
    )
    if cut:
        first = 1
    if duration_ns[last] < (0.8 if open_end else 0.5) * typical:
        last -= 1
    parts = []
    if first:
        which = "the first step" if first == 1 else f"the first {first} steps"
        why = "because the capture begins inside it" if cut else "as warm-up"
        if cut and behind:
            why = "because the GPU was busy with an earlier one for a part of it"
        parts.append(f"{which} excluded {why}")
    if last < n - 1:
        parts.append("the last step excluded because the capture cut it short")
    return first, last, " and ".join(parts)


@dataclass(frozen=True)
class Coverage:
    """How much of what a device did lies in the steps.

    Attributes:
        gpu: share of the time of the device's operations, summed, that lies in the steps.
        time: share of the time from the device's first to its last operation.
        before_ns: time from the first operation to the first step, ns.
        after_ns: time from the last step to the last operation's end, ns.
        work_outside_ns: time of operations outside the steps, summed, ns.
    """

    gpu: float
    time: float
    before_ns: int
    after_ns: int
    work_outside_ns: int

    @property
    def low(self) -> bool:
        """Whether the steps hold so little that they do not stand for the capture."""
        return self.gpu < LOW_COVERAGE or self.time < LOW_COVERAGE


LOW_COVERAGE = 0.5
"""Steps that hold less than half of the GPU's work, or of the captured time, do not stand for
the capture: what is said about them is not yet said about the program."""


def coverage(gpu_timeline: GpuTimeline, bounds_ns: IntArray) -> Coverage:
    """How much of what the device did lies between the first and the last boundary.

    Args:
        gpu_timeline: the device.
        bounds_ns: step boundaries on the device's timeline, ns.
    """
    begin, end = int(bounds_ns[0]), int(bounds_ns[-1])
    start_ns, end_ns = gpu_timeline.ops["start_ns"], gpu_timeline.ops["end_ns"]
    inside = np.clip(np.minimum(end_ns, end) - np.maximum(start_ns, begin), 0, None).sum()
    total = int((end_ns - start_ns).sum())
    first, last = int(start_ns.min()), int(end_ns.max())
    held = max(0, min(end, last) - max(begin, first))
    return Coverage(
        gpu=float(inside) / total if total else 1.0,
        time=held / (last - first) if last > first else 1.0,
        before_ns=max(0, min(begin, last) - first),
        after_ns=max(0, last - max(end, first)),
        work_outside_ns=total - int(inside),
    )


@dataclass(frozen=True)
class Accounting:
    """Per window, ns; all arrays have one value a window.

    ``wall_ns == compute_ns + exposed_communication_ns + exposed_copy_ns + memset_ns + idle_ns``
    holds exactly. ``communication_ns`` and ``copy_ns`` are the full unions, hidden parts included;
    ``exposed_host_copy_ns`` is the time in which copies between host and device run and no kernel
    does.
    """

    wall_ns: IntArray
    compute_ns: IntArray
    exposed_communication_ns: IntArray
    exposed_copy_ns: IntArray
    memset_ns: IntArray
    idle_ns: IntArray
    communication_ns: IntArray
    copy_ns: IntArray
    exposed_host_copy_ns: IntArray


def host_device_copies(gpu_timeline: GpuTimeline) -> BoolArray:
    """Copies that cross between host and device."""
    ops = gpu_timeline.ops
    return ops.equals("kind", "memcpy") & ~ops.equals("copy_kind", "DtoD", "PtoP")


def account(gpu_timeline: GpuTimeline, begin: Ints, end: Ints) -> Accounting:
    """Account for the device's time in each window ``[begin[i], end[i])``.

    Args:
        gpu_timeline: the device.
        begin: window begins, ns.
        end: window ends, ns.
    """
    ops = gpu_timeline.ops
    compute = gpu_timeline.union_of(gpu_timeline.is_compute)
    communication = gpu_timeline.union_of(gpu_timeline.is_communication)
    copy = gpu_timeline.union_of(ops.equals("kind", "memcpy"))
    kernels = gpu_timeline.union_of(gpu_timeline.is_kernel)
    kernels_and_copies = union(ops["start_ns"][~ops.equals("kind", "memset")],
                               ops["end_ns"][~ops.equals("kind", "memset")])  # fmt: skip

    def inside(intervals: Intervals) -> IntArray:
        return overlap_per_window(intervals, begin, end)

    busy, kernel_ns = inside(gpu_timeline.busy), inside(kernels)
    compute_ns, no_memset_ns = inside(compute), inside(kernels_and_copies)
    return Accounting(
        wall_ns=end - begin,
        compute_ns=compute_ns,
        exposed_communication_ns=kernel_ns - compute_ns,
        exposed_copy_ns=no_memset_ns - kernel_ns,
        memset_ns=busy - no_memset_ns,
        idle_ns=(end - begin) - busy,
        communication_ns=inside(communication),
        copy_ns=inside(copy),
        exposed_host_copy_ns=inside(
            subtract(gpu_timeline.union_of(host_device_copies(gpu_timeline)), kernels)
        ),
    )
