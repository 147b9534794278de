"""A job as it can be replayed: its programs unchanged and changed, recorded or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from stepscope.activity.device import Reader
from stepscope.activity.host import (
    LONG_UNTRACED_STEP_SHARE,
    SMALL_COPY_BYTES,
    loads_by_itself,
)
from stepscope.breakdown.explain import Explanation
from stepscope.gaps.profiler_overhead import PROFILED
from stepscope.simulation import batches, graphs, pace
from stepscope.simulation import changes as edit
from stepscope.simulation.applying import changed_by, turn
from stepscope.simulation.build import build
from stepscope.simulation.changes import Bound, Change
from stepscope.simulation.engine import replay, steps_of
from stepscope.simulation.host_work import not_launching
from stepscope.simulation.meetings import begins, meet, run_again_ns
from stepscope.simulation.program import C, Replay, from_rest, slowest_ns
from stepscope.simulation.ranks import Matched, RankCollectives
from stepscope.simulation.recording import (
    called_factor,
    measured_factor,
    measured_part,
    profiled_factor,
)
from stepscope.simulation.run import Run, common_runs, holds_none
from stepscope.simulation.settings.base import Edit, Facts
from stepscope.simulation.subject import Subject, without_inferred
from stepscope.simulation.without_causes import without_recording
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import BoolArray
from stepscope.trace.units import signed_percent

WORTH_A_WORD: Final = 0.005
"""A replay that is slower than the measured steps by more is explained where it can be."""


class ReplayedJob:
    """The steady steps of a job as programs, and how well their replay gives what was measured.

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
        if not devices:
            raise UsageError("there is no device to simulate; name a capture with GPU work")
        self.devices = list(devices)
        self._read_of = read_of.__getitem__ if isinstance(read_of, Mapping) else read_of
        known = {
            (one.rank, one.process_id, one.device): one
            for one in (collectives.ranks if collectives is not None else ())
        }
        self._matched = [
            known.get((rank, e.gpu.process_id, e.gpu.device)) for rank, e in self.devices
        ]
        self._unrecorded_last: tuple[list[Subject], list[Subject]] = ([], [])
        """The changed programs asked about last, and the same without what recording costs."""

    @property
    def measured_step_ns(self) -> int:
        """Mean steady step of the slowest device, ns."""
        return round(max(e.step_ns for _, e in self.devices))

    @cached_property
    def runs(self) -> list[Run]:
        """The steps that are replayed, of each device."""
        return common_runs([e for _, e in self.devices], self._matched)

    @cached_property
    def sets_outliers_aside(self) -> bool:
        """Whether outlier steps of the slowest device are by chance, and not replayed."""
        pairs = zip(self.devices, self.runs, strict=True)
        (_, e), run = max(pairs, key=lambda pair: pair[0][1].step_ns)
        return holds_none(e, run)

    @cached_property
    def subjects(self) -> list[Subject]:
        """The unchanged programs, one a device, of steps that follow one another for ever."""
        return [replace(s, program=from_rest(s.program)) for s in self._as_recorded]

    @cached_property
    def _as_recorded(self) -> list[Subject]:
        """The same in the state in which the recorded steps began."""
        found = []
        for (rank, e), run, one in zip(self.devices, self.runs, self._matched, strict=True):
            rows, instances = (None, None) if one is None else (one.op, one.instance)
            program = build(e, self._read_of(rank), run, rows, instances)
            found.append(Subject(rank, e.gpu, program, _small(e, one)))
        found = meet(found, self._matched)
        started = begins(found, self._matched, self.runs) or [0] * len(found)
        return [s.becomes(begin_ns=at) for s, at in zip(found, started, strict=True)]

    @cached_property
    def facts(self) -> list[Facts]:
        """What settings need to know of each device."""
        return [Facts(rank, e, self._read_of(rank)) for rank, e in self.devices]

    @cached_property
    def _outside_graphs(self) -> list[graphs.Outside]:
        """What graphs of the model would not hold, of each device."""
        return [graphs.outside(e) for _, e in self.devices]

    @cached_property
    def unchanged(self) -> list[Replay]:
        """The replay without any change."""
        return replay([s.program for s in self._as_recorded])

    @cached_property
    def _run_step_ns(self) -> float:
        return max(run.measured_ns / run.steps for run in self.runs)

    @cached_property
    def replay_error(self) -> float:
        """Unchanged replay over measured step of the same steps, less one.

        The steps are replayed from the state in which they began: the devices with what they had
        been given before, the hosts one after the other. Where it is not known when the hosts
        began, the steps are those that follow one another for ever.
        """
        if not self._in_time:
            return self.settled_error
        replayed = max(
            run_again_ns(e, run, subject, replay) / run.steps
            for (_, e), run, subject, replay in zip(
                self.devices, self.runs, self._as_recorded, self.unchanged, strict=True
            )
        )
        return replayed / max(self._run_step_ns, 1.0) - 1

    @cached_property
    def meets(self) -> bool:
        """Whether ranks wait for each other: any collective of the replayed steps is matched."""
        return any((s.program.instance >= 0).any() for s in self.subjects)

    @cached_property
    def _in_time(self) -> bool:
        """Whether it is known when the hosts began, as far as that matters."""
        return not self.meets or any(s.program.begin_ns for s in self.subjects)

    @cached_property
    def settled_error(self) -> float:
        """The same for steps that follow one another for ever, which is what changes are about.

        It differs where the recorded steps did not begin as they ended: with an idle device, or
        with a lead of the host that was used up.
        """
        return self._settled_ns / max(self._run_step_ns, 1.0) - 1

    @cached_property
    def _settled_ns(self) -> float:
        """The unchanged step where steps follow one another for ever, ns."""
        return step_ns(self.subjects)

    @property
    def replayed_step_ns(self) -> int:
        """Mean steady step of the slowest device in the unchanged replay, ns."""
        return round(self.measured_step_ns * (1 + self.replay_error))

    def changed(self, changes: Sequence[Change], bound: Bound = "expected") -> list[Subject]:
        """The programs with all changes made.

        Raises:
            UsageError: a change names a cause or pattern that cannot be.
        """
        return self._apply(changes, bound)[0]

    def matched(self, change: Change) -> int:
        """How many operations (of all ranks, in the replayed steps) a change is about.

        For changes that are not about certain operations, 1 where they can have an effect.

        Raises:
            UsageError: it names a cause or pattern that cannot be.
        """
        return self._apply([change], "expected")[1][0]

    def _apply(self, changes: Sequence[Change], bound: Bound) -> tuple[list[Subject], list[int]]:
        subjects, counts = self.subjects, []
        # a rank is made like another before anything is taken away from both
        for change in sorted(changes, key=turn):
            if isinstance(change, Edit):
                subjects, count = change.apply(self.facts, subjects, bound), 1
            elif isinstance(change, edit.Free) and change.cause == "profiler_overhead":
                factor = self.recording_factor[bound]
                subjects = [
                    without_recording(s, factor)
                    if change.ranks is None or s.rank in change.ranks
                    else s
                    for s in subjects
                ]
                count = len(subjects)
            elif isinstance(change, edit.InGraphs) and change.scope == "model":
                paced = self._recorded_or_not(subjects, self._tool(changes))
                subjects = [
                    graphs.model_alone(s, beside, bound, unrecorded)
                    for s, unrecorded, beside in zip(
                        subjects, paced, self._outside_graphs, strict=True
                    )
                ]
                count = len(subjects)
            else:
                subjects, count = changed_by(subjects, change, bound)
            counts.append(count)
        return subjects, counts

    def _tool(self, changes: Sequence[Change]) -> Bound | None:
        """The cost of recording that a prediction leaves out; None where none does, or it goes."""
        goes = any(isinstance(c, edit.Free) and c.cause == "profiler_overhead" for c in changes)
        return "expected" if pace.is_recorded(self.subjects) and not goes else None

    def _recorded_or_not(self, subjects: list[Subject], tool: Bound | None) -> list[Subject]:
        """Programs as recorded, or without what recording costs."""
        if tool is None:
            return subjects
        if tool != "expected":
            return pace.unrecorded(subjects, self.recording_factor[tool])
        if subjects is self.subjects:
            return self._unrecorded
        of, found = self._unrecorded_last
        if of is not subjects:
            found = pace.unrecorded(subjects, self.recording_factor[tool])
            self._unrecorded_last = subjects, found
        return found

    @cached_property
    def _unrecorded(self) -> list[Subject]:
        """The unchanged programs without what recording costs."""
        return pace.unrecorded(self.subjects, self.recording_factor["expected"])

    def _paced_by_input(self, subjects: Sequence[Subject]) -> bool:
        """Whether input may come at a pace of its own.

        Loaders in other processes do not go faster because the training thread does: it then waits
        longer for them. A capture seldom says whether they are what it waited for; where the
        training thread loads by itself, they are not.
        """
        waited = max(
            0.0
            if loads_by_itself(s.gpu.host)
            else int(s.program.work_ns[:, C["input_starvation"]].sum()) / run.steps
            for s, run in zip(subjects, self.runs, strict=True)
        )
        return waited >= LONG_UNTRACED_STEP_SHARE * self._run_step_ns

    @property
    def recording_ns(self) -> float:
        """What recording costs of the replayed step but for waits for workers, ns; an estimate."""
        if not pace.is_recorded(self.subjects):
            return 0.0
        subjects = self._recorded_or_not(self.subjects, "expected")
        return max(self._settled_ns - step_ns(subjects), 0.0)

    @cached_property
    def paced_by_workers(self) -> bool:
        """Whether processes that make batches set the pace: the step is no shorter unrecorded."""
        return batches.paced_by_workers(self.subjects)

    def replay(self, changes: Sequence[Change]) -> list[Replay]:
        """Replay with the changes, as it would be captured; one result a device."""
        if not changes:
            return self.unchanged
        return replay([s.program for s in self.edited(changes)])

    def edited(
        self,
        changes: Sequence[Change],
        bound: Bound = "expected",
        *,
        pace_of: Bound = "expected",
        tool: Bound | None = None,
    ) -> list[Subject]:
        """The programs with the changes, at the pace that their hosts then have.

        Args:
            changes: the changes.
            bound: which of the uncertainties of the changes to assume.
            pace_of: which of that of the host's pace.
            tool: which of that of the cost of recording, which is then gone; None to leave it in.
        """
        return self._edited(
            changes, self.changed(changes, bound), bound, pace_of=pace_of, tool=tool
        )

    def _edited(
        self,
        changes: Sequence[Change],
        changed: list[Subject],
        bound: Bound = "expected",
        *,
        pace_of: Bound = "expected",
        tool: Bound | None = None,
    ) -> list[Subject]:
        """:meth:`edited` of programs that have the changes already."""
        subjects = changed
        # stages launch at the pace of the one that waits for none already
        spared = any(
            isinstance(c, edit.DeviceLike) or (isinstance(c, edit.EvenWork) and c.scope == "parts")
            for c in changes
        )
        if bound != "high" and spared:
            subjects = pace.unhurried(subjects, self._spare_ns())
        if bound == "low":
            subjects = [without_inferred(s) for s in subjects]
        woken = pace.no_longer_woken(self.subjects, subjects)
        unrecorded = self._recorded_or_not(subjects, tool)
        subjects = pace.at_pace(unrecorded, pace_of, woken=woken, shown=subjects)
        sets = [c for c in changes if isinstance(c, Edit)]
        return self._as_batches_come(subjects, sets, changed)

    def _as_batches_come(
        self,
        subjects: list[Subject],
        sets: Sequence[Edit] = (),
        changed: Sequence[Subject] = (),
    ) -> list[Subject]:
        """Programs that wait for batches as long as the workers take, however soon they ask.

        Args:
            subjects: changed programs.
            sets: settings among the changes.
            changed: what the changes alone made of the programs; empty where there are none.
        """
        if subjects is self.subjects or not self.paced_by_workers:
            return subjects
        # who gets input in another way is no longer paced by it
        if changed and not sets and not batches.waits_alike(self.subjects, changed):
            return subjects
        period = self._settled_ns * math.prod(one.batches for one in sets)
        return batches.as_they_come(subjects, period)

    @cached_property
    def recording_factor(self) -> dict[Bound, float]:
        """What recording costs over its estimate, to either side.

        Where steps of the run were timed that nobody recorded (``Explanation.measured``), it is
        what makes the replayed step as long as those were on average, within the error of that
        mean; elsewhere the estimate, with its own uncertainty. A host that waits for input from
        elsewhere waits less where recording slows it: steps then do not tell what that costs.
        """
        _, e = max(self.devices, key=lambda pair: pair[1].step_ns)
        recorded = e.step_ns > 0 and pace.is_recorded(self.subjects)
        if not recorded:
            return dict(PROFILED)
        if e.tool is not None:
            estimated = called_factor(e.tool.unit.tool, self.subjects)
        else:
            readers = [self._read_of(rank) for rank, _ in self.devices]
            apart = [
                not_launching(e, read, run)
                for (_, e), read, run in zip(self.devices, readers, self.runs, strict=True)
            ]
            by_part = profiled_factor(self.subjects, self.runs, readers, apart)
            estimated = {bound: by_part * part for bound, part in PROFILED.items()}
        if e.measured is None or self._paced_by_input(self.subjects):
            return estimated
        replayed = round(self._run_step_ns) if self.sets_outliers_aside else None
        part, error = measured_part(e, e.measured, replayed)
        return measured_factor(self.subjects, part, estimated, error)

    def _spare_ns(self) -> list[float]:
        """What the capturing tool may have added to each host's launches at most, ns per step."""
        return [
            2 * e.recording_ns / e.n_steady if e.tool is None else e.tool.most_ns
            for _, e in self.devices
        ]

    def message(self) -> str:
        """Which steps were replayed and how well that gives the measured step."""
        run = self.runs[0]
        one = run.steps == 1
        which = f"step {run.first} was" if one else f"steps {run.first} to {run.last} were"
        stated = (
            f"{which} replayed; without changes the replay is "
            f"{signed_percent(self.replay_error)} off the measured step"
        )
        used = self.run_ahead_used_ns()
        if self.settled_error > WORTH_A_WORD and used >= self.settled_error * self._run_step_ns:
            stated += (
                f": during them a host used up {used / 1e6:.2g} ms a step of the lead that it had "
                "over its device, which it cannot do for ever, and the replay goes on as if the "
                "lead were gone"
            )
        return stated

    def run_ahead_used_ns(self) -> float:
        """By how much the lead of a host over its device shrinks from step to step, the most, ns.

        A device that has work enqueued when the run begins is faster than its host until that is
        done: the measured step is then shorter than the host's.
        """
        return max(0.0, *((r.end_ns - r.begin_ns - r.measured_ns) / r.steps for r in self.runs))


def _small(e: Explanation, one: RankCollectives | None) -> BoolArray:
    """Collectives that move no more than a value which is read back, by row of ``GPU.ops``."""
    if one is None or one.bytes is None:
        return np.empty(0, bool)
    found = np.zeros(len(e.gpu.ops), bool)
    found[one.op] = (one.bytes >= 0) & (one.bytes <= SMALL_COPY_BYTES)
    return found


def step_ns(subjects: Sequence[Subject]) -> float:
    """The step of some programs that follow one another for ever, ns."""
    (replayed,) = steps_of([[s.program for s in subjects]])
    return slowest_ns(replayed)
