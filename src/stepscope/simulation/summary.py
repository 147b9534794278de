"""From replays to results: budgets, and critical paths by kind, kernel and place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, TypeGuard

import numpy as np
from msgspec.structs import replace

from stepscope.activity.device import GpuTimeline, Reader
from stepscope.activity.names import marking_steps
from stepscope.breakdown.explain import Explanation
from stepscope.gaps.idle import CAUSES
from stepscope.intervals import stab_innermost, union
from stepscope.intervals.algebra import clip, total
from stepscope.kernels.categories import classify
from stepscope.simulation import changes as edit
from stepscope.simulation.changes import Change
from stepscope.simulation.model import Prediction, Simulation
from stepscope.simulation.path import Part, Walker
from stepscope.simulation.program import Replay
from stepscope.simulation.result import (
    CRITICAL_PATH_SCHEMA,
    WHATIF_SCHEMA,
    CriticalPath,
    OneChange,
    PathPart,
    PathPlace,
    PathRank,
    PathStep,
    StepBudget,
    WhatIf,
)
from stepscope.simulation.setting import SettingChange, Validity, least_sure
from stepscope.simulation.settings.base import Edit
from stepscope.simulation.subject import Subject
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import BoolArray, Frame, IntArray
from stepscope.trace.units import shown

TOP: Final = 20
"""Names that a critical path lists at most."""

_NOTABLE: Final = 0.02
"""Share of the step from which on less work of the device is worth a word."""

_FELT: Final = 0.5
"""Part of what the device saves that the step must gain, else most of it is not felt."""

_SPREAD: Final = 32
"""Moments over which the host's work before an item is spread to find the ranges that it was in."""


@dataclass(frozen=True)
class Freed:
    """What is known of a cause's repair beside the replay.

    Attributes:
        prediction: the step without the cause; None where something else was predicted.
        note: what the replay without its idle time does not hold; empty where it is in
            ``prediction``.
    """

    prediction: Prediction | None
    note: str


def what_if(
    simulation: Simulation,
    changes: Sequence[Change],
    paths: Sequence[str],
    freed: Callable[[str], Freed | None] = lambda cause: None,
) -> WhatIf:
    """Predict the step with some changes.

    Args:
        simulation: the job.
        changes: the changes, all together.
        paths: the inputs as the user named them.
        freed: gives what is known of a cause's repair beside the replay.

    Raises:
        UsageError: a change is impossible, or is about nothing in the capture.
    """
    for change in changes:
        if not simulation.matched(change):
            raise UsageError(_nothing(change))
    sets = [change for change in changes if isinstance(change, Edit)]
    samples = prod(_samples(simulation, change) for change in sets)
    # together first: that finds what each of them needs to know, before they are tried side by side
    predicted = simulation.predict(changes)
    apart = simulation.predict_many([[c] for c in changes]) if len(changes) > 1 else []
    known = [freed(c.cause) if _is_whole(c) else None for c in changes]
    notes = [one.note for one in known if one is not None and one.note]
    if len(changes) == 1:
        predicted = _of(known[0], predicted)
    else:
        limited = [_of(*pair) for pair in zip(known, apart, strict=True)]
        if any(one.step_ns != alone.step_ns for one, alone in zip(limited, apart, strict=True)):
            notes.append(
                "together, the replay alone counts: what else limits a repair (how fast input is "
                "brought, how often the cause comes back) is only in what each gives alone"
            )
        apart = limited
    replays = simulation.replay(changes)
    slow = max(range(len(replays)), key=lambda n: replays[n].step_ns)
    rank, e = simulation.devices[slow]
    run = simulation.runs[0]
    changed = simulation.changed(changes)
    error = simulation.measured_step_ns / max(simulation.replayed_step_ns, 1)
    before = _budget(
        simulation.subjects[slow], simulation.unchanged[slow], simulation.measured_step_ns, error
    )
    computes = simulation.computes_ns(changes)
    after = _budget(changed[slow], replays[slow], predicted.step_ns, error, computes)
    return WhatIf(
        schema=WHATIF_SCHEMA,
        paths=list(paths),
        changes=[describe(change) for change in changes],
        steps=(run.first, run.last),
        measured_step_ns=simulation.measured_step_ns,
        replayed_step_ns=simulation.replayed_step_ns,
        replay_error=round(simulation.replay_error, 6),
        predicted_step_ns=predicted.step_ns,
        prediction_low_ns=predicted.low_ns,
        prediction_high_ns=predicted.high_ns,
        rank=rank,
        device=e.gpu.device,
        budget_before=before,
        budget_after=after,
        warnings=[*warnings(simulation), *notes, *_unfelt(before, after)],
        assumptions=[text for one in sets for text in one.assumptions(simulation.facts)],
        validity=_validity(simulation, changes),
        alone=[_alone(simulation, *one) for one in zip(changes, apart, strict=False)],
        samples_factor=samples,
        throughput_factor=round(
            samples * simulation.measured_step_ns / max(predicted.step_ns, 1), 6
        ),
        unrecorded_step_ns=predicted.unrecorded,
    )


def _is_whole(change: Change) -> TypeGuard[edit.Free]:
    """Whether a change takes a cause away on all ranks, as its repair does."""
    return isinstance(change, edit.Free) and change.ranks is None


def _of(known: Freed | None, replayed: Prediction) -> Prediction:
    """What was predicted of a cause's repair, else of the replay without its idle time."""
    return replayed if known is None or known.prediction is None else known.prediction


def _unfelt(before: StepBudget, after: StepBudget) -> list[str]:
    """That the device has less to do, and the step hardly notices."""
    now, then = _busy(before), _busy(after)
    less = now - then
    shorter = now + before.idle_ns - then - after.idle_ns
    if less < _NOTABLE * (now + before.idle_ns) or shorter > _FELT * less:
        return []
    return [
        f"the GPU has {shown(less, 'ns')} less to do, and the step is only "
        f"{shown(max(shorter, 0), 'ns')} shorter: the GPU does not set its pace, so that most of "
        "what it saves becomes idle time"
    ]


def _busy(budget: StepBudget) -> int:
    """What a device is busy with, ns."""
    return budget.compute_ns + budget.communication_ns + budget.copy_ns


def _alone(simulation: Simulation, change: Change, predicted: Prediction) -> OneChange:
    """What one of several changes gives alone."""
    return OneChange(
        change=describe(change),
        predicted_step_ns=predicted.step_ns,
        prediction_low_ns=predicted.low_ns,
        prediction_high_ns=predicted.high_ns,
        validity=_validity(simulation, [change]),
        samples_factor=_samples(simulation, change),
    )


def _samples(simulation: Simulation, change: Change) -> float:
    """Samples of a step with a change over those without."""
    return change.samples(len(simulation.devices)) if isinstance(change, Edit) else 1.0


def _validity(simulation: Simulation, changes: Sequence[Change]) -> Validity:
    """How the prediction is known: as the least sure of its changes."""
    return least_sure([c.validity(simulation.facts) for c in changes if isinstance(c, Edit)])


def describe(change: Change) -> str:
    """A change in words."""
    match change:
        case edit.Free(cause, ranks):
            stated = f"without {cause}"
            stated += "" if ranks is None else f" on rank {', '.join(map(str, ranks))}"
        case edit.LaunchesFree():
            stated = "launches cost nothing, as with CUDA graphs"
        case edit.ScaleKernels(regex, factor):
            stated = f"kernels matching {regex!r} take {factor:g} times as long"
        case edit.ScaleOps(ops, factors):
            least, most = min(factors, default=1), max(factors, default=1)
            times = f"{least:g}" if least == most else f"{least:.2g} to {most:.2g}"
            stated = f"{len(ops):,} GPU operations take {times} times as long"
        case edit.RemoveOps(ops):
            stated = f"without {len(ops):,} GPU operations"
        case edit.FuseOps(ops, duration):
            stated = f"{len(ops):,} GPU operations become one of {duration / 1e6:g} ms per step"
        case edit.OverlapCommunication():
            stated = "communication overlaps with compute as far as dependencies allow"
        case edit.RankLike(rank, other):
            like = "the median rank" if other == "median" else f"rank {other}"
            stated = f"rank {rank} is as fast as {like}"
        case SettingChange() | edit.InGraphs() | edit.CallCompiled() | edit.LoadedBeside():
            stated = change.text
        case edit.DeviceLike(rank):
            stated = f"the kernels of rank {rank} take what they take on the other ranks"
        case edit.EvenWork("stages"):
            stated = "every stage of the pipeline computes as much"
        case edit.EvenWork():
            stated = "the work is spread evenly over the ranks"
    return stated


def _nothing(change: Change) -> str:
    match change:
        case edit.ScaleKernels(regex):
            return (
                f"no kernel in the replayed steps matches {regex!r}; "
                "'stepscope stats -r cuda_gpu_kern_sum' lists the names"
            )
        case edit.OverlapCommunication():
            return "there is no communication kernel in the replayed steps, so nothing to overlap"
        case edit.RankLike() | edit.DeviceLike() | edit.EvenWork():
            return "there is only one rank, so no other to be like; give the captures of all ranks"
        case edit.Free(cause, ranks) if ranks is not None:
            return f"none of the ranks {ranks} is there, so {cause} cannot be taken from them"
        case _:
            return "none of the named GPU operations lies in the replayed steps"


def warnings(simulation: Simulation) -> list[str]:
    """What was assumed, in sentences."""
    found = [simulation.message(), *_measured(simulation)]
    subjects = simulation.subjects
    matched = any((s.program.instance >= 0).any() for s in subjects)
    if any(s.program.communication.any() for s in subjects) and not matched:
        found.append(
            "communication is not matched across ranks: each kernel keeps its measured time, "
            "which may hold waiting for another rank"
        )
    if any(s.program.inferred for s in subjects):
        found.append(
            "the capture does not hold what streams wait for; dependencies between streams were "
            "inferred from times"
        )
    return found


def _measured(simulation: Simulation) -> list[str]:
    """Which steps of a job the measured one is the mean of, where these are not replayed alone."""
    at = max(range(len(simulation.devices)), key=lambda n: simulation.devices[n][1].step_ns)
    (rank, e), run = simulation.devices[at], simulation.runs[at]
    if len(simulation.devices) == 1 or (run.first, run.last) == (e.first, e.last):
        return []
    return [f"the measured step is the mean of steps {e.first} to {e.last} of rank {rank}"]


def _budget(
    subject: Subject, replay: Replay, step_ns: int, error: float, computes_ns: float = 0.0
) -> StepBudget:
    """Where the last pass goes, as a step of the given length.

    What kernels and copies take is known, and a prediction is also about what only estimates tell:
    the cost of recording, the pace of a host. So a step that is predicted longer or shorter than
    it was replayed waits longer or shorter.

    Args:
        subject: the device's program.
        replay: its replay.
        step_ns: the length.
        error: measured over replayed step, unchanged.
        computes_ns: what is computed in it at least.
    """
    begin, end = int(replay.bounds_ns[-1 - replay.steps]), int(replay.bounds_ns[-1])
    gpu, program = subject.gpu, subject.program
    passes = len(replay.host_ns) // max(len(program), 1)
    op = np.tile(program.op, passes)
    start, stop = replay.start_ns, replay.end_ns

    def covered(mask: BoolArray) -> int:
        rows = (op >= 0) & mask[np.maximum(op, 0)]
        return total(clip(union(start[rows], stop[rows]), begin, end))

    compute, kernels = covered(gpu.is_compute), covered(gpu.is_kernel)
    busy = covered(np.ones(len(gpu.ops), bool))
    communication, copies, idle = kernels - compute, busy - kernels, end - begin - busy
    more = max(round(computes_ns / error * replay.steps) - compute, 0)
    idle, lacking = max(idle - more, 0), max(more - idle, 0)
    copies = max(copies - lacking, 0)  # they go on beside it
    return split_step(
        np.array([compute + more, communication, copies, idle]), replay.steps, step_ns, error
    )


def split_step(replayed: IntArray, steps: int, step_ns: int, error: float) -> StepBudget:
    """A replayed budget as one of a step of another length.

    Args:
        replayed: compute, communication, copies and idle time of the replayed steps, ns.
        steps: how many.
        step_ns: the length.
        error: what a replayed step is multiplied by.
    """
    compute, communication, copies, idle = (replayed * error / max(steps, 1)).tolist()
    least = compute + copies
    if least > step_ns:  # the prediction is of less than these take: all parts in proportion
        share = step_ns / max(least + communication + idle, 1)
        compute, communication, copies = share * compute, share * communication, share * copies
    elif communication + idle > 0:  # a collective waits for the other ranks as well
        communication *= (step_ns - least) / (communication + idle)
    compute_ns, copy_ns = int(compute), int(copies)
    communication_ns = min(int(communication), step_ns - compute_ns - copy_ns)
    return StepBudget(
        compute_ns, communication_ns, copy_ns, step_ns - compute_ns - communication_ns - copy_ns
    )


def critical_path(
    simulation: Simulation, readers: Sequence[Reader], paths: Sequence[str], step: int | None
) -> CriticalPath:
    """Follow the critical path of the replayed steps, or of one of them.

    Args:
        simulation: the job.
        readers: reader of each device's tables.
        paths: the inputs as the user named them.
        step: number of the step; None for all replayed steps.

    Raises:
        UsageError: the step is not among the replayed ones.
    """
    replays = simulation.unchanged
    slow = max(range(len(replays)), key=lambda n: replays[n].step_ns)
    rank, e = simulation.devices[slow]
    run = simulation.runs[slow]
    if step is not None and not run.first <= step <= run.last:
        raise UsageError(
            f"step {step} is not among the replayed steps; those are {run.first} to {run.last}"
        )
    walker = Walker(simulation.subjects, replays)
    numbers = range(run.first, run.last + 1) if step is None else [step]
    followed = [walker.step(slow, number - run.first) for number in numbers]
    whole = sum(part.ns for parts in followed for part in parts)
    places = _Places(simulation, readers)
    for parts in followed:
        places.add(parts)
    by_rank: Counter[int] = Counter()
    for parts in followed:
        for part in parts:
            by_rank[simulation.devices[part.device][0]] += part.ns
    return CriticalPath(
        schema=CRITICAL_PATH_SCHEMA,
        paths=list(paths),
        rank=rank,
        device=e.gpu.device,
        measured_step_ns=simulation.measured_step_ns,
        replayed_step_ns=simulation.replayed_step_ns,
        replay_error=round(simulation.replay_error, 6),
        total_ns=whole,
        parts=_by_kind([part for parts in followed for part in parts]),
        ranks=[PathRank(r, ns) for r, ns in sorted(by_rank.items())],
        kernels=places.kernels(whole),
        ranges=places.ranges(whole),
        operators=places.operators(whole),
        steps=[
            PathStep(
                number,
                int(e.durations_ns[number]),
                sum(part.ns for part in parts),
                _by_kind(parts),
            )
            for number, parts in zip(numbers, followed, strict=True)
        ],
        warnings=warnings(simulation),
    )


def _by_kind(parts: Sequence[Part]) -> list[PathPart]:
    sums: Counter[tuple[str, str | None]] = Counter()
    for part in parts:
        sums[part.kind, CAUSES[part.cause] if part.cause >= 0 else None] += part.ns
    whole = max(sum(sums.values()), 1)
    return [
        PathPart(kind, cause, ns, round(ns / whole, 4)) for (kind, cause), ns in sums.most_common()
    ]


class _Places:
    """Sums the time of parts over kernels, and over what enqueued them."""

    def __init__(self, simulation: Simulation, readers: Sequence[Reader]) -> None:
        self._simulation = simulation
        self._ns: list[IntArray] = []  # by item of each device
        self._kernel_ns: list[IntArray] = []
        self._work_ns: list[IntArray] = []  # of the host before each item
        for subject in simulation.subjects:
            self._ns.append(np.zeros(len(subject.program), np.int64))
            self._kernel_ns.append(np.zeros(len(subject.program), np.int64))
            self._work_ns.append(np.zeros(len(subject.program), np.int64))
        self._readers = readers

    def add(self, parts: Sequence[Part]) -> None:
        """Add the parts of one step."""
        for part in parts:
            of = self._work_ns if part.kind == "host_work" else self._ns
            of[part.device][part.item] += part.ns
            if part.kind in ("kernel", "communication"):
                self._kernel_ns[part.device][part.item] += part.ns

    def kernels(self, whole: int) -> list[PathPlace]:
        """Kernels, longest first."""
        sums: Counter[str] = Counter()
        for subject, ns in zip(self._simulation.subjects, self._kernel_ns, strict=True):
            rows = np.flatnonzero(ns)
            names = subject.gpu.ops
            code = names["name"][subject.program.op[rows]]
            _add_named(sums, names.texts["name"], code, ns[rows])
        return [replace(p, label=classify(p.name).label) for p in _top(sums, whole)]

    def ranges(self, whole: int) -> list[PathPlace]:
        """Innermost annotations, those that mark steps left out."""
        sums: Counter[str] = Counter()
        for (_, e), at, ns in self._enqueued():
            main = e.gpu.host.ranges["thread_id"] == e.gpu.host.main_thread
            texts = e.gpu.host.ranges.texts.get("name", [])
            telling = ~np.append(marking_steps(texts, e.steps.label), True)
            if len(e.gpu.host.ranges):
                rows = main & telling[e.gpu.host.ranges["name"]]
                _add_stabbed(sums, e.gpu.host.ranges.take(rows), at, ns)
        return _top(sums, whole)

    def operators(self, whole: int) -> list[PathPlace]:
        """Outermost framework operators."""
        sums: Counter[str] = Counter()
        for number, ((_, e), at, ns) in enumerate(self._enqueued()):
            read = self._readers[number]
            frame = read("operator", "process_id", "thread_id", "start_ns", "end_ns", "name")
            _add_stabbed(sums, _outermost(frame, e.gpu), at, ns)
        return _top(sums, whole)

    def _enqueued(self) -> list[tuple[tuple[int, Explanation], IntArray, IntArray]]:
        """Of each device: when the host was at the items on the path, and their time.

        What the host did before an item lies before it: a wait for input in the range of the
        loader, not in that of the upload which follows.
        """
        found = []
        for device, subject, ns, work in zip(
            self._simulation.devices,
            self._simulation.subjects,
            self._ns,
            self._work_ns,
            strict=True,
        ):
            program = subject.program
            rows, worked = np.flatnonzero(ns), np.flatnonzero(work)
            length = program.work_ns.sum(axis=1)[worked]
            # evenly over the time that the work took, in whole nanoseconds that sum to it
            upto = work[worked][:, None] * np.arange(1, _SPREAD + 1) // _SPREAD
            shares = np.diff(upto, axis=1, prepend=0)
            middle = (2 * np.arange(_SPREAD) + 1 - 2 * _SPREAD) / (2 * _SPREAD)
            at = program.at_ns[worked][:, None] + np.rint(length[:, None] * middle).astype(np.int64)
            moments = np.concatenate((program.at_ns[rows], at.ravel()))
            times = np.concatenate((ns[rows], shares.ravel()))
            order = np.argsort(moments, kind="stable")
            found.append((device, moments[order], times[order]))
        return found


def _outermost(frame: Frame, gpu: GpuTimeline) -> Frame:
    """Operators of the launching threads that lie in no other operator of their thread."""
    if not len(frame):
        return frame
    mine = frame["process_id"] == gpu.process_id
    keep = np.zeros(len(frame), bool)
    for thread in gpu.host.launch_threads:
        rows = np.flatnonzero(mine & (frame["thread_id"] == thread))
        if len(rows):
            before = np.maximum.accumulate(np.append(-1, frame["end_ns"][rows][:-1]))
            keep[rows] = frame["start_ns"][rows] >= before
    return frame.take(keep)


def _add_stabbed(sums: Counter[str], frame: Frame, at: IntArray, ns: IntArray) -> None:
    if not len(frame):
        return
    row = stab_innermost(frame["start_ns"], frame["end_ns"], at)
    inside = row >= 0
    _add_named(sums, frame.texts["name"], frame["name"][row[inside]], ns[inside])


def _add_named(sums: Counter[str], texts: list[str], code: IntArray, ns: IntArray) -> None:
    held = np.zeros(len(texts) + 1, np.int64)
    np.add.at(held, code, ns)
    for number in np.flatnonzero(held[: len(texts)]).tolist():
        sums[texts[number]] += int(held[number])


def _top(sums: Counter[str], whole: int) -> list[PathPlace]:
    ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return [PathPlace(name, ns, round(ns / max(whole, 1), 4)) for name, ns in ranked[:TOP]]
