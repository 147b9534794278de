"""Steps of two runs, operation by operation, agree with the comparison of the runs."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.build import Build
from tests.support.captures import DATA, unpack

from stepscope.api.runs import SIDES, Pair, compare_runs
from stepscope.compare.kernels import rows_of_kernels
from stepscope.compare.step_rows import NO_ROW
from stepscope.timeline.classes import CLASSES
from stepscope.trace.errors import InputError, UsageError

KEYS = list(CLASSES)
PARTS = {
    "compute": "busy_compute",
    "exposed_communication": "busy_communication",
    "exposed_copy": "busy_copy",
    "memset": "busy_memset",
}


def array(text: str, kind: str) -> Any:
    return np.frombuffer(base64.b64decode(text), {"f8": "<f8", "u4": "<u4", "u1": "u1"}[kind])


@pytest.fixture(scope="module", params=["gpt1024_sync_item", "gpt1024_unfused_optimizer"])
def pair(request: pytest.FixtureRequest) -> Pair:
    paths = [unpack(DATA / "nsys" / f"{name}.sqlite.xz")
             for name in (request.param, "gpt1024_healthy")]  # fmt: skip
    return Pair(*map(str, paths))


@pytest.fixture(scope="module")
def steps(pair: Pair) -> dict[str, list[dict[str, Any]]]:
    """All counted steps of both sides."""
    found = {}
    for side in SIDES:
        device = pair.devices(side)[0]
        counted = range(device["first"], device["last"] + 1)
        found[side] = [pair.step(side, 0, step) for step in counted]
    return found


def per_step(
    steps: list[dict[str, Any]], table: str, key: str, kind: str, rows: int
) -> np.ndarray[Any, Any]:
    """Mean time a step of what begins in it, by row."""
    sums = np.zeros(rows)
    for step in steps:
        boxes = step[table]
        start, end = array(boxes["start"], "f8"), array(boxes["end"], "f8")
        row = array(boxes[key], kind).astype(np.int64)
        known = (row != NO_ROW) & (start >= 0)
        np.add.at(sums, row[known], (end - start)[known])
    return sums / len(steps)


def test_kernels_highlighted_in_the_steps_are_those_of_the_table(
    pair: Pair, steps: dict[str, list[dict[str, Any]]]
) -> None:
    kernels = pair.comparison.kernels
    assert any(k.relation != "same" for k in kernels)
    for side in SIDES:
        found = per_step(steps[side], "operations", "kernel", "u4", len(kernels))
        answer = [getattr(k, f"{side}_ns") for k in kernels]
        assert np.abs(found - answer).max() <= 0.5


def test_operators_are_those_of_the_table(
    pair: Pair, steps: dict[str, list[dict[str, Any]]]
) -> None:
    operators = pair.comparison.operators
    for side in SIDES:
        found = per_step(steps[side], "operations", "operator", "u4", len(operators))
        answer = np.array([getattr(p, f"device_{side}_ns") for p in operators])
        assert np.abs(found - answer).max(initial=0) <= 0.5


def test_ranges_are_those_of_the_table(pair: Pair, steps: dict[str, list[dict[str, Any]]]) -> None:
    """Operations count for each range that they are in."""
    ranges = pair.comparison.ranges
    for side in SIDES:
        found = np.zeros(len(ranges))
        for step in steps[side]:
            boxes = step["operations"]
            start, end = array(boxes["start"], "f8"), array(boxes["end"], "f8")
            in_set = array(boxes["range"], "u4")
            for number, rows in enumerate(step["range_sets"]):
                mine = (in_set == number) & (start >= 0)
                found[rows] += (end - start)[mine].sum() / len(steps[side])
        answer = np.array([getattr(p, f"device_{side}_ns") for p in ranges])
        assert np.abs(found - answer).max() <= 0.5
    assert len(ranges) > 3


def test_causes_are_the_parts_of_the_comparison(
    pair: Pair, steps: dict[str, list[dict[str, Any]]]
) -> None:
    for side in SIDES:
        found = per_step(steps[side], "pieces", "code", "u1", len(KEYS))
        for part in pair.comparison.parts:
            key = PARTS.get(part.part) or part.part.replace("idle:", "idle_")
            answer = getattr(part, f"{side}_ns")
            assert abs(found[KEYS.index(key)] - answer) <= 1, part.part  # the parts' rounding


def test_every_kernel_is_in_the_row_that_names_it(pair: Pair) -> None:
    comparison = pair.comparison
    rows = rows_of_kernels(*comparison.runs)
    for side, profile, of in zip(SIDES, comparison.runs, rows, strict=True):
        assert len(of) == len(profile.kernels)
        for use, row in zip(profile.kernels, of, strict=True):
            assert use.label in getattr(comparison.kernels[row], side)


def test_the_comparison_is_that_of_the_command(pair: Pair) -> None:
    paths = [pair.jobs[side].paths for side in SIDES]
    assert compare_runs([paths[0]], [paths[1]]) == pair.comparison


def test_ranges_on_the_device_are_in_order_and_inside(
    pair: Pair, steps: dict[str, list[dict[str, Any]]]
) -> None:
    names = [p.name for p in pair.comparison.ranges]
    spans = steps["after"][0]["spans"]
    start, row = array(spans["start"], "f8"), array(spans["row"], "u4")
    assert (np.diff(start) >= 0).all()
    order = [names[r] for r in row.tolist()]
    assert order.index("forward") < order.index("backward") < order.index("optimizer")


def test_of_very_many_operations_the_longest_are_drawn(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pair.step("after", 0, 3)["operations"]
    monkeypatch.setattr("stepscope.compare.step_rows.MOST_OPERATIONS", 50)
    found = pair.step("after", 0, 3)
    lengths = np.sort(array(whole["end"], "f8") - array(whole["start"], "f8"))
    kept = array(found["operations"]["end"], "f8") - array(found["operations"]["start"], "f8")
    assert found["left_out"] == len(lengths) - 50
    assert np.sort(kept).tolist() == lengths[-50:].tolist()


def test_what_is_not_there_is_said(pair: Pair) -> None:
    for side, device, step, message in (
        ("between", 0, 0, "neither before nor after"),
        ("before", 5, 0, "no device 5"),
        ("after", 0, 99, "no step 99"),
        ("after", 0, -1, "no step -1"),
    ):
        with pytest.raises(UsageError, match=message):
            pair.step(side, device, step)


def test_runs_of_other_devices_and_numbers_of_steps(tmp_path: Path) -> None:
    for name, count, devices in (("a", 4, (0, 1)), ("b", 7, (3,))):
        b = Build()
        for i in range(count):
            b.range(100.0 * i, 100.0 * i + 95, f"step {i}")
            for device in devices:
                at = 100.0 * i + 20
                b.kernel(at, at + 50, call=(at - 10 + device, at - 9 + device), device=device)
        (tmp_path / name).mkdir()
        b.trace(tmp_path / name)
    pair = Pair(str(tmp_path / "a"), str(tmp_path / "b"))
    assert [d["count"] for d in pair.devices("before")] == [4, 4]
    assert [(d["title"], d["count"]) for d in pair.devices("after")] == [("Rank 0 · GPU 3", 7)]
    assert pair.step("before", 1, 3)["streams"] == [7]
    assert pair.step("after", 0, 6)["step"] == 6


def test_a_run_without_gpu_work_says_so(tmp_path: Path) -> None:
    b = Build()
    b.range(0, 10, "step 0")
    path = str(b.trace(tmp_path).folder)
    with pytest.raises(InputError, match="holds no GPU work"):
        Pair(path, path).comparison  # noqa: B018
