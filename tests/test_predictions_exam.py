"""The exam of predictions: format of the stored pairs, arithmetic of the score, one stored pair."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepscope.api import Job
from stepscope.breakdown.repaired import OF_THE_GAIN, UNFORESEEN
from stepscope.diagnosis.cause import causes
from stepscope.diagnosis.lever import levers
from stepscope.diagnosis.result import FurtherRepair, ProfilerOverhead

EXAM = Path(__file__).parents[1] / "benchmarks" / "predictions"
CAPTURES = EXAM / "captures"
MOST_BYTES = 50_000_000


@pytest.fixture(scope="module")
def exam() -> Iterator[Any]:
    """The modules of the exam, which are scripts and no package."""
    sys.path.insert(0, str(EXAM))
    names = (
        "columns",
        "program",
        "cores",
        "timing",
        "gates",
        "store",
        "first_seen",
        "score",
        "sides",
    )
    modules: dict[str, Any] = {name: importlib.import_module(name) for name in names}
    modules["cores"].PINS = False  # the tests' own threads stay where they are
    yield modules
    sys.path.remove(str(EXAM))
    for name in names:
        sys.modules.pop(name, None)


def test_kernels_of_both_sides_stay_go_or_come(exam: Any) -> None:
    """Of three sums two stay, 10 us slower each; a copy goes, a product of another size comes."""

    def kernel(name: str, us: float, grid: int) -> tuple[float, float, str, list[int], list[int]]:
        return 0.0, us, name, [grid], [128]

    before = [kernel("sum", 100.0, 8)] * 3 + [kernel("copy", 50.0, 8), kernel("gemm", 400.0, 132)]
    after = [kernel("sum", 110.0, 8)] * 2 + [kernel("gemm", 200.0, 66)]
    gone, come, same = exam["sides"].differences(before, after)
    assert [(us, count, name) for us, count, name, _ in gone] == [
        *((400.0, 1, "gemm"), (100.0, 1, "sum"), (50.0, 1, "copy"))
    ]
    assert come == [(200.0, 1, "gemm", "[66] [128]")]
    assert same == pytest.approx(20.0)


def truths() -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(CAPTURES.glob("*.json"))]


def test_stored_pairs_are_whole() -> None:
    known = {*causes(), *levers()}
    names = [truth["name"] for truth in truths()]
    assert len(names) >= 100
    for truth in truths():
        assert {truth["cause"], *truth["others"]} <= known, truth["name"]
        for side in ("before", "after"):
            times = truth[side]
            assert len(times["mean_ms"]) == len(times["steps"]) >= 2, truth["name"]
            assert min(times["mean_ms"]) > 0
        for source in truth["recorded"]:
            assert (CAPTURES / f"{truth['name']}.{source}.tar.xz").is_file(), truth["name"]
    packed = list(CAPTURES.glob("*.tar.xz"))
    assert {file.name.split(".")[0] for file in packed} == set(names)
    assert sum(file.stat().st_size for file in packed) < MOST_BYTES


def test_both_halves_are_large(exam: Any) -> None:
    halves = [exam["program"].half(truth["written_after"]) for truth in truths()]
    assert halves.count("development") >= 100
    assert halves.count("unseen") >= 10


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_what_launches_is_kept_on_one_core(exam: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cores, everywhere = exam["cores"], os.sched_getaffinity(0)
    for name, value in (("PINS", True), ("EVERYWHERE", everywhere)):
        monkeypatch.setattr(cores, name, value)
    monkeypatch.setattr(cores, "_others_go_anywhere", lambda: None)
    try:
        cores.on_a_quiet_core(rank=0, ranks=2)
        assert len(os.sched_getaffinity(0)) == 1
        half = sorted(everywhere)[: max(len(everywhere) // 2, 1)]
        assert os.sched_getaffinity(0) <= set(half)
        cores.anywhere()
        assert os.sched_getaffinity(0) == everywhere
    finally:
        os.sched_setaffinity(0, everywhere)


def test_a_trace_by_column_is_the_same(exam: Any) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1790857026123.456, "dur": 2.5}
    trace = {
        "schemaVersion": 1,
        "traceEvents": [
            event | {"args": {"External id": 7, "Input Dims": [[2, 3], []], "on": True}},
            event
            | {"ts": 1790857026125.001, "args": {"External id": 9, "Input Dims": [], "on": 1}},
            {"ph": "s", "id": 3, "ts": 1.0001},
            {"ph": "s", "id": 4, "ts": 2},
            event | {"args": {}},
            {"ph": "M", "args": "text"},
            {"ph": "M", "args": None},
            event
            | {"name": "b", "args": {"External id": 1, "Input Dims": [[2, 3], []], "on": "x"}},
        ],
    }
    text = json.dumps(trace)
    columns = exam["columns"]
    assert columns.unpacked(columns.packed(text)) == text


def result(demo: Any, predicted: int, low: int, high: int, *, cause: str, cost: int) -> Any:
    """The demo's diagnosis with another first finding, of a step of 100 ms."""
    finding = msgspec.structs.replace(
        demo.findings[0],
        cause=cause,
        time_ns_per_step=cost,
        predicted_step_ns=predicted,
        prediction_low_ns=low,
        prediction_high_ns=high,
        evidence=[],
    )
    step = msgspec.structs.replace(demo.step_ns, mean=100)
    return msgspec.structs.replace(demo, findings=[finding], levers=[], step_ns=step)


TRUTH = {
    "name": "some_pair",
    "cause": "host_sync",
    "samples": 1.0,
    "written_after": "",
    "before": {"mean_ms": [10.0, 10.0]},
    "after": {"mean_ms": [7.8, 8.2]},
}


@pytest.fixture(scope="module")
def demo() -> Any:
    from tools.docs.snippets import demo_job

    with demo_job() as job:
        return job.diagnose()


@pytest.mark.parametrize(
    ("predicted", "cost", "error", "holds", "wrong"),
    [
        ((80, 75, 85), 20, 0.0, True, []),
        ((84, 82, 90), 20, 0.05, False, []),
        ((60, 60, 90), 20, -0.25, True, ["gains more than it costs"]),
        ((101, 80, 102), 20, 0.2625, True, ["longer than the step"]),
        ((90, 70, 85), 20, 0.125, True, ["outside its own range"]),
    ],
)
def test_a_pair_is_scored(
    exam: Any,
    demo: Any,
    predicted: tuple[int, int, int],
    cost: int,
    error: float,
    holds: bool,
    wrong: list[str],
) -> None:
    diagnosis = result(demo, *predicted, cause="host_sync", cost=cost)
    row = exam["score"].scored(TRUTH, "own", diagnosis, 0.01)
    assert (row.measured, row.rank) == (0.8, 1)
    assert row.error == pytest.approx(error)
    assert (row.holds, row.wrong) == (holds, wrong)
    assert row.spread == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("repair", "error"), [("the whole step is one CUDA graph", -0.25), ("reduce-overhead", 0.0)]
)
def test_a_pair_is_scored_by_the_repair_that_was_made(
    exam: Any, demo: Any, repair: str, error: float
) -> None:
    diagnosis = result(demo, 80, 60, 85, cause="host_sync", cost=40)
    further = FurtherRepair("the whole step as one CUDA graph", 60, 55, 65)
    found = [msgspec.structs.replace(diagnosis.findings[0], further=further)]
    diagnosis = msgspec.structs.replace(diagnosis, findings=found)
    row = exam["score"].scored(TRUTH | {"repair": repair}, "own", diagnosis, None)
    assert row.error == pytest.approx(error)


@pytest.mark.parametrize(
    ("repair", "error"), [("matmul precision 'high'", 0.0), ("autocast to bf16", -0.25)]
)
def test_a_pair_is_scored_by_the_first_repair_where_the_further_one_is_predicted(
    exam: Any, demo: Any, repair: str, error: float
) -> None:
    diagnosis = result(demo, 60, 55, 65, cause="low_precision_unused", cost=40)
    further = FurtherRepair("TF32", 80, 75, 85, is_first=True)
    found = [msgspec.structs.replace(diagnosis.findings[0], further=further)]
    diagnosis = msgspec.structs.replace(diagnosis, findings=found)
    truth = TRUTH | {"repair": repair, "cause": "low_precision_unused"}
    assert exam["score"].scored(truth, "own", diagnosis, None).error == pytest.approx(error)


@pytest.mark.parametrize(
    ("repair", "error"),
    [("torch.compile(model)", -0.25), ("fn.silu, not its formula", 0.0), ("the library's", 0.0)],
)
def test_a_pair_of_functions_spelled_out_is_scored_by_what_takes_their_place(
    exam: Any, demo: Any, repair: str, error: float
) -> None:
    diagnosis = result(demo, 60, 55, 65, cause="fusion_opportunity", cost=40)
    further = FurtherRepair("the library's own silu", 80, 75, 85)
    found = [msgspec.structs.replace(diagnosis.findings[0], further=further)]
    diagnosis = msgspec.structs.replace(diagnosis, findings=found)
    truth = TRUTH | {"repair": repair, "cause": "fusion_opportunity"}
    assert exam["score"].scored(truth, "own", diagnosis, None).error == pytest.approx(error)


def test_what_is_not_named_has_no_error_and_samples_count(exam: Any, demo: Any) -> None:
    diagnosis = result(demo, 80, 75, 85, cause="host_compute", cost=20)
    row = exam["score"].scored(TRUTH | {"samples": 2.0}, "own", diagnosis, None)
    assert (row.measured, row.rank, row.predicted, row.error) == (0.4, -1, None, None)
    figures = exam["score"].summary([row])
    assert (figures["not named"], figures["predicted"]) == (1, 0)


def test_at_least_is_a_refusal(exam: Any, demo: Any) -> None:
    diagnosis = result(demo, 90, 85, 95, cause="host_sync", cost=20)
    row = exam["score"].scored(TRUTH, "own", diagnosis, None)
    refused = replace(row, at_least=True)
    assert (row.holds, row.error is None) == (False, False)
    assert (refused.holds, refused.error, refused.width) == (None, None, None)
    figures = exam["score"].summary([refused])
    assert (figures["at least"], figures["predicted"], figures["ranges that hold"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("cost_ns", "how", "paced", "alike"),
    [
        (-9_600_000, "unrecorded steps", 0.96, True),
        (-11_000_000, "unrecorded steps", 1.1, False),
        (-10_000_000, "estimated", None, False),
    ],
)
def test_pairs_whose_host_kept_its_pace_are_summed_up_once_more(
    exam: Any, demo: Any, cost_ns: int, how: Any, paced: float | None, alike: bool
) -> None:
    """Of a step of 100 ns: what recording takes off it is then all of the unrecorded step."""
    diagnosis = result(demo, 80, 75, 90, cause="host_sync", cost=20)
    overhead = ProfilerOverhead(cost_ns, cost_ns, cost_ns, how)
    diagnosis = msgspec.structs.replace(diagnosis, profiler_overhead=overhead)
    row = exam["score"].scored(TRUTH, "own", diagnosis, None)
    assert row.paced == (pytest.approx(paced) if paced else None)
    found = exam["score"].summaries([row])
    assert list(found) == ["development, own", *["development, own, at one pace"] * alike]


def test_a_summary_counts(exam: Any, demo: Any) -> None:
    rows = [
        exam["score"].scored(
            TRUTH, "own", result(demo, p, p - 5, p + 5, cause="host_sync", cost=40), error
        )
        for p, error in ((80, 0.0), (84, 0.01), (96, -0.03))
    ]
    figures = exam["score"].summary(rows)
    assert figures["median error"] == pytest.approx(0.05)
    assert figures["within 10 %"] == pytest.approx(2 / 3, abs=1e-3)
    assert figures["ranges that hold"] == pytest.approx(2 / 3, abs=1e-3)
    assert figures["replay errors over 2 %"] == 1


def test_a_stored_pair_is_diagnosed(exam: Any, tmp_path: Path) -> None:
    """The smallest capture of each source opens as what it was.

    One whose first steps were slow would not: these are warm-up, and no part of the mean.
    """
    for source in ("own", "kineto"):
        truths = [json.loads(file.read_text()) for file in CAPTURES.glob("*.json")]
        even = [
            CAPTURES / f"{truth['name']}.{source}.tar.xz"
            for truth in truths
            if truth["recorded"].get(source, math.inf) < 1.2 * min(truth["before"]["mean_ms"])
        ]
        packed = min(even, key=lambda file: file.stat().st_size)
        paths = exam["store"].unpack_capture(packed, tmp_path / source)
        truth = json.loads((CAPTURES / f"{packed.name.split('.')[0]}.json").read_text())
        assert len(paths) == truth["ranks"]
        found = Job([str(path) for path in paths]).diagnose()
        recorded = truth["recorded"][source]
        assert found.step_ns.mean / 1e6 == pytest.approx(recorded, rel=0.25)


def row(measured: float, **others: Any) -> dict[str, Any]:
    """A step that was predicted to take half as long, give or take a fifth of that."""
    known = {"predicted": 0.5, "low": 0.4, "high": 0.6, "at_least": False, "spread": 0.01}
    return known | {"of_the_gain": 0.3, "measured": measured} | others


def test_a_range_with_another_part_of_the_gain(exam: Any) -> None:
    """0.5 x 0.5 x 0.3 = 0.075 of the 0.1 to either side is open of the gain; 0.125 with a half."""
    first_seen = exam["first_seen"]
    assert first_seen.with_part(row(0.5), 0.3) == pytest.approx((0.4, 0.6))
    side = math.hypot(math.sqrt(0.1**2 - 0.075**2), 0.125)
    assert first_seen.with_part(row(0.5), 0.5) == pytest.approx((0.5 - side, 0.5 + side))
    ends = first_seen.with_part(row(0.9, predicted=0.9, low=0.8, high=1.0), 3.0)
    assert ends[1] == 1.0  # it ended at today's step
    assert ends[0] < 0.8
    # what goes unforeseen makes steps shorter, by a share of what remains
    ends = first_seen.with_part(row(0.5), 0.3, 0.2)
    assert ends == pytest.approx((0.5 - math.hypot(0.1, 0.1), 0.6))
    assert first_seen.with_part(row(0.5, unforeseen=0.2), 0.3, 0.2) == pytest.approx((0.4, 0.6))
    assert (first_seen.holds(row(0.62)), first_seen.holds(row(0.62), 0.5)) == (False, True)


def test_figures_of_what_was_first_seen(exam: Any) -> None:
    """Errors of 0, 25 and -17 %; two others say nothing, or only that something is gained."""
    rows = [row(0.5), row(0.4), row(0.6), row(0.5, predicted=None), row(0.5, at_least=True)]
    found = exam["first_seen"].figures(rows)
    assert (found["captures"], found["predicted"]) == (5, 3)
    assert found["median error"] == pytest.approx(1 / 6)
    assert found["within 10 %"] == pytest.approx(1 / 3)
    assert found["ranges that hold"] == 1.0


def test_ranges_are_as_wide_as_first_predictions_need(exam: Any) -> None:
    """The part of the gain that is left open is the one its documentation was chosen by."""
    first_seen = exam["first_seen"]
    found = first_seen.predicted(first_seen.kept())
    held = sum(first_seen.holds(one, OF_THE_GAIN, UNFORESEEN) for one in found) / len(found)
    assert 0.85 < held < 0.95
    assert all("name" not in one for one in found)  # which of an unseen set was missed


@pytest.mark.parametrize(
    ("turns", "apart"),
    [
        ([10.0, 10.0], 0.0),
        ([10.0, 11.0], 1 / 10.5),
        ([10.0, 10.2, 9.9, 30.0, 1.0], 0.03),  # the extremes of five do not count
        ([10.0, 10.0, 30.0, 1.0], 2.9),
    ],
)
def test_turns_differ(exam: Any, turns: list[float], apart: float) -> None:
    assert exam["timing"].spread(turns) == pytest.approx(apart)


@pytest.mark.parametrize(
    ("period", "step_ms", "steps"),
    [(1, 1.0, 200), (1, 10.0, 25), (1, 400.0, 8), (7, 10.0, 28), (7, 100.0, 14), (5, 400.0, 5)],
)
def test_a_turn_is_whole_periods(exam: Any, period: int, step_ms: float, steps: int) -> None:
    program = exam["program"].Program("p", "host_sync", "", "", lambda _: None, period=period)
    assert exam["timing"].count(program, step_ms) == steps


@pytest.mark.parametrize(("paces", "tries"), [([1.0] * 99, 1), ([1.0, 1.5] * 99, 2)])
def test_turns_that_differ_are_measured_again(
    exam: Any, monkeypatch: pytest.MonkeyPatch, paces: list[float], tries: int
) -> None:
    """With a clock of our own: a side whose pace is another one in each turn, and one in none."""
    timing, running = exam["timing"], exam["program"].Running
    now, turn, order = [0.0], iter(paces), []
    pace = [1.0]
    monkeypatch.setattr(timing, "drained", lambda: None)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def side(name: str, ms: float, enter: Any) -> Any:
        def step() -> None:
            order.append(name)
            now[0] += ms / 1e3 * (pace[0] if name == "before" else 1.0)

        return running(step, enter=enter, settle=3)

    def another() -> None:
        pace[0] = next(turn)

    sides = [side("before", 20.0, another), side("after", 10.0, lambda: None)]
    program = exam["program"].Program("p", "host_sync", "", "", lambda _: None)
    found = timing.turns(program, sides)
    assert ("other_turns" in found) == (tries == 2)
    assert found["after"]["mean_ms"] == [10.0] * len(found["after"]["mean_ms"])
    assert set(found["before"]["mean_ms"]) == {20.0 * p for p in set(paces)}
    assert found["spread"] == pytest.approx(timing.disagreement(found), abs=1e-4)
    stretches = [name for name, _ in itertools.groupby(order)]
    assert stretches == ["before", "after"] * (len(stretches) // 2)
    assert len(stretches) == 2 * (1 + tries * len(found["before"]["mean_ms"]))


_AT_THE_GATE = """
import subprocess, sys, time
sys.path.insert(0, {exam!r})
from gates import Gate
ticks = "import time\\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.002)"
child = subprocess.Popen([sys.executable, "-S", "-c", ticks], stdout=open({name!r} + ".ticks", "w"))
gate = Gate()
gate.reached()
begin = time.monotonic()
while time.monotonic() < begin + 30:  # a busy machine may not let the child run at once
    time.sleep(0.05)
    told = open({name!r} + ".ticks").read().splitlines()[:-1]
    if told and float(told[-1]) > begin:
        break
print(begin, time.monotonic(), flush=True)
gate.reached()
child.kill()
"""


def test_one_program_at_a_time(exam: Any, tmp_path: Path) -> None:
    """While one is measured the others do nothing, nor do their children; who fails is told."""
    gates = exam["gates"]
    ended: dict[str, str] = {}
    tasks = []
    for name in ("a", "b", "broken"):
        text = _AT_THE_GATE.format(exam=str(EXAM), name=str(tmp_path / name))
        words = [sys.executable, "-c", "raise SystemExit(3)" if name == "broken" else text]
        log = tmp_path / f"{name}.log"
        tasks.append(
            gates.Task(name, "pair", words, log, lambda t, why: ended.update({t.name: why}))
        )
    late = gates.Task("late", "pair", ["true"], tmp_path / "late.log", lambda *_: None)
    first: list[int] = []
    assert gates.in_batches([tasks], 60.0, lambda: first.append(1)) == []
    assert gates.in_batches([[late]], -1.0, lambda: None) == [late]
    assert ended == {"a": "", "b": "", "broken": "ended with 3"}
    spans = {n: [float(x) for x in (tmp_path / f"{n}.log").read_text().split()] for n in "ab"}
    ticks = {
        n: [float(x) for x in (tmp_path / f"{n}.ticks").read_text().splitlines()[:-1]] for n in "ab"
    }
    for mine, other in ("ab", "ba"):
        begin, end = spans[mine]
        assert any(begin < t < end for t in ticks[mine])
        assert not any(begin < t < end for t in ticks[other])
    assert not list(tmp_path.glob("*.gate.*"))


def test_what_was_packed_is_stored(
    exam: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair of two ranks from the archives of the GPU machine to the stored files."""
    store, out = exam["store"], tmp_path / "out"
    trace = json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "x"}]})
    (out / "job_x.kineto").mkdir(parents=True)
    with tarfile.open(out / "job_x.kineto.tar", "w") as tar:
        for rank in (0, 1):
            file = out / "job_x.kineto" / f"rank{rank}.json"
            file.write_text(trace)
            tar.add(file, arcname=file.name)
    (out / "job_x.json").write_text(json.dumps(TRUTH | {"name": "job_x", "ranks": 2}))
    exam["gates"].pack(out)
    monkeypatch.setattr(store, "CAPTURES", tmp_path / "captures")
    monkeypatch.setattr(sys, "argv", ["store.py", str(out / "packed")])
    store.main()
    paths = store.unpack_capture(tmp_path / "captures" / "job_x.kineto.tar.xz", tmp_path / "back")
    assert [(path.name, path.read_text()) for path in paths] == [
        ("rank0.json", trace),
        ("rank1.json", trace),
    ]
    assert json.loads((tmp_path / "captures" / "job_x.json").read_text())["ranks"] == 2


def test_lookups_of_sharded_tables_are_shared_out(exam: Any, tmp_path: Path) -> None:
    """Nothing is gone: both ranks compute the mean of today's, and the step is what it is then."""
    file = CAPTURES / "job_tables_by_number.own.tar.xz"
    job = Job([str(path) for path in exam["store"].unpack_capture(file, tmp_path)])
    finding = job.diagnose().findings[0]
    assert (finding.cause, finding.ranks) == ("load_imbalance", [0])
    assert "embedding tables" in finding.message
    cases = job.explained.cases
    each = [case.explanation for case in cases]
    computes = [e.steady_total("compute_ns") / e.n_steady for e in each]
    gain = max(computes) - sum(computes) / 2
    assert finding.time_ns_per_step == pytest.approx(gain, rel=0.02)
    assert finding.predicted_step_ns == pytest.approx(cases[0].step_ns - gain, rel=0.05)
