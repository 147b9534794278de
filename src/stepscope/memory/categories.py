"""What allocated memory is for, in the categories of torch's memory profiler.

Torch decides by the tensors that each operator reads, which no trace records. Here it is decided by
who allocates, in which phase, and when it is released:

* inputs are allocated by an operator that copies from the host, or outside of everything;
* a temporary is released inside the call that allocated it;
* an activation is allocated in the forward pass and outlives its operator;
* a gradient is allocated in the backward pass and outlives it;
* autograd detail is allocated in the backward pass and released in it;
* optimizer state is allocated by the optimizer and outlives its step;
* parameters are allocated where a model is made or moved.

What was allocated before the capture is known by its stack (snapshots), else by its size:
parameters are as large as the gradients that autograd accumulates, and the optimizer's class tells
how many values it keeps for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from stepscope.intervals.distinct import among
from stepscope.memory.callers import Caller, Callers, Phase
from stepscope.memory.history import Blocks, History
from stepscope.trace.frame import BoolArray, IntArray


class Category(IntEnum):
    """What memory is for; the order is that of stacked plots."""

    PARAMETER = 0
    OPTIMIZER_STATE = 1
    INPUT = 2
    TEMPORARY = 3
    ACTIVATION = 4
    GRADIENT = 5
    AUTOGRAD_DETAIL = 6
    UNKNOWN = 7

    @property
    def label(self) -> str:
        """Name in tables."""
        return self.name.lower()


_STATES = {
    **dict.fromkeys(("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "FusedAdam", "Lamb"), 2),
    **dict.fromkeys(("SGD", "RMSprop", "Adagrad", "Lion", "Muon"), 1),
}
"""Optimizer -> values that it usually keeps for each parameter."""
_ENOUGH = 0.98


@dataclass(frozen=True)
class Categorised:
    """Blocks with what they are for.

    Attributes:
        blocks: those of the history; what was allocated before the capture may be split.
        category: ``Category`` of each.
        inferred: whether the split of what was there before is by size only.
        parameter_bytes: bytes of the parameters; 0 where unknown.
    """

    blocks: Blocks
    category: IntArray
    inferred: bool
    parameter_bytes: int

    def over_time(self, events: int) -> IntArray:
        """Bytes by category: row 0 before the first event, then one row after each."""
        change = np.zeros((events + 2, len(Category)), np.int64)
        np.add.at(change, (self.blocks.made + 1, self.category), self.blocks.bytes)
        np.add.at(change, (self.blocks.freed + 1, self.category), -self.blocks.bytes)
        return np.cumsum(change, axis=0)[: events + 1]


def categorise(
    history: History, callers: Callers, by_stack: dict[int, tuple[Phase, Caller]] | None = None
) -> Categorised:
    """Decide what every block is for.

    Args:
        history: of one device.
        callers: of its events.
        by_stack: phase of every stack, for snapshots.
    """
    blocks = history.blocks
    category = np.full(len(blocks), Category.UNKNOWN, np.int64)
    if history.of_driver:
        return Categorised(blocks, category, False, 0)
    count = len(history.events)
    before = blocks.made < 0
    made = np.maximum(blocks.made, 0)
    phase = np.where(before, -1, callers.phase[made]) if count else np.full(len(blocks), -1)
    category[phase == Phase.FORWARD] = Category.ACTIVATION
    category[phase == Phase.SETUP] = Category.PARAMETER
    outside = phase == Phase.OUTSIDE
    category[outside & (blocks.freed < count)] = Category.INPUT
    if count:
        category[~before & callers.uploads[made]] = Category.INPUT
        _optimizer(history, callers, blocks, phase, category)
        if by_stack is not None:
            _existing_by_stack(blocks, by_stack, category)
        sizes = blocks.bytes[category == Category.PARAMETER]
        _backward(history, callers, blocks, phase, sizes, category)
        _temporaries(history, callers, blocks, phase, category)
    elif by_stack is not None:
        _existing_by_stack(blocks, by_stack, category)
    if by_stack is not None:
        known = int(blocks.bytes[category == Category.PARAMETER].sum())
        return Categorised(blocks, category, False, known)
    return _existing_by_size(history, callers, blocks, category)


def _backward(
    history: History, callers: Callers, blocks: Blocks, phase: IntArray, sizes: IntArray,
    category: IntArray,
) -> None:  # fmt: skip
    """Gradients outlive the backward pass; the rest is autograd's own."""
    allocates = history.events["bytes"] > 0
    backward = allocates & (callers.phase == Phase.BACKWARD)
    ends = np.flatnonzero(
        (allocates & (callers.phase != Phase.BACKWARD))
        | among(callers.phase, [Phase.OPTIMIZER, Phase.ZERO_GRAD])
    )
    rows = np.flatnonzero(phase == Phase.BACKWARD)
    at = np.searchsorted(ends, blocks.made[rows])
    count = len(history.events)
    end = np.append(ends, count)[at]
    last = np.maximum.accumulate(np.where(backward, np.arange(count), -1))
    last_made = last[np.maximum(end - 1, 0)]
    freed = blocks.freed[rows]
    outlives = freed >= end
    if len(sizes):  # released before anything else is allocated: sizes of parameters tell
        outlives = (outlives | (freed > last_made)) & among(blocks.bytes[rows], sizes)
    else:
        outlives &= end < count
    category[rows] = np.where(outlives, Category.GRADIENT, Category.AUTOGRAD_DETAIL)


def _optimizer(
    history: History, callers: Callers, blocks: Blocks, phase: IntArray, category: IntArray
) -> None:
    """State outlives the optimizer's step."""
    others = np.flatnonzero((history.events["bytes"] > 0) & (callers.phase != Phase.OPTIMIZER))
    rows = np.flatnonzero((phase == Phase.OPTIMIZER) | (phase == Phase.ZERO_GRAD))
    count = len(history.events)
    end = np.append(others, count)[np.searchsorted(others, blocks.made[rows])]
    outlives = blocks.freed[rows] >= end
    category[rows] = np.where(outlives, Category.OPTIMIZER_STATE, Category.TEMPORARY)


def _temporaries(
    history: History, callers: Callers, blocks: Blocks, phase: IntArray, category: IntArray
) -> None:
    """Released inside the call that allocated them."""
    count = len(history.events)
    rows = np.flatnonzero((blocks.made >= 0) & (blocks.freed < count))
    made, freed = blocks.made[rows], blocks.freed[rows]
    scope = callers.scope[made]
    inside: BoolArray = (scope >= 0) & (scope == callers.scope[freed])
    if not (callers.scope >= 0).any():  # stacks: nothing else is allocated from another place
        stack = history.events["stack_id"]
        allocations = np.flatnonzero(history.events["bytes"] > 0)
        place = np.searchsorted(allocations, made)
        numbers = stack[allocations]
        change = np.flatnonzero(np.diff(numbers, prepend=numbers[:1])) if len(numbers) else place
        after = np.append(allocations[change], count)[np.searchsorted(change, place, side="right")]
        inside = (stack[made] >= 0) & (freed < after) & (phase[rows] == Phase.FORWARD)
    category[rows[inside]] = Category.TEMPORARY


def _existing_by_stack(
    blocks: Blocks, by_stack: dict[int, tuple[Phase, Caller]], category: IntArray
) -> None:
    """What was there before the first event, by its stack."""
    purpose = {
        Phase.SETUP: Category.PARAMETER,
        Phase.OPTIMIZER: Category.OPTIMIZER_STATE,
        Phase.FORWARD: Category.ACTIVATION,
        Phase.BACKWARD: Category.GRADIENT,
    }
    for row in np.flatnonzero((blocks.made < 0) & (blocks.stack >= 0)).tolist():
        found = purpose.get(by_stack[int(blocks.stack[row])][0], Category.UNKNOWN)
        category[row] = found


def _existing_by_size(
    history: History, callers: Callers, blocks: Blocks, category: IntArray
) -> Categorised:
    """What was there before the first event, by when it is released and by its size."""
    count = len(history.events)
    early = (blocks.made < 0) & (blocks.freed < count)
    phase = np.where(early, callers.phase[np.minimum(blocks.freed, max(count - 1, 0))], -1)
    category[phase == Phase.BACKWARD] = Category.ACTIVATION
    category[among(phase, [Phase.OPTIMIZER, Phase.ZERO_GRAD])] = Category.GRADIENT
    parameters = callers.parameter_bytes or _gradients_alive(blocks, category, count)
    rest = np.flatnonzero((blocks.made < 0) & (blocks.freed == count))
    if not len(rest) or not parameters:
        return Categorised(blocks, category, False, parameters)
    row = int(rest[0])
    whole = int(blocks.bytes[row])
    if whole < _ENOUGH * parameters:
        return Categorised(blocks, category, False, 0)
    parts = [min(parameters, whole)]
    kept = _STATES.get(callers.optimizer, 0) * parameters
    left = whole - parts[0]
    parts.append(kept if left >= _ENOUGH * kept else 0)
    parts[1] = min(parts[1], left)
    parts.append(left - parts[1])
    kinds = [Category.PARAMETER, Category.OPTIMIZER_STATE, Category.UNKNOWN]
    chosen = [(size, kind) for size, kind in zip(parts, kinds, strict=True) if size]
    return Categorised(
        Blocks(
            np.concatenate([[size for size, _ in chosen], np.delete(blocks.bytes, row)]),
            np.concatenate([np.full(len(chosen), -1), np.delete(blocks.made, row)]),
            np.concatenate([np.full(len(chosen), count), np.delete(blocks.freed, row)]),
            np.concatenate([np.full(len(chosen), -1), np.delete(blocks.stack, row)]),
        ),
        np.concatenate([[int(kind) for _, kind in chosen], np.delete(category, row)]),
        True,
        parameters,
    )


def _gradients_alive(blocks: Blocks, category: IntArray, events: int) -> int:
    """Most bytes of gradients that are allocated at a time: as large as the parameters."""
    rows = category == Category.GRADIENT
    if not rows.any():
        return 0
    change = np.zeros(events + 2, np.int64)
    np.add.at(change, blocks.made[rows] + 1, blocks.bytes[rows])
    np.add.at(change, blocks.freed[rows] + 1, -blocks.bytes[rows])
    return int(np.cumsum(change).max())
