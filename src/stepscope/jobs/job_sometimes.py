"""Ranks that are late in some steps only: one that logs, saves or waits for a disk now and then.

The median over the steps does not see them. In most steps of a job some rank is last by chance; in
few of them one is last by much. Were all ranks as likely to be that one, it would rarely be the
same rank again: how often the same rank is, among the steps in which any is late by much, is
compared with the binomial distribution, for as many ranks as there are (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb
from typing import Final

import numpy as np

from stepscope.jobs.job_outliers import ALARMS, ENOUGH
from stepscope.trace.frame import AnyArray, IntArray

_BEYOND: Final = 2.0
"""By much: beyond so many times what the last rank of a usual step needs more than its peers."""

_AGAIN: Final = 2
"""A rank that is late in a single step says nothing about the next one."""


def late_steps(
    need: AnyArray, role: IntArray, known: Sequence[int], notable_ns: float
) -> dict[int, tuple[int, ...]]:
    """The steps in which a device is last by much, of each device that is so in any.

    Args:
        need: what each device needs for each step, steps x devices, ns.
        role: number of the peers of each device.
        known: devices that are late in most steps: their lateness hides that of others.
        notable_ns: what counts at least, ns beyond the peers.
    """
    apart = np.zeros(need.shape)
    for k in range(int(role.max(initial=-1)) + 1):
        own = np.flatnonzero(role == k)
        if len(own) >= ENOUGH:
            apart[:, own] = need[:, own] - np.median(need[:, own], axis=1, keepdims=True)
    apart[:, list(known)] = 0.0
    most, last = apart.max(axis=1), apart.argmax(axis=1)
    late = np.flatnonzero(most > max(notable_ns, _BEYOND * float(np.median(most))))
    return {
        device: tuple(late[last[late] == device].tolist())
        for device in sorted(set(last[late].tolist()))
    }


def beyond_chance(late: Mapping[int, tuple[int, ...]], devices: int) -> list[int]:
    """Those that are last by much more often than chance would have it.

    Args:
        late: the steps of each, as :func:`late_steps` gives them.
        devices: how many it could have been.
    """
    of = sum(map(len, late.values()))
    return [
        device
        for device, steps in late.items()
        if len(steps) >= _AGAIN
        and devices * at_least(len(steps), of, 1 / max(devices, 1)) <= ALARMS
    ]


def at_least(times: int, of: int, chance: float) -> float:
    """How likely something is to happen so often or more."""
    return sum(comb(of, k) * chance**k * (1 - chance) ** (of - k) for k in range(times, of + 1))
