"""Levers: planted kernels and what they take without, differential, and the contract's promises."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.diagnosis.test_kernel_causes import BF16, CAST, NORM, STEPS, Steps, elementwise, layers
from tests.support.build import Build
from tests.support.captures import DATA, unpack

import stepscope
from stepscope.api import Job
from stepscope.cache.store import Cache
from stepscope.diagnosis.cause import causes
from stepscope.diagnosis.lever import levers, noise_ns
from stepscope.diagnosis.result import Diagnosis, Finding
from stepscope.diagnosis.sentence import unsupported
from stepscope.diagnosis.verify import verify
from stepscope.kernels.caches import WRITTEN_NS
from stepscope.kernels.ceilings import peaks_of
from stepscope.kernels.unaligned import NEWER_BY_NAME
from stepscope.render import budget
from stepscope.render.brief import brief
from stepscope.render.levers import headline, lever_lines
from stepscope.render.markdown import diagnosis_markdown
from stepscope.render.text import milliseconds
from stepscope.simulation.settings import precision
from stepscope.simulation.settings.base import START_NS

FILES = (
    "nsys/gpt1024_healthy.sqlite.xz",
    "nsys/gpt_graph.sqlite.xz",
    "nsys/cnn_small.sqlite.xz",
    "nsys/gpt1024_fp32_no_tf32.sqlite.xz",
    "kineto/gpt1024_unfused_attention.json.xz",
)


def opened(file: str) -> Job:
    return stepscope.open(unpack(DATA / file), cache=Cache(Path(os.environ["STEPSCOPE_CACHE_DIR"])))


def named(diagnosis: Diagnosis, lever: str) -> Finding:
    found = [one for one in diagnosis.levers if one.cause == lever]
    assert len(found) == 1, [one.cause for one in diagnosis.levers]
    return found[0]


def gains(diagnosis: Diagnosis) -> dict[str, float]:
    return {one.cause: one.time_ns_per_step / 1e3 for one in diagnosis.levers}


def functor(lists: int, kind: str, read: int, operation: str) -> str:
    """A kernel of ``torch._foreach_*``, as Nsight Systems names it."""
    return (
        "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::"
        f"TensorListMetadata<(int){lists}>, at::native::<unnamed>::{kind}Functor<float, "
        f"(int){lists}, (int){read}, (int)0>, {operation}>(T1, T2, T3...)"
    )


SCALE = functor(1, "BinaryOpScalar", 1, "std::multiplies<float>, float")
LERP = functor(2, "TernaryOpScalar", 2, "at::native::LerpFunctor<float>, float")
SQUARE = functor(3, "PointwiseOpScalar", 3, "std::multiplies<float>, float")
ROOT = functor(2, "UnaryOp", 1, "at::native::Sqrt<float>")
DIVIDE = functor(1, "BinaryOpScalarList", 1, "std::divides<float>")
ADD = functor(1, "BinaryOpScalar", 1, "std::plus<float>, float")
UPDATE = functor(3, "PointwiseOpScalarList", 3, "std::divides<float>")
ADD_LIST = functor(2, "BinaryOpListAlpha", 2, "std::plus<float>, float")
PASS_US = 30.0
ADAM = [  # kernel, passes over the parameters
    *((SCALE, 2), (LERP, 3), (SCALE, 2), (SQUARE, 3), (ROOT, 2), (DIVIDE, 2), (ADD, 2), (UPDATE, 4))
]
FUSED = "void multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor>"


def run(steps: Steps, folder: Path) -> Diagnosis:
    diagnosis, job = steps.diagnose(folder)
    result = job.verify(msgspec.json.encode(diagnosis))
    assert result.verified, result.differences
    return diagnosis


def with_update(folder: Path, update: list[tuple[str, float]]) -> Diagnosis:
    steps = Steps()
    for i in range(STEPS):
        steps.step(i, ("forward", layers(8)), ("optimizer", update))
    return run(steps, folder)


def test_foreach_adam_takes_twenty_passes_and_fused_seven(tmp_path: Path) -> None:
    found = with_update(tmp_path, [(name, PASS_US * count) for name, count in ADAM])
    lever = named(found, "fused_optimizer")
    assert lever.time_ns_per_step == pytest.approx((20 - 7) * PASS_US * 1e3, rel=0.01)
    assert lever.where.range == "optimizer"
    assert found.findings == []


def test_foreach_sgd_with_momentum(tmp_path: Path) -> None:
    update = [(SCALE, 2), (ADD_LIST, 3), (ADD_LIST, 3), (ADD_LIST, 3)]
    found = with_update(tmp_path, [(name, 2 * PASS_US * count) for name, count in update])
    lever = named(found, "fused_optimizer")
    assert lever.time_ns_per_step == pytest.approx((11 - 5) * 2 * PASS_US * 1e3, rel=0.01)


def test_a_fused_update_has_no_lever(tmp_path: Path) -> None:
    assert "fused_optimizer" not in gains(with_update(tmp_path, [(FUSED, 7 * PASS_US)]))


def test_the_loop_over_parameters_is_a_finding_and_no_lever(tmp_path: Path) -> None:
    loop = [*("mul", "lerp", "mul", "addcmul", "sqrt", "div", "add", "addcdiv")]
    update = [(elementwise(name), 9.0) for _ in range(20) for name in loop]
    found = with_update(tmp_path, update)
    assert found.verdict == "unfused_optimizer"
    assert "fused_optimizer" not in gains(found)


def forward(folder: Path, layer: list[tuple[str, float]]) -> Diagnosis:
    steps = Steps()
    for i in range(STEPS):
        steps.step(i, ("forward", layer * 6))
    return run(steps, folder)


def test_two_pointwise_kernels_side_by_side_keep_one_tensor_on_the_chip(tmp_path: Path) -> None:
    pair = [(elementwise("gelu"), 40.0), (elementwise("mul"), 40.0)]
    found = forward(tmp_path, [(BF16, 200.0), *pair])
    lever = named(found, "compile")
    # each moves two tensors: one of them, between the two, is neither written nor read
    assert lever.time_ns_per_step == pytest.approx(6 * 40e3, rel=0.01)


def test_casts_of_weights_between_do_not_keep_two_kernels_apart(tmp_path: Path) -> None:
    """A function, casts of the next layer's bias and weight, and the cast of what it gives."""
    cast = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda("
        "float), std::array<char*, 2ul> >(int)"
    )
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for _ in range(6):
            for kernel, us, blocks in (
                *((BF16, 200.0, 1000), (elementwise("gelu"), 40.0, 1000), (cast, 2.0, 1)),
                *((cast, 9.0, 100), (cast, 40.0, 1000)),
            ):
                steps.launch(kernel, us, blocks=blocks)
        steps.build.range(begin, steps.host, f"step_{i}")
    lever = named(run(steps, tmp_path), "compile")
    assert lever.time_ns_per_step == pytest.approx(6 * 40e3, rel=0.01)


@pytest.mark.parametrize(("short", "told"), [(4, True), (0, False)])
def test_compiling_the_model_is_told_beside_a_chain_where_it_gains_more(
    tmp_path: Path, short: int, told: bool
) -> None:
    """The chain is merged as well: the lever's gain is that of both."""
    chain = [(elementwise(name), 80.0) for name in ("exp", "mul", "sigmoid", "mul", "add")]
    pair = [(BF16, 100.0), (elementwise("gelu"), 40.0), (elementwise("mul"), 40.0)]
    steps = Steps()
    for i in range(STEPS):
        steps.step(i, ("forward", [(BF16, 100.0), *chain, *pair * short, (BF16, 100.0)]))
    found = run(steps, tmp_path)
    assert [one.cause for one in found.findings] == ["fusion_opportunity"]
    assert ("compile" in gains(found)) is told
    if told:
        finding = found.findings[0].time_ns_per_step
        both = finding + short * 40e3
        assert named(found, "compile").time_ns_per_step == pytest.approx(both, rel=0.02)


@pytest.mark.parametrize("known", [True, False])
def test_a_bandwidth_that_nothing_tells_is_no_figure(known: bool, tmp_path: Path) -> None:
    """Two kernels of 40 us in a row, six times: their names tell the bytes, or do not."""
    pair = [elementwise("gelu"), elementwise("mul")]
    if not known:
        pair = ["gelu_elementwise_kernel", "mul_elementwise_kernel"]
    lever = named(forward(tmp_path, [(BF16, 200.0), *((name, 40.0) for name in pair)]), "compile")
    assert lever.time_ns_per_step == pytest.approx(6 * 40e3, rel=0.01)
    assert (lever.value("achieved_bytes_per_s") is not None) is known
    assert ("bandwidth that they achieve (unknown" in lever.reason) is not known


def test_pointwise_kernels_apart_are_nothing_to_compile(tmp_path: Path) -> None:
    single = [(BF16, 100.0), (elementwise("gelu"), 40.0), (BF16, 100.0), (elementwise("mul"), 40.0)]
    assert "compile" not in gains(forward(tmp_path, single))


def test_casts_alone_between_gemms(tmp_path: Path) -> None:
    found = forward(tmp_path, [(BF16, 100.0), (CAST, 40.0)])
    lever = named(found, "casts_and_copies")
    assert lever.time_ns_per_step == pytest.approx(0.75 * 6 * 40e3, rel=0.01)
    assert gains(found).keys() & {"compile"} == set()


def test_a_cache_of_full_length_is_written_in_place(tmp_path: Path) -> None:
    joined = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 4, 64>(float*)"
    attention = ATTENTION.format("f")
    found = forward(tmp_path, [(BF16, 100.0), (joined, 300.0), (joined, 300.0), (attention, 90.0)])
    lever = named(found, "casts_and_copies")
    assert lever.time_ns_per_step == pytest.approx(6 * 2 * (300_000 - WRITTEN_NS), rel=0.01)
    assert "cache" in lever.recommendations[0]
    assert "compile" not in gains(found)


WIDEN = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda, 4, "
    "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int)"
)


@pytest.mark.parametrize(
    ("between", "saved"),
    [
        ([(NORM, 80.0)], 60 + 40 + 0.45 * 80),
        ([(NORM, 80.0), ("void GammaBetaBackwardSimple<float>(int)", 20.0)], 60 + 40 + 0.45 * 100),
        ([("void at::native::cos_kernel_cuda<float>(int)", 80.0)], 0.75 * (60 + 40)),
    ],
)
def test_norms_between_casts_take_half_precision(
    tmp_path: Path, between: list[tuple[str, float]], saved: float
) -> None:
    """Around anything else, three casts of four go."""
    found = forward(tmp_path, [(BF16, 400.0), (WIDEN, 60.0), *between, (CAST, 40.0)])
    lever = named(found, "casts_and_copies")
    gain = (lever.value("step_ns") or 0) - lever.predicted_step_ns
    assert gain == pytest.approx(saved * 6 * 1e3, rel=0.01)


def test_transposes_of_images(tmp_path: Path) -> None:
    there = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float>(T1)"
    back = "void cudnn::engines_precompiled::nhwcToNchwKernel<float, float>(T1)"
    conv = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
    found = forward(tmp_path, [(there, 20.0), (conv, 100.0), (back, 20.0)])
    lever = named(found, "layout_changes")
    assert lever.time_ns_per_step == pytest.approx(6 * 40e3, rel=0.01)
    assert lever.predicted_step_ns < lever.prediction_high_ns


def test_channels_last_changes_the_kernels_of_a_spelled_out_chain_too(tmp_path: Path) -> None:
    """A norm that a block holds in its registers takes 1.2 times as long with channels last."""
    there = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float>(T1)"
    conv = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
    norm = "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true>(T1)"
    gate = [(elementwise(name), 40.0) for name in ("elu", "sigmoid", "mul", "add")]
    found = forward(tmp_path, [(there, 40.0), (conv, 100.0), *gate, (norm, 50.0)])
    assert found.findings[0].cause == "fusion_opportunity"
    saved = 6 * (40e3 - 0.2 * 50e3)
    assert named(found, "layout_changes").time_ns_per_step == pytest.approx(saved, rel=0.01)


def test_tf32_has_half_precision_before_it(tmp_path: Path) -> None:
    found = forward(tmp_path, [("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n", 200.0), (NORM, 30.0)])
    lever = named(found, "lower_precision")
    peaks = peaks_of("NVIDIA H200")
    assert peaks is not None
    gain = peaks.half * precision.ACHIEVED["16bit"] / (peaks.tf32 * precision.ACHIEVED["tf32"])
    expected = 6 * (200e3 - START_NS) * (1 - 1 / gain)  # the norm stays in single precision
    assert lever.time_ns_per_step == pytest.approx(expected, rel=0.01)
    assert "TF32" in lever.message


def test_attention_alone_in_single_precision_is_given_narrow_operands(tmp_path: Path) -> None:
    """Whose GEMMs are in half precision: rotary angles have widened queries and keys."""
    single = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(AttentionKernel<float>::Params)"
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for _ in range(6):
            for kernel, us, blocks in (
                (BF16, 200.0, 1000),
                (single, 500.0, 4),
                (BF16, 100.0, 1000),
            ):
                steps.launch(kernel, us, blocks=blocks)
        steps.build.range(begin, steps.host, f"step_{i}")
    lever = named(run(steps, tmp_path), "lower_precision")
    assert "q.to(v.dtype)" in lever.recommendations[0]
    ratio = dict(precision.ATTENTION_OF_BLOCKS)[4]
    expected = 6 * (500e3 - START_NS) * (1 - 1 / ratio)
    assert lever.time_ns_per_step == pytest.approx(expected, rel=0.01)


def test_small_grids_gain_with_twice_the_batch(tmp_path: Path) -> None:
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for _ in range(8):
            steps.launch(BF16, 50.0, blocks=33)
            steps.launch(BF16, 50.0, blocks=99)
            steps.launch(BF16, 50.0, blocks=1000)
        steps.build.range(begin, steps.host, f"step_{i}")
    lever = named(run(steps, tmp_path), "larger_batch")
    # beside the 2 us in which each starts: a quarter of the SMs takes half a sample, three quarters
    # as far as SMs are free, and more blocks than SMs as long as before
    assert lever.time_ns_per_step == pytest.approx(8 * (25e3 + 13e3 + 1e3), rel=0.01)
    accounts_for_its_gain(lever)


def accounts_for_its_gain(lever: Finding) -> None:
    """What the kernels save and what lies beside them are the gain."""
    before, after, beside, step = (
        lever.value(name)
        for name in (
            *("kernels_ns_per_step", "changed_ns_per_step", "beside_kernels_ns_per_step"),
            "step_ns",
        )
    )
    assert before - after + beside == pytest.approx(step - lever.predicted_step_ns, abs=2)


def test_what_kernels_of_unknown_grids_gain_with_the_batch_is_told(tmp_path: Path) -> None:
    """Of 40 kernels of 20 us, whose grids are not recorded, each starts half as often."""
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        steps.launch(BF16, 4.0, blocks=33)
        for _ in range(40):
            steps.launch(BF16, 20.0, blocks=-1)
        steps.build.range(begin, steps.host, f"step_{i}")
    lever = named(run(steps, tmp_path), "larger_batch")
    accounts_for_its_gain(lever)
    assert lever.value("kernels_per_step") == 41
    assert lever.value("kernels_ns_per_step") == pytest.approx(804e3)
    # 2 us of each are halved, and the rest of the small one's 4 us
    assert lever.value("changed_ns_per_step") == pytest.approx(804e3 - 40 * 1e3 - 2e3)


@pytest.mark.parametrize(("graph_us", "at_least"), [(1_000.0, True), (20.0, False)])
def test_a_graph_recorded_as_a_whole_may_gain_with_the_batch_as_well(
    tmp_path: Path, graph_us: float, at_least: bool
) -> None:
    """Of a graph of 1 ms beside kernels of 0.8 ms nothing is known; one of 20 us matters little."""
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for _ in range(16):
            steps.launch(BF16, 50.0, blocks=33)
        at = max(steps.device, steps.host + 5)
        steps.build.graph(at, at + graph_us, call=(steps.host, steps.host + 3))
        steps.device, steps.host = at + graph_us, steps.host + 4
        steps.build.range(begin, steps.host, f"step_{i}")
    lever = named(run(steps, tmp_path), "larger_batch")
    assert lever.at_least == at_least
    assert ("CUDA graphs" in lever.message) == at_least
    assert (lever.next_capture is not None and "--graph node" in lever.next_capture) == at_least


def test_a_larger_batch_shares_the_launches_out_among_more_samples(tmp_path: Path) -> None:
    """Launches of 50 us, kernels of 10 us on a tenth of the SMs: twice the samples take as long."""
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for _ in range(40):
            steps.launch(BF16, 10.0, blocks=13)
            steps.host += 50.0
        steps.build.range(begin, steps.host, f"step_{i}")
    found = run(steps, tmp_path)
    lever = named(found, "larger_batch")
    step_ns = next(e.value for e in lever.evidence if e.figure == "step_ns")
    assert lever.predicted_step_ns == pytest.approx(step_ns / 2, rel=0.02)
    assert lever.prediction_low_ns <= step_ns / 2 <= lever.prediction_high_ns
    assert "half as many kernels are launched" in lever.message
    assert "each launch" in lever.recommendations[0]


@pytest.mark.parametrize("name", ["dataload", "metrics"])
def test_a_larger_batch_may_be_more_work_for_the_host(name: str, tmp_path: Path) -> None:
    """3 ms of the host's and 2 ms of the device's: input grows with the batch, the rest may."""
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        steps.build.range(steps.host, steps.host + 3_000, name)
        steps.host += 3_000
        for _ in range(8):
            steps.launch(BF16, 250.0, blocks=33)
        steps.build.api(steps.host, steps.host + 1_990, "cudaDeviceSynchronize")
        steps.host += 2_000
        steps.build.range(begin, steps.host, f"step_{i}")
    lever = named(run(steps, tmp_path), "larger_batch")
    gain = lever.value("step_ns") - lever.predicted_step_ns
    least = lever.value("step_ns") - lever.prediction_high_ns
    if name == "dataload":
        assert gain == pytest.approx(1.0e6, rel=0.1)
    else:
        assert gain == pytest.approx(2.5e6, rel=0.1)
        assert least <= 1.1e6


def test_a_larger_batch_counts_kernels_of_other_levers() -> None:
    diagnosis = opened("nsys/gpt1024_healthy.sqlite.xz").diagnose()
    optimizer, batch = (named(diagnosis, name) for name in ("fused_optimizer", "larger_batch"))
    saved = batch.value("kernels_ns_per_step") - batch.value("changed_ns_per_step")
    assert saved > optimizer.value("kernels_ns_per_step") / 2
    accounts_for_its_gain(batch)


def test_an_inference_is_told_of_requests_not_of_an_optimizer(tmp_path: Path) -> None:
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for _ in range(8):
            steps.launch(BF16, 50.0, blocks=33)
        steps.launch("paged_attention_v2_kernel", 50.0, blocks=1000)
        steps.build.range(begin, steps.host, f"step_{i}")
    lever = named(run(steps, tmp_path), "larger_batch")
    told = " ".join([lever.message, *lever.recommendations])
    assert "requests" in told
    assert not any(word in told for word in ("optimizer", "gradients", "learning rate"))


@pytest.mark.parametrize("loads", [False, True])
def test_what_is_loaded_once_tells_nothing_of_a_larger_batch(loads: bool, tmp_path: Path) -> None:
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for _ in range(8):
            steps.launch(BF16, 50.0, blocks=33)
        steps.host += 2_000.0
        if loads:
            steps.build.api(
                steps.host - 1_900.0, steps.host - 100.0, "cuModuleLoadData", api="driver"
            )
        steps.build.range(begin, steps.host, f"step_{i}")
    found = run(steps, tmp_path)
    assert ("larger_batch" in [lever.cause for lever in found.levers]) == (not loads)


def test_casts_that_go_take_their_launches_along(tmp_path: Path) -> None:
    """Each cast of 2 us is launched for 50 us, as is each GEMM: three of four casts go."""
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for _ in range(40):
            for name, us in (("bfloat16_copy_kernel_cuda", 2.0), (BF16, 30.0)):
                steps.launch(name, us, blocks=1000)
                steps.host += 50.0
        steps.build.range(begin, steps.host, f"step_{i}")
    lever = named(run(steps, tmp_path), "casts_and_copies")
    step_ns = next(e.value for e in lever.evidence if e.figure == "step_ns")
    assert lever.predicted_step_ns == pytest.approx(step_ns * (80 - 30) / 80, rel=0.05)
    assert lever.prediction_high_ns > 0.9 * step_ns


def _gemms(folder: Path, *gemms: tuple[int, float]) -> Diagnosis:
    """GEMMs of 4096 x 1024 x N with their lengths, us."""
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for size, length in gemms * 8:
            at = steps.host
            steps.launch(BF16, length)
            steps.build.operator(
                at - 0.5,
                at + 1.5,
                "aten::mm",
                input_shapes=json.dumps([[4096, 1024], [1024, size]]),
                input_types='["c10::BFloat16", "c10::BFloat16"]',
            )
        steps.build.range(begin, steps.host, f"step_{i}")
    return run(steps, folder)


def test_a_vocabulary_off_the_grid(tmp_path: Path) -> None:
    peaks = peaks_of("NVIDIA H200")
    assert peaks is not None

    def least_us(size: int) -> float:
        return 2 * 4096 * 1024 * size / peaks.half * 1e6

    # others achieve 70 %, the odd one 40 %
    found = _gemms(tmp_path, (50304, least_us(50304) / 0.7), (50257, least_us(50257) / 0.4))
    lever = named(found, "aligned_shapes")
    assert "50257" in lever.message
    expected = least_us(50257) / 0.4 - least_us(50304) / 0.7
    assert lever.time_ns_per_step == pytest.approx(8 * expected * 1e3, rel=0.02)


def test_an_odd_size_that_costs_nothing_is_not_named(tmp_path: Path) -> None:
    peaks = peaks_of("NVIDIA H200")
    assert peaks is not None
    least = 2 * 4096 * 1024 * 50257 / peaks.half * 1e6
    found = _gemms(tmp_path, (50304, least / 0.7), (50257, least / 0.7))
    assert "aligned_shapes" not in gains(found)


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1", ("16bit", 1)),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_64x3_tn_align2", ("16bit", 2)),
    ],
)
def test_kernels_for_unaligned_operands_say_so(
    tmp_path: Path, kernel: str, part: tuple[str, int]
) -> None:
    steps = Steps()
    steps.build = Build()
    steps.build.gpu("NVIDIA H200", compute_major=9, compute_minor=0)
    name = f"void cutlass::Kernel2<{kernel}>({kernel}::Params)"
    for i in range(STEPS):
        steps.step(i, ("forward", [(elementwise("gelu"), 20.0), (name, 300.0), (BF16, 100.0)] * 6))
    diagnosis = run(steps, tmp_path)
    lever = named(diagnosis, "aligned_shapes")
    assert lever.time_ns_per_step == pytest.approx(
        6 * 300e3 * (1 - NEWER_BY_NAME[part][1]), rel=0.01
    )
    assert diagnosis.verdict == "inefficient_kernel"
    finding = diagnosis.findings[0]
    assert "not aligned to sixteen bytes" in finding.message
    assert "multiple of 64" in finding.recommendations[0]
    assert finding.time_ns_per_step == pytest.approx(lever.time_ns_per_step, rel=0.01)


def test_the_bound_is_the_ceiling_of_what_is_known(tmp_path: Path) -> None:
    peaks = peaks_of("NVIDIA H200")
    assert peaks is not None
    least = 2 * 4096 * 1024 * 8192 / peaks.half * 1e6
    found = _gemms(tmp_path, (8192, least / 0.5), (8192, least / 0.5))
    assert found.kernels is not None
    assert found.kernels.bound is not None
    bound = found.kernels.bound
    assert bound.known_share == 1.0
    assert bound.bound_ns == pytest.approx(16 * least * 1e3, rel=0.01)
    (category,) = found.kernels.categories
    assert (category.category, category.bound) == ("matmul", "compute")
    assert category.achieved == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("file", FILES)
def test_what_levers_promise_holds_on_captures(file: str) -> None:
    job = opened(file)
    diagnosis = job.diagnose()
    case = max(job.explained.cases, key=lambda one: one.step_ns)
    reported = {finding.cause for finding in diagnosis.findings}
    for lever in diagnosis.levers:
        assert not reported & set(levers()[lever.cause].instead)
        value = {e.figure: e.value for e in lever.evidence}
        gain = case.step_ns - lever.predicted_step_ns
        assert lever.prediction_low_ns <= lever.predicted_step_ns <= lever.prediction_high_ns
        # the kernels' time, and where launches go the GPU's waiting for them; at twice the batch
        # half of all that does not grow
        idle = sum(case.explanation.idle_by_cause_ns.values()) / case.explanation.n_steady
        most = value["kernels_ns_per_step"] + idle
        if lever.after_findings:  # the GPU then waits longer
            most = max(most, *(f.predicted_step_ns for f in diagnosis.findings))
        if levers()[lever.cause].setting is not None:
            most = case.step_ns / 2
        assert noise_ns(case) < gain <= most + 1
        assert unsupported(lever.message, lever.evidence, lever.names) == []
    answer = ", ".join(f"'{cause}'" for cause in reported) or "''"
    shared = job.figure(
        "SELECT count(*) FROM kernel_lever l JOIN kernel_repair r USING (gpu_op_id) "
        f"WHERE r.cause IN ({answer})"
    )
    assert shared == 0
    assert job.verify(msgspec.json.encode(diagnosis)).verified
    split = diagnosis.kernels
    assert split is not None
    compute = sum(gpu.compute_ns for gpu in diagnosis.accounting) / case.explanation.n_steady
    assert sum(one.time_ns_per_step for one in split.categories) == pytest.approx(compute, rel=1e-3)
    assert split.bound is not None
    assert split.bound.fused_bound_ns <= split.bound.bound_ns <= case.step_ns + 1


def test_a_healthy_transformer_names_its_optimizer(tmp_path: Path) -> None:
    """The same model with fused=True takes 0.9 ms for the update, measured (H200)."""
    diagnosis = opened("nsys/gpt1024_healthy.sqlite.xz").diagnose()
    lever = named(diagnosis, "fused_optimizer")
    value = {e.figure: e.value for e in lever.evidence}
    assert value["kernels_ns_per_step"] == pytest.approx(2.5e6, rel=0.03)
    assert value["changed_ns_per_step"] == pytest.approx(0.9e6, rel=0.1)
    lines = [line.text for line in lever_lines(diagnosis)]
    markdown = diagnosis_markdown(diagnosis).splitlines()
    # a headline behind a list needs a line between, or it belongs to the list
    assert all(not markdown[at - 1] for at, line in enumerate(markdown) if line[:2] == "**")
    assert lines[0] == "What is left in the kernels: NVIDIA H200"
    assert any(
        line.startswith("roofline bound (ceilings of the datasheet): the work of only 19 %")
        for line in lines
    )
    assert any("stepscope run --backend ncu --kernel '^(nvjet" in line for line in lines)
    assert "is counted as it is" in " ".join(lines)
    assert "| matmul | 34 % | 7.0 ms | its work is not known |" in diagnosis_markdown(diagnosis)


def test_below_findings_a_bound_says_what_stays_in_it() -> None:
    diagnosis = opened("nsys/gpt1024_healthy.sqlite.xz").diagnose()
    (gpu,), split = diagnosis.accounting, diagnosis.kernels
    assert split is not None
    assert split.bound is not None
    finding = replace(diagnosis.levers[0], cause="launch_bound")
    for known, copies, told in [
        (0.4, 0, []),
        (0.6, 0, ["at their ceilings and no idle time the step would take"]),
        (0.6, gpu.wall_ns // 9, ["no idle time, but copies as today, the step would take"]),
    ]:
        found = replace(
            diagnosis,
            findings=[finding],
            kernels=replace(split, bound=replace(split.bound, known_share=known)),
            accounting=[replace(gpu, exposed_copy_ns=copies)],
        )
        lines = [line.text for line in lever_lines(found) if "roofline" in line.text]
        assert [part in line for part, line in zip(told, lines, strict=True)] == [True] * len(told)


def test_gains_that_do_not_add_up_with_those_of_findings_are_told(tmp_path: Path) -> None:
    diagnosis = opened("nsys/gpt1024_healthy.sqlite.xz").diagnose()
    lever = named(diagnosis, "fused_optimizer")
    step = diagnosis.step_ns.mean
    held = msgspec.structs.replace(
        lever, predicted_step_ns=step // 2, includes_gain_of={"inefficient_kernel": "all"}
    )

    def told(left: int) -> list[str]:
        finding = msgspec.structs.replace(lever, cause="launch_bound", predicted_step_ns=left)
        changed = msgspec.structs.replace(diagnosis, findings=[finding], levers=[held])
        return [line.text for line in lever_lines(changed)]

    few, many = told(step // 3), told(2 * step // 3)
    assert few[1].endswith(", the gain of 'Inefficient kernel' included")
    assert "these are gains of today's step" in " ".join(few)  # a half of a third that is left
    assert "these are gains of today's step" not in " ".join(many)


def test_the_answer_names_the_lever_that_gains_more_than_the_findings() -> None:
    diagnosis = opened("nsys/gpt1024_healthy.sqlite.xz").diagnose()
    step = diagnosis.levers[0].value("step_ns") or 0
    large, small = (
        replace(diagnosis.levers[0], predicted_step_ns=part * step) for part in (0.75, 0.95)
    )
    finding = replace(large, cause="memory_bound_kernels", time_ns_per_step=0.2 * step, ranks=[0])
    named = f"'{levers()[large.cause].title}', saves about {milliseconds(0.25 * step)}."

    def answer(found: list[Finding], lever: Finding) -> str:
        return budget.headline(replace(diagnosis, findings=found, levers=[lever]))

    assert answer([], small) == f"Healthy: t{answer([], large)[1:].split(' The largest')[0]}"
    assert answer([], large).endswith(f" The largest lever inside the kernels, {named}")
    assert answer([finding], large).endswith(named)
    more = replace(finding, time_ns_per_step=0.24 * step)
    for found, lever in [
        (more, large),
        (finding, small),
        (finding, replace(large, cause="larger_batch")),
        (finding, replace(large, after_findings=True)),
    ]:
        assert "lever" not in answer([found], lever)


def test_a_lever_that_gains_later_says_so_in_a_field() -> None:
    diagnosis = opened("nsys/gpt1024_host_compute.sqlite.xz").diagnose()
    later = [lever for lever in diagnosis.levers if lever.after_findings]
    assert [lever.cause for lever in later] == ["compile", "fused_optimizer"]
    assert all(", once the findings are fixed" in headline(lever, diagnosis) for lever in later)
    told = brief(diagnosis)
    shown = [lever.cause for lever in later if lever.cause in told.levers_mean_step_ms]
    assert told.levers_after_findings == shown
    assert "compile" in shown


PAIRS = Path(__file__).parents[1] / "data" / "levers"


@pytest.mark.parametrize(
    ("pair", "off_ms", "on_ms", "named_by", "low", "high"),
    [
        # untraced steps of both sides (H100, benchmarks/levers.py); the bounds say how far the
        # prediction of the kernels' time may be from what was measured
        ("optimizer", 23.969, 21.393, ("fused_optimizer",), 0.9, 1.1),
        ("vocab", 30.141, 17.276, ("aligned_shapes",), 0.85, 1.1),
        # with what goes through the products' results, and the casts beside the kernels
        ("bf16", 30.883, 16.998, ("lower_precision",), 0.9, 1.1),
        # transposes, and normalisation by one block a channel; the rest of the step is counted as
        # it is
        ("channels_last", 7.764, 4.622, ("layout_changes",), 0.85, 1.2),
        # (H200) casts that stand alone, which a compiler makes quicker, are another lever
        ("gated", 17.257, 13.735, ("compile",), 0.85, 1.1),
        # (H200) weights in BF16, and the update with them
        ("casts", 10.055, 7.531, ("half_weights",), 0.85, 1.1),
    ],
)
def test_measured_pairs_are_predicted(
    pair: str, off_ms: float, on_ms: float, named_by: tuple[str, ...], low: float, high: float
) -> None:
    job = Job([unpack(PAIRS / f"{pair}.json.xz")])
    diagnosis = job.diagnose()
    saved: dict[str, float] = {one.cause: one.time_ns_per_step for one in diagnosis.findings}
    for one in diagnosis.levers:  # in the kernels: the gain of a recorded step is more
        about = {e.figure: e.value for e in one.evidence}
        if "changed_ns_per_step" in about:
            saved[one.cause] = about["kernels_ns_per_step"] - about["changed_ns_per_step"]
            saved[one.cause] += min(about.get("beside_kernels_ns_per_step", 0), 0)
    assert named_by[0] in {one.cause for one in diagnosis.levers}
    predicted = sum(saved[name] for name in named_by) / 1e6
    assert low <= predicted / (off_ms - on_ms) <= high


@pytest.mark.parametrize(
    ("pair", "lever", "finding", "part", "said"),
    [
        ("vocab", "aligned_shapes", "inefficient_kernel", "all", "the gain"),
        ("channels_last", "layout_changes", "memory_bound_kernels", "some", "some of the gain"),
    ],
)
def test_a_lever_that_shares_its_gain_names_the_finding_in_a_field(
    pair: str, lever: str, finding: str, part: str, said: str
) -> None:
    diagnosis = Job([unpack(PAIRS / f"{pair}.json.xz")]).diagnose()
    found = named(diagnosis, lever)
    assert found.includes_gain_of == {finding: part}
    assert headline(found, diagnosis).endswith(f", {said} of '{causes()[finding].title}' included")
    assert brief(diagnosis).levers_include_gain_of[lever] == [finding]


def _changes(report: dict[str, Any]) -> dict[str, Callable[[dict[str, Any]], None]]:
    def add(container: Any, key: Any) -> None:
        container[key] += 1 + container[key] // 100

    found: dict[str, Callable[[dict[str, Any]], None]] = {}
    for key in ("predicted_step_ns", "prediction_low_ns", "time_ns_per_step", "share_of_step"):
        found[key] = lambda r, key=key: add(r["levers"][0], key)
    for number in range(len(report["levers"][0]["evidence"])):
        found[f"evidence {number}"] = lambda r, n=number: add(
            r["levers"][0]["evidence"][n], "value"
        )
    found["bound"] = lambda r: add(r["kernels"]["bound"], "bound_ns")
    found["speedup"] = lambda r: add(r["kernels"]["bound"], "speedup")
    found["category"] = lambda r: add(r["kernels"]["categories"][0], "time_ns_per_step")
    found["split"] = lambda r: add(r["kernels"]["evidence"][0], "value")
    return found


def test_a_changed_figure_is_found() -> None:
    job = opened("nsys/gpt1024_healthy.sqlite.xz")
    report = json.loads(msgspec.json.encode(job.diagnose()))
    figure = cache(job.figure)  # the statements stay the same
    assert verify(json.dumps(report).encode(), figure).verified
    for name, change in _changes(report).items():
        changed = copy.deepcopy(report)
        change(changed)
        assert not verify(json.dumps(changed).encode(), figure).verified, name


def test_a_report_without_levers_is_still_read() -> None:
    job = opened("nsys/gpt1024_healthy.sqlite.xz")
    report = json.loads(msgspec.json.encode(job.diagnose()))
    del report["levers"], report["kernels"]
    assert job.verify(json.dumps(report).encode()).verified


DOUBLE = (
    "void at::native::vectorized_elementwise_kernel<2, at::native::CUDAFunctor_add<double>, "
    "std::array<char*, 3ul> >(int)"
)
GRADIENT_OF_TANH = (
    "void at::native::vectorized_elementwise_kernel<2, at::native::tanh_backward_kernel_cuda("
    "at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda(double, double)#1}, "
    "std::array<char*, 3ul> >(int)"
)
DROPPED = (
    "void at::native::vectorized_elementwise_kernel<2, at::native::masked_scale_kernel<bool, "
    "double, double>(at::Tensor&, double)::{lambda(double, bool)#1}, std::array<char*, 3ul> >(int)"
)
ROLLED = "void at::native::roll_cuda_kernel<double>(double const*, double*, long, long)"
WITH_RATES = (
    "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>, float "
    "const*, double, double, double>(int)"
)


def test_doubles_move_twice_the_bytes(tmp_path: Path) -> None:
    """An optimizer's rates are doubles in any precision: its kernel is none of these."""
    layer = [(BF16, 100.0), (DOUBLE, 40.0), (GRADIENT_OF_TANH, 30.0), (DROPPED, 10.0),
             (ROLLED, 20.0), (BF16, 100.0), (WITH_RATES, 30.0)]  # fmt: skip
    found = forward(tmp_path, layer)
    lever = named(found, "double_precision")
    assert lever.value("kernels_per_step") == 4 * 6
    assert lever.time_ns_per_step == pytest.approx(6 * (20e3 + 15e3 + 5e3 + 2e3), rel=0.01)
    single = [(name if name == WITH_RATES else name.replace("double", "float"), us)
              for name, us in layer]  # fmt: skip
    (tmp_path / "single").mkdir()
    assert "double_precision" not in gains(forward(tmp_path / "single", single))


WIDENED = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda()::"
    "{lambda(float)#1}, std::array<char*, 2ul>, 4>(int)"
)
RESIDUAL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int)"
)
SCALED_HALF = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::AUnaryFunctor<c10::BFloat16, "
    "c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, "
    "std::array<char*, 2ul> >(int)"
)


def test_with_weights_in_half_precision_nothing_is_cast(tmp_path: Path) -> None:
    layer = [(CAST, 10.0), (CAST, 30.0), (BF16, 100.0), (SCALED_HALF, 25.0), (WIDENED, 20.0),
             (RESIDUAL, 40.0), (NORM, 20.0)]  # fmt: skip
    found = forward(tmp_path, layer)
    lever = named(found, "half_weights")
    assert lever.value("kernels_per_step") == 5 * 6
    saved = 10e3 + 30e3 + 20e3 + 0.5 * 40e3 + 0.2 * 20e3
    assert lever.time_ns_per_step == pytest.approx(6 * saved, rel=0.01)
    assert lever.prediction_low_ns < lever.predicted_step_ns < lever.prediction_high_ns


def test_without_casts_for_the_products_it_is_no_autocast(tmp_path: Path) -> None:
    layer = [(BF16, 100.0), (WIDENED, 20.0), (RESIDUAL, 40.0), (NORM, 20.0)]
    assert "half_weights" not in gains(forward(tmp_path, layer))


ATTENTION = "cudnn_generated_fort_native_sdpa_sm90_flash_{}prop_wgmma_f16_knob_7_64x128x128_4x1x1"


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("[1,1,2048,2048]", "that all samples and heads share"),
        ("[4,1,2048,2048]", "for each sample"),  # padded behind
        ("[4,16,2048,2048]", ""),  # one for each head, of relative positions
        ("[1,16,1,2048]", ""),
        ("[]", ""),
    ],
)
def test_a_mask_for_all_may_be_causal(mask: str, said: str, tmp_path: Path) -> None:
    operands = "[4,16,2048,64]"
    calls = (("", ",".join([operands] * 3 + [mask])),
             ("_backward", ",".join([operands] * 5 + [mask, "[4,16,2048,1]"])))  # fmt: skip
    steps = Steps()
    for number in range(STEPS):
        begin = steps.host
        for kernel, length in layers():
            steps.launch(kernel, length)
        for way, shapes in calls:
            name = f"aten::_scaled_dot_product_cudnn_attention{way}"
            steps.build.operator(steps.host - 0.5, steps.host + 1.5, name,
                                 input_shapes=f"[{shapes}]")  # fmt: skip
            steps.launch(ATTENTION.format("b" if way else "f"), 350.0)
        steps.build.range(begin, steps.host, f"step_{number}")
    diagnosis, _ = steps.diagnose(tmp_path)
    found = [one for one in diagnosis.levers if one.cause == "fused_attention"]
    assert len(found) == bool(said)
    for lever in found:
        assert f"2,048 x 2,048 {said}" in lever.message
        # of half of the arithmetic 0.47 of the peak, of all of it 0.31; and operands are moved
        flop, moved = 7 * 2 * 2048**2 * 64, 13 * 2048 * 64 * 2
        took = [flop * part / (rate * 989.5e12) + moved / (0.6 * 4.8e12)
                for part, rate in ((0.5, 0.47), (1, 0.31))]  # fmt: skip
        left = 700_000 * took[0] / took[1]
        assert lever.time_ns_per_step == pytest.approx(700_000 - left, rel=0.01)
        assert lever.prediction_high_ns is not None
        assert lever.prediction_high_ns >= 0.99 * diagnosis.step_ns.mean  # it may not be causal


def test_every_lever_is_complete() -> None:
    assert {"fused_optimizer", "compile", "casts_and_copies", "layout_changes", "larger_batch",
            "wave_quantisation", "aligned_shapes", "lower_precision", "fused_attention",
            "recomputation", "double_precision", "half_weights"} == set(levers())  # fmt: skip
    for name, lever in levers().items():
        assert name not in causes()
        assert set(lever.instead) <= set(causes())
        for text in (lever.title, lever.definition, lever.differential, lever.prediction):
            assert text
