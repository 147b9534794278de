"""How full the SMs are, what limits that, and how even the last wave is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from stepscope.ncu.model import Launch

LIMITS: Final = {
    "limit_registers": ("registers", "fewer registers a thread: smaller tiles, __launch_bounds__"),
    "limit_shared": ("shared memory", "less shared memory a block, or a larger carve-out"),
    "limit_warps": ("warps", "the SM is full: nothing"),
    "limit_blocks": ("blocks", "larger blocks: a SM holds only so many"),
    "limit_barriers": ("barriers", "fewer named barriers a block"),
}
"""Metric of a limit -> (what limits, what helps)."""


@dataclass(frozen=True)
class Occupancy:
    """How full the SMs are.

    Attributes:
        theoretical: share of the warp slots that resources allow; None where not recorded.
        achieved: share of them that was filled on average; None where not recorded.
        limited_by: keys of ``LIMITS`` that set the theoretical occupancy.
        waves: rounds in which all SMs are filled; None where not recorded.
        tail: share of the time lost because the last wave does not fill the device, where blocks
            take equal time; 0 for many waves, None where unknown.
        filled: share of the SMs that get a block at all; None where unknown.
    """

    theoretical: float | None
    achieved: float | None
    limited_by: tuple[str, ...]
    waves: float | None
    tail: float | None
    filled: float | None


def occupancy_of(launch: Launch) -> Occupancy:
    """The occupancy of a launch."""
    limits = {key: value for key in LIMITS if (value := launch.get(key)) is not None}
    least = min(limits.values(), default=0.0)
    theoretical, achieved = launch.get("theoretical_occupancy"), launch.get("achieved_occupancy")
    waves = launch.get("waves")
    sms, blocks = launch.sms, launch.blocks
    return Occupancy(
        theoretical=None if theoretical is None else theoretical / 100,
        achieved=None if achieved is None else achieved / 100,
        limited_by=tuple(key for key, value in limits.items() if value == least),
        waves=waves,
        tail=None if not waves else (math.ceil(waves) - waves) / math.ceil(waves),
        filled=min(blocks / sms, 1.0) if sms and blocks else None,
    )
