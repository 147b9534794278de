"""Step detection: annotations of every style, none at all, and outlier steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.build import Build

from stepscope.activity.device import gpus
from stepscope.breakdown.explain import explain
from stepscope.steps.detection import find_steps
from stepscope.steps.kinds import Workload
from stepscope.steps.model import Steps, begun_late, steady_steps
from stepscope.steps.periodicity import find_period


def steps_of(build: Build, folder: Path) -> Steps:
    trace = build.trace(folder)
    return find_steps(gpus(trace.frame)[0], Workload("unknown", ""), 0)[0]


def work(build: Build, at: float) -> None:
    build.kernel(at + 20, at + 700, call=(at + 5, at + 15))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("ProfilerStep#{i}", "profiler_step"),
        ("step_{i}", "numbered_range"),
        ("Iteration {i}/100", "numbered_range"),
        ("train_step", "repeating_range"),
        ("batch[{i}]", "numbered_range"),
    ],
)
def test_names(name: str, source: str, tmp_path: Path) -> None:
    build = Build()
    for i in range(5):
        build.range(i * 1000, i * 1000 + 990, name.format(i=i))
        work(build, i * 1000)
    steps = steps_of(build, tmp_path)
    assert (steps.source, len(steps)) == (source, 5)
    assert steps.begin_ns.tolist() == [i * 1_000_000 for i in range(5)]


def test_a_numbered_step_whose_range_was_lost_is_put_back(tmp_path: Path) -> None:
    build = Build()
    for i in range(6):
        if i != 3:
            build.range(i * 1000, i * 1000 + 990, f"step_{i}")
        work(build, i * 1000)
    steps = steps_of(build, tmp_path)
    assert steps.begin_ns.tolist() == [0, 1_000_000, 2_000_000, 2_990_000, 4_000_000, 5_000_000]
    assert "missing" in steps.message


def test_a_number_left_out_without_work_is_no_step(tmp_path: Path) -> None:
    build = Build()
    for i in (0, 1, 3, 4):
        build.range(i * 1000, i * 1000 + 990, f"step_{i}")
        work(build, i * 1000)
    assert len(steps_of(build, tmp_path)) == 4


def test_a_repetition_that_lost_its_beginning_is_put_back() -> None:
    one = [7, *([1, 2, 3, 4] * 10), 5, 6]
    token = np.array(one * 8)
    upload = token == 7
    whole = find_period(token, np.zeros(len(token), bool), upload)
    assert whole is not None
    lost = 4 * len(one)
    kept = np.delete(np.arange(len(token)), lost)
    found = find_period(token[kept], np.zeros(len(kept), bool), upload[kept])
    assert found is not None
    assert len(found) == len(whole) == 8
    assert abs(int(found[4]) - lost) <= 1


def test_epochs_and_layers_are_not_steps(tmp_path: Path) -> None:
    build = Build()
    for epoch in range(3):
        build.range(epoch * 4000, epoch * 4000 + 3999, f"epoch {epoch}")
        for i in range(4):
            at = epoch * 4000 + i * 1000
            build.range(at, at + 990, "step")
            for layer in range(3):
                build.range(at + 100 * layer, at + 100 * layer + 90, f"layer {layer}")
                build.kernel(at + 10 + 100 * layer, at + 90 + 100 * layer,
                             call=(at + 100 * layer + 1, at + 100 * layer + 5))  # fmt: skip
    steps = steps_of(build, tmp_path)
    assert (steps.label, len(steps)) == ("step", 12)


def test_phases_without_a_step_range(tmp_path: Path) -> None:
    build = Build()
    for i in range(5):
        at = i * 1000
        build.range(at, at + 300, "forward")
        build.range(at + 310, at + 700, "backward")
        build.range(at + 710, at + 980, "optimizer")
        for t in (10, 320, 720):
            build.kernel(at + t + 20, at + t + 200, call=(at + t + 1, at + t + 5))
    steps = steps_of(build, tmp_path)
    assert len(steps) == 5
    assert "forward" in steps.message


def test_no_repetition_is_one_step_and_says_so(tmp_path: Path) -> None:
    build = Build()
    for i in range(10):
        build.kernel(i * 100 + 20, i * 100 + 90, call=(i * 100, i * 100 + 5), name=f"kernel{i}")
    steps = steps_of(build, tmp_path)
    assert (steps.source, len(steps)) == ("whole_capture", 1)


def sequence(steps: int, layers: int, micro: int = 1, jitter: bool = False) -> tuple:
    """Tokens of a transformer: embedding, layers, head, backward, optimizer."""
    rng = np.random.default_rng(0)
    tokens: list[int] = []
    optimizer: list[bool] = []
    upload: list[bool] = []

    def emit(code: int, *, opt: bool = False, up: bool = False) -> None:
        tokens.append(code)
        optimizer.append(opt)
        upload.append(up)

    for _ in range(steps):
        for _ in range(micro):
            emit(1, up=True)
            emit(2)
            for _ in range(layers):
                for op in range(10, 18):
                    emit(op)
                if jitter and rng.random() < 0.1:
                    emit(99)
            emit(3)
            emit(4)
            for _ in range(layers):
                for op in range(20, 34):
                    emit(op)
        for _ in range(2):
            emit(50, opt=True)
    return np.array(tokens), np.array(optimizer), np.array(upload)


@pytest.mark.parametrize("layers", [1, 6, 48, 96])
@pytest.mark.parametrize("jitter", [False, True])
def test_steps_not_layers_are_found_in_a_sequence(layers: int, jitter: bool) -> None:
    anchors = find_period(*sequence(8, layers, jitter=jitter))
    assert anchors is not None
    assert abs(len(anchors) - 8) <= 1


def test_micro_batches_belong_to_the_step_of_their_optimizer() -> None:
    anchors = find_period(*sequence(7, 12, micro=4))
    assert anchors is not None
    assert abs(len(anchors) - 7) <= 1


def evaluated(every: int, batches: int, steps: int = 12) -> tuple[np.ndarray, ...]:
    """Steps of forward (0 to 19), backward (20 to 49) and update, and evaluations between some."""
    rows: list[int] = []
    for step in range(steps):
        rows += [*range(20), *range(20, 50), 50, 51]
        if step % every == 1:
            rows += [*range(20)] * batches
    token = np.array(rows)
    return token, token >= 50, np.zeros(len(token), bool)


@pytest.mark.parametrize("every", [3, 4, 5])
def test_an_evaluation_every_few_steps_makes_no_step_of_them(every: int) -> None:
    token, optimizer, upload = evaluated(every, batches=3)
    anchors = find_period(token, optimizer, upload)
    assert anchors is not None
    assert len(anchors) == 12
    assert (token[anchors] == 0).all()


def test_updates_that_are_a_small_part_of_a_program_are_no_steps() -> None:
    # four epochs of updates behind a long rollout
    anchors = find_period(*evaluated(4, batches=30, steps=24))
    assert anchors is None or len(anchors) < 12


def test_two_networks_that_take_turns_make_one_step() -> None:
    one, two = [*range(20), 50], [*range(10), *range(20, 40), 51]
    token = np.array([*one, *two] * 8)
    anchors = find_period(token, token >= 50, np.zeros(len(token), bool))
    assert anchors is not None
    assert len(anchors) in (8, 9)


def test_nothing_repeats() -> None:
    tokens = np.arange(1000)
    assert find_period(tokens, np.zeros(1000, bool), np.zeros(1000, bool)) is None


@pytest.mark.parametrize(
    ("durations", "first", "last"),
    [
        ([10, 10, 10, 10], 0, 3),
        ([90, 30, 10, 10, 10, 10, 10], 2, 6),
        ([10, 10, 50, 10, 10, 10], 0, 5),  # jitter in the middle stays
        ([10, 10, 10, 10, 10, 2], 0, 4),
        ([3, 10, 10, 10, 10, 10], 1, 5),
        ([10, 12], 0, 1),
    ],
)
def test_steady(durations: list[int], first: int, last: int) -> None:
    assert steady_steps(np.array(durations) * 1_000_000)[:2] == (first, last)


@pytest.mark.parametrize("recorded", [True, False])
def test_what_was_launched_before_the_recording_is_work_of_an_earlier_step(
    tmp_path: Path, recorded: bool
) -> None:
    """The device is 6 ms behind the host, which begins a step of 10 ms at each mark.

    The first 6 ms of work are of the step ahead, whose calls are not in the capture.
    """
    build = Build()
    build.kernel(0, 6_000, call=(-9_000, -8_990) if recorded else None, name="update")
    for i in range(4):
        at = 10_000.0 * i
        build.range(at, at + 9_990, f"ProfilerStep#{i}")
        for k in range(10):
            start = at + 6_000 + 1_000 * k
            build.kernel(start, start + 1_000, call=(at + 10 * k, at + 10 * k + 5), name=f"k{k}")
    trace = build.trace(tmp_path)
    (found,) = explain(trace.frame, trace.meta)
    assert ((found.bounds_ns - found.steps.begin_ns[0]) // 1_000).tolist() == [
        6_000,
        16_000,
        26_000,
        36_000,
        46_000,
    ]


@pytest.mark.parametrize(("host", "late"), [(12_000, False), (14_000, True)])
def test_a_first_step_that_the_device_began_late_lacks_what_the_host_did(
    host: int, late: bool
) -> None:
    """10 ms on the device behind 5 ms of an earlier one, and up to 14 ms of the host's time."""
    begin = np.array([0, host, host + 10_000, host + 20_000])
    bounds = np.array([5_000, 15_000, 25_000, 35_000, 45_000])
    steps = Steps(begin, 45_000, "profiler_step", "")
    assert begun_late(steps, bounds) is late
    first, last, _ = steady_steps(np.diff(bounds), behind=late)
    assert (first, last) == (int(late), 3)
