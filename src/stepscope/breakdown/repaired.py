"""How far a step after a repair can be from what is expected of it, whatever is repaired."""

from __future__ import annotations

import math
from typing import Final

RUN_TO_RUN: Final = 0.03
"""Share by which the mean steps of two short runs of one program differ where the device sets the
pace, in nine of ten: their turns differ by 1.8 % (root mean square). What the host does differs
more (``simulation.pace.BETWEEN_RUNS``) and widens the range by as much as it moves the step."""

OF_THE_GAIN: Final = 0.5
"""What the model of a repair leaves open: this part of the gain, as a share of what then remains.
What is repaired is never all that the repair changes, and of what remains the more was changed the
more was gained. With it 87 % of the ratios that were measured lie in the range that was predicted
for programs nobody had looked at, of fifteen sets, 589 predictions
(``benchmarks/predictions/first_seen.py``); with 0.35, as it was fitted to programs that the model
was worked on with, 84 %."""


def uncertain_share(ratio: float, *others: float) -> float:
    """By what share of itself the step after a repair is uncertain.

    Args:
        ratio: expected step after it, over the step before.
        others: further shares, independent of these.
    """
    return math.hypot(RUN_TO_RUN, OF_THE_GAIN * max(1.0 - ratio, 0.0), *others)


def widened(after: float, low: float, high: float, before: float) -> tuple[float, float]:
    """The ends of a range, with what is uncertain of every repair; both are independent.

    Args:
        after: expected step after the repair.
        low: lower end by what is known of this repair; counts where it lies below ``after``.
        high: upper end likewise.
        before: the step before it.
    """
    error = after * uncertain_share(after / before)
    return (
        after - math.hypot(max(after - low, 0.0), error),
        after + math.hypot(max(high - after, 0.0), error),
    )
