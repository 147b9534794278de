"""What a row shows at any resolution equals a naive count, nanosecond by nanosecond."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.intervals import lod
from stepscope.intervals.lod import Pyramid, levels

Rows = list[tuple[int, int, int]]

slices = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 60), st.integers(0, 3)), max_size=60
)


def pyramid(rows: Rows) -> tuple[Pyramid, npt.NDArray[np.int64]]:
    ordered = sorted(((s, s + n, k) for s, n, k in rows), key=lambda r: (r[0], -r[1]))
    table = np.array(ordered, np.int64).reshape(-1, 3)
    return Pyramid(table[:, 0], table[:, 1], table[:, 2].astype(np.uint8)), table


@given(slices, st.integers(-20, 320), st.integers(1, 40), st.integers(1, 30))
def test_columns_and_long_slices_equal_the_naive_picture(
    rows: Rows, begin: int, bucket: int, count: int
) -> None:
    made, table = pyramid(rows)
    end = begin + bucket * count
    long = made.long(begin, end, bucket)
    expected = [
        i
        for i, (s, e, _) in enumerate(table.tolist())
        if e - s >= bucket and s < end and (e > begin or s >= begin)
    ]
    assert long.tolist() == expected
    columns = made.columns(begin, bucket, count, long)
    shown = dict(zip(columns.index.tolist(), range(len(columns.index)), strict=True))
    for column in range(count):
        low = begin + column * bucket
        moments = range(low, low + bucket)
        covered = sum(
            any(s <= t < e for s, e, _ in table.tolist())
            and not any(table[i][0] <= t < table[i][1] for i in expected)
            for t in moments
        )
        begun = sum(
            low <= s < low + bucket and i not in expected for i, (s, _, _) in enumerate(table)
        )
        assert (column in shown) == (covered > 0 or begun > 0)
        if column in shown:
            at = shown[column]
            assert columns.covered_ns[at] == covered
            assert columns.count[at] == begun


@given(slices, st.integers(1, 40))
def test_the_dominant_class_covers_most(rows: Rows, bucket: int) -> None:
    made, table = pyramid(rows)
    count = 400 // bucket
    long = made.long(0, bucket * count, bucket)
    columns = made.columns(0, bucket, count, long)
    for index, dominant in zip(columns.index.tolist(), columns.dominant.tolist(), strict=True):
        moments = range(index * bucket, (index + 1) * bucket)
        cover = {
            kind: sum(
                any(s <= t < e for s, e, k in table.tolist() if k == kind)
                and not any(table[i][0] <= t < table[i][1] for i in long if table[i][2] == kind)
                for t in moments
            )
            for kind in set(table[:, 2].tolist())
        }
        if max(cover.values()):
            assert cover[dominant] == max(cover.values())


@given(slices)
def test_no_slice_vanishes_at_any_resolution(rows: Rows) -> None:
    made, table = pyramid(rows)
    for power in range(10):
        bucket = 2**power
        count = 400 // bucket + 1
        long = made.long(0, bucket * count, bucket)
        columns = made.columns(0, bucket, count, long)
        assert len(long) + int(columns.count.sum()) == len(table)


def test_the_pyramid_descends(monkeypatch: pytest.MonkeyPatch) -> None:
    """With so few slices compared at once, the groups are what finds the long ones."""
    monkeypatch.setattr(lod, "_FEW", 1)
    random = np.random.default_rng(5)
    start = np.sort(random.integers(0, 10**6, 20_000))
    end = start + np.where(random.random(20_000) < 0.01, 500, 3)
    made = Pyramid(start, end, np.zeros(20_000, np.uint8))
    for begin, stop in ((0, 10**6), (123_456, 234_567), (999_000, 2_000_000), (5, 6)):
        wanted = np.flatnonzero((end - start >= 400) & (start < stop) & (end > begin))
        assert made.long(begin, stop, 400).tolist() == wanted.tolist()


@given(slices)
def test_levels_are_the_number_of_slices_around(rows: Rows) -> None:
    _, table = pyramid(rows)
    nested = table.tolist()
    proper = all(
        b[0] >= a[1] or b[1] <= a[1] for i, a in enumerate(nested) for b in nested[i + 1 :]
    )
    found = levels(table[:, 0], table[:, 1]).tolist()
    if proper:
        for i, (s, e, _) in enumerate(nested):
            around = sum(a[0] <= s and e <= a[1] and s < a[1] for a in nested[:i])
            assert found[i] == around
    for i, (s, e, _) in enumerate(nested):  # what is inside another is never on its row
        for j in range(i):
            if e <= nested[j][1] and s < nested[j][1]:
                assert found[i] > found[j] or found[i] == found[j] > 62


def test_an_empty_row_shows_nothing() -> None:
    made, _ = pyramid([])
    none = made.long(0, 100, 1)
    assert len(none) == 0
    assert len(made.columns(0, 10, 10, none).index) == 0
