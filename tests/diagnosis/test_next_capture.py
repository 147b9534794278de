"""Captures that findings ask for can be made of the program that the trace is of."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.build import Build

from stepscope.api import Job
from stepscope.diagnosis import captures, frameworks


def reading_back(tmp_path: Path, kernel: str) -> Job:
    """A loop that reads a value back in each step, and then thinks."""
    b = Build()
    for step in range(10):
        at = 2_000.0 * step
        b.copy(at + 5, at + 50, call=(at, at + 4))
        b.kernel(at + 60, at + 800, call=(at + 10, at + 14), name=kernel)
        b.copy(at + 801, at + 803, kind="DtoH", size=4, dst="pageable", call=(at + 20, at + 1_000))
    return Job([b.trace(tmp_path).folder])


@pytest.mark.parametrize(
    ("kernel", "stacks"),
    [("flash_bwd_kernel", captures.STACKS), ("paged_attention", captures.SAMPLES),
     ("gemm", captures.SAMPLES)],
)  # fmt: skip
def test_steps_of_an_optimizer_are_asked_for_where_there_is_one(
    kernel: str, stacks: str, tmp_path: Path
) -> None:
    job = reading_back(tmp_path, kernel)
    case = job.explained.cases[0]
    assert frameworks.for_program(captures.STACKS, case) == stacks
    asked = [f.next_capture for f in job.diagnose().findings if f.next_capture]
    assert asked
    assert (captures.STACKS in asked) == (stacks == captures.STACKS)
    examine = "stepscope run --backend ncu --examine CAPTURE --steps 1 -- python train.py"
    without = examine.replace(" --steps 1", "")
    expected = examine if stacks == captures.STACKS else without
    assert frameworks.for_program(examine, case) == expected
    assert frameworks.for_program(captures.WAITS, case) == captures.WAITS
