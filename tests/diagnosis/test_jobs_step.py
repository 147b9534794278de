"""What a finding of a job compares: the job's step before and after, whatever rank shows it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tests.diagnosis.test_beside_findings import RANKS, item
from tests.support.captures import SHARED, unpack

from stepscope.api import Job
from stepscope.api.explained import changes_of
from stepscope.diagnosis.cause import Case, Detection, Further, of_job
from stepscope.diagnosis.combined import both
from stepscope.diagnosis.predictions import Predicted, arithmetic
from stepscope.diagnosis.rank_warnings import shared_steps_warning
from stepscope.diagnosis.ranking import Ranked
from stepscope.diagnosis.reliability import unaffected_figure, why_unreliable
from stepscope.diagnosis.sentence import by_step
from stepscope.render import beside, budget
from stepscope.render.job import job_text
from stepscope.simulation import Change, InGraphs, LaunchesFree, Prediction, RemoveOps

MS = 1_000_000


def case_of(step_ns: float, longest_ns: float, *, meets: bool) -> Case:
    """A device whose own steps are shorter than those of another one of the job."""
    job = SimpleNamespace(view=SimpleNamespace(collectives=object() if meets else None), cases=[])
    explanation = SimpleNamespace(step_ns=step_ns, measured=None)
    case = Case(cast("Any", SimpleNamespace(explanation=explanation, rank=0)), cast("Any", job))
    other = SimpleNamespace(explanation=SimpleNamespace(step_ns=longest_ns), rank=1)
    job.cases += [case, Case(cast("Any", other), cast("Any", job))]
    return case


def seen(**more: Any) -> Detection:
    return Detection(
        time_ns=20.0,
        direct_ns=20.0,
        message="",
        recommendations=[],
        floor_ns=more.pop("floor_ns", 10.0),
        **more,
    )


def test_operations_go_on_all_ranks_that_show_a_cause() -> None:
    """What one rank offloads goes with its own repair, what the other one does with it."""
    first, second = cast("list[Case]", [SimpleNamespace(rank=rank) for rank in range(2)])
    both_ranks = LaunchesFree()  # the same for each rank: not twice
    pairs = [
        (first, seen(also=(both_ranks, RemoveOps((1, 2), 0)))),
        (second, replace(seen(also=(both_ranks, RemoveOps((7,), 1))), time_ns=30.0)),
    ]
    case, found = of_job(pairs)
    assert case is second
    assert found.also == (both_ranks, RemoveOps((7,), 1), RemoveOps((1, 2), 0))


@pytest.mark.parametrize(
    ("meets", "floor", "expected"),
    [
        (True, 10.0, 80.0),  # the ranks wait for each other: the job gains what this one does
        (True, 50.0, 90.0),  # it executes 50 of its 60 ns anyway
        (False, 10.0, 100.0),  # the other rank takes its 100 ns whatever this one does
    ],
)
def test_arithmetic_is_about_the_step_of_the_job(
    meets: bool, floor: float, expected: float
) -> None:
    case = case_of(60.0, 100.0, meets=meets)
    assert case.job_step_ns == 100.0
    found = arithmetic(case, "straggler", seen(floor_ns=floor))
    assert found.step_ns == pytest.approx(expected)
    assert found.low_ns <= found.step_ns <= found.high_ns <= 100.0


def test_gain_and_reliability_are_of_the_step_of_the_job() -> None:
    """Its own step takes 60 ns and the job's 100, which are predicted to become 70."""
    case = case_of(60.0, 100.0, meets=True)
    cause = SimpleNamespace(id="host_sync", of_program=True, min_share=0.03)
    detection = SimpleNamespace(time_ns=25.0, overhead_ns=0.0, repair=None)
    ranked = Ranked(cast("Any", cause), case, cast("Any", detection), [0], Predicted(70, 65, 90))
    assert (ranked.gain_ns, ranked.gains, ranked.is_partial) == (30.0, True, False)
    assert why_unreliable(ranked) == ""
    # its steps without the cause are no steps of the job
    assert unaffected_figure(ranked) is None


def test_two_repairs_gain_no_less_than_one_without_the_profiler() -> None:
    """The second is the profiler: both together are what the first says of unrecorded steps."""
    first = item(80, 70, 90, unrecorded=(60.0, 45.0))
    second = cast("Any", item(60, 50, 70))
    second.cause.id = "profiler_overhead"
    found = both([first, second], lambda changes: pytest.fail(f"nothing to replay: {changes}"))
    assert found is not None
    assert found.predicted.step_ns == 45.0


def test_input_that_is_slow_to_come_does_not_undo_what_one_repair_gains() -> None:
    first, second = item(50, 50, 50), cast("Any", item(80, 80, 80))
    second.detection.supply_ns = (70.0, 70.0, 70.0)
    found = both([first, second], lambda changes: pytest.fail(f"nothing to replay: {changes}"))
    assert found is not None
    assert found.predicted.step_ns == 50.0


def test_together_is_replayed_what_each_finding_predicts() -> None:
    first = cast("Any", item(50, 50, 50, replay_error=0.0, by_further=True))
    first.detection.change = InGraphs("model")
    first.detection.further = Further(InGraphs("step"), "the whole step", "the model")
    second = cast("Any", item(80, 80, 80, replay_error=0.0))
    second.detection.change = LaunchesFree()
    asked: list[list[Change]] = []

    def predict(changes: list[Change]) -> Prediction:
        asked.append(changes)
        return Prediction(45, 40, 50, 0.0, "")

    found = both([first, second], predict)
    assert found is not None
    assert found.predicted.step_ns == 45
    assert asked == [[InGraphs("step"), LaunchesFree()]]


@pytest.mark.parametrize("name", ["param_dlrm.rank*.json.gz"])
def test_ranks_of_other_steps_are_told_as_whatif_tells_them(name: str) -> None:
    paths = sorted((SHARED / "public").glob(name))
    if not paths:
        pytest.skip(f"needs {name} of ../shared/data/public, which are not here")
    job = Job(paths)
    found = job.diagnose()
    before = job.simulation.measured_step_ns
    assert {finding.value("step_ns") for finding in found.findings} == {before}
    freed = {"profiler_overhead", "host_sync", "input_starvation"}
    told = {one.cause: one.predicted_step_ns for one in found.findings if one.cause in freed}
    assert set(told) == freed
    for cause, step in told.items():
        assert job.whatif(changes_of(free=[cause])).predicted_step_ns == step, cause
    # what the others become without the profiler begins at what the profiler's finding ends at
    for finding in found.findings:
        if (unrecorded := finding.value("unrecorded_before_ns")) is not None:
            assert unrecorded == pytest.approx(told["profiler_overhead"], rel=0.001)
    assert found.combined is not None
    assert found.combined.predicted_step_ns <= min(
        finding.predicted_step_ns for finding in found.findings[:2]
    )
    assert job.verify(msgspec.json.encode(found)).verified


def test_which_steps_waits_are_of_is_said_where_ranks_differ_in_them() -> None:
    job = Job([unpack(path) for path in RANKS])
    found = job.diagnose()
    case = max(job.explained.cases, key=lambda case: case.step_ns)
    c = case.job.view.collectives
    assert c is not None
    same = len(c.parts) == case.explanation.n_steady
    assert (shared_steps_warning(case) is None) == same
    alike = [msgspec.structs.replace(gpu, steps=5) for gpu in found.accounting]
    assert "rank" not in budget.steady(msgspec.structs.replace(found, accounting=alike))
    other = [alike[0], msgspec.structs.replace(alike[1], steps=6)]
    assert " on rank " in budget.steady(msgspec.structs.replace(found, accounting=other))


def test_the_parts_are_said_to_be_of_the_ranks_own_steps() -> None:
    found = Job([unpack(path) for path in RANKS]).diagnose()
    half = [msgspec.structs.replace(row, step_ns=row.step_ns // 2) for row in found.ranks]
    note = beside.rank_note(msgspec.structs.replace(found, ranks=half))
    every = budget.all_devices(found)
    mean = budget.steps_of(every, found) and every.wall_ns / every.steps
    assert f"parts: of each rank's own steps, {mean / MS:.1f} ms on average" in note


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{a} kernels per step, {b_per_step}", "{a} kernels in the capture, {b_per_step}"),
        ("costs {t} of each {step_ns} step", "costs {t} of the {step_ns} capture"),
        ("pauses a step of up to {a}", "pauses in the capture of up to {a}"),
        ("{a} of a step, which", "{a} of the capture, which"),
        ("each of a step's passes", "each of a step's passes"),
    ],
)
def test_without_steps_nothing_is_per_step(template: str, said: str) -> None:
    assert by_step(template, "whole_capture") == said
    assert by_step(template, "step") == template


def test_what_recovers_more_than_it_costs_says_both() -> None:
    found = Job([unpack(path) for path in RANKS]).diagnose()
    (first, *_) = found.findings
    step = first.value("step_ns") or 0
    told = msgspec.structs.replace(
        first, time_ns_per_step=round(step / 4), predicted_step_ns=round(step / 2)
    )
    assert budget.cost_ns(told) == (told.value("observed_ns_per_step") or told.time_ns_per_step)
    plain = msgspec.structs.replace(
        told, evidence=[e for e in told.evidence if e.figure != "observed_ns_per_step"]
    )
    assert budget.and_more(plain) == f", {step / 2 / MS:.1f} ms less"
    as_much = msgspec.structs.replace(plain, predicted_step_ns=round(step * 3 / 4))
    assert budget.and_more(as_much) == ""


def test_one_rank_is_one_rank() -> None:
    job = Job([unpack(RANKS[0])])
    text = job_text(job_of_one(job), 200)
    assert ": 1 of 2 ranks on 1 node" in text or ": 1 rank on 1 node" in text
    assert "shared step" not in text
    assert "peer" not in text
    assert "_" not in text.splitlines()[0].partition(":")[0]
    assert job.communication.groups == []


def job_of_one(job: Job) -> Any:
    """What ``stepscope job`` finds in one capture."""
    from stepscope.api.digest_making import digests_of
    from stepscope.jobs.job import diagnose_job

    return diagnose_job(digests_of(job))
