"""Merged kernels by hand: passes, reductions that stay, and arithmetic that fusion cannot hide."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.support.build import AUTOGRAD, MAIN, Build

from stepscope.api import Job
from stepscope.diagnosis.inside_kernels import calls
from stepscope.kernels.convolutions import OF_SMALL_TILES, SHARE
from stepscope.kernels.fusion import chains
from stepscope.kernels.kernels import Kernels
from stepscope.kernels.merging import ISSUED, SPECIAL_SHARE, merged, whole_reductions, work_of
from stepscope.kernels.precision import (
    ACHIEVED,
    START_NS,
    TF32_ACHIEVED,
    in_precision,
    low_precision,
)
from stepscope.kernels.runs import compiled
from stepscope.kernels.tiles import SLOWEST
from stepscope.simulation.settings.autocast import in_half_elsewhere, in_losses, with_casts
from stepscope.simulation.settings.precision import BATCH_NORM, DEPTHWISE, lengths

STEPS = 4
GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"
SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(int)"
COLUMNS = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float> >(int)"
CONCATENATED = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 4, 64>(float*)"
STRIDED = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)> >(int)"
)
SCAN = "void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float> >(float*)"
FLIP = (
    "void at::native::index_elementwise_kernel<128, 4, at::native::(anonymous namespace)::"
    "flip_kernel_impl<at::native::OpaqueType<4> >(at::TensorIterator&)>(int)"
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
        self,
        name: str,
        us: float = 100.0,
        *,
        thread: int = MAIN,
        blocks: int = 1000,
        rows: int = 1,
        warps: int = 0,
    ) -> None:
        host = self.at + 5
        self.build.kernel(host + 5, host + 5 + us, call=(host, host + 2), name=name, thread=thread,
                          grid_x=blocks, grid_y=rows, grid_z=1,
                          block_x=32 if warps else 128, block_y=warps or 1,
                          block_z=1)  # fmt: skip
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


def test_one_call_of_compiled_code_launches_the_kernels_that_follow_one_another(
    tmp_path: Path,
) -> None:
    """A chain and the reduction behind it, the same after a GEMM, and once more backward."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        for thread in (MAIN, MAIN, AUTOGRAD):
            if thread == MAIN:
                device.kernel(GEMM)
            for name in (*[name for name, _ in PAIR], COLUMNS):
                device.kernel(name, thread=thread)
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(tmp_path)
    rows = kernels.order[~kernels.in_category("matmul")[kernels.order]]
    gone, kept = rows[::3], np.sort(np.setdiff1d(rows, rows[::3]))
    begins = calls(kernels, kept, gone)
    assert kept[begins].tolist() == np.sort(rows[1::3]).tolist()
    assert calls(kernels, np.sort(rows[2::3]), gone).all()  # what is not compiled ends a call


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


def test_copies_inside_of_a_chain_go_with_it(tmp_path: Path) -> None:
    """A copy amid four kernels and one behind them, which a GEMM reads."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        device.kernel(GEMM)
        for part in (PAIR, PAIR):
            for name, _ in part:
                device.kernel(name)
            host = device.at + 5
            device.build.copy(host + 5, host + 25, call=(host, host + 2), kind="DtoD", src="device")
            device.at = host + 25
        device.kernel(GEMM)
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(tmp_path)
    found = chains(kernels, np.zeros(len(kernels.gpu.ops), bool))
    assert found is not None
    assert found.chains == kernels.n_steady
    repair = found.repair
    copies = repair.rows[kernels.gpu.ops.equals("kind", "memcpy")[repair.rows]]
    assert len(copies) == kernels.n_steady
    # of 400 us in eight passes two remain, and nothing of the 20 us between them
    assert repair.saved_ns == (400 - 100 + 20) * 1000 * kernels.n_steady
    assert repair.merged.sum() == 4 * kernels.n_steady
    assert (np.diff(repair.rows) > 0).all()
    # the copy may be written by itself
    assert repair.high_ns - repair.low_ns >= 20_000 * kernels.n_steady


def test_layers_of_the_framework_around_a_function_stay_where_it_alone_is_compiled(
    tmp_path: Path,
) -> None:
    """Two functions of four kernels and a loss: its means and its zeros are not theirs."""
    loss = "void (anonymous namespace)::cunn_SoftMaxForward<8, float, LogSoftMax>(float*)"
    zeros = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)"
    )
    mul = pointwise("mul", 2)
    device = Device()
    for number in range(STEPS):
        begin = device.at
        device.kernel(GEMM)
        for name, us in (*[(mul, 100.0)] * 4, (loss, 200.0), (mul, 2.0), (mul, 3.0)):
            device.kernel(name, us)
        for name, us in ((mul, 2.0), (zeros, 90.0), (loss, 200.0), *[(mul, 100.0)] * 4):
            device.kernel(name, us, thread=AUTOGRAD)
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(tmp_path)
    found = chains(kernels, np.zeros(len(kernels.gpu.ops), bool))
    assert found is not None
    assert len(found.repair.rows) == 8 * kernels.n_steady
    assert found.repair.old_ns.tolist() == [100_000] * len(found.repair.rows)


def test_dropout_and_losses_alone_are_no_chain(tmp_path: Path) -> None:
    drops = "void at::native::fused_dropout_kernel_vec<float, float, float, 1, 4, bool>(int)"
    device = Device()
    for number in range(STEPS):
        begin = device.at
        device.kernel(GEMM)
        for _ in range(6):
            device.kernel(drops)
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(tmp_path)
    assert kernels.in_category("dropout").any()
    assert chains(kernels, np.zeros(len(kernels.gpu.ops), bool)) is None


def test_a_sum_along_a_dimension_goes_into_its_chain_and_tells_nothing_of_the_memory(
    tmp_path: Path,
) -> None:
    """PyTorch's kernel takes 2 ms where the memory needs 0.1 ms; its reversal ends the kernel."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        device.kernel(GEMM)
        for name, us in (*[(pointwise("mul", 2), 100.0)] * 2, (FLIP, 120.0), (SCAN, 2000.0),
                         (FLIP, 120.0), *[(pointwise("mul", 2), 100.0)] * 2):  # fmt: skip
            device.kernel(name, us)
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(tmp_path)
    found = chains(kernels, np.zeros(len(kernels.gpu.ops), bool))
    assert found is not None
    assert found.chains == kernels.n_steady
    steps = kernels.n_steady
    # two kernels of two passes each, as what reads the sum in the other order is one of its own
    assert found.repair.new_ns.sum() / steps == pytest.approx(2 * 100_000, rel=1e-3)
    assert (~found.repair.merged).sum() == 2 * steps


def test_sums_of_a_layers_backward_pass_are_no_spelled_out_function(tmp_path: Path) -> None:
    """A bias's gradient and a normalisation's, a cast and a residual stand between two GEMMs."""
    normalisation = "void at::native::layer_norm_grad_input_kernel_vectorized<float, float>(int)"
    behind = [COLUMNS, STRIDED, normalisation, SUM, SUM, pointwise("add", 3)]

    def chains_of(names: list[str], thread: int, folder: Path) -> int:
        folder.mkdir()
        device = Device()
        for number in range(STEPS):
            begin = device.at
            device.kernel(GEMM)
            for name in (GEMM, *names, GEMM):
                device.kernel(name, thread=thread)
            device.build.range(begin, device.at, f"step_{number}")
        kernels = device.kernels(folder)
        found = chains(kernels, np.zeros(len(kernels.gpu.ops), bool))
        return 0 if found is None else found.chains // kernels.n_steady

    assert chains_of(behind, AUTOGRAD, tmp_path / "backward") == 0
    assert chains_of(behind, MAIN, tmp_path / "forward") == 1  # sums that the program asks for
    spelled = [*behind, *[pointwise("mul", 3)] * 3]
    assert chains_of(spelled, AUTOGRAD, tmp_path / "spelled") == 1


def test_comparisons_write_bytes(tmp_path: Path) -> None:
    """75 us for five bytes an element are 60 us a tensor of single precision, no 37.5 us."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        device.kernel(GEMM)
        for name, us in ((pointwise("compare_scalar", 2), 75.0), (pointwise("mul", 2), 120.0)):
            device.kernel(name, us)
        device.build.range(begin, device.at, f"step_{number}")
    assert one_run(device.kernels(tmp_path))[0] == pytest.approx(120.0, rel=1e-3)


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


BLOCK_A_CHANNEL = "void at::native::batch_norm_backward_kernel<float, float, int>(int)"


@pytest.mark.parametrize(
    ("name", "part"), [(CONCATENATED, 0.25), (STRIDED, 0.35), (BLOCK_A_CHANNEL, 0.3)]
)
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


def test_tensors_side_by_side_are_all_computed_for_each_element(tmp_path: Path) -> None:
    names = [(pointwise("tanh", 2), 1)] * 40
    alone, joined = (
        one_run(device_of(run, blocks=16384).kernels(folder(tmp_path, name)))[0]
        for name, run in (("alone", names), ("joined", [*names, (CONCATENATED, 1)]))
    )
    assert alone > 200.0  # bound by arithmetic
    assert joined == pytest.approx(2 * alone, rel=0.02)


@pytest.mark.parametrize(
    ("operation", "heavier"),
    [("mul", "tanh"), ("neg", "exp"), ("relu", "gelu"), ("add", "div"), ("expand", "exp")],
)
def test_functions_take_more_instructions(operation: str, heavier: str) -> None:
    assert sum(work_of(operation)) < sum(work_of(heavier))


SGEMM = "ampere_sgemm_128x128_{}"
TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_{}_n_tilesize128x128x32_execute_kernel__5x_cublas"
UNALIGNED = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_nn_align1>(int)"


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
        "arithmetic": 2.0 * size**3 / (494.5e12 * TF32_ACHIEVED["nn"]) * 1e9,
        "ratio": length * 1e3 * 67 * ACHIEVED["fp32"] / (494.5 * TF32_ACHIEVED["nn"]),
    }
    new = in_precision(kernels, rows, "tf32")
    assert new == pytest.approx(expected[limit] + START_NS["tf32"], rel=1e-3)


def folder(parent: Path, name: str) -> Path:
    """A folder for one of several captures of a test."""
    found = parent / name
    found.mkdir()
    return found


def one_product(place: Path, name: str, shapes: str, operator: str = "aten::bmm") -> float:
    """What a product that takes 1 ms takes in TF32, ns."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        if shapes:
            device.operator(operator, shapes)
        device.kernel(name, 1_000.0)
        device.kernel(pointwise("mul", 2))
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(place)
    rows = np.flatnonzero(kernels.in_category("matmul") & kernels.steady)
    return float(in_precision(kernels, rows, "tf32")[0])


def test_products_of_weight_gradients_gain_less_in_tf32(tmp_path: Path) -> None:
    forward, gradient = (
        one_product(folder(tmp_path, layout), SGEMM.format(layout), "") for layout in ("tn", "nt")
    )
    start = START_NS["tf32"]
    assert (gradient - start) / (forward - start) == pytest.approx(
        TF32_ACHIEVED["tn"] / TF32_ACHIEVED["nt"]
    )


def test_products_of_several_streams_take_the_part_that_each_has_of_the_device(
    tmp_path: Path,
) -> None:
    """Two products in 1 ms on two streams do as much as two of 0.5 ms after each other."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        for stream in (7, 8):
            device.build.kernel(begin + 10, begin + 1_010, call=(begin + stream - 5, begin + 4),
                                name=SGEMM.format("tn"), stream=stream)  # fmt: skip
        device.at = begin + 1_020
        device.kernel(pointwise("mul", 2))
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(tmp_path)
    rows = np.flatnonzero(kernels.in_category("matmul") & kernels.steady)
    alone = 500_000 * 67 * ACHIEVED["fp32"] / (494.5 * TF32_ACHIEVED["tn"])
    assert in_precision(kernels, rows, "tf32") == pytest.approx(alone + START_NS["tf32"], rel=1e-3)


def test_what_computes_the_loss_stays_in_single_precision(tmp_path: Path) -> None:
    """Between the last product forward and the first one backward."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        for thread, name in ((MAIN, "a"), (MAIN, ""), (MAIN, "loss"), (AUTOGRAD, "loss_gradient"),
                             (AUTOGRAD, ""), (AUTOGRAD, "b")):  # fmt: skip
            device.kernel(pointwise(name, 2) if name else GEMM, thread=thread)
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(tmp_path)
    found = {kernels.gpu.ops.text("name", row) for row in np.flatnonzero(in_losses(kernels))}
    assert found == {pointwise("loss", 2), pointwise("loss_gradient", 2)}
    assert in_losses(kernels).sum() == 2 * STEPS


XMMA = "sm80_xmma_gemm_f32f32_f32f32_f32_{}_n_tilesize128x128x8_stage3_ffma_execute_kernel"
NUMBERED = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(int)"
TALL = 98304


def in_tf32(
    place: Path, *launches: tuple[str, tuple[int, int]], us: float = 1_000.0
) -> list[float]:
    """What products of one step take in TF32, us; of each its name and its grid."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        for name, (blocks, rows) in launches:
            device.kernel(name, us, blocks=blocks, rows=rows)
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(place)
    rows_ = np.flatnonzero(kernels.in_category("matmul") & kernels.steady)[: len(launches)]
    return [float(ns) / 1e3 for ns in in_precision(kernels, rows_, "tf32")]


def moved_in_us(elements: float) -> float:
    return elements * 4 / (0.8 * 4.8e12) * 1e6


def test_the_tiles_of_a_product_tell_what_it_moves(tmp_path: Path) -> None:
    """As much arithmetic for a result of 128 columns is little for each byte."""
    flop = 1e-3 * 67e12 * SLOWEST
    for height, width, bound in ((TALL, 128, True), (4096, 4096, False)):
        grid = height // 128, width // 128
        (found,) = in_tf32(folder(tmp_path, str(width)), (XMMA.format("tn"), grid))
        summed = flop / (2 * height * width)
        moved = moved_in_us(height * width + (height + width) * summed)
        rate = 1_000.0 * 67 * ACHIEVED["fp32"] / (494.5 * TF32_ACHIEVED["tn"])
        assert (moved > rate) == bound
        expected = max(moved, rate) + START_NS["tf32"] / 1e3
        assert found == pytest.approx(expected, rel=1e-2)


def test_tall_products_read_an_operand_again_for_each_column_of_tiles(tmp_path: Path) -> None:
    columns = 512
    (found,) = in_tf32(tmp_path, (XMMA.format("nn"), (TALL // 128, columns // 128)))
    summed = 1e-3 * 67e12 * SLOWEST / (2 * TALL * columns)
    elements = TALL * columns + (TALL + columns) * summed + 3 * TALL * summed
    assert found == pytest.approx(moved_in_us(elements) + START_NS["tf32"] / 1e3, rel=1e-2)


def test_tiles_numbered_along_one_dimension_lie_as_those_of_a_like_product(tmp_path: Path) -> None:
    tiles = TALL // 256 * 4
    alone, *both = (
        in_tf32(folder(tmp_path, str(len(names))), *names)[-1]
        for names in (
            [(NUMBERED, (tiles, 1))],
            [(XMMA.format("tn"), (TALL // 128, 4)), (NUMBERED, (tiles, 1))],
            [(XMMA.format("nn"), (TALL // 128, 4)), *[(NUMBERED, (tiles, 1))] * 2],
        )
    )
    (like,) = in_tf32(folder(tmp_path, "like"), (XMMA.format("nn"), (TALL // 128, 4)))
    assert both == pytest.approx([like, like])
    assert alone < like  # as if its sides were equal


@pytest.mark.parametrize(("columns", "gains"), [(48, True), (49, False)])
def test_batches_of_odd_rows_stay_on_the_cuda_cores(
    tmp_path: Path, columns: int, gains: bool
) -> None:
    shapes = f"[[64,{columns},32],[64,32,{columns}]]"
    new = one_product(tmp_path, SGEMM.format("nn"), shapes)
    assert (new < 1e6) == gains


CONVOLUTION_NAME = (
    "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_{layout}_tilesize128x32x8_stage3"
    "_warpsize2x2x1_g{groups}_ffma_aligna4_alignc4_execute_kernel__5x_cudnn"
)


def convolved(
    place: Path, name: str, *calls: tuple[str, str], beside: tuple[str, ...] = ()
) -> list[float]:
    """Kernels of convolutions of 1 ms and what they take on tensor cores, ns; of one step."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        for operator, shapes in calls or [("", "")]:
            if operator:
                device.operator(operator, shapes)
            device.kernel(name, 1_000.0)
        for other in beside:
            device.kernel(other)
        device.kernel(pointwise("relu", 2))
        device.build.range(begin, device.at, f"step_{number}")
    found = low_precision(device.kernels(place))
    assert found is not None
    assert found.repair.low_ns <= found.repair.new_ns.sum() <= found.repair.high_ns
    a_step = len(found.repair.rows) // STEPS
    return [float(ns) for ns in found.repair.new_ns[:a_step]]


def test_convolutions_without_shapes_take_a_share_with_what_is_beside_them(tmp_path: Path) -> None:
    name = CONVOLUTION_NAME.format(layout="nchwkcrs_nchw", groups=1)
    converts = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float>(int)"
    share = SHARE["tf32"]["expected"]
    assert convolved(tmp_path, name, beside=(converts,)) == [1e6 * share, 1e5 * share]


def test_small_tiles_on_the_cuda_cores_are_slower_than_others(tmp_path: Path) -> None:
    name = CONVOLUTION_NAME.format(layout="nchwkcrs_nchw", groups=1)
    small = name.replace("128x32x8", "32x32x8")
    assert convolved(tmp_path, small) == [1e6 * SHARE["tf32"]["expected"] * OF_SMALL_TILES]


def test_conversions_of_other_convolutions_stay(tmp_path: Path) -> None:
    name = CONVOLUTION_NAME.format(layout="nchwkcrs_nchw", groups=1)
    half = name.replace("f32f32_f32f32_f32", "bf16bf16_bf16f32_f32").replace(
        "ffma", "tensor16x8x16"
    )
    converts = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float>(int)"
    beside = (pointwise("relu", 2), converts, half)
    assert convolved(tmp_path, name, beside=beside) == [1e6 * SHARE["tf32"]["expected"]]


def test_convolutions_by_their_shapes(tmp_path: Path) -> None:
    name = CONVOLUTION_NAME.format(layout="nchwkcrs_nchw", groups=1)
    images, narrow = "[64,256,56,56]", "[64,64,56,56]"
    forward, backward, depthwise = convolved(
        tmp_path,
        name,
        ("aten::cudnn_convolution", f"[{images},[64,256,1,1],[],[]]"),
        ("aten::convolution_backward", f"[{narrow},{narrow},[64,64,3,3],[],[]]"),
        ("aten::cudnn_convolution", f"[{narrow},[64,1,3,3],[],[]]"),
    )
    places = 64 * 56 * 56
    # one tap: input, weights and output at 0.8 of 4.8 TB/s, longer than its arithmetic
    moved = 4 * (places * (256 + 64) + 64 * 256)
    assert forward == pytest.approx(moved / (0.8 * 4.8e12) * 1e9 + 10_000, rel=1e-3)
    # nine taps, for both gradients
    moved = 2 * 4 * (places * 128 + 64 * 64 * 9)
    assert backward == pytest.approx(moved / (0.1 * 4.8e12) * 1e9 + 30_000, rel=1e-3)
    assert depthwise == 1e6


def test_convolutions_and_batch_normalisation_in_bf16(tmp_path: Path) -> None:
    """Whose shapes are not known; PyTorch normalises BF16 by kernels of its own."""
    convolves = CONVOLUTION_NAME.format(layout="nchwkcrs_nchw", groups=1)
    converts = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float>(int)"
    forward = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(int)"
    backward = "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float)"
    depthwise = "void at::native::conv_depthwise2d_forward_kernel<5, float, int>(int)"
    device = Device()
    for number in range(STEPS):
        begin = device.at
        for name in (converts, convolves, forward, depthwise):
            device.kernel(name)
        device.kernel(backward, thread=AUTOGRAD)
        device.kernel(convolves, thread=AUTOGRAD)
        device.build.range(begin, device.at, f"step_{number}")
    facts = device.job(tmp_path).simulation.facts[0]
    ops, steady = facts.gpu.ops, facts.kernels.steady

    def us(name: str, target: str) -> list[float]:
        mine = ops.equals("name", name) & steady
        return [float(ns) / 1e3 for ns in np.unique(lengths(facts, target)[mine])]

    usual = 100 * SHARE["16bit"]["expected"]
    assert us(convolves, "bf16") == us(converts, "bf16") == [pytest.approx(usual)]
    norm = BATCH_NORM["expected"]
    assert us(forward, "bf16") == [pytest.approx(100 * norm[0])]
    assert us(backward, "bf16") == [pytest.approx(100 * norm[1])]
    assert us(forward, "fp16")[0] < 100  # cuDNN's own, for half of the bytes
    assert us(depthwise, "bf16") == [pytest.approx(100 * DEPTHWISE[1])]


@pytest.mark.parametrize(("blocks", "us", "chain"), [(8, 3000.0, False), (8, 10.0, True),
                                                     (1000, 3000.0, True)])  # fmt: skip
def test_scans_of_few_rows_are_slow_whoever_writes_them(
    blocks: int, us: float, chain: bool, tmp_path: Path
) -> None:
    """A compiler's scan has a block for each row, too; a short one takes no time that counts."""
    device = Device()
    for number in range(STEPS):
        begin = device.at
        device.kernel(GEMM)
        device.kernel(pointwise("mul", 2))
        device.kernel(SCAN, us, blocks=blocks)
        device.kernel(pointwise("mul", 2))
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(tmp_path)
    scans = kernels.gpu.ops.matches("name", re.compile("scan_innermost"))
    assert compiled(kernels)[scans].all() == chain
    assert compiled(kernels)[~scans & kernels.in_category("elementwise")].all()


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_part_that_was_left_in_single_precision_needs_no_casts(
    elsewhere: bool, tmp_path: Path
) -> None:
    """Those around its products go where other products are in half precision, and none come."""
    widens = (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda, 4, "
        "at::native::memory::LoadWithCast<1> >(int)"
    )
    narrows = pointwise("bfloat16_copy", 2)
    product = TF32.format("tn")
    device = Device()
    for number in range(STEPS):
        begin = device.at
        for name in (GEMM if elsewhere else product, widens, product, narrows, pointwise("mul", 2)):
            device.kernel(name)
        device.build.range(begin, device.at, f"step_{number}")
    job = device.job(tmp_path)
    facts = job.simulation.facts[0]
    ops, steady = facts.gpu.ops, facts.kernels.steady
    changed = ops.equals("name", product)
    assert in_half_elsewhere(facts.kernels, changed) == elsewhere
    for name in (widens, narrows):
        after = lengths(facts, "bf16")[ops.equals("name", name) & steady]
        assert (after == 0).all() == elsewhere
    subject = job.simulation.subjects[0]
    same = with_casts(subject, facts, changed, "expected") is subject
    assert same == elsewhere
    assert with_casts(subject, facts, changed, "high") is not subject


@pytest.mark.parametrize(("windows", "merges"), [(8_000, True), (2_000, False)])
def test_means_over_windows_around_each_element_are_elementwise(
    windows: int, merges: bool, tmp_path: Path
) -> None:
    """As in a structural similarity; fewer windows than elements make a tensor smaller."""
    pool = "void at::native::(anonymous namespace)::avg_pool2d_out_cuda_frame<float, float>(int)"
    device = Device()
    for number in range(STEPS):
        begin = device.at
        device.kernel(GEMM)
        device.kernel(pointwise("mul", 2))
        device.kernel(pool, 900.0, blocks=windows)  # one for each thread
        device.kernel(pointwise("mul", 2))
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(tmp_path)
    means = kernels.gpu.ops.matches("name", re.compile("avg_pool2d"))
    assert compiled(kernels)[means].all() == merges
    if merges:  # one kernel of two passes: what the pool takes tells nothing of a pass
        assert one_run(kernels) == (pytest.approx(100.0, rel=1e-3), 1)
