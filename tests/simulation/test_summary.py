"""Where a predicted step goes, by hand; times in ns."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.simulation.result import StepBudget
from stepscope.simulation.summary import _unfelt, split_step


@pytest.mark.parametrize(
    ("replayed", "step", "expected"),
    [
        # two steps of 60 + 0 + 10 + 30: the kernels take what they take, the rest is waiting
        ((120, 0, 20, 60), 100, (60, 0, 10, 30)),
        ((120, 0, 20, 60), 150, (60, 0, 10, 80)),
        ((120, 0, 20, 60), 75, (60, 0, 10, 5)),
        # a collective waits for the other ranks: it shares the rest with idle time
        ((120, 40, 20, 20), 130, (60, 40, 10, 20)),
        ((120, 40, 20, 20), 85, (60, 10, 10, 5)),
        # less than the kernels take: all in proportion
        ((120, 0, 20, 60), 50, (30, 0, 5, 15)),
    ],
)
def test_a_step_of_another_length_waits_for_another_time(
    replayed: tuple[int, ...], step: int, expected: tuple[int, ...]
) -> None:
    budget = split_step(np.array(replayed), 2, step, 1.0)
    assert budget == StepBudget(*expected)


def test_the_error_of_the_replay_is_in_all_parts() -> None:
    assert split_step(np.array([50, 0, 0, 50]), 1, 200, 2.0) == StepBudget(100, 0, 0, 100)


def test_work_that_the_step_does_not_wait_for_is_said_to_become_idle_time() -> None:
    now = StepBudget(60_000_000, 0, 0, 40_000_000)
    (text,) = _unfelt(now, StepBudget(50_000_000, 0, 0, 46_000_000))
    assert "10.0 ms less to do, and the step is only 4.0 ms shorter" in text
    assert _unfelt(now, StepBudget(50_000_000, 0, 0, 40_000_000)) == []
    assert _unfelt(now, StepBudget(60_000_000, 0, 0, 20_000_000)) == []
