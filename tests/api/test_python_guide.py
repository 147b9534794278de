"""The guide's examples run, and notebooks show results without trusting a trace's text."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.build import Build

import stepscope
from stepscope.api.inputs import bundled_capture
from stepscope.simulation import LaunchesFree

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "python.md"


def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run.sqlite", "after.sqlite"):
        shutil.copy(bundled_capture(), name)
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    known: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), known)
    output = capsys.readouterr().out
    assert output.startswith("input_starvation ")
    assert "no_difference" in output
    assert 0 < known["busy"] < 1
    assert known["longest"]
    assert known["by_cause"].num_rows == len(set(known["job"].gaps["cause"].to_pylist()))
    assert known["kernels"].num_rows


def test_what_the_guide_names_is_there() -> None:
    job = stepscope.open(bundled_capture())
    named = re.findall(r"`job\.(\w+)", GUIDE.read_text())
    assert len(named) > 15
    for name in named:
        getattr(job, name)


def test_a_notebook_escapes_what_a_trace_says(tmp_path: Path) -> None:
    build = Build()
    for step in range(6):
        at = 1_000_000 * step
        build.range(at, at + 900_000, f"step_{step}")
        build.range(at, at + 700_000, "<script>alert(1)</script>")
        build.kernel(
            at + 800_000, at + 850_000, name="<img src=x>", call=(at + 710_000, at + 720_000)
        )
    (folder := tmp_path / "<b>").mkdir()
    job = stepscope.open(build.trace(folder).folder)
    for shown in (job, job.diagnose(), job.whatif([LaunchesFree()]), job.compare(job)):
        html = shown._repr_html_()
        assert html.startswith("<table>")
        assert set(re.findall(r"<[^>]*>", html)) <= {
            *("<table>", "</table>", "<caption>", "</caption>", "<tr>", "</tr>", "<th>", "</th>"),
            *("<td>", "</td>"),
        }
    assert "&lt;b&gt;" in job._repr_html_()
