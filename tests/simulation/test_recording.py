"""What recording costs, where steps that nobody recorded tell it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.build import PID, Build

from stepscope.api import Job
from stepscope.gaps.profiler_overhead import recorded_events
from stepscope.intervals.algebra import EMPTY
from stepscope.simulation import Free, LaunchesFree, pace
from stepscope.simulation.engine import replay
from stepscope.simulation.host_work import not_launching
from stepscope.simulation.program import C
from stepscope.simulation.recording import called_factor, factor_of, profiled_factor

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


def test_a_cost_that_own_work_may_hide_is_not_told(tmp_path: Path) -> None:
    """Of 2 ms of own work, 0.46 may be missing in other steps: 0.4 less say little of recording.

    The estimate of 1.5 us a launch counts, as they allow it: nothing, or 0.86 ms at most.
    """
    simulation = recorded(tmp_path, 4_600).simulation
    found = simulation.predict([Free("host_compute")])
    assert found.unrecorded is not None
    assert found.unrecorded[0] == pytest.approx(4_925_000, rel=0.01)


@pytest.mark.parametrize("pace", [1.0, 2.0])
def test_the_part_of_launching_that_goes_to_recording(tmp_path: Path, pace: float) -> None:
    """Two operators and a launch: 2 x 2.35 + 2.9 us, more by the root of how slow launching is.

    They take 2 x 5.2 + 11.6 = 22 us elsewhere, and 40 or 80 here.
    """
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
    factor = profiled_factor(simulation.subjects, simulation.runs, readers, [EMPTY])
    (subject,) = simulation.subjects
    estimate = subject.program.recording_ns.sum() / simulation.runs[0].steps
    cost = factor * estimate / LAUNCHES
    assert cost == pytest.approx(1000 * 7.6 * (each / 22.0) ** 0.5, rel=0.03)
    end_ns = round(STEPS * LAUNCHES * each * 1000)
    per_event = recorded_events(subject.gpu, readers[0], 0, end_ns).cost_ns()
    assert per_event == pytest.approx(1000 * 7.6 * STEPS * LAUNCHES, rel=0.01)


@pytest.mark.parametrize(("each_us", "times"), [(5, 1 / 3), (30, 1.0), (60, 2.0), (120, 2.0)])
def test_the_collector_costs_more_where_launching_takes_longer(
    tmp_path: Path, each_us: float, times: float
) -> None:
    """One and a half times what its calls show at 30 us a launch, elsewhere by the power of 3/4."""
    build, at = Build(), 0.0
    for number in range(STEPS):
        begin = at
        for _ in range(LAUNCHES):
            build.kernel(at + each_us - 1, at + each_us, call=(at, at + 2))
            at += each_us
        build.range(begin, at, f"step_{number}", domain="stepscope")
    subjects = Job([build.trace(tmp_path).folder]).simulation.subjects
    found = called_factor("the collector", subjects)
    assert found["expected"] == pytest.approx(1.5 * times**0.75, rel=0.02)
    assert found["high"] < found["expected"] < found["low"]
    assert called_factor("Nsight Systems", subjects)["expected"] == 1.0


def test_recording_takes_no_more_than_launching_leaves(tmp_path: Path) -> None:
    """Ten operators in 20 us would take 26 of them to record: three quarters are the most."""
    build, each = Build(), 20.0
    for number in range(STEPS * LAUNCHES):
        at = number * each
        for n in range(10):
            build.operator(at + n / 10, at + (n + 1) / 10, "aten::add")
        build.kernel(at + 12, at + 14, call=(at + 4, at + 10))
        if not number % LAUNCHES:
            build.range(at, at + LAUNCHES * each, f"step_{number // LAUNCHES}", domain="stepscope")
    simulation = Job([build.trace(tmp_path).folder]).simulation
    factor = profiled_factor(
        simulation.subjects, simulation.runs, [simulation._read_of(0)], [EMPTY]
    )
    (subject,) = simulation.subjects
    estimate = subject.program.recording_ns.sum() / simulation.runs[0].steps
    assert factor * estimate / LAUNCHES == pytest.approx(0.75 * 1000 * each, rel=0.03)


def test_odd_steps_leave_the_cost_within_bounds(tmp_path: Path) -> None:
    """Every fourth of 12 steps pauses for 8 ms more; of ten others, two or three do.

    Recorded steps take 5 ms and the run as a whole 7; ten that nobody recorded took 6. Recording
    then costs 1 ms, or 0.8 more or less by chance and 0.9 by how long 4 ms of own work take, which
    makes 1.2: the estimate counts, where it lies between them.
    """
    build, at = Build(), 0.0
    for number in range(12):
        begin = at
        at += 2_000 + (8_000 if number % 4 == 1 else 0)
        for _ in range(LAUNCHES):
            build.kernel(at + 42, at + 47, call=(at + 20, at + 40))
            at += EACH
        build.range(begin, at, f"step_{number}", domain="stepscope")
    start, end = (round(1000 * (at + 50_000 + 10 * us)) for us in (0, 6_000))
    build._add("timed_stretch", process_id=PID, start_ns=start, end_ns=end, steps=10,
               recorded=False)  # fmt: skip
    simulation = Job([build.trace(tmp_path).folder]).simulation
    factor = simulation.recording_factor
    taken = {
        bound: simulation.measured_step_ns - max(
            r.step_ns for r in replay([s.program for s in pace.unrecorded(simulation.subjects, f)])
        )
        for bound, f in factor.items()
    }  # fmt: skip
    assert taken["high"] == pytest.approx(0, abs=60_000)
    assert taken["low"] == pytest.approx(1_800_000, abs=60_000)  # what launching leaves
    assert taken["high"] <= taken["expected"] <= taken["low"]


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


def test_factors_that_gain_as_much_within_the_error_are_alike() -> None:
    """A tenth of the step for each time the estimate; half a step of error is five times of it."""
    gained = [min(0.1 * f, 1.0) for f in (0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24)]
    assert factor_of(gained, 0.4, 1.0) == pytest.approx(4.0, abs=0.06)
    assert factor_of(gained, 0.4, 1.0, error=0.2) == pytest.approx(2.0, abs=0.01)
    assert factor_of(gained, 0.4, 1.0, error=0.5) == 1.0


@pytest.mark.parametrize(("apart_us", "expected"), [(0.0, 4.0), (90.0, 1.0)])
def test_noise_of_steps_that_the_device_paces_is_no_cost(
    tmp_path: Path, apart_us: float, expected: float
) -> None:
    """Eight launches of 1.5 us each are on the host's way to a kernel that takes the step.

    Steps took 60 us less while nobody recorded, five times the estimate. Where all steps are alike
    it is that, but for the 10 us of a step of 2 ms that are as good as none; where their mean is
    known to 50 us, the estimate is as good.
    """
    build, at = Build(), 0.0
    for number in range(STEPS):
        begin, slower = at, apart_us * (1 if number % 2 else -1)
        for _ in range(7):
            build.kernel(at + 12, at + 14, call=(at + 2, at + 10))
            at += 20
        build.kernel(at + 12, at + 1_860 + slower, call=(at + 2, at + 10))
        build.api(at + 11, at + 1_860 + slower, "cudaDeviceSynchronize")
        at += 1_860 + slower
        build.range(begin, at, f"step_{number}", domain="stepscope")
    mean = 2_000.0 - 60.0
    start, end = (round(1000 * (at + 50_000 + 10 * us)) for us in (0, mean))
    build._add("timed_stretch", process_id=PID, start_ns=start, end_ns=end, steps=10,
               recorded=False)  # fmt: skip
    factor = Job([build.trace(tmp_path).folder]).simulation.recording_factor
    assert factor["expected"] == pytest.approx(expected, rel=0.1)
    assert factor["high"] <= factor["expected"] <= factor["low"]


LOADING = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"


def profiled(folder: Path, loader: str, *, loads_us: float, operators: int) -> Job:
    """Steps of 3 ms of launches with two operators each, and a wait for a batch before them."""
    build, at = Build(), 0.0
    for number in range(STEPS):
        begin = at
        build.range(at, at + loads_us, loader)
        for n in range(operators):
            build.operator(at + 2 * n, at + 2 * n + 1, "aten::div")
        at += loads_us
        for _ in range(LAUNCHES):
            build.operator(at + 1, at + 2, "aten::add")
            build.operator(at + 3, at + 4, "aten::mul")
            build.kernel(at + 42, at + 47, call=(at + 20, at + 40))
            at += EACH
        build.range(begin, at, f"step_{number}", domain="stepscope")
    return Job([build.trace(folder, source="kineto").folder])


@pytest.mark.parametrize(("loader", "paced"), [("MultiProcessing", True), ("SingleProcess", False)])
def test_workers_bring_batches_no_sooner_where_nothing_is_recorded(
    tmp_path: Path, loader: str, paced: bool
) -> None:
    """3 ms of launching and 4 ms of waiting: without recording the thread waits longer."""
    simulation = profiled(tmp_path, LOADING.format(loader), loads_us=4_000, operators=0).simulation
    found = simulation.predict([LaunchesFree()])
    assert found.unrecorded is not None
    before, after = found.unrecorded
    assert simulation.paced_by_workers == paced
    assert (before == pytest.approx(7_000_000, rel=0.01)) == paced
    # nor where the host is faster; a repair of the input is another matter
    assert (after == pytest.approx(before, abs=1)) == paced
    fed = simulation.predict([Free("input_starvation")])
    assert fed.unrecorded is not None
    assert fed.unrecorded[1] == pytest.approx(3_000_000 - simulation.recording_ns, rel=0.02)


def test_a_wait_for_workers_behind_a_busy_device_paces_nothing(tmp_path: Path) -> None:
    """The device is busy all the time, with the batch before: it sets the pace."""
    build, at, end = Build(), 0.0, 5_000.0
    for number in range(STEPS):
        begin = at
        build.range(at, at + 2_000, LOADING.format("MultiProcessing"))
        at += 2_000
        for _ in range(LAUNCHES):
            build.kernel(end, end + 80, call=(at + 20, at + 40))
            at, end = at + 40, end + 80
        build.range(begin, at, f"step_{number}", domain="stepscope")
    simulation = Job([build.trace(tmp_path, source="kineto").folder]).simulation
    assert simulation.subjects[0].program.work_ns[:, C["input_starvation"]].sum() > 0
    assert not simulation.paced_by_workers


def test_operators_of_a_loader_on_the_thread_cost_launching_nothing(tmp_path: Path) -> None:
    """A thousand of them in 4 ms: what recording costs of launching stays the same."""
    found = []
    for operators in (0, 1000):
        folder = tmp_path / str(operators)
        folder.mkdir()
        name = LOADING.format("SingleProcess")
        simulation = profiled(folder, name, loads_us=4_000, operators=operators).simulation
        fed = simulation.predict([Free("input_starvation")])
        assert fed.unrecorded is not None
        found.append(fed.unrecorded)
        (_, e), run, read = simulation.devices[0], simulation.runs[0], simulation._read_of(0)
        beside = recorded_events(e.gpu, read, run.begin_ns, run.end_ns, not_launching(e, read, run))
        # the thread is silent until the first launch: its two operators are not apart from that
        assert beside.operators == 2 * (LAUNCHES - 1) * run.steps
    (without, after), (with_them, same) = found
    assert same == pytest.approx(after, rel=0.001)
    # they were recorded where the batch is made, by the estimate of 0.8 us each
    assert without - with_them == pytest.approx(800_000, rel=0.02)
