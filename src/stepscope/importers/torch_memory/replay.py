"""The caching allocator's history of one device, replayed: what each event left allocated.

A history names the sizes that the program requested. What counts in ``max_memory_allocated`` is the
block that the allocator gave for it: rounded up, and larger where what would have been left of a
free block was too small to be split off. Where that was so follows from the free space behind each
address, which the blocks of the snapshot and the events give. The state before the first event is
that of the snapshot with all events undone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ROUND_BYTES = 512
SMALL_BYTES = 1 << 20
"""Requests up to this size come from segments of their own, which are split finely."""

MADE = {"segment_alloc", "segment_map"}
GONE = {"segment_free", "segment_unmap"}


@dataclass(frozen=True)
class Settings:
    """What of the allocator's settings decides about the size of blocks."""

    expandable: bool = False
    largest_split: int = -1
    divisions: Mapping[int, int] = field(default_factory=dict)

    def rounded(self, requested: int) -> int:
        """The size of the smallest block that may serve a request."""
        size = max(requested, 1)
        power = 1 << (size.bit_length() - 1)
        parts = self.divisions.get(min(max(power >> 20, 1), 1 << 15), 0)
        if parts > 1 and size > ROUND_BYTES * parts:
            part = max(power // parts, 1)
            return -(-size // part) * part
        return -(-size // ROUND_BYTES) * ROUND_BYTES

    def block(self, requested: int, room: int | None) -> int:
        """The size of the block that serves a request at the beginning of some free space.

        Args:
            requested: what the program asked for.
            room: bytes of that free space; None where unknown.
        """
        size = self.rounded(requested)
        if room is None or room < size:
            return size
        left = room - size
        if self.expandable or size <= SMALL_BYTES:
            split = left >= ROUND_BYTES
        else:
            split = left > SMALL_BYTES and not 0 <= self.largest_split <= size
        return size if split else room


@dataclass
class Replayed:
    """The events of a device with what they left.

    Attributes:
        sizes: bytes by which each event changes what is allocated; 0 for other events.
        allocated: bytes allocated after each event.
        reserved: bytes of all segments after each event.
        unknown: releases of blocks that nothing else knows.
        contradicted: blocks whose replayed size is not that of the snapshot.
    """

    sizes: list[int] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    unknown: int = 0
    contradicted: int = 0


Event = tuple[str, int, int]
"""Action, address, size."""


def replay(
    events: Sequence[Event],
    segments: Mapping[int, int],
    live: Mapping[int, int],
    pending: Mapping[int, int],
    settings: Settings,
) -> Replayed:
    """Replay the events of a device.

    Args:
        events: in their order.
        segments: address -> bytes of the segments at the end.
        live: address -> bytes of the allocated blocks at the end.
        pending: address -> bytes of blocks at the end that are released and still in use by a
            stream.
        settings: the allocator's.
    """
    found = Replayed()
    before = _undone(events, segments, live, pending, settings)
    space = _Space(before.segments, {**before.live, **before.pending})
    held = dict(before.live)
    waiting = dict(before.pending)
    allocated, reserved = sum(held.values()), sum(before.segments.values())
    for action, address, size in events:
        change = 0
        if action == "alloc":
            change = settings.block(size, space.room(address))
            if address in held:  # its release is missing in the history
                allocated -= held[address]
                found.unknown += 1
            held[address] = change
            space.take(address)
        elif action == "free_requested":
            if address in held:
                taken = held.pop(address)
                waiting[address] = taken
                change = -taken
            else:
                found.unknown += 1
        elif action == "free_completed":
            waiting.pop(address, None)
            if address not in held:
                space.give(address)
        elif action in MADE:
            reserved += size
            space.add(address, size)
        elif action in GONE:
            reserved -= size
            space.remove(address)
        allocated += change
        found.sizes.append(change)
        found.allocated.append(allocated)
        found.reserved.append(reserved)
    found.contradicted = sum(held.get(address) != size for address, size in live.items())
    return found


@dataclass
class _State:
    segments: dict[int, int]
    live: dict[int, int]
    pending: dict[int, int]


def _undone(
    events: Sequence[Event],
    segments: Mapping[int, int],
    live: Mapping[int, int],
    pending: Mapping[int, int],
    settings: Settings,
) -> _State:
    """The state before the first event."""
    state = _State(dict(segments), dict(live), dict(pending))
    for action, address, size in reversed(events):
        if action == "alloc":
            state.live.pop(address, None)
        elif action == "free_requested":
            state.live[address] = state.pending.pop(address, settings.rounded(size))
        elif action == "free_completed":
            state.pending[address] = settings.rounded(size)
        elif action in MADE:
            if state.segments.get(address) == size:
                del state.segments[address]
            elif settings.expandable:
                _cut(state.segments, address, size)
        elif action in GONE:
            state.segments[address] = size
    return state


def _cut(segments: dict[int, int], address: int, size: int) -> None:
    """Take a mapped stretch out of the expandable segment that it lies in."""
    for begin, length in list(segments.items()):
        if begin <= address and address + size <= begin + length:
            del segments[begin]
            if begin < address:
                segments[begin] = address - begin
            if address + size < begin + length:
                segments[address + size] = begin + length - address - size
            return


class _Space:
    """Where blocks begin, to know how much room is behind an address."""

    def __init__(self, segments: Mapping[int, int], taken: Iterable[int]) -> None:
        self._segments = dict(segments)
        self._begins = sorted(segments)
        self._taken = sorted(taken)

    def room(self, address: int) -> int | None:
        at = bisect_right(self._begins, address) - 1
        if at < 0:
            return None
        begin = self._begins[at]
        end = begin + self._segments[begin]
        if address >= end:
            return None
        after = bisect_right(self._taken, address)
        if after < len(self._taken):
            end = min(end, self._taken[after])
        return end - address

    def take(self, address: int) -> None:
        at = bisect_left(self._taken, address)
        if at == len(self._taken) or self._taken[at] != address:
            self._taken.insert(at, address)

    def give(self, address: int) -> None:
        at = bisect_left(self._taken, address)
        if at < len(self._taken) and self._taken[at] == address:
            del self._taken[at]

    def add(self, address: int, size: int) -> None:
        if address not in self._segments:
            insort(self._begins, address)
        self._segments[address] = size

    def remove(self, address: int) -> None:
        if self._segments.pop(address, None) is not None:
            del self._begins[bisect_left(self._begins, address)]


def settings_of(raw: Any) -> Settings:
    """Settings as a snapshot tells them; the allocator's own where it does not."""
    if not isinstance(raw, dict):
        return Settings()
    divisions = raw.get("roundup_power2_divisions")
    split = raw.get("max_split_size")
    return Settings(
        expandable=raw.get("expandable_segments") is True,
        largest_split=split if isinstance(split, int) else -1,
        divisions={
            int(size): parts
            for size, parts in (divisions.items() if isinstance(divisions, dict) else ())
            if str(size).isdecimal() and isinstance(parts, int)
        },
    )
