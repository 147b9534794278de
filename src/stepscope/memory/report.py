"""One device's memory explained: peak, who held it, steps, growth, fragmentation, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.intervals.distinct import among, distinct_values, with_inverse
from stepscope.memory.callers import Caller, Callers, Phase, from_operators, from_stacks
from stepscope.memory.categories import Categorised, Category, categorise
from stepscope.memory.history import History, Reader, histories
from stepscope.memory.result import (
    DeviceMemory,
    Fragmentation,
    Growth,
    Holder,
    Moment,
    OutOfMemory,
    StepMemory,
    Timeline,
)
from stepscope.memory.steps import is_leak, slope, steps_of, trend_p, windows
from stepscope.trace.frame import BoolArray, IntArray

_POINTS = 600
_FEWEST_STEPS = 3
_FEWEST_FOR_A_LEAK = 5


def mib(size: int) -> str:
    """A size in MiB, as PyTorch's own messages have it."""
    return f"{size / (1 << 20):,.1f} MiB"


@dataclass(frozen=True)
class Explained:
    """A device's history with all that is known of its blocks."""

    rank: int
    history: History
    callers: Callers
    categorised: Categorised
    by_stack: dict[int, tuple[Phase, Caller]]
    bounds_ns: IntArray
    inferred: bool = False
    """Whether the steps are repetitions of allocations only: nothing marks them."""

    def caller(self, block: int) -> Caller:
        """Who allocated a block."""
        made = int(self.categorised.blocks.made[block])
        if made >= 0:
            return self.callers.of(made)
        found = self.by_stack.get(int(self.categorised.blocks.stack[block]))
        return found[1] if found and self.categorised.blocks.stack[block] >= 0 else _EARLIER


_EARLIER = Caller(line="(before the capture)")


def explained(read: Reader, rank: int, bounds_ns: dict[int, IntArray]) -> list[Explained]:
    """Everything about the memory of one trace, a device each.

    Args:
        read: gives the trace's tables.
        rank: the trace's.
        bounds_ns: device -> begins of its steps on the host and the end of the last, where known.
    """
    found = []
    for history in histories(read):
        by_stack: dict[int, tuple[Phase, Caller]] = {}
        if len(history.state) or (history.events["stack_id"] >= 0).any():
            callers, by_stack = from_stacks(history, read)
            categorised = categorise(history, callers, by_stack)
        else:
            callers = from_operators(history, read)
            categorised = categorise(history, callers)
        bounds = bounds_ns.get(history.device, np.zeros(0, np.int64))
        inferred = not len(bounds)
        if inferred:
            bounds, inferred = steps_of(history, read)
        found.append(Explained(rank, history, callers, categorised, by_stack, bounds, inferred))
    return found


def report(known: Explained, at: str = "peak") -> DeviceMemory:
    """The memory of one device.

    Args:
        known: all about it.
        at: peak, end or oom: the moment whose holders are listed.
    """
    history = known.history
    over_time = known.categorised.over_time(len(history.events))
    refused = _refused(known)
    peak = _moment(known, over_time, "peak", history.peak)
    event = history.peak
    if at == "end":
        event = len(history.events) - 1
    elif at == "oom" and refused:
        event = _event_at(history, refused[-1].time_ns)
    else:
        at = "peak"
    blocks = known.categorised.blocks
    steps = _steps(known)
    return DeviceMemory(
        rank=known.rank,
        device=history.device,
        of_driver=history.of_driver,
        events=len(history.events),
        peak=peak,
        moment=_moment(known, over_time, at, event),
        holders=holders(known, blocks.alive_after(event)),
        timeline=_timeline(known, over_time),
        steps=steps,
        growth=_growth(known, steps),
        fragmentation=_fragmentation(history),
        out_of_memory=refused,
        warnings=_warnings(known),
    )


def holders(known: Explained, chosen: BoolArray) -> list[Holder]:
    """Who allocated some blocks, most first."""
    blocks, category = known.categorised.blocks, known.categorised.category
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return []
    sums: dict[tuple[int, Caller], list[int]] = {}
    code = known.callers.codes
    made = blocks.made[rows]
    place = np.where(made >= 0, code[np.maximum(made, 0)] if len(code) else -1, -1)
    key = (category[rows] * (int(place.max(initial=0)) + 2) + place + 1) * (
        int(blocks.stack.max(initial=0)) + 2
    ) + np.where(made >= 0, 0, blocks.stack[rows] + 1)
    _, inverse = with_inverse(key)
    order = np.argsort(inverse, kind="stable")
    begins = np.flatnonzero(np.diff(inverse[order], prepend=-1))
    for part in np.split(order, begins[1:]):
        mine = rows[part]
        of = int(category[mine[0]]), known.caller(int(mine[0]))
        size = blocks.bytes[mine]
        seen = sums.setdefault(of, [0, 0, 0])
        seen[0] += int(size.sum())
        seen[1] += len(mine)
        seen[2] = max(seen[2], int(size.max()))
    found = [
        Holder(Category(kind).label, who.operator, who.module, who.line, *numbers)
        for (kind, who), numbers in sums.items()
    ]
    return sorted(found, key=lambda h: (-h.bytes, h.category, h.operator, h.line))


def _moment(known: Explained, over_time: IntArray, what: str, event: int) -> Moment:
    history = known.history
    before = event < 0
    reserved = history.reserved
    time = None if before else int(history.time_ns[event])
    step = None
    if time is not None and len(known.bounds_ns):
        at = int(np.searchsorted(known.bounds_ns, time, side="right")) - 1
        step = at if 0 <= at < len(known.bounds_ns) - 1 else None
    parts = over_time[event + 1]
    state = known.history.state
    return Moment(
        what=what,
        time_ns=time,
        allocated_bytes=history.before_bytes
        if before and len(history.events)
        else int(parts.sum() if before else history.allocated[event]),
        reserved_bytes=_state_reserved(known.history)
        if before and len(state)
        else None if reserved is None or before else int(reserved[event]),
        by_category_bytes={c.label: int(parts[c]) for c in Category if parts[c]},
        step=step,
    )  # fmt: skip


def _event_at(history: History, time_ns: int) -> int:
    return int(np.searchsorted(history.time_ns, time_ns, side="right")) - 1


def _timeline(known: Explained, over_time: IntArray) -> Timeline:
    """The highest point of each stretch of time."""
    history = known.history
    count = len(history.events)
    if not count:
        return Timeline([], [], [], {})
    time = history.time_ns
    span = max(int(time[-1] - time[0]), 1)
    stretch = ((time - time[0]) * (_POINTS - 1)) // span
    order = np.lexsort((history.allocated, stretch))
    last = np.append(np.flatnonzero(np.diff(stretch[order])), count - 1)
    rows = np.sort(order[last])
    reserved = history.reserved
    return Timeline(
        time[rows].tolist(),
        history.allocated[rows].tolist(),
        [] if reserved is None else reserved[rows].tolist(),
        {c.label: over_time[rows + 1, c].tolist() for c in Category if over_time[:, c].any()},
    )


def _steps(known: Explained) -> list[StepMemory]:
    history, blocks = known.history, known.categorised.blocks
    count = len(history.events)
    made_ns = np.where(
        blocks.made >= 0, history.time_ns[np.maximum(blocks.made, 0)] if count else -1, -1
    )
    kept = (blocks.made >= 0) & (blocks.freed == count)
    found = []
    for number, (begin, end) in enumerate(windows(known.bounds_ns)):
        first, last = _event_at(history, begin - 1), _event_at(history, end)
        at_begin = int(history.allocated[first]) if first >= 0 else history.before_bytes
        inside = history.allocated[first + 1 : last + 1]
        mine = kept & (made_ns >= begin) & (made_ns < end)
        found.append(
            StepMemory(
                number,
                begin,
                at_begin,
                max(int(inside.max(initial=0)), at_begin),
                int(history.allocated[last]) if last >= 0 else history.before_bytes,
                int(blocks.bytes[mine].sum()),
            )
        )
    return found


def _growth(known: Explained, steps: Sequence[StepMemory]) -> Growth | None:
    if len(steps) < _FEWEST_STEPS:
        return None
    floors = np.array([step.begin_bytes for step in steps] + [steps[-1].end_bytes], np.int64)
    per_step, p = slope(floors), trend_p(floors)
    grows = is_leak(per_step, p)
    kept: list[Holder] = []
    if per_step > 0:
        blocks = known.categorised.blocks
        # what the first step keeps is set up, and what the last one holds may be its own
        begin, end = steps[1].begin_ns, steps[-1].begin_ns
        made = known.history.time_ns[np.maximum(blocks.made, 0)]
        chosen = (blocks.made >= 0) & (blocks.freed == len(known.history.events))
        chosen &= (made >= begin) & (made < end)
        kept = holders(known, chosen)
    each = f"{mib(per_step)} per step"
    chance = f"p = {p:.2g}"
    if grows:
        message = f"memory grows by {each} ({chance}, {len(steps)} steps): something keeps it"
        if known.inferred and _is_of_one_pass(known, steps):
            message += (
                "; or these are the layers of one forward pass, which keep their activations: "
                "nothing marks the steps, and most hold no backward pass"
            )
    elif per_step > 0 and len(floors) < _FEWEST_FOR_A_LEAK:
        message = f"{each} more, in {len(steps)} steps only: capture {_FEWEST_FOR_A_LEAK} or more"
    else:
        message = f"no growth from step to step ({each}, {chance})"
    return Growth(per_step, p, grows, message, kept)


def _is_of_one_pass(known: Explained, steps: Sequence[StepMemory]) -> bool:
    """Whether repetitions may be layers: most allocate nothing that is the backward pass's."""
    blocks, category = known.categorised.blocks, known.categorised.category
    backward = among(category, [Category.GRADIENT, Category.AUTOGRAD_DETAIL]) & (blocks.made >= 0)
    begins = np.array([step.begin_ns for step in steps])
    at_ns = known.history.time_ns[blocks.made[backward]]
    held = np.searchsorted(begins, at_ns, side="right")
    return len(distinct_values(held[held > 0])) * 2 < len(steps)


def _state_reserved(history: History) -> int:
    state = history.state
    found = dict(
        zip(state["segment_address"].tolist(), state["segment_bytes"].tolist(), strict=True)
    )
    return sum(found.values())


def _fragmentation(history: History) -> Fragmentation | None:
    if history.of_driver:
        return None
    unused = None
    if history.reserved is not None:
        unused = int((history.reserved - history.allocated).max())
    state = history.state
    if not len(state):
        if history.reserved is None:
            return None
        return Fragmentation(
            int(history.reserved[-1]), int(history.allocated[-1]), None, None, None, None, unused
        )
    live = history.live_state()
    free = np.array([text == "inactive" for text in state.texts["state"]] + [False])[state["state"]]
    _, segment = with_inverse(state["segment_address"])
    used = np.bincount(segment, ~free) > 0
    size = state["bytes"]
    return Fragmentation(
        reserved_bytes=_state_reserved(history),
        allocated_bytes=int(size[live].sum()),
        largest_free_bytes=int(size[free].max(initial=0)),
        inactive_split_bytes=int(size[free & used[segment]].sum()),
        free_segment_bytes=int(size[free & ~used[segment]].sum()),
        rounding_bytes=int((size - state["requested_bytes"])[live].sum()),
        most_unused_bytes=unused,
    )


def _refused(known: Explained) -> list[OutOfMemory]:
    others = known.history.others
    rows = [row for row in range(len(others)) if others.text("kind", row) == "oom"]
    found = []
    for row in rows:
        asked = int(others["bytes"][row])
        free = int(others["device_free_bytes"][row])
        allocated = int(others["total_allocated_bytes"][row])
        reserved = int(others["total_reserved_bytes"][row])
        room = reserved - allocated + max(free, 0)
        missing = max(asked - room, 0)
        caller = known.by_stack.get(int(others["stack_id"][row]), (None, Caller()))[1]
        found.append(
            OutOfMemory(
                int(others["time_ns"][row]),
                asked,
                free if free >= 0 else None,
                allocated,
                reserved,
                missing,
                _why(asked, free, allocated, reserved, missing),
                caller.line or caller.operator,
            )
        )
    return found


def _why(asked: int, free: int, allocated: int, reserved: int, missing: int) -> str:
    unused = reserved - allocated
    has = f"{mib(unused)} of the reserved memory unused"
    if free >= 0:
        has += f" and {mib(free)} free on the device"
    if free >= asked:
        return (
            f"{mib(asked)} were requested with {mib(free)} free on the device: the process was not "
            "allowed more (torch.cuda.set_per_process_memory_fraction, or a limit of its container)"
        )
    if missing:
        return (
            f"{mib(asked)} were requested with {has}: {mib(missing)} are missing "
            "even without fragmentation; see who holds memory"
        )
    return (
        f"{mib(asked)} were requested with {has}: it would fit, but no free block is large "
        "enough; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True avoids such fragmentation"
    )


def _warnings(known: Explained) -> list[str]:
    history, found = known.history, []
    if history.of_driver:
        found.append(
            "these are allocations of the driver: a framework's allocator takes memory in large "
            "segments, and what its tensors need is not recorded; "
            "stepscope run --backend torch --memory records it"
        )
    elif not len(history.events):
        found.append(
            "the snapshot holds no history, so only its end is known; call "
            "torch.cuda.memory._record_memory_history() before the model is made"
        )
    if known.categorised.inferred:
        found.append(
            "what was allocated before the capture is split by size: parameters are as large as "
            "their gradients, and the optimizer's class tells its state"
        )
    if len(history.events) and (history.events["address"] < 0).all():
        found.append("addresses are not recorded: allocations and releases are joined by size")
    return found
