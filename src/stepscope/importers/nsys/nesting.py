"""Whether the push/pop ranges of each thread nest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.trace.frame import IntArray


def count_overlapping(parts: Sequence[tuple[IntArray, IntArray, IntArray]]) -> int:
    """Number of ranges that do not close in the reverse order of opening.

    Properly nested ranges find as many open ranges of their thread when they close as they found
    when they opened; where ranges overlap otherwise, at least one of them does not.

    Args:
        parts: (thread, start, end) of ranges, in any order.
    """
    if not parts:
        return 0
    thread = np.concatenate([part[0] for part in parts])
    start = np.concatenate([part[1] for part in parts])
    end = np.concatenate([part[2] for part in parts])
    real = end > start  # an empty range nests anywhere
    thread, start, end = thread[real], start[real], end[real]
    count = len(thread)
    if count == 0:
        return 0
    number = np.arange(count)
    # at one instant closes come before opens; the longest opens first, the shortest closes first
    opens = np.lexsort((number, -end, start, thread))
    rank = np.empty(count, np.int64)
    rank[opens] = np.arange(count)
    order = np.lexsort(
        (
            np.concatenate([rank, -rank]),
            np.concatenate([np.ones(count), np.zeros(count)]),
            np.concatenate([start, end]),
            np.concatenate([thread, thread]),
        )
    )
    is_open = order < count
    depth = np.cumsum(np.where(is_open, 1, -1))  # every thread ends at depth 0
    at_open = np.empty(count, np.int64)
    at_close = np.empty(count, np.int64)
    at_open[order[is_open]] = depth[is_open] - 1
    at_close[order[~is_open] - count] = depth[~is_open]
    return int((at_open != at_close).sum())
