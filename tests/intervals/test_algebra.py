"""Interval algebra against sets of integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope import intervals as iv

pairs = st.lists(
    st.tuples(st.integers(-20, 60), st.integers(-3, 15)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=20,
)


def arrays(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    data = np.array(rows, np.int64).reshape(-1, 2)
    return data[:, 0], data[:, 1]


def points(rows: list[tuple[int, int]]) -> set[int]:
    return {x for a, b in rows for x in range(a, b)}


def as_points(intervals: iv.algebra.Intervals) -> set[int]:
    return points(list(zip(intervals[0].tolist(), intervals[1].tolist(), strict=True)))


def assert_disjoint(intervals: iv.algebra.Intervals) -> None:
    start, end = intervals
    assert (end > start).all()
    assert (start[1:] > end[:-1]).all()


@given(pairs)
def test_union_covers_the_same_points(rows: list[tuple[int, int]]) -> None:
    result = iv.union(*arrays(rows))
    assert_disjoint(result)
    assert as_points(result) == points(rows)
    assert iv.total(result) == len(points(rows))


@given(pairs, pairs)
def test_intersect_and_subtract(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = iv.union(*arrays(a)), iv.union(*arrays(b))
    both, rest = iv.intersect(left, right), iv.subtract(left, right)
    assert as_points(both) == points(a) & points(b)
    assert as_points(rest) == points(a) - points(b)
    assert_disjoint(both)
    assert_disjoint(rest)
    assert iv.total(both) + iv.total(rest) == iv.total(left)


@given(pairs, st.integers(-25, 60), st.integers(0, 40))
def test_complement(rows: list[tuple[int, int]], begin: int, length: int) -> None:
    result = iv.complement(iv.union(*arrays(rows)), begin, begin + length)
    assert as_points(result) == set(range(begin, begin + length)) - points(rows)
    assert_disjoint(result)


@given(pairs, st.lists(st.tuples(st.integers(-25, 60), st.integers(0, 30)), max_size=10))
def test_overlap_per_window(rows: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    data = np.array(windows, np.int64).reshape(-1, 2)
    got = iv.overlap_per_window(iv.union(*arrays(rows)), data[:, 0], data[:, 0] + data[:, 1])
    want = [len(points(rows) & set(range(a, a + n))) for a, n in windows]
    assert got.tolist() == want


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), max_size=10))
def test_inside_any(rows: list[tuple[int, int]]) -> None:
    spans = [(a, a + n) for a, n in rows]
    found = iv.inside_any(*arrays(spans), 30)
    assert set(np.flatnonzero(found).tolist()) == points(spans)
    assert len(found) == 30


def test_hand_computed() -> None:
    start, end = iv.union(np.array([0, 5, 3, 20, 25]), np.array([4, 9, 6, 25, 30]))
    assert start.tolist() == [0, 20]
    assert end.tolist() == [9, 30]
