"""How far a step after a repair can be from what is expected of it, whatever is repaired."""

from __future__ import annotations

import math
from typing import Final

RUN_TO_RUN: Final = 0.03
"""Share by which the mean steps of two short runs of one program differ where the device sets the
pace, in nine of ten: their turns differ by 1.8 % (root mean square). What the host does differs
more (``simulation.pace.BETWEEN_RUNS``) and widens the range by as much as it moves the step."""

OF_THE_GAIN: Final = 0.4
"""What the model of a repair leaves open: this part of the gain, as a share of what then remains.
What is repaired is never all that the repair changes, and of what remains the more was changed the
more was gained."""

UNFORESEEN: Final = 0.14
"""What a repair takes away besides what is known to go, as a share of what then remains: where few
gains are expected it is most of what a prediction misses, and the step is then shorter. With both,
90 % of the ratios that were measured lie in the range that was predicted for programs nobody had
looked at, of nineteen sets, 735 predictions (``benchmarks/predictions/first_seen.py``); as many of
the newest seven sets as of the others."""


def uncertain_share(ratio: float, *others: float) -> float:
    """By what share of itself the step after a repair is uncertain, either way.

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
        after - math.hypot(max(after - low, 0.0), error, UNFORESEEN * after),
        after + math.hypot(max(high - after, 0.0), error),
    )
