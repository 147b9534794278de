"""Rows that arrive out of order are sorted in parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.trace import table_file
from stepscope.trace.meta import Meta
from stepscope.trace.problems import ProblemLog
from stepscope.trace.store import TraceWriter, write_meta
from stepscope.trace.trace import Trace


def written(folder: Path, batches: list[list[int]]) -> Trace:
    target = folder / "t.stepscope"
    target.mkdir()
    writer = TraceWriter(target, ProblemLog())
    for number, starts in enumerate(batches):
        columns = {
            "process_id": [number] * len(starts),
            "start_ns": starts,
            "end_ns": starts,
            "name": [f"name {start % 7}" for start in starts],
            "thread_id": [None if start % 3 else start for start in starts],
        }
        writer.append("overhead", columns)
    write_meta(target, Meta(source="nsys", rows=writer.close()))
    return Trace(target)


def check(trace: Trace, batches: list[list[int]]) -> None:
    expected = sorted((s, n) for n, starts in enumerate(batches) for s in starts)
    # rows of one time stay in the order in which they came
    rows = trace.arrow("overhead").to_pylist()
    assert [(row["start_ns"], row["process_id"]) for row in rows] == expected
    assert [row["id"] for row in rows] == list(range(len(expected)))
    for row in rows:
        assert row["name"] == f"name {row['start_ns'] % 7}"
        assert row["thread_id"] == (None if row["start_ns"] % 3 else row["start_ns"])


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "_SORTED_ROWS", 5)


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=12), min_size=1, max_size=8))
@settings(deadline=None, max_examples=40)
def test_any_order(tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]]) -> None:
    check(written(tmp_path_factory.mktemp("s"), batches), batches)


@pytest.mark.parametrize("most", [0, 10**9])
def test_both_ways_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(table_file, "_MOST_TAKEN", most)
    generator = np.random.default_rng(1)
    batches = [generator.integers(0, 500, 40).tolist() for _ in range(10)]
    check(written(tmp_path, batches), batches)


def test_streams_in_order_are_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("all rows were read at once")

    monkeypatch.setattr(table_file, "_all_sorted", refuse)
    monkeypatch.setattr(table_file, "_SORTED_ROWS", 20)
    batches = [list(range(at, at + 20)) for _ in range(3) for at in range(0, 200, 20)]
    check(written(tmp_path, batches), batches)
