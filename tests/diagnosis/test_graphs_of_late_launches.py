"""Late launches: graphs of the model are predicted, and the whole step as one graph beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.build import Build
from tests.support.evidence import check_evidence

from stepscope.api import Job
from stepscope.diagnosis.result import Finding
from stepscope.diagnosis.sentence import unsupported
from stepscope.simulation.graphs import COMPILED_MODEL, GRADIENT_LAUNCHES

STEPS = 8
EVERY = 50.0  # us from launch to launch
UPDATE = "void at::native::multi_tensor_apply_kernel<FusedOptimizer, AdamW>(int)"
WHOLE = "capture the whole step"


def late(
    folder: Path, model: int, update: int, kernel: str = "gemm", gradients: int = 0
) -> tuple[Finding, Job]:
    """Steps of kernels of 5 us, so many of the model and of the update.

    Args:
        folder: where the trace is written.
        model: launches of the model in a step.
        update: launches of the update.
        kernel: name of the model's kernels.
        gradients: how many autograd is recorded to accumulate in a step.
    """
    build, at = Build(), 0.0
    build.gpu("NVIDIA H200")
    for number in range(STEPS):
        begin = at
        for name, count in ((kernel, model), (UPDATE, update)):
            for _ in range(count):
                build.kernel(at + 8, at + 13, call=(at, at + 6), name=name)
                at += EVERY
        build.range(begin, at, f"step {number}")
        for which in range(gradients):
            here = begin + 10 + 2 * which
            build.operator(here, here + 1, "torch::autograd::AccumulateGrad")
    folder.mkdir(exist_ok=True)
    job = Job([build.trace(folder).folder])
    diagnosis = job.diagnose()
    check_evidence(diagnosis, job)
    finding = next(f for f in diagnosis.findings if f.cause == "launch_bound")
    assert unsupported(finding.message, finding.evidence, finding.names) == []
    return finding, job


def test_the_update_stays_outside_of_graphs_of_the_model(tmp_path: Path) -> None:
    finding, _ = late(tmp_path, 300, 60)
    whole, part = COMPILED_MODEL["expected"]
    # 300 launches are so many gradients where none is recorded
    left = (60 + whole + part * 300 / GRADIENT_LAUNCHES["expected"]) * EVERY * 1000
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
    assert finding.predicted_step_ns == pytest.approx(360 * 5_100, rel=0.05)
    # graphs of the model alone are told beside it: the update is launched as before
    assert finding.further is not None
    assert finding.further.is_first
    assert finding.further.predicted_step_ns > 300 * EVERY * 1000
    assert f"with {finding.further.repair} the step takes" in finding.message
    assert finding.recommendations[0].startswith(WHOLE)
    assert "the prediction is for the whole step as one CUDA graph" in finding.message


def test_without_an_update_the_model_is_the_step(tmp_path: Path) -> None:
    finding, _ = late(tmp_path, 360, 0)
    assert finding.further is None
    assert finding.predicted_step_ns == pytest.approx(360 * 5_100, rel=0.05)


def test_each_recorded_gradient_is_handed_over(tmp_path: Path) -> None:
    finding, _ = late(tmp_path, 300, 60, gradients=100)
    whole, part = COMPILED_MODEL["expected"]
    left = (60 + whole + part * 100) * EVERY * 1000
    assert finding.predicted_step_ns == pytest.approx(left, rel=0.05)


def test_compiled_code_may_copy_what_is_written_in_place(tmp_path: Path) -> None:
    name = "void at::native::index_elementwise_kernel<128, 4, at::native::index_copy_kernel_impl>"
    finding, job = late(tmp_path / "writes", 360, 0, kernel=name)
    step = job.diagnose().step_ns.mean
    assert finding.predicted_step_ns == pytest.approx(360 * 5_100, rel=0.05)
    assert finding.prediction_high_ns >= 0.95 * step
    assert "index_copy_" in finding.message
    other, _ = late(tmp_path / "computes", 360, 0)
    assert other.prediction_high_ns < 0.3 * step
    assert "index_copy_" not in other.message
    trains, _ = late(tmp_path / "trains", 300, 60, kernel=name)
    assert trains.prediction_high_ns < 0.7 * step
