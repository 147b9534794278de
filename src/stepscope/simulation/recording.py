"""What recording costs over its estimate, where steps of the run were timed without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stepscope.simulation import pace
from stepscope.simulation.changes import Bound, Subject
from stepscope.simulation.engine import steps_of

_FACTORS: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0)
"""Costs over their estimate whose steps are replayed; between two of them steps lie on a line."""

_FINE: Final = np.arange(0, _FACTORS[-1], 0.005)

_ALIKE: Final = 0.005
"""Share of the step within which a replayed and a measured step are the same."""


def measured_factor(
    subjects: list[Subject], cost: Mapping[Bound, float], estimated: Mapping[Bound, float]
) -> dict[Bound, float]:
    """The factors that make the replayed step as long as those that nobody recorded.

    The cost stays spread over what was recorded, as the estimate has it.

    Args:
        subjects: the unchanged programs.
        cost: measured cost over the measured step: the most for ``low``, the least for ``high``.
        estimated: the factors of the estimate.
    """
    jobs = [pace.unrecorded(subjects, factor) for factor in _FACTORS]
    replayed = steps_of([[s.program for s in job] for job in jobs])
    steps = np.array([max(r.step_ns for r in ranks) for ranks in replayed], float)
    gained = np.maximum.accumulate(1 - steps / max(steps[0], 1.0))
    return {bound: factor_of(gained, share, estimated[bound]) for bound, share in cost.items()}


def factor_of(gained: Sequence[float] | NDArray[np.float64], share: float, near: float) -> float:
    """The factor that gains so much of the step.

    Where the device sets the pace many do: the step then says no more than that, and of those
    factors the one that is nearest to the estimate counts.

    Args:
        gained: what the replay gains with each of the factors, as a share of the step.
        share: what is to be gained; what the replay cannot gain at all is taken as its most.
        near: the estimate's factor.
    """
    fine = np.interp(_FINE, _FACTORS, gained)
    target = min(max(share, 0.0), float(fine[-1]))
    alike = _FINE[np.abs(fine - target) <= _ALIKE]
    return float(np.clip(near, alike[0], alike[-1])) if len(alike) else near
