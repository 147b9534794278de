"""Nesting against the definition, evaluated naively."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.intervals import nest, stab_innermost

ranges = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 1)), max_size=25
).map(lambda rows: [(a, a + d, g) for a, d, g in rows])


def naive_parent(rows: list[tuple[int, int, int]]) -> list[int]:
    """The latest-starting earlier range that contains each range."""

    def key(i: int) -> tuple[int, float, int]:
        begin, end, _ = rows[i]
        return begin, -(end + (0.5 if begin == end else 0)), i

    parents = []
    for i, (begin, end, group) in enumerate(rows):
        stop = end + (0.5 if begin == end else 0)
        holders = []
        for j, (b, e, g) in enumerate(rows):
            e_open = e + (0.5 if b == e else 0)
            if g == group and key(j) < key(i) and e_open >= stop and e_open > begin:
                holders.append(j)
        parents.append(max(holders, key=key) if holders else -1)
    return parents


@given(ranges)
def test_parent_is_the_latest_containing_range(rows: list[tuple[int, int, int]]) -> None:
    data = np.array(rows, np.int64).reshape(-1, 3)
    parent, depth = nest(data[:, 0], data[:, 1], data[:, 2])
    assert parent.tolist() == naive_parent(rows)
    for row, up in enumerate(parent.tolist()):
        assert depth[row] == (depth[up] + 1 if up >= 0 else 0)


def test_small_case_by_hand() -> None:
    start = np.array([0, 1, 2, 5, 10])
    end = np.array([10, 4, 3, 9, 12])
    parent, depth = nest(start, end, np.zeros(5, np.int64))
    assert parent.tolist() == [-1, 0, 1, 0, -1]
    assert depth.tolist() == [0, 1, 2, 1, 0]


@given(ranges, st.lists(st.integers(-1, 45), max_size=20))
def test_innermost_is_the_latest_start_containing_the_time(
    rows: list[tuple[int, int, int]], at: list[int]
) -> None:
    rows = sorted(rows, key=lambda r: (r[0], -r[1]))
    data = np.array(rows, np.int64).reshape(-1, 3)
    found = stab_innermost(data[:, 0], data[:, 1], np.array(at, np.int64))
    for time, row in zip(at, found.tolist(), strict=True):
        holders = [i for i, (b, e, _) in enumerate(rows) if b <= time <= e]
        assert row == (max(holders) if holders else -1)
