"""The result of a diagnosis: the contract ``stepscope.diagnosis/2``.

The same objects come out of ``--format json``, the Python API and the servers. Times are integer
nanoseconds.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from stepscope.trace.problems import Problem
from stepscope.trace.text import html_table
from stepscope.trace.units import milliseconds, percent

SCHEMA = "stepscope.diagnosis/2"
SAME_STEP: Final = 0.95
"""Share of the longest step of a job's ranks from which on another rank's is the same step."""
Severity = Literal["high", "medium", "low"]
Part = Literal["all", "some"]


class InnerSteps(msgspec.Struct, frozen=True):
    """What repeats inside one step.

    Attributes:
        kind: ``layer``, ``batch``, ``micro_batch``, ``denoising_step``, ``training_step``,
            ``graph_replay`` or ``repetition``, where nothing tells what repeats.
        count: how many of them a step launches.
        median_ns: from one to the next on the device, ns.
    """

    kind: str
    count: int
    median_ns: int


class StepOptions(msgspec.Struct, frozen=True):
    """What the user said a step is; empty where the capture tells.

    Attributes:
        step: value of ``--step``.
        step_kernel: value of ``--step-kernel``.
    """

    step: str = ""
    step_kernel: str = ""


class StepSummary(msgspec.Struct, frozen=True):
    """What a step is in this result, on the reference device.

    Attributes:
        kind: ``training_step``, ``forward``, ``decode_step``, ``engine_iteration``,
            ``denoising_step``, ``graph_replay``, ``step`` (nothing tells whether the program
            trains) or ``whole_capture`` (no step was found).
        found_by: what marked it: ``user``, ``profiler_step``, ``numbered_range``,
            ``repeating_range``, ``single_range``, ``optimizer_range``, ``kernel_sequence``,
            ``graph_replay`` or ``whole_capture``; ``from`` in JSON.
        inner: what repeats inside a step.
        coverage_gpu: share of the time of the GPU's operations that lies in the steps.
        coverage_time: share of the time from the first to the last GPU operation.
        options: what the user said a step is.
    """

    kind: str
    found_by: str = msgspec.field(name="from")
    inner: list[InnerSteps]
    coverage_gpu: float
    coverage_time: float
    options: StepOptions = StepOptions()


class TraceSummary(msgspec.Struct, frozen=True):
    """What was diagnosed.

    Attributes:
        paths: the inputs as the user named them.
        source: importer of the first input; several are joined with ``+``.
        ranks: number of ranks.
        devices: number of devices over all ranks.
        steps: steps found on the reference device.
        steady_steps: first and last step that count, both included.
        step: what a step is.
    """

    paths: list[str]
    source: str
    ranks: int
    devices: int
    steps: int
    steady_steps: tuple[int, int]
    step: StepSummary


class StepTime(msgspec.Struct, frozen=True):
    """Distribution of the steady step time.

    Attributes:
        median: half of the steady steps take at most this, ns.
        mean: all steady steps together, divided by their number, ns.
        p95: 95 in 100 steady steps take at most this, ns.
        coefficient_of_variation: standard deviation over mean.
    """

    median: int
    mean: int
    p95: int
    coefficient_of_variation: float


class ProfilerOverhead(msgspec.Struct, frozen=True):
    """What the capturing tool adds to a mean steady step of the slowest device.

    Attributes:
        measured_ns: the most likely value, ns; negative where recorded steps were the faster.
        low_ns: its lower bound.
        high_ns: its upper bound.
        how: ``unrecorded steps``: measured against steps of the same run that were not recorded;
            ``estimated``: from the number of recorded events, by measurements elsewhere.
    """

    measured_ns: int
    low_ns: int
    high_ns: int
    how: Literal["unrecorded steps", "estimated"]


class DeviceAccounting(msgspec.Struct, frozen=True):
    """One device's steady window, ns in total: the accounting identity and idle time by cause.

    Attributes:
        rank: the rank.
        device: CUDA device ordinal inside the process.
        wall_ns: length of the steady window; the parts below sum to it exactly.
        compute_ns: time in which compute kernels run.
        exposed_communication_ns: time in which only communication (or less) runs.
        exposed_copy_ns: time in which only copies (or memory sets) run.
        memset_ns: time in which only memory sets run.
        idle_ns: time in which nothing runs.
        idle_by_cause_ns: idle time by cause; sums to ``idle_ns`` exactly.
        steps: steps in that window; 0 in a file of an earlier version.
    """

    rank: int
    device: int
    wall_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    memset_ns: int
    idle_ns: int
    idle_by_cause_ns: dict[str, int]
    steps: int = 0


class RankTime(msgspec.Struct, frozen=True):
    """Where the mean step of one device of a job goes; the parts sum to ``step_ns``.

    Where ranks communicate, the steps of all of them are cut at the same moments, so that rows can
    be compared; else each device has its own steady steps.

    Attributes:
        rank: the rank.
        device: CUDA device ordinal inside the process.
        step_ns: mean step, ns.
        compute_ns: time in which compute kernels run, ns.
        waiting_ns: time inside collectives in which another rank is waited for and nothing else
            runs, ns; 0 where communication was not matched between ranks.
        transfer_ns: the rest of the communication that nothing covers, ns.
        copy_ns: time in which only copies or memory sets run, ns.
        idle_ns: time in which nothing runs, ns.
    """

    rank: int
    device: int
    step_ns: int
    compute_ns: int
    waiting_ns: int
    transfer_ns: int
    copy_ns: int
    idle_ns: int


class OutlierStep(msgspec.Struct, frozen=True):
    """One step of the reference device that takes far longer than the normal ones.

    Attributes:
        step: its number.
        wall_ns: its length, ns.
        normal_step: number of the step of median length, which it is compared with.
        normal_ns: the length of that, ns.
        part: what most of the difference is: ``idle``, ``compute``, ``communication``, ``copy`` or
            ``memset``.
        name: cause of that idle time, or name of the operation.
        excess_ns: time that it spends more on that, ns.
    """

    step: int
    wall_ns: int
    normal_step: int
    normal_ns: int
    part: str
    name: str
    excess_ns: int


class Combined(msgspec.Struct, frozen=True):
    """The step once the first two findings are repaired together.

    Attributes:
        causes: their causes.
        predicted_step_ns: mean step, ns.
        prediction_low_ns: lower bound, ns.
        prediction_high_ns: upper bound, ns.
        replayed: whether both were replayed together; else each keeps its share of what the other
            leaves.
    """

    causes: list[str]
    predicted_step_ns: int
    prediction_low_ns: int
    prediction_high_ns: int
    replayed: bool


class Evidence(msgspec.Struct, frozen=True):
    """One figure and the statement that recomputes it.

    Attributes:
        figure: name of the figure.
        value: its value.
        unit: what it is measured in: ``ns``, ``bytes``, ``count``, ``share`` (0 to 1) and others.
        sql: statement over the canonical and analysis tables whose only cell is the value.
        rows: number of rows that the figure was computed from.
    """

    figure: str
    value: float | int
    unit: str
    sql: str
    rows: int


class Location(msgspec.Struct, frozen=True):
    """Where in the program a cause sits; null where the trace cannot tell.

    Attributes:
        range: the annotation that holds most of it.
        operator: the framework operator that holds most of it.
        source: the Python file and line that hold most of it, where samples or stacks tell it.
        function: the Python function that holds most of it, as ``step() train.py:99`` where 99 is
            the line of its ``def``; not a line that takes the time.
    """

    range: str | None = None
    operator: str | None = None
    source: str | None = None
    function: str | None = None

    def texts(self) -> dict[str, str]:
        """The places by name, quoted, as a sentence uses them."""
        places = (
            ("range", self.range),
            ("operator", self.operator),
            ("source", self.source),
            ("function", self.function),
        )
        return {name: repr(place) for name, place in places if place}


class InsideKernel(msgspec.Struct, frozen=True):
    """What an Nsight Compute report says of a kernel that a finding is about.

    Attributes:
        kernel: its name.
        report: the report.
        launch: number of the launch in the report.
        same_grid: whether that launch has the grid of the trace; else it is the nearest there is.
        share: part of the finding's kernel time that this kernel takes.
        limiter: what holds it back, a key of the reference page on limiters.
        message: one sentence with the figures.
        recommendations: what helps inside the kernel, the most effective first.
    """

    kernel: str
    report: str
    launch: int
    same_grid: bool
    share: float
    limiter: str
    message: str
    recommendations: list[str]


class FurtherRepair(msgspec.Struct, frozen=True):
    """Another repair of the same cause than the one that is predicted.

    It takes more work and gains more, or people choose between both for other reasons, too
    (autocast instead of TF32, the library's functions instead of a compiler).

    Attributes:
        repair: what it is.
        predicted_step_ns: mean step with it, ns.
        prediction_low_ns: lower bound of the prediction, ns.
        prediction_high_ns: upper bound of the prediction, ns.
        is_first: whether it is the lesser one of two, which takes less work: the finding then
            predicts the further one, as this one gains little beside it.
    """

    repair: str
    predicted_step_ns: int
    prediction_low_ns: int
    prediction_high_ns: int
    is_first: bool = False


class Finding(msgspec.Struct, frozen=True):
    """One root cause.

    Attributes:
        cause: public id.
        severity: by the predicted gain as a share of the step: ``high`` from 20 %, ``medium`` from
            8 %, else ``low``. The order of findings leaves out what recording may have made; this
            does not, so that a later one may be the more severe. ``insufficient_data`` predicts no
            gain: ``medium`` where communication that nothing explains covers 20 % of the step, else
            ``low``.
        share_of_step: part of the mean steady step that counts: what the cause costs, which is the
            time that was seen to pass in it. Where its repair alone recovers less than half of
            that, or a quarter more, it is what that recovers, and the evidence holds the cost as
            ``observed_ns_per_step``.
        time_ns_per_step: that part, ns.
        predicted_step_ns: mean step once the cause is gone. Of a job it is that of the rank with
            the longest one, as is today's (``step_ns`` of the evidence), whatever rank shows it.
        prediction_low_ns: lower bound of the prediction.
        prediction_high_ns: upper bound of the prediction.
        ranks: ranks that show it.
        where: where in the program.
        message: one sentence.
        reason: the part of it that follows what the cause costs; empty where nothing comes before.
        recommendations: what to change, most effective first.
        next_capture: a command that would sharpen the finding, or null.
        root_cause: the cause behind this one (why a straggler is late), or null.
        replay_error: how far the simulator's replay of the unchanged step is from the measured
            one, as a share; null where the prediction is arithmetic.
        names: names in the sentence (of ranges, kernels, files), whose digits are no figures.
        evidence: the figures; every figure of the sentence is among them.
        inside: what Nsight Compute reports say of its kernels; empty without reports.
        at_least: whether the prediction bounds the gain from below only: the capture lacks what
            tells how much more it is, and ``next_capture`` would show that.
        unreliable: why the prediction is no more than an order of magnitude; empty where it holds.
        unaffected_step_ns: mean of the steady steps that hold less than a tenth of the mean step's
            share of the cause, ns; null where fewer than three do. It is what to fall back on
            where the prediction is unreliable.
        further: the step with another repair than the one that is predicted, which takes more work
            or is only a part; null where there is none, or it gains as much.
        gaps_end_at: the operation that ends most of the idle time that is charged to the cause:
            ``upload``, ``readback``, ``copy``, ``memset`` or ``kernel NAME``; null where none ends
            half of it, and for causes that are not idle time.
        includes_gain_of: of a lever: causes of the findings whose gain is in this one, as both
            change the same kernels, and whether ``all`` of it is or ``some``; empty where none is.
        after_findings: of a lever: whether it gains this only once the findings are repaired.
    """

    cause: str
    severity: Severity
    share_of_step: float
    time_ns_per_step: int
    predicted_step_ns: int
    prediction_low_ns: int
    prediction_high_ns: int
    ranks: list[int]
    where: Location
    message: str
    recommendations: list[str]
    next_capture: str | None
    root_cause: str | None
    replay_error: float | None
    names: list[str]
    evidence: list[Evidence]
    inside: list[InsideKernel] = []
    at_least: bool = False
    unreliable: str = ""
    unaffected_step_ns: int | None = None
    gaps_end_at: str | None = None
    further: FurtherRepair | None = None
    includes_gain_of: dict[str, Part] = {}
    after_findings: bool = False
    reason: str = ""

    def value(self, figure: str) -> float | None:
        """The value of a figure of the evidence; None where it has none of that name."""
        return next((e.value for e in self.evidence if e.figure == figure), None)


class KernelCategory(msgspec.Struct, frozen=True):
    """The kernels of one category in a step.

    Attributes:
        category: kernel category, as in the reference page on kernels.
        time_ns_per_step: device time that they have; kernels that run at the same time share it.
        share_of_step: part of the step.
        achieved: share of the device's ceiling that those achieve whose work is known: the time
            that the ceilings allow over the time that they take; null where none is known.
        known_share: share of their time whose work is known, from shapes or names.
        bound: ceiling that is nearer for most of that: ``compute`` or ``memory``; empty where
            nothing is known.
    """

    category: str
    time_ns_per_step: int
    share_of_step: float
    achieved: float | None
    known_share: float
    bound: str


class StepBound(msgspec.Struct, frozen=True):
    """The least time that the device's ceilings allow for a step.

    Attributes:
        bound_ns: the step with every kernel of known work at its ceiling, ns.
        speedup: the measured step over that: at most so many times faster.
        fused_bound_ns: the same where kernels that wait for memory are merged into others, ns.
        fused_speedup: the measured step over that.
        known_share: share of the kernel time whose work is known.
        assumed: what is assumed, in sentences.
    """

    bound_ns: int
    speedup: float
    fused_bound_ns: int
    fused_speedup: float
    known_share: float
    assumed: list[str]


class KernelSplit(msgspec.Struct, frozen=True):
    """The kernels of a step against the ceilings of the slowest device.

    Attributes:
        device: product name.
        ceilings: where the ceilings are from; empty for an unknown product.
        measured: whether they were measured (``stepscope ceilings``).
        rank: the rank of the device.
        categories: one entry a category, the longest time first.
        bound: the least step that they allow; null where the memory bandwidth is not known.
        examine: a command that examines the kernels worth it from the inside, or null.
        evidence: the figures; their names begin with ``kernels.``.
        vendor: who made the device.
    """

    device: str
    ceilings: str
    measured: bool
    rank: int
    categories: list[KernelCategory]
    bound: StepBound | None
    examine: str | None
    evidence: list[Evidence]
    vendor: Literal["NVIDIA", "AMD", "Intel", "unknown"] = "unknown"


class Diagnosis(msgspec.Struct, frozen=True):
    """A whole diagnosis.

    Attributes:
        schema: name and version of this contract.
        trace: what was diagnosed.
        step_ns: distribution of the steady step time of the slowest device.
        accounting: where each device's time goes.
        verdict: the first finding's cause, or ``gpu_bound_healthy``.
        findings: root causes, the largest predicted gain first; what the capturing tool may have
            made itself is no gain there.
        warnings: what was assumed or odd: how steps were found, which were set aside, how ranks
            were assigned.
        problems: what the imports counted.
        evidence: the figures of ``step_ns``, ``accounting`` and ``warnings``.
        profiler_overhead: what recording cost; null where nothing tells.
        levers: what is left to gain in the kernels, the largest gain first, in the shape of
            findings; ``cause`` is the id of the lever. Each is predicted by itself: gains of levers
            that change the same kernels do not add up.
        kernels: the kernels of a step against the device's ceilings; null where there are none.
        ranks: where the mean step of each device goes, side by side; empty for a single device.
        outlier_steps: steps of the reference device that take far longer than the normal ones, the
            longest first; sixteen at most.
        combined: the first two findings repaired together; null where there are fewer.
        gpu_utilization: what ``nvidia-smi`` calls utilisation, of a single GPU: the share of the
            steady steps in which one or more kernels ran, 0 to 1, however well they used the GPU;
            null for several GPUs and where too little was recorded.
    """

    schema: str
    trace: TraceSummary
    step_ns: StepTime
    accounting: list[DeviceAccounting]
    verdict: str
    findings: list[Finding]
    warnings: list[str]
    problems: list[Problem]
    evidence: list[Evidence]
    profiler_overhead: ProfilerOverhead | None = None
    levers: list[Finding] = []
    kernels: KernelSplit | None = None
    ranks: list[RankTime] = []
    outlier_steps: list[OutlierStep] = []
    combined: Combined | None = None
    gpu_utilization: float | None = None

    def _repr_html_(self) -> str:
        """The findings, for a notebook."""
        rows = [
            (
                f.cause,
                f.severity,
                percent(f.share_of_step, 1),
                milliseconds(f.predicted_step_ns),
                f.message,
            )
            for f in self.findings
        ]
        return html_table(
            f"{self.verdict}: {milliseconds(self.step_ns.mean)} per step",
            ("cause", "severity", "of the step", "predicted step", "what was found"),
            rows,
        )
