"""How the clocks of two ranks differ, from the ends of collectives.

No member of an all-reduce can end before the last one has joined, and then all end nearly
together: within the time the last piece needs around the ring. The difference of the ends of one
collective on two ranks is therefore the difference of their clocks, give or take that time.

Finding the difference needs no pairs. Among all differences between the ends of some operations
of one rank and all operations of the other that look the same, those of true pairs crowd at one
value, whatever is missing from either capture; the others are spread by the program's own
irregularity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stepscope.intervals.distinct import common_values, distinct_values
from stepscope.trace.frame import BoolArray, IntArray

HOP_NS: Final = 10_000
"""What one more rank adds to how far the ends of one collective lie apart. The last piece of data
travels once through all ranks, a few us each; on four H200 ends lie up to 20 us apart."""

MAX_DRIFT: Final = 2e-4
"""Crystals are good to 100 ppm each, so two differ by twice that at most."""

SEARCH_NS: Final = 2_000_000_000
"""How far the wall clocks of two machines may be apart. Synchronised ones are within 100 ms."""

SHARED_NS: Final = 1_000_000
"""Clocks that differ by less than this need no search: it is the order of a collective's length."""

_CHUNKS = 8
_SAMPLE = 128
_BINS_NS = (10_000, 40_000, 160_000)
_CROWD = 0.3
_SURE = 0.6
_MAX_FIT = 64
_DIFFERENCES = 200_000
_NEIGHBOURS = 9
_DRIFT_GAIN = 0.7


@dataclass(frozen=True)
class Line:
    """The time of one clock as another shows it: ``to(t) = t + offset_ns + drift * (t - at_ns)``.

    Attributes:
        offset_ns: what must be added at ``at_ns``, ns.
        drift: what must be added a ns later, ns a ns.
        at_ns: where the offset is exact, on the clock that is converted.
        residual_ns: how far the ends of a collective still lie apart (scaled median absolute
            deviation), ns.
        pairs: how many collectives say so.
    """

    offset_ns: float = 0.0
    drift: float = 0.0
    at_ns: int = 0
    residual_ns: float = 0.0
    pairs: int = 0

    def to(self, time_ns: IntArray) -> IntArray:
        """Times on the other clock, ns."""
        if not self.offset_ns and not self.drift:
            return time_ns
        moved = self.offset_ns + self.drift * (time_ns - self.at_ns)
        there: IntArray = time_ns + np.rint(moved).astype(np.int64)
        return there

    def back(self, time_ns: IntArray) -> IntArray:
        """Times on this clock from times on the other one, ns."""
        if not self.offset_ns and not self.drift:
            return time_ns
        moved = (time_ns - self.at_ns - self.offset_ns) / (1 + self.drift)
        here: IntArray = self.at_ns + np.rint(moved).astype(np.int64)
        return here

    def reversed(self) -> Line:
        """The conversion the other way."""
        scale, whole = 1 + self.drift, round(self.offset_ns)
        return Line(
            (whole - self.offset_ns) / scale - whole,
            -self.drift / scale,
            self.at_ns + whole,
            self.residual_ns,
            self.pairs,
        )

    def then(self, other: Line) -> Line:
        """First this conversion, then another one."""
        there = self.at_ns + self.offset_ns
        offset = self.offset_ns + other.offset_ns + other.drift * (there - other.at_ns)
        drift = self.drift + other.drift + self.drift * other.drift
        residual = float(np.hypot(self.residual_ns, other.residual_ns))
        return Line(offset, drift, self.at_ns, residual, min(self.pairs, other.pairs))


def find_line(
    end_a: IntArray,
    token_a: IntArray,
    end_b: IntArray,
    token_b: IntArray,
    prior_ns: float | None,
) -> Line | None:
    """Roughly what to add to the times of ``b`` so that matching operations end together.

    Args:
        end_a: ends of one rank's operations, ascending, ns.
        token_a: what they look like.
        end_b: ends of the other's, ascending, ns.
        token_b: what they look like.
        prior_ns: what to add by the wall clocks, ns; None where unknown.

    Returns:
        The line (its residual is not known yet), or None when nothing crowds anywhere.
    """
    n = len(end_b)
    if not n or not len(end_a):
        return None
    if prior_ns is not None:
        near = _crowd_at(end_a, token_a, end_b, token_b, prior_ns)
        if near is not None:
            return Line(near, 0.0, int(end_b[n // 2]))
    chunks = [c for c in np.array_split(np.arange(n), max(1, min(_CHUNKS, n // 24))) if len(c)]
    found: list[tuple[float, float, float]] = []
    for chunk in chunks:
        middle = max(0, len(chunk) // 2 - _SAMPLE // 2)
        rows = chunk[middle : middle + _SAMPLE]
        at = float(end_b[rows].mean())
        spot = None
        if found:  # the clocks do not change much on the way
            before, offset, _ = found[-1]
            reach = SHARED_NS + round(MAX_DRIFT * abs(at - before))
            spot = _crowd(end_a, token_a, end_b[rows], token_b[rows], offset, reach)
        if spot is None or spot[1] < _SURE * len(rows):
            spot = _crowd(end_a, token_a, end_b[rows], token_b[rows], prior_ns)
        if spot is not None and spot[1] >= _CROWD * len(rows):
            found.append((at, *spot))
    if not found:
        return None
    return _best_line(np.array(found), prior_ns)


def _crowd_at(
    end_a: IntArray, token_a: IntArray, end_b: IntArray, token_b: IntArray, prior_ns: float
) -> float | None:
    """The offset, where the wall clocks alone already make most operations end together."""
    rows = distinct_values(np.linspace(0, len(end_b) - 1, min(len(end_b), 4 * _SAMPLE)).astype(int))
    at = end_b[rows] + round(prior_ns)
    inside = (at >= end_a[0] - SHARED_NS) & (at <= end_a[-1] + SHARED_NS)
    rows = rows[inside]
    spot = _crowd(end_a, token_a, end_b[rows], token_b[rows], prior_ns, SHARED_NS)
    if spot is None or len(rows) < 3 or spot[1] < _SURE * len(rows):
        return None
    return spot[0]


def _crowd(
    end_a: IntArray,
    token_a: IntArray,
    end_b: IntArray,
    token_b: IntArray,
    prior_ns: float | None,
    reach_ns: int = SEARCH_NS,
) -> tuple[float, float] | None:
    """(offset, how many operations of ``b`` agree on it) of the densest differences."""
    if not len(end_b):
        return None
    low, high = 0, len(end_a)
    shift = 0 if prior_ns is None else round(prior_ns)
    if prior_ns is not None:
        low = int(np.searchsorted(end_a, end_b[0] + shift - reach_ns))
        high = int(np.searchsorted(end_a, end_b[-1] + shift + reach_ns, side="right"))
    if high <= low:
        return None
    # so many differences are enough to see a crowd
    every = max(1, len(end_b) * (high - low) // _DIFFERENCES)
    end_b, token_b = end_b[::every], token_b[::every]
    same = token_a[None, low:high] == token_b[:, None]
    differences = (end_a[None, low:high] - end_b[:, None])[same]
    if prior_ns is not None:
        differences = differences[np.abs(differences - shift) <= reach_ns]
    if not len(differences):
        return None
    differences = np.sort(differences)
    spread = max(1, int(differences[-1] - differences[0]))
    sure: list[tuple[float, float, float]] = []
    for width in _BINS_NS:
        # how many differences lie in the window that begins at each of them
        count = np.searchsorted(differences, differences + width, side="right")
        count -= np.arange(len(differences))
        best = np.flatnonzero(count >= 0.8 * count.max())
        offsets = differences[best + count[best] // 2]
        # the wall clocks decide between crowds of nearly one size, because steps may repeat
        # exactly; what they cannot know is where within a collective's length the truth lies
        away = np.zeros(len(best), np.int64)
        if prior_ns is not None:
            away = np.abs(offsets - shift) // SHARED_NS
        which = int(np.lexsort((-count[best], away))[0])
        expected = len(differences) * width / max(spread, width)
        support = min(int(count[best[which]]), len(end_b))
        surprise = (support - expected) / np.sqrt(max(expected, 1.0))
        sure.append((float(surprise), float(offsets[which]), float(support * every)))
    _, best_offset, agreeing = max(sure)
    return best_offset, agreeing


def _best_line(found: npt.NDArray[np.float64], prior_ns: float | None) -> Line:
    """The line that most of the (time, offset, support) spots lie on."""
    time, offset, support = found.T
    candidates = [(i, 0.0) for i in range(len(time))]
    for i in range(len(time)):
        for j in range(i + 1, len(time)):
            drift = (offset[j] - offset[i]) / max(time[j] - time[i], 1.0)
            if abs(drift) <= MAX_DRIFT:
                candidates.append((i, drift))

    def worth(candidate: tuple[int, float]) -> tuple[float, float, float]:
        i, drift = candidate
        off = offset[i] + drift * (time - time[i])
        held = support[np.abs(offset - off) <= max(_BINS_NS)].sum()
        away = 0.0 if prior_ns is None else abs(offset[i] - prior_ns)
        return float(held), -abs(drift), -away

    i, drift = max(candidates, key=worth)
    return Line(float(offset[i]), float(drift), round(float(time[i])))


def fit(time_b: IntArray, difference: IntArray, ranks: int, shared: Line | None) -> Line:
    """The robust line through the differences of matched ends.

    Medians of runs of pairs, then the median of all slopes between them (Theil-Sen): neither a
    tenth of wrong pairs nor single late ends move it.

    Args:
        time_b: ends on the clock that is converted, ascending, ns.
        difference: what must be added to each, ns.
        ranks: ranks of the communicator.
        shared: what the wall clocks say; None where unknown. It is kept where the estimate does
            not differ from it by more than the residual, or than the ends of one collective may
            lie apart.
    """
    runs = np.array_split(np.arange(len(time_b)), min(_MAX_FIT, len(time_b)))
    t = np.array([np.median(time_b[r]) for r in runs])
    d = np.array([np.median(difference[r]) for r in runs])
    at = int(time_b[len(time_b) // 2])
    i, j = np.triu_indices(len(t), 1)
    apart = t[j] - t[i]
    drift = 0.0
    if len(runs) >= 8 and (apart > 0).any():
        slopes = (d[j] - d[i])[apart > 0] / apart[apart > 0]
        drift = float(np.median(slopes))
    drift = drift if abs(drift) <= MAX_DRIFT else 0.0
    left = difference - drift * (time_b - at)
    offset = float(np.median(left))
    residual = _deviation(left - offset)
    still = difference - float(np.median(difference))
    # a drift that does not take away most of the scatter is none
    if residual > _DRIFT_GAIN * _deviation(still):
        drift, offset, residual = 0.0, float(np.median(difference)), _deviation(still)
    estimate = Line(offset, drift, at, residual, len(time_b))
    if shared is None:
        return estimate
    edges = time_b[[0, -1]]
    gap = np.abs(estimate.to(edges) - shared.to(edges)).max()
    if gap <= max(3 * residual, HOP_NS * max(ranks - 1, 1)):
        return Line(shared.offset_ns, shared.drift, shared.at_ns, residual, len(time_b))
    return estimate


def _deviation(values: npt.NDArray[np.floating[Any]]) -> float:
    """Scaled median absolute deviation: the standard deviation, if it were noise."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def pair_by_time(
    end_a: IntArray,
    token_a: IntArray,
    end_b: IntArray,
    token_b: IntArray,
    tolerance_ns: int,
    between_ns: int | None = None,
) -> tuple[IntArray, IntArray]:
    """Rows of ``a`` and ``b`` that belong together: same look, each the other's nearest in time.

    Where operations crowd closer than ends agree, the nearest one may be a neighbour. There the
    order decides: between two pairs that are beyond doubt and count on equally, nothing is missing,
    so what lies between them is paired one after the other.

    Args:
        end_a: ends of one rank's operations, ascending, ns.
        token_a: what they look like.
        end_b: ends of the other's on the same clock, ascending, ns.
        token_b: what they look like.
        tolerance_ns: how far the ends of a pair may lie apart.
        between_ns: how far where the order decides; the same by default.
    """
    between_ns = tolerance_ns if between_ns is None else between_ns
    found_a, found_b = [], []
    order_a, order_b = np.argsort(token_a, kind="stable"), np.argsort(token_b, kind="stable")
    common = common_values(token_a, token_b)
    low_a, high_a = (np.searchsorted(token_a[order_a], common, side=s) for s in ("left", "right"))
    low_b, high_b = (np.searchsorted(token_b[order_b], common, side=s) for s in ("left", "right"))
    for la, ha, lb, hb in zip(low_a, high_a, low_b, high_b, strict=True):
        rows_a, rows_b = order_a[la:ha], order_b[lb:hb]
        i, j = _pair_alike(end_a[rows_a], end_b[rows_b], tolerance_ns, between_ns)
        found_a.append(rows_a[i])
        found_b.append(rows_b[j])
    if not found_a:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    a, b = np.concatenate(found_a), np.concatenate(found_b)
    order = np.argsort(b, kind="stable")
    return a[order], b[order]


def _pair_alike(
    end_a: IntArray, end_b: IntArray, tolerance_ns: int, between_ns: int
) -> tuple[IntArray, IntArray]:
    nearest, away, second = _nearest(end_a, end_b)
    back, _, _ = _nearest(end_b, end_a)
    row = np.arange(len(end_b))
    mutual = (back[nearest] == row) & (away <= tolerance_ns)
    choice = np.where(mutual, nearest, -1)
    # beyond doubt: the next best candidate is several times as far away as the ends may be apart
    sure = np.flatnonzero(mutual & (second > 4 * np.maximum(away, HOP_NS)))
    sure = sure[_usual_lag(nearest[sure] - sure)]
    if 0 < len(sure) < len(end_b):
        lag = nearest[sure] - sure
        before = np.searchsorted(sure, row, side="right") - 1
        after = np.minimum(before + 1, len(sure) - 1)
        before = np.maximum(before, 0)
        steady = lag[before] == lag[after]
        by_order = row + lag[before]
        inside = (by_order >= 0) & (by_order < len(end_a))
        close = np.abs(end_a[np.clip(by_order, 0, len(end_a) - 1)] - end_b) <= between_ns
        choice = np.where(steady & inside & close, by_order, choice)
        choice[sure] = nearest[sure]
    return _once(choice, np.abs(end_a[np.maximum(choice, 0)] - end_b))


def _usual_lag(lag: IntArray) -> BoolArray:
    """Mask of the lags that their neighbours have as well: a lost record shifts all that follow."""
    if len(lag) < _NEIGHBOURS:
        return np.equal(lag, np.median(lag)) if len(lag) else np.zeros(0, bool)
    around = np.pad(lag, _NEIGHBOURS // 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(around, _NEIGHBOURS)
    mask: BoolArray = (windows == lag[:, None]).sum(axis=1) > _NEIGHBOURS // 3
    return mask


def _nearest(targets: IntArray, values: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Nearest target of each value, how far it is, and how far the second nearest is."""
    after = np.searchsorted(targets, values)
    n = len(targets)
    far = np.iinfo(np.int64).max // 4
    candidates = after[:, None] + np.array([-2, -1, 0, 1])[None, :]
    valid: BoolArray = (candidates >= 0) & (candidates < n)
    distance = np.abs(targets[np.clip(candidates, 0, n - 1)] - values[:, None])
    distance = np.where(valid, distance, far)
    best = np.argmin(distance, axis=1)
    row = np.arange(len(values))
    away = distance[row, best]
    distance[row, best] = far
    return candidates[row, best], away, distance.min(axis=1)


def _once(choice: IntArray, away: IntArray) -> tuple[IntArray, IntArray]:
    """(a, b) of the chosen pairs; where two chose the same row, the nearer one has it."""
    b = np.flatnonzero(choice >= 0)
    order = b[np.lexsort((away[b], choice[b]))]
    first = np.ones(len(order), bool)
    first[1:] = choice[order][1:] != choice[order][:-1]
    kept = np.sort(order[first])
    return choice[kept], kept
