"""Budgets, the baseline, what CI systems are given, and files that survive."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.compare.profiles import kernel, profile
from tests.support.captures import DATA, unpack

from stepscope.api.runs import gate_runs
from stepscope.compare import stored
from stepscope.compare.budgets import BUDGETS, Rules, read_rules, with_limits
from stepscope.compare.gate import GateResult, gate
from stepscope.compare.profile import Profile
from stepscope.compare.stored import read_baseline, write_baseline
from stepscope.render import gate as render
from stepscope.trace.errors import InputError, StorageError, UsageError

GOLDEN = DATA.parent / "baseline-1.json"


def nothing(_: object) -> float:
    raise AssertionError("no figure was asked for")


def run(ms: float, *, idle: float = 0.0, **more: Any) -> Profile:
    busy, wait = [round((ms - idle) * 1e6)] * 10, [round(idle * 1e6)] * 10
    wall = [a + b for a, b in zip(busy, wait, strict=True)]
    return profile(wall, parts={"compute": busy, "idle:host_sync": wait}, **more)


def judged(after: list[Profile], before: list[Profile], **rules: Any) -> GateResult:
    return gate(after, before, Rules(**rules), nothing)


# --- budgets -------------------------------------------------------------------------------------


def test_every_budget_is_held_against_its_figure() -> None:
    figures = {"kernels_per_step": 5.0, "launches_per_step": 7.0, "peak_memory_bytes": 9.0}
    parts = {
        "compute": [4_000_000] * 4,
        "exposed_communication": [1_000_000] * 4,
        "exposed_copy": [2_000_000] * 4,
        "idle:host_sync": [3_000_000] * 4,
    }
    one = profile([10_000_000] * 4, parts=parts, figures=figures)
    expected = {
        "step_ms": 10, "idle_share": 0.3, "exposed_communication_ms": 1,
        "exposed_communication_share": 0.1, "exposed_copy_ms": 2, "peak_memory_bytes": 9,
        "kernels_per_step": 5, "launches_per_step": 7,
    }  # fmt: skip
    assert expected.keys() == BUDGETS.keys()
    for name, value in expected.items():
        assert judged([one], [], limits={name: value}).passed
        found = judged([one], [], limits={name: value * 0.99})
        assert not found.passed
        assert found.checks[0].value == pytest.approx(value)


def test_what_a_capture_cannot_tell_fails_unless_it_may() -> None:
    found = judged([run(10)], [], limits={"peak_memory_bytes": 1})
    assert [c.status for c in found.checks] == ["cannot_tell"]
    assert "profile_memory" in found.checks[0].message
    assert not found.passed
    assert judged([run(10)], [], limits={"peak_memory_bytes": 1}, allow_missing=True).passed


def test_without_a_question_there_is_no_verdict() -> None:
    with pytest.raises(UsageError, match="nothing to check"):
        judged([run(10)], [])


# --- against a baseline --------------------------------------------------------------------------


def test_a_slowdown_fails_with_what_moved() -> None:
    after = run(13, idle=3, kernels=[kernel("k", 400_000)])
    found = judged([after], [run(10)])
    assert [c.status for c in found.checks] == ["fail"]
    assert [c.name for c in found.causes] == ["idle:host_sync"]
    assert found.kernels
    assert not found.passed


def test_what_is_faster_or_noise_or_small_passes() -> None:
    for ms in (8, 10, 10.1, 10.4):
        assert judged([run(ms)], [run(10)]).passed, ms
    repeats = [run(ms) for ms in (10, 10.01, 9.99, 10.0)]
    assert judged([run(10.15)] * 2, repeats).passed  # real, but under the smallest effect
    assert not judged([run(10.15)] * 2, repeats, min_effect=0.01).passed


def test_a_slower_host_fails_nothing_but_is_said() -> None:
    def on(launch: float, ms: float, idle: float) -> Profile:
        figures = {"launch_ns": launch, "host_paced_idle_ns": idle * 1e6}
        return run(ms, idle=idle, figures=figures)

    found = judged([on(5600, 13, 3.2)], [on(4000, 10, 0)])
    assert [c.status for c in found.checks] == ["cannot_tell"]
    assert "host_pace" in found.checks[0].message
    assert found.passed


def test_a_capture_without_steps_is_neither_slower_nor_faster() -> None:
    found = judged([run(30, setup={"steps_found_by": "whole_capture"})], [run(10)])
    (check,) = found.checks
    assert (check.status, check.value) == ("cannot_tell", None)
    assert "no repeating step was found" in check.message


# --- the file of budgets -------------------------------------------------------------------------

TOML = """
[gate]
min_effect = 0.05
alpha = 0.02
allow_missing = true

[gate.budget]
step_ms = 25

[[gate.figure]]
name = "longest gap, ns"
sql = "SELECT max(end_ns - start_ns) FROM idle_gap"
max = 1e6

[[gate.cell]]
name = "time of the longest kernel, ns"
report = "cuda_gpu_kern_sum"
column = "Total Time (ns)"
min = 1
"""


def test_rules_are_read(tmp_path: Path) -> None:
    file = tmp_path / "stepscope.toml"
    file.write_text(TOML)
    rules = with_limits(read_rules(file), ["idle_share=0.5", "step_ms=30"])
    assert rules.limits == {"step_ms": 30, "idle_share": 0.5}
    assert (rules.min_effect, rules.alpha, rules.allow_missing) == (0.05, 0.02, True)
    assert rules.figures[0].high == 1e6
    assert rules.cells[0].low == 1
    assert rules.source == str(file)


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("[gate", "is no TOML"),
        ("gate = 1", "must be a table"),
        ("[gate]\nfoo = 1", "knows no 'foo'"),
        ("[gate.budget]\nfoo = 1", "no budget 'foo'"),
        ("[gate.budget]\nstep_ms = 'x'", "must be a number"),
        ("[gate.budget]\nstep_ms = nan", "must be a number"),
        ("[gate.budget]\nstep_ms = inf", "must be a number"),
        (f"[gate.budget]\nstep_ms = 1{'0' * 400}", "must be a number"),
        (f"x = {'9' * 5000}", "is no TOML"),
        (f"x = {'[' * 100_000}", "nested too deeply"),
        (f"{'a.' * 2000}a = 1", "line 1 of .* has more than 1000 dots"),
        ("\n" * (1 << 20) + "x", "is too large"),
        ("[gate]\nalpha = 2", "must be a share"),
        ("[gate]\nallow_missing = 1", "true or false"),
        ("[[gate.figure]]\nname = 'x'\nmax = 1", "needs sql"),
        ("[[gate.figure]]\nname = 'x'\nsql = 'SELECT 1'", "needs max or min"),
        ("[gate]\nfigure = 1", "must be tables"),
        ("[gate]\nbudget = 1", "must be a table"),
    ],
)
def test_wrong_rules_are_one_sentence(text: str, output: str, tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=output):
        read_rules(file)


@pytest.mark.parametrize("text", ["step_ms", "step_ms=x", "foo=1", "idle_share=25"])
def test_wrong_limits_are_one_sentence(text: str) -> None:
    with pytest.raises(UsageError):
        with_limits(Rules(), [text])


# --- on a capture --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(DATA / "nsys" / "cnn_small.sqlite.xz", tmp_path_factory.mktemp("gate"))


def test_figures_and_cells_of_a_capture(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stepscope.toml").write_text(TOML)
    found = gate_runs([str(capture)])
    assert [c.name for c in found.checks] == [
        "step_ms", "longest gap, ns", "time of the longest kernel, ns",
    ]  # fmt: skip
    status = {c.name: c.status for c in found.checks}
    assert status["step_ms"] == "pass"
    assert status["longest gap, ns"] == "fail"
    assert status["time of the longest kernel, ns"] == "pass"
    wrong = TOML.replace("Total Time (ns)", "Nonsense").replace("FROM idle_gap", "FROM nowhere")
    (tmp_path / "stepscope.toml").write_text(wrong)
    found = gate_runs([str(capture)])
    assert [c.status for c in found.checks] == ["pass", "cannot_tell", "cannot_tell"]


def test_a_baseline_grows_and_passes_its_own_runs(capture: Path, tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    first = gate_runs([str(capture)], save_baseline=str(file))
    assert first.passed
    assert len(read_baseline(file).runs) == 1
    again = gate_runs([str(capture)], baseline=[str(file)], save_baseline=str(file))
    assert again.passed
    assert len(read_baseline(file).runs) == 2
    assert file.stat().st_size < 300_000


# --- what CI systems are given -------------------------------------------------------------------


def failed() -> GateResult:
    evil = "a]]>&<b>\x00\x1b::error::x%\nb"
    return gate(
        [run(20, idle=10, setup={evil: "1"})], [run(10)],
        Rules(limits={"step_ms": 1, "peak_memory_bytes": 1}, source="stepscope.toml"), nothing,
    )  # fmt: skip


def test_junit_counts_and_parses() -> None:
    root = ET.fromstring(render.junit(failed()))
    assert root.attrib == {"tests": "3", "failures": "2", "errors": "1", "skipped": "0"}
    cases = root.findall("testsuite/testcase")
    assert [case.attrib["name"] for case in cases] == ["baseline", "step_ms", "peak_memory_bytes"]
    assert "host_sync" in str(cases[0].findtext("failure"))
    passed = ET.fromstring(render.junit(judged([run(1)], [], limits={"step_ms": 2})))
    assert passed.attrib["failures"] == "0"


def test_annotations_are_one_line_each() -> None:
    lines = render.github(failed()).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::error", "::error", "::warning"]
    assert all(line.count("::") == 2 for line in lines)
    assert "file=stepscope.toml" in lines[0]
    assert render.github(judged([run(1)], [], limits={"step_ms": 2})) == ""


def test_code_quality_has_what_gitlab_asks_for() -> None:
    entries = json.loads(render.gitlab(failed()))
    assert len({entry["fingerprint"] for entry in entries}) == 3
    for entry in entries:
        assert entry["description"]
        assert entry["severity"] in ("major", "minor")
        assert entry["location"] == {"path": "stepscope.toml", "lines": {"begin": 1}}


def test_text_and_markdown_say_it() -> None:
    for text in (render.gate_text(failed()), render.gate_markdown(failed())):
        assert "Failed: 2 of 3 checks fail, 1 cannot be told" in text
        assert "\x1b" not in text


# --- baselines survive ---------------------------------------------------------------------------


def test_a_baseline_of_the_first_version_is_still_read() -> None:
    """The file was written when the version was new; it must be readable for ever."""
    baseline = read_baseline(GOLDEN)
    assert [round(r.step_ns) for r in baseline.runs] == [10014720]
    assert judged(baseline.runs, baseline.runs).passed
    # what ranges launched was counted by the innermost one alone, which is no figure of today
    assert {place.device_ns for place in baseline.runs[0].ranges} == {None}


def test_older_profiles_are_upgraded_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "base.json"
    write_baseline(file, [run(10)], "0.1")
    monkeypatch.setattr(stored, "PROFILE_SCHEMA", "stepscope.profile/5")
    monkeypatch.setitem(stored.UPGRADES, 3, lambda d: {**d, "verdict": d["verdict"] + " 4"})
    monkeypatch.setitem(stored.UPGRADES, 4, lambda d: {**d, "verdict": d["verdict"] + " 5"})
    (one,) = read_baseline(file).runs
    assert one.verdict == "gpu_bound_healthy 4 5"
    assert one.schema == "stepscope.profile/5"


def test_every_earlier_version_has_an_upgrade() -> None:
    current = int(stored.PROFILE_SCHEMA.rpartition("/")[2])
    assert set(stored.UPGRADES) == set(range(1, current))


def damaged(change: Any) -> bytes:
    document = json.loads(
        msgspec.json.encode(stored.Baseline(stored.BASELINE_SCHEMA, "0.1", [run(10)]))
    )
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("content", "output"),
    [
        (b"{", "is no baseline, or a damaged one"),
        (b"[]", "is no baseline"),
        (damaged(lambda d: d.update(schema="stepscope.baseline/99")), "later Stepscope"),
        (damaged(lambda d: d.update(schema="other/1")), "does not say"),
        (damaged(lambda d: d.update(runs=[])), "holds no run"),
        (damaged(lambda d: d.update(runs=[1])), "is damaged"),
        (damaged(lambda d: d["runs"][0].update(schema="stepscope.profile/99")), "later Stepscope"),
        (damaged(lambda d: d["runs"][0].pop("wall_ns")), "is damaged"),
        (damaged(lambda d: d["runs"][0].update(wall_ns=[0] * 10)), "no time"),
        (damaged(lambda d: d["runs"][0]["parts_ns"].update(compute=[1])), "parts of its steps"),
        (damaged(lambda d: d["runs"][0]["wall_ns"].__setitem__(0, 2)), "do not sum"),
        (damaged(lambda d: d["runs"][0]["figures"].update(x=-1e300)), "out of all bounds"),
        (damaged(lambda d: d["runs"][0].update(sequence=[7])), "fewer kernels"),
        (damaged(lambda d: d.update(schema="stepscope.baseline/" + "9" * 5000)), "does not say"),
        (b'{"runs": "\xe9"}', "no UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"runs": ' + b"9" * 5000 + b"}", "is no baseline"),
    ],
)
def test_a_damaged_baseline_is_one_sentence(content: bytes, output: str, tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=output):
        read_baseline(file)


def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "base.json"
    write_baseline(file, [run(10)], "0.1")
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        write_baseline(file, [run(20)], "0.1")
    assert file.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["base.json"]
    with pytest.raises(StorageError):
        write_baseline(tmp_path / "no" / "such.json", [run(10)], "0.1")


def add_some(file: Path, first: int) -> None:
    for ms in range(first, first + 8):
        stored.add_to_baseline(file, [run(ms)], "0.1")


def test_two_writers_of_a_baseline_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=add_some, args=(file, first)) for first in (10, 20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    found = sorted(round(r.step_ns / 1e6) for r in read_baseline(file).runs)
    assert found == [*range(10, 18), *range(20, 28)]


def test_only_the_latest_runs_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    write_baseline(file, [run(ms) for ms in range(10, 40)], "0.1")
    runs = read_baseline(file).runs
    assert len(runs) == stored.KEPT_RUNS
    assert runs[-1].step_ns == 39e6
    shutil.copy(file, tmp_path / "copy.json")
    assert stored.is_baseline(tmp_path / "copy.json")
    assert not stored.is_baseline(tmp_path)
