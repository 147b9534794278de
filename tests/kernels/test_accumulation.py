"""Gradients that several backward passes of a step sum, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.build import AUTOGRAD, MAIN, Build
from tests.support.ddp import ALL_REDUCE

from stepscope.api import Job
from stepscope.kernels.accumulation import repeated_sums

GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float> >(int)"
STEPS, SUMS, GRADIENT = 6, 3, 80.0


def job(
    folder: Path,
    pieces: int,
    *,
    ahead: tuple[float, ...] = (),
    updates: bool = False,
    summed: bool = True,
    loss: bool = False,
) -> Job:
    """Two equal ranks whose steps have so many passes; all sums are exposed.

    Args:
        folder: where to write them.
        pieces: forward and backward passes of a step.
        ahead: what the forward GEMM of each takes, us; 200 each by default.
        updates: whether parameters are updated after each pass, rather than after the last one.
        summed: whether each pass sums its gradients, rather than the last one.
        loss: whether the loss of each pass is summed, too.
    """
    build = Build()
    build.gpu("NVIDIA H100 80GB HBM3")
    called, now = 0.0, 100.0

    def launch(name: str, us: float, thread: int = MAIN, stream: int = 7) -> None:
        nonlocal called, now
        if stream != 7:
            build.api(called, called + 1, "cudaStreamWaitEvent")
        called += 5
        build.kernel(now, now + us, call=(called, called + 4), name=name, thread=thread,
                     stream=stream, grid_x=64)  # fmt: skip
        now += us

    for step in range(STEPS):
        begin = called
        for piece in range(pieces):
            launch(GEMM, ahead[piece] if ahead else 200.0)
            if loss:
                launch(ALL_REDUCE, 1.0, stream=20)
            for _ in range(SUMS):
                launch(GEMM, 400.0, AUTOGRAD)
                if summed or piece == pieces - 1:
                    launch(ALL_REDUCE, GRADIENT, AUTOGRAD, 20)
            if updates or piece == pieces - 1:
                launch(ADAM, 150.0)
        called += 5
        build.range(begin, called, f"step_{step}")
    build.api(called + 5, now + 10, "cudaDeviceSynchronize")
    for number in range(2):
        place = folder / f"rank{number}"
        place.mkdir(parents=True)
        build.trace(place, rank=number, rank_source="test", origin_epoch_ns=10**18, world_size=2)
    return Job([folder / f"rank{n}" / "built.stepscope" for n in range(2)])


def rows(capture: Job) -> int:
    """Sums a step that are made too often."""
    explanation = capture.explained.cases[0].explanation
    found = repeated_sums(explanation.kernels)
    assert explanation.gpu.is_communication[found].all()
    assert (np.diff(found) > 0).all()
    return len(found) // explanation.n_steady


@pytest.mark.parametrize("loss", [False, True])
def test_the_sums_of_all_passes_but_the_last(tmp_path: Path, loss: bool) -> None:
    assert rows(job(tmp_path, 4, loss=loss)) == 3 * SUMS


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"pieces": 1}, id="one pass"),
        pytest.param({"pieces": 2, "updates": True}, id="two models, each with its update"),
        pytest.param({"pieces": 2, "ahead": (200.0, 500.0)}, id="passes unlike each other"),
        pytest.param({"pieces": 4, "summed": False}, id="summed once"),
    ],
)
def test_passes_that_are_no_pieces_of_a_batch(tmp_path: Path, other: dict[str, int]) -> None:
    assert rows(job(tmp_path, **other)) == 0


def test_the_step_with_the_sums_of_the_last_pass(tmp_path: Path) -> None:
    finding = next(
        one for one in job(tmp_path, 4).diagnose().findings if one.cause == "exposed_communication"
    )
    step = 4 * (200 + SUMS * (400 + GRADIENT)) + 150
    assert finding.predicted_step_ns == pytest.approx((step - 3 * SUMS * GRADIENT) * 1e3, rel=0.01)
    assert "no_sync()" in finding.recommendations[0]
    assert finding.prediction_low_ns < finding.predicted_step_ns < finding.prediction_high_ns
