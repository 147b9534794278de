"""Find the period of a training loop in the sequence of operations it enqueues.

A training step enqueues nearly the same operations each time. An operation that occurs once a
step therefore marks the steps; one that occurs once a layer marks layers. Every number of
occurrences is a hypothesis, and the right one cuts the sequence into segments that look alike:
segments of single layers do not, because one of them also holds the loss and the optimizer.
"""

from __future__ import annotations

import numpy as np

from stepscope.intervals.distinct import values_of_either, with_counts, with_inverse
from stepscope.trace.frame import BoolArray, IntArray

_SAMPLE = 250_000
_MIN_REPEATS = 3
_MAX_HYPOTHESES = 16
_MIN_SIMILARITY = 0.75
_TIE = 0.015
_HELD = 0.95  # of a usual step's operations: a step that has more to do holds them all
_COVERS = 0.5  # of the operations: what holds less is not what the run consists of
_TWO = 0.9  # of two usual steps' operations: what two steps hold together
_TWICE = 0.15  # how far from twice the usual length two steps together may be
_LOOKED_AT = 64
_BURSTS = -1  # marks the hypothesis that each run of optimizer operations ends a step


def find_period(token: IntArray, optimizer: BoolArray, upload: BoolArray) -> IntArray | None:
    """Positions in the sequence at which the steps begin.

    Args:
        token: what each operation is, in the order they were enqueued.
        optimizer: which operations update parameters.
        upload: which operations copy from host to device.

    Returns:
        Ascending positions, one a step; None when nothing repeats at least three times.
    """
    sample = slice(0, min(len(token), _SAMPLE))
    compact = with_inverse(token)[1]
    repeats = _best_marker(compact[sample], optimizer[sample])
    if repeats is None and len(token) > _SAMPLE:
        sample = slice(0, len(token))
        repeats = _best_marker(compact, optimizer)
    if repeats is None:
        return None
    anchors = bursts(optimizer) if repeats == _BURSTS else np.flatnonzero(compact == repeats)
    return _with_lost(compact, _phase(compact, optimizer, upload, anchors))


def _best_marker(token: IntArray, optimizer: BoolArray) -> int | None:
    """The token that occurs once a step, or ``_BURSTS``; None when nothing repeats."""
    counts = np.bincount(token)
    order = np.argsort(token, kind="stable")
    first = np.concatenate(([0], np.cumsum(counts)))
    hypotheses: list[tuple[float, int, int]] = []
    values, distinct = with_counts(counts[counts >= _MIN_REPEATS])
    likely = values[np.argsort(-distinct, kind="stable")][:_MAX_HYPOTHESES]
    runs = bursts(optimizer)
    if len(runs) >= _MIN_REPEATS and _coverage(runs, len(token)) >= _COVERS:
        hypotheses.append((_similarity(token, runs), len(runs), _BURSTS))
    for count in likely.tolist():
        marker = _most_regular(counts, order, first, count)
        if marker is None:
            continue
        anchors = order[first[marker] : first[marker + 1]]
        if _coverage(anchors, len(token)) >= _COVERS:
            hypotheses.append((_similarity(token, anchors), count, marker))
    good = [h for h in hypotheses if h[0] >= _MIN_SIMILARITY]
    if all(abs(h[1] - len(runs)) > 1 for h in good) and _with_more_in_some(token, runs):
        return _BURSTS
    if not good:
        return None
    best = max(h[0] for h in good)
    tied = [h for h in good if h[0] >= best - _TIE]
    # Micro-batches look alike; the optimizer runs once a step.
    per_optimizer = [h for h in tied if abs(h[1] - len(runs)) <= 1]
    return max(per_optimizer or tied, key=lambda h: (h[1], h[0]))[2]


def _most_regular(counts: IntArray, order: IntArray, first: IntArray, count: int) -> int | None:
    """Of the tokens with ``count`` occurrences, the one most evenly spaced."""
    best: tuple[float, int] | None = None
    for marker in np.flatnonzero(counts == count)[:64].tolist():
        spacing = np.diff(order[first[marker] : first[marker + 1]])
        middle = float(np.median(spacing))
        if middle < 2:
            continue
        spread = float(np.mean(np.abs(spacing - middle))) / middle
        if best is None or spread < best[0]:
            best = (spread, marker)
    return None if best is None or best[0] > 1.0 else best[1]


def bursts(optimizer: BoolArray) -> IntArray:
    """First position of each separate run of optimizer operations.

    Operations between two optimizer kernels that are few compared with the typical distance
    between runs belong to the run (unfused optimizers interleave generic kernels).
    """
    at = np.flatnonzero(optimizer)
    if len(at) < _MIN_REPEATS:
        return at
    distance = np.diff(at)
    far = max(8.0, 0.25 * float(distance.max()))
    return at[np.concatenate(([True], distance > far))]


def _coverage(anchors: IntArray, length: int) -> float:
    """Share of the sequence that the segments hold, the last as long as those before it."""
    spanned = int(anchors[-1] - anchors[0])
    return spanned * len(anchors) / max(len(anchors) - 1, 1) / length


def _similarity(token: IntArray, anchors: IntArray) -> float:
    """How alike neighbouring segments are, as the share of operations they have in common."""
    segment = np.searchsorted(anchors, np.arange(int(anchors[0]), int(anchors[-1])), "right") - 1
    n = len(anchors) - 1
    if n < 2:
        return 0.0
    inside = token[int(anchors[0]) : int(anchors[-1])]
    width = int(token.max()) + 1
    keys, amounts = with_counts(segment * width + inside)
    at, what = np.divmod(keys, width)
    following = np.searchsorted(keys, (at + 1) * width + what)
    following = np.minimum(following, len(keys) - 1)
    same = keys[following] == (at + 1) * width + what
    common = np.where(same, np.minimum(amounts, amounts[following]), 0).sum()
    lengths = np.diff(anchors)
    possible = np.maximum(lengths[1:], lengths[:-1]).sum()
    return float(common) / float(possible)


def _with_more_in_some(token: IntArray, runs: IntArray) -> bool:
    """Whether the same operations lead to each update, with others besides in some steps.

    An evaluation or a sample every few steps makes neighbouring steps unlike each other, and so
    many steps together look like one. The steps of two networks that take turns do not hold each
    other, and where most of what is launched lies between the updates they are a part of something.

    Args:
        token: the operations.
        runs: where each update begins.
    """
    n = len(runs) - 1
    if n < _MIN_REPEATS or _coverage(runs, len(token)) < _COVERS:
        return False
    length = np.diff(runs)
    usual = int(np.argsort(length, kind="stable")[n // 2])
    like = np.bincount(token[runs[usual] : runs[usual + 1]], minlength=int(token.max()) + 1)
    least = int(length[usual])
    if least * n < _COVERS * int(length.sum()):
        return False
    return all(
        _common(token[begin:end], like) >= _HELD * least
        for begin, end in zip(runs[:-1].tolist(), runs[1:].tolist(), strict=True)
    )


def _phase(token: IntArray, optimizer: BoolArray, upload: BoolArray, anchors: IntArray) -> IntArray:
    """Move the anchors to where a step naturally begins: its input copy, or after the optimizer."""
    n = len(anchors)
    uploads = np.flatnonzero(upload)
    if len(uploads):
        codes, counts = with_counts(token[uploads])
        once = codes[np.abs(counts - n) <= 1]
        firsts = [np.flatnonzero(upload & (token == code)) for code in once.tolist()]
        firsts = [at for at in firsts if _one_each(anchors, at)]
        if firsts:
            return min(firsts, key=lambda at: int(at[0]))
    runs = bursts(optimizer)
    if len(runs) >= _MIN_REPEATS and abs(len(runs) - n) <= 1:
        at = np.flatnonzero(optimizer)
        last_of_burst = at[np.searchsorted(at, runs[1:]) - 1]
        return np.concatenate(([0], last_of_burst + 1))
    return anchors


def _one_each(anchors: IntArray, at: IntArray) -> bool:
    """Whether each repetition holds one of the places; the record of one may be lost."""
    apart = np.diff(np.searchsorted(anchors, at, side="right"))
    return bool((apart > 0).all()) and int((apart != 1).sum()) <= 1


def _with_lost(token: IntArray, begins: IntArray) -> IntArray:
    """Split segments of two steps, the second of which lost the record that begins it.

    It begins near the middle, where what follows is most like what follows other beginnings.
    """
    length = np.diff(np.append(begins, len(token)))
    usual = int(np.median(length))
    if len(begins) < _MIN_REPEATS or usual < 8:
        return begins
    looked_at = min(_LOOKED_AT, usual // 4)
    codes = int(token.max()) + 1
    typical_row = int(np.argmin(np.abs(length - usual)))
    typical = int(begins[typical_row])
    like = np.bincount(token[typical : typical + looked_at], minlength=codes)
    twice = 2 * np.bincount(token[typical : typical + int(length[typical_row])], minlength=codes)
    found = []
    for row in np.flatnonzero(np.abs(length / (2 * usual) - 1) <= _TWICE).tolist():
        begin, end = int(begins[row]), int(begins[row] + length[row])
        if _common(token[begin:end], twice) < _TWO * 2 * usual:
            continue  # a step and an evaluation are as long as two steps, but do not hold two
        middle = int(begins[row]) + int(length[row]) // 2
        reach = max(looked_at // 4, int(_TWICE * usual))
        # the nearest to the middle of those that are alike
        places = sorted(range(middle - reach, middle + reach), key=lambda at: abs(at - middle))
        common = [_common(token[at : at + looked_at], like) for at in places]
        best = int(np.argmax(common))
        if common[best] >= _MIN_SIMILARITY * looked_at:
            found.append(places[best])
    return values_of_either(begins, np.array(found, begins.dtype))


def _common(tokens: IntArray, like: IntArray) -> int:
    """How many tokens are in a bag of tokens as well."""
    return int(np.minimum(np.bincount(tokens, minlength=len(like)), like).sum())
