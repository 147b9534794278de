"""Every device of every rank explained: steps, accounting, gaps; the job's replay; its causes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from stepscope.trace import progress
from stepscope.trace.errors import InputError, UsageError
from stepscope.trace.trace import RankTrace
from stepscope.trace.units import shown

if TYPE_CHECKING:
    from stepscope.activity.device import Reader
    from stepscope.breakdown.explain import Explanation
    from stepscope.breakdown.without_gpu import WithoutGpu
    from stepscope.diagnosis.cause import Case, Detection
    from stepscope.diagnosis.combined import Both
    from stepscope.diagnosis.freed import AsDiagnosed
    from stepscope.diagnosis.lever import Pulled
    from stepscope.diagnosis.predictions import Predicted
    from stepscope.diagnosis.ranking import Ranked
    from stepscope.jobs.view import Device, JobView
    from stepscope.kernels.ceilings import Ceilings
    from stepscope.memory.fit import Change as MemoryChange
    from stepscope.simulation import Change, Prediction, Simulation
    from stepscope.simulation.settings.base import Setting
    from stepscope.steps.model import StepChoice
    from stepscope.trace.frame import IntArray
    from stepscope.trace.meta import Meta

_TRACING: Final = (
    "capture with CUDA tracing on (nsys profile -t cuda,nvtx, or ProfilerActivity.CUDA) while the "
    "GPU works"
)
_CUPTI: Final = (
    "CUPTI lacks permission (ERR_NVGPUCTRPERM: run as root, or load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0), runs under WSL, or another profiler holds it; "
    "stepscope doctor tells which"
)
_ROCM: Final = "the tracer of ROCm did not deliver them, or another profiler holds it"
_LONGEST: Final = 60
_UNTIMED: Final = ("negative_duration", "not_a_number")
"""Problems that leave operations out for their times."""


class Explained:
    """The explained job. It is explained when that is first asked for, and once.

    Args:
        ranks: its traces, by rank.
        warnings: receives what is assumed on the way, in sentences.
        ceilings: the device's measured ceilings; None where datasheets tell.
        choice: what the user says a step is.
    """

    def __init__(
        self,
        ranks: Sequence[RankTrace],
        warnings: list[str],
        ceilings: Ceilings | None,
        choice: StepChoice,
    ) -> None:
        self._ranks = ranks
        self._warnings = warnings
        self._ceilings = ceilings
        self._choice = choice

    @property
    def is_known(self) -> bool:
        """Whether the job has been explained in this process, so that asking again is quick."""
        return "view" in self.__dict__

    @property
    def devices(self) -> list[Device]:
        """The explained devices, by rank.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return self.view.devices

    @property
    def explanations(self) -> list[tuple[int, Explanation]]:
        """(rank, explanation) of every device of every rank, by rank.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return [(device.rank, device.explanation) for device in self.devices]

    @cached_property
    def view(self) -> JobView:
        """All explained devices, and what they do together.

        Raises:
            InputError: a trace holds no GPU work, or none with sound times.
        """
        from stepscope.breakdown.explain import explain
        from stepscope.jobs.view import Device, JobView

        found: list[Device] = []
        for rank_trace in progress.each(self._ranks, "Explaining", lambda m: f"rank {m.rank}"):
            trace = rank_trace.trace
            of_rank = explain(trace.frame, trace.meta, self._ceilings, self._choice)
            if not of_rank:
                raise InputError(why_without_gpu(str(trace.path), trace.frame, trace.meta))
            if any(e.end_ns <= e.begin_ns for e in of_rank):
                raise InputError(
                    f"the GPU work in {trace.path} takes no time, so its times are "
                    "damaged; capture again, or copy the capture again"
                )
            of_rank = self._computing(of_rank)
            ranks = self._ranks_of_processes(rank_trace, [e.gpu.process_id for e in of_rank])
            found += [
                Device(ranks[e.gpu.process_id], e, trace.frame, trace.meta, rank_trace.rank)
                for e in of_rank
            ]
        if self._ceilings is not None:
            self._check_ceilings([device.explanation for device in found], self._ceilings)
        return JobView(sorted(found, key=lambda d: (d.rank, d.explanation.gpu.device)))

    def _computing(self, devices: list[Explanation]) -> list[Explanation]:
        """Those of a trace's devices that compute, where any does.

        On a GPU that only other ones' copies pass through nothing is lost by its idling.
        """
        found = [e for e in devices if e.gpu.computes]
        if not found or len(found) == len(devices):
            return devices
        without = ", ".join(f"GPU {e.gpu.device}" for e in devices if not e.gpu.computes)
        self._warnings.append(
            f"{without} ran copies or memory sets but no kernel, and counts to no step"
        )
        return found

    def host_steps(self, rank_trace: RankTrace) -> dict[int, IntArray]:
        """Begins of the steps of a trace's devices on the host and the end of the last, ns.

        Nothing for a trace without GPU work, or whose steps nothing marks.
        """
        import numpy as np

        from stepscope.breakdown.explain import explain

        if not rank_trace.trace.rows("gpu_op"):
            return {}
        found = explain(rank_trace.trace.frame, rank_trace.trace.meta, self._ceilings, self._choice)
        return {
            e.gpu.device: np.append(e.steps.begin_ns, e.steps.end_ns)
            for e in found
            if e.steps.marked
        }

    def _check_ceilings(self, devices: Sequence[Explanation], ceilings: Ceilings) -> None:
        """Say so where ceilings are of another product than the devices."""
        products = {e.kernels.device[0] for e in devices}
        others = sorted(products - {"", ceilings.device})
        if "" in products:
            self._warnings.append(
                f"the capture names no GPU; the ceilings, measured on {ceilings.device}, are "
                "taken as those of its GPU"
            )
        if others:
            self._warnings.append(
                f"the ceilings were measured on {ceilings.device}, so they say nothing about "
                f"{', '.join(others)}; its datasheet counts instead"
            )

    def _ranks_of_processes(self, rank_trace: RankTrace, processes: list[int]) -> dict[int, int]:
        """Rank of each process of one trace: one report may hold all ranks of a machine."""
        distinct = list(dict.fromkeys(processes))
        if len(distinct) == 1 or len(self._ranks) > 1:
            return dict.fromkeys(distinct, rank_trace.rank)
        known = rank_trace.trace.frame("process", "process_id", "rank")
        stated = dict(zip(known["process_id"].tolist(), known["rank"].tolist(), strict=True))
        ranks = [stated.get(process, -1) for process in distinct]
        if min(ranks) >= 0 and len(set(ranks)) == len(ranks):
            return dict(zip(distinct, ranks, strict=True))
        warning = (
            f"the capture holds {len(distinct)} processes with GPU work; they are numbered as "
            "ranks in the order of their process ids"
        )
        if warning not in self._warnings:
            self._warnings.append(warning)
        return {process: rank for rank, process in enumerate(sorted(distinct))}

    @cached_property
    def steps_ahead(self) -> dict[int, int]:
        """What to add to the step numbers of each rank for those of the first one."""
        collectives = self.view.collectives
        ahead = collectives.steps_ahead if collectives is not None else [0] * len(self.devices)
        return {device.rank: more for device, more in zip(self.devices, ahead, strict=True)}

    @cached_property
    def simulation(self) -> Simulation:
        """The job as it can be replayed, with or without changes.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.simulation import Simulation

        readers = {device.rank: device.read for device in self.devices}
        collectives = self.view.collectives
        matched = collectives.matched if collectives is not None else None
        return Simulation(self.explanations, readers, matched)

    @cached_property
    def cases(self) -> list[Case]:
        """Every device as causes see it."""
        from stepscope.diagnosis.cause import Case, JobCase

        job = JobCase(self.view)
        several = len(self._ranks) > 1
        job.cases += [Case(device, job, several) for device in self.devices]
        return job.cases

    @cached_property
    def ranked(self) -> list[Ranked]:
        """The job's causes, ranked by what the step gains without them."""
        from stepscope.diagnosis.predictions import simulated
        from stepscope.diagnosis.ranking import ranked

        def predict(case: Case, cause: str, detection: Detection) -> Predicted | None:
            return simulated(self.simulation, case, cause, detection)

        return ranked(self.cases, predict)

    @cached_property
    def freed(self) -> AsDiagnosed:
        """What the diagnosis predicts without a cause of idle time."""
        from stepscope.diagnosis.freed import AsDiagnosed

        return AsDiagnosed(self.simulation, self.cases)

    @cached_property
    def together(self) -> Both | None:
        """The first two findings repaired together; None where there are fewer."""
        from stepscope.diagnosis.combined import both
        from stepscope.diagnosis.ranking import reported

        def predict(changes: list[Change]) -> Prediction:
            return self.simulation.predict(changes)

        return both(reported(self.ranked), predict)

    @cached_property
    def levers(self) -> list[Pulled]:
        """What is left to gain in the kernels of the slowest device."""
        from stepscope.diagnosis.engine import reference_of
        from stepscope.diagnosis.lever import pulled
        from stepscope.diagnosis.ranking import reported

        return pulled(reference_of(self.cases), reported(self.ranked), lambda: self.simulation)


def changes_of(
    *,
    free: Sequence[str] = (),
    scale_kernels: Sequence[str] = (),
    launches_free: bool = False,
    overlap_communication: bool = False,
    ranks_like_median: Sequence[int] = (),
    even_work: str | None = None,
    settings: Sequence[str] = (),
) -> list[Change]:
    """Changes as they are written on a command line.

    Args:
        free: causes of idle time that are gone.
        scale_kernels: ``REGEX=FACTOR``: kernels that take another time.
        launches_free: launches cost nothing.
        overlap_communication: communication is hidden as far as dependencies allow.
        ranks_like_median: ranks that are as fast as the median rank.
        even_work: ``ranks`` or ``stages``: what GPU work is spread evenly over.
        settings: ``NAME=VALUE``: settings of the program, see :func:`settings_known`.

    Raises:
        UsageError: one is written wrong.
    """
    from stepscope.simulation import (
        EvenWork,
        Free,
        LaunchesFree,
        OverlapCommunication,
        RankLike,
        ScaleKernels,
    )

    found: list[Change] = [RankLike(rank) for rank in dict.fromkeys(ranks_like_median)]
    found += [Free(cause) for cause in dict.fromkeys(free)]  # a cause is gone once
    for text in scale_kernels:
        regex, equals, factor = text.rpartition("=")
        try:
            found.append(ScaleKernels(regex, float(factor)))
        except ValueError:
            equals = ""
        if not equals or not regex:
            raise UsageError(f"{text!r} is not REGEX=FACTOR, as in 'gemm=0.5'")
    if launches_free:
        found.append(LaunchesFree())
    if overlap_communication:
        found.append(OverlapCommunication())
    if even_work is not None:
        found.append(EvenWork("stages" if even_work == "stages" else "parts"))
    found += _settings(settings)
    if not found:
        raise UsageError(
            "nothing to change; name it, as in --set batch=2x, --free host_sync or --scale-kernel "
            "'gemm=0.5'"
        )
    return found


def other_capture(text: str) -> tuple[str, str]:
    """Path and setting of another capture as they are written: ``CAPTURE@NAME=VALUE``.

    Raises:
        UsageError: it is written wrong.
    """
    from stepscope.simulation.settings.base import setting_of

    path, at, setting = text.rpartition("@")
    if not at or not path:
        raise UsageError(f"{text!r} is not CAPTURE@NAME=VALUE, as in double.json@batch=2x")
    setting_of(setting)
    return path, setting


def with_times(
    changes: Sequence[Change], setting: str, source: str, explanations: Sequence[Explanation]
) -> list[Change]:
    """Changes, where a setting takes the times of kernels from a capture that was made with it.

    Args:
        changes: the changes.
        setting: the setting of the other capture, as it is written.
        source: the other capture's name.
        explanations: its devices.

    Raises:
        UsageError: it says nothing of what is set.
    """
    from stepscope.simulation.settings.base import setting_of
    from stepscope.simulation.settings.measured import as_measured, times_of

    kind = type(setting_of(setting))
    found = list(changes)
    for place, change in enumerate(found):
        if isinstance(change, kind):
            found[place] = as_measured(change, setting, source, times_of(explanations))
            return found
    raise UsageError(
        f"--with {source}@{setting}: nothing sets {setting.partition('=')[0]}; add --set {setting}"
    )


def _settings(texts: Sequence[str]) -> list[Change]:
    """Settings as they are written; a bucket size goes to the ranks that are put in."""
    from dataclasses import replace

    from stepscope.simulation.settings.base import setting_of
    from stepscope.simulation.settings.bucket import BucketSize
    from stepscope.simulation.settings.ranks import Ranks

    names = [text.partition("=")[0].strip() for text in texts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is set twice; a setting has one value")
    found: list[Change] = [setting_of(text) for text in texts]
    size = next((one for one in found if isinstance(one, BucketSize)), None)
    more = next((one for one in found if isinstance(one, Ranks)), None)
    if size is not None and more is not None:
        found = [one for one in found if one is not size and one is not more]
        found.append(replace(more, mib=size.mib))
    return found


def idle_causes() -> list[str]:
    """Ids of the causes that idle time is charged to."""
    from stepscope.simulation.program import C

    return list(C)


def settings_known() -> list[Setting]:
    """What can be set, by name: each with its values, its model and its validity."""
    from stepscope.simulation.settings.base import settings

    return list(settings().values())


def memory_change(batch: float, checkpoint: bool, zero: int, ranks: int) -> MemoryChange:
    """A change whose need of memory can be predicted."""
    from stepscope.memory.fit import Change

    return Change(batch, checkpoint, zero, ranks if zero else 1)


def why_without_gpu(path: str, read: Reader, meta: Meta) -> str:
    """One sentence: the trace, why it holds no GPU work as far as that shows, and what to do.

    Args:
        path: the trace.
        read: gives its tables.
        meta: what the import says of it.
    """
    from stepscope.breakdown.without_gpu import without_gpu

    source = meta.source
    for problem in meta.problems:
        if problem.id in _UNTIMED and "gpu_op" in problem.scope:
            return (
                f"{path} holds no GPU work that can be used: {problem.count:,} {problem.message}; "
                f"{problem.remedy}"
            )
    if source == "torch_memory":
        return (
            f"{path} is a memory snapshot, which tells of memory and not of time; "
            f"stepscope memory explains it, and for time {_TRACING}"
        )
    known = without_gpu(read)
    if known.launches:
        return (
            f"{path} holds no GPU work: {known.launches} calls that launch kernels were recorded, "
            f"the kernels were not; {_ROCM if known.api == 'hip' else _CUPTI}"
        )
    if source == "kineto" and known.operators:
        return f"{path} holds no GPU work: {_on_the_cpu(known)}"
    if known.repeated:
        return f"{path} holds no GPU work; {_repeats(known)}; to see the GPU, {_TRACING}"
    return f"{path} holds no GPU work; {_TRACING}"


def _on_the_cpu(known: WithoutGpu) -> str:
    if known.devices:
        return (
            f"nothing ran on a GPU in this trace, although the machine has one "
            f"({known.devices[0]}); the model or its tensors are on the CPU (model.to('cuda'), "
            "tensor.to('cuda')), or ProfilerActivity.CUDA was off"
        )
    return (
        "nothing ran on a GPU in this trace; the model or its tensors are on the CPU, or "
        "ProfilerActivity.CUDA was off"
    )


def _repeats(known: WithoutGpu) -> str:
    parts = ", ".join(
        f"{_short(part.name)} ({shown(part.typical_ns, 'ns')})" for part in known.repeated
    )
    return (
        f"its ranges repeat {known.repeated[0].count} times, every "
        f"{shown(known.period_ns, 'ns')}: {parts}"
    )


def _short(name: str) -> str:
    return repr(name if len(name) <= _LONGEST else name[: _LONGEST - 3] + "...")
