"""Sends and receives of streams that serve several neighbours: which message is whose.

A stream executes its messages one after the other, and a message ends on both sides at once. So the
next message of a stream is the next one of another stream that ends with it; nothing else can come
first. Where several end at the same moment, as in a pipeline in step, those of streams that ended
together alone before belong together.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.collectives.calls import JobCalls
from stepscope.collectives.clocks import HOP_NS
from stepscope.collectives.pairs import by_wall_clock
from stepscope.trace.frame import IntArray

TOGETHER: Final = 3
"""Ends so many hops apart are one moment."""

MOST: Final = 4_000_000
"""Messages times streams that are looked at; it takes some seconds."""

_ENOUGH: Final = 0.9
"""Part of the messages that must find another one, else something else decides."""


@dataclass(frozen=True)
class _Stream:
    device: int
    rows: IntArray
    end_ns: list[int]


@dataclass(frozen=True)
class Pair:
    """The messages between two devices: rows of the ``Calls`` of each, in the same order."""

    devices: tuple[int, int]
    rows: tuple[IntArray, IntArray]


def message_pairs(job: JobCalls, streams: list[list[IntArray]]) -> list[Pair] | None:
    """The messages of each two devices; None where most find no other, or clocks are unknown.

    Args:
        job: the calls.
        streams: of each device, the rows of its sends and receives, stream by stream.
    """
    queues = _queues(job, streams)
    if queues is None or len(queues) < 3:  # two streams have nobody else
        return None
    count = sum(len(queue.rows) for queue in queues)
    if count * len(queues) > MOST:
        return None
    alone: Counter[tuple[int, int]] = Counter()
    _walk(queues, alone, only_alone=True)
    found = _walk(queues, alone, only_alone=False)
    matched = 2 * sum(len(rows) for rows in found.values())
    # the captures begin and end apart: what lies outside the shared time has no other side
    shared = _shared(queues)
    if not found or matched < _ENOUGH * shared:
        return None
    return [
        Pair(devices, tuple(np.array(side, np.int64) for side in zip(*rows, strict=True)))  # type: ignore[arg-type]
        for devices, rows in sorted(found.items())
    ]


def _queues(job: JobCalls, streams: list[list[IntArray]]) -> list[_Stream] | None:
    queues = []
    for device, own in enumerate(streams):
        line = by_wall_clock(job.participants[0], job.participants[device])
        if line is None:
            return None
        for rows in own:
            ends = job.calls[device].end_ns[rows]
            order = np.argsort(ends, kind="stable")
            queues.append(_Stream(device, rows[order], line.to(ends[order]).tolist()))
    return queues


def _shared(queues: list[_Stream]) -> int:
    """Messages in the time that all captures hold."""
    low = max(queue.end_ns[0] for queue in queues)
    high = min(queue.end_ns[-1] for queue in queues)
    return sum(sum(low <= end <= high for end in queue.end_ns) for queue in queues)


def _walk(
    queues: list[_Stream], alone: Counter[tuple[int, int]], *, only_alone: bool
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Go through the messages of all streams by their ends, and put together what ends at once.

    Args:
        queues: the streams.
        alone: how often messages of two devices ended together with no other; filled in by the
            first walk.
        only_alone: this is the first walk.
    """
    at = [0] * len(queues)
    heads = [(queue.end_ns[0], number) for number, queue in enumerate(queues)]
    heapq.heapify(heads)
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def passed(number: int) -> None:
        at[number] += 1
        if at[number] < len(queues[number].end_ns):
            heapq.heappush(heads, (queues[number].end_ns[at[number]], number))

    while heads:
        end, first = heapq.heappop(heads)
        near = []
        while heads and heads[0][0] - end <= TOGETHER * HOP_NS:
            near.append(heapq.heappop(heads))
        others = [h for h in near if queues[h[1]].device != queues[first].device]
        if not others:
            chosen = None
        elif len(others) == 1:
            chosen = others[0]
            if only_alone:
                alone[_key(queues, first, chosen[1])] += 1
        else:
            chosen = max(
                others,
                key=lambda h: (
                    alone[_key(queues, first, h[1])] if not only_alone else 0,
                    end - h[0],
                    -abs(queues[h[1]].device - queues[first].device),
                ),
            )
        for head in near:
            if head != chosen:
                heapq.heappush(heads, head)
        if chosen is not None:
            key = _key(queues, first, chosen[1])
            rows = int(queues[first].rows[at[first]]), int(queues[chosen[1]].rows[at[chosen[1]]])
            found.setdefault(key, []).append(
                rows if queues[first].device == key[0] else (rows[1], rows[0])
            )
            passed(chosen[1])
        passed(first)
    return found


def _key(queues: list[_Stream], first: int, second: int) -> tuple[int, int]:
    a, b = queues[first].device, queues[second].device
    return (a, b) if a < b else (b, a)
