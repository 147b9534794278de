"""What few steps hold, and how much of it the run as a whole has; by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from tests.support.build import PID, Build

from stepscope.api import Job
from stepscope.breakdown.recurrence import (
    LongRun,
    Recurrence,
    is_disturbed,
    long_run,
    of_idle_time,
    outliers_of_run,
    recurrence,
)
from stepscope.diagnosis.cause import Detection
from stepscope.diagnosis.predictions import _without_rare_steps, arithmetic
from stepscope.simulation import Free
from stepscope.simulation.model import Prediction, Simulation


def found(steps: list[int], amounts: list[int], n_steps: int) -> Recurrence:
    return recurrence(np.array(steps, np.int64), np.array(amounts, np.int64), n_steps)


def test_what_comes_back_regularly_is_held_as_often_as_that_says() -> None:
    """Two of fourteen steps, six apart: one of six, not one of seven."""
    got = found([3, 9], [45, 45], 14)
    assert (got.times, got.chance) == (pytest.approx(7 / 6), 0.0)


def test_events_that_differ_leave_the_error_of_their_mean() -> None:
    """40 and 50: 45 +- 5, a ninth."""
    assert found([3, 9], [40, 50], 14).chance == pytest.approx(5 / 45)


def test_what_falls_into_the_next_step_is_one_event() -> None:
    """A save of 590 and 212 ms in steps 3 and 4, and again five steps later."""
    got = found([3, 4, 8, 9], [590, 212, 590, 212], 12)
    assert got.times == pytest.approx(12 / (2 * 5))


def test_an_event_that_began_before_the_window_tells_the_distance() -> None:
    """A third of one lies in the window, two whole ones follow: 30 every three of seven steps."""
    got = found([-1, 2, 5], [10, 30, 30], 7)
    assert got.times == pytest.approx((30 / 3) / (70 / 7))


@pytest.mark.parametrize(
    "steps",
    [
        [4],  # once: nothing says how often
        [1, 9, 11],  # at any distance
        [6, 8],  # every second step, but none before the sixth
        [0, 2],  # nor any more from the second on
    ],
)
def test_otherwise_chance_has_one_more_or_less(steps: list[int]) -> None:
    got = found(steps, [10] * len(steps), 12)
    assert (got.times, got.chance) == (1.0, 0.5 / len(steps))


def test_events_of_very_unlike_sizes_are_not_one_that_comes_back() -> None:
    """2 and 30 ms, two steps apart: chance, not half of all steps."""
    got = found([1, 3], [2, 30], 4)
    assert (got.times, got.chance, got.every) == (1.0, 0.25, None)


def test_the_distance_is_told() -> None:
    assert found([3, 9], [45, 45], 14).every == 6
    assert found([4], [45], 14).every is None


@pytest.mark.parametrize(
    ("every", "steps", "mean", "apart", "sure"),
    [
        # 80 every eighth of 10: 20 in the mean of the run
        (8.0, 8, 20.0, 0.0, True),
        (8.0, 16, 20.0, 0.0, True),
        # seven steps hold one in seven of eight cases: 10 + 80 / 7, and none otherwise
        (8.0, 7, 10 + 80 / 7, 2 * (7 / 64) ** 0.5 * 80 / 7, True),
        (8.0, 9, 10 + 80 / 9, 2 * (7 / 64) ** 0.5 * 80 / 9, True),
        # one of two cases holds two, the other one
        (8.0, 12, 20.0, 80 / 12, False),
        (None, 7, 20.0, 80 / 7, False),
    ],
)
def test_the_mean_of_some_steps_in_a_row(
    every: float | None, steps: int, mean: float, apart: float, sure: bool
) -> None:
    run = LongRun(step_ns=20.0, spread_ns=0.0, odd_ns=80.0, every=every)
    assert run.mean_of(steps) == (pytest.approx(mean), pytest.approx(apart), sure)


def test_steps_of_which_none_is_odd_have_the_mean_of_the_run() -> None:
    assert LongRun(20.0, 1.0, 0.0).mean_of(6) == (20.0, 0.0, True)


def test_nothing_is_nothing() -> None:
    assert found([], [], 12) == Recurrence()


def paused(folder: Path, odd: set[int], steps: int, unrecorded_us: tuple[float, ...] = ()) -> Job:
    """Steps of 5 ms whose host pauses for 2 ms, and for 20 more in some.

    Six steps each of means of their own were timed afterwards, and not recorded.
    """
    build, at = Build(), 0.0
    for number in range(steps):
        begin = at
        at += 2_000 + (20_000 if number in odd else 0)
        for _ in range(60):
            build.kernel(at + 10, at + 45, call=(at, at + 5))
            at += 50
        build.range(begin, at, f"step_{number}", domain="stepscope")
    for mean in unrecorded_us:
        at += 50_000
        start, end = round(1000 * at), round(1000 * (at + 6 * mean))
        build._add("timed_stretch", process_id=PID, start_ns=start, end_ns=end, steps=6,
                   recorded=False)  # fmt: skip
        at += 6 * mean
    return Job([build.trace(folder).folder])


def test_the_mean_step_of_the_run(tmp_path: Path) -> None:
    """Every fifth of 13 steps: 5 + 20 / 5 = 9 ms, where two in the window make 8.1."""
    job = paused(tmp_path, {3, 8}, 13)
    (case,) = job.explained.cases
    e = case.explanation
    assert e.step_ns == pytest.approx(8_077_000, rel=0.01)
    run = long_run(e)
    assert run.step_ns == pytest.approx(9_000_000, rel=0.01)
    assert run.odd_ns == pytest.approx(20_000_000, rel=0.01)


@pytest.mark.parametrize(
    ("unrecorded_us", "times"),
    [
        ((), 1.0),  # nothing tells
        # none in twelve steps at the recorded pace; 60 calls may cost 0.54 ms of the 5, which makes
        # 0.32 of an event in twelve: some 0.16, where as many as in the window would be two
        ((5_000, 5_000), (1 + 0.162) / (1 + 2)),
        ((5_000, 8_333), (1 + 1 + 0.162) / (1 + 2)),  # one
        ((8_333, 8_333), 1.0),  # one in six, as in the window
        ((5_000, 5_000 + 60_000), 1.0),  # far more: at least as in the window
    ],
)
def test_how_many_outlier_steps_the_run_holds(
    tmp_path: Path, unrecorded_us: tuple[float, ...], times: float
) -> None:
    """The window holds one in six, of 20 ms more."""
    (case,) = paused(tmp_path, {3}, 6, unrecorded_us).explained.cases
    assert outliers_of_run(case.explanation) == pytest.approx(times, rel=0.02)


def test_outlier_steps_by_chance_are_left_out_of_what_is_replayed(tmp_path: Path) -> None:
    """Step 4 of eight is, and jitter is not held against the program; were it the run's own, it is.

    Without its 2 ms of own work a step takes 3 of 5 ms; a mean step of 7.5 ms then takes as much
    less, though the pause of 20 ms in one of the eight takes 2.5.
    """
    (tmp_path / "own").mkdir()
    job = paused(tmp_path, {4}, 8, (5_000, 5_000))
    (case,) = job.explained.cases
    assert is_disturbed(case.explanation)
    (run,) = job.simulation.runs
    assert (run.first, run.last, job.simulation.sets_outliers_aside) == (0, 3, True)
    found = job.simulation.predict([Free("host_compute")])
    assert found.step_ns == pytest.approx(7_500_000 * 3 / 5, rel=0.03)
    assert "step_jitter" not in [f.cause for f in job.diagnose().findings]
    told = " ".join(job.diagnose().warnings)
    assert "by chance" in told
    assert "5.0 ms on average" in told

    own = paused(tmp_path / "own", {4}, 8, (7_500, 7_500))
    (run,) = own.simulation.runs
    assert (run.first, run.last, own.simulation.sets_outliers_aside) == (0, 7, False)
    assert "by chance" not in " ".join(own.diagnose().warnings)


def test_idle_time_of_every_step_is_not_rare(tmp_path: Path) -> None:
    (case,) = paused(tmp_path, set(), 12).explained.cases
    assert of_idle_time(case.explanation, "host_compute") == Recurrence()


def test_a_predicted_step_counts_what_the_run_holds(tmp_path: Path) -> None:
    """Without the pauses 5 of 9 ms remain, not 5 of 8.1."""
    job = paused(tmp_path, {3, 8}, 13)
    found = job.diagnose()
    (jitter,) = [f for f in found.findings if f.cause == "step_jitter"]
    ratio = jitter.predicted_step_ns / found.step_ns.mean
    assert ratio == pytest.approx(5 / 9, rel=0.02)
    assert jitter.prediction_low_ns < jitter.predicted_step_ns < jitter.prediction_high_ns
    low, high = (
        f / found.step_ns.mean for f in (jitter.prediction_low_ns, jitter.prediction_high_ns)
    )
    # a third more or less of the host's own work is 5 of 5 + 4 x 1.35, or 5 of 5 + 4 x 0.65; a
    # third of the gain, of what remains, is open as well
    assert 0.8 * 5 / 10.4 < low < 5 / 10.4
    assert 5 / 7.6 < high < 1.2 * 5 / 7.6


@pytest.mark.parametrize(
    ("launching", "left"),
    [
        (0.0, (8 - 4) / 8),  # of 9 ms, 1 of recording and 4 of what is repaired: 4 of 8 remain
        (4e6, (8 - 4 * 8 / 9) / 8),  # recording has its part of the 4 as well: 5 of 9
    ],
)
def test_recording_costs_what_is_repaired_as_much_where_that_launches(
    launching: float, left: float, tmp_path: Path
) -> None:
    (case,) = paused(tmp_path, set(), 13).explained.cases
    step = case.step_ns
    per_ms = step / 9
    odd = Detection(4 * per_ms, 0.0, "", [], floor_ns=0.0, launching_ns=launching / 1e6 * per_ms)
    found = arithmetic(case, "step_jitter", odd, recording_ns=per_ms)
    assert found.step_ns / step == pytest.approx(left, rel=1e-6)


@pytest.mark.parametrize(
    ("unrecorded", "share"),
    [
        (None, 20 / 30),  # 10 of 20 ms remain: of 30 they are a third
        ((12_000_000, 6_000_000), 12 / 22),  # 6 of 12 ms remain: of 12 and 10 more they are 6 / 22
    ],
)
def test_rare_steps_that_were_not_replayed_take_as_long_unrecorded(
    unrecorded: tuple[int, int] | None, share: float
) -> None:
    run = SimpleNamespace(measured_ns=9 * 20_000_000, steps=9)
    simulation = cast("Simulation", SimpleNamespace(measured_step_ns=30_000_000, runs=[run]))
    half = Prediction(15_000_000, 12_000_000, 18_000_000, 0.0, "", unrecorded)
    found = _without_rare_steps(half, simulation)
    assert found.step_ns == pytest.approx(15e6 * share)
    assert found.low_ns == pytest.approx(12e6 * share)
    assert found.high_ns == 18_000_000
    assert found.unrecorded == (unrecorded and (22_000_000, 6_000_000))
