"""The stage of a pipeline that sets its pace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.collectives.job import Staged, stages_of
from stepscope.collectives.late import LEAST_MORE, WORK_SHARE

UNEVEN: Final = 1.1
"""Stages that differ by less are balanced: layers cannot be split."""

_ALIKE: Final = 0.6
"""A lower clock slows what computes and hardly what moves memory; a device that is shared slows all
alike. Kernels that are slowed at least this part of what is typical are slowed like the others."""

_NEARLY_ALL: Final = 0.9
"""So many kernels of different name must be. What more layers do not lengthen tells the two apart:
each kernel of theirs is as long as before, and so is the optimizer's of a tensor."""


@dataclass(frozen=True)
class SlowStage:
    """A stage that computes longer than the others.

    Attributes:
        number: its place in the pipeline, from 0.
        devices: positions of its devices.
        surplus_ns: what it computes a step beyond the mean of all devices, ns.
        by_rate: whether most of that is kernels that take longer here than the same ones on other
            stages: its device is slow, and moving layers away would not help.
    """

    number: int
    devices: list[int]
    surplus_ns: float
    by_rate: bool


def slow_stage(c: Staged) -> SlowStage | None:
    """The stage that computes longest; None where the stages are balanced, or there are none."""
    stages = stages_of(c)
    if len(stages) < 2 or not len(c.parts):
        return None
    compute = c.parts.compute.mean(axis=0)
    number = max(range(len(stages)), key=lambda s: max(compute[d] for d in stages[s]))
    worst = max(stages[number], key=lambda d: float(compute[d]))
    mean = float(compute.mean())
    if compute[worst] < UNEVEN * mean:
        return None
    others = [d for stage in stages for d in stage if d not in stages[number]]
    surplus = float(compute[worst]) - mean
    by_rate = not _more_work(c, worst, others) and _all_slower(c, worst, others)
    return SlowStage(number, stages[number], surplus, by_rate)


def _more_work(c: Staged, device: int, others: list[int]) -> bool:
    """Whether enough of the surplus shows in what was launched."""
    compute = c.parts.compute.sum(axis=0).astype(float)
    longer = compute[device] / max(float(compute[others].mean()), 1.0) - 1
    for launched in (c.work.kernels.sum(axis=0), c.work.threads.sum(axis=0)):
        more = launched[device] / max(float(launched[others].mean()), 1.0) - 1
        if more >= max(LEAST_MORE, WORK_SHARE * longer):
            return True
    return False


def _all_slower(c: Staged, device: int, others: list[int]) -> bool:
    """Whether nearly all kernels take as much longer as on a device that is slow by itself."""
    theirs: dict[str, list[float]] = {}
    for other in others:
        for name, mean in c.kernel_means(other).items():
            theirs.setdefault(name, []).append(mean)
    mine = c.kernel_means(device)
    slower = np.array([mine[n] / max(np.median(theirs[n]), 1.0) for n in mine if n in theirs])
    if not len(slower):
        return False
    typical = float(np.median(slower)) - 1
    return typical > 0 and float((slower - 1 >= _ALIKE * typical).mean()) >= _NEARLY_ALL
