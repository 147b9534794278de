"""Which correlation ids were seen on the host and on the GPU, in one byte an id."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.intervals.distinct import distinct_rows, distinct_values
from stepscope.trace.frame import BoolArray, IntArray

_PAGE_BITS = 16
_PAGE = 1 << _PAGE_BITS
_MAX_PAGES = 4096
Flags = npt.NDArray[np.uint8]


class CorrelationFlags:
    """A set of flags for each (process, correlation id).

    Ids are handed out in sequence, so pages of 65,536 ids fill up; with absurdly scattered ids
    (more than ``_MAX_PAGES`` pages) the set gives up and ``complete`` turns False.
    """

    def __init__(self) -> None:
        self._pages: dict[tuple[int, int], Flags] = {}
        self.complete = True

    def mark(self, processes: IntArray, ids: IntArray, flag: int) -> None:
        """Set a flag for ids."""
        for process, page, where in _pages(processes, ids):
            flags = self._pages.get((process, page))
            if flags is None:
                if len(self._pages) >= _MAX_PAGES:
                    self.complete = False
                    return
                flags = self._pages[process, page] = np.zeros(_PAGE, np.uint8)
            low = ids[where] & (_PAGE - 1)
            flags[low] |= flag

    def lacking(self, processes: IntArray, ids: IntArray, flag: int) -> int:
        """How many of these rows have an id without the flag."""
        count = 0
        for process, page, where in _pages(processes, ids):
            flags = self._pages.get((process, page))
            low = ids[where] & (_PAGE - 1)
            count += len(low) if flags is None else int((flags[low] & flag == 0).sum())
        return count

    def count(self, with_flag: int, without: int) -> int:
        """How many ids have the first flag but not the second."""
        wanted = with_flag | without
        return sum(int((page & wanted == with_flag).sum()) for page in self._pages.values())


def _pages(processes: IntArray, ids: IntArray) -> list[tuple[int, int, BoolArray | slice]]:
    """The rows of each (process, page); ids are mostly of one process and close together."""
    if not len(ids):
        return []
    pages = ids >> _PAGE_BITS
    if processes[0] == processes[-1] and (processes == processes[0]).all():
        low, high = int(pages.min()), int(pages.max())
        if low == high:
            return [(int(processes[0]), low, slice(None))]
        found = distinct_values(pages).tolist()
        return [(int(processes[0]), page, pages == page) for page in found]
    first, _ = distinct_rows((processes, pages))
    pairs = zip(processes[first].tolist(), pages[first].tolist(), strict=True)
    return [(p, page, (processes == p) & (pages == page)) for p, page in pairs]
