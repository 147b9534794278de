"""Intervals, errors and Student's t, against known values and a naive model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.compare.statistics import (
    RUN_NOISE,
    block_length,
    bootstrap_means,
    difference,
    mean_error,
    missed,
    settled,
    slow_waves,
    wave_count,
)
from stepscope.trace.quantiles import quantile


@pytest.mark.parametrize(
    ("p", "degrees", "expected"),
    # printed tables of Student's t
    [(0.975, 1, 12.706), (0.975, 3, 3.182), (0.99, 6, 3.143), (0.995, 30, 2.750), (0.975, 0, 1.96)],
)
def test_quantiles_are_those_of_the_tables(p: float, degrees: int, expected: float) -> None:
    assert quantile(p, degrees) == pytest.approx(expected, abs=6e-4)


def test_the_error_of_independent_steps_is_the_usual_one() -> None:
    values = np.random.default_rng(3).normal(100, 5, (200, 400))
    # covariances below zero are not believed, so it is rather too large than too small
    assert 5 / 20 <= mean_error(values).mean() <= 1.12 * 5 / 20


def test_steps_that_follow_one_another_are_less_certain() -> None:
    rng = np.random.default_rng(4)
    walk = np.zeros((100, 400))
    for i in range(1, 400):
        walk[:, i] = 0.6 * walk[:, i - 1] + rng.normal(0, 1, 100)
    truth = walk.mean(axis=1).std()
    naive = (walk.std(axis=1) / 20).mean()
    drawn = np.mean([bootstrap_means(row).std() for row in walk])
    assert naive < 0.65 * truth
    assert drawn > 1.25 * naive
    assert mean_error(walk).mean() > 1.25 * naive


def test_the_slowest_waves_by_hand() -> None:
    assert slow_waves([5.0]) == (0.0, 0)
    assert slow_waves([7.0] * 9) == (pytest.approx(0, abs=1e-12), 3)
    # two steps have one wave: cos(pi/4) and cos(3 pi/4), so the usual error of a mean of two
    error, degrees = slow_waves([10.0, 14.0])
    assert (error, degrees) == (pytest.approx(2.0), 1)
    # as many waves as there are degrees make the usual error for any series (Parseval)
    assert wave_count(3) == 2
    values = np.array([3.0, 8.0, 4.0])
    assert slow_waves(values)[0] == pytest.approx(values.std(ddof=1) / math.sqrt(3))
    # what repeats within the run does not move its mean; what drifts does
    spikes, drift = np.tile([1.0, 1.0, 1.0, 9.0], 16), np.linspace(1, 9, 64)
    assert slow_waves(spikes)[0] < 0.3 * spikes.std() / 8
    assert slow_waves(drift)[0] > 2 * drift.std() / 8


@pytest.mark.parametrize("follows", [0.0, 0.5])
@pytest.mark.parametrize("n", [12, 20, 60])
def test_the_error_and_its_degrees_make_a_test_of_its_size(n: int, follows: float) -> None:
    """Means of 4000 series without a level are called one in 5 of 100, two-sided."""
    rng = np.random.default_rng(n)
    shocks = rng.normal(size=(n + 30, 4000))
    for i in range(1, n + 30):
        shocks[i] = follows * shocks[i - 1] + shocks[i]
    series = shocks[30:].T
    answer = [slow_waves(row) for row in series]
    factor = quantile(0.975, wave_count(n)) * math.sqrt(missed(n))
    called = np.mean([abs(r.mean()) > factor * e for r, (e, _) in zip(series, answer, strict=True)])
    assert called <= 0.06  # three standard deviations of 4000 series
    assert called >= (0.03 if follows else 0.01)


def test_what_the_waves_of_a_short_run_miss() -> None:
    # by hand: 4 steps have 2 waves; 0.25 / (1.25 - cos) at pi/4 and pi/2 is 0.4605 and 0.2
    assert missed(4) == pytest.approx(2 / (0.4605 + 0.2), rel=1e-3)
    assert missed(4) > missed(20) > missed(400) > 1
    assert missed(400) < 1.05


def test_the_start_of_a_capture_is_no_noise() -> None:
    steady = [40.2, 32.93, 32.93, 32.92, 32.82, 32.89, 33.03, 32.9, 32.95, 33.05]
    assert settled(steady).tolist() == [32.93, *steady[1:]]
    for other in (
        [30.0, *steady[1:]],  # shorter
        [32.93, 40.2, *steady[2:]],  # not the first
        [40.8, 35.81, 38.08, 36.67, 36.34, 38.83, 38.18, 35.46],  # longest, but like the others
        steady[:5],  # too few to tell
    ):
        assert settled(other).tolist() == other
    quiet = [32.9, *steady[1:]]
    found = difference([[v * 1e6 for v in steady]], [[v * 1.1e6 for v in quiet]])
    assert found.ratio == pytest.approx(1.1 * np.mean(quiet) / np.mean(steady))
    assert found.ratio_low > 1  # the mean keeps the first step, the doubt does not


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=60))
def test_replicates_stay_between_the_extremes_around_the_mean(values: list[int]) -> None:
    means = bootstrap_means(values)
    n = len(values)
    room = math.sqrt(n / max(n - 1, 1))
    centre = float(np.mean(values))
    assert means.min() >= centre - (centre - min(values)) * room - 1e-3
    assert means.max() <= centre + (max(values) - centre) * room + 1e-3
    assert 1 <= block_length(n) <= n


def test_the_same_steps_give_the_same_interval() -> None:
    run = np.random.default_rng(0).normal(2e7, 1e6, 20)
    assert difference([run], [run * 1.1]) == difference([run], [run * 1.1])


def test_one_capture_each_is_judged_by_the_assumed_noise() -> None:
    still = [2e7] * 12
    found = difference([still], [[v * 1.04 for v in still]])
    assert not found.measured
    assert found.ratio == pytest.approx(1.04)
    assert found.low_ns == found.high_ns == pytest.approx(8e5)
    assert found.ratio_low < 1 < found.ratio_high
    # just as documented: a difference of RUN_NOISE is the edge
    edge = difference([still], [[v * math.exp(RUN_NOISE) for v in still]])
    assert edge.ratio_low == pytest.approx(1, abs=1e-6)
    assert edge.probability == pytest.approx(0.025, abs=1e-4)


def test_repeated_captures_measure_the_noise() -> None:
    before = [[2e7 * f] * 12 for f in (1.0, 1.004, 0.996)]
    after = [[2e7 * f * 1.02] * 12 for f in (1.002, 0.998, 1.0)]
    found = difference(before, after)
    assert found.measured
    assert found.degrees == 4
    assert 0.002 < found.run_noise < 0.005
    assert found.ratio_low > 1
    assert difference(before[:1], after[:1]).ratio_low < 1  # one of each shows nothing
    wild = difference([[1e7] * 9, [2e7] * 9, [3e7] * 9], [[4e7] * 9, [1e7] * 9])
    assert wild.ratio_low < 1 < wild.ratio_high


def test_two_of_one_side_that_disagree_count() -> None:
    found = difference([[1e7] * 9, [1.5e7] * 9], [[2e7] * 9])
    assert not found.measured
    assert found.run_noise > 0.2


def test_a_single_step_is_no_error() -> None:
    found = difference([[1e7]], [[2e7]])
    assert found.ratio == pytest.approx(2)
    assert found.ratio_low > 1


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_the_interval_of_a_few_steps_lies_around_their_difference(steps: int) -> None:
    """Blocks of the bootstrap are as long as a run of two steps, which gives it no shape."""
    found = difference([[32.1e6, 33.4e6, 32.5e6, 33.0e6][:steps]], [[51.2e6, 50.6e6] * 2][:steps])
    assert found.low_ns < found.after_ns - found.before_ns < found.high_ns
