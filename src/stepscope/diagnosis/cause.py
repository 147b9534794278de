"""What a cause is: one file each under ``causes``, registered by its ``CAUSE``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from stepscope.activity.where import Where
from stepscope.breakdown.explain import Explanation
from stepscope.diagnosis.result import Location
from stepscope.jobs.view import Device, JobView
from stepscope.kernels.repair import Repair
from stepscope.simulation import Change
from stepscope.trace.meta import Meta
from stepscope.trace.units import Unit


@dataclass(frozen=True)
class Figure:
    """A figure with the statement that recomputes it.

    ``sql`` gives one cell. It may use ``{window}`` for the conditions that select the device's
    steady window on a table with ``start_ns``, ``{lane}`` for those that select the device, and
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

    def idle_ns(self, cause: str) -> float:
        """Idle time charged to a cause, ns a step."""
        return self.explanation.idle_by_cause_ns.get(cause, 0) / self.explanation.n_steady

    def direct_ns(self, cause: str) -> float:
        """The part of it in which the cause itself was at work, ns a step."""
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
class Detection:
    """A cause seen on one device.

    ``says`` is a template: ``{name}`` stands for a text of ``texts`` or for the value of the
    figure of that name, with its unit. It holds no figure of its own, so that every number in a
    sentence is in the evidence.

    Attributes:
        time_ns: what it takes, ns a step.
        direct_ns: the part that was observed rather than inferred, ns a step.
        says: the sentence's predicate, without the figures of time (the engine adds them).
        do: what to change, most effective first.
        figures: evidence beyond the time itself.
        texts: names (of ranges, kernels, files) that the sentence uses.
        where: where in the program.
        next_capture: a command that would sharpen the finding.
        unsure_ns: further time that may belong to it, ns a step.
        doubt_ns: part of ``time_ns`` that the capturing tool may have made, ns a step.
        repair: the kernels that the repair changes; None where it changes none.
        time_sql: statement that gives ``time_ns``; by default the idle time charged to the cause.
        change: the repair as the simulator replays it; None for the removal of the idle time that
            is charged to the cause.
        also: further changes that are part of the repair, replayed together with ``change``.
        added_ns: what the repaired program does instead, ns a step.
        floor_ns: what the step takes at least without it, ns; by default what the device executes.
        least_floor_ns: the same for the lower end of the range; by default ``floor_ns``.
        credit_ns: the most that the repair is credited with, ns a step: what it gains beyond is
            the doing of other causes, which it hides.
        because: id of the cause behind this one.
        absorbs: (cause id, rank) of findings that are symptoms of this one.
    """

    time_ns: float
    direct_ns: float
    says: str
    do: list[str]
    figures: list[Figure] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    where: Location = field(default_factory=Location)
    next_capture: str | None = None
    unsure_ns: float = 0.0
    doubt_ns: float = 0.0
    repair: Repair | None = None
    time_sql: str | None = None
    change: Change | None = None
    also: tuple[Change, ...] = ()
    added_ns: float = 0.0
    floor_ns: float | None = None
    least_floor_ns: float | None = None
    credit_ns: float | None = None
    because: str | None = None
    absorbs: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True)
class Cause:
    """One root cause.

    Attributes:
        id: public id.
        title: short name for people.
        definition: what it means, one paragraph.
        look_alikes: what separates it from causes that look like it.
        prediction: how the gain is predicted.
        reference: where the definition comes from.
        min_share: share of the step from which it is reported.
        detect: a device's case -> detection, or None.
        of_program: False when the cause lies in the measurement, not in the program: it then
            never outranks a cause that does.
    """

    id: str
    title: str
    definition: str
    look_alikes: str
    prediction: str
    reference: str
    min_share: float
    detect: Callable[[Case], Detection | None]
    of_program: bool = True


@cache
def causes() -> dict[str, Cause]:
    """Every cause by id: each module of ``causes`` registers one as ``CAUSE``."""
    import stepscope.diagnosis.causes as package

    found = {}
    for module in pkgutil.iter_modules(package.__path__):
        cause: Cause = importlib.import_module(f"{package.__name__}.{module.name}").CAUSE
        found[cause.id] = cause
    return found


def located(where: Where) -> Location:
    """A place that analysis found, as a finding names it."""
    return Location(where.range, where.operator, where.source, where.function)


def idle_figure(cause: str) -> Figure:
    """The idle time charged to a cause, ns in the steady window."""
    return Figure(
        f"idle_{cause}_ns",
        "ns",
        f"SELECT sum(end_ns - start_ns)::BIGINT FROM idle_gap WHERE cause = '{cause}' AND {{lane}}",
    )
