"""Gradients that several backward passes of a step sum, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.build import AUTOGRAD, MAIN, Build
from tests.support.ddp import ALL_REDUCE
from tests.support.reductions import end_of, equal_ranks

from stepscope.api import Job
from stepscope.kernels.accumulation import gathered_again, repeated_sums, summed_again
from stepscope.simulation.overlap import SLOWED

GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float> >(int)"
STEPS, SUMS = 6, 3
FORWARD, BACKWARD, UPDATE = 200.0, 400.0, 150.0
GRADIENT = 800.0
"""What a sum takes, us: the link is slower than the backward pass."""
SHARE = SLOWED["expected"]


class Ranks:
    """Two equal ranks, whose sums run beside what is computed, and slow it."""

    def __init__(self) -> None:
        self.build = Build()
        self.build.gpu("NVIDIA H100 80GB HBM3")
        self.called, self.now, self.free = 0.0, 100.0, 0.0

    def launch(self, name: str, begin: float, end: float, thread: int, stream: int = 7) -> None:
        self.called += 5
        call = self.called, self.called + 4
        self.build.kernel(begin, end, call=call, name=name, thread=thread, stream=stream, grid_x=64)

    def compute(self, name: str, us: float, thread: int = MAIN) -> None:
        end = end_of(self.now, us, self.free, SHARE)
        self.launch(name, self.now, end, thread)
        self.now = end

    def sum(self, us: float = GRADIENT) -> None:
        self.build.api(self.called + 1, self.called + 2, "cudaStreamWaitEvent", thread=AUTOGRAD)
        begin = max(self.now, self.free)
        self.free = begin + us
        self.launch(ALL_REDUCE, begin, self.free, AUTOGRAD, 20)

    def update(self) -> None:
        self.build.api(self.called + 1, self.called + 2, "cudaStreamWaitEvent")
        self.called += 5
        self.now = max(self.now, self.free)
        self.compute(ADAM, UPDATE)

    def job(self, folder: Path) -> Job:
        self.build.api(self.called + 5, self.now + 10, "cudaDeviceSynchronize")
        return equal_ranks(folder, self.build, 2)


def job(
    folder: Path,
    pieces: int,
    *,
    ahead: tuple[int, ...] = (),
    updates: bool = False,
    summed: bool = True,
    loss: bool = False,
) -> Job:
    """Steps with so many forward and backward passes.

    Args:
        folder: where to write the captures.
        pieces: passes of a step.
        ahead: forward GEMMs of each, one by default.
        updates: whether parameters are updated after each pass, rather than after the last one.
        summed: whether each pass sums its gradients, rather than the last one.
        loss: whether the loss of each pass is summed, too.
    """
    ranks = Ranks()
    for step in range(STEPS):
        begin = ranks.called
        for piece in range(pieces):
            for _ in range(ahead[piece] if ahead else 1):
                ranks.compute(GEMM, FORWARD)
            if loss:
                ranks.sum(1.0)
            for _ in range(SUMS):
                ranks.compute(GEMM, BACKWARD, AUTOGRAD)
                if summed or piece == pieces - 1:
                    ranks.sum()
            if updates or piece == pieces - 1:
                ranks.update()
        ranks.called += 5
        ranks.build.range(begin, ranks.called, f"step_{step}")
    return ranks.job(folder)


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
        pytest.param({"pieces": 2, "ahead": (1, 2)}, id="passes unlike each other"),
        pytest.param({"pieces": 4, "summed": False}, id="summed once"),
    ],
)
def test_passes_that_are_no_pieces_of_a_batch(tmp_path: Path, other: dict[str, Any]) -> None:
    assert rows(job(tmp_path, **other)) == 0


def test_the_step_with_the_sums_of_the_last_pass(tmp_path: Path) -> None:
    finding = job(tmp_path, 4).diagnose().findings[0]
    assert finding.cause == "exposed_communication"
    # the sums of the last pass begin with its first gradient, and the update waits for them
    compute = 3 * (FORWARD + SUMS * BACKWARD) + FORWARD + BACKWARD
    step = compute + SUMS * GRADIENT + UPDATE
    assert finding.predicted_step_ns == pytest.approx(step * 1e3, rel=0.02)
    assert "no_sync()" in finding.recommendations[0]
    assert finding.prediction_low_ns < finding.predicted_step_ns < finding.prediction_high_ns


def again(folder: Path, first: list[int], behind: list[int], *, between: int = 0) -> int:
    """Sums a step that are made again, of steps that sum so many bytes in and behind backward.

    Args:
        folder: where to write the captures.
        first: bytes that each product of the backward pass is followed by.
        behind: those of the sums behind all of them.
        between: products between the latter.
    """
    ranks = Ranks()
    for step in range(STEPS):
        begin = ranks.called
        ranks.compute(GEMM, FORWARD)
        for _ in first:
            ranks.compute(GEMM, BACKWARD, AUTOGRAD)
            ranks.sum()
        for _ in behind:
            for _ in range(between):
                ranks.compute(GEMM, BACKWARD, AUTOGRAD)
            ranks.sum()
        ranks.update()
        ranks.called += 5
        ranks.build.range(begin, ranks.called, f"step_{step}")
    explanation = ranks.job(folder).explained.cases[0].explanation
    kernels = explanation.kernels
    sums = kernels.order[explanation.gpu.is_communication[kernels.order]]
    sent = np.full(len(kernels.gpu.ops), -1, np.int64)
    sent[sums] = (first + behind) * STEPS
    found = summed_again(kernels, sent)
    assert explanation.gpu.is_communication[found].all()
    return len(found) // explanation.n_steady


@pytest.mark.parametrize(
    ("first", "behind", "between", "found"),
    [
        ([600, 400], [250, 250, 500], 0, 3),
        ([600, 400], [1000, 1], 0, 2),  # a norm is summed, too
        ([600, 400], [500], 0, 0),
        ([600, 400], [], 0, 0),
        ([600, 400], [500, 500], 1, 0),  # of another backward pass
        ([600, -1], [1000], 0, 0),  # a size that is not known
    ],
)
def test_what_is_summed_once_more(
    first: list[int], behind: list[int], between: int, found: int, tmp_path: Path
) -> None:
    assert again(tmp_path, first, behind, between=between) == found


GATHER, SCATTER = (
    f"ncclDevKernel_{name}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    for name in ("AllGather", "ReduceScatter_Sum_bf16")
)
APART = "void at::native::split_with_sizes_copy_out_contiguous_no_cast_kernel<long>(int)"
CAST = "void at::native::multi_tensor_apply_kernel<at::native::Copy<float> >(int)"
LAYERS = 3


@pytest.mark.parametrize(
    ("pieces", "sums", "found"),
    [
        (1, 1, 0),  # once for either pass
        (2, 2, 0),  # sums each time: that is another fault
        (3, 1, 5 * LAYERS),  # but for those of the first forward pass
    ],
)
def test_weights_that_are_gathered_again(
    pieces: int, sums: int, found: int, tmp_path: Path
) -> None:
    """With each gather go the cast of the shard ahead of it and the copy behind it."""
    ranks = Ranks()
    for step in range(STEPS):
        begin = ranks.called
        for piece in range(pieces):
            for thread in (MAIN, AUTOGRAD):
                for _ in range(LAYERS):
                    for name, stream in ((CAST, 15), (GATHER, 19)):
                        ranks.launch(name, ranks.now, ranks.now + 9, thread, stream)
                        ranks.now += 10
                    ranks.compute(APART, 20.0, thread)
                    ranks.compute(GEMM, FORWARD, thread)
                    if thread == AUTOGRAD and piece >= pieces - sums:
                        ranks.launch(SCATTER, ranks.now, ranks.now + 9, thread, 23)
        ranks.update()
        ranks.called += 5
        ranks.build.range(begin, ranks.called, f"step_{step}")
    explanation = ranks.job(tmp_path).explained.cases[0].explanation
    kernels = explanation.kernels
    rows = gathered_again(kernels)
    names = [kernels.gpu.ops.text("name", row) for row in rows]
    for name in (GATHER, CAST, APART):
        assert names.count(name) == found * explanation.n_steady
    assert len(names) == 3 * found * explanation.n_steady
