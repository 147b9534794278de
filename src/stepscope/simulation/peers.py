"""The operations of several ranks side by side: the same place in the step, the same name.

Ranks of a job run the same program: the third launch of a kernel in a step on one rank is the third
launch of it on the others. What an operation takes on the other ranks is therefore known one by
one, and step by step, which tells a slow device, extra work and a bad step apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.intervals.distinct import distinct_values
from stepscope.simulation.program import MARK
from stepscope.simulation.subject import Subject
from stepscope.trace.frame import BoolArray, FloatArray, IntArray

MOST_PEERS: Final = 16
"""Ranks that are compared with: the median of more says nothing else, and takes longer."""


@dataclass(frozen=True)
class Places:
    """Where the operations of each rank stand.

    Attributes:
        place: of each subject, the place of each item; -1 for items that are not looked at. Equal
            places of a step are the same operation on all ranks.
        step: of each subject, the number of the step that each item lies in, from 0.
        count: number of places.
        steps: number of steps.
    """

    place: list[IntArray]
    step: list[IntArray]
    count: int
    steps: int

    def table(self, number: int, values: IntArray) -> FloatArray:
        """Values of one subject's items by place and step; NaN where it has none."""
        found = np.full((self.count, self.steps), np.nan)
        rows = np.flatnonzero(self.place[number] >= 0)
        found[self.place[number][rows], self.step[number][rows]] = values[rows]
        return found

    def of_items(self, number: int, table: FloatArray) -> FloatArray:
        """A table's values for the items of one subject; NaN for those not looked at."""
        place = self.place[number]
        taken: FloatArray = table[np.maximum(place, 0), self.step[number]]
        return np.where(place >= 0, taken, np.nan)


def places(subjects: Sequence[Subject], looked_at: Sequence[BoolArray]) -> Places:
    """Number the places of some operations: their name, and how often it came before in the step.

    Args:
        subjects: the programs, one a device.
        looked_at: of each, the items that count.
    """
    codes: dict[str, int] = {}
    keys, steps = [], []
    for subject, wanted in zip(subjects, looked_at, strict=True):
        program, ops = subject.program, subject.gpu.ops
        of_text = np.array(
            [codes.setdefault(text, len(codes)) for text in ops.texts["name"]] + [-1], np.int64
        )
        step = np.maximum(np.cumsum(program.kind == MARK) - 1, 0)
        rows = np.flatnonzero(wanted)
        name = of_text[ops["name"][program.op[rows]]]
        key = np.full(len(program), -1, np.int64)
        key[rows] = (name + 1) * _MOST + _occurrence(step[rows], name)
        keys.append(key)
        steps.append(step)
    known = distinct_values(np.concatenate(keys))
    known = known[known >= 0]
    place = [np.where(key >= 0, np.searchsorted(known, key), -1) for key in keys]
    return Places(place, steps, len(known), max(int(s.max(initial=0)) for s in steps) + 1)


_MOST: Final = 1 << 32
"""More than the operations of a step."""


def _occurrence(step: IntArray, name: IntArray) -> IntArray:
    """How often each name came before in its step."""
    order = np.lexsort((name, step))
    ordered = np.stack((step[order], name[order]))
    begins = np.append(True, (np.diff(ordered, axis=1) != 0).any(axis=0))[: len(order)]
    first = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - first
    return found


def median(tables: Sequence[FloatArray]) -> FloatArray:
    """Element by element the median of those that have a value; NaN where none has."""
    stack = np.sort(np.stack(tables[:MOST_PEERS]), axis=0)  # NaN comes last
    there = len(stack) - np.isnan(stack).sum(axis=0)
    low, high = np.maximum(there - 1, 0) // 2, there // 2
    high = np.minimum(high, np.maximum(there - 1, 0))
    middle = np.take_along_axis(stack, low[None], axis=0)[0]
    above = np.take_along_axis(stack, high[None], axis=0)[0]
    found: FloatArray = (middle + above) / 2
    return found


def median_of_steps(table: FloatArray) -> FloatArray:
    """The median over the steps, for every step."""
    typical = median(list(table.T)) if table.shape[1] <= MOST_PEERS else _median_row(table)
    return np.broadcast_to(typical[:, None], table.shape)


def _median_row(table: FloatArray) -> FloatArray:
    some = np.linspace(0, table.shape[1] - 1, MOST_PEERS).astype(np.int64)
    return median(list(table[:, some].T))
