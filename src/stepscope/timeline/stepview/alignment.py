"""Where in each step the time zero of the step view is: its start, its first kernel, a range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.intervals.distinct import with_first
from stepscope.kernels.attribution import plain_range_name
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import BoolArray, IntArray

START: Final = "start"
KERNEL: Final = "kernel"
MOST_RANGES: Final = 24
"""Names of ranges that are offered."""
_HELD_BY = 0.5
"""Share of the steps that a range must begin in: what is rarer aligns nothing."""


@dataclass(frozen=True)
class RangeName:
    """A range that steps can be aligned at.

    Attributes:
        name: its name, without sequence numbers.
        rows: row of ``attribution.ranges`` of its first instance in each step; -1 for none.
    """

    name: str
    rows: IntArray


@dataclass(frozen=True)
class Zero:
    """Time zero of every step.

    Attributes:
        at_ns: on the trace's clock, ns.
        found: whether the step holds what it is aligned at; the others begin at their start.
    """

    at_ns: IntArray
    found: BoolArray


def range_names(e: Explanation) -> list[RangeName]:
    """Ranges that begin in half of the steps or more, those in most steps and earliest first."""
    table = e.kernels.attribution.ranges
    steps = len(e.steps)
    if not len(table) or steps < 2:
        return []
    texts = [plain_range_name(text) for text in table.texts["name"]]
    plain = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    code = np.array([plain[text] for text in texts] + [-1], np.int64)[table["name"]]
    step = np.searchsorted(e.steps.begin_ns, table["start_ns"], side="right") - 1
    inside = np.flatnonzero((step >= 0) & (table["start_ns"] < e.steps.end_ns) & (code >= 0))
    key = code[inside] * steps + step[inside]
    keys, first = with_first(key)  # rows are sorted by start: the first begins it
    held = np.bincount(keys // steps, minlength=len(plain))
    early = np.full(len(plain), np.iinfo(np.int64).max)
    since = table["start_ns"][inside[first]] - e.steps.begin_ns[keys % steps]
    np.minimum.at(early, keys // steps, since)
    wanted = np.flatnonzero(held >= max(_HELD_BY * steps, 1))
    wanted = wanted[np.lexsort((early[wanted], -held[wanted]))][:MOST_RANGES]
    names = list(plain)
    found = []
    for number in wanted.tolist():
        mine = keys // steps == number
        rows = np.full(steps, -1, np.int64)
        rows[keys[mine] % steps] = inside[first[mine]]
        found.append(RangeName(names[number], rows))
    return found


def zero_of(e: Explanation, where: str, ranges: list[RangeName]) -> Zero:
    """Time zero of every step.

    Args:
        e: the device's explanation.
        where: ``start`` of the step on the device; its first ``kernel``; ``range:N`` for the first
            GPU operation that was enqueued while the first range of the N-th name was open.
        ranges: the names, from :func:`range_names`.

    Raises:
        UsageError: there is no such alignment.
    """
    begin, end = e.bounds_ns[:-1], e.bounds_ns[1:]
    if where == START:
        return Zero(begin, np.ones(len(begin), bool))
    if where == KERNEL:
        start = e.gpu.ops["start_ns"][e.gpu.is_kernel]
        return _zero(begin, _first(start, np.searchsorted(start, begin), end))
    number = where.removeprefix("range:")
    if where == number or not number.isdecimal() or int(number) >= len(ranges):
        raise UsageError(f"steps cannot be aligned at {where[:40]!r}")
    rows = ranges[int(number)].rows
    table = e.kernels.attribution.ranges
    row = np.maximum(rows, 0)
    order = e.kernels.order
    enqueued = e.gpu.enqueue_begin_ns[order]
    low = np.searchsorted(enqueued, table["start_ns"][row], side="left")
    high = np.searchsorted(enqueued, table["end_ns"][row], side="right")
    low, high = np.where(rows >= 0, low, 0), np.where(rows >= 0, high, 0)
    earliest = np.full(len(begin), -1, np.int64)
    some = np.flatnonzero(high > low)
    if len(some):
        start = np.append(e.gpu.ops["start_ns"][order], np.iinfo(np.int64).max)
        edges = np.stack((low[some], high[some]), axis=1).ravel()
        earliest[some] = np.minimum.reduceat(start, edges)[::2]
    return _zero(begin, earliest)


def _first(ascending: IntArray, at: IntArray, end: IntArray) -> IntArray:
    """The value at each position, if it is before the end; else -1."""
    values = np.append(ascending, np.iinfo(np.int64).max)[at]
    return np.where(values < end, values, -1)


def _zero(begin: IntArray, at: IntArray) -> Zero:
    found: BoolArray = at >= 0
    return Zero(np.where(found, at, begin), found)
