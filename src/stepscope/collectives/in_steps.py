"""Communication as far as it lies in the steps: an operation may begin in one and end behind it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.collectives.exposure import Windows
from stepscope.collectives.job import Collectives
from stepscope.intervals import overlap_per_window, subtract, union
from stepscope.intervals.algebra import Intervals
from stepscope.trace.frame import IntArray

_LONG_AGO: Final = np.iinfo(np.int64).min


@dataclass(frozen=True)
class InSteps:
    """Parts of every matched operation in the steady steps that all devices share, ns.

    One value for each of :class:`~stepscope.collectives.job.Facts`. What is exposed is each moment
    counted once, so that it adds up to the exposed communication of the accounting: for the
    transfer where one is under way, and of several operations for the first.

    Attributes:
        time: it runs.
        waiting: until the last rank has joined.
        transfer: afterwards.
        missing: between the two, what is likely to be waiting for ranks that are not there.
        exposed_waiting: of the waiting, what no compute kernel covers.
        exposed_transfer: of the transfer, what no compute kernel covers.
        exposed_missing: of ``missing``, what no compute kernel covers.
    """

    time: IntArray
    waiting: IntArray
    transfer: IntArray
    missing: IntArray
    exposed_waiting: IntArray
    exposed_transfer: IntArray
    exposed_missing: IntArray


def in_steps(c: Collectives) -> InSteps:
    """Cut every matched operation at the ends of the shared steps."""
    names = [field.name for field in fields(InSteps)]
    found: list[list[IntArray]] = [[] for _ in names]
    for number, (e, own) in enumerate(zip(c.explained, c.own_windows, strict=True)):
        rows = c.facts.device == number
        start, stop = c.facts.start[rows], c.facts.end[rows]
        joined, moving = start + c.facts.waiting[rows], stop - c.facts.transfer[rows]
        for column, values in zip(found, _of_device(e, own, start, joined, moving, stop),
                                  strict=True):  # fmt: skip
            column.append(values)
    return InSteps(
        **{name: np.concatenate(column) for name, column in zip(names, found, strict=True)}
    )


def _of_device(
    e: Explanation,
    own: Windows,
    start: IntArray,
    joined: IntArray,
    moving: IntArray,
    stop: IntArray,
) -> list[IntArray]:
    """The columns of :class:`InSteps` of one device, on whose clock all times are."""
    steps = union(*own)
    free = subtract(steps, e.gpu.union_of(e.gpu.is_compute))
    transfer = _once(moving, stop, free)
    free = subtract(free, union(moving, stop))
    waiting = _once(start, joined, free)
    free = subtract(free, union(start, joined))
    return [
        overlap_per_window(steps, start, stop),
        overlap_per_window(steps, start, joined),
        overlap_per_window(steps, moving, stop),
        overlap_per_window(steps, joined, moving),
        waiting,
        transfer,
        _once(joined, moving, free),
    ]


def _once(begin: IntArray, end: IntArray, within: Intervals) -> IntArray:
    """What each interval covers of a set, of several at a time the one that begins first."""
    order = np.argsort(begin, kind="stable")
    first, last = begin[order], end[order]
    before = np.maximum.accumulate(np.concatenate(([_LONG_AGO], last)))[:-1]
    first = np.maximum(first, before)
    found = np.empty(len(begin), np.int64)
    found[order] = overlap_per_window(within, first, np.maximum(first, last))
    return found
