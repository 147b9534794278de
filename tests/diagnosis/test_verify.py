"""Every figure of a report can be recomputed, and one that was changed is found."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec
import pytest
from tests.support.captures import DATA, of_each_cause, unpack

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture
from stepscope.diagnosis.sentence import unsupported
from stepscope.diagnosis.verify import Verification, verify
from stepscope.trace.errors import InputError


@pytest.fixture(scope="module")
def job() -> Job:
    return Job([bundled_capture()])


@pytest.fixture(scope="module")
def report(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(msgspec.json.encode(job.diagnose()))
    return found


def verified(job: Job, report: Any) -> Verification:
    return job.verify(json.dumps(report).encode())


def test_a_report_agrees_with_its_capture(job: Job, report: dict[str, Any]) -> None:
    result = verified(job, report)
    assert result.verified
    figures = sum(len(finding["evidence"]) for finding in report["findings"])
    assert result.checked > figures + len(report["evidence"])


def changes(report: dict[str, Any]) -> Iterator[tuple[str, Callable[[dict[str, Any]], None]]]:
    """Every place of a report that holds a figure, with what changes it by one."""

    def add(container: Any, key: Any) -> None:
        container[key] += 1

    for key in ("predicted_step_ns", "prediction_low_ns", "prediction_high_ns",
                "time_ns_per_step", "share_of_step"):  # fmt: skip
        yield key, lambda r, key=key: add(r["findings"][0], key)
    for number in range(len(report["findings"][0]["evidence"])):
        yield (
            f"finding evidence {number}",
            lambda r, number=number: add(r["findings"][0]["evidence"][number], "value"),
        )
    for number in range(len(report["evidence"])):
        yield f"evidence {number}", lambda r, n=number: add(r["evidence"][n], "value")
    for key in ("median", "p95", "coefficient_of_variation"):
        yield key, lambda r, key=key: add(r["step_ns"], key)
    gpu = report["accounting"][0]
    for key in gpu:
        if key.endswith("_ns") and isinstance(gpu[key], int):
            yield key, lambda r, key=key: add(r["accounting"][0], key)
    for key in gpu["idle_by_cause_ns"]:
        yield f"idle {key}", lambda r, key=key: add(r["accounting"][0]["idle_by_cause_ns"], key)
    yield "reason", lambda r: r["findings"][0].update(reason="it waits for 1,234.5 ms")
    yield "message", lambda r: r["findings"][0].update(message="It costs 1,234.5 ms of each step")


def test_any_changed_figure_is_found(job: Job, report: dict[str, Any]) -> None:
    figure = cache(job.figure)  # the statements stay the same
    tried = 0
    assert verify(json.dumps(report).encode(), figure).verified
    for name, change in changes(report):
        changed = copy.deepcopy(report)
        change(changed)
        assert not verify(json.dumps(changed).encode(), figure).verified, name
        tried += 1
    assert tried > 40


def test_a_report_of_the_first_version_can_still_be_verified(
    job: Job, report: dict[str, Any]
) -> None:
    """Version 1 had other names for some fields, and did not say what a step is."""
    earlier = copy.deepcopy(report)
    earlier["schema"] = "stepscope.diagnosis/1"
    earlier["warnings"] = earlier.pop("warnings")
    del earlier["trace"]["step"], earlier["step_ns"]["mean"]
    for finding in earlier["findings"]:
        finding["message"] = finding.pop("message")
        finding["recommendations"] = finding.pop("recommendations")
        finding["because"] = finding.pop("root_cause")
    found = verified(job, earlier)
    assert found.verified, found.differences
    assert found.checked > 40
    earlier["findings"][0]["message"] = "It costs 1,234.5 ms of each step"
    assert not verified(job, earlier).verified


def test_a_report_of_another_capture_differs(report: dict[str, Any]) -> None:
    other = next(path for path in sorted(DATA.rglob("gpt_pageable*")))
    assert not verified(Job([unpack(other)]), report).verified


@pytest.mark.parametrize(
    ("text", "output"),
    [(b"{", "not JSON"), (b"[]", "schema"), (b'{"schema": "x/1"}', "'x/1'"),
     (b'{"schema": "stepscope.diagnosis/1"}', "not whole"),
     (b'{"schema": "stepscope.diagnosis/2"}', "not whole"), (b"\xff", "JSON")],
)  # fmt: skip
def test_what_is_no_report_is_refused(job: Job, text: bytes, output: str) -> None:
    with pytest.raises(InputError, match=output):
        job.verify(text)


def test_a_statement_that_reads_files_is_not_run(job: Job, report: dict[str, Any]) -> None:
    changed = copy.deepcopy(report)
    changed["findings"][0]["evidence"][0]["sql"] = "SELECT count(*) FROM read_text('/etc/passwd')"
    result = verified(job, changed)
    assert [d.recomputed for d in result.differences] == [None]


@pytest.mark.parametrize("file", sorted(of_each_cause()))
def test_times_and_sentences_rest_on_evidence(file: str) -> None:
    job = Job([unpack(DATA / file)])
    diagnosis = job.diagnose()
    for finding in diagnosis.findings:
        taken = f"SELECT max(time_ns) FROM prediction WHERE cause = '{finding.cause}'"
        if finding.cause != "insufficient_data":  # the statement agrees with what the cause saw
            value = {e.figure: e.value for e in finding.evidence}
            time = value.get("observed_ns_per_step", finding.time_ns_per_step)
            assert abs(job.figure(taken) - time) <= 1
            gain = value["step_ns"] - finding.predicted_step_ns
            assert gain >= 0.49 * finding.time_ns_per_step, "cost and prediction contradict"
        assert unsupported(finding.message, finding.evidence, finding.names) == [], finding.message


def test_utilisation_is_the_time_in_which_a_kernel_ran(job: Job, report: dict[str, Any]) -> None:
    """What nvidia-smi calls utilisation, against a union of the kernels that looks at each."""
    steady = job.query("SELECT min(start_ns) b, max(end_ns) e FROM step WHERE steady").to_pylist()
    begin, end = steady[0]["b"], steady[0]["e"]
    kernels = job.query("SELECT start_ns, end_ns FROM gpu_op WHERE kind = 'kernel' ORDER BY ALL")
    ran, passed = 0, begin
    for one in kernels.to_pylist():
        left, right = max(one["start_ns"], passed), min(one["end_ns"], end)
        ran += max(right - left, 0)
        passed = max(passed, right)
    assert report["gpu_utilization"] == pytest.approx(ran / (end - begin), rel=1e-12)
    wrong = copy.deepcopy(report)
    wrong["gpu_utilization"] = 0.99
    assert verified(job, wrong).differences[0].figure == "gpu_utilization"
    del wrong["gpu_utilization"]
    assert verified(job, wrong).verified  # as reports of older versions are
