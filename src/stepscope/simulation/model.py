"""The simulator: what a job's steady step takes after some changes, and within what range."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity.device import Reader
from stepscope.breakdown.explain import Explanation
from stepscope.breakdown.repaired import RUN_TO_RUN, UNFORESEEN, uncertain_share
from stepscope.native.library import cores
from stepscope.simulation import changes as edit
from stepscope.simulation import graphs, pace
from stepscope.simulation.applying import is_uncertain
from stepscope.simulation.changes import Bound, Change
from stepscope.simulation.engine import steps_of
from stepscope.simulation.program import C, slowest_ns
from stepscope.simulation.ranks import Matched
from stepscope.simulation.replayed_job import ReplayedJob, step_ns
from stepscope.simulation.settings.base import Edit
from stepscope.simulation.subject import Subject

_MOST_AT_ONCE: Final = 8_000_000
"""Items of all predictions that are made at the same time."""

_WORTH_THREADS: Final = 20_000
"""Items from which on a thread for a prediction pays."""

LEAST_GAIN: Final = 0.01
"""Changes that gain less leave the step as it was measured, so that the host's pace is known."""

ENDS: Final[tuple[Bound, Bound]] = ("low", "high")


@dataclass(frozen=True)
class Prediction:
    """The step after some changes.

    Attributes:
        step_ns: predicted mean steady step of the slowest rank, ns.
        low_ns: the same where every stated uncertainty makes it short.
        high_ns: the same where every one makes it long.
        replay_error: how far the unchanged replay is from the measured step, relative.
        message: what was assumed, in sentences.
        unrecorded: the step before and after where the estimated cost of recording is gone, ns;
            None where there is none.
    """

    step_ns: int
    low_ns: int
    high_ns: int
    replay_error: float
    message: str
    unrecorded: tuple[int, int] | None = None


class Simulation(ReplayedJob):
    """A job whose step is predicted with changes, by its replay.

    Args:
        devices: (rank, explanation) of every device.
        read_of: rank -> reader of that rank's tables; a mapping or a function.
        collectives: collectives matched across ranks; None where they are not.
    """

    def __init__(
        self,
        devices: Sequence[tuple[int, Explanation]],
        read_of: Mapping[int, Reader] | Callable[[int], Reader],
        collectives: Matched | None = None,
    ) -> None:
        super().__init__(devices, read_of, collectives)
        self._before: dict[tuple[Bound | None, Bound], float] = {}
        self._predictions: dict[tuple[Change, ...], Prediction] = {}

    def predict_many(self, several: Sequence[Sequence[Change]]) -> list[Prediction]:
        """The steps after several changes, each by itself, side by side.

        Args:
            several: of each the changes that are made together.

        Raises:
            UsageError: a change names a cause or pattern that cannot be.
        """
        wanted = list(dict.fromkeys(tuple(changes) for changes in several))
        missing = [changes for changes in wanted if changes not in self._predictions]
        items = sum(len(s.program) for s in self.subjects)
        workers = min(len(missing), cores(), max(1, _MOST_AT_ONCE // max(items, 1)))
        if workers > 1 and items >= _WORTH_THREADS:
            self.predict([])  # what all of them need
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(self.predict, missing))
        return [self.predict(changes) for changes in several]

    def predict(self, changes: Sequence[Change]) -> Prediction:
        """The step after all these changes together; what was predicted before is kept.

        Raises:
            UsageError: a change names a cause or pattern that cannot be.
        """
        key = tuple(changes)
        if key not in self._predictions:
            self._predictions[key] = self._predicted(key)
        return self._predictions[key]

    def step_after_ns(self, changes: Sequence[Change]) -> int:
        """What :meth:`predict` says of the step, without its range: a seventh of the replays, ns.

        Raises:
            UsageError: a change names a cause or pattern that cannot be.
        """
        key = tuple(changes)
        if key in self._predictions or not changes:
            return self.predict(changes).step_ns
        tool = self._tool(changes)
        sets = [c for c in changes if isinstance(c, Edit)]
        before = self._before_ns(tool, sets=sets)
        (expected,) = _over([self.edited(changes, tool=tool)], [before], _most(sets))
        least = self.computes_ns(changes) / max(self.measured_step_ns, 1)
        return round(self.measured_step_ns * max(expected, least))

    def _predicted(self, changes: Sequence[Change]) -> Prediction:
        """The step after all these changes together.

        Predicted is the measured step times changed over unchanged replay, so that what the replay
        gets wrong in both cancels. Nothing is recorded in either replay, unless the cost of
        recording is among the changes: a program that only its recording makes wait for the host
        does not wait without, and the gain is that of the program itself.

        The range holds one uncertainty at a time to either side (of the change, of the host's pace,
        of the cost of recording), with the error of the replay, a part of the gain and the noise
        between runs; they are independent, so their squares add. No part of the gain where all that
        remains is the device's, kernel by kernel: a step in one graph, whatever the host's pace.

        Raises:
            UsageError: a change names a cause or pattern that cannot be.
        """
        measured = self.measured_step_ns
        tool = self._tool(changes)
        recorded = tool is not None
        sets = [c for c in changes if isinstance(c, Edit)]
        before = self._before_ns(tool, sets=sets)
        changed = self.changed(changes)
        after = self._edited(changes, changed, tool=tool)
        most = _most(sets)
        (expected,) = _over([after], [before], most) if changes else (1.0,)
        side_by_side = expected
        least = self.computes_ns(changes) / max(measured, 1)
        expected = max(expected, least)
        shorter = expected < 1 - LEAST_GAIN
        gains = shorter or bool(sets)
        paces = [self._edited(changes, changed, pace_of=b, tool=tool) for b in ENDS if gains]
        deviating: list[float] = []
        paced_after: list[float] = []
        if gains or is_uncertain(changes, self.subjects):
            deviating += _over(
                [self.edited(changes, b, tool=tool) for b in ENDS], [before] * 2, most
            )
        if gains:
            paced_after = _over(paces, [before] * 2, most)
            deviating += paced_after
            if pace.no_longer_woken(self.subjects, after):
                # the pace above is that of a host that is no longer woken, in the same run
                other = [pace.in_another_run(after, b) for b in ENDS]
                deviating += _over(other, [before] * 2, most)
            # the run that the gain is measured in has a pace of its own before the repair, too
            paced = [self._before_ns(tool, b, sets) for b in ENDS]
            deviating += [min(before * expected / ns, most) for ns in paced]
            deviating += self._with_other_work(after, tool, before, most)
        deviating = [max(other, least) for other in deviating]
        if side_by_side < least:  # streams may overlap more after all
            deviating.append(side_by_side)
        if changes and recorded:
            costs = [self._edited(changes, changed, tool=b) for b in ENDS]
            deviating += _over(costs, [self._before_ns(b, sets=sets) for b in ENDS], most)
        if not any(c.paces_input for c in sets) and self._paced_by_input(after):
            deviating.append(max(expected, 1.0))
        off = max(abs(self.replay_error), abs(self.settled_error))
        beyond = 0.0
        if not changes:
            error = off
        elif gains and _in_one_graph(changes) and _unmoved(expected, paced_after):
            error = math.hypot(graphs.ONE_GRAPH, off)
        else:
            error = uncertain_share(expected, off)
            beyond = UNFORESEEN if shorter else 0.0
        low, high = _range(expected, deviating, expected * error, expected * beyond)
        return Prediction(
            step_ns=round(measured * expected),
            low_ns=round(measured * low),
            # what gains something at the measured pace does not lose at another
            high_ns=round(measured * min(high, most + abs(self.replay_error))),
            replay_error=self.replay_error,
            message=self.message(),
            unrecorded=self._as_measured(before, before * expected) if recorded else None,
        )

    def computes_ns(self, changes: Sequence[Change]) -> float:
        """What a device computes in a step whatever no longer keeps the host, ns; else 0.

        What streams wait for is not always recorded, and kernels that fill a device gain nothing by
        standing side by side: they overlap no more than they did. Launches that come earlier may
        bring short kernels of several streams together.
        """
        keeps = (isinstance(c, edit.Free) and c.cause in _KEEPS_KERNELS for c in changes)
        if not changes or not all(keeps):
            return 0.0
        steps = (e.accounting.compute_ns[e.first : e.last + 1] for _, e in self.devices)
        return min(max(float(np.mean(each)) for each in steps), float(self.measured_step_ns))

    def _as_measured(self, before_ns: float, after_ns: float) -> tuple[int, int]:
        """Replayed steps of a job as parts of the measured one, which predictions compare with.

        Where each rank is recorded for a step or two that begin and end at moments of its own, the
        measured step is another than that of steps that follow one another for ever.
        """
        scale = self.measured_step_ns / max(self._settled_ns, 1.0) if len(self.devices) > 1 else 1.0
        return round(before_ns * scale), round(after_ns * scale)

    def _with_other_work(
        self, after: list[Subject], tool: Bound | None, before: float, most: float
    ) -> list[float]:
        """The ratio where work that launches nothing takes less or more, before and after."""
        columns = [C[cause] for cause in pace.OWN_WORK]
        spent = max(int(s.program.work_ns[:, columns].sum()) for s in self.subjects)
        if spent < LEAST_GAIN * before * self.runs[0].steps:
            return []
        today = self._as_batches_come(self._recorded_or_not(self.subjects, tool))
        sides = [today, after]
        found = []
        for bound in ENDS:
            jobs = [pace.work_in_another_run(subjects, bound) for subjects in sides]
            now, then = steps_of([[s.program for s in subjects] for subjects in jobs])
            found.append(min(slowest_ns(then) / max(slowest_ns(now), 1.0), most))
        return found

    def _before_ns(
        self, tool: Bound | None, pace_of: Bound = "expected", sets: Sequence[Edit] = ()
    ) -> float:
        """The unchanged step, recorded or at so much less than recording costs, ns.

        Settings may know of a limit of the captured program that its replay does not have.
        """
        limited = self.subjects
        for one in sets:
            limited = one.limited(self.facts, limited)
        if limited is not self.subjects:
            return max(self._paced_ns(limited, tool, pace_of), 1.0)
        if tool is None and pace_of == "expected":
            return max(self._settled_ns, 1.0)
        if (tool, pace_of) not in self._before:
            self._before[tool, pace_of] = self._paced_ns(self.subjects, tool, pace_of)
        return max(self._before[tool, pace_of], 1.0)

    def _paced_ns(self, subjects: list[Subject], tool: Bound | None, pace_of: Bound) -> float:
        """The step of some programs at a pace of the host, recorded or not, ns."""
        unrecorded = self._recorded_or_not(subjects, tool)
        subjects = pace.at_pace(unrecorded, pace_of, shown=subjects)
        return step_ns(self._as_batches_come(subjects))


_KEEPS_KERNELS: Final = frozenset(
    {"blocking_copy", "host_sync", "host_compute", "input_starvation", "checkpoint_stall"}
)
"""Causes without which the kernels are those of today, launched in stretches as long."""


def _most(sets: Sequence[Edit]) -> float:
    """The longest step after a repair over that before; a setting may make it longer."""
    return math.inf if sets else 1.0


def _over(jobs: Sequence[list[Subject]], before_ns: Sequence[float], most: float) -> list[float]:
    """The steps of some jobs, replayed side by side, over those before; no more than a bound."""
    replayed = steps_of([[s.program for s in subjects] for subjects in jobs])
    pairs = zip(replayed, before_ns, strict=True)
    return [min(slowest_ns(ranks) / before, most) for ranks, before in pairs]


def _range(
    expected: float, others: Sequence[float], error: float, beyond: float
) -> tuple[float, float]:
    """The ends around an expected value whose independent deviations are given one by one.

    However uncertain, a program keeps half of what the shortest of them leaves.

    Args:
        expected: the value.
        others: what it may be as well.
        error: what it is uncertain by either way.
        beyond: what it may be shorter by besides.
    """
    below = beyond**2 + sum(max(expected - other, 0.0) ** 2 for other in others)
    above = sum(max(other - expected, 0.0) ** 2 for other in others)
    return (
        max(expected - math.sqrt(below + error**2), 0.5 * min([expected, *others])),
        expected + math.sqrt(above + error**2),
    )


def _in_one_graph(changes: Sequence[Change]) -> bool:
    """Whether all that changes is that each step is one CUDA graph."""
    return all(isinstance(c, edit.InGraphs) and c.scope == "step" for c in changes)


def _unmoved(expected: float, others: Sequence[float]) -> bool:
    """Whether a step is as long at other paces of the host, but for the noise between runs."""
    return all(abs(other - expected) <= RUN_TO_RUN * expected for other in others)
