"""Links between operators: a forward operator and those that compute its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stepscope.activity.device import launching_calls
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.frame import Frame, IntArray

if TYPE_CHECKING:
    from stepscope.timeline.answers import Links, Place
    from stepscope.timeline.timeline import Timeline
    from stepscope.timeline.track import Track

COLUMNS: Final = (
    "id",
    "process_id",
    "thread_id",
    "start_ns",
    "end_ns",
    "sequence_number",
    "forward_thread_id",
    "forward_start_ns",
)


_LAUNCH: Final = ("id", "process_id", "correlation_id", "start_ns")
MOST_ENDS = 50
"""Ends of one kind of link that are told one by one."""
Located = Callable[[int, str, Any], "list[Place]"]


def launching_ids(read: Callable[..., Frame]) -> IntArray:
    """``api_call.id`` of what launched each ``gpu_op``; -1 where unknown.

    Args:
        read: columns of a table of one trace.
    """
    gpu = read("gpu_op", *_LAUNCH)
    api = read("api_call", "api", *_LAUNCH)
    api = api.take(api.equals("api", "runtime", "driver"))
    call = launching_calls(gpu, api)
    if not len(api):
        return call
    return np.where(call >= 0, api["id"][np.maximum(call, 0)], -1)


class OperatorLinks:
    """Links of the operators of one timeline; keeps what takes long to make.

    Args:
        timeline: the timeline.
        located: ``(member, table, ids)`` to where these rows are drawn.
    """

    def __init__(self, timeline: Timeline, located: Located) -> None:
        self._timeline = timeline
        self._located = located
        self._forward: dict[int, tuple[IntArray, IntArray]] = {}

    def ends(self, track: Track, id_: int) -> list[Links]:
        """Forward operator of a backward one, and the backward operators of a forward one."""
        if track.table != "operator":
            return []
        if track.rank_trace not in self._forward:
            frame = self._timeline.sources[track.rank_trace].read("operator", *COLUMNS)
            self._forward[track.rank_trace] = frame["id"], forward_of(frame)
        ids, forward = self._forward[track.rank_trace]
        row = int(np.searchsorted(ids, id_))
        found: list[Links] = []

        def add(message: str, linked: IntArray, *, later: bool) -> None:
            ends = self._located(track.rank_trace, "operator", linked[:MOST_ENDS].tolist())
            more = max(0, len(linked) - MOST_ENDS)
            found.append({"message": message, "forward": later, "ends": ends, "more": more})

        if forward[row] >= 0:
            add("Forward operator", ids[forward[row : row + 1]], later=False)
        if len(backward := ids[forward == row]):
            add("Backward operators", backward, later=True)
        return found


def forward_of(operators: Frame) -> IntArray:
    """Row of the forward operator whose gradient each operator computes; -1 for none.

    Autograd's recorded link (``forward_start_ns``) counts, else the autograd sequence number, which
    a backward operator shares with the forward operator that created its node. Of several forward
    operators of one number the innermost made the node: the one that began last before it.

    Args:
        operators: rows of ``operator``, sorted by start, with ``COLUMNS``.
    """
    found = np.full(len(operators), -1, np.int64)
    for process_id in distinct_values(operators["process_id"]).tolist():
        rows = np.flatnonzero(operators["process_id"] == process_id)
        mine = _forward_of_process(operators.take(rows))
        found[rows] = np.where(mine >= 0, rows[np.maximum(mine, 0)], -1)
    return found


def _forward_of_process(table: Frame) -> IntArray:
    start, linked_start = table["start_ns"], table["forward_start_ns"]
    sequence = table["sequence_number"]
    backward = (table["forward_thread_id"] > 0) | (linked_start >= 0)
    found = np.full(len(start), -1, np.int64)
    forward = np.flatnonzero(~backward)
    # by the recorded link: a forward operator that begins exactly then, the outermost of several
    # that begin together
    at = np.minimum(np.searchsorted(start[forward], linked_start), max(0, len(forward) - 1))
    if len(forward):
        hit = (linked_start >= 0) & (start[forward][at] == linked_start)
        found[hit] = forward[at[hit]]
    wanted = np.flatnonzero(backward & (found < 0) & (sequence >= 0))
    made = forward[sequence[forward] >= 0]
    if not len(wanted) or not len(made):
        return found
    # by the number: positions in the order of (number, start); the last one before the operator
    order = made[np.lexsort((np.arange(len(made)), sequence[made]))]
    span = len(start) + 1
    key = sequence[order] * span + order
    before = np.searchsorted(key, sequence[wanted] * span + wanted) - 1
    hit = (before >= 0) & (sequence[order[np.maximum(before, 0)]] == sequence[wanted])
    found[wanted[hit]] = order[before[hit]]
    return found
