"""What recording costs, measured: recorded steps against steps of the same run that were not.

``stepscope run --steps`` times some whole steps after the recording as it times the recorded ones:
by the program's clock, with no work on the GPU at either end. The difference is what recording
adds to a step, whatever the tool, the machine and the program are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.analysis.lanes import Reader
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
        recorded_steps: steps that were timed while they were recorded.
        unrecorded_steps: steps that were timed and not recorded.
        unrecorded_ns: the mean of the latter.
    """

    cost_ns: float
    low_ns: float
    high_ns: float
    recorded_steps: int
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
    rows = rows.take(rows["process_id"] == process_id) if len(rows) else rows
    if not len(rows):
        return None
    recorded = rows["recorded"].astype(bool)
    if recorded.all() or not recorded.any():
        return None
    length = rows["end_ns"] - rows["start_ns"]
    steps = [int(rows["steps"][mask].sum()) for mask in (recorded, ~recorded)]
    mean = [
        float(length[mask].sum()) / n for mask, n in zip((recorded, ~recorded), steps, strict=True)
    ]
    spread = float(np.std(steady_ns, ddof=1)) if len(steady_ns) > 1 else 0.0
    error = DEVIATIONS * spread * (1 / steps[0] + 1 / steps[1]) ** 0.5
    cost = mean[0] - mean[1]
    return MeasuredCost(cost, cost - error, cost + error, steps[0], steps[1], mean[1])
