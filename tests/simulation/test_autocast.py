"""What autocast halves, and which products have their input cast, on hand-made steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.diagnosis.test_kernel_causes import FP32, NORM, STEPS, Steps, elementwise
from tests.support.build import AUTOGRAD

from stepscope.simulation.settings import autocast, precision
from stepscope.simulation.settings.base import Facts
from stepscope.simulation.settings.precision import lengths

GELU, ADD, GATE = elementwise("gelu"), elementwise("add", 3), elementwise("Mul", 3)
COUNT = elementwise("OnSelf_add")
ROOT = elementwise("rsqrt_kernel")
LAYOUT = "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda(float)>(int)"
DROPOUT = "void at::native::fused_dropout_kernel_vec<float, float>(int)"
BIAS = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<sum_functor> >(int)"


def facts_of(folder: Path, work: list[str], backward: tuple[str, ...] = ()) -> Facts:
    """Steps of kernels of 100 us each, with a product before and behind them."""
    steps = Steps()
    for number in range(STEPS):
        begin = steps.host
        for kernel in (FP32, *work, FP32):
            steps.launch(kernel, 100.0, blocks=1 if kernel == COUNT else 1000)
        for kernel in backward:
            steps.launch(kernel, 100.0, thread=AUTOGRAD)
        steps.build.range(begin, steps.host, f"step_{number}")
    return steps.diagnose(folder)[1].explained.simulation.facts[0]


def shares(facts: Facts) -> list[float]:
    """What each kernel of a step takes under autocast, of its time before."""
    kernels = facts.kernels
    found = lengths(facts, "bf16")[kernels.steady] / 100e3
    return [round(float(share), 3) for share in found.reshape(kernels.n_steady, -1)[1]]


@pytest.mark.parametrize(
    ("kernel", "share"),
    [
        (GELU, autocast.FUNCTIONS),
        (ADD, autocast.SUMS),
        (GATE, autocast.OF_TWO),
        (LAYOUT, autocast.LAYOUTS),
        (DROPOUT, autocast.DROPOUT),
        (NORM, (1.0, 1.0, 1.0)),
        (ROOT, (1.0, 1.0, 1.0)),
    ],
)
def test_behind_a_product_tensors_are_half_as_large(
    tmp_path: Path, kernel: str, share: tuple[float, float, float]
) -> None:
    facts = facts_of(tmp_path, [kernel])
    assert shares(facts)[1] == share[1]
    rows = facts.kernels.gpu.ops.equals("name", kernel) & facts.kernels.steady
    for bound, expected in zip(("high", "expected", "low"), share, strict=True):
        found = autocast.shares(facts, precision.products(facts, "bf16")[0], bound)
        assert found[rows] == pytest.approx(expected)


def test_what_a_norm_gives_stays_in_single_precision_up_to_the_next_product(tmp_path: Path) -> None:
    before, after = autocast.FUNCTIONS[1], 1.0
    assert shares(facts_of(tmp_path, [GELU, NORM, GELU, FP32, GELU]))[1:6:2] == [
        before,
        after,
        before,
    ]


@pytest.mark.parametrize(("kernel", "share"), [(COUNT, autocast.FUNCTIONS[1]), (ADD, 1.0)])
def test_a_number_that_counts_batches_is_no_residual(
    tmp_path: Path, kernel: str, share: float
) -> None:
    assert shares(facts_of(tmp_path, [kernel, GELU]))[2] == share


def test_gradients_of_biases_are_sums_of_half_as_many_bytes(tmp_path: Path) -> None:
    """In the backward pass; a sum in the forward pass is a loss's or a norm's."""
    facts = facts_of(tmp_path, [BIAS], (FP32, BIAS, FP32))
    assert shares(facts)[1] == 1.0
    assert shares(facts)[4] == autocast.COLUMNS[1]


@pytest.mark.parametrize(
    ("before", "cast"), [(NORM, True), (ADD, True), (GELU, False), (DROPOUT, False)]
)
def test_products_behind_single_precision_have_their_input_cast(
    tmp_path: Path, before: str, cast: bool
) -> None:
    """Queries, keys and values are made of one input: all three of them, or none."""
    facts = facts_of(tmp_path, [before, FP32, FP32])
    kernels = facts.kernels
    rows = np.flatnonzero(kernels.in_category("matmul") & kernels.steady).reshape(-1, 4)
    assert autocast._takes_single(facts)[rows[1]].tolist() == [True, cast, cast, cast]


def test_without_shapes_the_input_is_a_part_of_what_is_launched_before(tmp_path: Path) -> None:
    """1000 blocks of 128 threads, eight elements each."""
    facts = facts_of(tmp_path, [GELU])
    kernels = facts.kernels
    rows = np.flatnonzero(kernels.in_category("matmul") & kernels.steady)[1:2]
    assert autocast._input_elements(kernels, rows).tolist() == [0.75 * 1000 * 128 * 8]
