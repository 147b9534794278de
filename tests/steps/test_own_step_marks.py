"""Steps that ``stepscope run`` marked, beside marks of the program and an end of the recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.build import Build
from tests.support.captures import shared

from stepscope.activity.device import gpus
from stepscope.api import Job
from stepscope.steps.detection import find_steps
from stepscope.steps.kinds import Workload


def test_the_recorders_marks_win_over_ranges_of_the_same_name(tmp_path: Path) -> None:
    build = Build()
    for i in range(6):
        at = i * 1000
        build.range(at, at + 998, f"step_{i}", domain="stepscope")
        # the program counts from its own start, and its loop begins elsewhere in the step
        if i < 5:
            build.range(at + 300, at + 1290, f"step_{i + 5}")
        build.kernel(at + 20, at + 700, call=(at + 5, at + 15))
    build.range(5300, 20_000, "step_10", closed=False, end_missing=True)
    trace = build.trace(tmp_path)
    gpu = gpus(trace.frame)[0]
    steps, bounds = find_steps(gpu, Workload("unknown", ""), 0)
    assert steps.begin_ns.tolist() == [i * 1_000_000 for i in range(6)]
    lengths = np.diff(bounds)
    assert lengths.tolist() == [1_000_000] * 5 + [998_000]


@pytest.fixture
def recorded() -> Path:
    return shared("h200-2/run_steps10.own.tar.xz")


def test_ten_recorded_steps_are_ten_steps(recorded: Path) -> None:
    found = Job([str(recorded)]).diagnose()
    assert found.trace.steps == 10
    # ten steps of some 30 ms, of a program that takes 26 to 30 ms where nothing records it
    assert 25e6 < found.step_ns.median < 32e6
    assert found.findings[0].cause == "host_sync"
    assert "step_jitter" not in {one.cause for one in found.findings}
