"""Which numbers of launches were recorded: what a graph did outside recording does not belong here.

The collector lets CUPTI trace graphs all the time, since switching that on later crashes programs
that have made a graph by then. A graph's work belongs to the capture where its launch does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.importers.stepscope import layout
from stepscope.importers.stepscope.raw import Raw
from stepscope.trace.frame import AnyArray, BoolArray

_MOST_IDS = 1 << 30  # correlation ids count from 1: a byte each of what is held


@dataclass(frozen=True)
class Called:
    """Which numbers recorded calls bear.

    Attributes:
        by_number: whether a call bears a number; the last element, false, stands for all above it.
    """

    by_number: BoolArray

    def bear(self, numbers: AnyArray) -> BoolArray:
        """Which of some numbers a call bears."""
        found: BoolArray = self.by_number[np.minimum(numbers, len(self.by_number) - 1)]
        return found

    def later(self, numbers: AnyArray) -> BoolArray:
        """Which numbers a call bears that was made later, or at the same time."""
        found: BoolArray = numbers < len(self.by_number) - 1
        return found


def called(raw: Raw, *, of_runtime: bool = False) -> Called | None:
    """The numbers of the recorded calls; None for damaged ones, too large for a table.

    Args:
        raw: the process's files.
        of_runtime: only those of the runtime; 0, which is no number, is not among them.
    """

    def numbers() -> Iterator[AnyArray]:
        for part in raw.parts(layout.API):
            rows = part[(part["call"] & layout.DRIVER_CALL) == 0] if of_runtime else part
            yield rows["correlation"]

    most = max((int(part.max()) for part in numbers() if len(part)), default=-1)
    if most > _MOST_IDS:
        return None
    found = np.zeros(most + 2, dtype=bool)
    for part in numbers():
        found[part] = True
    if of_runtime:
        found[0] = False
    return Called(found)


def unrecorded(raw: Raw, graphs: AnyArray, known: Called | None) -> BoolArray:
    """Which rows of graphs were launched while recording was off.

    Their call is missing although a later one is there, or recording had ended in order. Where
    CUPTI lost records, or no call was recorded at all, a missing call says nothing.
    """
    if known is None or not raw.count(layout.API) or raw.one("end").get("cupti_dropped"):
        return np.zeros(len(graphs), dtype=bool)
    number = graphs["correlation"]
    states = raw.of(layout.STATE)
    over = bool(len(states)) and not states["recording"][-1]
    found: BoolArray = ~known.bear(number) & (known.later(number) | over)
    return found
