"""Explain every device of every rank: steps, accounting, gaps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from stepscope.session.opening import Opening
from stepscope.trace import progress
from stepscope.trace.errors import InputError
from stepscope.trace.trace import Member

if TYPE_CHECKING:
    from stepscope.breakdown.explain import Explanation
    from stepscope.jobs.view import Device, JobView
    from stepscope.kernels.ceilings import Ceilings


def _title(member: Member) -> str:
    return f"rank {member.rank}"


class Explaining(Opening):
    """The explained job. It is explained when that is first asked for, and once."""

    @property
    def explanations(self) -> list[tuple[int, Explanation]]:
        """(rank, explanation) of every device of every rank, by rank.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return [(rank, explanation) for rank, _, explanation in self._explained]

    @property
    def devices(self) -> list[Device]:
        """The explained devices, by rank.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return self._view.devices

    @property
    def is_explained(self) -> bool:
        """Whether the job has been explained in this process, so that asking again is quick."""
        return "_explained" in self.__dict__

    @cached_property
    def _explained(self) -> list[tuple[int, Member, Explanation]]:
        """(rank, trace, explanation) of every device of every rank.

        Raises:
            InputError: a trace holds no GPU work, or none with sound times.
        """
        from stepscope.breakdown.explain import explain

        found: list[tuple[int, Member, Explanation]] = []
        for member in progress.each(self.job.members, "Explaining", _title):
            of_rank = explain(member.trace.frame, member.trace.meta, self._ceilings, self.choice)
            if not of_rank:
                from stepscope.session.without_gpu import why_without_gpu

                trace = member.trace
                raise InputError(why_without_gpu(str(trace.path), trace.frame, trace.meta.source))
            if any(e.end_ns <= e.begin_ns for e in of_rank):
                raise InputError(
                    f"the GPU work in {member.trace.path} takes no time, so its times are "
                    "damaged; capture again, or copy the capture again"
                )
            ranks = self._ranks_of_processes(member, [e.lane.process_id for e in of_rank])
            found += [(ranks[e.lane.process_id], member, e) for e in of_rank]
        if self._ceilings is not None:
            self._check_ceilings([e for _, _, e in found], self._ceilings)
        return sorted(found, key=lambda item: (item[0], item[2].lane.device))

    def _check_ceilings(self, devices: Sequence[Explanation], ceilings: Ceilings) -> None:
        """Say so where ceilings are of another product than the devices."""
        products = {e.kernels.device[0] or "an unnamed device" for e in devices}
        others = sorted(products - {ceilings.device})
        if others:
            self.job.remarks.append(
                f"the ceilings were measured on {ceilings.device}, so they say nothing about "
                f"{', '.join(others)}; its data sheet counts instead"
            )

    def _ranks_of_processes(self, member: Member, processes: list[int]) -> dict[int, int]:
        """Rank of each process of one trace: one report may hold all ranks of a machine."""
        distinct = list(dict.fromkeys(processes))
        if len(distinct) == 1 or len(self.job.members) > 1:
            return dict.fromkeys(distinct, member.rank)
        known = member.trace.frame("process", "process_id", "rank")
        stated = dict(zip(known["process_id"].tolist(), known["rank"].tolist(), strict=True))
        ranks = [stated.get(process, -1) for process in distinct]
        if min(ranks) >= 0 and len(set(ranks)) == len(ranks):
            return dict(zip(distinct, ranks, strict=True))
        remark = (
            f"the capture holds {len(distinct)} processes with GPU work; they are numbered as "
            "ranks in the order of their process ids"
        )
        if remark not in self.job.remarks:
            self.job.remarks.append(remark)
        return {process: rank for rank, process in enumerate(sorted(distinct))}

    @cached_property
    def _view(self) -> JobView:
        """All explained devices."""
        from stepscope.jobs.view import Device, JobView

        return JobView(
            [
                Device(rank, explanation, member.trace.frame, member.trace.meta, member.rank)
                for rank, member, explanation in self._explained
            ]
        )
