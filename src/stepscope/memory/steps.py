"""Steps as memory sees them, and whether more is allocated from one to the next."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import numpy as np

from stepscope.intervals.distinct import among, distinct_values, with_counts
from stepscope.memory.history import History, Reader
from stepscope.trace.frame import IntArray

_NUMBERED = re.compile(r"^(.*?)[#_ :/-]*\d+$")
_MOST_PAIRS = 400
_SIGNIFICANT = 0.05
_EXACT_UP_TO = 10
_TRIED = 8
_RELEASED = 0.5
_LEAST = 0.5
"""A loop of steps holds this share at least of what happens; one over parameters need not."""
_STRANGE = 3
"""So many stacks that allocate behind the last repetition, and in none, are no further step."""


def steps_of(history: History, read: Reader) -> tuple[IntArray, bool]:
    """Begins of the steps and the end of the last one, ns; empty where nothing tells.

    By numbered annotations, else by the stack that allocates most regularly; then the second value
    is true.
    """
    ranges = read("range", "start_ns", "end_ns", "name")
    stems: dict[str, list[int]] = {}
    for code, text in enumerate(ranges.texts.get("name", [])):
        if found := _NUMBERED.match(text):
            stems.setdefault(found[1], []).append(code)
    best: tuple[int, IntArray] = (0, np.zeros(0, np.int64))
    for codes in stems.values():
        if len(codes) < 2:
            continue
        chosen = np.zeros(len(ranges.texts["name"]) + 1, np.bool_)
        chosen[codes] = True
        rows = np.flatnonzero(chosen[ranges["name"]])
        rows = rows[np.argsort(ranges["start_ns"][rows], kind="stable")]
        begin, end = ranges["start_ns"][rows], ranges["end_ns"][rows]
        if (begin[1:] < end[:-1]).any() or len(rows) != len(codes):
            continue
        covered = int((end - begin).sum())
        if covered > best[0]:
            best = covered, np.append(begin, end[-1])
    return (best[1], False) if len(best[1]) else (_by_stack(history), True)


def _by_stack(history: History) -> IntArray:
    """Steps begin where the stack that comes once a step allocates."""
    events = history.events
    rows = np.flatnonzero((events["bytes"] > 0) & (events["stack_id"] >= 0))
    if len(rows) < 6:
        return np.zeros(0, np.int64)
    key = events["stack_id"][rows] * (1 << 40) + np.minimum(events["bytes"][rows], (1 << 40) - 1)
    values, counts = with_counts(key)
    weights = np.bincount(counts, weights=values % (1 << 40))
    weights[:3] = 0
    for often in np.argsort(-weights, kind="stable")[:_TRIED].tolist():
        if not weights[often]:
            break
        for value in values[counts == often].tolist():
            bounds = _regular(history, rows[key == value])
            if len(bounds):
                return bounds
    return np.zeros(0, np.int64)


def _regular(history: History, at: IntArray) -> IntArray:
    """Bounds of steps that begin at some events; empty where these are no steps.

    Steps come regularly and release most of what they allocate; the layers of one forward pass come
    as regularly and keep it. Layers that release much are followed by the end of the model, the
    loss or the optimizer, which none of them holds; steps by nothing of the kind.
    """
    nothing = np.zeros(0, np.int64)
    gaps = np.diff(at)
    if at[-1] - at[0] < _LEAST * len(history.events):
        return nothing
    if gaps.max() > 3 * max(int(np.median(gaps)), 1) or gaps.min() < 4:
        return nothing
    change = history.events["bytes"]
    taken = np.add.reduceat(np.maximum(change, 0), at)[:-1]
    given = np.add.reduceat(np.maximum(-change, 0), at)[:-1]
    time = history.time_ns[at]
    if np.median(given / np.maximum(taken, 1)) < _RELEASED or (np.diff(time) <= 0).any():
        return nothing
    stacks = history.events["stack_id"]
    behind = slice(int(at[-1]) + int(np.median(gaps)), None)
    inside = distinct_values(stacks[at[0] : at[-1]])
    later = distinct_values(stacks[behind][change[behind] > 0])
    if int((~among(later, inside) & (later >= 0)).sum()) >= _STRANGE:
        return nothing
    return np.append(time, max(int(history.time_ns[-1]), int(time[-1]) + 1))


def slope(values: IntArray) -> int:
    """Median of the slopes between all pairs (Theil and Sen), rounded."""
    n = len(values)
    i, j = np.triu_indices(n, 1) if n <= _MOST_PAIRS else _some_pairs(n)
    return round(float(np.median((values[j] - values[i]) / (j - i))))


def _some_pairs(n: int) -> tuple[IntArray, IntArray]:
    half = n // 2
    first = np.arange(half)
    return first, first + half


def trend_p(values: IntArray) -> float:
    """Probability of a trend at least this clear where there is none (Mann and Kendall)."""
    n = len(values)
    if n < 3:
        return 1.0
    numbers = values.tolist()
    score = sum(
        (later > earlier) - (later < earlier)
        for at, earlier in enumerate(numbers)
        for later in numbers[at + 1 :]
    ) if n <= _MOST_PAIRS else int(np.sign(np.diff(values)).sum()) * n // 2  # fmt: skip
    if not score:
        return 1.0
    if n <= _EXACT_UP_TO and len(set(numbers)) == n:
        return min(1.0, 2 * _tail(n, abs(score)))
    _, ties = with_counts(values)
    spread = n * (n - 1) * (2 * n + 5) - int((ties * (ties - 1) * (2 * ties + 5)).sum())
    if spread <= 0:
        return 1.0
    z = (abs(score) - 1) / math.sqrt(spread / 18)
    return min(1.0, math.erfc(z / math.sqrt(2)))


def _tail(n: int, score: int) -> float:
    """Share of all orders of ``n`` values with at least this score."""
    inversions = [1]
    for size in range(2, n + 1):
        longer = [0] * (len(inversions) + size - 1)
        for at, ways in enumerate(inversions):
            for more in range(size):
                longer[at + more] += ways
        inversions = longer
    most = n * (n - 1) // 2
    return sum(inversions[: (most - score) // 2 + 1]) / math.factorial(n)


def is_leak(per_step: int, p: float) -> bool:
    """Whether a slope is a leak."""
    return per_step > 0 and p <= _SIGNIFICANT


def windows(bounds: IntArray) -> list[tuple[int, int]]:
    """Begin and end of each step."""
    return list(pairwise(bounds.tolist()))
