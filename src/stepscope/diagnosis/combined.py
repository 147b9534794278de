"""The step once the first two findings are repaired together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, hypot, log

from stepscope.diagnosis.inside_kernels import repair_changes
from stepscope.diagnosis.predictions import Predicted
from stepscope.diagnosis.ranking import INSUFFICIENT, Ranked
from stepscope.gaps.idle import CAUSES
from stepscope.simulation import Change, Free, Prediction
from stepscope.trace.errors import UsageError


@dataclass(frozen=True)
class Both:
    """Two findings repaired together.

    Attributes:
        items: the two.
        predicted: the step without both.
        replayed: whether both were replayed together.
    """

    items: tuple[Ranked, Ranked]
    predicted: Predicted
    replayed: bool

    @property
    def id(self) -> str:
        """What stands for both in the ``prediction`` table: their ids, joined by ``+``."""
        return "+".join(item.cause.id for item in self.items)


def both(found: Sequence[Ranked], predict: Callable[[list[Change]], Prediction]) -> Both | None:
    """The first two findings repaired together; None where there are fewer.

    What is replayed together shares its limits: two causes of the same wait gain it once. Where
    one of them is arithmetic, each keeps its share of what the other leaves.

    Args:
        found: the findings, ranked.
        predict: the simulator.
    """
    if len(found) < 2 or any(item.cause.id == INSUFFICIENT for item in found[:2]):
        return None
    first, second = found[0], found[1]
    before = first.case.job_step_ns
    singles = [item.predicted.step_ns for item in (first, second)]
    replay = _replay(first, second, predict)
    if replay is None:
        step = singles[0] * singles[1] / before
        low, high = step, step
    else:
        added = sum(item.detection.added_ns for item in (first, second))
        step, low, high = (ns + added for ns in (replay.step_ns, replay.low_ns, replay.high_ns))
    # input is not brought faster than it can be, and one repair more is never slower
    for item in (first, second):
        if item.detection.supply_ns is not None:
            step = max(step, min(item.detection.supply_ns[0], before))
    step = min(step, *singles, *_unrecorded(first, second))
    # the two ranges are independent, so the squares of their widths add, as ratios
    least, most = (
        exp(hypot(*(_apart(item.predicted, end) for item in (first, second))))
        for end in ("low_ns", "high_ns")
    )
    low, high = min(low, step / least), min(max(high, step * most), before)
    error = replay.replay_error if replay is not None else None
    return Both((first, second), Predicted(step, low, high, error), replay is not None)


def _unrecorded(first: Ranked, second: Ranked) -> list[float]:
    """The step with one repaired and nothing recorded, which is what both are where one is that."""
    pairs = ((first, second), (second, first))
    return [
        other.predicted.unrecorded[1]
        for one, other in pairs
        if one.cause.id == "profiler_overhead" and other.predicted.unrecorded is not None
    ]


def _apart(predicted: Predicted, end: str) -> float:
    """How far an end of a range is from the prediction: the logarithm of their ratio."""
    return log(max(getattr(predicted, end), 1.0) / max(predicted.step_ns, 1.0))


def _replay(
    first: Ranked, second: Ranked, predict: Callable[[list[Change]], Prediction]
) -> Prediction | None:
    changes = [_changes(item) for item in (first, second)]
    if not all(changes):
        return None
    try:
        return predict([change for several in changes for change in several])
    except UsageError:
        return None  # the two repairs change the same operations in ways that cannot be joined


def _changes(item: Ranked) -> list[Change]:
    """The repair that is predicted, as the simulator replays it; nothing where it was not."""
    detection = item.detection
    if item.predicted.replay_error is None:
        return []
    further = detection.further if item.predicted.by_further else None
    if further is not None and further.change is not None:
        return [further.change, *detection.also]
    if further is not None or detection.repair is not None:
        return repair_changes(item.case, item.cause.id, "expected", further=further is not None)
    change = detection.change
    if change is None and item.cause.id in CAUSES:
        change = Free(item.cause.id)
    return [change, *detection.also] if change is not None else []
