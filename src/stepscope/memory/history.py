"""What one device had allocated over time, and the blocks that made it up.

Events of a framework's caching allocator are taken where there are any, else those of the driver,
which tell of what such an allocator reserves and not of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.intervals.distinct import among, distinct_values
from stepscope.trace.frame import BoolArray, Frame, IntArray

Reader = Callable[..., Frame]
"""(table, columns...) -> their rows."""

HOST = -1
"""Device of allocations in host memory."""
_EVENT_COLUMNS = ("process_id", "thread_id", "time_ns", "kind", "device", "address", "bytes",
                  "total_allocated_bytes", "total_reserved_bytes", "stack_id",
                  "device_free_bytes")  # fmt: skip
_BLOCK_COLUMNS = ("device", "segment_address", "segment_bytes", "pool", "address", "bytes",
                  "requested_bytes", "state", "stack_id")  # fmt: skip
LIVE = "active_allocated"


@dataclass(frozen=True)
class Blocks:
    """Allocated blocks, in the order in which they were allocated; earlier ones first.

    Attributes:
        bytes: size.
        made: number of the event that allocated it; -1 where that was before the first one.
        freed: number of the event that released it; the number of events where none did.
        stack: stack of the allocation; -1 for none.
    """

    bytes: IntArray
    made: IntArray
    freed: IntArray
    stack: IntArray

    def __len__(self) -> int:
        return len(self.bytes)

    def alive_after(self, event: int) -> BoolArray:
        """Which of them are allocated after an event."""
        return (self.made <= event) & (self.freed > event)


@dataclass(frozen=True)
class History:
    """Allocations and releases of one device.

    Attributes:
        device: ordinal; ``HOST`` for host memory.
        events: rows of ``memory_event`` that allocate or release, by time.
        others: its other rows: segments of a caching allocator, what was out of memory.
        state: rows of ``memory_block``.
        of_driver: whether these are allocations of the driver, not of a framework.
    """

    device: int
    events: Frame
    others: Frame
    state: Frame
    of_driver: bool

    @cached_property
    def time_ns(self) -> IntArray:
        """When each event was."""
        found: IntArray = self.events["time_ns"]
        return found

    @cached_property
    def allocated(self) -> IntArray:
        """Bytes allocated after each event."""
        total: IntArray = self.events["total_allocated_bytes"]
        changes: IntArray = np.cumsum(self.events["bytes"])
        if len(total) and (total >= 0).all():
            return total
        known = np.flatnonzero(total >= 0)
        if len(known):
            return np.asarray(changes + (total[known[0]] - changes[known[0]]))
        return np.asarray(changes - min(int(changes.min(initial=0)), 0))

    @cached_property
    def reserved(self) -> IntArray | None:
        """Bytes reserved after each event; None where that is not known."""
        total: IntArray = self.events["total_reserved_bytes"]
        return total if len(total) and (total > 0).any() and not self.of_driver else None

    @property
    def before_bytes(self) -> int:
        """Bytes allocated before the first event."""
        if not len(self.events):
            return 0
        return int(self.allocated[0] - self.events["bytes"][0])

    @cached_property
    def peak(self) -> int:
        """Number of the event after which most was allocated; -1 for none."""
        if not len(self.events) or self.before_bytes > self.allocated.max():
            return -1
        return int(np.argmax(self.allocated))

    @property
    def peak_bytes(self) -> int:
        """Most bytes that were allocated at a time."""
        return max(int(self.allocated.max(initial=0)), self.before_bytes)

    @cached_property
    def blocks(self) -> Blocks:
        """Allocations joined with their releases, by address."""
        address, change = self.events["address"], self.events["bytes"]
        if len(address) and (address < 0).all():
            address = _by_size(change)
        count = len(address)
        order = np.lexsort((np.arange(count), address))
        ordered = address[order]
        same = ordered[1:] == ordered[:-1]
        after = np.full(count, count)
        after[order[:-1][same]] = order[1:][same]
        first = np.ones(count, np.bool_)
        first[order[1:][same]] = False
        made = np.flatnonzero(change > 0)
        early = np.flatnonzero(first & (change < 0))
        rest, rest_stack = self._never_released(address, change)
        return Blocks(
            np.concatenate([rest, -change[early], change[made]]),
            np.concatenate([np.full(len(rest) + len(early), -1), made]),
            np.concatenate([np.full(len(rest), count), early, after[made]]),
            np.concatenate(
                [rest_stack, np.full(len(early), -1, np.int64), self.events["stack_id"][made]]
            ),
        )

    def _never_released(self, address: IntArray, change: IntArray) -> tuple[IntArray, IntArray]:
        """Sizes and stacks of blocks that were allocated before the first event and stayed."""
        if not len(self.state):
            early = self.before_bytes + int(change[self._first(address) & (change < 0)].sum())
            return np.array([early] if early > 0 else [], np.int64), np.full(int(early > 0), -1)
        is_live = self._state_is(LIVE)
        known = set(address[change > 0].tolist())
        kept = [
            row for row in np.flatnonzero(is_live).tolist()
            if int(self.state["address"][row]) not in known
        ]  # fmt: skip
        return self.state["bytes"][kept], self.state["stack_id"][kept]

    def _state_is(self, state: str) -> BoolArray:
        texts = self.state.texts.get("state", [])
        codes = [code for code, text in enumerate(texts) if text == state]
        return among(self.state["state"], codes)

    @staticmethod
    def _first(address: IntArray) -> BoolArray:
        order = np.lexsort((np.arange(len(address)), address))
        found = np.ones(len(address), np.bool_)
        found[order[1:][address[order][1:] == address[order][:-1]]] = False
        return found

    def live_state(self) -> BoolArray:
        """Which rows of ``state`` are allocated blocks."""
        return self._state_is(LIVE)


def _by_size(change: IntArray) -> IntArray:
    """Something like addresses where none are recorded: a release frees the latest of its size."""
    found = np.arange(len(change))
    free: dict[int, list[int]] = {}
    for event, size in enumerate(change.tolist()):
        if size > 0:
            free.setdefault(size, []).append(event)
        elif known := free.get(-size):
            found[event] = known.pop()
    return found


def histories(read: Reader) -> list[History]:
    """One history a device, the host's last; the host's only where no device has any."""
    events = read("memory_event", *_EVENT_COLUMNS)
    state = read("memory_block", *_BLOCK_COLUMNS)
    kinds = events.texts.get("kind", [])
    names = np.array([*kinds, ""], dtype=object)[events["kind"]] if len(events) else np.array([])
    found = []
    devices = distinct_values(
        np.concatenate([events["device"].astype(np.int64), state["device"].astype(np.int64)])
    ).tolist()
    for device in devices:
        if device == HOST and len(devices) > 1:
            continue
        here = events["device"] == device
        cached = here & (names == "cache") & (events["bytes"] != 0)
        driver = here & ((names == "alloc") | (names == "free"))
        of_driver = not cached.any() and not (state["device"] == device).any()
        chosen = driver if of_driver else cached
        if not chosen.any() and not (state["device"] == device).any():
            continue
        found.append(
            History(
                int(device),
                events.take(np.flatnonzero(chosen)),
                events.take(np.flatnonzero(here & ~chosen)),
                state.take(np.flatnonzero(state["device"] == device)),
                of_driver,
            )
        )
    return found
