"""By how many operations one capture begins later than another: ``digest_match._lag`` as a whole.

It is compared with a model in plain Python, which tries every lag and looks at one pair of
operations after the other, and with jobs whose lag is known.
"""

from __future__ import annotations

from math import isnan
from statistics import median_low
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.collectives.calls import Calls, JobCalls, Participant
from stepscope.jobs.digest_match import _lag, _scattered

LAGS, LOOKED_AT = 64, 24


def calls(token: list[int], end_ns: list[int]) -> Calls:
    """Operations of one communicator, each 1 us long."""
    n = len(token)
    end, none = np.array(end_ns, np.int64), np.full(n, -1)
    return Calls(
        op=np.arange(n), stream=np.zeros(n, np.int64), start_ns=end - 1000, end_ns=end,
        kind=np.zeros(n, np.int64), token=np.array(token, np.int64), group=np.zeros(n, np.int64),
        sequence=none, bytes=none, size=none, stated=np.ones(n, bool),
    )  # fmt: skip


def job(first: Calls, second: Calls, epochs: tuple[int | None, int | None]) -> JobCalls:
    def nothing(*_: Any) -> Any:
        raise KeyError

    participants = [
        Participant(rank, cast("Any", None), nothing, clock=rank, epoch_ns=epoch)
        for rank, epoch in enumerate(epochs)
    ]
    return JobCalls(participants, [first, second], [])


def found(first: Calls, second: Calls, epochs: tuple[int | None, int | None]) -> int:
    rows = [np.arange(len(first)), np.arange(len(second))]
    return _lag(job(first, second, epochs), 0, rows[0], 1, rows[1])


def costs(first: Calls, second: Calls, epochs: tuple[int | None, int | None]) -> dict[int, float]:
    """What each lag that fits costs, by the words of ``_lag``."""
    a, b = first.end_ns.tolist(), second.end_ns.tolist()
    looked = _scattered(len(b)).tolist()
    count = len(looked)
    most = abs(len(a) - len(b)) + LAGS
    answer = {}
    for lag in range(-most, most + 1):
        pairs = [(k + lag, k) for k in looked if 0 <= k + lag < len(a)]
        if len(pairs) < max(3, count // 2):
            continue
        same = sum(first.token[i] == second.token[k] for i, k in pairs)
        if same < 0.9 * len(pairs):
            continue
        apart = [a[i] - b[k] for i, k in pairs]
        middle = median_low(apart)
        slope = drift(looked, [(k, a[k + lag] - b[k]) for _, k in pairs], b)
        origin = b[looked[count // 2]]
        left = [
            x - middle - slope * (b[k] - origin) for x, (_, k) in zip(apart, pairs, strict=True)
        ]
        centre = median_low(left)
        cost = sum(abs(x - centre) for x in left) / len(pairs)
        if None not in epochs:
            cost += 1e-3 * abs(middle - (cast("int", epochs[1]) - cast("int", epochs[0])))
        answer[lag] = cost
    return answer


def drift(looked: list[int], apart: list[tuple[int, int]], end: list[int]) -> float:
    half = len(looked) // 2
    if half < 4:
        return 0.0
    early, late = set(looked[:half]), set(looked[half:])
    before = [x for k, x in apart if k in early]
    after = [x for k, x in apart if k in late]
    if not before or not after:
        return 0.0
    times = [float(np.median([end[k] for k in part])) for part in (looked[half:], looked[:half])]
    slope = (median_low(after) - median_low(before)) / max(times[0] - times[1], 1.0)
    return 0.0 if isnan(slope) or abs(slope) > 1e-3 else slope


operations = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1_000, 3_000_000)), min_size=1, max_size=70
)
epoch = st.none() | st.integers(-20_000_000, 20_000_000)


@settings(max_examples=150, deadline=None)
@given(operations, operations, st.tuples(epoch, epoch), st.booleans())
def test_no_lag_fits_better_than_the_one_that_is_found(
    one: list[tuple[int, int]], other: list[tuple[int, int]],
    epochs: tuple[int | None, int | None], alike: bool,
) -> None:  # fmt: skip
    """Whatever the operations are: unlike each other, or those of one program."""
    if alike:
        other = one[len(other) % len(one) :] or one
    first, second = (
        calls([t for t, _ in each], np.cumsum([ns for _, ns in each]).tolist())
        for each in (one, other)
    )
    lag, known = found(first, second, epochs), costs(first, second, epochs)
    if not known:
        assert lag == 0
    else:
        assert known[lag] == pytest.approx(min(known.values()), rel=1e-9, abs=1e-3)


@given(st.integers(1, 5000))
def test_what_is_looked_at_covers_all_and_has_no_period(count: int) -> None:
    looked = _scattered(count).tolist()
    assert looked == sorted(set(looked))
    assert len(looked) == min(count, LOOKED_AT)
    assert 0 <= looked[0] <= looked[-1] < count
    gaps = np.diff([-1, *looked, count])
    assert gaps.max() <= 2 * max(count / LOOKED_AT, 1) + 1
    for period in range(2, min(count // 2, 500)):
        # no phase of a period holds nearly all of them, as it would of rows equally far apart
        assert np.bincount([row % period for row in looked]).max() <= max(0.9 * len(looked), 2)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    skipped=st.integers(0, 40),
    ends=st.integers(0, 30),
    wall_clock=st.booleans(),
    ppm=st.floats(-50, 50),
)
def test_the_lag_of_a_job_is_found(
    seed: int, skipped: int, ends: int, wall_clock: bool, ppm: float
) -> None:
    """Steps of six operations whose lengths vary; clocks are off by seconds and drift."""
    chance = np.random.default_rng(seed)
    steps, each = 24, 6
    begin = np.cumsum(40e6 * chance.normal(1, 0.01, steps))
    end = (begin[:, None] + np.linspace(10e6, 30e6, each)).ravel()
    token = [0, 0, 1, 0, 0, 2] * steps
    offset = float(chance.normal(0, 5e9))
    n = len(end)
    here = np.rint(end + chance.normal(0, 2_000, n)).astype(np.int64)
    there = np.rint((end + chance.normal(0, 2_000, n)) * (1 + ppm * 1e-6) + offset)
    first = calls(token[: n - ends], here[: n - ends].tolist())
    second = calls(token[skipped:], there[skipped:].astype(np.int64).tolist())
    # wall clocks are right to some milliseconds
    epochs = (0, round(float(chance.normal(0, 3e6)) - offset)) if wall_clock else (None, None)
    assert found(first, second, epochs) == skipped
    # and the other way round
    back = (epochs[1], epochs[0])
    assert found(second, first, back) == -skipped
