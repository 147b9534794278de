"""Verdicts on fixes that were tried, and whether losses are what they were."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stepscope.compare.statistics import difference
from stepscope.compare.tried import (
    SCHEMA,
    Applied,
    Run,
    TriedPrediction,
    TrySession,
    Wait,
    compare_losses,
    distance,
    judge,
)
from stepscope.render.tried import tried_markdown, tried_text

CURVE = {i: 2.0 / (1 + i) for i in range(20)}


def run(ms: float, losses: dict[int, float] | None = None, **changes: Any) -> Run:
    lengths = [round(ms * 1e6 * (1 + 0.01 * (i % 3 - 1))) for i in range(30)]
    found = {"exit_code": 0, "lengths_ns": lengths, "losses": CURVE if losses is None else losses,
             "clock": "gpu"}  # fmt: skip
    return Run(**found | changes)


def fix(name: str = "tf32", **changes: Any) -> Applied:
    found: dict[str, Any] = {"name": name, "count": 1, "places": {"/a/b/train.py:3": 1},
                             "lines": "do it", "refused": "", "left": {}, "notes": []}  # fmt: skip
    return Applied(**found | changes)


@pytest.mark.parametrize(
    ("before", "after", "changes", "verdict"),
    [
        ([20, 20.2], [15, 15.1], {}, "keep"),
        ([20, 20.2], [20.1, 20.2], {}, "no_difference"),
        ([20, 20.2], [25, 25.1], {}, "worse"),
        ([20, 20.2], [15], {"count": 0}, "changed_nothing"),
        ([20, 20.2], [15], {"count": 0, "refused": "no"}, "refused"),
    ],
)
def test_verdicts(
    before: list[float], after: list[float], changes: dict[str, Any], verdict: str
) -> None:
    found = judge([run(ms) for ms in before], [run(ms) for ms in after], [fix(**changes)],
                  rounding=True)  # fmt: skip
    assert found.verdict == verdict
    assert (found.step is None) == (verdict in ("changed_nothing", "refused"))


def test_the_interval_is_that_of_the_comparison_of_runs() -> None:
    sides = [run(20), run(20.4), run(20.2)], [run(15), run(15.2), run(15.1)]
    found = judge(*sides, [fix()], rounding=True).step
    expected = difference(*[[one.lengths_ns for one in side] for side in sides])
    assert found is not None
    assert found.low_ns == round(expected.before_ns * expected.ratio_low)
    assert found.high_ns == round(expected.before_ns * expected.ratio_high)
    assert found.run_noise_measured  # six runs less two means
    assert found.before_means_ns == [20_000_000, 20_400_000, 20_200_000]


def test_failing_with_the_fix_and_too_few_steps() -> None:
    failed = judge([run(20)], [run(20, exit_code=7)], [fix()], rounding=True)
    assert failed.verdict == "failed"
    assert "exit code 7" in failed.message
    short = judge([run(20)], [run(20, lengths_ns=[1, 2], made=4)], [fix()], rounding=True)
    assert short.verdict == "not_measured"
    assert "made 4" in short.message


def test_of_several_fixes_some_may_be_refused() -> None:
    found = judge([run(20)], [run(10)], [fix(), fix("compile", count=0, refused="compiled")],
                  rounding=True)  # fmt: skip
    assert found.verdict == "keep"


def test_a_prediction_is_scaled_to_the_step_that_was_measured() -> None:
    # half the step, give or take a tenth, was predicted of what was recorded
    predicted = TriedPrediction("host_sync", 500_000_000, 450_000_000, 550_000_000)
    found = judge([run(40)], [run(21)], [fix()], rounding=True, prediction=predicted)
    assert found.prediction is not None
    assert found.prediction.step_ns == pytest.approx(20e6, rel=0.01)
    assert found.prediction.came_true
    assert found.message.startswith("predicted 20.0 ms, measured 21.0 ms [")
    assert found.message.endswith("instead of 40.0 ms: keep it")
    missed = judge([run(40)], [run(30)], [fix()], rounding=True, prediction=predicted)
    assert missed.prediction is not None
    assert missed.prediction.came_true is False


def scaled(factor: float) -> dict[int, float]:
    return {step: value * factor for step, value in CURVE.items()}


@pytest.mark.parametrize(
    ("before", "after", "rounding", "alike"),
    [
        ([CURVE, CURVE], [CURVE, CURVE], False, "bit_equal"),
        ([CURVE, scaled(1.1)], [CURVE, scaled(1.1)], False, "bit_equal"),
        ([CURVE, CURVE], [scaled(1 + 1e-8)], False, "within_tolerance"),
        ([CURVE, CURVE], [scaled(1.001)], False, "diverges"),
        ([CURVE, CURVE], [scaled(1.001)], True, "within_tolerance"),
        ([CURVE, CURVE], [scaled(1.05)], True, "diverges"),
        # runs without it differ by 4 % among themselves: they are the yardstick
        ([CURVE, scaled(1.04)], [scaled(0.96)], True, "within_tolerance"),
        ([CURVE], [{**CURVE, 3: math.nan}], True, "diverges"),
        ([{**CURVE, 3: math.nan}], [{**CURVE, 3: math.nan}], True, "bit_equal"),
        ([CURVE], [{}], True, "unknown"),
        ([CURVE], [{100: 1.0}], True, "unknown"),
    ],
)
def test_losses(
    before: list[dict[int, float]], after: list[dict[int, float]], rounding: bool, alike: str
) -> None:
    found = compare_losses(before, after, rounding=rounding)
    assert found.alike == alike
    assert found.distance is None or math.isfinite(found.distance)
    if found.repeats and found.repeats > 0.01:
        assert "among themselves" in found.message or alike == "bit_equal"


def test_the_distance_of_losses() -> None:
    assert distance({0: 1.0, 1: 3.0}, {0: 1.0, 1: 2.0, 2: 9.0}) == pytest.approx(1 / 3.5)
    assert distance({}, {}) == 0
    assert distance({0: math.inf}, {0: math.inf}) == 0
    assert distance({0: math.inf}, {0: -math.inf}) == math.inf


def test_training_that_changed_is_no_repair() -> None:
    found = judge([run(20)], [run(10, scaled(2))], [fix()], rounding=True)
    assert found.verdict == "changed_training"
    assert found.step is not None
    assert found.message.endswith("it changed training: check")


def session() -> TrySession:
    looked = judge([], [run(20)], [fix("no-sync-debug")], rounding=False, looks=True,
                   waits=[Wait("/a/train.py:9", 30), Wait("", 60)])  # fmt: skip
    kept = judge([run(20)], [run(10)], [fix(), fix("x*_<b>", count=0, left={"has none": 1})],
                 rounding=True)  # fmt: skip
    return TrySession(
        schema=SCHEMA, command=["python"], folder="o", rounds=1, steps=0, warmup=5, exit_codes=[0],
        tried=[kept, looked], warnings=["few runs"],
    )  # fmt: skip


def test_as_text() -> None:
    text = tried_text(session())
    assert "in train.py:3 write do it\n" in text
    assert "x*_<b>: changed nothing: has none" in text
    assert "the losses of all 20 steps are bit-equal" in text
    assert "no-sync-debug: 2 lines wait for the GPU in the timed steps" in text
    assert text.index("a line of a library waits 60 times") < text.index("train.py:9 waits 30")
    assert text.endswith("· few runs\n")


def test_as_markdown_nothing_of_the_program_is_markup() -> None:
    text = tried_markdown(session())
    assert "**keep**" in text
    assert "x\\*\\_&lt;b>" in text
    assert "<b>" not in text
