"""The loop at the end of a capture most of whose launches are the program's start.

Uploading weights, building models, compiling and the search for the fastest kernels launch more
than a short loop does, and nothing of it repeats as a whole.
"""

from __future__ import annotations

import numpy as np

from stepscope.steps.repetition import (
    OFTEN,
    Launches,
    Repetition,
    find_repetition,
    is_iteration,
    takes_batch,
)


def late_repetition(found: Launches, runs: int) -> Repetition | None:
    """The iterations in the last half, quarter, eighth and so on of what was launched.

    To be asked only where nothing in the whole is an iteration: a loop that does not hold half of
    a sequence lies in its last half entirely, where it lasts until the end. Each repetition must
    hold a run of the optimizer or take a batch in, since a part of a capture may be a part of a
    step, in which layers repeat.

    Args:
        found: the launches.
        runs: how often the optimizer ran; 0 where it is not seen.
    """
    size = len(found) // 2
    while size >= 2 * OFTEN:
        first = len(found) - size
        last = found.take(np.arange(first, len(found)))
        repeated = find_repetition(last)
        if (
            repeated is not None
            and len(repeated) >= OFTEN
            and is_iteration(last, repeated, runs)
            and (runs or takes_batch(last, repeated.anchors))
        ):
            return Repetition(repeated.anchors + first, 0)
        size //= 2
    return None
