"""Counters that follow from operations: length of each stream's queue, bandwidth of copies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.trace.frame import AnyArray, IntArray


@dataclass(frozen=True)
class Series:
    """Steps of several counters: each value holds until the next time of its counter.

    Attributes:
        counter: number of the counter; ascending.
        time_ns: when the value changes; ascending inside a counter.
        value: from then on.
    """

    counter: IntArray
    time_ns: IntArray
    value: AnyArray


def _ordered(counter: IntArray, time_ns: IntArray) -> IntArray:
    """Order by counter and time; what is given first stays first."""
    return np.lexsort((np.arange(len(time_ns)), time_ns, counter))


def queue_length(counter: IntArray, launched_ns: IntArray, start_ns: IntArray) -> Series:
    """Operations that were launched and have not begun.

    Args:
        counter: number of each operation's stream.
        launched_ns: begin of the call that launched it.
        start_ns: begin of the operation.
    """
    both = np.concatenate((counter, counter))
    time = np.concatenate((launched_ns, start_ns))
    order = _ordered(both, time)
    change = np.repeat(np.array([1, -1]), len(counter))[order]
    return Series(both[order], time[order], _running(both[order], change))


def bandwidth(counter: IntArray, start_ns: IntArray, end_ns: IntArray, size: IntArray) -> Series:
    """Sum of the bandwidths (bytes a second) of the copies that run.

    Args:
        counter: number of each copy's kind.
        start_ns: begin.
        end_ns: end; a copy that takes no time is taken to last 1 microsecond.
        size: bytes.
    """
    end_ns = np.where(end_ns > start_ns, end_ns, start_ns + 1000)
    speed = size * 1e9 / (end_ns - start_ns)
    both = np.concatenate((counter, counter))
    time = np.concatenate((start_ns, end_ns))
    order = _ordered(both, time)
    running = _running(both[order], np.repeat(np.array([1, -1]), len(counter))[order])
    value = _running(both[order], np.concatenate((speed, -speed))[order])
    # what adding and subtracting leaves of a speed is no speed
    return Series(both[order], time[order], np.where(running > 0, value, 0.0))


def _running(counter: IntArray, change: AnyArray) -> AnyArray:
    """Running sum of the changes inside each counter."""
    value: AnyArray = np.empty(len(change), change.dtype)
    edges = np.flatnonzero(np.diff(counter)) + 1
    for part in np.split(np.arange(len(change)), edges):
        value[part] = np.cumsum(change[part])
    return value
