"""Where a figure changed in a series of runs.

Binary segmentation: the split that separates a stretch best is kept if chance hardly makes one as
good, and both sides are searched again. "Best" is the largest difference of the means of the
logarithms, measured in their pooled standard error. Whether chance makes one as good is found by
shuffling the stretch (permutation test), which assumes nothing of the noise's shape. A shift under
``SMALLEST_SHIFT`` is not marked, however certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

ALPHA: Final = 0.01
"""Chance of a mark in a stretch in which nothing changed."""

SHUFFLES: Final = 999
"""With it the smallest chance that can be found is 0.1 %, a tenth of ``ALPHA``."""

SMALLEST_SHIFT: Final = 0.02
"""Share by which the level must change."""

SHORTEST: Final = 3
"""Runs on each side of a change: fewer have no level."""

ENOUGH: Final = 12
"""Runs of a series in which a clear change is found, wherever it is but at the very ends: of fewer,
shuffles have a split as good by chance in more than ``ALPHA`` of cases."""

FEW: Final = f"that takes about {ENOUGH} runs, at least {SHORTEST} on each side of it"
"""What is said of a shorter series."""

SEED: Final = 20240229
"""The same history always has the same marks."""


@dataclass(frozen=True)
class ChangePoint:
    """One change of level.

    Attributes:
        at: position of the first run after it.
        ratio: level after over level before.
        chance: of such a split without a change.
    """

    at: int
    ratio: float
    chance: float


def change_points(values: Sequence[float]) -> list[ChangePoint]:
    """Changes of level in a series of positive values, in order."""
    logs = np.log(np.asarray(values, np.float64))
    found: list[ChangePoint] = []
    pending = [(0, len(logs))]
    rng = np.random.default_rng(SEED)
    while pending:
        begin, end = pending.pop()
        piece = logs[begin:end]
        if len(piece) < 2 * SHORTEST:
            continue
        at, score = _best(piece)
        shuffled = rng.permuted(np.tile(piece, (SHUFFLES, 1)), axis=1)
        chance = (1 + int((_scores(shuffled).max(axis=1) >= score).sum())) / (SHUFFLES + 1)
        if chance > ALPHA:
            continue
        ratio = float(np.exp(piece[at:].mean() - piece[:at].mean()))
        if abs(ratio - 1) >= SMALLEST_SHIFT:
            found.append(ChangePoint(begin + at, ratio, chance))
        pending += [(begin, begin + at), (begin + at, end)]
    return sorted(found, key=lambda point: point.at)


def _best(piece: npt.NDArray[np.float64]) -> tuple[int, float]:
    scores = _scores(piece[None, :])[0]
    best = int(np.argmax(scores))
    return best + SHORTEST, float(scores[best])


def _scores(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """For each row, how well each split separates it; the first split is after ``SHORTEST``."""
    n = rows.shape[1]
    left = np.arange(SHORTEST, n - SHORTEST + 1)
    right = n - left
    centred = rows - rows.mean(axis=1, keepdims=True)
    sums = np.cumsum(centred, axis=1)[:, left - 1]
    total = (centred**2).sum(axis=1, keepdims=True)
    between = sums**2 * (1 / left + 1 / right)
    # rounding may leave nothing within, or less
    within = np.maximum(total - between, 1e-12 * np.maximum(total, 1e-12))
    scores: npt.NDArray[np.float64] = between / within
    return scores
