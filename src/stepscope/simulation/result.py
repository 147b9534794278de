"""Results of a simulation: the contracts ``stepscope.whatif/2`` and ``stepscope.critical_path/2``.

The same objects come out of ``--format json`` and the Python API. Times are integer nanoseconds.
"""

from __future__ import annotations

import msgspec

from stepscope.trace.text import html_table
from stepscope.trace.units import milliseconds

WHATIF_SCHEMA = "stepscope.whatif/2"
CRITICAL_PATH_SCHEMA = "stepscope.critical_path/2"


class StepBudget(msgspec.Struct, frozen=True):
    """Where a mean step goes on the slowest device, ns; the parts sum to the step exactly.

    Attributes:
        compute_ns: compute kernels run.
        communication_ns: communication runs, and no compute kernel.
        copy_ns: copies or memory sets run, and no kernel.
        idle_ns: nothing runs.
    """

    compute_ns: int
    communication_ns: int
    copy_ns: int
    idle_ns: int


class OneChange(msgspec.Struct, frozen=True):
    """What one of several changes gives alone.

    Attributes:
        change: the change in words.
        predicted_step_ns: mean step with it.
        prediction_low_ns: lower end of the prediction's range.
        prediction_high_ns: upper end of the prediction's range.
        validity: how the prediction is known, as in ``WhatIf``.
        samples_factor: samples of a step with it, over those without.
    """

    change: str
    predicted_step_ns: int
    prediction_low_ns: int
    prediction_high_ns: int
    validity: str
    samples_factor: float


class MemoryNeed(msgspec.Struct, frozen=True):
    """What a device needs of its memory with the changes.

    Attributes:
        rank: its rank.
        device: CUDA device ordinal.
        now_bytes: peak of what is allocated in the capture.
        peak_bytes: peak with the changes.
        low_bytes: lower end of its range.
        high_bytes: upper end of its range.
        device_bytes: memory of the device; null where the capture does not tell.
        fits: whether it fits; null where that is open.
        assumptions: what was assumed.
    """

    rank: int
    device: int
    now_bytes: int
    peak_bytes: int
    low_bytes: int
    high_bytes: int
    device_bytes: int | None
    fits: bool | None
    assumptions: list[str]


class WhatIf(msgspec.Struct, frozen=True):
    """The step after some changes.

    Attributes:
        schema: name and version of this contract.
        paths: the inputs as the user named them.
        changes: what was changed, in words; all together.
        steps: first and last replayed step of the first device, both included.
        measured_step_ns: measured mean steady step of the slowest device.
        replayed_step_ns: the same as the unchanged replay gives it.
        replay_error: replayed over measured step, less one.
        predicted_step_ns: mean step with the changes.
        prediction_low_ns: lower end of the prediction's range.
        prediction_high_ns: upper end of the prediction's range.
        rank: rank of the device whose budget is shown: the slowest with the changes.
        device: CUDA device ordinal of it.
        budget_before: its step without changes.
        budget_after: its step with the changes.
        warnings: what was assumed.
        assumptions: what the settings assume, in sentences.
        validity: how the prediction is known: measured, modelled, at least, or extrapolated; that
            of the least sure setting.
        alone: what each of several changes gives alone.
        samples_factor: samples of a step with the changes, over those without.
        throughput_factor: samples a second with the changes, over those without.
        memory: what the devices need of their memory, where a setting changes that and the capture
            holds allocations.
        unrecorded_step_ns: the step now and with the changes without the estimated cost of
            recording; null where none is estimated.
    """

    schema: str
    paths: list[str]
    changes: list[str]
    steps: tuple[int, int]
    measured_step_ns: int
    replayed_step_ns: int
    replay_error: float
    predicted_step_ns: int
    prediction_low_ns: int
    prediction_high_ns: int
    rank: int
    device: int
    budget_before: StepBudget
    budget_after: StepBudget
    warnings: list[str]
    assumptions: list[str] = []
    validity: str = "modelled"
    alone: list[OneChange] = []
    samples_factor: float = 1.0
    throughput_factor: float = 1.0
    memory: list[MemoryNeed] = []
    unrecorded_step_ns: tuple[int, int] | None = None

    def _repr_html_(self) -> str:
        """The prediction, for a notebook."""
        low, high = map(milliseconds, (self.prediction_low_ns, self.prediction_high_ns))
        rows = [
            ("measured", milliseconds(self.measured_step_ns), ""),
            ("predicted", milliseconds(self.predicted_step_ns), f"{low} to {high}"),
        ]
        return html_table("; ".join(self.changes), ("step", "mean", "range"), rows)


class PathPart(msgspec.Struct, frozen=True):
    """One kind of time on the critical path.

    Attributes:
        kind: what decided.
        cause: for host work what the host was doing, as a cause of idle time; else null.
        ns: how much of the steps.
        share: part of the steps.
    """

    kind: str
    cause: str | None
    ns: int
    share: float


class PathPlace(msgspec.Struct, frozen=True):
    """One name on the critical path.

    Attributes:
        name: a kernel, annotation or operator.
        ns: time on the path that belongs to it.
        share: part of the steps.
        label: short name of a kernel, as ``stepscope kernels`` shows it; empty for the others.
    """

    name: str
    ns: int
    share: float
    label: str = ""


class PathStep(msgspec.Struct, frozen=True):
    """The critical path of one step.

    Attributes:
        step: number of the step.
        measured_ns: its measured length.
        replayed_ns: its length in the replay; the parts sum to it exactly.
        parts: the parts, longest first.
    """

    step: int
    measured_ns: int
    replayed_ns: int
    parts: list[PathPart]


class PathRank(msgspec.Struct, frozen=True):
    """How much of the critical path lies on one rank.

    Attributes:
        rank: the rank.
        ns: time on the path.
    """

    rank: int
    ns: int


class CriticalPath(msgspec.Struct, frozen=True):
    """What decided how long the steps took.

    Attributes:
        schema: name and version of this contract.
        paths: the inputs as the user named them.
        rank: rank of the device whose steps are followed: the slowest.
        device: CUDA device ordinal of it.
        measured_step_ns: measured mean steady step.
        replayed_step_ns: the same as the replay gives it.
        replay_error: replayed over measured step, less one.
        total_ns: length of the followed steps in the replay; ``parts`` sum to it exactly.
        parts: the path by kind, longest first.
        ranks: the path by rank; it passes to another rank where that one comes last to a
            collective.
        kernels: kernels on the path, longest first, at most 20.
        ranges: innermost annotations that enqueued what is on the path, at most 20.
        operators: outermost framework operators that did, at most 20.
        steps: the followed steps one by one.
        warnings: what was assumed.
    """

    schema: str
    paths: list[str]
    rank: int
    device: int
    measured_step_ns: int
    replayed_step_ns: int
    replay_error: float
    total_ns: int
    parts: list[PathPart]
    ranks: list[PathRank]
    kernels: list[PathPlace]
    ranges: list[PathPlace]
    operators: list[PathPlace]
    steps: list[PathStep]
    warnings: list[str]
