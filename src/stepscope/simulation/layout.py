"""What a host does in a run, put into one order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.intervals.distinct import among
from stepscope.simulation.program import LAUNCH, MARK, WAIT
from stepscope.simulation.run import Run
from stepscope.simulation.waits import HostWaits, Order
from stepscope.trace.frame import AnyArray, BoolArray, IntArray


@dataclass(frozen=True)
class Layout:
    """The items of a run in host order; arrays have one value an item unless they say otherwise.

    Attributes:
        order: the operations.
        kind: ``LAUNCH``, ``WAIT`` or ``MARK``.
        at_ns: begin of the item's call.
        until_ns: end of the call, or of the item's turn where another thread went on.
        hosted: whether the enqueueing call is known.
        position: position in ``order`` of its operation; -1 for none.
        item_of: item of each position in ``order``; -1 outside the run.
        wait_item: item of each wait.
        cut: another thread went on enqueueing while this call waited.
    """

    order: Order
    kind: IntArray
    at_ns: IntArray
    until_ns: IntArray
    hosted: BoolArray
    position: IntArray
    item_of: IntArray
    wait_item: IntArray
    cut: BoolArray

    def __len__(self) -> int:
        return len(self.kind)

    def of_ops(self, values: AnyArray, otherwise: int = 0) -> IntArray:
        """Values by position as values by item."""
        if not len(values):
            return np.full(len(self), otherwise, np.int64)
        taken = values[np.maximum(self.position, 0)]
        return np.where(self.position >= 0, taken, otherwise).astype(np.int64)

    @cached_property
    def inside(self) -> IntArray:
        """Positions in the run."""
        return np.flatnonzero(self.item_of >= 0)

    @cached_property
    def _by_stream(self) -> list[tuple[IntArray, IntArray]]:
        """Of each stream: positions, and the items of those in the run."""
        found = []
        for positions in self.order.of_stream:
            items = self.item_of[positions]
            found.append((positions, items[items >= 0]))
        return found

    def reference(self, position: int) -> int | None:
        """The item of a position; those before the run count back from its end (negative)."""
        if self.item_of[position] >= 0:
            return int(self.item_of[position])
        positions, items = self._by_stream[int(self.order.stream[position])]
        if not len(items) or position > self.inside[-1]:
            return None
        at = int(np.searchsorted(positions, position))
        first = int(np.searchsorted(positions, self.inside[0]))
        back = at - first
        return int(items[back]) - len(self) if -len(items) <= back < 0 else None


def lay_out(
    e: Explanation, order: Order, waits: HostWaits, run: Run, called_ns: IntArray
) -> Layout:
    """Put everything that begins in the run into host order.

    Args:
        e: the explained device.
        order: its operations.
        waits: the host's waits in the run.
        run: the steps.
        called_ns: begin of the enqueueing call of each position; its later part where the call
            first waits, so that the wait is an item of its own.
    """
    gpu, api = e.gpu, e.gpu.host.api
    inside = np.flatnonzero((order.begin_ns >= run.begin_ns) & (order.begin_ns < run.end_ns))
    n_mark, n_op, n_wait = run.steps, len(inside), len(waits.call)
    none = np.empty(0, np.int64)
    marks = e.steps.begin_ns[run.first : run.last + 1]
    wait_at = api["start_ns"][waits.call] if n_wait else none
    wait_until = api["end_ns"][waits.call] if n_wait else none
    own = order.ops[inside]
    at = np.concatenate((marks, called_ns[inside], wait_at))
    until = np.concatenate((marks, gpu.enqueue_end_ns[own], wait_until))
    hosted = np.concatenate((np.ones(n_mark, bool), gpu.call[own] >= 0, np.ones(n_wait, bool)))
    kind = np.repeat(np.array([MARK, LAUNCH, WAIT], np.int64), (n_mark, n_op, n_wait))
    # of what begins at once, steps come first, and waits before what waits
    first = np.repeat(np.array([0, 2, 1]), (n_mark, n_op, n_wait))
    sequence = np.lexsort((np.arange(len(at)), first, at))
    place = np.empty(len(at), np.int64)
    place[sequence] = np.arange(len(at))
    item_of = np.full(len(order.ops), -1, np.int64)
    item_of[inside] = place[n_mark : n_mark + n_op]
    position = np.full(len(at), -1, np.int64)
    position[item_of[inside]] = inside
    wait_item = place[n_mark + n_op :]
    at, until, kind, hosted = at[sequence], until[sequence], kind[sequence], hosted[sequence]
    # One program order: what another thread does meanwhile ends a call's turn. Operations that
    # share a call, and those of unknown call, take no host time of their own.
    until = np.where(hosted, until, at)
    turn = np.maximum(np.minimum(until, np.append(at[1:], run.end_ns)), at)
    joint = np.zeros(len(at), bool)
    joint[item_of[inside[among(gpu.call[own], waits.call)]]] = True
    cut = (kind == WAIT) & (turn < until) & ~np.append(joint[1:], False)
    return Layout(order, kind, at, turn, hosted, position, item_of, wait_item, cut)
