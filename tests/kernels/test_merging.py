"""Merged kernels by hand: passes, reductions that stay, and arithmetic that fusion cannot hide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.build import AUTOGRAD, MAIN, Build

from stepscope.api import Job
from stepscope.kernels.attention import (
    HALF_RATE_AT_CAUSAL,
    RATE_NARROW,
    RATE_WIDE,
    UnfusedAttention,
)
from stepscope.kernels.kernels import Kernels
from stepscope.kernels.merging import ISSUED, SPECIAL_SHARE, merged, whole_reductions, work_of
from stepscope.kernels.precision import (
    ACHIEVED,
    CONVERTED,
    CONVOLUTION,
    in_precision,
    low_precision,
)

STEPS = 4
GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"
SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(int)"
COLUMNS = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float> >(int)"
CONCATENATED = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 4, 64>(float*)"
STRIDED = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)> >(int)"
)
SOFTMAX = "void softmax_warp_forward<float, float, float, 9, false, false>(int)"


def pointwise(operation: str, tensors: int) -> str:
    return (
        f"void at::native::vectorized_elementwise_kernel<4, at::native::{operation}_cuda_kernel("
        f"float), std::array<char*, {tensors}ul> >(int)"
    )


class Device:
    """Kernels of some steps, as they are launched, each 100 us."""

    def __init__(self) -> None:
        self.build = Build()
        self.build.gpu("NVIDIA H200")
        self.at = 0.0

    def kernel(
        self, name: str, us: float = 100.0, *, thread: int = MAIN, blocks: int = 1000, rows: int = 1
    ) -> None:
        host = self.at + 5
        self.build.kernel(host + 5, host + 5 + us, call=(host, host + 2), name=name, thread=thread,
                          grid_x=blocks, grid_y=rows, grid_z=1,
                          block_x=128, block_y=1, block_z=1)  # fmt: skip
        self.at = host + 5 + us

    def operator(self, name: str, shapes: str) -> None:
        """Around the launch of the next kernel, on the main thread."""
        types = '["c10::BFloat16","c10::BFloat16"]'
        self.build.operator(self.at + 4.5, self.at + 7.5, name, input_shapes=shapes,
                            input_types=types)  # fmt: skip

    def kernels(self, folder: Path) -> Kernels:
        return self.job(folder).explained.cases[0].explanation.kernels

    def job(self, folder: Path) -> Job:
        return Job([self.build.trace(folder).folder])


def device_of(names: list[tuple[str, int]], *, thread: int = MAIN, blocks: int = 1000) -> Device:
    """Steps of a GEMM and a run; of each kernel its name and the rows of its grid."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        device.kernel(GEMM)
        for name, rows in names:
            device.kernel(name, thread=thread, blocks=blocks, rows=rows)
        device.build.range(begin, device.at, f"step_{number}")
    return device


def one_run(kernels: Kernels) -> tuple[float, int]:
    """Time of the merged run of one step in us, and how many kernels are launched for it."""
    rows = kernels.order[(kernels.steady & ~kernels.in_category("matmul"))[kernels.order]]
    steps, run = np.unique(kernels.step[rows], return_inverse=True)
    found = merged(kernels, rows, run)
    assert found.low_ns <= found.new_ns.sum() <= found.high_ns <= kernels.duration_ns[rows].sum()
    assert not found.new_ns[found.goes].any()
    return found.new_ns.sum() / len(steps) / 1e3, int((~found.goes).sum()) // len(steps)


PAIR = [(pointwise("mul", 2), 1)] * 2


@pytest.mark.parametrize(
    ("names", "thread", "passes", "of", "launched"),
    [
        pytest.param(PAIR, MAIN, 2, 4, 1, id="one hands its tensor on"),
        pytest.param([(pointwise("mul", 2), 1)] * 8, MAIN, 2, 16, 1, id="a long chain"),
        pytest.param(
            [(pointwise("add", 3), 1)] * 8, MAIN, 10, 24, 1, id="each sum brings a tensor in"
        ),
        pytest.param([(pointwise("mul", 3), 1)] * 8, MAIN, 3, 24, 1, id="a factor enters, too"),
        pytest.param([(pointwise("mul", 3), 1)] * 8, AUTOGRAD, 3, 24, 1, id="a gradient"),
        pytest.param([*PAIR, (SUM, 1), *PAIR], MAIN, 2, 8, 1, id="a mean over rows is inside"),
    ],
)
def test_what_enters_and_leaves_is_moved(
    tmp_path: Path, names: list[tuple[str, int]], thread: int, passes: int, of: int, launched: int
) -> None:
    kernels = device_of(names, thread=thread).kernels(tmp_path)
    spent = 100.0 * sum(name != SUM for name, _ in names)
    taken, count = one_run(kernels)
    # not less than the shortest kernel takes
    assert taken == pytest.approx(max(spent * passes / of, 100.0), rel=1e-3)
    assert count == launched


@pytest.mark.parametrize("reduction", [(SUM, 9), (COLUMNS, 1)])
def test_a_reduction_over_columns_stays_and_takes_a_part_of_its_time(
    tmp_path: Path, reduction: tuple[str, int]
) -> None:
    names = [*[(pointwise("mul", 2), 1)] * 4, reduction]
    kernels = device_of(names).kernels(tmp_path)
    assert whole_reductions(kernels)[kernels.steady].sum() == kernels.n_steady
    taken, launched = one_run(kernels)
    assert taken == pytest.approx(100.0 + 0.6 * 100.0, rel=1e-3)
    assert launched == 2


def test_the_kernel_that_moves_a_tensor_fastest_tells_what_a_pass_takes(tmp_path: Path) -> None:
    """A cast to single precision inside the run moves wider tensors, which do not leave it."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        device.kernel(GEMM)
        for us in (100.0, 150.0, 100.0):
            device.kernel(pointwise("mul", 2), us)
        device.build.range(begin, device.at, f"step_{number}")
    taken, launched = one_run(device.kernels(tmp_path))
    assert (taken, launched) == (pytest.approx(2 * 50.0, rel=1e-3), 1)


@pytest.mark.parametrize(("name", "part"), [(CONCATENATED, 0.25), (STRIDED, 0.35)])
def test_copies_between_layouts_achieve_a_part_of_the_bandwidth(
    tmp_path: Path, name: str, part: float
) -> None:
    kernels = device_of([(name, 1)] * 2).kernels(tmp_path)
    taken, launched = one_run(kernels)
    assert (taken, launched) == (pytest.approx(100.0 * part, rel=1e-3), 1)


def test_arithmetic_of_a_long_chain_is_not_hidden(tmp_path: Path) -> None:
    """A run of so many tangents is bound by their instructions, not by the memory."""
    many = 40
    names = [(pointwise("tanh", 2), 1)] * many
    kernels = device_of(names, blocks=65536).kernels(tmp_path)
    elements = 65536 * 128 * 8
    plain, special = work_of("tanh")
    assert kernels.peaks is not None
    busier = max(many * plain + 2 * 2, SPECIAL_SHARE * many * special)
    expected = elements * busier / (kernels.peaks.fp32 / 2 * ISSUED[1]) * 1e6
    assert expected > 200.0
    assert one_run(kernels)[0] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("operation", "heavier"),
    [("mul", "tanh"), ("neg", "exp"), ("relu", "gelu"), ("add", "div"), ("expand", "exp")],
)
def test_functions_take_more_instructions(operation: str, heavier: str) -> None:
    assert sum(work_of(operation)) < sum(work_of(heavier))


def written_out(folder: Path, head: int, length: int) -> UnfusedAttention:
    device = Device()
    scores = f"[[256,{length},{head}],[256,{head},{length}]]"
    values = f"[[256,{length},{length}],[256,{length},{head}]]"
    for number in range(STEPS):
        begin = device.at
        device.operator("aten::bmm", scores)
        device.kernel(GEMM)
        device.kernel(pointwise("masked_fill", 2))
        device.kernel(SOFTMAX)
        device.operator("aten::bmm", values)
        device.kernel(GEMM)
        device.build.range(begin, device.at, f"step_{number}")
    found = device.job(folder).explained.cases[0].explanation.inside_kernels.attention
    assert found is not None
    return found


@pytest.mark.parametrize(("head", "rate"), [(64, RATE_NARROW), (128, RATE_WIDE)])
def test_fused_attention_by_its_shapes(tmp_path: Path, head: int, rate: float) -> None:
    length = 512
    found = written_out(tmp_path, head, length)
    # two products of the forward pass, half of each under the mask
    flop = 2 * 2 * 256 * length * length * head / 2
    reached = 989.5e12 * rate * length / (length + HALF_RATE_AT_CAUSAL)
    steps = found.softmaxes
    assert found.by_shape
    assert found.repair.new_ns.sum() / steps == pytest.approx(flop / reached * 1e9, rel=1e-3)
    assert found.repair.low_ns < found.repair.new_ns.sum() < found.repair.high_ns


@pytest.mark.parametrize(
    ("size", "us", "limit"),
    [
        (8192, 60_000.0, "arithmetic"),  # no more than is achieved of the peak
        (2048, 9_000.0, "ratio"),  # a product that reaches little now will reach little then
    ],
)
def test_products_in_a_quicker_type(tmp_path: Path, size: int, us: float, limit: str) -> None:
    device = Device()
    shape = f"[[{size},{size}],[{size},{size}]]"
    quick = 2.0 * size**3 / 67e12 * 1e6  # beyond what is achieved in single precision
    length = quick if limit == "arithmetic" else us
    for number in range(STEPS):
        begin = device.at
        device.operator("aten::mm", shape)
        device.kernel("ampere_sgemm_128x128_nn", length)
        device.kernel(pointwise("mul", 2))
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(tmp_path)
    rows = np.flatnonzero(kernels.in_category("matmul") & kernels.steady)
    expected = {
        "arithmetic": 2.0 * size**3 / (494.5e12 * ACHIEVED["tf32"]) * 1e9,
        "ratio": length * 1e3 * 67 * ACHIEVED["fp32"] / (494.5 * ACHIEVED["tf32"]),
    }
    assert in_precision(kernels, rows, "tf32") == pytest.approx(expected[limit], rel=1e-3)


CONVOLUTION_NAME = (
    "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_{layout}_tilesize128x32x8_stage3"
    "_warpsize2x2x1_g{groups}_ffma_aligna4_alignc4_execute_kernel__5x_cudnn"
)


@pytest.mark.parametrize(
    ("layout", "groups", "gains"),
    [
        ("nhwckrsc_nhwc", 1, CONVOLUTION),
        ("nchwkcrs_nchw", 1, CONVOLUTION / (1 + CONVERTED["expected"])),
        ("nchwkcrs_nchw", 32, None),
    ],
)
def test_convolutions_on_tensor_cores_are_converted_and_groups_gain_nothing(
    tmp_path: Path, layout: str, groups: int, gains: float | None
) -> None:
    device = Device()
    name = CONVOLUTION_NAME.format(layout=layout, groups=groups)
    for number in range(STEPS):
        begin = device.at
        device.kernel(name, 1_000.0)
        device.kernel(pointwise("relu", 2))
        device.build.range(begin, device.at, f"step_{number}")
    found = low_precision(device.kernels(tmp_path))
    assert found is not None
    peaks = found.peaks
    of_gemms = peaks.tf32 * ACHIEVED["tf32"] / (peaks.fp32 * ACHIEVED["fp32"])
    expected = 1e6 if gains is None else 1e6 / (of_gemms * gains)
    assert found.repair.new_ns == pytest.approx(expected, rel=1e-3)
    assert found.repair.low_ns <= found.repair.new_ns.sum() <= found.repair.high_ns
