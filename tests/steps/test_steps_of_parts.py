"""Steps of captures that hold only a part of what was enqueued, or of the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.build import Build

from stepscope.activity.device import gpus
from stepscope.breakdown.explain import explain
from stepscope.steps.detection import find_steps
from stepscope.steps.kinds import Workload
from stepscope.steps.model import steady_steps


def test_steps_that_the_capture_ends_before_are_set_aside(tmp_path: Path) -> None:
    """The host enqueues eight steps in advance; the GPU gets to five of them."""
    build = Build()
    for i in range(8):
        build.range(i * 100, i * 100 + 90, f"step {i}")
        for k in range(6):
            call = (i * 100 + 10 * k, i * 100 + 10 * k + 5)
            if i < 5:
                start = 1_000 + i * 6_000 + k * 1_000
                build.kernel(start, start + 1_000, call=call, name=f"k{k}")
            else:
                build.api(*call, "cudaLaunchKernel", correlation=10_000 + 6 * i + k)
    trace = build.trace(tmp_path)
    (found,) = explain(trace.frame, trace.meta)
    assert len(found.steps) == 8
    assert found.last == 4
    assert found.step_ns == pytest.approx(6e6, rel=0.2)
    assert "the last 3 steps set aside, because the capture ends before" in found.set_aside


def test_nothing_else_is_set_aside_for_that() -> None:
    assert steady_steps(np.array([5, 5, 5, 5, 0, 0])) == (
        0,
        3,
        "the last 2 steps set aside, because the capture ends before the GPU gets to them",
    )
    assert steady_steps(np.array([5, 5, 5, 5])) == (0, 3, "")
    assert steady_steps(np.array([0, 0, 0]))[1] == 0


@pytest.mark.parametrize(("pause", "first"), [(0, 0), (2_000, 1)])
def test_a_first_step_that_the_capture_begins_inside_is_not_counted(
    tmp_path: Path, pause: int, first: int
) -> None:
    """Nothing marks the steps; before each but the first the host does something else, or not."""
    build, host, device = Build(), 0.0, 0.0
    for i in range(6):
        host += pause if i else 10
        for k in range(8):
            begin = max(device + 1, host + 10)
            device = begin + 100
            build.kernel(begin, device, call=(host, host + 5), name=f"k{k}")
            host += 6
    trace = build.trace(tmp_path)
    (found,) = explain(trace.frame, trace.meta)
    assert found.steps.source == "kernel_sequence"
    assert found.first == first
    assert ("the capture begins inside it" in found.set_aside) == bool(first)


def test_of_few_steps_all_count() -> None:
    durations = np.array([4, 5, 5, 5])
    assert steady_steps(durations, inside=True)[:2] == (1, 3)
    assert steady_steps(durations[:3], inside=True)[:2] == (0, 2)


@pytest.mark.parametrize("ahead", [0, 4])
def test_what_was_enqueued_before_the_capture_makes_no_steps(tmp_path: Path, ahead: int) -> None:
    """A queue of some steps is left from before; its calls are not in the capture."""
    build, at = Build(), 1_000.0
    for i in range(12):
        for k in range(8):
            call = None if i < ahead else (at - 900 - 500 + 10 * k, at - 900 - 500 + 10 * k + 5)
            build.kernel(at, at + 990, call=call, name=f"k{k}")
            at += 1_000
    trace = build.trace(tmp_path)
    (gpu,) = gpus(trace.frame)
    found, _ = find_steps(gpu, Workload("unknown", ""), trace.meta.window_start_ns)
    assert found.source == "kernel_sequence"
    assert abs(len(found) - (12 - ahead)) <= 1
    assert (np.diff(found.begin_ns) >= 0).all()
    (explained,) = explain(trace.frame, trace.meta)
    assert (explained.steady_durations_ns > 0).all()
    assert explained.step_ns == pytest.approx(8e6, rel=0.05)


@pytest.mark.parametrize(("before", "source"), [(6, "kernel_sequence"), (90, "whole_capture")])
def test_a_repetition_must_be_most_of_the_run(tmp_path: Path, before: int, source: str) -> None:
    """Four times the same six kernels, whose last is read, behind work that does not repeat."""
    build, at = Build(), 0.0
    names = [f"once{k}" for k in range(before)] + [f"k{k}" for _ in range(4) for k in range(6)]
    for name in names:
        build.kernel(at + 10, at + 100, call=(at, at + 5), name=name)
        at += 110
        if name == "k5":
            build.copy(at + 10, at + 12, call=(at, at + 15), kind="DtoH", size=4, dst="pageable")
            at += 20
    trace = build.trace(tmp_path)
    (gpu,) = gpus(trace.frame)
    found, _ = find_steps(gpu, Workload("unknown", ""), trace.meta.window_start_ns)
    assert found.source == source


@pytest.mark.parametrize(("tail", "said"), [(2_000, True), (20, False)])
def test_silence_behind_the_last_launch_counts_to_no_step(
    tmp_path: Path, tail: int, said: bool
) -> None:
    """The mark of the last step holds the end of the recording; others pause for 30 us at most."""
    build = Build()
    for i in range(5):
        end = (i + 1) * 1_000 if i < 4 else 4_970 + tail
        build.range(i * 1_000, end - 1, f"step {i}")
        for k in range(8):
            start = i * 1_000 + 10 + 120 * k
            build.kernel(start, start + 118, call=(start - 8, start - 4), name=f"k{k}")
    trace = build.trace(tmp_path)
    (found,) = explain(trace.frame, trace.meta)
    longest = int(np.diff(found.bounds_ns).max())
    assert longest < 1_050_000
    assert ("which counts to no step" in found.steps.message) == said


@pytest.mark.parametrize(
    ("extra", "source"),
    [([0] * 12, "kernel_sequence"), ([0, 1, 0, 2, 1, 0, 1, 0, 2, 0, 1, 0], "whole_capture")],
    ids=["the same each time", "of several kinds"],
)
def test_what_takes_nothing_in_launches_the_same_each_time(
    tmp_path: Path, extra: list[int], source: str
) -> None:
    """Nothing is uploaded, read or waited for: twelve iterations, or the blocks of one model."""
    build, at = Build(), 0.0
    for more in extra:
        for name in [*(f"k{k}" for k in range(40)), *["permute"] * more]:
            build.kernel(at + 10, at + 40, call=(at, at + 5), name=name)
            at += 50
    assert _source(build, tmp_path) == source


@pytest.mark.parametrize(
    ("before_ms", "source"), [(1, "kernel_sequence"), (20, "whole_capture")], ids=["most", "little"]
)
def test_a_few_repetitions_with_little_of_the_work_are_no_loop(
    tmp_path: Path, before_ms: int, source: str
) -> None:
    """Four repetitions that read a value each, behind a model's many other operations."""
    build, at = Build(), 0.0
    for k in range(100):
        length = 10.0 * before_ms
        build.kernel(at + 10, at + 10 + length, call=(at, at + 5), name=f"first{k}")
        at += length + 20
    for _ in range(4):
        for k in range(30):
            build.kernel(at + 10, at + 110, call=(at, at + 5), name=f"k{k}")
            at += 120
        build.copy(at + 10, at + 12, call=(at, at + 14), kind="DtoH", size=4)
        at += 30
    assert _source(build, tmp_path) == source


def test_results_that_are_read_behind_a_loop_do_not_make_it_a_model(tmp_path: Path) -> None:
    """Two kernels a time, each waited for; then copies of four sizes."""
    build, at = Build(), 0.0
    for _ in range(11):
        for name in ("seed", "fit"):
            build.kernel(at + 10, at + 4_000, call=(at, at + 5), name=name)
            at += 4_010
        build.api(at - 4_000, at, "cudaEventSynchronize")
        at += 20
    for k in range(4):
        build.copy(at + 10, at + 12, call=(at, at + 14), kind="DtoH", size=1 << (20 + k))
        at += 30
    assert _source(build, tmp_path) == "kernel_sequence"


@pytest.mark.parametrize(
    ("before", "source"), [("copy", "kernel_sequence"), ("kernel", "whole_capture")]
)
def test_the_upload_of_the_weights_takes_nothing_from_a_loop(
    before: str, source: str, tmp_path: Path
) -> None:
    """Four passes of 1.2 ms, each waited for, behind something that takes 20 ms."""
    build, at = Build(), 21_000.0
    if before == "copy":
        build.copy(10, 20_010, call=(0, 20_020), src="pageable", size=1 << 28)
    else:
        build.kernel(10, 20_010, call=(0, 5), name="prepare")
    for _ in range(4):
        for k in range(12):
            build.kernel(at + 10, at + 110, call=(at, at + 5), name=f"k{k}")
            at += 110
        build.api(at, at + 20, "cudaDeviceSynchronize")
        at += 30
    assert _source(build, tmp_path) == source


def test_copies_that_repeat_without_a_kernel_are_no_steps(tmp_path: Path) -> None:
    build, at = Build(), 0.0
    build.kernel(10, 9_000, call=(0, 5), name="add")
    for k in range(40):
        at = 10_000 + 100.0 * k
        build.copy(at, at + 30, call=(at - 9, at - 2), kind="DtoH", size=1 << 16)
        build.copy(at + 40, at + 60, call=(at + 31, at + 38), kind="HtoD", size=1 << 12)
    assert _source(build, tmp_path) == "whole_capture"


def _source(build: Build, folder: Path) -> str:
    trace = build.trace(folder)
    (gpu,) = gpus(trace.frame)
    return find_steps(gpu, Workload("unknown", ""), trace.meta.window_start_ns)[0].source


@pytest.mark.parametrize("marked", [False, True])
def test_a_step_whose_host_work_was_before_the_capture_is_set_aside(
    tmp_path: Path, marked: bool
) -> None:
    """The host logs for 400 us between steps of 2 ms; the first comes when it is recorded."""
    build, at = Build(), 0.0
    for i in range(8):
        begin = at
        at += 400 if i or marked else 0
        for k in range(20):
            name = "multi_tensor_apply_kernel" if k == 19 else f"k{k}"
            build.kernel(at + 5, at + 95, call=(at, at + 5), name=name)
            at += 100
        if marked:
            build.range(begin, at, f"step {i}")
    trace = build.trace(tmp_path)
    (found,) = explain(trace.frame, trace.meta)
    assert found.first == (0 if marked else 1)
    assert found.step_ns == pytest.approx(2.4e6, rel=0.01)
    assert ("begins inside it" in found.set_aside) is not marked
