"""What tools that record in the program add to each CUDA call, as far as measurements tell.

Nsight Systems and Stepscope's collector do not say what they cost, and unlike with torch.profiler
one figure does not fit all machines. Programs whose host sets the pace were run with and without
Nsight Systems 2025.3 (docs/guides/run.md, and the captures of ``benchmarks/captures``): divided by
the CUDA calls of a step, the difference was 0.25 us on one machine, and 3.5 to 9 us on four
others. The geometric middle is 1.5 us, which is also what is usually said of it. The collector
added two thirds of that in the same minutes, for half as many recorded calls.

Such an estimate is no ground to move time from one cause to another. It says how much of the late
launches the tool may have made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity.device import Lane


@dataclass(frozen=True)
class UnitCost:
    """What a tool adds to one recorded CUDA call.

    Attributes:
        tool: its name.
        least_ns: the least that was measured.
        typical_ns: the geometric middle.
        most_ns: the most that was measured.
    """

    tool: str
    least_ns: int
    typical_ns: int
    most_ns: int


UNIT_COSTS: Final = {
    "nsys": UnitCost("Nsight Systems", 250, 1_500, 9_000),
    "stepscope": UnitCost("the collector", 300, 2_000, 12_000),
}
"""By the trace's source. torch.profiler is not here: ``gaps.profiler_cost`` charges it."""

LARGEST_PART: Final = 0.55
"""The tool makes no more than this part of a step: of the programs that were measured, the one that
suffered most took 2.2 times as long under Nsight Systems as without."""


@dataclass(frozen=True)
class CallCost:
    """What a tool may have added to the CUDA calls of one process, ns a steady step.

    Attributes:
        unit: what it adds to a call.
        calls: recorded CUDA calls a step.
        least_ns: by the least that was measured.
        typical_ns: by the middle.
        most_ns: by the most that was measured.
    """

    unit: UnitCost
    calls: float
    least_ns: float
    typical_ns: float
    most_ns: float


def call_cost(lane: Lane, source: str, begin_ns: int, end_ns: int, n_steps: int) -> CallCost | None:
    """What the capturing tool may have added; None for tools that are accounted for otherwise.

    Args:
        lane: the device whose process is looked at.
        source: the trace's source.
        begin_ns: begin of the steady window.
        end_ns: end of the steady window.
        n_steps: steps in it.
    """
    unit = UNIT_COSTS.get(source)
    api = lane.host.api
    if unit is None or not len(api):
        return None
    low, high = np.searchsorted(api["start_ns"], (begin_ns, end_ns))
    calls = float(high - low) / n_steps
    limit = LARGEST_PART * (end_ns - begin_ns) / n_steps
    least, typical, most = (
        min(calls * ns, limit) for ns in (unit.least_ns, unit.typical_ns, unit.most_ns)
    )
    return CallCost(unit, calls, least, typical, most)
