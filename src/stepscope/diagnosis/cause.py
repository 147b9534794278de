"""What a cause is: one file each under ``causes``, registered by its ``CAUSE``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from stepscope.activity.locations import Where
from stepscope.breakdown.explain import Explanation
from stepscope.breakdown.recurrence import Recurrence
from stepscope.diagnosis.result import Location
from stepscope.gaps.idle import CAUSES as IDLE_CAUSES
from stepscope.jobs.view import Device, JobView
from stepscope.kernels.kernels import Repair
from stepscope.simulation import Change, FuseOps, RemoveOps
from stepscope.trace.meta import Meta
from stepscope.trace.units import Unit


@dataclass(frozen=True)
class Figure:
    """A figure with the statement that recomputes it.

    ``sql`` gives one cell. It may use ``{window}`` for the conditions that select the device's
    steady window on a table with ``start_ns``, ``{gpu}`` for those that select the device, and
    ``{process}`` for those that select its process.

    Attributes:
        name: name of the figure, lower case with underscores.
        unit: what it is measured in.
        sql: the statement.
    """

    name: str
    unit: Unit
    sql: str


@dataclass
class JobCase:
    """All devices of all ranks as causes see them.

    Attributes:
        view: the explained devices.
        cases: one a device, ordered by rank and device.
    """

    view: JobView
    cases: list[Case] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One device's explanation as a cause sees it.

    Attributes:
        device: the explained device with its rank, tables and metadata.
        job: the devices that it trains with.
        several_traces: whether ``rank`` must select the trace in SQL.
    """

    device: Device
    job: JobCase
    several_traces: bool = False

    @property
    def rank(self) -> int:
        """The rank."""
        return self.device.rank

    @property
    def meta(self) -> Meta:
        """The trace's metadata."""
        return self.device.meta

    @property
    def explanation(self) -> Explanation:
        """The device's steps, accounting and gaps."""
        return self.device.explanation

    @property
    def step_ns(self) -> float:
        """Mean steady step, ns."""
        return self.explanation.step_ns

    @property
    def job_step_ns(self) -> float:
        """The same of the job, ns: of its device with the longest one, as the simulator counts."""
        return max((case.step_ns for case in self.job.cases), default=self.step_ns)

    @property
    def own_step_ns(self) -> float:
        """The same without the idle time that is charged to recording: no cause holds any of it."""
        return self.step_ns - self.idle_ns("profiler_overhead")

    def idle_ns(self, cause: str) -> float:
        """Idle time charged to a cause, ns per step."""
        return self.explanation.idle_by_cause_ns.get(cause, 0) / self.explanation.n_steady

    def direct_ns(self, cause: str) -> float:
        """The part of it in which the cause itself was at work, ns per step."""
        segments = self.explanation.gaps.segments
        rows = self.explanation.segments_of(cause) & (segments["inferred"] == 0)
        length = segments["end_ns"][rows] - segments["start_ns"][rows]
        return float(length.sum()) / self.explanation.n_steady

    def place(self, cause: str) -> Location:
        """Where in the program the gaps of a cause are."""
        segments = self.explanation.gaps.segments
        rows = self.explanation.segments_of(cause)
        where = self.explanation.places.of(segments["start_ns"][rows], segments["end_ns"][rows])
        return located(where)


@dataclass(frozen=True)
class Further:
    """Another repair of the same cause than the first one advised, predicted by itself.

    Attributes:
        change: the repair as the simulator replays it; None for other kernels
            (``Findings.further_repairs``).
        repair: the same in words; it is the second recommendation.
        first: the repair that is ``Detection.change``, the first recommendation, in words.
        chosen_anyway: whether people choose between both for other reasons, too: it is then also
            told where it gains less.
    """

    change: Change | None
    repair: str
    first: str
    chosen_anyway: bool = False


@dataclass(frozen=True)
class Detection:
    """A cause seen on one device.

    ``message`` is a template: ``{name}`` stands for a text of ``texts`` or for the value of the
    figure of that name, with its unit. It holds no figure of its own, so that every number in a
    sentence is in the evidence.

    Attributes:
        time_ns: what it takes, ns per step.
        direct_ns: the part that was observed rather than inferred, ns per step.
        message: the sentence's predicate, without the figures of time (the engine adds them).
        recommendations: what to change, most effective first.
        figures: evidence beyond the time itself.
        texts: names (of ranges, kernels, files) that the sentence uses.
        where: where in the program.
        next_capture: a command that would sharpen the finding.
        uncertain_ns: further time that may belong to it, ns per step.
        overhead_ns: part of ``time_ns`` that the capturing tool may have made, ns per step.
        repair: the kernels that the repair changes; None where it changes none.
        time_sql: statement that gives ``time_ns``, where it is another than the cause's.
        change: the repair as the simulator replays it; None for the removal of the idle time that
            is charged to the cause.
        alternative: another repair that is as likely; the range of the prediction reaches to it.
        also: further changes that are part of the repair, replayed together with ``change``.
        added_ns: what the repaired program does instead, ns per step.
        may_leave: part of the gain that a likely form of the repair leaves undone; the range of
            the prediction holds it.
        further: another repair, which is predicted by itself; where it gains more, the range of
            the prediction reaches down to it. Where the first one gains little beside it, it is
            advised first, and predicted.
        floor_ns: what the step takes at least without it, ns; by default what the device executes.
        least_floor_ns: the same for the lower end of the range; by default ``floor_ns``.
        supply_ns: what it takes to bring the input of a step however the rest is repaired, ns:
            expected, least, most; None where nothing is known to hold it back.
        at_least: whether the capture bounds the gain from below only: the step today is longer, or
            the step after the repair shorter, than it can show.
        rare: how often it comes back where few steps hold it; None where its idle time says so.
        chance: share by which other steps may hold more or less of it, beside ``rare``: each draws
            what it is given.
        work_ns: the part that is work of the host other than launching, ns per step.
        launching_ns: the part in which the host launches, so that recording makes as much longer as
            the rest of the step, ns per step; where the prediction is arithmetic.
        max_gain_ns: the most that the repair is credited with, ns per step: what it gains beyond is
            the doing of other causes, which it hides.
        root_cause: id of the cause behind this one.
        absorbs: (cause id, rank) of findings that are symptoms of this one.
    """

    time_ns: float
    direct_ns: float
    message: str
    recommendations: list[str]
    figures: list[Figure] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    where: Location = field(default_factory=Location)
    next_capture: str | None = None
    uncertain_ns: float = 0.0
    overhead_ns: float = 0.0
    repair: Repair | None = None
    time_sql: str | None = None
    change: Change | None = None
    also: tuple[Change, ...] = ()
    alternative: Change | None = None
    added_ns: float = 0.0
    may_leave: float = 0.0
    further: Further | None = None
    floor_ns: float | None = None
    least_floor_ns: float | None = None
    supply_ns: tuple[float, float, float] | None = None
    at_least: bool = False
    rare: Recurrence | None = None
    chance: float = 0.0
    work_ns: float = 0.0
    launching_ns: float = 0.0
    max_gain_ns: float | None = None
    root_cause: str | None = None
    absorbs: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True)
class Cause:
    """One root cause.

    Attributes:
        id: public id.
        title: short name for people.
        definition: what it means, one paragraph.
        differential: what separates it from causes that look like it.
        prediction: how the gain is predicted.
        reference: where the definition comes from.
        min_share: share of the step from which it is reported (:meth:`least_ns`).
        remedies: what usually helps, whatever the capture, the most effective first: for who asks
            about the cause; a finding has the advice for its own case. Commands stand in backticks.
        detect: a device's case -> detection, or None.
        time_sql: statement that gives the time it takes, ns per step; None only where idle time is
            charged to the cause (``CAUSES`` in ``gaps/idle.py``), which is then its time.
        takes_time: False for verdicts, which have no time of their own.
        of_program: False when the cause lies in the measurement, not in the program: it then
            never outranks a cause that does.
        less_recording: whether its time is what is left of a host's time once the estimated cost
            of recording is taken away, so that it is known no better than that.
        names_no_repair: whether its prediction is what could be gained, not what a certain repair
            gains: a part of it counts beside causes whose repair is known.
    """

    id: str
    title: str
    definition: str
    differential: str
    prediction: str
    reference: str
    min_share: float
    remedies: tuple[str, ...]
    detect: Callable[[Case], Detection | None]
    time_sql: str | None = None
    takes_time: bool = True
    of_program: bool = True
    less_recording: bool = False
    names_no_repair: bool = False

    def least_ns(self, case: Case) -> float:
        """The time from which it is reported, ns per step.

        A share of the step that nobody records, as the time is: a wait is no less of the program
        where recording makes the steps longer. Where the time itself rests on the estimate of that
        cost, it is a share of the recorded step, which is the larger.
        """
        own = self.of_program and not self.less_recording
        return self.min_share * (case.own_step_ns if own else case.step_ns)


@cache
def causes() -> dict[str, Cause]:
    """Every cause by id: each module of ``causes`` registers one as ``CAUSE``.

    Raises:
        TypeError: a module's cause is incomplete; whoever writes it is told what to add.
    """
    import stepscope.diagnosis.causes as package

    found: dict[str, Cause] = {}
    for module in pkgutil.iter_modules(package.__path__):
        name = f"{package.__name__}.{module.name}"
        cause = getattr(importlib.import_module(name), "CAUSE", None)
        if not isinstance(cause, Cause):
            raise TypeError(f"{name} has no CAUSE; a module of that folder holds one Cause")
        register(found, cause, module.name)
    return found


def register(known: dict[str, Cause], cause: Cause, file: str) -> None:
    """Add a cause to those that are known.

    Args:
        known: causes by id; it receives this one.
        cause: what a module offers.
        file: name of that module, without folder and suffix.

    Raises:
        TypeError: it cannot be ranked or told from the others.
    """
    if cause.id != file:
        raise TypeError(f"the cause {cause.id!r} stands in {file}.py; name both the same")
    if cause.takes_time and not (cause.time_sql or "").strip() and cause.id not in IDLE_CAUSES:
        raise TypeError(
            f"the cause {cause.id!r} has no time_sql, and no idle time is charged to it "
            "(CAUSES in gaps/idle.py), so that it would be ranked with 0.0 ms; give its Cause "
            "a time_sql, the statement for its time in ns per step"
        )
    known[cause.id] = cause


def located(where: Where) -> Location:
    """A place that analysis found, as a finding names it."""
    return Location(where.range, where.operator, where.source, where.function)


def idle_figure(cause: str) -> Figure:
    """The idle time charged to a cause, ns in the steady window."""
    return Figure(
        f"idle_{cause}_ns",
        "ns",
        f"SELECT sum(end_ns - start_ns)::BIGINT FROM idle_gap WHERE cause = '{cause}' AND {{gpu}}",
    )


def kernel_figures() -> list[Figure]:
    """How many kernels the steady window has, and how long they are."""
    kernels = "FROM gpu_op WHERE kind = 'kernel' AND {gpu} AND {window}"
    return [
        Figure("kernels", "count", f"SELECT count(*) {kernels}"),
        Figure("median_kernel_ns", "ns", f"SELECT median(end_ns - start_ns)::BIGINT {kernels}"),
    ]


def of_job(pairs: Sequence[tuple[Case, Detection]]) -> tuple[Case, Detection]:
    """What a cause costs most of all devices, with the operations that go on each of them.

    Args:
        pairs: at least one device that shows the cause.
    """
    case, detection = max(pairs, key=lambda pair: pair[1].time_ns)
    known = (detection.change, *detection.also)
    others = [
        change
        for other, one in pairs
        if other.rank != case.rank
        for change in one.also
        if isinstance(change, (RemoveOps, FuseOps)) and change not in known
    ]
    return case, replace(detection, also=(*detection.also, *others))
