"""How the walk judges a command, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.walk.documented import Command
from tests.walk.walk import Walked, _judge_capture, answer_in, read_with


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("compare before1 after1", ["compare", "HERE", "HERE"]),
        ("whatif base.json --with double.json@batch=2x",
         ["whatif", "HERE", "--with", "HERE@batch=2x"]),
        ("gate run.sqlite --baseline main.json", ["gate", "HERE", "--baseline", "main.json"]),
        ("export run.json -o other.json", ["export", "HERE", "-o", "other.json"]),
        ("memory snapshot.pickle", None),
        ("kernels report.ncu-rep", None),
    ],
)  # fmt: skip
def test_captures_stand_in_for_the_files_that_a_page_names(
    text: str, words: list[str] | None, tmp_path: Path
) -> None:
    (tmp_path / "main.json").touch()  # an earlier command of the page wrote it
    command = Command("page.md", ("stepscope", *text.split()))
    found = read_with(command, Path("HERE"), None, tmp_path)
    assert found == (words and ["stepscope", *words])
