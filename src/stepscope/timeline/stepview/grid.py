"""The step view's picture: rows of steps and columns of time, whatever the number of either.

A cell tells how much of it the device was busy and idle, and which class took most of each. Cover
is exact: it is summed from the pieces, not sampled. A row may stand for several neighbouring steps.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from stepscope.timeline.classes import Codes
from stepscope.timeline.stepview.partition import IDLE, Pieces
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import IntArray

MOST_CELLS = 4 << 20
"""Cells of one picture: more than any screen shows."""
MOST_PIECES = 500_000
"""Pieces that are looked at together: some 60 MB."""
NOTHING = 255
"""Class of a cell's part that nothing takes."""


@dataclass(frozen=True)
class Picture:
    """What is asked for.

    Attributes:
        steps: numbers of the steps from top to bottom.
        group: steps in a row.
        begin: begin of the first column, ns after time zero.
        bucket: width of a column, ns.
        columns: number of columns.
    """

    steps: IntArray
    group: int
    begin: int
    bucket: int
    columns: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return -(-len(self.steps) // max(self.group, 1))


@dataclass(frozen=True)
class Cells:
    """One value a cell, row by row.

    Attributes:
        busy: share of the cell that is busy, of 255.
        busy_code: class that takes most of that; ``NOTHING`` for none.
        idle: share that is idle with a known cause, of 255.
        idle_code: cause that takes most of that.
    """

    busy: Codes
    busy_code: Codes
    idle: Codes
    idle_code: Codes


def cells(pieces: Pieces, code: Codes, zero_ns: IntArray, picture: Picture) -> Cells:
    """Aggregate pieces into cells.

    Args:
        pieces: what the device does.
        code: class of each piece.
        zero_ns: time zero of each step, ns.
        picture: what is asked for.

    Raises:
        UsageError: the picture is impossible or too large.
    """
    rows, columns, bucket = picture.rows, picture.columns, picture.bucket
    most = 1 << 60  # sums of two such times still are 64-bit numbers
    wrong = bucket < 1 or columns < 1 or bucket * columns > most or abs(picture.begin) > most
    if wrong or not 1 <= picture.group <= most:
        raise UsageError("the picture is impossible")
    if rows * columns > MOST_CELLS:
        raise UsageError(f"a picture of {rows:,} rows and {columns:,} columns is too large")
    at = pieces.of_steps(picture.steps)
    several = at.stop - at.start if isinstance(at, slice) else len(at)
    if several > MOST_PIECES and rows > 1:  # half of the rows after the other: bounded memory
        cut = rows // 2 * picture.group
        halves = [
            cells(pieces, code, zero_ns, replace(picture, steps=steps))
            for steps in (picture.steps[:cut], picture.steps[cut:])
        ]
        names = [field.name for field in fields(Cells)]
        joined = {n: np.concatenate([getattr(half, n) for half in halves]) for n in names}
        return Cells(**joined)
    row_of = np.zeros(len(zero_ns), np.int64)
    row_of[picture.steps] = np.arange(len(picture.steps)) // picture.group
    step, of = pieces.step[at], code[at]
    limit = bucket * columns
    since = (zero_ns + picture.begin)[step]
    low, high = pieces.start[at] - since, pieces.end[at] - since
    np.clip(low, 0, limit, out=low)
    np.clip(high, 0, limit, out=high)
    base = (row_of * (columns + 1))[step]
    seen = high > low
    if not seen.all():
        low, high, base, of = low[seen], high[seen], base[seen], of[seen]
    size = rows * (columns + 1)
    full = bucket * np.minimum(
        np.full(rows, picture.group), len(picture.steps) - picture.group * np.arange(rows)
    )
    shares = [np.zeros((rows, columns), np.int64) for _ in range(2)]
    best = [np.zeros((rows, columns), np.int64) for _ in range(2)]
    which = [np.full((rows, columns), NOTHING, np.uint8) for _ in range(2)]
    for kind in np.flatnonzero(np.bincount(of, minlength=1)).tolist():
        mine = np.flatnonzero(of == kind)
        covered = _covered(base[mine], low[mine], high[mine], bucket, size)
        covered = covered.reshape(rows, columns + 1)[:, :columns]
        side = int(IDLE[kind])
        shares[side] += covered
        better = covered > best[side]
        best[side][better] = covered[better]
        which[side][better] = kind
    # what is there at all is seen: a share never rounds to nothing
    of_255 = [-(-share * 255 // np.maximum(full[:, None], 1)) for share in shares]
    busy, idle = (np.minimum(share, 255).astype(np.uint8) for share in of_255)
    return Cells(busy.ravel(), which[0].ravel(), idle.ravel(), which[1].ravel())


def _covered(base: IntArray, low: IntArray, high: IntArray, bucket: int, size: int) -> IntArray:
    """Ns that intervals cover of each cell; ``base`` is the first cell of each one's row.

    An interval's first and last column are covered in part, those between in full: these are a
    running sum of where they begin and end, so that long intervals cost no more than short ones.
    """
    first, last = low // bucket, (high - 1) // bucket
    value = np.minimum(high, (first + 1) * bucket) - low
    found = np.bincount(base + first, weights=value, minlength=size)
    across = np.flatnonzero(first != last)
    if len(across):
        base, first, last, high = base[across], first[across], last[across], high[across]
        found += np.bincount(base + last, weights=high - last * bucket, minlength=size)
        far = last - first > 1
        if far.any():
            change = np.bincount(base[far] + first[far] + 1, minlength=size)
            change -= np.bincount(base[far] + last[far], minlength=size)
            found += bucket * np.cumsum(change)
    return np.rint(found).astype(np.int64)
