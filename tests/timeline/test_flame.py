"""Flame graphs against a model that walks every stack by itself, and small cases by hand."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.build import Build

from stepscope.activity.names import marks_steps
from stepscope.api import Job
from stepscope.api.inputs import bundled_capture
from stepscope.timeline.flame import Tree, bottom_up, kept, merged, self_time
from stepscope.trace.errors import UsageError

Path_ = tuple[int, ...]


@st.composite
def forests(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(parent row, name, own weight) of each row; a parent stands before its children."""
    size = draw(st.integers(0, 40))
    return [
        (draw(st.integers(-1, i - 1)), draw(st.integers(0, 4)), draw(st.integers(0, 9)))
        for i in range(size)
    ]


def path_of(rows: list[tuple[int, int, int]], row: int) -> Path_:
    found: list[int] = []
    while row >= 0:
        found.append(rows[row][1])
        row = rows[row][0]
    return tuple(reversed(found))


def paths(tree: Tree) -> list[Path_]:
    found: list[Path_] = []
    for parent, name in zip(tree.parent.tolist(), tree.name.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), name))
    return found


def columns(rows: list[tuple[int, int, int]]) -> tuple[Any, Any, Any]:
    made = np.array(rows, np.int64).reshape(-1, 3)
    return made[:, 0], made[:, 1], made[:, 2]


@given(forests())
@settings(max_examples=300, deadline=None)
def test_the_tree_is_that_of_a_walk_over_every_stack(rows: list[tuple[int, int, int]]) -> None:
    parent, name, weight = columns(rows)
    tree, node = merged(parent, name)
    own = np.bincount(node, weights=weight, minlength=len(tree)).astype(np.int64)
    expected_own: Counter[Path_] = Counter()
    expected_total: Counter[Path_] = Counter()
    for row, (_, _, ns) in enumerate(rows):
        path = path_of(rows, row)
        expected_own[path] += ns
        for end in range(1, len(path) + 1):
            expected_total[path[:end]] += ns
    found = paths(tree)
    assert len(set(found)) == len(found) == len({path_of(rows, i) for i in range(len(rows))})
    assert dict(zip(found, own.tolist(), strict=True)) == dict(expected_own)
    assert dict(zip(found, tree.totals(own).tolist(), strict=True)) == dict(expected_total)


@given(forests())
@settings(max_examples=300, deadline=None)
def test_bottom_up_is_that_of_a_walk_from_every_leaf(rows: list[tuple[int, int, int]]) -> None:
    parent, name, weight = columns(rows)
    tree, node = merged(parent, name)
    own = np.bincount(node, weights=weight, minlength=len(tree)).astype(np.int64)
    count = np.bincount(node, minlength=len(tree))
    made, ends, _ = bottom_up(tree, own, count)
    expected: Counter[Path_] = Counter()
    for row, (_, _, ns) in enumerate(rows):
        path = tuple(reversed(path_of(rows, row)))
        for end in range(1, len(path) + 1):
            expected[path[:end]] += ns
    found = dict(zip(paths(made), made.totals(ends).tolist(), strict=True))
    assert found == {path: ns for path, ns in expected.items() if ns}
    by_name: Counter[int] = Counter()
    for _, name_, ns in rows:
        by_name[name_] += ns
    tops = {p[0]: ns for p, ns in found.items() if len(p) == 1}
    assert tops == {n: ns for n, ns in by_name.items() if ns}


@given(forests(), st.integers(0, 30), st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_what_is_kept_hangs_together(
    rows: list[tuple[int, int, int]], least: int, most: int
) -> None:
    parent, name, weight = columns(rows)
    tree, node = merged(parent, name)
    total = tree.totals(np.bincount(node, weights=weight, minlength=len(tree)).astype(np.int64))
    mask = kept(total, least, most)
    assert mask.sum() <= most
    assert (total[mask] >= max(1, least)).all()
    below = mask & (tree.parent >= 0)
    assert mask[tree.parent[below]].all()


def test_own_time_is_never_negative() -> None:
    parent = np.array([-1, 0, 0], np.int64)
    assert self_time(parent, np.array([10, 4, 5], np.int64)).tolist() == [1, 4, 5]
    assert self_time(parent, np.array([10, 9, 5], np.int64)).tolist() == [0, 9, 5]


# --- of a job ------------------------------------------------------------------------------------


def job_of(folder: Path) -> Job:
    """Two steps: a range that holds two operators, one of which launches; one kernel by nobody."""
    b = Build()
    for at in (0.0, 100.0):
        b.range(at, at + 90, f"step {int(at)}")
        b.operator(at + 10, at + 50, "aten::linear")
        b.operator(at + 20, at + 40, "aten::mm")
        b.kernel(at + 45, at + 75, call=(at + 22, at + 24), name="gemm")
        b.kernel(at + 75, at + 80, call=(at + 42, at + 43), name="add")
    b.kernel(300, 307, name="lost")
    return Job([b.trace(folder).folder])


def shown(found: dict[str, Any]) -> dict[tuple[str, ...], tuple[int, int, int]]:
    """Names from the top -> (total, own, count)."""
    nodes = found["nodes"]
    made: list[tuple[str, ...]] = []
    for parent, name in zip(nodes["parent"], nodes["name"], strict=True):
        made.append((*(made[parent] if parent >= 0 else ()), found["names"][name]))
    figures = zip(nodes["total"], nodes["own"], nodes["count"], strict=True)
    return dict(zip(made, figures, strict=True))


def test_time_on_the_thread_nests(tmp_path: Path) -> None:
    found = shown(job_of(tmp_path).views.panels.flame("host", "cpu", 0, 400_000, reverse=False))
    top = ("Thread 100 · main",)
    assert found[top] == (180_000, 0, 0)
    step = (*top, "step #")
    assert found[step] == (180_000, 100_000, 2)
    assert found[(*step, "aten::linear")] == (80_000, 40_000, 2)
    assert found[(*step, "aten::linear", "aten::mm")] == (40_000, 40_000, 2)
    assert len(found) == 4


def test_the_window_cuts(tmp_path: Path) -> None:
    found = shown(job_of(tmp_path).views.panels.flame("host", "cpu", 30_000, 45_000, reverse=False))
    step = ("Thread 100 · main", "step #")
    assert found[step] == (15_000, 0, 1)
    assert found[(*step, "aten::linear")] == (15_000, 5_000, 1)
    assert found[(*step, "aten::linear", "aten::mm")] == (10_000, 10_000, 1)


def test_gpu_time_hangs_below_what_launched_it(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    found = shown(job.views.panels.flame("host", "gpu", 0, 400_000, reverse=False))
    step = ("Thread 100 · main", "step #")
    mm = (*step, "aten::linear", "aten::mm", "gemm")
    assert found[mm] == (60_000, 60_000, 2)
    assert found[(*step, "aten::linear", "add")] == (10_000, 10_000, 2)
    assert found[step][:2] == (70_000, 0)
    lost = "(launched outside of all that was recorded)"
    assert found[(lost, "lost")] == (7_000, 7_000, 1)
    reverse = shown(job.views.panels.flame("host", "gpu", 0, 400_000, reverse=True))
    assert reverse[("gemm",)][0] == 60_000
    assert reverse[("gemm", "aten::mm")][0] == 60_000
    assert reverse[("lost", lost)] == (7_000, 7_000, 1)


def test_functions_of_different_objects_are_one(tmp_path: Path) -> None:
    b = Build()
    b.kernel(50, 60, call=(10, 20))
    for at, address in ((0, "0x7f2ba28715c0"), (10, "0x55aa")):
        b.python(at, at + 10, f"<built-in method acquire of _thread.lock object at {address}>")
    found = shown(Job([b.trace(tmp_path).folder]).views.panels.flame("python", "cpu", 0, 20_000,
                  reverse=False))  # fmt: skip
    assert found[("Thread 100 · main", "<built-in method acquire of _thread.lock object>")] == (
        *(20_000, 20_000, 2),
    )


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    panels = job_of(tmp_path).views.panels
    with pytest.raises(UsageError, match="with_stack=True"):
        panels.flame("python", "cpu", 0, 1000, reverse=False)
    with pytest.raises(UsageError, match="--sample"):
        panels.flame("samples", "cpu", 0, 1000, reverse=False)
    with pytest.raises(UsageError, match="no flame graph"):
        panels.flame("x" * 100_000, "cpu", 0, 1000, reverse=False)


def test_the_bundled_capture_adds_up() -> None:
    job = Job([bundled_capture()])
    begin, end = job.timeline.begin_ns, job.timeline.end_ns
    gpu = job.query("SELECT sum(end_ns - start_ns)::BIGINT AS ns FROM gpu_op")
    for reverse in (False, True):
        made = job.views.panels.flame("range", "gpu", begin, end, reverse=reverse)
        assert made["total"] == gpu["ns"][0].as_py()
        nodes = made["nodes"]
        tops = [t for t, p in zip(nodes["total"], nodes["parent"], strict=True) if p < 0]
        assert sum(tops) == pytest.approx(made["total"], rel=0.01)


def test_speedscope_has_the_same_stacks() -> None:
    job = Job([bundled_capture()])
    begin, end = job.timeline.begin_ns, job.timeline.end_ns
    made = json.loads(b"".join(job.views.exported("speedscope")))
    names = [frame["name"] for frame in made["shared"]["frames"]]
    own: Counter[tuple[str, ...]] = Counter()
    for profile in made["profiles"]:
        if not profile["name"].endswith("main / Ranges"):
            continue
        stack: list[str] = []
        last = 0
        for event in profile["events"]:
            own[tuple(stack)] += event["at"] - last
            last = event["at"]
            if event["type"] == "O":
                stack.append(names[event["frame"]])
            else:
                stack.pop()
    found = shown(job.views.panels.flame("range", "cpu", begin, end, reverse=False))
    main = {path[1:]: f for path, f in found.items() if path[0].endswith("main") and len(path) > 1}
    # ranges that mark steps are one column in the page and one a number in the file
    merged_own: Counter[tuple[str, ...]] = Counter()
    for path, ns in own.items():
        if path and ns:
            merged_own[tuple(_alike(name) for name in path)] += ns
    assert merged_own == Counter({path: f[1] for path, f in main.items() if f[1]})
    assert sum(merged_own.values()) > 300e6


def _alike(name: str) -> str:
    return re.sub(r"\d+", "#", name) if marks_steps(name, "") else name
