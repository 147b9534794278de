"""The phases of a step: getting data, copies, forward, backward, optimizer, and the rest.

Two accounts, both exact in integer nanoseconds. On the device every moment of a step is either
busy, in the phase of the work that runs, or idle, in the phase that the host is in meanwhile: what
it does then is what the device waits for. On the host every moment of the main thread is in one
phase; what names it, first to last:

1. annotations whose name says a phase, the innermost first;
2. annotations and Python functions that get input;
3. CUDA calls that copy between host and device;
4. the next launch of the process: host time prepares what is launched at its end. A launch is of
   the phase of its kernel; a long pause without any call is of none.

A kernel's phase is that of the annotation that it was launched in; else backward by autograd's
operators or thread; else optimizer by its name or run of updates; else forward. Where a CUDA graph
was launched as one, or no launch is recorded, the backward pass begins with the first kernel whose
name says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from stepscope.activity import names as words
from stepscope.breakdown.explain import Explanation
from stepscope.intervals import complement, nest, overlap_per_window, subtract, union
from stepscope.intervals.algebra import Intervals, intersect
from stepscope.jobs.view import Device, JobView
from stepscope.kernels.attribution import stack_of
from stepscope.kernels.kernels import PHASES as KERNEL_PHASES
from stepscope.trace.frame import BoolArray, Frame, IntArray

SCHEMA: Final = "stepscope.phases/1"

PHASES: Final = {
    "dataload": "getting the next batch",
    "copies": "copies between host and device",
    "forward": "the forward pass and the loss",
    "backward": "the backward pass, with the communication that it starts",
    "optimizer": "updating parameters and resetting gradients",
    "other": "what nothing names: logging, checkpoints, pauses",
}
"""Every phase and what it holds."""
DATALOAD, COPIES, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(6)
_NAMES: Final = tuple(PHASES)

EVIDENCE: Final = (
    "annotations",
    "autograd's operators",
    "autograd's thread",
    "input functions",
    "copy calls and copies",
    "names and order of kernels",
    "what was launched next",
    "what remains",
)
"""What tells a phase."""
ANNOTATION, AUTOGRAD, THREAD, INPUT, COPY, KERNEL, NEXT_LAUNCH, REMAINS = range(8)

_OPTIMIZER: Final = re.compile(
    r"^Optimizer\.(step|zero_grad)#|zero_?grad|(?<![a-z])(optim(izer)?|opt)([_. ]?(step|update))?"
    r"[^a-z]*$|weight_?update|update_?(params|parameters|weights)|apply_?gradients"
    r"|(clip|unscale)_?grad",
    re.IGNORECASE,
)
_BACKWARD: Final = re.compile(r"(?<![a-z])(backward|bwd|autograd)(?![a-z])", re.IGNORECASE)
_FORWARD: Final = re.compile(
    r"(?<![a-z])(forward|fwd|compute_loss)(?![a-z])|^[^a-z]*(loss|criterion|model)[^a-z]*$",
    re.IGNORECASE,
)
_COPIES: Final = re.compile(
    r"(?<![a-z])(h2d|d2h|htod|dtoh|to_?(device|gpu|cuda)|(host|cpu)_?to_?(device|gpu)"
    r"|(batch|data|inputs?)_to_\w+|transfer_batch\w*|upload|memcpy|copy_?(batch|data|inputs?)"
    r"|[^a-z]*copies)(?![a-z])",
    re.IGNORECASE,
)


_BACKWARD_KERNEL: Final = re.compile(r"backward|(?<![a-z])bwd|_bwd|dgrad|wgrad", re.IGNORECASE)


class PhaseTime(msgspec.Struct, frozen=True):
    """One phase of one device, over all steady steps or in one.

    Attributes:
        rank: rank.
        device: CUDA device ordinal inside the process.
        step: number of the step; null for all steady steps together.
        phase: key of ``PHASES``.
        host_ns: time of the main thread; null where no CUDA call was recorded.
        gpu_ns: time that the device was busy with it; of several at once the first in the order
            forward, backward, optimizer, other, dataload, copies counts.
        idle_ns: time that the device was idle while the host was in it.
        share_of_step: ``gpu_ns`` and ``idle_ns`` over the length of the step on the device.
        gpu_evidence: what tells it on the device, by most of the time; empty for none.
        host_evidence: the same on the host, and of idle time.
    """

    rank: int
    device: int
    step: int | None
    phase: str
    host_ns: int | None
    gpu_ns: int
    idle_ns: int
    share_of_step: float
    gpu_evidence: str
    host_evidence: str


class DeviceSteps(msgspec.Struct, frozen=True):
    """What the phases of one device add up to.

    Attributes:
        rank: rank.
        device: CUDA device ordinal inside the process.
        steps: steady steps.
        wall_ns: their length on the device: the sum of ``gpu_ns`` and ``idle_ns``.
        host_wall_ns: their length on the host: the sum of ``host_ns``; null where not known.
    """

    rank: int
    device: int
    steps: int
    wall_ns: int
    host_wall_ns: int | None


class Phases(msgspec.Struct, frozen=True):
    """The phases of the steady steps of a job.

    Attributes:
        schema: name and version of this contract.
        paths: the inputs as the user named them.
        devices: one entry a device.
        phases: one entry a device and phase, all steady steps together.
        steps: one entry a device, steady step and phase.
        warnings: what could not be told, and why.
    """

    schema: str
    paths: list[str]
    devices: list[DeviceSteps]
    phases: list[PhaseTime]
    steps: list[PhaseTime]
    warnings: list[str]


@dataclass(frozen=True)
class _Painted:
    """Disjoint intervals in time order that cover a window.

    Attributes:
        start_ns: begins.
        end_ns: ends.
        phase: index into ``PHASES``.
        evidence: index into ``EVIDENCE``.
    """

    start_ns: IntArray
    end_ns: IntArray
    phase: IntArray
    evidence: IntArray

    def of(self, phase: int, evidence: int | None = None) -> Intervals:
        """The intervals of one phase."""
        mine = self.phase == phase
        if evidence is not None:
            mine &= self.evidence == evidence
        return self.start_ns[mine], self.end_ns[mine]


class _Painter:
    """Covers a window with what is painted first."""

    def __init__(self, begin_ns: int, end_ns: int) -> None:
        self.free: Intervals = np.array([begin_ns], np.int64), np.array([end_ns], np.int64)
        self._parts: list[tuple[Intervals, int, int]] = []

    def paint(self, intervals: Intervals, phase: int, evidence: int) -> None:
        """Cover what is still free of some disjoint intervals."""
        taken = intersect(self.free, intervals)
        self.free = subtract(self.free, taken)
        self._parts.append((taken, phase, evidence))

    def done(self, phase: int = OTHER, evidence: int = REMAINS) -> _Painted:
        """All of it, the rest in one phase."""
        self._parts.append((self.free, phase, evidence))
        start, end = (np.concatenate([part[0][side] for part in self._parts]) for side in (0, 1))
        sizes = [len(part[0][0]) for part in self._parts]
        phases = np.repeat([part[1] for part in self._parts], sizes)
        evidence_ = np.repeat([part[2] for part in self._parts], sizes)
        order = np.argsort(start, kind="stable")
        return _Painted(start[order], end[order], phases[order], evidence_[order])


def phases(job: JobView, paths: list[str]) -> Phases:
    """The phases of the steady steps of every device of a job."""
    devices, totals, steps, warnings = [], [], [], []
    for device in job.devices:
        summed, of_device, of_steps = _of_device(device)
        devices.append(summed)
        totals += of_device
        steps += of_steps
        if summed.host_wall_ns is None:
            warnings.append(
                f"rank {device.rank}: no CUDA call is recorded, so host time is unknown, and idle "
                "time counts as the phase of the work that ended it"
            )
        if not len(device.explanation.kernels.attribution.ranges):
            warnings.append(
                f"rank {device.rank}: no annotation names a phase; mark them with NVTX ranges or "
                "record_function (dataload, forward, backward, optimizer) to be sure of them"
            )
    return Phases(SCHEMA, paths, devices, totals, steps, warnings)


def _of_device(device: Device) -> tuple[DeviceSteps, list[PhaseTime], list[PhaseTime]]:
    e = device.explanation
    rows = np.arange(e.first, e.last + 1)
    begin, end = e.bounds_ns[rows], e.bounds_ns[rows + 1]
    host_ends = np.append(e.steps.begin_ns[1:], e.steps.end_ns)
    host_begin, host_end = e.steps.begin_ns[rows], host_ends[rows]
    op_phase, op_evidence = gpu_phases(e)
    known = bool((e.gpu.call >= 0).any())
    first = min(int(begin[0]), int(host_begin[0]))
    last = max(int(end[-1]), int(host_end[-1]))
    host = host_phases(e, op_phase, device, first, last) if known else None
    busy = _busy(e, op_phase, op_evidence)
    idle = complement(e.gpu.busy, first, last)
    waited = host if host is not None else _by_next_op(e, op_phase, first, last)
    wall = end - begin
    host_wall = host_end - host_begin
    table = {
        phase: (
            overlap_per_window(host.of(phase), host_begin, host_end) if host is not None else None,
            overlap_per_window(busy.of(phase), begin, end),
            overlap_per_window(intersect(idle, waited.of(phase)), begin, end),
        )
        for phase in range(len(PHASES))
    }
    place = device.rank, e.gpu.device
    totals, steps = [], []
    for phase, (on_host, on_gpu, waiting) in table.items():
        facts = tuple(_marked_by(phase, p, int(begin[0]), int(end[-1])) for p in (busy, waited))
        spent = None if on_host is None else int(on_host.sum())
        gpu, idle_ = int(on_gpu.sum()), int(waiting.sum())
        share = (gpu + idle_) / max(int(wall.sum()), 1)
        totals.append(PhaseTime(*place, None, _NAMES[phase], spent, gpu, idle_, share, *facts))
        for at, row in enumerate(rows.tolist()):
            each = None if on_host is None else int(on_host[at])
            share = int(on_gpu[at] + waiting[at]) / max(int(wall[at]), 1)
            steps.append(
                PhaseTime(*place, row, _NAMES[phase], each, int(on_gpu[at]), int(waiting[at]),
                          share, *facts)
            )  # fmt: skip
    steps.sort(key=lambda time: (time.step or 0, _NAMES.index(time.phase)))
    whole = int(host_wall.sum()) if host is not None else None
    return DeviceSteps(*place, len(rows), int(wall.sum()), whole), totals, steps


def _marked_by(phase: int, painted: _Painted, begin: int, end: int) -> str:
    """The evidence of most of a phase's time."""
    window = np.array([begin]), np.array([end])
    held = [
        int(overlap_per_window(painted.of(phase, code), *window)[0])
        for code in range(len(EVIDENCE))
    ]
    best = int(np.argmax(held))
    return EVIDENCE[best] if held[best] else ""


def phase_of_range(text: str) -> int:
    """Phase that the name of an annotation says; -1 for none."""
    if _OPTIMIZER.search(text):
        return OPTIMIZER
    if _BACKWARD.search(text):
        return BACKWARD
    if words.is_input_range(text) or text.startswith("enumerate(DataLoader)"):
        return DATALOAD
    if _COPIES.search(text):
        return COPIES
    return FORWARD if _FORWARD.search(text) else -1


def _telling(ranges: Frame) -> tuple[Frame, IntArray]:
    """The annotations that name a phase, and which."""
    if not len(ranges):
        return ranges, np.empty(0, np.int64)
    codes = np.full(len(ranges.texts["name"]) + 1, -1, np.int64)
    for phase in range(len(PHASES)):
        held = words.judged(ranges.texts["name"], lambda text, p=phase: phase_of_range(text) == p)  # type: ignore[misc]
        codes[:-1][held] = phase
    phase_of = codes[ranges["name"]]
    facts = phase_of >= 0
    return ranges.take(facts), phase_of[facts]


def gpu_phases(e: Explanation) -> tuple[IntArray, IntArray]:
    """Phase and evidence of each operation of a device: indices of ``PHASES``, ``EVIDENCE``."""
    gpu_timeline, kernels = e.gpu, e.kernels
    who = kernels.attribution
    phase = np.full(len(gpu_timeline.ops), FORWARD, np.int64)
    evidence = np.full(len(gpu_timeline.ops), REMAINS, np.int64)
    by_kernel = {"forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER}
    for code, name in enumerate(KERNEL_PHASES):
        mine = kernels.phase == code
        phase[mine] = by_kernel[name]
        if name == "optimizer":
            evidence[mine] = KERNEL
    backward = phase == BACKWARD
    evidence[backward] = THREAD
    if len(who.operators):
        evidence[backward & (who.operator >= 0)] = AUTOGRAD
    late = _after_backward_kernels(e, phase)
    phase[late], evidence[late] = BACKWARD, KERNEL
    facts, named = _telling(who.ranges)
    inner = _named_range(e, facts, named)
    phase = np.where(inner >= 0, inner, phase)
    evidence = np.where(inner >= 0, ANNOTATION, evidence)
    crossing = _crossing(e)
    phase[crossing], evidence[crossing] = COPIES, COPY
    return phase, evidence


def _after_backward_kernels(e: Explanation, phase: IntArray) -> BoolArray:
    """Operations whose launch tells no thread, from the first kernel of a step named as backward.

    One launch of a CUDA graph starts them all, or no launch is recorded.
    """
    gpu_timeline = e.gpu
    untraced = (gpu_timeline.ops["graph_id"] >= 0) | (e.kernels.attribution.thread < 0)
    untraced &= gpu_timeline.is_kernel & (phase == FORWARD)
    named = untraced & gpu_timeline.ops.matches("name", _BACKWARD_KERNEL)
    found = np.zeros(len(phase), bool)
    if not named.any():
        return found
    step = e.kernels.step
    first = np.full(int(step.max()) + 2, np.iinfo(np.int64).max)
    np.minimum.at(first, step[named] + 1, gpu_timeline.ops["start_ns"][named])
    found = untraced & (gpu_timeline.ops["start_ns"] >= first[step + 1])
    return found


def _crossing(e: Explanation) -> BoolArray:
    ops = e.gpu.ops
    crossing: BoolArray = ops.equals("copy_kind", "HtoD", "DtoH")
    return crossing


def _named_range(e: Explanation, facts: Frame, named: IntArray) -> IntArray:
    """Phase of the innermost telling annotation at each launch; -1 for none.

    On the launching thread, else on the main thread, which waits while autograd's launches.
    """
    at = e.gpu.enqueue_begin_ns
    found = np.full(len(at), -1, np.int64)
    if not len(facts):
        return found
    thread = e.kernels.attribution.thread
    main = e.gpu.host.main_thread
    for one in (*e.gpu.host.launch_threads, None):
        rows = np.flatnonzero(found < 0) if one is None else np.flatnonzero(thread == one)
        stack = stack_of(
            facts, np.flatnonzero(facts["thread_id"] == (main if one is None else one))
        )
        if not len(rows) or not len(stack.rows):
            continue
        inner = stack.innermost(at[rows])
        found[rows] = np.where(inner >= 0, named[stack.rows[np.maximum(inner, 0)]], found[rows])
    return found


def _busy(e: Explanation, phase: IntArray, evidence: IntArray) -> _Painted:
    """When the device was busy with each phase; what overlaps counts once."""
    ops = e.gpu.ops
    busy = e.gpu.busy
    parts: list[tuple[Intervals, int, int]] = []
    taken: Intervals = (np.empty(0, np.int64), np.empty(0, np.int64))
    for code in (FORWARD, BACKWARD, OPTIMIZER, OTHER, DATALOAD, COPIES):
        for facts in range(len(EVIDENCE)):
            rows = (phase == code) & (evidence == facts)
            if not rows.any():
                continue
            mine = subtract(union(ops["start_ns"][rows], ops["end_ns"][rows]), taken)
            parts.append((mine, code, facts))
            taken = union(np.concatenate((taken[0], mine[0])), np.concatenate((taken[1], mine[1])))
    if not parts:
        return _Painted(*busy, *(np.full(len(busy[0]), OTHER) for _ in range(2)))
    start, end = (np.concatenate([part[0][side] for part in parts]) for side in (0, 1))
    sizes = [len(part[0][0]) for part in parts]
    order = np.argsort(start, kind="stable")
    codes, marked_by = (np.repeat([part[of] for part in parts], sizes)[order] for of in (1, 2))
    return _Painted(start[order], end[order], codes, marked_by)


def _by_next_op(e: Explanation, phase: IntArray, begin: int, end: int) -> _Painted:
    """Each moment in the phase of the next operation that starts on the device."""
    return _until(e.gpu.ops["start_ns"], phase, begin, end, None)


def _until(
    at_ns: IntArray, phase: IntArray, begin: int, end: int, longest_ns: int | None
) -> _Painted:
    """Each moment in the phase of the next of some events; after long pauses in none."""
    order = np.argsort(at_ns, kind="stable")
    at, phase = at_ns[order], phase[order]
    inside = (at > begin) & (at < end)
    edges = np.concatenate(([begin], at[inside], [end]))
    after = phase[np.searchsorted(at, end, side="left")] if (at >= end).any() else OTHER
    code = np.concatenate((phase[inside], [after]))
    facts = np.full(len(code), NEXT_LAUNCH, np.int64)
    length = np.diff(edges)
    if longest_ns is not None:
        paused = length >= longest_ns
        code, facts = np.where(paused, OTHER, code), np.where(paused, REMAINS, facts)
    real = length > 0
    return _Painted(edges[:-1][real], edges[1:][real], code[real], facts[real])


def host_phases(
    e: Explanation, op_phase: IntArray, device: Device, begin: int, end: int
) -> _Painted:
    """Phase of the main thread at each moment of a window.

    Args:
        e: the explained device.
        op_phase: phase of each operation of the device.
        device: the device.
        begin: begin of the window, ns.
        end: end of the window, ns.
    """
    from stepscope.gaps.untraced_cpu import input_time

    host = e.gpu.host
    painter = _Painter(begin, end)
    facts, named = _telling(e.kernels.attribution.ranges)
    if len(facts):
        main = np.flatnonzero(facts["thread_id"] == host.main_thread)
        start, stop = facts["start_ns"][main], facts["end_ns"][main]
        depth = nest(start, stop, np.zeros(len(main), np.int64))[1]
        for level in range(int(depth.max(initial=-1)), -1, -1):
            for phase in range(len(PHASES)):
                mine = (depth == level) & (named[main] == phase)
                painter.paint(union(start[mine], stop[mine]), phase, ANNOTATION)
    painter.paint(input_time(e.gpu, device.read), DATALOAD, INPUT)
    copies = e.gpu.calls_of(_crossing(e)) & (host.api["thread_id"] == host.main_thread)
    painter.paint(union(host.api["start_ns"][copies], host.api["end_ns"][copies]), COPIES, COPY)
    rows = np.flatnonzero(e.gpu.call >= 0)
    following = _until(
        host.api["end_ns"][e.gpu.call[rows]], op_phase[rows], begin, end,
        e.timeline.long_untraced_ns,
    )  # fmt: skip
    for code in range(len(EVIDENCE)):
        for phase in range(len(PHASES)):
            painter.paint(following.of(phase, code), phase, code)
    return painter.done()


def rank_table(found: Phases) -> Sequence[tuple[DeviceSteps, dict[str, int]]]:
    """Each device with the device time of its phases, busy and idle together, ns."""
    of: dict[tuple[int, int], dict[str, int]] = {}
    for time in found.phases:
        key = time.rank, time.device
        of.setdefault(key, {})[time.phase] = time.gpu_ns + time.idle_ns
    return [(device, of[device.rank, device.device]) for device in found.devices]
