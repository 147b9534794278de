"""Which causes a job has, in the order of what fixing them gains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stepscope.diagnosis.cause import Case, Cause, Detection, causes, of_job
from stepscope.diagnosis.predictions import Predicted, arithmetic
from stepscope.diagnosis.result import Severity

INSUFFICIENT = "insufficient_data"

_FOLD_BELOW_FIRST = 0.2
_FOLD_BELOW_SHARE = 0.08
HIGH, _MEDIUM = 0.20, 0.08
"""Shares of the step from which on a gain is severe so much."""
WORTH = 0.01
"""A repair that gains less than this share of the step gains nothing that could be measured."""
_MUCH = 0.2
_SMALL_PART, _MORE = 0.5, 1.25
"""What gains less than the one part, or more than the other, of what it costs (the time that was
seen to pass in it) counts by its gain: a straggler repaired also frees what its lateness kept from
overlapping."""
_NO_REPAIR = 1 / 3
"""Part that counts of a gain that is possible, but not by which repair: another cause's repair goes
first unless three times as much may be gained."""

Predict = Callable[[Case, str, Detection], "Predicted | None"]
"""(case, cause id, detection) -> what the step takes without it; None where it cannot say."""


def severity_of(share: float) -> Severity:
    """How severe it is that a repair gains a share of the step."""
    if share >= HIGH:
        return "high"
    return "medium" if share >= _MEDIUM else "low"


@dataclass(frozen=True)
class Ranked:
    """One root cause.

    Attributes:
        cause: the cause.
        case: the device on which it takes most.
        detection: what was seen there.
        ranks: ranks that show it.
        predicted: the step without it.
    """

    cause: Cause
    case: Case
    detection: Detection
    ranks: list[int]
    predicted: Predicted

    @property
    def own_share(self) -> float:
        """What the cause takes of the step that nobody records; of the recorded one if unknown."""
        before = self.predicted.unrecorded[0] if self.predicted.unrecorded is not None else 0.0
        return self.detection.time_ns / (before or self.case.job_step_ns)

    @property
    def clears_its_share(self) -> bool:
        """Whether it is told: its time is enough of the recorded step, or else its gain of the own.

        Recording makes the time longer that passes in a cause, too. What is enough only beside a
        step without recording must therefore gain as much where the replay leaves recording out.
        """
        if _is_enough_as_recorded(self.cause, self.case, self.detection):
            return True
        before = self.case.job_step_ns
        if self.predicted.unrecorded is not None:
            before = self.predicted.unrecorded[0]
        return self.own_gain_ns >= self.cause.min_share * before

    @property
    def gain_ns(self) -> float:
        """Predicted gain, ns per step of the job."""
        return self.case.job_step_ns - self.predicted.step_ns

    @property
    def gains(self) -> bool:
        """Whether its repair alone gains anything, here or in the program that is not recorded.

        Time that passes beside something else that takes as long is no finding of its own.
        """
        best = self.gain_ns
        if self.predicted.unrecorded is not None:
            before, after = self.predicted.unrecorded
            best = max(best, before - after)
        return self.cause.id == INSUFFICIENT or best >= WORTH * self.case.job_step_ns

    @property
    def keeps_device_waiting(self) -> bool:
        """Whether the device waits or copies in it for much of the step, whatever is gained."""
        outside = self.detection.repair is None and self.cause.of_program
        return outside and self.detection.time_ns >= _MUCH * self.case.own_step_ns

    @property
    def own_gain_ns(self) -> float:
        """Predicted gain of the program that nobody records, ns per step.

        The time that passes in a cause is the program's own; what recording takes is no part of it.
        """
        if self.predicted.unrecorded is None:
            return self.gain_ns
        before, after = self.predicted.unrecorded
        return before - after

    @property
    def is_partial(self) -> bool:
        """Whether its repair alone gains less than half of the time that it takes."""
        known = self.cause.id != INSUFFICIENT
        return known and self.own_gain_ns < _SMALL_PART * self.detection.time_ns

    @property
    def recording_hides_gain(self) -> bool:
        """Whether the step falls by far more than the cause takes, for recording is part of it."""
        recorded = self.predicted.unrecorded is not None
        most = _MORE * self.detection.time_ns
        return recorded and self.own_gain_ns <= most < self.gain_ns

    @property
    def counts_by_its_gain(self) -> bool:
        """Whether it is told with what its repair recovers beside what it costs."""
        more = self.gain_ns > _MORE * self.detection.time_ns
        return self.is_partial or (more and self.cause.id != INSUFFICIENT)

    @property
    def sure_gain_ns(self) -> float:
        """Predicted gain of the program itself, ns per step.

        What the capturing tool may have made is none. Where the host is then the limit because it
        is being recorded, the gain of the program that is not recorded counts. Of a cause that
        names no repair a part counts.
        """
        gain, time = self.gain_ns, self.detection.time_ns
        if self.predicted.unrecorded is not None:
            own = self.own_gain_ns
            # what it gains beyond its own time is time of other causes, with what recording costs
            gain = own if gain > _MORE * time else max(gain, own)
        if self.cause.names_no_repair:
            gain *= _NO_REPAIR
        return gain * (1 - min(self.detection.overhead_ns / time, 1.0)) if time else 0.0


def ranked(cases: list[Case], predict: Predict | None = None) -> list[Ranked]:
    """Root causes, the largest predicted gain first.

    What the capturing tool may have made itself is no gain here.

    Args:
        cases: one a device.
        predict: the simulator; arithmetic on the capture where there is none.
    """
    seen = _detections(cases)
    if INSUFFICIENT in seen:
        seen = {INSUFFICIENT: seen[INSUFFICIENT]}
    found = [_ranked(causes()[cause], pairs, predict) for cause, pairs in seen.items()]
    found = [item for item in found if item.clears_its_share]
    found.sort(key=order, reverse=True)
    first = found[:1]
    # what is small beside the first cause is its side effect
    return first + [
        item
        for item in found[1:]
        if item.own_share >= _FOLD_BELOW_SHARE
        or item.detection.time_ns >= _FOLD_BELOW_FIRST * first[0].detection.time_ns
    ]


def reported(found: list[Ranked]) -> list[Ranked]:
    """Those that are told as findings.

    Where no repair of the program alone gains anything, what keeps the device waiting for long is
    told; that less could be recorded does not change that.
    """
    waiting = [item for item in found if item.keeps_device_waiting][:1]
    repaired = any(item.gains for item in found if item.cause.of_program)
    return [item for item in found if item.gains or (item in waiting and not repaired)]


def order(item: Ranked) -> tuple[bool, float, float, float]:
    """What causes are ordered by, the largest first."""
    # the program's own causes come before what its recording costs, as long as their repair gains
    # what a cause is reported from
    least = item.cause.min_share * item.case.job_step_ns
    own = item.cause.of_program and max(item.gain_ns, item.own_gain_ns) >= least
    return own, item.sure_gain_ns, item.gain_ns, item.detection.time_ns


def _detections(cases: list[Case]) -> dict[str, list[tuple[Case, Detection]]]:
    """What every cause sees on every device, without the symptoms of others."""
    seen: list[tuple[str, Case, Detection]] = []
    for case in cases:
        for cause in causes().values():
            detection = cause.detect(case)
            if detection and detection.time_ns >= cause.least_ns(case):
                seen.append((cause.id, case, detection))
    symptoms = {
        item
        for cause_id, case, detection in seen
        if _is_enough_as_recorded(causes()[cause_id], case, detection)
        for item in detection.absorbs
    }
    kept: dict[str, list[tuple[Case, Detection]]] = {}
    for cause_id, case, detection in seen:
        if (cause_id, case.rank) not in symptoms:
            kept.setdefault(cause_id, []).append((case, detection))
    return kept


def _is_enough_as_recorded(cause: Cause, case: Case, detection: Detection) -> bool:
    """Whether a cause takes the share of the recorded step that it is told from."""
    return detection.time_ns >= cause.min_share * case.step_ns


def _ranked(cause: Cause, pairs: list[tuple[Case, Detection]], predict: Predict | None) -> Ranked:
    case, detection = of_job(pairs)
    ranks = sorted({c.rank for c, _ in pairs})
    if cause.id == INSUFFICIENT:
        unknown = Predicted(case.job_step_ns, case.job_step_ns, case.job_step_ns)
        return Ranked(cause, case, detection, ranks, unknown)
    predicted = predict(case, cause.id, detection) if predict else None
    if predicted is None:
        failed = predict is not None
        predicted = replace(arithmetic(case, cause.id, detection), replay_failed=failed)
    return Ranked(cause, case, detection, ranks, predicted)
