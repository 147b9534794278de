"""How the walk judges a command, without a GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.walk.walk import Walked, _judge_capture, answer_in


def answer(steps: int, median_ns: int, **more: Any) -> dict[str, Any]:
    return {
        "schema": "stepscope.diagnosis/2",
        "trace": {"steps": steps, "steady_steps": [1, steps - 1]},
        "step_ns": {"median": median_ns},
        "verdict": "launch_bound",
        "findings": [],
        "warnings": [],
        **more,
    }


def judged(out: str) -> Walked:
    found = Walked(["stepscope", "run"], "gpt", code=0, out=out)
    found.times = [5_000_000 + 1_000_000 * i for i in range(60)]
    _judge_capture(found, ["stepscope", "run"])
    return found


@pytest.mark.parametrize("indent", [None, 2])
def test_the_answer_is_read_behind_what_the_program_printed(indent: int | None) -> None:
    reply = answer(60, 1_000_000)
    out = '{"loss": 3}\nepoch 1\n' + json.dumps(reply, indent=indent) + "\n"
    assert answer_in(out) == reply
    assert not judged(out).wrong


@pytest.mark.parametrize(
    ("steps", "median_ns", "wrong"),
    [
        (60, 1_090_000, ""),
        (60, 1_200_000, "steps of 1.20 ms instead of 1.00 ms"),
        (1, 60_000_000, "1 steps instead of 60"),
    ],
)
def test_other_steps_than_the_program_says(steps: int, median_ns: int, wrong: str) -> None:
    found = judged(json.dumps(answer(steps, median_ns), indent=2))
    assert (wrong in found.wrong) if wrong else not found.wrong


def test_no_answer_is_wrong() -> None:
    assert "gives no JSON" in judged("epoch 1\n").wrong[0]
