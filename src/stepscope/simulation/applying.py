"""Which function makes a change of the programs of a job, in which order, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stepscope.gaps.idle import CAUSES
from stepscope.simulation import changes as edit
from stepscope.simulation import graphs, overlap, pace, ranks
from stepscope.simulation.changed_operations import call_compiled, change_ops, scale_kernels
from stepscope.simulation.changes import Bound, Change
from stepscope.simulation.program import C
from stepscope.simulation.settings.base import Edit
from stepscope.simulation.subject import Subject
from stepscope.simulation.without_causes import free, launches_free
from stepscope.trace.errors import UsageError
from stepscope.trace.regex import regex


def turn(change: Change) -> int:
    """When a change is made: ranks become alike before, settings change after all others.

    What calling graphs and compiled code costs is added after anything of the host is taken away.
    """
    if isinstance(change, Edit):
        return change.order
    if isinstance(change, edit.InGraphs | edit.CallCompiled):
        return 1
    return -1 if isinstance(change, edit.RankLike | edit.DeviceLike | edit.EvenWork) else 0


def changed_by(subjects: list[Subject], change: Change, bound: Bound) -> tuple[list[Subject], int]:
    """The programs with one change, and how many operations (or ranks) it is about.

    Raises:
        UsageError: the change names a cause, rank, pattern or factor that cannot be.
    """
    if isinstance(change, edit.DeviceLike):
        return ranks.device_like(subjects, change.rank), len(subjects) - 1
    if isinstance(change, edit.EvenWork):
        return ranks.even_work(subjects, change.scope), len(subjects) - 1
    if isinstance(change, edit.RankLike):
        known = {s.rank for s in subjects}
        if change.rank not in known:
            raise UsageError(f"there is no rank {change.rank}; ranks are {_listed(known)}")
        if change.other != "median" and change.other not in known:
            raise UsageError(f"there is no rank {change.other}; ranks are {_listed(known)}")
        return ranks.rank_like(subjects, change.rank, change.other), len(subjects) - 1
    if isinstance(change, edit.Free) and change.cause not in C:
        raise UsageError(
            f"{change.cause!r} is no cause of idle time; those are {', '.join(CAUSES)}"
        )
    if isinstance(change, edit.ScaleKernels):
        regex(change.regex)
    for factor in _factors(change):
        if not 0 <= factor < 1e6:
            raise UsageError(f"a factor is at least 0 and below a million, not {factor:g}")
    if isinstance(change, edit.ScaleOps) and len(change.factors) != len(change.ops):
        raise UsageError(
            f"{len(change.ops):,} operations need a factor each, not {len(change.factors):,}"
        )
    found, count = [], 0
    for subject in subjects:
        after, matched = _one(subject, change, bound)
        found.append(after)
        count += matched
    return found, count


def _factors(change: Change) -> tuple[float, ...]:
    if isinstance(change, edit.ScaleOps):
        return change.factors
    return (change.factor,) if isinstance(change, edit.ScaleKernels) else ()


def _one(subject: Subject, change: Change, bound: Bound) -> tuple[Subject, int]:
    match change:
        case edit.Free(cause, ranks) if ranks is None or subject.rank in ranks:
            after, count = free(subject, cause, bound), 1
        case edit.LaunchesFree():
            after, count = launches_free(subject, bound), 1
        case edit.InGraphs("step"):
            after, count = graphs.whole_step(subject, bound), 1
        case edit.OverlapCommunication():
            after = overlap.overlap_communication(subject, change, bound)
            count = int(subject.program.communication.sum())
        case edit.WithoutTransfers():
            after, count = overlap.without_transfers(subject, change, bound)
        case edit.ScaleKernels():
            after, count = scale_kernels(subject, change)
        case edit.LoadedBeside(more):
            after, count = pace.loaded_beside(subject, more, bound), 1
        case edit.CallCompiled():
            after, count = call_compiled(subject, change, bound)
        case edit.ScaleOps() | edit.RemoveOps() | edit.FuseOps():
            after, count = change_ops(subject, change)
        case _:
            after, count = subject, 0
    return after, count


_OPEN: Final = (
    edit.LaunchesFree
    | edit.InGraphs
    | edit.CallCompiled
    | edit.LoadedBeside
    | edit.OverlapCommunication
    | edit.WithoutTransfers
    | edit.DeviceLike
    | edit.EvenWork
    | Edit
)


_SURE: Final = frozenset({"input_starvation", "compilation_or_warmup", "small_kernels"})


def is_uncertain(changes: Sequence[Change], subjects: Sequence[Subject]) -> bool:
    """Whether any change, or the graph, has an uncertainty that another replay shows."""
    return any(s.program.inferred for s in subjects) or any(
        isinstance(c, _OPEN) or (isinstance(c, edit.Free) and c.cause not in _SURE) for c in changes
    )


def _listed(ranks: set[int]) -> str:
    known = sorted(ranks)
    return ", ".join(map(str, known[:8])) + (", ..." if len(known) > 8 else "")
