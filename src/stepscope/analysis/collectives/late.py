"""Which rank the others wait for, and what it did meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from stepscope.analysis.collectives.exposure import Parts
from stepscope.analysis.collectives.work import Work
from stepscope.trace.frame import BoolArray, IntArray

Mechanism = Literal["work", "rate", "idle", "copy", "mixed"]

_MAIN: Final = 0.5
"""The part that explains at least half of the lateness is its cause."""

_WORK_SHARE: Final = 0.25
"""More work is the reason where at least this share of the surplus of time shows in what was
launched. Kernels with a fixed grid do their share inside, so launches show a part only; a slow
device launches exactly what the others do."""

_LEAST_MORE: Final = 0.02
"""Launches that differ by less are the same work: counters, padding, kernels at a step's edge."""

_IN_TURN: Final = 2.0
"""Late ranks take turns where the waits step by step are so many times what one rank causes."""


@dataclass(frozen=True)
class Lateness:
    """The rank (or ranks) that the others wait for.

    Attributes:
        ranks: positions of the late devices.
        in_turn: whether another one of them is late from step to step.
        late_at: the late device of each window; -1 where none stands out.
        imposed_ns: what even the least affected of the other devices waits in vain, ns a window,
            with no compute to cover it: what being in time would save.
        others_ns: median of what the others wait, ns a window.
        mechanism: ``work`` (more of it), ``rate`` (the same work takes longer), ``idle`` (the
            host left the device idle), ``copy`` or ``mixed``.
        idle_cause: with ``idle``, what the surplus of idle time is charged to.
        surplus_ns: what the late device spends beyond the others, by part, ns a window.
        more_work: largest ratio of what was launched on the late device and on the others.
        more_time: ratio of their compute time.
    """

    ranks: list[int]
    in_turn: bool
    late_at: IntArray
    imposed_ns: float
    others_ns: float
    mechanism: Mechanism
    idle_cause: str | None
    surplus_ns: dict[str, float] = field(default_factory=dict)
    more_work: float = 1.0
    more_time: float = 1.0


def lateness(parts: Parts, work: Work) -> Lateness | None:
    """Who is late, by the exposed waiting of all devices; None where nobody waits.

    The late rank is the one that waits least. Up to half of the ranks may be late together (the
    GPUs of a slow machine): the set ends where the total waits make their largest step.
    """
    waiting = parts.waiting
    n_windows, n = waiting.shape
    if n < 2 or not n_windows or not waiting.any():
        return None
    total = waiting.sum(axis=0)
    order = np.argsort(total, kind="stable")
    steps = np.diff(total[order])[: max(n // 2, 1)]
    size = int(np.argmax(steps)) + 1
    lasting = float(steps[size - 1]) / n_windows
    ranked = np.sort(waiting, axis=1)
    each = ranked[:, 1] - ranked[:, 0]
    in_turn = float(each.mean()) > _IN_TURN * lasting
    late = np.zeros((n_windows, n), bool)
    if in_turn:
        # windows without a late rank say nothing about why a rank is late
        stands_out = each >= 0.5 * each.max()
        late_at = np.where(stands_out, np.argmin(waiting, axis=1), -1)
        late[np.flatnonzero(stands_out), late_at[stands_out]] = True
        ranks = np.unique(late_at[stands_out]).tolist()
        if len(ranks) < 2:  # one rank, now and then
            in_turn = False
        imposed = float(each.mean())
    else:
        ranks = sorted(order[:size].tolist())
        late[:, ranks] = True
        late_at = order[np.argmin(waiting[:, order[:size]], axis=1)]
        imposed = lasting
    if imposed <= 0:
        return None
    surplus = {name: _surplus(time, late) for name, time in parts.own().items()}
    mechanism, idle_cause, more_work, more_time = _mechanism(parts, work, late, surplus, imposed)
    others = waiting[:, [d for d in range(n) if d not in ranks] or list(range(n))]
    return Lateness(
        ranks=ranks,
        in_turn=in_turn,
        late_at=late_at,
        imposed_ns=imposed,
        others_ns=float(np.median(others.mean(axis=0))),
        mechanism=mechanism,
        idle_cause=idle_cause,
        surplus_ns=surplus,
        more_work=more_work,
        more_time=more_time,
    )


def _late_and_others(values: IntArray, late: BoolArray) -> tuple[float, float]:
    """(late devices, typical other device), summed over the windows with a late device."""
    rows = late.any(axis=1)
    mine = np.where(late, values, 0).sum(axis=1)[rows] / late.sum(axis=1)[rows]
    others = np.nan_to_num(np.nanmedian(np.where(late, np.nan, values)[rows], axis=1))
    return float(mine.sum()), float(others.sum())


def _surplus(values: IntArray, late: BoolArray) -> float:
    mine, others = _late_and_others(values, late)
    return (mine - others) / len(late)


def _mechanism(
    parts: Parts, work: Work, late: BoolArray, surplus: dict[str, float], imposed: float
) -> tuple[Mechanism, str | None, float, float]:
    mine, others = _late_and_others(parts.compute, late)
    more_time = mine / max(others, 1.0)
    ratios = []
    for launched in (work.kernels, work.threads):
        mine, others = _late_and_others(launched, late)
        if others > 0:
            ratios.append(mine / others)
    more_work = max(ratios, default=1.0)
    name = max(surplus, key=lambda part: surplus[part])
    if surplus[name] < _MAIN * imposed:
        return "mixed", None, more_work, more_time
    launching = ("compute", "idle launch_bound", "idle small_kernels")
    if name in launching:
        kernels = _late_and_others(work.kernels, late)
        more = more_work if name == "compute" else kernels[0] / max(kernels[1], 1.0)
        took = more_time if name == "compute" else 1 + surplus[name] / max(others, 1.0)
        if more - 1 >= max(_LEAST_MORE, _WORK_SHARE * (took - 1)):
            return "work", None, more, more_time
    if name.startswith("idle "):
        cause = name.removeprefix("idle ")
        return "idle", None if cause == "unexplained" else cause, more_work, more_time
    if name == "compute":
        return "rate", None, more_work, more_time
    return ("copy" if name in ("copy", "memset") else "mixed"), None, more_work, more_time
