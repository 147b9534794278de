"""What recording costs, where steps that nobody recorded tell it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.build import PID, Build

from stepscope.api import Job
from stepscope.simulation import Free, LaunchesFree
from stepscope.simulation.recording import factor_of, profiled_factor

STEPS, LAUNCHES, EACH = 6, 50, 60.0
"""Each launch takes 60 us while recorded, 20 of them in its call."""


def recorded(folder: Path, unrecorded_us: float, *, wait_us: float = 0.0) -> Job:
    """Steps of 3 ms of launches and 2 ms of a program's own work, and unrecorded ones."""
    build, at, work = Build(), 0.0, 2_000.0
    for number in range(STEPS):
        begin = at
        at += work
        if wait_us:
            build.range(at, at + wait_us, "_MultiProcessingDataLoaderIter.__next__")
            at += wait_us
        for _ in range(LAUNCHES):
            build.kernel(at + 42, at + 47, call=(at + 20, at + 40))
            at += EACH
        build.range(begin, at, f"step_{number}", domain="stepscope")
    start, end = (round(1000 * (at + 50_000 + 10 * us)) for us in (0, unrecorded_us))
    build._add("timed_stretch", process_id=PID, start_ns=start, end_ns=end, steps=10,
               recorded=False)  # fmt: skip
    return Job([build.trace(folder).folder])


@pytest.mark.parametrize("unrecorded_us", [4_300, 4_000, 3_400])
def test_the_replay_without_recording_takes_what_unrecorded_steps_took(
    tmp_path: Path, unrecorded_us: int
) -> None:
    """The program without its own 2 ms takes as much less, and the prediction says the same."""
    job = recorded(tmp_path, unrecorded_us)
    simulation = job.simulation
    assert simulation.measured_step_ns == pytest.approx(5_000_000, rel=0.01)
    found = simulation.predict([Free("host_compute")])
    assert found.unrecorded is not None
    before, after = found.unrecorded
    assert before == pytest.approx(unrecorded_us * 1000, rel=0.02)
    assert after == pytest.approx((unrecorded_us - 2_000) * 1000, rel=0.03)
    assert found.step_ns == pytest.approx(5_000_000 * after / before, rel=0.01)
    free = simulation.predict([Free("profiler_overhead")])
    assert free.step_ns == pytest.approx(unrecorded_us * 1000, rel=0.02)


@pytest.mark.parametrize("pace", [1.0, 2.0])
def test_the_part_of_launching_that_goes_to_recording(tmp_path: Path, pace: float) -> None:
    """Two operators and a launch: 2 x 3.1 + 2.0 of 2 x 5.2 + 11.6 us, however slow the host is."""
    build, each = Build(), 40.0 * pace
    for number in range(STEPS):
        for launch in range(LAUNCHES):
            at = (number * LAUNCHES + launch) * each
            for n in range(2):
                build.operator(at + n, at + n + 1, "aten::add")
            build.kernel(at + 12, at + 14, call=(at + 4, at + 10))
        build.range(number * LAUNCHES * each, at + each, f"step_{number}", domain="stepscope")
    simulation = Job([build.trace(tmp_path).folder]).simulation
    readers = [simulation._read_of(0)]
    factor = profiled_factor(simulation.subjects, simulation.runs, readers)
    (subject,) = simulation.subjects
    estimate = subject.program.recording_ns.sum() / simulation.runs[0].steps
    cost = factor * estimate / LAUNCHES
    assert cost == pytest.approx(1000 * each * 8.2 / 22.0, rel=0.03)


def test_a_wait_for_input_hides_what_recording_costs(tmp_path: Path) -> None:
    """Then the unrecorded steps do not tell, and the estimate counts with its own uncertainty."""
    simulation = recorded(tmp_path, 3_000, wait_us=1_000).simulation
    found = simulation.predict([LaunchesFree()])
    assert found.unrecorded is not None
    assert found.unrecorded[0] > 1.5 * 3_000_000
    assert simulation.recording_factor["expected"] == 1
    assert simulation.recording_factor["low"] > 2


@pytest.mark.parametrize(
    ("share", "near", "expected"),
    [
        (0.1, 1.0, 1.0),  # a tenth of the step for each time the estimate
        (0.2, 1.0, 2.0),
        (-0.1, 1.0, 0.0),  # recorded steps were the faster ones
        (0.5, 1.0, 3.0),  # more than the replay can gain: from three times on the device paces it
        (0.5, 10.0, 10.0),
    ],
)
def test_the_factor_that_gains_what_was_measured(
    share: float, near: float, expected: float
) -> None:
    gained = [min(0.1 * f, 0.3) for f in (0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24)]
    assert factor_of(gained, share, near) == pytest.approx(expected, abs=0.06)


def test_a_device_that_sets_the_pace_says_nothing_of_the_cost() -> None:
    assert factor_of([0.0] * 14, 0.2, 1.0) == 1.0
