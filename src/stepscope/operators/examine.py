"""Which launches of a program ncu should capture: the kernels that a diagnosis is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.intervals.distinct import among
from stepscope.kernels.view import Kernels
from stepscope.operators.roofline import function_name

MOST_LAUNCHES: Final = 40
"""Launches of one capture: with the full set ncu runs each some 40 times, about a second."""


@dataclass(frozen=True)
class Launches:
    """Launches for ncu's filters.

    Attributes:
        functions: function names, without parameters, the heaviest first; shell-safe.
        skip: launches of these functions before the first steady step of the trace.
        count: launches of these functions in that step, at most ``MOST_LAUNCHES``.
        left_out: functions that would have been too many launches.
    """

    functions: tuple[str, ...]
    skip: int
    count: int
    left_out: tuple[str, ...]

    @property
    def pattern(self) -> str:
        """What ``ncu --kernel-name`` takes."""
        return f"regex:^({'|'.join(self.functions)})$"


def launches_of(kernels: Kernels, names: Sequence[str]) -> Launches | None:
    """The launches of some kernels in the first steady step; None where they have none there.

    Args:
        kernels: the device.
        names: full kernel names, the heaviest first.
    """
    wanted = list(dict.fromkeys(function_name(name) for name in names))
    ops = kernels.lane.ops
    place = {function: at for at, function in enumerate(wanted)}
    missing = len(wanted)
    texts = ops.texts["name"]
    codes = np.array([place.get(function_name(text), missing) for text in texts] + [missing])
    order = kernels.order[kernels.lane.is_kernel[kernels.order]]
    functions = codes[ops["name"][order]]
    steady = kernels.step[order][kernels.steady[order]]
    if not len(steady):
        return None
    inside = kernels.step[order] == steady.min()
    a_step = np.bincount(functions[inside], minlength=missing + 1)[:missing]
    kept: list[int] = []
    for at in range(missing):
        # the heaviest is kept whatever it costs
        if a_step[at] and (not kept or a_step[[*kept, at]].sum() <= MOST_LAUNCHES):
            kept.append(at)
    if not kept:
        return None
    mine = among(functions, kept)
    first = int(np.argmax(mine & inside))
    return Launches(
        functions=tuple(wanted[at] for at in kept),
        skip=int(mine[:first].sum()),
        count=min(int(a_step[kept].sum()), MOST_LAUNCHES),
        left_out=tuple(wanted[at] for at in range(missing) if a_step[at] and at not in kept),
    )
