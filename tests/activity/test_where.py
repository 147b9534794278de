"""Where time is spent: the line that samples saw, else the function by its first line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.build import MAIN, PID, US, Build
from tests.support.captures import shared

from stepscope.activity.locations import Where, function_at, is_framework_function
from stepscope.api import Job
from stepscope.breakdown.explain import explain


@pytest.mark.parametrize(
    ("traced", "output"),
    [
        ("train.py(99): step", "step() train.py:99"),
        ("/x/a (1)/train.py(7): <lambda>", "<lambda>() /x/a (1)/train.py:7"),
        ("train.py(134): <module>", "<module> train.py"),
        ("<built-in method to of Tensor object>", "<built-in method to of Tensor object>"),
    ],
)
def test_a_function_is_named_by_its_first_line(traced: str, output: str) -> None:
    assert function_at(traced) == output


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("torch/nn/modules/module.py(1755): _call_impl", True),
        ("/usr/lib/python3/dist-packages/torch/optim/adam.py(1): step", True),
        ("/tmp/torchinductor_root/ov/cov463.py(2533): call", True),
        ("triton/runtime/jit.py(600): run", True),
        ("/opt/torch/jobs/train.py(5): step", False),
        ("transformers/models/bert/modeling_bert.py(1): forward", False),
    ],
)
def test_frames_of_the_framework(text: str, framework: bool) -> None:
    assert is_framework_function(text) == framework


def sampled(build: Build, times: list[float], line: int, stack: int) -> None:
    for at in times:
        build._add("cpu_sample", time_ns=round(at * US), process_id=PID, thread_id=MAIN,
                   stack_id=stack)  # fmt: skip
    frames = [("main", "/opt/torch/jobs/train.py", 3), ("step", "/opt/torch/jobs/train.py", line),
              ("_call_impl", "/v/site-packages/torch/nn/modules/module.py", 1755)]  # fmt: skip
    for depth, (function, module, number) in enumerate(frames):
        build._add("stack_frame", stack_id=stack, depth=depth, function=function, module=module,
                   line=number)  # fmt: skip


def place(build: Build, folder: Path) -> Where:
    trace = build.trace(folder)
    (e,) = explain(trace.frame, trace.meta)
    rows = e.segments_of("host_compute")
    return e.places.of(e.gaps.segments["start_ns"][rows], e.gaps.segments["end_ns"][rows])


def run() -> Build:
    build = Build()
    for i in range(8):
        at = 20_000.0 * i
        build.range(at, at + 20_000, f"step {i}")
        build.python(at, at + 20_000, "/opt/torch/jobs/train.py(90): step")
        for k in range(40):
            build.kernel(at + 60 + 50 * k, at + 110 + 50 * k, call=(at + 4 * k, at + 4 * k + 3))
    return build


def test_samples_tell_the_line(tmp_path: Path) -> None:
    build = run()
    sampled(build, [20_000.0 * i + 10_000 for i in range(6)], 118, stack=1)
    sampled(build, [20_000.0 * i + 500 for i in range(8)], 95, stack=2)  # while the device works
    found = place(build, tmp_path)
    assert found.source == "train.py:118"
    assert found.function == "step() /opt/torch/jobs/train.py:90"


def test_without_samples_there_is_no_line(tmp_path: Path) -> None:
    found = place(run(), tmp_path)
    assert (found.source, found.function) == (None, "step() /opt/torch/jobs/train.py:90")


def test_two_samples_are_too_few(tmp_path: Path) -> None:
    build = run()
    sampled(build, [10_000, 30_000], 118, stack=1)
    assert place(build, tmp_path).source is None


def test_kernels_belong_to_the_line_of_the_nearest_sample(tmp_path: Path) -> None:
    """Without traced functions; a sample speaks for what lies nearer to it than to the next."""
    build = Build()
    for i in range(10):
        for k in range(10):
            at = 1_000.0 * i + 100 * k
            build.kernel(at + 8, at + (60 if k < 5 else 90), call=(at, at + 4))
    sampled(build, [1_000.0 * i + 200 for i in range(10)], 11, stack=1)
    sampled(build, [1_000.0 * i + 700 for i in range(10)], 22, stack=2)
    trace = build.trace(tmp_path)
    (e,) = explain(trace.frame, trace.meta)
    who = e.kernels.attribution
    lines = [who.source_text(int(code)) for code in who.source[20:30]]
    file = "train.py"
    assert lines == [f"{file}:11"] * 5 + [f"{file}:22"] * 5
    place = who.heaviest(np.arange(100))
    assert (place.source, place.function) == (f"{file}:22", None)


def test_sampled_lines_of_a_real_run() -> None:
    """29 samples of the main thread in ten steps, all of the program's own file."""
    job = Job([shared("h200-2/run_steps10.own.tar.xz")])
    rows = job.query(
        "SELECT source, count(*) AS n FROM kernel_category GROUP BY source"
    ).to_pylist()
    named = {row["source"]: row["n"] for row in rows if row["source"]}
    assert named
    assert all(source.startswith("train.py:") for source in named)
    assert sum(named.values()) > 0.75 * sum(row["n"] for row in rows)
    # a line belongs to one phase: no sample speaks for kernels of another range
    phases = job.query(
        "SELECT source, count(DISTINCT phase) AS n FROM kernel_category WHERE source IS NOT NULL "
        "GROUP BY source"
    ).to_pylist()
    assert {row["n"] for row in phases} <= {0, 1}
