"""Ranking, folding, prediction and evidence of the diagnosis engine, on hand-made traces."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.support.build import Build

from stepscope.api import Job
from stepscope.diagnosis import ranking
from stepscope.diagnosis.cause import Case, Detection, causes
from stepscope.diagnosis.engine import HEALTHY
from stepscope.diagnosis.predictions import Predicted
from stepscope.diagnosis.ranking import INSUFFICIENT, Ranked, order, ranked, reported
from stepscope.diagnosis.result import Diagnosis, Evidence
from stepscope.diagnosis.sentence import filled
from stepscope.gaps.idle import CAUSES
from stepscope.simulation.pace import LOADED

PERIOD = 10_000.0  # us
STEPS = 8


def diagnosed(build: Build, folder: Path, **meta: object) -> tuple[Diagnosis, Job]:
    job = Job([build.trace(folder, **meta).folder])
    return job.diagnose(), job


def starved(build: Build, loading: float, work: float) -> None:
    for i in range(STEPS):
        at = i * (loading + work)
        build.range(at, at + loading + work, f"step {i}")
        build.range(at, at + loading, "dataload")
        for k in range(4):
            begin = at + loading + 20 + k * work / 4
            build.kernel(
                begin, begin + work / 4 - 1, call=(at + loading + 1 + k, at + loading + 2 + k)
            )


def test_prediction_is_the_step_without_the_cause(tmp_path: Path) -> None:
    build = Build()
    starved(build, 4_000, 6_000)
    diagnosis, _ = diagnosed(build, tmp_path)
    (finding,) = diagnosis.findings
    assert diagnosis.verdict == finding.cause == "input_starvation"
    assert finding.severity == "high"
    assert finding.time_ns_per_step == pytest.approx(4_000_000, rel=0.02)
    # 4 of 10 ms: two thirds more batches a second, made by workers on the host's processor
    slowed = 1 + (LOADED["expected"] - 1) * 4 / 6
    assert finding.predicted_step_ns == pytest.approx(6_000_000 * slowed, rel=0.02)
    assert finding.prediction_low_ns <= 6_000_000
    assert finding.prediction_low_ns <= finding.predicted_step_ns <= finding.prediction_high_ns
    assert finding.where.range == "dataload"
    assert "'dataload'" in finding.message


def test_a_small_wait_is_not_a_finding(tmp_path: Path) -> None:
    build = Build()
    starved(build, 200, 9_800)
    diagnosis, _ = diagnosed(build, tmp_path)
    assert (diagnosis.verdict, diagnosis.findings) == (HEALTHY, [])
    assert diagnosis.accounting[0].idle_by_cause_ns["input_starvation"] > 0


def test_two_causes_are_ordered_by_gain(tmp_path: Path) -> None:
    build = Build()
    for i in range(12):
        at = i * PERIOD
        build.range(at, at + PERIOD, f"step {i}")
        build.range(at, at + 2_000, "dataload")
        build.kernel(at + 2_020, at + 5_000, call=(at + 2_005, at + 2_010))
        build.copy(at + 5_100, at + 9_900, call=(at + 5_010, at + 9_910), kind="DtoH",
                   src="device", dst="pageable", size=1 << 28)  # fmt: skip
    diagnosis, _ = diagnosed(build, tmp_path)
    assert [f.cause for f in diagnosis.findings] == ["blocking_copy", "input_starvation"]
    gains = [f.time_ns_per_step for f in diagnosis.findings]
    assert gains == sorted(gains, reverse=True)


def test_every_figure_is_what_its_statement_gives(tmp_path: Path) -> None:
    build = Build()
    starved(build, 4_000, 6_000)
    diagnosis, job = diagnosed(build, tmp_path)
    checked = 0
    for finding in diagnosis.findings:
        for evidence in finding.evidence:
            assert job.query(evidence.sql).column(0)[0].as_py() == evidence.value
            checked += 1
    assert checked >= 3


def test_the_profiler_never_outranks_the_program(tmp_path: Path) -> None:
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD, f"step {i}")
        for k in range(50):
            t = at + 200 * k
            build.kernel(t + 180, t + 195, call=(t + 170, t + 175))
    build.rows["overhead"] = [
        {"process_id": 100, "thread_id": 100, "name": "buffer flush",
         "start_ns": int((i * PERIOD + 200 * k) * 1000),
         "end_ns": int((i * PERIOD + 200 * k + 120) * 1000)}
        for i in range(STEPS) for k in range(50)
    ]  # fmt: skip
    diagnosis, _ = diagnosed(build, tmp_path)
    assert [f.cause for f in diagnosis.findings] == ["launch_bound", "profiler_overhead"]
    first, second = diagnosis.findings
    assert not any("with_stack" in advice for advice in second.recommendations)  # of torch.profiler
    known = {e.figure: e.value for e in first.evidence}
    before, after = known["unrecorded_before_ns"], known["unrecorded_step_ns"]
    assert second.time_ns_per_step > known["observed_ns_per_step"]
    # 6.0 of 10 ms are recording; of the other 4.0 the launches take 3.25 and the kernels the rest
    assert "unrecorded, it goes from" in first.message
    assert before == pytest.approx(4.0e6, rel=0.05)
    assert first.predicted_step_ns == pytest.approx(known["step_ns"] * after / before, rel=0.01)


@pytest.mark.parametrize(("waits", "told"), [(200.0, False), (350.0, True)])
def test_a_wait_is_a_share_of_the_step_that_nobody_records(
    tmp_path: Path, waits: float, told: bool
) -> None:
    """5 of 10 ms are recording: 0.35 ms are 7 % of the rest, 0.2 ms are 4 %; 5 % is told."""
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD, f"step {i}")
        build.range(at, at + waits, "dataload")
        build.overhead(at + waits + 10, at + waits + 5_010, "buffer flush")
        start, length = at + waits + 5_030, (4_960 - waits) / 4
        for k in range(4):
            begin = start + k * length
            build.kernel(begin, begin + length - 1, call=(start - 19 + 4 * k, start - 16 + 4 * k))
    diagnosis, _ = diagnosed(build, tmp_path)
    named = [f.cause for f in diagnosis.findings]
    assert named == ["input_starvation", "profiler_overhead"][1 - told :]


@pytest.mark.parametrize(("after", "told"), [(58.0, False), (56.0, True)])
def test_a_wait_that_is_told_beside_the_unrecorded_step_gains_as_much_there(
    after: float, told: bool
) -> None:
    """4 of 100 ns are 7 % of the 60 that nobody records: the gain there decides, 3 or 7 % of it."""
    item = ranked_item("host_sync", 0.0, recorded=40.0)
    predicted = Predicted(100 * after / 60, 50.0, 100.0, unrecorded=(60.0, after))
    cast("SimpleNamespace", item.detection).time_ns = 4.0
    assert replace(item, predicted=predicted).clears_its_share == told
    cast("SimpleNamespace", item.detection).time_ns = 6.0
    assert replace(item, predicted=predicted).clears_its_share


def test_what_rests_on_the_cost_of_recording_is_a_share_of_the_recorded_step() -> None:
    case = ranked_item("host_sync", 0.0, recorded=40.0).case
    assert causes()["host_sync"].least_ns(case) == pytest.approx(0.05 * 60)
    for cause in ("launch_bound", "host_compute", "profiler_overhead"):
        assert causes()[cause].least_ns(case) == pytest.approx(0.08 * 100)


def ranked_item(cause: str, gain: float, recorded: float = 0.0) -> Ranked:
    """A finding of a step of 100 ns that gains so much of it; recording takes so much."""
    case = cast(
        "Case", SimpleNamespace(step_ns=100.0, job_step_ns=100.0, own_step_ns=100.0 - recorded)
    )
    detection = cast("Detection", SimpleNamespace(time_ns=60.0, overhead_ns=0.0, repair=None))
    left = 100.0 - gain
    return Ranked(causes()[cause], case, detection, [0], Predicted(left, left, left))


@pytest.mark.parametrize(("gain", "first"), [(2.0, "profiler_overhead"), (20.0, "host_sync")])
def test_what_gains_next_to_nothing_is_not_told_before_the_profiler(
    gain: float, first: str
) -> None:
    items = [ranked_item("host_sync", gain), ranked_item("profiler_overhead", 50.0)]
    assert max(items, key=order).cause.id == first


@pytest.mark.parametrize(("gain", "first"), [(8.0, "memory_bound_kernels"), (12.0, "step_jitter")])
def test_what_can_be_repaired_comes_before_what_could_be_gained(gain: float, first: str) -> None:
    items = [ranked_item("step_jitter", gain), ranked_item("memory_bound_kernels", 30.0)]
    assert max(items, key=order).cause.id == first


def test_what_gains_the_time_of_another_cause_does_not_gain_what_recording_costs_in_it() -> None:
    """Few kernels of a merged chain are launched: 46 ms of a gain of 51 are left unrecorded."""
    case = ranked_item("host_sync", 1.0).case
    found = []
    for cause, time, overhead, gain, after in (
        ("fusion_opportunity", 8.0, 0.0, 51.0, 44.0),
        ("launch_bound", 58.0, 6.0, 53.0, 42.0),
    ):
        detection = cast(
            "Detection", SimpleNamespace(time_ns=time, overhead_ns=overhead, repair=None)
        )
        left = 100.0 - gain
        predicted = Predicted(left, left, left, unrecorded=(90.0, after))
        found.append(Ranked(causes()[cause], case, detection, [0], predicted))
    assert [item.gain_ns for item in found] == [51.0, 53.0]
    assert [item.sure_gain_ns for item in found] == [46.0, pytest.approx(53.0 * 52 / 58)]
    assert max(found, key=order).cause.id == "launch_bound"


def folding(
    monkeypatch: pytest.MonkeyPatch, times: dict[str, float], unrecorded_ns: float | None
) -> tuple[list[str], list[float]]:
    """What stays of causes that take so much of a step of 100 ns, and their parts of the step.

    Each repair gains the time of its cause; without recording the step takes ``unrecorded_ns``.
    """
    case = cast("Case", SimpleNamespace(step_ns=100.0, job_step_ns=100.0, rank=0))
    seen = {
        cause: [(case, Detection(time, time, message="", recommendations=[]))]
        for cause, time in times.items()
    }
    monkeypatch.setattr(ranking, "_detections", lambda cases: seen)

    def predict(case: Case, cause: str, detection: Detection) -> Predicted:
        left = 100.0 - detection.time_ns
        own = None if unrecorded_ns is None else (unrecorded_ns, unrecorded_ns - detection.time_ns)
        return Predicted(left, left, left, unrecorded=own)

    found = ranked([case], predict)
    return [item.cause.id for item in found], [item.own_share for item in found]


def test_a_finding_is_folded_by_its_part_of_the_step_that_nobody_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # beside 50 ns, what takes less than a fifth of them stays from 8 % of the step on
    times = {"host_sync": 50.0, "blocking_copy": 6.0}
    assert folding(monkeypatch, times, None) == (["host_sync"], [0.5])  # 6 of 100
    assert folding(monkeypatch, times, 80.0) == (["host_sync"], [50 / 80])  # 7.5 %
    both = ["host_sync", "blocking_copy"]
    assert folding(monkeypatch, times, 75.0) == (both, [50 / 75, 0.08])
    assert folding(monkeypatch, times, 60.0) == (both, [50 / 60, 0.1])


def test_a_finding_is_folded_by_its_part_of_the_first_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 7 of 100 ns are less than 8 % of the step: they stay beside 35 ns, and not beside 36
    for first, stays in ((35.0, ["host_sync", "blocking_copy"]), (36.0, ["host_sync"])):
        assert folding(monkeypatch, {"host_sync": first, "blocking_copy": 7.0}, None)[0] == stays


def test_an_unrecorded_step_of_no_length_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folding(monkeypatch, {"host_sync": 50.0}, 0.0) == (["host_sync"], [0.5])


def test_what_recording_takes_hides_no_waiting_of_the_program() -> None:
    """Neither repair gains anything: that less could be recorded is no answer to the waiting."""
    waiting = ranked_item("pipeline_bubble", 0.0)
    recording = ranked_item("profiler_overhead", 50.0)
    assert reported([waiting]) == [waiting]
    assert reported([recording, waiting]) == [recording, waiting]
    other = ranked_item("host_sync", 20.0)
    assert reported([other, recording, waiting]) == [other, recording]


def test_idle_time_beside_more_communication_is_not_what_data_lacks_for(tmp_path: Path) -> None:
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        for k in range(5):
            start = at + 1_900 * k
            build.kernel(start, start + 300, name=f"k{k}")
            build.kernel(
                start + 300, start + 1_700, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
            )
    diagnosis, _ = diagnosed(build, tmp_path)
    assert diagnosis.verdict == INSUFFICIENT
    assert "ommunication" in diagnosis.findings[0].message


def test_without_launching_calls_the_answer_is_that_data_lacks(tmp_path: Path) -> None:
    build = Build()
    for i in range(STEPS):
        for k in range(5):
            build.kernel(i * PERIOD + 1_000 * k, i * PERIOD + 1_000 * k + 500, name=f"k{k}")
    diagnosis, _ = diagnosed(build, tmp_path)
    assert diagnosis.verdict == INSUFFICIENT
    assert diagnosis.findings[0].next_capture
    assert diagnosis.findings[0].predicted_step_ns == pytest.approx(PERIOD * 1000, rel=0.1)


@pytest.mark.parametrize(("annotated", "steps"), [(True, 8), (False, 8), (True, 3)])
def test_steps_that_are_one_graph_each_are_enough_to_judge(
    tmp_path: Path, annotated: bool, steps: int
) -> None:
    build = Build()
    for i in range(steps):
        at = i * PERIOD
        if annotated:
            build.range(at, at + 500, f"step {i}")
        launch = (at + 20, at + 30)
        build._op("graph", at + 50, at + PERIOD, launch, "graph", 7, 0, 100, "cudaGraphLaunch")
    diagnosis, _ = diagnosed(build, tmp_path)
    assert diagnosis.trace.steps == steps
    assert diagnosis.verdict == (HEALTHY if steps == 8 else INSUFFICIENT)


def test_several_processes_of_one_capture_become_ranks(tmp_path: Path) -> None:
    build = Build()
    starved(build, 4_000, 6_000)
    for table in ("gpu_op", "api_call", "range"):
        build.rows[table] += [
            {**row, "process_id": 200, "thread_id": 200} if "thread_id" in row
            else {**row, "process_id": 200}
            for row in build.rows[table]
        ]  # fmt: skip
    diagnosis, job = diagnosed(build, tmp_path)
    assert diagnosis.trace.ranks == 2
    assert [gpu.rank for gpu in diagnosis.accounting] == [0, 1]
    assert diagnosis.gpu_utilization is None  # of a single GPU only
    assert diagnosis.findings[0].ranks == [0, 1]
    assert any("2 processes" in warning for warning in diagnosis.warnings)
    for evidence in diagnosis.findings[0].evidence:
        assert job.query(evidence.sql).column(0)[0].as_py() == evidence.value


def test_every_cause_is_complete() -> None:
    found = causes()
    assert {"input_starvation", "host_sync", "host_compute", "launch_bound", "blocking_copy",
            "gpu_bound_healthy", "insufficient_data"} <= set(found)  # fmt: skip
    for name, cause in found.items():
        assert cause.id == name
        for text in (cause.title, cause.definition, cause.differential, cause.reference):
            assert text


@pytest.mark.parametrize(
    ("cause", "output"),
    [
        ('Cause("gpu_throttled", *["x"] * 5, 0.05, ("x",), lambda case: None)', "has no time_sql"),
        (
            'Cause("gpu_throttled", *["x"] * 5, 0.05, ("x",), lambda case: None, time_sql=" ")',
            "0.0 ms",
        ),
        (
            'Cause("throttled", *["x"] * 5, 0.05, ("x",), lambda case: None, time_sql="SELECT 1")',
            "both",
        ),
        ("None", "has no CAUSE"),
    ],
)
def test_an_incomplete_cause_is_refused_when_it_is_registered(
    cause: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import stepscope.diagnosis.causes as package

    file = tmp_path / "gpu_throttled.py"
    file.write_text(f"from stepscope.diagnosis.cause import Cause\nCAUSE = {cause}\n")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{package.__name__}.gpu_throttled", raising=False)
    causes.cache_clear()
    try:
        with pytest.raises(TypeError, match=output):
            causes()
    finally:
        sys.modules.pop(f"{package.__name__}.gpu_throttled", None)
        causes.cache_clear()


def test_causes_without_idle_time_say_what_theirs_is() -> None:
    for cause in causes().values():
        assert cause.time_sql or cause.id in CAUSES or not cause.takes_time, cause.id


@pytest.mark.parametrize(
    ("value", "output"),
    [
        (1, "1 worker, 1 pause, 1 launch, 1 of 1 step"),
        (2, "2 workers, 2 pauses, 2 launches, 2 of 2 steps"),
        (21, "21 workers, 21 pauses, 21 launches, 21 of 21 steps"),
    ],
)
def test_what_a_figure_counts_agrees_with_it(value: int, output: str) -> None:
    evidence = [Evidence("n", value, "count", "SELECT 1", 1)]
    assert filled("{n} workers, {n} pauses, {n} launches, {n} of {n} steps", evidence, {}) == output
    assert filled("{n} times as long", evidence, {}) == f"{value} times as long"


def test_a_host_that_computes_until_it_touches_pages_is_predicted_without_that(
    tmp_path: Path,
) -> None:
    build = Build()
    for i in range(STEPS):
        at = 10_000.0 * i
        build.range(at, at + 10_000, f"step {i}")
        for k in range(4):
            build.kernel(at + 50 + 1_000 * k, at + 1_050 + 1_000 * k, call=(at + 5 + k, at + 6 + k))
        # 4.9 ms of computing on the host, whose results replace what the GPU wrote
        build.copy(at + 9_000, at + 9_040, kind="UVM DtoH")
    diagnosis, _ = diagnosed(build, tmp_path)
    finding = diagnosis.findings[0]
    assert finding.cause == "host_compute"
    assert finding.time_ns_per_step == pytest.approx(5_920_000, rel=0.02)
    # 4 ms of kernels, the copy, the first launch of a step
    assert finding.predicted_step_ns == pytest.approx(4_080_000, rel=0.03)


def test_copies_at_the_start_say_nothing_about_steps(tmp_path: Path) -> None:
    build = Build()
    for k in range(30):
        build.copy(1_000 * k, 1_000 * k + 300, call=(1_000 * k - 200, 1_000 * k - 100))
    for k in range(12):
        at = 100_000 + 50_000 * k**2
        build.kernel(at, at + 2_000, call=(at - 900, at - 500), name=f"kernel_{k}")
    diagnosis, _ = diagnosed(build, tmp_path)
    assert diagnosis.verdict == INSUFFICIENT
    assert "too few" in diagnosis.findings[0].message


def test_pages_that_move_when_touched_are_no_work_without_a_call(tmp_path: Path) -> None:
    build = Build()
    build.kernel(100, 3_000, call=(50, 60), name="add")
    for k in range(60):
        build.copy(200 + 40 * k, 210 + 40 * k, kind="UVM HtoD", size=1 << 16)
    diagnosis, _ = diagnosed(build, tmp_path)
    assert diagnosis.verdict == INSUFFICIENT
    assert "too few" in diagnosis.findings[0].message
