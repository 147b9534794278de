"""What the step takes once a cause is gone, and the SQL table of these predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.breakdown.recurrence import Recurrence, of_idle_time
from stepscope.breakdown.repaired import widened
from stepscope.diagnosis.cause import Case, Detection
from stepscope.diagnosis.inside_kernels import repair_changes
from stepscope.gaps.idle import CAUSES
from stepscope.gaps.migrations import MIGRATION
from stepscope.kernels.findings import further_id
from stepscope.simulation import (
    Change,
    DeviceLike,
    EvenWork,
    Free,
    Prediction,
    RankLike,
    Simulation,
)
from stepscope.simulation.pace import BETWEEN_WORK, OWN_WORK

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = {
    "rank": "rank",
    "process_id": "operating-system process id",
    "device": "CUDA device ordinal inside the process",
    "cause": "public id of the cause or lever; of the first two causes together, joined by +; of a "
    "cause's further repair, CAUSE.further",
    "time_ns": "what the cause takes, or what the lever saves in the kernels, ns per step",
    "step_ns": "mean steady step, of a job that of the device with the longest one, ns",
    "predicted_step_ns": "mean step once the cause is gone, or with the lever, ns",
    "low_ns": "lower bound of the prediction, ns",
    "high_ns": "upper bound of the prediction, ns",
    "unrecorded_before_ns": "mean step without the estimated cost of recording, ns; null where "
    "recording has none, or it was not replayed",
    "unrecorded_step_ns": "the same once the cause is gone, or with the lever, ns; "
    "predicted_step_ns is to step_ns what this is to unrecorded_before_ns",
    "replay_error": "how far the replay of the unchanged step is from the measured one, as a "
    "share; null where the prediction is arithmetic",
}
DOC: Final = "One finding or lever of the diagnosis: what it takes, and the step after the change."


@dataclass(frozen=True)
class Predicted:
    """The mean step once a cause is gone; of a job that of the device with the longest one.

    ``step_ns`` compares with the captured step: it is to that what the step of the program that
    nobody records will be to its step today. Where recording slows the host, a capture of the
    repaired program would show more.

    Attributes:
        step_ns: the prediction, ns.
        low_ns: its lower bound, ns.
        high_ns: its upper bound, ns.
        replay_error: error of the replay that it comes from, as a share; None for arithmetic.
        unrecorded: (without the estimated cost of recording, without that and the cause), ns; None
            where recording has no cost, or it was not replayed.
        replay_failed: whether it is arithmetic because the replay misses the measured step.
        further: the prediction for ``Detection.further``; None where it is not told.
        by_further: whether this itself is that, since the first repair gains little beside it;
            ``further`` is then for the first one.
    """

    step_ns: float
    low_ns: float
    high_ns: float
    replay_error: float | None = None
    unrecorded: tuple[float, float] | None = None
    replay_failed: bool = False
    further: Predicted | None = None
    by_further: bool = False


LARGEST_REPLAY_ERROR: Final = 0.1
"""A replay that misses the measured step by more does not describe the run: predictions are then
arithmetic on the capture."""


WORTH_TELLING: Final = 0.01
"""A further repair that gains less of the step than this beyond the first one is not told, nor one
that is chosen for other reasons, too, and loses less than this against it."""


LITTLE: Final = 0.5
"""A repair that gains less than this part of what a further one gains is not named first."""


def simulated(
    simulation: Simulation, case: Case, cause_id: str, detection: Detection
) -> Predicted | None:
    """The step as the simulator replays it without the cause; None where it cannot say.

    Ranks whose collectives do not match wait for nobody in the replay: what a late one costs them
    is then arithmetic. So is what keeps the device waiting for pages of managed memory, which no
    call of the replay moves.
    """
    if detection.repair is not None and abs(simulation.replay_error) <= LARGEST_REPLAY_ERROR:
        found = _with_kernels_repaired(simulation, case, cause_id)
        return _with_further(simulation, case, cause_id, detection, found)
    change = detection.change
    if change is None and cause_id in CAUSES:
        change = Free(cause_id)
    if abs(simulation.replay_error) > LARGEST_REPLAY_ERROR:
        return None
    unmatched = isinstance(change, RankLike | DeviceLike | EvenWork) and not simulation.meets
    if unmatched or _ends_at_pages(case, cause_id):
        return arithmetic(case, cause_id, detection, simulation.recording_ns)
    comes_back = detection.rare is not None and detection.rare != Recurrence()
    if change is None or not (comes_back or _typical(simulation)):
        hidden = cause_id == "input_starvation" and simulation.paced_by_workers
        return arithmetic(case, cause_id, detection, simulation.recording_ns, hidden=hidden)
    found = _replayed(simulation, case, cause_id, detection, change)
    return _with_further(simulation, case, cause_id, detection, found)


def _with_kernels_repaired(
    simulation: Simulation, case: Case, cause_id: str, *, further: bool = False
) -> Predicted:
    """The step as it is replayed with other kernels."""
    middle, *ends = (
        simulation.predict(repair_changes(case, cause_id, bound, further=further))
        for bound in ("expected", "low", "high")
    )
    return Predicted(
        middle.step_ns,
        min(p.low_ns for p in (middle, *ends)),
        min(max(p.high_ns for p in (middle, *ends)), case.job_step_ns),
        middle.replay_error,
        middle.unrecorded,
    )


def _ends_at_pages(case: Case, cause_id: str) -> bool:
    """Whether most of a cause's idle time ends at pages of managed memory that move."""
    if cause_id not in CAUSES:
        return False
    e = case.explanation
    rows = np.flatnonzero(e.segments_of(cause_id))
    segments, gpu = e.gaps.segments, e.gpu
    length, op = (segments["end_ns"] - segments["start_ns"])[rows], segments["op"][rows]
    moved = gpu.ops.matches("copy_kind", MIGRATION) & (gpu.call < 0)
    at_pages = (op >= 0) & moved[np.maximum(op, 0)]
    return bool(2 * int(length[at_pages].sum()) > int(length.sum()))


def _with_further(
    simulation: Simulation, case: Case, cause_id: str, detection: Detection, found: Predicted
) -> Predicted:
    """The prediction for the first repair with that for a further one beside, or instead of it.

    Unchanged where there is no further one.
    """
    if detection.further is None:
        return found
    change = detection.further.change
    if change is None:
        more = _with_kernels_repaired(simulation, case, cause_id, further=True)
    else:
        more = _replayed(simulation, case, cause_id, detection, change)
    worth_telling = found.step_ns - more.step_ns >= WORTH_TELLING * case.job_step_ns
    if detection.further.chosen_anyway and more.step_ns < case.job_step_ns:
        worth_telling |= more.step_ns - found.step_ns >= WORTH_TELLING * case.job_step_ns
    if not worth_telling:
        return found
    if case.job_step_ns - found.step_ns < LITTLE * (case.job_step_ns - more.step_ns):
        gains = case.job_step_ns - found.step_ns >= WORTH_TELLING * case.job_step_ns
        return replace(more, by_further=True, further=found if gains else None)
    return replace(found, low_ns=min(found.low_ns, more.step_ns), further=more)


def _replayed(
    simulation: Simulation, case: Case, cause_id: str, detection: Detection, change: Change
) -> Predicted:
    """The step as it is replayed with one repair of a cause."""
    found = simulation.predict([change, *detection.also])
    if _rare(case, cause_id, detection) != Recurrence():
        found = _without_rare_steps(found, simulation)
    before = case.job_step_ns if found.unrecorded is None else float(found.unrecorded[0])
    # additions and limits are those of the program itself, recorded or not
    scale = case.job_step_ns / before if before else 1.0
    added = detection.added_ns * scale
    step = float(found.step_ns + added)
    low = found.low_ns + added
    if detection.max_gain_ns is not None:
        most = (before - detection.max_gain_ns) * scale
        step, low = max(step, most), max(low, most - detection.uncertain_ns * scale)
    other = detection.alternative
    reach = [step] if other is None else [step, float(simulation.predict([other]).step_ns)]
    low = min(low, *reach)
    high = max(found.high_ns + added, *reach)
    # another form of the repair, independent of how sure the rest is
    high = step + math.hypot(high - step, detection.may_leave * max(case.job_step_ns - step, 0.0))
    apart = None if found.unrecorded is None else (before, step / scale)
    return _limited(
        Predicted(step, low, high, found.replay_error, apart), case, cause_id, detection
    )


def _limited(predicted: Predicted, case: Case, cause_id: str, detection: Detection) -> Predicted:
    """The same within what the capture says beside the replay: the input's pace, and chance."""
    step = min(predicted.step_ns, case.job_step_ns)
    rare = _rare(case, cause_id, detection)
    work = BETWEEN_WORK * min(detection.work_ns / max(detection.time_ns, 1.0), 1.0)
    apart = math.hypot(rare.chance, detection.chance, work)
    more = math.hypot(apart, _longer_unrecorded(case, cause_id, detection))
    low, middle, high = (
        _with_so_many(step, case.job_step_ns, rare.times * part)
        for part in (1 + more, 1.0, max(1 - apart, 0.0))
    )
    ends = (
        _with_so_many(end, case.job_step_ns, rare.times)
        for end in (
            min(predicted.low_ns, step),
            min(max(predicted.high_ns, step), case.job_step_ns),
        )
    )
    below, above = (end - middle for end in ends)
    unrecorded = predicted.unrecorded
    if unrecorded is not None and rare.times != 1.0:
        before, after = unrecorded
        unrecorded = after + max(before - after, 0.0) * rare.times, after
    by_chance = replace(
        predicted,
        step_ns=middle,
        # both are independent of each other
        low_ns=middle - math.hypot(below, middle - low),
        high_ns=min(middle + math.hypot(above, high - middle), case.job_step_ns),
        unrecorded=unrecorded,
    )
    return _supplied(by_chance, case, detection)


def _longer_unrecorded(case: Case, cause_id: str, detection: Detection) -> float:
    """How much more of a cause unrecorded steps may hold than recorded ones do, as a share.

    Steps of the run that were not recorded may have taken longer than those that were, by more than
    these vary. Recording makes no step shorter, and the device takes what it takes: the host's own
    work took longer, though not necessarily what is repaired. So it counts to one side only.
    """
    measured = case.explanation.measured
    if measured is None or cause_id not in OWN_WORK:
        return 0.0
    return max(-measured.high_ns, 0.0) / max(detection.time_ns, 1.0)


def _rare(case: Case, cause_id: str, detection: Detection) -> Recurrence:
    """How often what is repaired comes back, where few steps hold it."""
    if detection.rare is not None:
        return detection.rare
    if detection.repair is not None or cause_id not in CAUSES:
        return Recurrence()
    return of_idle_time(case.explanation, cause_id)


def _with_so_many(after: float, before: float, times: float) -> float:
    """The step to come where the mean step of the run holds so many times what is repaired."""
    gain = max(before - after, 0.0)
    return before * after / max(after + gain * times, 1.0)


def _supplied(predicted: Predicted, case: Case, detection: Detection) -> Predicted:
    """The same, but not quicker than input can be brought, nor slower than the step is today."""
    if detection.supply_ns is None:
        return predicted
    bring, least, most = (min(ns, case.job_step_ns) for ns in detection.supply_ns)
    step = max(predicted.step_ns, bring)
    apart = predicted.unrecorded
    return replace(
        predicted,
        step_ns=step,
        low_ns=min(max(predicted.low_ns, least), step),
        high_ns=max(predicted.high_ns, most),
        unrecorded=apart and (apart[0], apart[0] * step / case.job_step_ns),
    )


def _without_rare_steps(found: Prediction, simulation: Simulation) -> Prediction:
    """What few steps hold more or less of in the replayed ones than in all is gone from both.

    The mean step differs by it before, and no longer does afterwards. It takes as long where
    nothing is recorded: the host does one thing over and over, or waits.
    """
    measured, replayed = simulation.measured_step_ns, _replayed_ns(simulation)
    apart = found.unrecorded
    before, after = apart or (round(replayed), 0)
    today = max(before + measured - replayed, float(after), 1.0)
    share = before / today
    return replace(
        found,
        step_ns=round(found.step_ns * share),
        low_ns=round(found.low_ns * min(share, 1.0)),
        high_ns=round(found.high_ns * max(share, 1.0)),
        unrecorded=apart and (round(today), after),
    )


def _replayed_ns(simulation: Simulation) -> float:
    """The measured mean of the replayed steps, ns."""
    return max(run.measured_ns / run.steps for run in simulation.runs)


def _typical(simulation: Simulation) -> bool:
    """Whether the replayed steps are as long as the steady ones on average.

    A replay leaves a last step out whose end nothing marks. Where that one waited far longer than
    the others (a loader that falls behind now and then), the rest says nothing about the wait.
    """
    share = _replayed_ns(simulation) / max(simulation.measured_step_ns, 1)
    return simulation.sets_outliers_aside or abs(share - 1) <= LARGEST_REPLAY_ERROR


def arithmetic(
    case: Case,
    cause_id: str,
    detection: Detection,
    recording_ns: float = 0.0,
    *,
    hidden: bool = False,
) -> Predicted:
    """The step less the cause's time, but not less than what the device executes anyway.

    A job gains what the device does, where ranks wait for each other. Its step is the longest of
    those of its devices, which may begin and end at moments of their own.

    Args:
        case: the device.
        cause_id: the cause.
        detection: what was seen of it.
        recording_ns: what recording costs of the step, ns; the cause has a part in it where it
            launches (``Detection.launching_ns``).
        hidden: whether the cause's time hides that: a wait for workers that is as much longer where
            nothing is recorded.
    """
    step = case.job_step_ns
    before = max(step - recording_ns, 1.0)
    time = detection.time_ns - recording_ns * detection.launching_ns / step
    if hidden:
        before, time = before + recording_ns, time + recording_ns
    if detection.floor_ns is not None:
        floor = detection.floor_ns
    else:  # a repair inside the kernels changes what the device executes
        floor = 0.0 if detection.repair else _floor(case, cause_id)
    floor = min(_of_job(case, floor), before)
    least = detection.least_floor_ns
    least = floor if least is None else _of_job(case, least)
    after = max(floor, before - time) + detection.added_ns
    low = max(least, before - time - detection.uncertain_ns)
    high = min(before, before - detection.direct_ns + detection.added_ns)
    # two runs of one program differ, and the repair changes more than what is repaired
    low, high = widened(after, low, high, before)
    scale = step / before
    apart = (before, after) if recording_ns else None
    found = Predicted(after * scale, low * scale, min(high * scale, step), None, apart)
    return _limited(found, case, cause_id, detection)


def _of_job(case: Case, floor_ns: float) -> float:
    """What the job's step takes at least where that of a device takes so much, ns."""
    others = [other.step_ns for other in case.job.cases if other is not case]
    if case.job.view.collectives is None:  # nobody waits for the others
        return max([floor_ns, *others])
    return floor_ns + case.job_step_ns - case.step_ns


def _floor(case: Case, cause_id: str) -> float:
    """What the device executes in a step whatever the host does, ns."""
    e = case.explanation
    names = ["compute_ns", "exposed_communication_ns", "memset_ns"]
    if cause_id != "blocking_copy":
        names.append("exposed_copy_ns")
    total = sum(e.steady_total(name) for name in names)
    if cause_id == "checkpoint_stall":  # its copies go with it
        total -= int(e.stalls.copy_ns.sum())
    if cause_id == "cpu_offload":
        total -= int(e.offload.copy_ns.sum())
    return total / e.n_steady


def prediction_table(rows: Sequence[tuple[Case, str, float, Predicted]]) -> pa.Table:
    """The ``prediction`` table of (case, id of the cause or lever, time in ns, prediction).

    The further repairs that are told beside the first ones follow all of these.
    """
    import pyarrow as pa

    further = [
        (case, further_id(cause), time_ns, predicted.further)
        for case, cause, time_ns, predicted in rows
        if predicted.further is not None
    ]

    schema = pa.schema(
        [
            ("rank", pa.int64()),
            ("process_id", pa.int64()),
            ("device", pa.int64()),
            ("cause", pa.string()),
            ("time_ns", pa.int64()),
            ("step_ns", pa.int64()),
            ("predicted_step_ns", pa.int64()),
            ("low_ns", pa.int64()),
            ("high_ns", pa.int64()),
            ("unrecorded_before_ns", pa.int64()),
            ("unrecorded_step_ns", pa.int64()),
            ("replay_error", pa.float64()),
        ]
    )
    found = [
        {
            "rank": case.rank,
            "process_id": case.explanation.gpu.process_id,
            "device": case.explanation.gpu.device,
            "cause": cause,
            "time_ns": round(time_ns),
            "step_ns": round(case.job_step_ns),
            "predicted_step_ns": round(predicted.step_ns),
            "low_ns": round(predicted.low_ns),
            "high_ns": round(predicted.high_ns),
            "unrecorded_before_ns": predicted.unrecorded and round(predicted.unrecorded[0]),
            "unrecorded_step_ns": predicted.unrecorded and round(predicted.unrecorded[1]),
            "replay_error": predicted.replay_error,
        }
        for case, cause, time_ns, predicted in [*rows, *further]
    ]
    return pa.Table.from_pylist(found, schema)
