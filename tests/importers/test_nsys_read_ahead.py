"""Large tables are read in parts by several threads: the same rows, in the same order."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.importers.nsys import sqlite_source
from stepscope.importers.nsys.source import in_order
from stepscope.importers.nsys.sqlite_source import SqliteSource


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_source, "BATCH_ROWS", 8)
    monkeypatch.setattr("os.cpu_count", lambda: 4)


def database(path: Path, rows: list[tuple[int, object]]) -> Path:
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE T (start INT, name TEXT)")
        made.executemany(
            "INSERT INTO T (rowid, start, name) VALUES (?, ?, ?)",
            [(row, value, f"n{row}") for row, value in rows],
        )
        made.commit()
    return path


def read(path: Path, **options: object) -> tuple[list[tuple[object, ...]], int]:
    bad = 0

    def count(number: int, _: str) -> None:
        nonlocal bad
        bad += number

    found: list[tuple[object, ...]] = []
    with closing(SqliteSource(path)) as source:
        batches = source.batches("T", {"start": "int", "name": "text"}, count, **options)  # type: ignore[arg-type]
        for batch in batches:
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found, bad


def parts(path: Path) -> list[tuple[int, int]]:
    with closing(SqliteSource(path)) as source:
        return source._parts("T")


@pytest.mark.parametrize("first", [1, -7, 40])
def test_rows_come_in_order(tmp_path: Path, first: int) -> None:
    rows = [(first + number, number) for number in range(0, 203) if number % 5]
    path = database(tmp_path / "t.sqlite", [(row, value) for row, value in rows])
    assert len(parts(path)) > 10
    expected = [(value, f"n{row}".encode()) for row, value in rows]
    assert read(path) == (expected, 0)
    some = read(path, where=("start", [3, 17, 18]))
    assert some == ([item for item in expected if item[0] in (3, 17, 18)], 0)


def test_a_value_of_another_type_in_a_later_part(tmp_path: Path) -> None:
    rows: list[tuple[int, object]] = [(number, number) for number in range(1, 101)]
    rows[70] = (71, "text")
    path = database(tmp_path / "t.sqlite", rows)
    found, bad = read(path)
    assert bad == 1
    assert [value for value, _ in found] == [*range(1, 71), None, *range(72, 101)]


def test_sparse_row_numbers_are_read_in_one_go(tmp_path: Path) -> None:
    path = database(tmp_path / "t.sqlite", [(number << 40, number) for number in range(1, 50)])
    assert parts(path) == []
    assert [value for value, _ in read(path)[0]] == list(range(1, 50))


def test_unsorted_rows_are_sorted(tmp_path: Path) -> None:
    path = database(tmp_path / "t.sqlite", [(number, -number) for number in range(1, 101)])
    found, _ = read(path, order="start")
    assert [value for value, _ in found] == list(range(-100, 0))


@pytest.mark.parametrize("order", [None, "start"])
def test_a_reader_that_is_given_up_does_not_hinder_closing(
    tmp_path: Path, order: str | None
) -> None:
    path = database(tmp_path / "t.sqlite", [(number, -number) for number in range(1, 2000)])
    for _ in range(20):
        source = SqliteSource(path)
        batches = source.batches(
            "T", {"start": "int", "name": "text"}, lambda *_: None, None, order
        )
        next(batches)
        source.close()  # as when writing failed: the reader is still at work
        del batches


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(1, 4))
def test_order_of_parts(waits: list[int], threads: int) -> None:
    def work(part: tuple[int, int]) -> int:
        time.sleep(part[1] / 2000)
        return part[0]

    assert list(in_order(work, enumerate(waits), threads)) == list(range(len(waits)))


def test_an_error_comes_after_the_items_before_it_and_ends_the_threads() -> None:
    asked: list[int] = []

    def work(part: int) -> int:
        asked.append(part)
        if part == 3:
            raise OSError("gone")
        return part

    found: list[int] = []
    with pytest.raises(OSError, match="gone"):
        found.extend(in_order(work, range(1000), 2))
    assert found == [0, 1, 2]
    assert max(asked) < 10
