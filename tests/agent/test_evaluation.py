"""The evaluation of agents: the scripted one on some cases, and the loop with a model."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.captures import DATA, unpack

from stepscope.agent.session import Session

FOLDER = Path(__file__).parents[2] / "benchmarks" / "agents"
MODULES = ("cases", "bench", "policy", "model", "evaluate")


@pytest.fixture(scope="module")
def harness() -> Iterator[Any]:
    """The modules of the evaluation, which are scripts and no package."""
    before = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    yield {name: importlib.import_module(name) for name in MODULES}
    sys.path[:] = before
    for name in (*MODULES, "store", "columns", "program"):
        sys.modules.pop(name, None)


def case_of(harness: Any, file: str, answer: str, ratio: float | None = None) -> Any:
    path = unpack(DATA / "nsys" / f"{file}.sqlite.xz")
    return harness["cases"].Case(file, "planted", (path,), answer, ratio=ratio)


def judged(harness: Any, case: Any, answers: Any) -> Any:
    bench = harness["bench"]
    desk = bench.desk_for(case)
    return bench.scored(case, answers(case, desk), desk)


@pytest.mark.parametrize(
    ("file", "answer"),
    [
        ("cnn_disk", "input_starvation"),
        ("gpt1024_alloc_churn", "allocator_churn"),
        ("gpt1024_healthy", "healthy"),
    ],
)
def test_the_scripted_agent_is_right_within_the_budget(
    harness: Any, file: str, answer: str
) -> None:
    score = judged(harness, case_of(harness, file, answer), harness["policy"].scripted)
    assert score.right
    assert score.within_budget


def test_pairs_of_the_exam_are_cases(harness: Any, tmp_path: Path) -> None:
    """The first by name, whose answer is what was planted."""
    case = next(harness["cases"]._exam(tmp_path))
    truth = json.loads((harness["cases"].CAPTURES / f"{case.name.split()[0]}.json").read_text())
    assert (case.kind, case.answer) == ("exam", truth["cause"])
    assert case.ratio == pytest.approx(
        sum(truth["after"]["mean_ms"]) / len(truth["after"]["mean_ms"])
        / (sum(truth["before"]["mean_ms"]) / len(truth["before"]["mean_ms"]))
        / truth.get("samples", 1.0)
    )  # fmt: skip
    assert all(path.exists() for path in case.paths)


def test_what_cannot_be_told_is_not_guessed(harness: Any, tmp_path: Path) -> None:
    found = harness["cases"]._unanswerable(tmp_path)
    names = []
    for case in (one for one in found if "rank" not in one.name):
        score = judged(harness, case, harness["policy"].scripted)
        assert (score.verdict, score.right, score.within_budget) == ("unknown", True, True)
        names.append(case.name)
    assert names == ["no GPU work", "an empty file"]


def test_a_prediction_is_scored_as_a_ratio(harness: Any) -> None:
    bench, case = harness["bench"], case_of(harness, "cnn_disk", "host_sync", ratio=0.5)
    desk = bench.Desk(Session([case.paths[0].parent]))
    near = bench.Answer("host_sync", 0.54, (0.4, 0.6))
    far = bench.Answer("host_sync", 0.6, (0.55, 0.65), unreliable=True)
    other = bench.Answer("input_starvation", 0.5, (0.4, 0.6))
    scores = [bench.scored(case, answer, desk) for answer in (near, far, other)]
    assert [(s.right, s.near, s.holds) for s in scores] == [
        (True, True, True),
        (True, False, False),
        (False, None, None),
    ]


class Scripted:
    """An endpoint whose model calls a tool, then one that is not there, then answers."""

    def __init__(self, last: str) -> None:
        self.heard: list[dict[str, Any]] = []
        self._last = last

    def next_message(self, messages: list[dict[str, Any]], last: bool) -> dict[str, Any]:
        self.heard = messages
        path = json.loads(messages[-1]["content"].split("Capture: ")[1].split(". End")[0]) if (
            len(messages) < 4 and messages[-1]["role"] == "user"
        ) else ""  # fmt: skip
        if path:
            called = {"name": "diagnose", "arguments": json.dumps({"capture": path})}
            return {"role": "assistant", "tool_calls": [{"id": "1", "function": called}]}
        if messages[-1].get("tool_call_id") == "1":
            called = {"name": "nothing", "arguments": "not JSON"}
            return {"role": "assistant", "tool_calls": [{"id": "2", "function": called}]}
        return {"role": "assistant", "content": self._last}


def test_a_model_is_asked_with_and_without_the_skill(harness: Any) -> None:
    case = case_of(harness, "cnn_disk", "input_starvation")
    last = 'It is {"verdict": "input_starvation", "predicted_over_present_step": 0.6}'
    for skill in (True, False):
        endpoint = Scripted(last)

        def answers(one: Any, desk: Any, endpoint: Any = endpoint, skill: bool = skill) -> Any:
            return harness["model"].asked(one, desk, endpoint, skill=skill)

        score = judged(harness, case, answers)
        assert (score.right, score.calls) == (True, 2)
        system = [m for m in endpoint.heard if m["role"] == "system"]
        assert bool(system) == skill
        answered = [json.loads(m["content"]) for m in endpoint.heard if m["role"] == "tool"]
        assert answered[0]["verdict"] == "input_starvation"
        assert "no tool nothing" in answered[1]["error"]


@pytest.mark.parametrize(
    ("text", "verdict", "ratio"),
    [
        ('so {"verdict": "gpu_bound_healthy"}', "healthy", None),
        (
            '{"a": 1} {"verdict": "host_sync", "predicted_over_present_step": 0.5}',
            "host_sync",
            0.5,
        ),
        ('{"verdict": "x", "predicted_over_present_step": true}', "x", None),
        ("I do not know", "unknown", None),
        ('{"verdict": broken}', "unknown", None),
    ],
)
def test_the_last_json_of_an_answer_counts(
    harness: Any, text: str, verdict: str, ratio: float | None
) -> None:
    found = harness["model"].concluded(text)
    assert (found.verdict, found.ratio) == (verdict, ratio)
