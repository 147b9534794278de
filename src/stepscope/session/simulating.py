"""Replay the job, as it was and with changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from stepscope.session.explaining import Explaining
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    from stepscope.simulation import Change, Simulation
    from stepscope.simulation.result import CriticalPath, WhatIf


class Simulating(Explaining):
    """The job as it can be replayed."""

    @cached_property
    def simulation(self) -> Simulation:
        """The job as it can be replayed, with or without changes.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.simulation import Simulation

        readers = {rank: member.trace.frame for rank, member, _ in self._explained}
        collectives = self._view.collectives
        matched = collectives.matched if collectives is not None else None
        return Simulation(self.explanations, readers, matched)

    def whatif(self, changes: Sequence[Change]) -> WhatIf:
        """Predict the step with some changes, all together.

        Raises:
            UsageError: a change is impossible, or is about nothing in the capture.
        """
        from stepscope.simulation.result import WhatIf

        def made() -> WhatIf:
            from stepscope.simulation.summary import what_if

            return what_if(self.simulation, changes, self.paths)

        return self._answers.find(f"what if {list(changes)!r}", WhatIf, made)

    def critical_path(self, step: int | None = None) -> CriticalPath:
        """What decided how long the steps took.

        Args:
            step: number of one step; all replayed steps by default.

        Raises:
            UsageError: the step is not among the replayed ones.
        """
        from stepscope.simulation.result import CriticalPath

        def made() -> CriticalPath:
            from stepscope.simulation.summary import critical_path

            readers = [member.trace.frame for _, member, _ in self._explained]
            return critical_path(self.simulation, readers, self.paths, step)

        return self._answers.find(f"critical path {step}", CriticalPath, made)


def changes_of(
    *,
    free: Sequence[str] = (),
    scale_kernels: Sequence[str] = (),
    launches_free: bool = False,
    overlap_communication: bool = False,
    ranks_like_median: Sequence[int] = (),
) -> list[Change]:
    """Changes as they are written on a command line.

    Args:
        free: causes of idle time that are gone.
        scale_kernels: ``REGEX=FACTOR``: kernels that take another time.
        launches_free: launches cost nothing.
        overlap_communication: communication is hidden as far as dependencies allow.
        ranks_like_median: ranks that are as fast as the median rank.

    Raises:
        UsageError: one is written wrong.
    """
    from stepscope.simulation import (
        Free,
        LaunchesFree,
        OverlapCommunication,
        RankLike,
        ScaleKernels,
    )

    found: list[Change] = [RankLike(rank) for rank in ranks_like_median]
    found += [Free(cause) for cause in free]
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
    if not found:
        raise UsageError(
            "nothing to change; name it, as in --free host_sync or --scale-kernel 'gemm=0.5'"
        )
    return found
