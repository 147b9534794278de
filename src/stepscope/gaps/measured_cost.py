"""What recording costs, measured: the steady steps against steps of the same run without it.

``stepscope run --steps`` times some whole steps after the recording, by the program's clock and
with no work on the GPU at either end. The difference of the means is what recording adds to a step,
whatever the tool, the machine and the program are. The first recorded steps are no part of it where
they were set aside: beginning to record costs once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity.device import Reader
from stepscope.trace.frame import IntArray

TABLE: Final = "timed_stretch"
DEVIATIONS: Final = 2.0
"""The bounds lie so many standard errors beside the middle."""


@dataclass(frozen=True)
class MeasuredCost:
    """What recording adds to a step of one process, ns.

    Attributes:
        cost_ns: the difference of the mean steps; negative where recorded steps were the faster.
        low_ns: its lower bound.
        high_ns: its upper bound.
        unrecorded_steps: steps that were timed and not recorded.
        unrecorded_ns: their mean.
    """

    cost_ns: float
    low_ns: float
    high_ns: float
    unrecorded_steps: int
    unrecorded_ns: float


def measured_cost(read: Reader, process_id: int, steady_ns: IntArray) -> MeasuredCost | None:
    """What recording adds to a step; None where nothing was timed without it.

    Args:
        read: gives tables as frames.
        process_id: the process.
        steady_ns: lengths of the steady steps, whose variation says how far means can be trusted.
    """
    rows = read(TABLE, "process_id", "start_ns", "end_ns", "steps", "recorded")
    if len(rows):
        rows = rows.take((rows["process_id"] == process_id) & ~rows["recorded"].astype(bool))
    if not len(rows) or not len(steady_ns):
        return None
    steps = int(rows["steps"].sum())
    mean = float((rows["end_ns"] - rows["start_ns"]).sum()) / steps
    spread = float(np.std(steady_ns, ddof=1)) if len(steady_ns) > 1 else 0.0
    error = DEVIATIONS * spread * (1 / len(steady_ns) + 1 / steps) ** 0.5
    cost = float(steady_ns.mean()) - mean
    return MeasuredCost(cost, cost - error, cost + error, steps, mean)
