"""Everything about the communication of a job; each part is made when first asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from stepscope.activity.communication import also_computes, qualified_name
from stepscope.breakdown.explain import Explanation
from stepscope.collectives.calls import Participant
from stepscope.collectives.exposure import (
    Parts,
    Windows,
    parts,
    step_windows,
    windows,
)
from stepscope.collectives.facts import Facts, facts
from stepscope.collectives.late import Lateness, lateness
from stepscope.collectives.match import match
from stepscope.collectives.pace import Pace, pace
from stepscope.collectives.parallel import Guess, guesses
from stepscope.collectives.result import Matched
from stepscope.collectives.work import Work, work
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.frame import IntArray

_MATCHED: Final = 0.5
"""Ranks of which less of the communication has a counterpart are compared step by step."""


@dataclass(frozen=True)
class Collectives:
    """The communication of a job.

    Attributes:
        participants: the devices, by rank.
        explained: their explanations, in the same order.
        matched: which operations belong together, waiting apart from transferring.
    """

    participants: list[Participant]
    explained: list[Explanation]
    matched: Matched

    @cached_property
    def windows_ns(self) -> tuple[IntArray, IntArray]:
        """Begin and end of the steady steps that all devices share, on the job's clock.

        Where ranks are compared step by step, those of the first device.
        """
        if self.by_step:
            first = self.matched.ranks[0].clock
            begin, end = self.own_windows[0]
            return first.to(begin), first.to(end)
        return windows(self.explained, self.matched)

    @cached_property
    def by_step(self) -> bool:
        """Whether the ranks can only be compared step by step, each by its own steps.

        That is where most communication of a device has no counterpart on the others, although they
        belong to one job: some of it does, or one capture holds them all.
        """
        if self.alone:
            return False
        several = bool((self.matched.instances.members > 1).any())
        if not several and len({p.clock for p in self.participants}) > 1:
            return False
        begin, end = windows(self.explained, self.matched)
        shares = []
        for e, rank in zip(self.explained, self.matched.ranks, strict=True):
            start = e.lane.ops["start_ns"]
            inside = np.ones(len(start), bool)
            if len(begin):
                low, high = rank.clock.back(np.array([begin[0], end[-1]]))
                inside = (start >= low) & (start < high)
            count = int((inside & e.lane.is_communication).sum())
            if count:
                shares.append(int(inside[rank.op].sum()) / count)
        return not several or min(shares, default=1.0) < _MATCHED

    @cached_property
    def own_windows(self) -> list[Windows]:
        """The same windows on each device's own clock, ns."""
        if self.by_step:
            return step_windows(self.explained)
        begin, end = self.windows_ns
        return [(rank.clock.back(begin), rank.clock.back(end)) for rank in self.matched.ranks]

    @property
    def says(self) -> list[str]:
        """What could not be matched or had to be assumed, in sentences."""
        said = []
        if self.by_step:
            said.append(
                "most communication kernels of a rank could not be matched one to one with those "
                "of the others, so that ranks are compared step by step: communication that one "
                "has beyond the rank with least is taken for waiting"
            )
        if self.fused:
            said.append(
                f"kernels that communicate and compute in one ({', '.join(self.fused[:3])}"
                + (", ..." if len(self.fused) > 3 else "")
                + ") count as communication; what they compute cannot be told apart"
            )
        return [*said, *self.matched.says]

    @cached_property
    def fused(self) -> list[str]:
        """Names of the kernels that communicate and compute in one."""
        found = set()
        for p in self.participants:
            ops = p.lane.ops
            texts = ops.texts["name"]
            for code in distinct_values(ops["name"][p.lane.is_communication]).tolist():
                if also_computes(texts[code]):
                    found.add(qualified_name(texts[code]).rsplit("::", 1)[-1])
        return sorted(found)

    @cached_property
    def parts(self) -> Parts:
        """Where each device's time goes in these windows."""
        return parts(
            self.explained, self.matched, self.own_windows, *self.windows_ns, by_step=self.by_step
        )

    @cached_property
    def work(self) -> Work:
        """What each device was given to do in these windows."""
        return work(self.participants, self.own_windows)

    @cached_property
    def paces(self) -> list[Pace]:
        """What each device's host needs for a step."""
        return [pace(p, e) for p, e in zip(self.participants, self.explained, strict=True)]

    @cached_property
    def lateness(self) -> Lateness | None:
        """Which rank the others wait for; None where nobody waits."""
        return lateness(self.parts, self.work, self.paces)

    @cached_property
    def facts(self) -> Facts:
        """Every matched operation of every device."""
        return facts(self.explained, self.matched)

    @cached_property
    def groups(self) -> list[Guess]:
        """What the communicators are likely for."""
        return guesses(self.explained, self.matched, *self.windows_ns)

    def step_of(self, time_ns: IntArray) -> IntArray:
        """Which shared step each time (of the job's clock) lies in; -1 outside."""
        begin, end = self.windows_ns
        if not len(begin):
            return np.full(len(time_ns), -1, np.int64)
        at = np.searchsorted(begin, time_ns, side="right") - 1
        return np.where((at >= 0) & (time_ns < end[np.maximum(at, 0)]), at, -1)

    @property
    def alone(self) -> bool:
        """Whether only one device is there, so that waiting cannot be told from transferring."""
        return len(self.participants) == 1

    @property
    def step_ns(self) -> float:
        """Mean length of the shared windows, ns; 0 where there are none."""
        begin, end = self.windows_ns
        return float(np.mean(end - begin)) if len(begin) else 0.0


def collectives(
    participants: list[Participant], explained: list[Explanation]
) -> Collectives | None:
    """The communication of some devices; None where they do not communicate."""
    matched = match(participants)
    return None if matched is None else Collectives(participants, explained, matched)
