"""Everything that is known about the steps of one device, in one result.

This is the sequence that other analyses and the diagnosis build on: find the steps, choose the
steady ones, account for the device's time, explain its idle time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.activity.device import GpuTimeline, Reader, gpus
from stepscope.activity.host import HostTimeline, apart
from stepscope.activity.locations import Places
from stepscope.breakdown.outliers import Outliers, find_outliers
from stepscope.gaps.compilation import FirstCalls, compile_time, first_calls
from stepscope.gaps.gil import GilWaits, gil_waits
from stepscope.gaps.idle import CAUSES, Gaps, explain_gaps
from stepscope.gaps.offload import Offload, find_offload
from stepscope.gaps.profiler_overhead import (
    NO_COST,
    CallOverhead,
    MeasuredCost,
    RecordedEvents,
    RecordingOverhead,
    call_overhead,
    measured_cost,
    recorded_events,
    recording_overhead,
)
from stepscope.gaps.stalls import Stalls, find_stalls
from stepscope.gaps.unrecorded import Unrecorded, find_unrecorded
from stepscope.gaps.untraced_cpu import Loop, classified_timeline, input_time
from stepscope.gaps.waiting import Waiting, host_waiting
from stepscope.intervals.algebra import Intervals, clip
from stepscope.kernels.ceilings import Ceilings
from stepscope.kernels.findings import Findings
from stepscope.kernels.kernels import Kernels
from stepscope.steps.detection import find_steps
from stepscope.steps.kinds import Workload, workload
from stepscope.steps.model import (
    AUTOMATIC,
    Accounting,
    Coverage,
    StepChoice,
    Steps,
    account,
    begins_inside,
    begun_late,
    coverage,
    host_device_copies,
    steady_steps,
)
from stepscope.trace.frame import BoolArray, IntArray
from stepscope.trace.meta import Meta


@dataclass(frozen=True)
class CopyFacts:
    """Copies between host and device in the steady steps.

    Attributes:
        pageable: number of copies from or to pageable memory.
        pageable_bytes: their bytes.
        count: number of host-device copies.
        bytes: their bytes.
    """

    pageable: int
    pageable_bytes: int
    count: int
    bytes: int


@dataclass(frozen=True)
class Explanation:
    """The steps of one device, accounted for and explained.

    Attributes:
        gpu: the device and its host side.
        steps: how the steps were found.
        bounds_ns: step boundaries on the device's timeline; one more than there are steps.
        first: first steady step.
        last: last steady step.
        set_aside: which steps were not counted, in words; empty when none.
        accounting: per step, all steps.
        gaps: idle time of the steady window by cause.
        timeline: what the host did in the steady window.
        recording_ns: estimated cost of recording in the steady window.
        copies: host-device copies in the steady window.
        places: looks up where in the program some time was spent.
        kernels: the device's operations as kernels.
        recording: estimated cost of recording over time, on the launching threads.
        tool: what the capturing tool may have added to CUDA calls; None where that is part of
            ``recording``. It is in no idle time by cause.
        measured: what recording adds to a step, where steps of the run were timed without it.
        events: cause to the stretches of the host's time that it owns, in the steady window, ns;
            no two causes own the same time.
        stalls: where the program stops to save its state, in the steady window.
        offload: data that travels to the host and back in the steps, in the steady window.
        workload: whether the program trains or only infers.
        loop: the loop of the steps, as silences of the host are judged by it.
        gil: where launching threads wait for the GIL, in the steady window.
        unrecorded: idle time of which the record holds nothing, in the whole capture.
        loading: first calls that loaded code or initialised something, in the whole capture.
    """

    gpu: GpuTimeline
    steps: Steps
    bounds_ns: IntArray
    first: int
    last: int
    set_aside: str
    accounting: Accounting
    gaps: Gaps
    timeline: HostTimeline
    recording_ns: int
    copies: CopyFacts
    places: Places
    events: dict[str, Intervals]
    stalls: Stalls
    offload: Offload
    workload: Workload
    loop: Loop
    gil: GilWaits
    loading: FirstCalls
    unrecorded: Unrecorded
    kernels: Kernels
    _read: Reader
    recording: RecordingOverhead = NO_COST
    tool: CallOverhead | None = None
    measured: MeasuredCost | None = None

    @cached_property
    def coverage(self) -> Coverage:
        """How much of what the device did lies in the steps."""
        return coverage(self.gpu, self.bounds_ns)

    @property
    def begin_ns(self) -> int:
        """Begin of the steady window."""
        return int(self.bounds_ns[self.first])

    @property
    def end_ns(self) -> int:
        """End of the steady window."""
        return int(self.bounds_ns[self.last + 1])

    @property
    def n_steady(self) -> int:
        """Number of steady steps."""
        return self.last - self.first + 1

    @cached_property
    def durations_ns(self) -> IntArray:
        """Length of each step."""
        return np.diff(self.bounds_ns)

    @property
    def steady_durations_ns(self) -> IntArray:
        """Length of each steady step."""
        return self.durations_ns[self.first : self.last + 1]

    @property
    def step_ns(self) -> float:
        """Mean length of a steady step: what the causes' times add up to."""
        return (self.end_ns - self.begin_ns) / self.n_steady

    def steady_total(self, name: str) -> int:
        """Sum of one accounting column over the steady steps, ns."""
        values: IntArray = getattr(self.accounting, name)
        return int(values[self.first : self.last + 1].sum())

    @cached_property
    def idle_by_cause_ns(self) -> dict[str, int]:
        """Idle time of the steady window by cause; sums to its idle time exactly."""
        return self.gaps.by_cause()

    @cached_property
    def waiting(self) -> Waiting:
        """In which synchronisations the host waits in the steady window, and for what."""
        return host_waiting(
            self.gpu, self._read, self.timeline.blocking, self.begin_ns, self.end_ns
        )

    @cached_property
    def recorded(self) -> RecordedEvents:
        """What torch.profiler recorded of the launching threads in the steady window."""
        return recorded_events(self.gpu, self._read, self.begin_ns, self.end_ns)

    @cached_property
    def outliers(self) -> Outliers:
        """Steady steps that take far longer than the others."""
        return find_outliers(self.gpu, self.gaps, self.bounds_ns, self.first, self.last)

    @cached_property
    def inside_kernels(self) -> Findings:
        """What is found inside the kernels."""
        return Findings(self.kernels, self.gaps)

    def segments_of(self, cause: str) -> BoolArray:
        """Mask of the gap segments of one cause."""
        mask: BoolArray = np.equal(self.gaps.segments["cause"], CAUSES.index(cause))
        return mask


def explain(
    read: Reader,
    meta: Meta,
    ceilings: Ceilings | None = None,
    choice: StepChoice = AUTOMATIC,
) -> list[Explanation]:
    """Explain every device of a trace, busiest process first.

    Args:
        read: gives tables as frames.
        meta: the trace's metadata.
        ceilings: of the devices, measured.
        choice: what the user says a step is.

    Raises:
        UsageError: the user's choice finds nothing.
    """
    return [explain_gpu(gpu, read, meta, ceilings, choice) for gpu in gpus(read)]


def explain_gpu(
    gpu: GpuTimeline,
    read: Reader,
    meta: Meta,
    ceilings: Ceilings | None = None,
    choice: StepChoice = AUTOMATIC,
) -> Explanation:
    """Explain one device."""
    does = workload(gpu, read)
    steps, bounds = find_steps(gpu, does, meta.window_start_ns, choice)
    durations = np.diff(bounds)
    first, last, set_aside = steady_steps(
        durations,
        open_end=steps.open_end,
        inside=begins_inside(gpu, steps),
        behind=begun_late(steps, bounds),
    )
    begin, end = int(bounds[first]), int(bounds[last + 1])
    typical = int(np.median(durations[first : last + 1]))
    getting_input = input_time(gpu, read)
    loading = first_calls(gpu)
    loop = Loop(steps.label, steps.begin_ns, does.infers)
    timeline = classified_timeline(
        gpu, (begin, end), typical, getting_input, steps.begin_ns[first : last + 1], loop
    )
    recording = recording_overhead(gpu, read, meta.source, meta.capture_options)
    window = np.array([begin]), np.array([end])
    offload = find_offload(
        gpu,
        steps.begin_ns,
        window,
        trains=not does.infers,
        input_ns=getting_input[0],
        quiet=timeline.quiet,
    )
    stalls = find_stalls(
        gpu, read, steps.begin_ns[first : last + 1], window, getting_input, offload.rows
    )
    gil = gil_waits(gpu, read, steps.begin_ns, begin, end, getting_input)
    second = int(steps.begin_ns[1]) if len(steps) > 1 else end
    compiling = compile_time(gpu, read, timeline.quiet, second, loading, getting_input)
    unrecorded = find_unrecorded(gpu, read, one_step=steps.source == "whole_capture")
    events = apart(
        {  # the first that claims a time owns it
            "checkpoint_stall": stalls.intervals,
            "cpu_offload": offload.intervals,
            "compilation_or_warmup": clip(compiling, begin, end),
            "gil_contention": gil.intervals,
            "unexplained": clip(unrecorded.intervals, begin, end),
        }
    )
    gaps = explain_gaps(gpu, timeline, begin, end, loop=loop, recording=recording, events=events)
    return Explanation(
        gpu=gpu,
        steps=steps,
        bounds_ns=bounds,
        first=first,
        last=last,
        set_aside=set_aside,
        accounting=account(gpu, bounds[:-1], bounds[1:]),
        gaps=gaps,
        timeline=timeline,
        recording_ns=int(recording.between(*window)[0]) if len(recording.at_ns) else 0,
        copies=_copy_facts(gpu, begin, end),
        places=Places(gpu, read, steps.label, (begin, end)),
        kernels=Kernels(gpu, read, steps.label, bounds, first, last, ceilings),
        _read=read,
        recording=recording,
        tool=call_overhead(gpu, meta.source, begin, end, last - first + 1),
        measured=measured_cost(read, gpu.process_id, durations[first : last + 1]),
        events=events,
        stalls=stalls,
        offload=offload,
        workload=does,
        loop=loop,
        gil=gil,
        loading=loading,
        unrecorded=unrecorded,
    )


def _copy_facts(gpu: GpuTimeline, begin: int, end: int) -> CopyFacts:
    ops = gpu.ops
    inside = (ops["start_ns"] >= begin) & (ops["start_ns"] < end)
    rows = inside & host_device_copies(gpu)
    pageable = rows & (ops.equals("src_memory", "pageable") | ops.equals("dst_memory", "pageable"))
    return CopyFacts(
        pageable=int(pageable.sum()),
        pageable_bytes=int(np.maximum(ops["bytes"][pageable], 0).sum()),
        count=int(rows.sum()),
        bytes=int(np.maximum(ops["bytes"][rows], 0).sum()),
    )
