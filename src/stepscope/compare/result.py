"""The result of a comparison: the contract ``stepscope.compare/3``. Times are ns."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from stepscope.compare.profile import Profile
from stepscope.trace.text import html_table
from stepscope.trace.units import milliseconds

SCHEMA: Final = "stepscope.compare/3"
Verdict = Literal["faster", "slower", "no_difference", "not_comparable"]
Fate = Literal["gone", "new", "smaller", "larger", "unchanged"]


class StepDifference(msgspec.Struct, frozen=True):
    """The step time, before and after.

    Attributes:
        before_ns: mean steady step before.
        after_ns: mean steady step after.
        difference_ns: after minus before.
        low_ns: lower end of the 95 % interval of the difference, from the steps of these captures
            alone.
        high_ns: upper end of it.
        ratio: after over before.
        ratio_low: lower end of the ratio's 95 % interval, with the noise between runs and what the
            set-up may explain.
        ratio_high: upper end of it.
        p_value: two-sided probability of a difference this large without a change.
        run_noise: standard deviation of a run's mean, as a share, that was computed with.
        run_noise_measured: whether it comes from these captures; otherwise it is assumed.
        before_steps: steady steps of each run before.
        after_steps: steady steps of each run after.
    """

    before_ns: int
    after_ns: int
    difference_ns: int
    low_ns: int
    high_ns: int
    ratio: float
    ratio_low: float
    ratio_high: float
    p_value: float
    run_noise: float
    run_noise_measured: bool
    before_steps: list[int]
    after_steps: list[int]


class PartDifference(msgspec.Struct, frozen=True):
    """One part of the step: the differences of all parts sum to that of the step exactly.

    Attributes:
        part: ``compute``, ``exposed_communication``, ``exposed_copy``, ``memset``, or
            ``idle:CAUSE``.
        before_ns: mean time per step before.
        after_ns: mean time per step after.
        difference_ns: after minus before.
        error_ns: standard error of the difference, from the steps alone.
    """

    part: str
    before_ns: int
    after_ns: int
    difference_ns: int
    error_ns: int


class CauseMoved(msgspec.Struct, frozen=True):
    """One of the causes that moved the step.

    Attributes:
        name: a cause that either diagnosis found, or a part of the step.
        difference_ns: how much more of the step it takes after, ns.
    """

    name: str
    difference_ns: int


class KernelDifference(msgspec.Struct, frozen=True):
    """Kernels that do the same work before and after.

    Attributes:
        relation: ``same``, ``other_shape``, ``renamed``, ``fused``, ``split``, ``replaced``,
            ``gone`` or ``new``.
        before: short names before.
        after: short names after.
        category: what kind of work it is.
        range: annotation that launches most of it; null for none.
        operator: operator that launches most of it; null for none.
        calls_before: calls per step before.
        calls_after: calls per step after.
        before_ns: time per step before.
        after_ns: time per step after.
        difference_ns: after minus before.
        each_ratio: mean time of a call, after over before, for the same kernel; null for others.
        changed: whether that is more than noise (and at least ``kernel_floor``), or the number of
            calls is another one, and the difference matters.
    """

    relation: str
    before: list[str]
    after: list[str]
    category: str
    range: str | None
    operator: str | None
    calls_before: float
    calls_after: float
    before_ns: int
    after_ns: int
    difference_ns: int
    each_ratio: float | None
    changed: bool


class PlaceDifference(msgspec.Struct, frozen=True):
    """A range or operator.

    Attributes:
        name: its name.
        host_before_ns: time per step inside it on the host, before; of operators the outermost ones
            count. Null where that run did not record it, or its profile is of a version that does
            not tell.
        host_after_ns: the same after.
        device_before_ns: time a step of the device operations that it, or what is nested in it,
            launches, before; null as above.
        device_after_ns: the same after.
    """

    name: str
    host_before_ns: int | None
    host_after_ns: int | None
    device_before_ns: int | None
    device_after_ns: int | None


class NotRecorded(msgspec.Struct, frozen=True):
    """What one run did not record of what the other one did.

    Attributes:
        what: ``ranges`` or ``operators``.
        side: the run that did not.
        names: how many names of the other run that are.
        message: the same in a sentence, and how to record it.
    """

    what: Literal["ranges", "operators"]
    side: Literal["before", "after"]
    names: int
    message: str


class CollectiveDifference(msgspec.Struct, frozen=True):
    """Communication of one kind in groups of one size; times are a step and rank.

    Attributes:
        kind: all_reduce, all_gather, ...
        group_size: ranks that take part.
        count_before: operations per step before.
        count_after: operations per step after.
        bytes_before: message bytes per step before; null where not recorded.
        bytes_after: message bytes per step after; null where not recorded.
        waiting_before_ns: until the last rank has joined, before.
        waiting_after_ns: the same after.
        transfer_before_ns: afterwards, before.
        transfer_after_ns: the same after.
        exposed_before_ns: what no compute covers, before.
        exposed_after_ns: the same after.
    """

    kind: str
    group_size: int
    count_before: float
    count_after: float
    bytes_before: float | None
    bytes_after: float | None
    waiting_before_ns: int
    waiting_after_ns: int
    transfer_before_ns: int
    transfer_after_ns: int
    exposed_before_ns: int
    exposed_after_ns: int


class FindingDifference(msgspec.Struct, frozen=True):
    """A finding of either diagnosis.

    Attributes:
        cause: public id.
        fate: what its time did: ``smaller``, ``larger``, ``unchanged``, or, where only one
            diagnosis finds it, ``gone`` or ``new`` if more than half of the time went or came.
        before_ns: time it takes a step before; null where not found.
        after_ns: the same after.
        message: its sentence, of the later run that has it.
        idle_before_ns: idle time a step that is charged to the cause, found or not, before; null
            where none is on either side.
        idle_after_ns: the same after.
    """

    cause: str
    fate: Fate
    before_ns: int | None
    after_ns: int | None
    message: str
    idle_before_ns: int | None = None
    idle_after_ns: int | None = None

    @property
    def start_ns(self) -> int:
        """Its time before: of the finding, else idle time that is charged to the cause."""
        return self._time(self.before_ns, self.idle_before_ns)

    @property
    def end_ns(self) -> int:
        """Its time after, measured as :attr:`start_ns` is."""
        return self._time(self.after_ns, self.idle_after_ns)

    def _time(self, found_ns: int | None, idle_ns: int | None) -> int:
        if found_ns is None or (self._is_idle and idle_ns is not None):
            return idle_ns or 0
        return found_ns

    @property
    def _is_idle(self) -> bool:
        """Whether one diagnosis lacks it, and most of what the other found is such idle time.

        Then both sides are read from the same ledger.
        """
        if self.before_ns is not None and self.after_ns is not None:
            return False
        found, idle = (
            (self.before_ns, self.idle_before_ns)
            if self.after_ns is None
            else (self.after_ns, self.idle_after_ns)
        )
        return 2 * (idle or 0) > (found or 0)


class PredictionCheck(msgspec.Struct, frozen=True):
    """What the earlier diagnosis predicted for a finding that is gone, and what came.

    Attributes:
        cause: public id.
        predicted_ns: predicted mean step.
        low_ns: lower bound of the prediction.
        high_ns: upper bound of it.
        measured_ns: mean step after.
        came_true: whether the measured step is within the bounds, widened by the noise between
            runs; null where several findings went, so that none can be judged alone.
        message: the same in a sentence.
    """

    cause: str
    predicted_ns: int
    low_ns: int
    high_ns: int
    measured_ns: int
    came_true: bool | None
    message: str


class SetupDifference(msgspec.Struct, frozen=True):
    """Something that differs beside the code.

    Attributes:
        name: what differs.
        before: value before.
        after: value after.
        weight: ``confounds`` where it changes the step time by itself, else ``note``.
        message: what it means for the comparison.
        sure: false where it is not certain that it differs: runs that may do the same work.
    """

    name: str
    before: str
    after: str
    weight: Literal["confounds", "note"]
    message: str
    sure: bool = True


class Comparison(msgspec.Struct, frozen=True):
    """A whole comparison of two runs (or of several captures of each).

    Attributes:
        schema: name and version of this contract.
        verdict: ``faster``, ``slower``, ``no_difference`` (none that these runs can show) or
            ``not_comparable`` (the set-up alone may explain the difference, or the runs do
            different work).
        message: the answer in one sentence.
        before: inputs before, one list a run.
        after: inputs after, one list a run.
        step: the step time.
        causes: what moved the step in the direction of its difference, the largest first, three at
            most.
        parts: where the time went, by part of the step, the largest difference first.
        kernels: by kernel, the largest difference first.
        kernel_floor: share by which the time of an unchanged kernel may differ between these runs.
        kernel_shift: common ratio of the times of all matched kernels (clocks), after over before.
        ranges: by range, the largest difference first.
        operators: by operator, the largest difference first.
        collectives: by kind of communication.
        findings: which findings went and came.
        predictions: whether the earlier predictions came true.
        setup: what else differs.
        warnings: what limits the comparison.
        not_recorded: ranges and operators that one side did not record; they are not compared.
        runs: the first profile of each side, for drawing; empty in JSON.
    """

    schema: str
    verdict: Verdict
    message: str
    before: list[list[str]]
    after: list[list[str]]
    step: StepDifference
    causes: list[CauseMoved]
    parts: list[PartDifference]
    kernels: list[KernelDifference]
    kernel_floor: float
    kernel_shift: float
    ranges: list[PlaceDifference]
    operators: list[PlaceDifference]
    collectives: list[CollectiveDifference]
    findings: list[FindingDifference]
    predictions: list[PredictionCheck]
    setup: list[SetupDifference]
    warnings: list[str]
    not_recorded: list[NotRecorded] = msgspec.field(default_factory=list)
    runs: list[Profile] = msgspec.field(default_factory=list)

    def _repr_html_(self) -> str:
        """The answer and the causes that moved the step, for a notebook."""
        rows = [(cause.name, milliseconds(cause.difference_ns)) for cause in self.causes]
        return html_table(self.message, ("cause", "more of the step"), rows)
