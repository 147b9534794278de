"""Late launches: graphs of the model are predicted, and the whole step as one graph beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnosis.test_kernel_causes import check_evidence
from tests.support.build import Build

from stepscope.api import Job
from stepscope.diagnosis.result import Finding
from stepscope.diagnosis.sentence import unsupported
from stepscope.simulation.graphs import COMPILED_MODEL

STEPS = 8
EVERY = 50.0  # us from launch to launch
UPDATE = "void at::native::multi_tensor_apply_kernel<FusedOptimizer, AdamW>(int)"
WHOLE = "capture the whole step"


def late(folder: Path, model: int, update: int) -> tuple[Finding, Job]:
    """Steps of kernels of 5 us, so many of the model and of the update."""
    build, at = Build(), 0.0
    build.gpu("NVIDIA H200")
    for number in range(STEPS):
        begin = at
        for name, count in (("gemm", model), (UPDATE, update)):
            for _ in range(count):
                build.kernel(at + 8, at + 13, call=(at, at + 6), name=name)
                at += EVERY
        build.range(begin, at, f"step {number}")
    job = Job([build.trace(folder).folder])
    diagnosis = job.diagnose()
    check_evidence(diagnosis, job)
    finding = next(f for f in diagnosis.findings if f.cause == "launch_bound")
    assert unsupported(finding.message, finding.evidence, finding.names) == []
    return finding, job


def test_the_update_stays_outside_of_graphs_of_the_model(tmp_path: Path) -> None:
    finding, _ = late(tmp_path, 300, 60)
    whole, part = COMPILED_MODEL["expected"]
    left = (60 + whole + part * 300) * EVERY * 1000
    assert finding.predicted_step_ns == pytest.approx(left, rel=0.05)
    assert finding.recommendations[0].startswith("launch the model as CUDA graphs")
    assert finding.further is not None
    # all kernels, one behind the other
    assert finding.further.predicted_step_ns == pytest.approx(360 * 5_100, rel=0.05)
    assert finding.prediction_low_ns <= finding.further.predicted_step_ns
    assert "the prediction is for CUDA graphs of the model" in finding.message
    assert finding.further.repair in finding.message


def test_where_the_update_is_most_of_it_the_whole_step_comes_first(tmp_path: Path) -> None:
    finding, _ = late(tmp_path, 60, 300)
    assert finding.further is None
    assert finding.predicted_step_ns == pytest.approx(360 * 5_100, rel=0.05)
    assert finding.recommendations[0].startswith(WHOLE)
    assert "the prediction is for the whole step as one CUDA graph" in finding.message


def test_without_an_update_the_model_is_the_step(tmp_path: Path) -> None:
    finding, _ = late(tmp_path, 360, 0)
    assert finding.further is None
    assert finding.predicted_step_ns == pytest.approx(360 * 5_100, rel=0.05)
