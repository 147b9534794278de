"""What a lever is: a change that would make the kernels themselves take less of the step.

A finding is something wrong; a lever is what is left to gain where nothing is. One file each under
``levers``, registered by its ``LEVER``. A lever changes only kernels that no finding changes, but
for those of findings of which it says the reason (``refines``). It
gains no more than their time, and where it takes launches away, the time that the host needs for
them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.breakdown.repaired import widened
from stepscope.diagnosis import frameworks, vendors
from stepscope.diagnosis.cause import Case, Figure, causes, located
from stepscope.diagnosis.evidence import (
    STEADY_STEPS,
    STEP_SQL,
    Compute,
    all_evaluated,
    predicted_sql,
)
from stepscope.diagnosis.inside_kernels import changes_of_repair
from stepscope.diagnosis.predictions import LARGEST_REPLAY_ERROR, Predicted
from stepscope.diagnosis.ranking import INSUFFICIENT, Ranked, severity_of
from stepscope.diagnosis.result import Finding, Part
from stepscope.diagnosis.sentence import by_step, filled
from stepscope.gaps.idle import CAUSES
from stepscope.intervals.distinct import among
from stepscope.kernels.kernels import Kernels, Repair, changed
from stepscope.simulation import Change, Free, Simulation
from stepscope.simulation.changes import Bound
from stepscope.simulation.settings.base import Edit, Facts
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

NOISE_SHARE: Final = 0.01
"""Share of the step under which a gain cannot be told from noise in two runs of a program."""

MORE: Final = 1.25
"""How many times the gain of a finding a lever has that is told beside it (``Lever.exceeds``)."""

_NEGLIGIBLE: Final = 0.1
"""Part of a gain that need not be told apart."""

_BOUNDS: Final[tuple[Bound, ...]] = ("low", "expected", "high")

TABLE_COLUMNS: Final = {
    "rank": "rank",
    "process_id": "operating-system process id",
    "device": "CUDA device ordinal inside the process",
    "gpu_op_id": "gpu_op.id of the operation",
    "start_ns": "begin, ns since the origin",
    "end_ns": "end, ns since the origin",
    "lever": "public id of the lever that changes it",
    "changed_ns": "its estimated length after the change, ns",
    "own_ns": "device time that it has to itself: operations at the same time share it, ns",
    "saved_ns": "what of that the change saves, ns",
}
TABLE_DOC: Final = "One operation in the steady steps that a lever of the diagnosis changes."


@dataclass(frozen=True)
class Found:
    """A lever seen on one device.

    Attributes:
        repair: its kernels, and what they would take.
        message: the sentence, a template as in :class:`~stepscope.diagnosis.cause.Detection`. Every
            lever has ``kernels_per_step``, ``kernels_ns_per_step`` and ``changed_ns_per_step``.
        recommendations: what to change, most effective first.
        figures: evidence beyond the kernels and their time.
        texts: names that the sentence uses.
        next_capture: a command that would make the estimate better.
        claimed: rows of its kernels that later levers leave out, where it claims any; None for all.
        at_least: whether the capture bounds the gain from below only, as for a finding.
        setting: the setting that it is, where that depends on what was found (``Lever.setting``).
    """

    repair: Repair
    message: str
    recommendations: list[str]
    figures: list[Figure] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    next_capture: str | None = None
    claimed: IntArray | None = None
    at_least: bool = False
    setting: Edit | None = None


@dataclass(frozen=True)
class Lever:
    """One way to gain in the kernels.

    Attributes:
        id: public id.
        title: short name for people.
        definition: what it means, one paragraph.
        differential: what separates it from findings and levers that look like it.
        prediction: how the gain is estimated.
        reference: where the estimate comes from.
        find: (a device's case, operations that are taken) -> what was found, or None.
        instead: findings that say the same: where one of them is there, this is not named.
        refines: findings that only say that kernels are slow, where this says why, or takes them
            away: it changes theirs, too.
        exceeds: findings whose repair is a part of this one: it changes their kernels, too, and is
            named only where it gains that much more.
        order: levers of a lower number take their kernels first.
        claims: whether its kernels are then left out of later levers.
        setting: the setting that it is, where the replay knows it: then its prediction is for as
            many samples as a step has today, and the host's part is in it.
        replayed: (what was found, the device, operations that are taken) -> the same with all
            kernels that the setting changes, where its replay predicts the gain.
    """

    id: str
    title: str
    definition: str
    differential: str
    prediction: str
    reference: str
    find: Callable[[Case, BoolArray], Found | None]
    instead: tuple[str, ...] = ()
    refines: tuple[str, ...] = ()
    exceeds: tuple[str, ...] = ()
    order: int = 5
    claims: bool = True
    setting: Edit | None = None
    replayed: Callable[[Found, Facts, BoolArray], Found] | None = None


@cache
def levers() -> dict[str, Lever]:
    """Every lever by id, in the order in which they take kernels.

    Raises:
        TypeError: a module registers none, or one under a name that is taken.
    """
    import stepscope.diagnosis.levers as package

    found: dict[str, Lever] = {}
    for module in pkgutil.iter_modules(package.__path__):
        name = f"{package.__name__}.{module.name}"
        lever = getattr(importlib.import_module(name), "LEVER", None)
        if not isinstance(lever, Lever):
            raise TypeError(f"{name} has no LEVER; a module of that folder holds one Lever")
        if lever.id != module.name or lever.id in causes():
            raise TypeError(f"the lever {lever.id!r} must be named as its file, and as no cause")
        found[lever.id] = lever
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


@dataclass(frozen=True)
class Pulled:
    """One lever with what it gains.

    Attributes:
        lever: the lever.
        case: the device that it was looked for on.
        found: what was found there.
        own_ns: device time that each of its operations has to itself.
        saved_ns: what of it the change saves.
        predicted: the step after the change.
        after: whether it gains that only once the findings are repaired.
        holds: causes of the findings whose kernels are among these: all of them, or some.
    """

    lever: Lever
    case: Case
    found: Found
    own_ns: IntArray
    saved_ns: IntArray
    predicted: Predicted
    after: bool = False
    holds: dict[str, Part] = field(default_factory=dict)

    @property
    def gain_ns(self) -> float:
        """Predicted gain, ns per step."""
        return float(self.case.step_ns - self.predicted.step_ns)


def noise_ns(case: Case) -> float:
    """A gain up to this is noise, ns: two standard errors of the steps' compute, at least 1 %.

    What the steps wait for varies as well, and more under a profiler; levers are about the kernels.
    """
    e = case.explanation
    steps = e.accounting.compute_ns[e.first : e.last + 1]
    error = 2 * float(np.std(steps)) / float(np.sqrt(max(len(steps), 1)))
    return max(error, NOISE_SHARE * case.step_ns)


def pulled(
    case: Case, found_causes: Sequence[Ranked], simulation: Callable[[], Simulation]
) -> list[Pulled]:
    """The levers of a device whose gain is above the noise, the largest gain first.

    Args:
        case: the device.
        found_causes: what is reported of the job: neither causes nor their kernels are repeated.
        simulation: gives the job's replay.
    """
    kernels = case.explanation.kernels
    reported = {item.cause.id for item in found_causes}
    taken = np.zeros(len(kernels.gpu.ops), bool)
    if INSUFFICIENT in reported or not len(taken):
        return []
    repairs = case.explanation.inside_kernels.repairs
    of_findings = {cause: repairs[cause].rows for cause in repairs if cause in reported}
    own = kernels.own_ns
    least = noise_ns(case)
    of_all = _replays(case, found_causes, simulation)
    result: list[Pulled] = []
    for lever in levers().values():
        if reported.intersection(lever.instead):
            continue
        replays, its = of_all, {*lever.refines, *lever.exceeds}
        if reported & its:  # whose repair is this one
            rest = [item for item in found_causes if item.cause.id not in its]
            replays = _replays(case, rest, simulation)
        repaired = np.zeros(len(taken), bool)
        for cause, rows in of_findings.items():
            repaired[rows] |= cause not in its
        found = lever.find(case, repaired if lever.setting is not None else repaired | taken)
        if found is None or not len(found.repair.rows):
            continue
        if lever.replayed is not None and replays is not None:
            # a setting is replayed with all kernels, those of other levers among them
            found = lever.replayed(found, replays.replay.facts[0], repaired)
        repair, setting = found.repair, found.setting or lever.setting
        share = own[repair.rows] / np.maximum(repair.old_ns, 1)
        saved = np.rint((repair.old_ns - repair.new_ns) * share).astype(np.int64)
        if setting is not None and replays is not None:
            predicted, after = _with_setting(case, setting, replays)
        elif kernels.per_step(int(saved.sum())) <= least and not (
            # launches that surely go may be what the step waits for
            replays is not None and repair.certain and repair.merged.any()
        ):
            continue
        else:
            predicted, after = _predicted(case, repair, own[repair.rows], saved, replays)
        parts = [item.gain_ns for item in found_causes if item.cause.id in lever.exceeds]
        if case.step_ns - predicted.step_ns <= max(least, *(MORE * gain for gain in parts), 0.0):
            continue
        if lever.claims:
            taken = taken.copy()
            taken[repair.rows if found.claimed is None else found.claimed] = True
        shared = {cause: among(rows, repair.rows) for cause, rows in of_findings.items()}
        holds = {cause: _part(mine) for cause, mine in shared.items() if mine.any()}
        result.append(Pulled(lever, case, found, own[repair.rows], saved, predicted, after, holds))
    return sorted(result, key=lambda item: (-item.gain_ns, item.lever.id))


@dataclass(frozen=True)
class _Replays:
    """The job replayed as it is, and with its findings repaired.

    Attributes:
        replay: the replay.
        repairs: the changes that repair what is reported; empty where nothing is.
        repaired_ns: the step with them.
    """

    replay: Simulation
    repairs: list[Change]
    repaired_ns: float


def _replays(
    case: Case, found_causes: Sequence[Ranked], simulation: Callable[[], Simulation]
) -> _Replays | None:
    """None where arithmetic has to do: several devices, or a replay that misses the step."""
    if len(case.job.cases) > 1:
        return None
    replay = simulation()
    if abs(replay.replay_error) > LARGEST_REPLAY_ERROR:
        return None
    repairs: list[Change] = []
    for item in found_causes:
        detection = item.detection
        if detection.repair is not None:
            repairs += changes_of_repair(case, detection.repair, "expected", None)
        elif detection.change is not None:
            repairs += [detection.change, *detection.also]
        elif item.cause.id in CAUSES:
            repairs.append(Free(item.cause.id))
    if case.explanation.recording_ns and Free("profiler_overhead") not in repairs:
        repairs.append(Free("profiler_overhead"))
    repaired = float(replay.step_after_ns(repairs)) if repairs else 0.0
    return _Replays(replay, repairs, repaired)


def _predicted(
    case: Case, repair: Repair, own_ns: IntArray, saved_ns: IntArray, replays: _Replays | None
) -> tuple[Predicted, bool]:
    """The step after a change; and whether it gains that only once the findings are repaired.

    By replay where that is possible: it knows when the host would become the limit, at the pace
    that it has while it is recorded. What the kernels save is the other end of the range.
    """
    kernels = case.explanation.kernels
    step = case.step_ns
    spent = int(own_ns.sum())
    scale = spent / max(int(repair.old_ns.sum()), 1)
    gains = [
        min(max(kernels.per_step((int(repair.old_ns.sum()) - after) * scale), 0.0), step)
        for after in (repair.high_ns, repair.low_ns)
    ]
    gain = kernels.per_step(int(saved_ns.sum()))
    low, middle, high = min(gains[0], gain), gain, max(gains[1], gain)
    if replays is None:
        return _not_narrower(Predicted(step - middle, step - high, step - low), step), False
    # the launches of kernels that go may take the host longer than the kernels took
    replay, most = replays.replay, step if repair.merged.any() else kernels.per_step(spent)

    def gained(bound: Bound) -> tuple[float, float, float, float]:
        """As it is, its bounds, and with the findings repaired."""
        change = changes_of_repair(case, repair, bound, None)
        found = replay.predict(change)
        alone, least, greatest = (
            min(max(step - float(ns), 0.0), most)
            for ns in (found.step_ns, found.high_ns, found.low_ns)
        )
        if not replays.repairs:
            return alone, 0.0, least, greatest
        with_them = float(replay.step_after_ns([*replays.repairs, *change]))
        return alone, min(max(replays.repaired_ns - with_them, 0.0), most), least, greatest

    ends = {bound: gained(bound) for bound in _BOUNDS}
    now, later = ends["expected"][:2]
    after = later > now + noise_ns(case)
    chosen = max(now, later)
    least = min(chosen, low, ends["high"][1] if after else min(end[2] for end in ends.values()))
    greatest = max(chosen, high, ends["low"][1] if after else max(end[3] for end in ends.values()))
    found = Predicted(step - chosen, step - min(greatest, most), step - least, replay.replay_error)
    return _not_narrower(found, step), after


def _not_narrower(predicted: Predicted, before_ns: float) -> Predicted:
    """The same with a range of at least what is uncertain of every repair, up to the step today."""
    after = predicted.step_ns
    low, high = widened(after, after, after, before_ns)
    return replace(
        predicted,
        low_ns=max(min(predicted.low_ns, low), 0.0),
        high_ns=max(predicted.high_ns, min(high, before_ns)),
    )


def _with_setting(case: Case, setting: Edit, replays: _Replays) -> tuple[Predicted, bool]:
    """The time of as many samples with a setting; and whether only repaired findings let it gain.

    Where the host limits the step, a setting that gives each launch more work gains more today
    than once the launches cost nothing.
    """
    step, a_sample = case.step_ns, 1 / setting.samples(1)
    alone = replays.replay.predict([setting])
    now = step - alone.step_ns * a_sample
    before, found, after = step, alone, False
    if replays.repairs:
        repaired = replays.replay.predict([*replays.repairs, setting])
        after = replays.repaired_ns - repaired.step_ns * a_sample > now + noise_ns(case)
        before, found = (replays.repaired_ns, repaired) if after else (step, alone)
    chosen = max(before - found.step_ns * a_sample, 0.0)
    greatest = min(max(before - found.low_ns * a_sample, chosen), before)
    least = max(min(before - found.high_ns * a_sample, chosen), 0.0)
    error = replays.replay.replay_error
    return Predicted(step - chosen, step - greatest, step - least, error), after


def with_lengths(
    found: Found, kernels: Kernels, rows: IntArray, lengths: Callable[[Bound], AnyArray]
) -> Found:
    """The same with the kernels that a setting shortens.

    Args:
        found: what was found without the replay.
        kernels: the device's kernels.
        rows: those that are looked at.
        lengths: what each of these takes with the setting at a bound, ns.
    """
    old = kernels.duration_ns[rows]
    low, usual, high = (lengths(bound) for bound in _BOUNDS)
    less = usual < old
    ends = float(low[less].sum()), float(high[less].sum())
    return replace(found, repair=changed(rows[less], old[less], usual[less], *ends))


def _part(mask: BoolArray) -> Part:
    return "all" if mask.all() else "some"


def lever_table(found: Sequence[Pulled]) -> pa.Table:
    """The ``kernel_lever`` table: what the levers of a job change."""
    import pyarrow as pa

    kinds = {"lever": pa.string()}
    parts = [pa.schema([(n, kinds.get(n, pa.int64())) for n in TABLE_COLUMNS]).empty_table()]
    for item in found:
        gpu, rows = item.case.explanation.gpu, item.found.repair.rows
        n = len(rows)
        columns = {
            "rank": np.full(n, item.case.rank, np.int64),
            "process_id": np.full(n, gpu.process_id, np.int64),
            "device": np.full(n, gpu.device, np.int64),
            "gpu_op_id": gpu.ops["id"][rows],
            "start_ns": gpu.ops["start_ns"][rows],
            "end_ns": gpu.ops["end_ns"][rows],
            "lever": pa.array([item.lever.id] * n, pa.string()),
            "changed_ns": item.found.repair.new_ns,
            "own_ns": item.own_ns,
            "saved_ns": item.saved_ns,
        }
        parts.append(pa.table(columns).cast(parts[0].schema))
    return pa.concat_tables(parts)


def lever_rows(lever: str) -> str:
    """``FROM`` and ``WHERE`` of the operations of a lever."""
    return f"FROM kernel_lever WHERE lever = '{lever}' AND {{gpu}}"


def of_lever(lever: str) -> str:
    """A condition on ``gpu_op_id``: the operations of a lever."""
    return f"gpu_op_id IN (SELECT gpu_op_id {lever_rows(lever)})"


def lever_finding(item: Pulled, compute: Compute) -> Finding:
    """A lever as findings are told: the same fields, each with its evidence."""
    lever, case, found = item.lever, item.case, item.found
    rows = lever_rows(lever.id)
    # as of findings: a gain that is a quarter more is the cost; launches that go are in no kernel.
    # Of a recorded step the gain is told in proportion, and is more by what recording costs.
    parts = (
        f"({STEP_SQL.replace('::BIGINT FROM', '::BIGINT AS step, count(*) AS steps FROM')}), "
        "(SELECT predicted_step_ns AS after, unrecorded_before_ns - unrecorded_step_ns AS own "
        f"FROM prediction WHERE cause = '{lever.id}' AND {{gpu}}), "
        f"(SELECT sum(saved_ns) AS sum_ns {rows})"
    )
    time = (
        "CASE WHEN coalesce(own, gain) > 1.25 * saved OR gain > 1.25 * saved + 0.01 * step "
        "THEN gain ELSE saved END"
    )
    of_parts = (
        f"FROM (SELECT step, step - after AS gain, own, round(sum_ns / steps)::BIGINT AS saved "
        f"FROM {parts})"
    )
    figures = [
        Figure("kernels_per_step", "per_step", f"SELECT count(*)::DOUBLE / {STEADY_STEPS} {rows}"),
        Figure(
            "kernels_ns_per_step",
            "ns_per_step",
            f"SELECT round(sum(own_ns) / {STEADY_STEPS})::BIGINT {rows}",
        ),
        Figure(
            "changed_ns_per_step",
            "ns_per_step",
            f"SELECT round(sum(own_ns - saved_ns) / {STEADY_STEPS})::BIGINT {rows}",
        ),
        *found.figures,
        Figure("step_ns", "ns", STEP_SQL),
        Figure("time_ns_per_step", "ns", f"SELECT {time} {of_parts}"),
        Figure("share_of_step", "share", f"SELECT round(({time}) / step, 4) {of_parts}"),
        Figure("predicted_step_ns", "ns", predicted_sql("predicted_step_ns", lever.id)),
        Figure("prediction_low_ns", "ns", predicted_sql("low_ns", lever.id)),
        Figure("prediction_high_ns", "ns", predicted_sql("high_ns", lever.id)),
    ]
    if lever.replayed is not None and item.predicted.replay_error is not None:
        beside = f"SELECT gain - saved {of_parts}"
        figures.append(Figure("beside_kernels_ns_per_step", "ns_per_step", beside))
    evidence = all_evaluated(figures, case, compute)
    value = {one.figure: one.value for one in evidence}
    kind = case.explanation.steps.kind
    message = filled(by_step(found.message + _beside(value), kind), evidence, found.texts)
    titles = {cause: causes()[cause].title for cause in item.holds}
    for cause, part in item.holds.items():
        gain = "the gain" if part == "all" else "some of the gain"
        message += f"; {gain} of the finding '{titles[cause]}' lies in this one"
    if item.after:
        message += "; that shortens the step once what is found above is repaired"
    weight = None if lever.replayed is None else np.maximum(item.saved_ns, 0)
    place = case.explanation.kernels.attribution.heaviest(found.repair.rows, weight)
    return Finding(
        cause=lever.id,
        severity=severity_of(item.gain_ns / case.step_ns),
        share_of_step=value["share_of_step"],
        time_ns_per_step=int(value["time_ns_per_step"]),
        predicted_step_ns=int(value["predicted_step_ns"]),
        prediction_low_ns=int(value["prediction_low_ns"]),
        prediction_high_ns=int(value["prediction_high_ns"]),
        ranks=[case.rank],
        where=located(place),
        message=f"{lever.title}: {message}",
        reason=message,
        recommendations=vendors.advice(found.recommendations, case),
        next_capture=vendors.next_capture(frameworks.for_program(found.next_capture, case), case),
        root_cause=None,
        replay_error=item.predicted.replay_error,
        names=sorted([*(text.strip("'\"") for text in found.texts.values()), *titles.values()]),
        evidence=evidence,
        at_least=found.at_least,
        includes_gain_of=item.holds,
        after_findings=item.after,
    )


def _beside(value: Mapping[str, float]) -> str:
    """What of the gain lies outside of the kernels; empty where next to nothing does."""
    beside = value.get("beside_kernels_ns_per_step", 0.0)
    gain = value["step_ns"] - value["predicted_step_ns"]
    if abs(beside) < _NEGLIGIBLE * gain:
        return ""
    if beside > 0:
        return "; {beside_kernels_ns_per_step} of the gain is in launches, copies and idle time"
    return "; as the GPU does not set the pace all the time, the step gains less"
