"""Wherever the Python interface takes several paths or names, it takes one as well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.build import Build

from stepscope.api import Job
from stepscope.api.history import history_add, history_entries
from stepscope.api.reports import known_reports, known_rules, rule_requests, stats_requests
from stepscope.api.runs import Pair, compare_runs, gate_runs, profiles_of, trend_of_runs
from stepscope.trace.errors import UsageError
from stepscope.trace.given import listed


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of five steps."""
    build = Build()
    for step in range(5):
        begin = step * 1000.0
        build.range(begin, begin + 1000, f"step {step}")
        for number in range(5):
            at = begin + 10 + number * 190
            build.kernel(at, at + 150, call=(at - 5, at - 3))
    return build.trace(tmp_path_factory.mktemp("given")).folder


def test_one_or_several() -> None:
    assert listed("ab") == ["ab"]
    assert listed(Path("ab")) == [Path("ab")]
    assert listed(("a", "b")) == ["a", "b"]
    assert listed(path for path in ("a",)) == ["a"]
    assert listed(()) == []


def test_a_job_takes_a_text_or_a_path(capture: Path) -> None:
    paths = [Job(given).paths for given in (str(capture), capture, [capture], (str(capture),))]
    assert paths == [[str(capture)]] * 4


def test_a_job_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no path is given"):
        Job([])


def test_runs_take_a_text_or_a_path(capture: Path) -> None:
    text = str(capture)
    usual = compare_runs([[text]], [[text]])
    for before, after in ((text, capture), ([capture], text), ([[capture]], [[text]])):
        assert compare_runs(before, after).step == usual.step
    assert len(trend_of_runs([text, capture, [text]]).rows) == 3
    assert len(profiles_of(capture)) == len(profiles_of(text)) == 1
    assert Pair(capture, text).comparison.step == usual.step
    with pytest.raises(UsageError, match="two runs"):
        compare_runs(text, [])


def test_a_gate_takes_a_text_or_a_path(capture: Path, tmp_path: Path) -> None:
    stored = tmp_path / "baseline.json"
    gate_runs(capture, save_baseline=stored)
    assert len(json.loads(stored.read_text())["runs"]) == 1
    result = gate_runs(str(capture), baseline=stored, budgets="step_ms=1000")
    assert [check.name for check in result.checks] == ["baseline", "step_ms"]


def test_a_history_takes_a_text_or_a_path(capture: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "h.sqlite", str(tmp_path / "h.sqlite")):
        assert len(list(history_add(place, capture, name="run", revision=""))) == 1
    assert len(history_entries(tmp_path / "h.sqlite")) == 2


def test_requests_take_one_name() -> None:
    assert [r.report.name for r in stats_requests("cuda_gpu_sum", known_reports())] == [
        "cuda_gpu_sum"
    ]
    name = next(iter(known_rules()))
    assert [r.report.name for r in rule_requests(name)] == [name]
