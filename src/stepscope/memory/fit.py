"""Would it fit: the peak after another batch size, activation checkpointing, sharding.

The history is replayed with the change: blocks that grow with the batch take another size; what a
layer keeps for the backward pass is released after the layer and allocated again, with all that the
layer needs on the way, when its backward pass begins; what the optimizer keeps is divided among the
ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.intervals.distinct import among
from stepscope.memory.callers import Phase
from stepscope.memory.categories import Category
from stepscope.memory.report import Explained
from stepscope.memory.result import Prediction
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import BoolArray, FloatArray, IntArray

_ROUND: Final = 512
_ROUNDING: Final = 0.02
"""Blocks are split otherwise after a change: share of the peak by which that may move it."""
_RECOMPUTING: Final = 0.07
"""The same for the order in which recomputation allocates and releases; it also stops early."""
_BUFFERS: Final = 0.04
"""The same for when layers are gathered and gradients scattered."""


@dataclass(frozen=True)
class Change:
    """What is changed.

    Attributes:
        batch: factor of the batch size.
        checkpoint: whether each layer is recomputed in the backward pass.
        zero: stage of ZeRO; 0 for none.
        ranks: over how many ranks.
    """

    batch: float = 1.0
    checkpoint: bool = False
    zero: int = 0
    ranks: int = 1

    @property
    def text(self) -> str:
        """In words."""
        parts = []
        if self.batch != 1:
            parts.append(f"the batch times {self.batch:g}")
        if self.checkpoint:
            parts.append("activation checkpointing of each layer")
        if self.zero:
            parts.append(f"ZeRO-{self.zero} over {self.ranks} ranks")
        return ", ".join(parts) or "no change"


@dataclass(frozen=True)
class _Flow:
    """Changes of what is allocated: position among the events, order within it, bytes."""

    at: IntArray
    order: IntArray
    bytes: IntArray

    def peak(self) -> int:
        order = np.lexsort((self.order, self.at))
        return int(np.cumsum(self.bytes[order]).max(initial=0))


def predict(known: Explained, change: Change, limit_bytes: int | None) -> Prediction:
    """The peak of a device after a change.

    Args:
        known: its memory.
        change: what is changed.
        limit_bytes: what it must fit in; None for no comparison.
    """
    _refuse(known, change)
    assumptions: list[str] = []
    scales, uncertain = _scaling(known)
    if change.batch != 1:
        assumptions.append(
            "parameters, gradients, optimizer state and casts of weights keep their size; all else "
            "of the forward and backward pass grows with the batch"
        )
    middle, low, high = (
        _changed(known, change, chosen, assumptions if number == 0 else [])
        for number, chosen in enumerate((scales, scales & ~uncertain, scales | uncertain))
    )
    low, high = min(low, middle, high), max(low, middle, high)
    if change != Change():
        open_ = _ROUNDING + _RECOMPUTING * change.checkpoint + _BUFFERS * (change.zero > 1)
        low, high = round(low * (1 - open_)), round(high * (1 + open_))
    fits = None
    if limit_bytes is not None:
        fits = True if high <= limit_bytes else False if low > limit_bytes else None
    return Prediction(change.text, middle, low, high, limit_bytes, fits, assumptions)


def _refuse(known: Explained, change: Change) -> None:
    """Refuse what the capture cannot tell."""
    if not 0 < change.batch <= 1e6 or change.ranks < 1:
        raise UsageError("a batch factor and a number of ranks are larger than 0")
    if known.history.of_driver or not len(known.history.events):
        raise UsageError(
            "only the history of a framework's tensors tells what a change needs; record it with "
            "stepscope run --backend torch --memory"
        )
    if change.checkpoint and not len(known.callers.layers):
        raise UsageError(
            "no layers are seen, which checkpointing needs; record modules with "
            "torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True)"
        )


def _scaling(known: Explained) -> tuple[BoolArray, BoolArray]:
    """Which blocks grow with the batch, and of which that is open."""
    blocks, category = known.categorised.blocks, known.categorised.category
    made = np.maximum(blocks.made, 0)
    phase = np.where(blocks.made >= 0, known.callers.phase[made], -1)
    passing = among(phase, [Phase.FORWARD, Phase.BACKWARD, Phase.OUTSIDE])
    scales = passing & ~among(category, [Category.GRADIENT, Category.PARAMETER])
    scales |= category == Category.INPUT
    scales |= (blocks.made < 0) & (category == Category.ACTIVATION)
    scales &= blocks.freed < len(known.history.events)  # workspaces, and what was there before
    weights = known.callers.of_weights
    if len(weights):
        scales &= ~(weights[made] & (blocks.made >= 0))
    gradients = blocks.bytes[category == Category.GRADIENT]
    sizes = np.concatenate([gradients, gradients // 2])
    like = (phase == Phase.BACKWARD) & (blocks.bytes > _ROUND) & among(blocks.bytes, sizes)
    if not len(weights):  # stacks tell no shapes: half a parameter may be its cast to 16 bits
        halves = blocks.bytes[category == Category.PARAMETER] // 2
        cast = (phase == Phase.FORWARD) & (blocks.bytes > _ROUND) & among(blocks.bytes, halves)
        return scales & ~like, like | cast
    return scales & ~like, like


def _changed(known: Explained, change: Change, scales: BoolArray, assumptions: list[str]) -> int:
    blocks = known.categorised.blocks
    size = blocks.bytes.astype(np.float64)
    size = np.where(scales, np.ceil(size * change.batch / _ROUND) * _ROUND, size)
    made, freed = blocks.made.copy(), blocks.freed.copy()
    extra: list[tuple[int, int, int]] = []
    if change.checkpoint:
        made, freed, extra = _checkpointed(known, size, assumptions)
    if change.zero:
        size = _sharded(known, change, size, extra, assumptions)
    count = len(known.history.events)
    whole = np.rint(size).astype(np.int64)
    at = [made, freed[freed < count], *([np.array([e[0] for e in extra], np.int64)])]
    order = [np.ones(len(made), np.int64), np.ones(int((freed < count).sum()), np.int64),
             np.array([e[1] for e in extra], np.int64)]  # fmt: skip
    change_bytes = [whole, -whole[freed < count], np.array([e[2] for e in extra], np.int64)]
    return _Flow(
        *(np.concatenate(part).astype(np.int64) for part in (at, order, change_bytes))
    ).peak()


def _checkpointed(
    known: Explained, size: FloatArray, assumptions: list[str]
) -> tuple[IntArray, IntArray, list[tuple[int, int, int]]]:
    """Begins and ends of all blocks with each layer recomputed, and what is allocated again."""
    history, blocks, callers = known.history, known.categorised.blocks, known.callers
    made, freed = blocks.made.copy(), blocks.freed.copy()
    extra: list[tuple[int, int, int]] = []
    layers = callers.layers
    time = history.time_ns
    first = np.searchsorted(time, layers[:, 0])
    last = np.searchsorted(time, layers[:, 1], side="right")
    forward_ns = callers.forward_ns
    weights = callers.of_weights
    begins = _backward_begins(layers, forward_ns, last)
    count = len(time)
    allocations = np.flatnonzero(made >= 0)
    for number, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        again = begins[number]
        if again < 0:
            continue
        mine = allocations[(made[allocations] >= begin) & (made[allocations] < end)]
        kept = mine[(freed[mine] >= end) & (freed[mine] >= again)]
        if not len(kept):
            continue
        output = _output(kept, blocks.bytes, callers.scope[made[kept]])
        after = int(begins[number + 1]) if number + 1 < len(layers) else -1
        order = 2 - 1_000_000  # before the layer's own backward pass
        moments = [(int(made[b]), int(b), 1) for b in mine if b != output]
        moments += [(int(freed[b]), int(b), -1) for b in mine if freed[b] < end and b != output]
        for _, block, sign in sorted(moments):
            extra.append((again, order, sign * round(float(size[block]))))
            order += 1
        forward_end = _forward_end(callers.phase, end)
        for block in kept.tolist():
            if block == output:
                if after >= 0:
                    freed[block] = max(int(freed[block]), again)
                continue
            if freed[block] < count:  # the second copy is released where the first one was
                extra.append((int(blocks.freed[block]), 1, -round(float(size[block]))))
            cast = len(weights) > 0 and bool(weights[made[block]])
            freed[block] = forward_end if cast else end
    assumptions.append("each layer is recomputed in the backward pass and keeps its output only")
    return made, freed, extra


def _backward_begins(layers: IntArray, forward_ns: IntArray, last: IntArray) -> list[int]:
    """First event of each layer's backward pass; -1 for none."""
    found = []
    for (begin, end), after in zip(layers.tolist(), last.tolist(), strict=True):
        later = np.flatnonzero((forward_ns[after:] >= begin) & (forward_ns[after:] <= end))
        found.append(int(later[0]) + after if len(later) else -1)
    return found


def _output(kept: IntArray, size: IntArray, scope: IntArray) -> int:
    """The block that the next layer reads: the largest of the last operator that keeps any."""
    latest = kept[scope == scope[-1]]
    return int(latest[np.argmax(size[latest])])


def _forward_end(phase: IntArray, event: int) -> int:
    """The first event of the backward pass after an event of the forward pass."""
    later = np.flatnonzero(phase[event:] == Phase.BACKWARD)
    return event + int(later[0]) if len(later) else event


def _sharded(
    known: Explained,
    change: Change,
    size: FloatArray,
    extra: list[tuple[int, int, int]],
    assumptions: list[str],
) -> FloatArray:
    """Sizes with state, gradients and parameters divided among the ranks."""
    blocks, category = known.categorised.blocks, known.categorised.category
    phase = np.where(blocks.made >= 0, known.callers.phase[np.maximum(blocks.made, 0)], -1)
    share = 1 / change.ranks
    size = size.copy()
    optimizing = (category == Category.OPTIMIZER_STATE) | (phase == Phase.OPTIMIZER)
    size[optimizing] *= share
    assumptions.append("the optimizer's state and temporaries are divided evenly among the ranks")
    if change.zero == 1:
        return size
    gradients = category == Category.GRADIENT
    parameters = category == Category.PARAMETER
    whole = float(size[parameters].sum())
    layer = _largest_layer(known, gradients)
    size[gradients] *= share
    backward = np.flatnonzero(known.callers.phase == Phase.BACKWARD)
    optimizing_at = np.flatnonzero(known.callers.phase == Phase.OPTIMIZER)
    for begin, end in _runs(backward):  # whole, until they are scattered
        extra.append((begin, 0, layer))
        extra.append((end, 3, -layer))
    if change.zero == 2:
        extra.append((-1, 0, round(whole * share)))
        for begin, end in _runs(optimizing_at):  # whole parameters are released by then
            extra.append((begin, 0, -round(whole)))
            extra.append((end, 3, round(whole)))
        assumptions.append(
            "gradients are scattered layer by layer; parameters are whole from the forward to the "
            "end of the backward pass, beside each rank's share (fully_shard with "
            "reshard_after_forward=False)"
        )
        return size
    size[parameters] *= share
    rest = max(round(whole) - layer * max(_layers(known), 1), 0)
    for begin, end in _gathered(known):
        extra.append((begin, 0, 2 * layer + rest))
        extra.append((end, 3, -2 * layer - rest))
    assumptions.append(
        "parameters are gathered for one layer while the next one's are fetched, those outside of "
        "the layers for the whole pass (fully_shard of each layer)"
    )
    return size


def _gathered(known: Explained) -> list[tuple[int, int]]:
    """First and last events of the passes through the layers: a loss needs no parameters."""
    phase, layers = known.callers.phase, known.callers.layers
    time, forward_ns = known.history.time_ns, known.callers.forward_ns
    backward = phase == Phase.BACKWARD
    if not len(layers):
        return _runs(np.flatnonzero(backward | (phase == Phase.FORWARD)))
    place = np.maximum(np.searchsorted(layers[:, 0], time, side="right") - 1, 0)
    ahead = (time >= layers[place, 0]) & (time <= layers[place, 1])
    of_layer = np.maximum(np.searchsorted(layers[:, 0], forward_ns, side="right") - 1, 0)
    behind = (forward_ns >= layers[of_layer, 0]) & (forward_ns <= layers[of_layer, 1])
    return [*_runs(np.flatnonzero(ahead & ~backward)), *_runs(np.flatnonzero(behind & backward))]


def _layers(known: Explained) -> int:
    steps = max(len(known.bounds_ns) - 1, 1)
    return len(known.callers.layers) // steps


def _largest_layer(known: Explained, gradients: BoolArray) -> int:
    """Bytes of the gradients of the layer that has most."""
    layers, callers = known.callers.layers, known.callers
    blocks = known.categorised.blocks
    rows = np.flatnonzero(gradients & (blocks.made >= 0))
    if not len(layers) or not len(rows):
        return 0
    at = callers.forward_ns[blocks.made[rows]]
    place = np.searchsorted(layers[:, 0], at, side="right") - 1
    inside = (at >= 0) & (place >= 0) & (at <= layers[np.maximum(place, 0), 1])
    if not inside.any():
        return 0
    return int(np.bincount(place[inside], blocks.bytes[rows[inside]]).max())


def _runs(rows: IntArray) -> list[tuple[int, int]]:
    """First and last of events that follow one another closely."""
    if not len(rows):
        return []
    cuts = np.flatnonzero(np.diff(rows) > 64)
    begins = rows[np.concatenate([[0], cuts + 1])]
    ends = rows[np.concatenate([cuts, [len(rows) - 1]])]
    return list(zip(begins.tolist(), ends.tolist(), strict=True))
