"""Whether a late device was given a larger share of a whole, or more than the others for itself.

Both have as many kernels as the others, of larger operands. A batch that is larger on one rank is
so by a number that somebody wrote down, twice or half as many samples, and all that a batch passes
takes longer by it. Parts of a graph, a mesh, a table or a vocabulary have the sizes that they have,
and what does not depend on these takes as long on all ranks. What one part has more of another one
lacks: cut evenly, the late device does not become like the others, but all do the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from stepscope.kernels.categories import PRODUCTS
from stepscope.kernels.kernels import Kernels, launched_threads
from stepscope.trace.frame import BoolArray, IntArray

_LARGEST: Final = 8
"""Denominator up to which a ratio is one that somebody wrote down (9/8, 3/2, 2)."""

_EXACT: Final = 0.002
"""Share by which launches miss such a ratio at most: the last block of each is not full."""

_MORE: Final = 1.02
"""Ratio from which on launches or times differ."""

_ALIKE: Final = 1.05
"""Ratio of times up to which products take as long: runs of one program differ by as much."""

_MOSTLY: Final = 0.5

_SOME: Final = 0.1
"""Part of what neither multiplies nor updates that takes as long where not all is larger."""


@dataclass(frozen=True)
class _Launched:
    """What one device or the mean of some launches a step, by kernel name, in one order."""

    launches: npt.NDArray[np.float64]
    threads: npt.NDArray[np.float64]
    most_threads: npt.NDArray[np.float64]
    time_ns: npt.NDArray[np.float64]


def larger_share(late: list[Kernels], others: list[Kernels]) -> bool:
    """Whether what late devices have more of is a share of which the others have less.

    Args:
        late: kernels of the devices that are late, which launch those of the others.
        others: kernels of the others.
    """
    category: dict[str, str] = {}
    for kernels in (*late, *others):
        category |= _computing(kernels)
    names = sorted(category)
    products, update = (
        np.array([category[name] in chosen for name in names])
        for chosen in (PRODUCTS, ("optimizer",))
    )
    mine, theirs = (_mean(group, names) for group in (late, others))
    ratio = mine.threads / np.maximum(theirs.threads, 1.0)
    # as many launches; or larger ones, of which what is very large is launched in parts
    same = np.abs(mine.launches - theirs.launches) < _MOSTLY
    same |= mine.most_threads >= _MORE * theirs.most_threads
    same &= theirs.time_ns > 0
    surplus = np.maximum(mine.time_ns - theirs.time_ns, 0.0)
    if surplus[same].sum() <= _MOSTLY * surplus.sum():
        return False  # it does something else besides
    # products too small to fill the device take as long whatever they are given; all else does not
    rest = _alike(mine, theirs, same & ~products & ~update)
    if rest >= _SOME and _alike(mine, theirs, same & products) > _MOSTLY:
        return True
    surplus *= same & (ratio >= _MORE)
    return bool(surplus[~_written_down(ratio)].sum() > _MOSTLY * surplus.sum())


def _alike(mine: _Launched, theirs: _Launched, rows: BoolArray) -> float:
    """Which part of some kernels' time takes as long on late devices; 0 where there are none."""
    as_long = rows & (mine.time_ns <= _ALIKE * theirs.time_ns)
    return float(theirs.time_ns[as_long].sum() / max(theirs.time_ns[rows].sum(), 1.0))


def _written_down(ratio: npt.NDArray[np.float64]) -> BoolArray:
    """Which ratios are those of small whole numbers."""
    found = np.zeros(len(ratio), bool)
    for denominator in range(1, _LARGEST + 1):
        whole = np.round(ratio * denominator)
        found |= np.abs(ratio * denominator - whole) <= _EXACT * whole
    return found


def _computing(kernels: Kernels) -> dict[str, str]:
    """Names of what computes in steady steps, and their categories."""
    counted = np.bincount(kernels.gpu.ops["name"][_rows(kernels)], minlength=len(kernels.classes))
    texts = kernels.gpu.ops.texts["name"]
    return {texts[at]: kernels.classes[at].category for at in np.flatnonzero(counted).tolist()}


def _rows(kernels: Kernels) -> IntArray:
    """Rows of ``GPU.ops`` of what computes in steady steps, and has a name."""
    named = kernels.gpu.ops["name"] >= 0
    return np.flatnonzero(kernels.steady & kernels.gpu.is_compute & named)


def _mean(group: list[Kernels], names: list[str]) -> _Launched:
    """The mean of some devices, a step."""
    place = {name: at for at, name in enumerate(names)}
    launches, threads, time_ns, most = np.zeros((4, len(names)))
    for kernels in group:
        rows = _rows(kernels)
        at = np.array([place.get(name, -1) for name in kernels.gpu.ops.texts["name"]], np.int64)
        row = at[kernels.gpu.ops["name"][rows]]
        each = launched_threads(kernels.grid.take(rows))
        took = kernels.duration_ns[rows]
        share = 1 / (len(group) * max(kernels.n_steady, 1))
        launches += np.bincount(row, minlength=len(names)) * share
        threads += np.bincount(row, weights=each, minlength=len(names)) * share
        time_ns += np.bincount(row, weights=took, minlength=len(names)) * share
        np.maximum.at(most, row, each)
    return _Launched(launches, threads, most, time_ns)
