"""Lines of Python from sampled stacks: where idle time lies, and what launched a kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.build import MAIN, PID, Build
from tests.support.captures import shared

from stepscope.activity.device import gpus
from stepscope.activity.locations import Places, SampledLines
from stepscope.api import Job

TORCH = "/usr/lib/python3/dist-packages/torch/_tensor.py"


def stack(build: Build, number: int, *frames: tuple[str, int]) -> None:
    for depth, (module, line) in enumerate(frames):
        build._add("stack_frame", stack_id=number, depth=depth, function="step", module=module,
                   line=line)  # fmt: skip


def sample(build: Build, at: float, number: int, thread: int = MAIN) -> None:
    build._add("cpu_sample", time_ns=round(at * 1000), process_id=PID, thread_id=thread,
               stack_id=number)  # fmt: skip


def recorded() -> Build:
    """Two lines of the program, 10 ms apart; each sample is innermost in PyTorch."""
    build = Build()
    main = ("/home/me/train.py", 145)
    stack(build, 0, main, ("/home/me/train.py", 40), (TORCH, 7))
    stack(build, 1, main, ("/home/me/train.py", 118), (TORCH, 9), ("/opt/lib/python3.12/x.py", 3))
    stack(build, 2, ("<frozen runpy>", 5), (TORCH, 7))
    stack(build, 3, main, ("/home/me/data/train.py", 5))
    for i in range(4):
        sample(build, i * 20_000 + 5_000, 0)
        sample(build, i * 20_000 + 15_000, 1)
        sample(build, i * 20_000 + 15_000, 3, thread=777)
        build.kernel(i * 20_000 + 40, i * 20_000 + 60, call=(i * 20_000 + 20, i * 20_000 + 30))
    return build


def test_the_innermost_line_of_the_program_itself(tmp_path: Path) -> None:
    trace = recorded().trace(tmp_path)
    lines = SampledLines(gpus(trace.frame)[0], trace.frame)
    whole = np.array([10_000_000]), np.array([20_000_000])
    assert lines.heaviest(*whole) == ("train.py:118", "step")
    # shorter than the period: the nearest sample's
    assert lines.heaviest(np.array([7_000_000]), np.array([7_010_000])) == ("train.py:40", "step")
    # no sample within a period, and none that holds a third
    assert lines.heaviest(np.array([200_000_000]), np.array([200_010_000])) is None


def test_a_third_of_the_time_is_needed(tmp_path: Path) -> None:
    build = recorded()
    for k in range(8):
        sample(build, 80_000 + k * 10_000, 2)  # a stack without a line of the program
    trace = build.trace(tmp_path)
    lines = SampledLines(gpus(trace.frame)[0], trace.frame)
    assert lines.heaviest(np.array([70_000_000]), np.array([160_000_000])) is None


def test_samples_that_fall_on_short_stretches_tell_of_the_others(tmp_path: Path) -> None:
    """Of forty stretches of 2 ms a sample each 10 ms hits ten; the others hit the work between."""
    build = Build()
    stack(build, 0, ("/home/me/train.py", 40))
    stack(build, 1, ("/home/me/train.py", 118))
    for k in range(40):
        hit = k % 4 == 0
        sample(build, k * 10_000 + (1_000 if hit else 6_000), int(hit))
    build.kernel(40, 60, call=(20, 30))
    trace = build.trace(tmp_path)
    lines = SampledLines(gpus(trace.frame)[0], trace.frame)
    begins = np.arange(40) * 10_000_000
    assert lines.heaviest(begins, begins + 2_000_000) == ("train.py:118", "step")


def test_files_are_told_apart(tmp_path: Path) -> None:
    build = recorded()
    sample(build, 85_000, 3)
    trace = build.trace(tmp_path)
    lines = SampledLines(gpus(trace.frame)[0], trace.frame)
    assert lines.heaviest(np.array([84_000_000]), np.array([86_000_000])) == (
        "data/train.py:5",
        "step",
    )


def test_a_sample_of_another_part_of_the_step_tells_nothing(tmp_path: Path) -> None:
    trace = recorded().trace(tmp_path)
    lines = SampledLines(gpus(trace.frame)[0], trace.frame)
    at = np.array([4_000_000, 6_000_000, 9_000_000, 12_000_000])
    parts = lines.at(at, lambda times: (times % 20_000_000) // 10_000_000)
    texts = [lines.lines[code][0] if code >= 0 else "" for code in parts.tolist()]
    assert texts == ["train.py:40", "train.py:40", "train.py:40", "train.py:118"]
    alone = lines.at(at, lambda times: np.where(times == 4_000_000, 1, 0))
    assert alone.tolist()[0] == -1


def test_native_stacks_have_no_lines(tmp_path: Path) -> None:
    build = recorded()
    for row in build.rows["stack_frame"]:
        row["line"] = None
    trace = build.trace(tmp_path)
    lines = SampledLines(gpus(trace.frame)[0], trace.frame)
    assert lines.heaviest(np.array([0]), np.array([80_000_000])) is None


def test_a_traced_function_is_named_beside_the_sampled_line(tmp_path: Path) -> None:
    build = recorded()
    build.python(0, 80_000, "model.py(33): forward")
    trace = build.trace(tmp_path)
    places = Places(gpus(trace.frame)[0], trace.frame, "", (0, 0))
    begin, end = np.array([10_000_000]), np.array([20_000_000])
    found = places.of(begin, end)
    assert (found.function, found.source) == ("forward() model.py:33", "train.py:118")


@pytest.fixture
def capture() -> Path:
    return shared("h200-2/run_steps10.own.tar.xz")


def test_host_sync_names_the_line_that_waits(capture: Path) -> None:
    first = Job([str(capture)]).diagnose().findings[0]
    assert first.cause == "host_sync"
    # the list of .item() over all parameters after the backward pass
    assert first.where.source == "train.py:118"
