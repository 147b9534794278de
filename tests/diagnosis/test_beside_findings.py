"""Rows beside the findings: ranks, outlier steps, two repairs together, trust in predictions."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from rich.console import Console
from tests.support.captures import DATA, unpack

from stepscope.activity.locations import _without_wrappers
from stepscope.api import Job
from stepscope.diagnosis.cause import causes
from stepscope.diagnosis.combined import both
from stepscope.diagnosis.predictions import Predicted
from stepscope.diagnosis.rank_warnings import _says_why
from stepscope.diagnosis.ranking import Ranked
from stepscope.diagnosis.reliability import unaffected_figure, why_unreliable
from stepscope.diagnosis.result import Combined, Diagnosis
from stepscope.render.beside import (
    combined_text,
    outlier_text,
    rank_cells,
    rank_headings,
    rank_note,
    reliability_text,
)
from stepscope.render.budget import unrecorded_text
from stepscope.render.terminal import print_diagnosis
from stepscope.render.text import milliseconds
from stepscope.trace.frame import Frame

RANKS = [DATA.parent / "ranks" / f"ddp_imbalance.rank{rank}.sqlite.xz" for rank in range(2)]


def test_the_terminal_tells_the_reason_by_a_field() -> None:
    """Whatever the sentence says."""
    _, diagnosis = diagnosed("gpt1024_sync_item")
    first = diagnosis.findings[0]
    assert first.message.endswith(f": {first.reason}")
    changed = msgspec.structs.replace(
        first, message="It costs 3 ms: and so on", reason="pauses costs 5"
    )
    shown = msgspec.structs.replace(diagnosis, findings=[changed], levers=[], combined=None)
    console = Console(width=2000, file=io.StringIO())
    print_diagnosis(shown, console)
    text = cast("io.StringIO", console.file).getvalue()
    assert f"1. {first.severity.upper()} {causes()[first.cause].title}: pauses costs 5\n" in text
    assert "once fixed, the step takes about" in text


@pytest.mark.parametrize(
    ("name", "severities"),
    [
        ("gpt_mask_select", ["medium", "high"]),  # 9 and 23 %: most of it may be Nsight Systems'
        ("gpt1024_unfused_optimizer", ["high"]),  # 38 %, most of which may be
    ],
)
def test_severity_is_what_the_step_loses_whatever_stands_before(
    name: str, severities: list[str]
) -> None:
    _, diagnosis = diagnosed(name)
    assert [finding.severity for finding in diagnosis.findings] == severities
    for finding in diagnosis.findings:
        step = finding.value("step_ns") or 0
        gain = (step - finding.predicted_step_ns) / step
        assert finding.severity == ("high" if gain >= 0.2 else "medium" if gain >= 0.08 else "low")


def diagnosed(name: str) -> tuple[Job, Diagnosis]:
    job = Job([unpack(DATA / "nsys" / f"{name}.sqlite.xz")])
    return job, job.diagnose()


def test_each_rank_has_a_row_whose_parts_sum_to_its_step() -> None:
    job = Job([unpack(path) for path in RANKS])
    found = job.diagnose()
    assert [row.rank for row in found.ranks] == [0, 1]
    for row in found.ranks:
        parts = (row.compute_ns, row.waiting_ns, row.transfer_ns, row.copy_ns, row.idle_ns)
        assert sum(parts) == pytest.approx(row.step_ns, abs=len(parts))
    assert rank_note(found) == ""
    half = [msgspec.structs.replace(row, step_ns=row.step_ns // 2) for row in found.ranks]
    part = milliseconds(max(row.step_ns for row in half))
    assert f"of the {part} that" in rank_note(msgspec.structs.replace(found, ranks=half))
    # the rank that has less to compute is the one that waits
    less, more = sorted(found.ranks, key=lambda row: row.compute_ns)
    assert less.waiting_ns > more.waiting_ns
    changed = msgspec.structs.replace(found.ranks[0], waiting_ns=found.ranks[0].waiting_ns + 1)
    report = msgspec.structs.replace(found, ranks=[changed, found.ranks[1]])
    (difference,) = job.verify(msgspec.json.encode(report)).differences
    assert difference.figure == "rank0.device0.mean.waiting_ns"


def test_outlier_steps_have_numbers_and_what_most_of_them_is() -> None:
    job, found = diagnosed("gpt1024_checkpoint_spike")
    assert sorted(row.step for row in found.outlier_steps) == [3, 7, 11]
    longest = [row.wall_ns for row in found.outlier_steps]
    assert longest == sorted(longest, reverse=True)
    for row in found.outlier_steps:
        assert (row.part, row.name) == ("idle", "checkpoint_stall")
        assert row.excess_ns <= row.wall_ns - row.normal_ns
        lengths = job.steps.to_pydict()["wall_ns"]
        assert (row.wall_ns, row.normal_ns) == (lengths[row.step], lengths[row.normal_step])
    text = outlier_text(found)
    assert text.count("most of the excess") == 1
    assert text.endswith(", in each most of the excess idle (checkpoint_stall)")
    other = msgspec.structs.replace(found.outlier_steps[1], part="copy", name="DtoH")
    several = msgspec.structs.replace(found, outlier_steps=[*found.outlier_steps[::2], other])
    assert outlier_text(several).count("most of the excess") == 2
    assert found.ranks == []
    assert job.verify(msgspec.json.encode(found)).verified


def test_two_repairs_together_gain_no_less_than_each() -> None:
    job, found = diagnosed("gpt1024_alloc_churn")
    assert found.combined is not None
    assert found.combined.causes == [f.cause for f in found.findings[:2]]
    assert found.combined.replayed
    assert found.combined.predicted_step_ns <= min(f.predicted_step_ns for f in found.findings[:2])
    assert found.combined.prediction_low_ns > 0
    (figure,) = (e for e in found.evidence if e.figure == "combined.predicted_step_ns")
    assert job.figure(figure.sql) == figure.value == found.combined.predicted_step_ns


def item(step: float, low: float, high: float, **more: Any) -> Ranked:
    """A finding of a step of 100 ns that cannot be replayed."""
    return cast(
        "Ranked",
        SimpleNamespace(
            cause=SimpleNamespace(id="host_sync"),
            case=SimpleNamespace(step_ns=100.0, job_step_ns=100.0),
            predicted=Predicted(step, low, high, **more),
            detection=SimpleNamespace(
                repair=None, change=None, also=(), added_ns=0.0, supply_ns=None
            ),
        ),
    )


def test_two_repairs_that_are_arithmetic_keep_their_shares() -> None:
    first, second = item(50, 50, 50), item(80, 80, 80)
    found = both([first, second], lambda changes: pytest.fail(f"nothing to replay: {changes}"))
    assert found is not None
    assert not found.replayed
    assert found.predicted.step_ns == 40
    assert (found.predicted.low_ns, found.predicted.high_ns) == (40, 40)
    assert both([first], lambda changes: pytest.fail(f"one finding: {changes}")) is None
    wide = both([item(50, 25, 75), second], lambda changes: pytest.fail(str(changes)))
    assert wide is not None
    assert (wide.predicted.low_ns, wide.predicted.high_ns) == pytest.approx((20, 60))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (item(50, 45, 60), ""),
        (item(50, 45, 99.5), "today's step"),
        (item(20, 15, 31), "factor of two"),
        (item(50, 45, 60, replay_failed=True), "replay"),
    ],
)
def test_an_unreliable_prediction_is_called_so(case: Ranked, reason: str) -> None:
    found = why_unreliable(case)
    assert reason in found
    assert bool(found) == bool(reason)


def test_where_nothing_is_predicted_nothing_is_unreliable() -> None:
    nothing = item(100, 100, 100)
    cast("Any", nothing).cause.id = "insufficient_data"
    assert why_unreliable(nothing) == ""


@pytest.mark.parametrize(("late", "told"), [(90, False), (100, True)])
def test_a_gap_counts_to_every_step_that_it_lasts_in(late: int, told: bool) -> None:
    """Six steps of 100 ns; each second one begins with a gap of 60 ns, or 10 ns before that."""
    begin = np.arange(3) * 200 + late
    segments = {"start_ns": begin, "end_ns": begin + 60}
    explanation = SimpleNamespace(
        segments_of=lambda cause: np.arange(3),
        gaps=SimpleNamespace(segments=segments),
        bounds_ns=np.arange(7) * 100,
        first=0,
        last=5,
        n_steady=6,
    )
    detection = SimpleNamespace(time_sql=None, time_ns=30.0)
    cause = SimpleNamespace(id="host_compute", time_sql=None)
    case = SimpleNamespace(explanation=explanation, step_ns=100.0, job_step_ns=100.0)
    found = unaffected_figure(
        cast("Ranked", SimpleNamespace(case=case, cause=cause, detection=detection))
    )
    # 10 of the 60 ns lie in the step before: a third of what the mean step holds, and not nothing
    assert (found is not None) == told


def test_idle_time_ends_at_an_upload() -> None:
    _, found = diagnosed("cnn_disk")
    first = found.findings[0]
    assert (first.cause, first.gaps_end_at) == ("input_starvation", "upload")
    share = next(e.value for e in first.evidence if e.figure == "gaps_end_share")
    assert 0.5 <= share <= 1


def test_what_holds_the_whole_step_is_no_place_in_it() -> None:
    """Names 0 to 2: all of the time and launches; all of the time, few launches; half of both."""
    frame = Frame(
        {
            "name": np.array([0, 0, 1, 1, 2]),
            "start_ns": np.array([0, 50, 0, 41, 0]),
            "end_ns": np.array([50, 100, 39, 100, 50]),
        },
        {"name": ["step", "dataload", "forward"]},
    )
    launched = np.array([10, 20, 30, 40, 40, 40, 60, 70])
    kept = _without_wrappers(frame, (0, 100), launched)
    assert kept["name"].tolist() == [1, 1, 2]
    assert len(_without_wrappers(frame, (0, 200), launched)) == len(frame)
    assert len(_without_wrappers(frame, (0, 100), launched[:0])) == len(frame)


def test_copies_have_a_column_where_they_take_some_of_a_step() -> None:
    found = Job([unpack(path) for path in RANKS]).diagnose()
    rows = [msgspec.structs.replace(row, copy_ns=0) for row in found.ranks]
    without = msgspec.structs.replace(found, ranks=rows)
    assert rank_headings(without) == ["compute", "wait", "transfer", "idle"]
    rows[1] = msgspec.structs.replace(rows[1], copy_ns=rows[1].step_ns // 50)
    copying = msgspec.structs.replace(found, ranks=rows)
    assert rank_headings(copying) == ["compute", "wait", "transfer", "copy", "idle"]
    assert {len(cells) for cells in rank_cells(copying).values()} == {5}


def test_what_two_findings_gain_twice_is_said() -> None:
    _, found = diagnosed("gpt1024_checkpoint_spike")
    (first, *_) = found.findings
    step = next(e.value for e in first.evidence if e.figure == "step_ns")
    half = msgspec.structs.replace(first, cause="gil_contention", predicted_step_ns=int(step / 2))
    both_ns = round(0.4 * step)  # 50 % and 50 % gain 60 % together: 40 % of the step is the same
    together = Combined(["gil_contention", "host_sync"], both_ns, both_ns, both_ns, True)
    text = combined_text(msgspec.structs.replace(found, findings=[half, half], combined=together))
    assert text.startswith("1 and 2 together (GIL contention and host synchronisation): the step")
    assert text.endswith(
        f"; {milliseconds(0.4 * step)} of what either gains alone is the same time"
    )
    apart = msgspec.structs.replace(together, predicted_step_ns=0)
    text = combined_text(msgspec.structs.replace(found, findings=[half, half], combined=apart))
    assert "the same time" not in text


def test_steps_without_the_cause_that_take_longer_than_predicted_are_explained() -> None:
    _, found = diagnosed("gpt1024_checkpoint_spike")
    recorded = msgspec.structs.replace(found.findings[0].evidence[0], figure="unrecorded_step_ns")
    finding = msgspec.structs.replace(
        found.findings[0],
        unreliable="wide",
        unaffected_step_ns=20_000_000,
        predicted_step_ns=12_000_000,
        evidence=[msgspec.structs.replace(recorded, value=11_000_000)],
    )
    told = "recording costs them; when nothing is recorded, a step without the cause takes about"
    assert reliability_text(finding).endswith(f"{told} {milliseconds(11_000_000)}")
    as_long = msgspec.structs.replace(finding, predicted_step_ns=19_500_000)
    assert told not in reliability_text(as_long)


def test_a_rank_whose_lateness_a_finding_explains_is_not_remarked_on() -> None:
    def found(cause: str, *ranks: int) -> list[Any]:
        return [SimpleNamespace(cause=cause, ranks=list(ranks))]

    assert _says_why(found("checkpoint_stall", 0), 0)
    assert _says_why(found("straggler", 1), 0)
    assert not _says_why(found("checkpoint_stall", 1), 0)
    assert not _says_why(found("host_sync", 0, 1), 0)
    assert not _says_why(found("profiler_overhead", 0), 0)


@pytest.mark.parametrize(("before", "told"), [(9.0, True), (9.8, False), (10.4, False), (12, True)])
def test_steps_that_nobody_records_are_told_where_they_differ(before: float, told: bool) -> None:
    value = {"unrecorded_before_ns": before * 1e6, "unrecorded_step_ns": 5e6, "step_ns": 10e6}
    evidence = [SimpleNamespace(figure=name, value=ns) for name, ns in value.items()]
    text = unrecorded_text(cast("Any", SimpleNamespace(evidence=evidence)))
    assert text == (f"; without the profiler, about {before:.1f} ms become 5.0 ms" if told else "")
