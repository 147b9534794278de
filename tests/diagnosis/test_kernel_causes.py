"""Causes inside the kernels: on hand-made steps, and their nearest differential."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.build import AUTOGRAD, MAIN, Build
from tests.support.evidence import check_evidence
from tests.support.ncu import bundled, written

from stepscope.api import Job
from stepscope.diagnosis.inside_kernels import Bound, changes_of_repair
from stepscope.diagnosis.result import Diagnosis, Finding
from stepscope.kernels.convolutions import SHARE
from stepscope.kernels.fused_attention import MASKED, SHARES, UNMASKED, WIDENED_SHARE
from stepscope.render.markdown import diagnosis_markdown
from stepscope.simulation import CallCompiled, RemoveOps

BOUNDS: tuple[Bound, ...] = ("low", "expected", "high")
STEPS = 6
CAST = "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda>"
BF16 = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"
FP32 = "ampere_sgemm_128x128_nn"
NORM = "void at::native::vectorized_layer_norm_kernel<float, float>(int)"
SOFTMAX = "void softmax_warp_forward<float, float, float, 9, false, false>(int)"
LENGTH = 2  # its place among the lengths of fused attention: rows of 2 ** 9
SOFTMAX_BACKWARD = "void softmax_warp_backward<float, float, float, 9, false, false>(int)"
LOG_SOFTMAX = "void softmax_warp_forward<float, float, float, 9, true, false>(int)"
TOP_K = "void at::native::sbtopk::gatherTopK<float>(int)"
ALL_MASKED = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<bool, "
    "at::native::func_wrapper_t<bool, at::native::and_kernel_cuda> > >(int)"
)
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)"
SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(int)"


def elementwise(operation: str, tensors: int = 2) -> str:
    return (
        f"void at::native::vectorized_elementwise_kernel<4, at::native::{operation}_cuda_kernel("
        f"float), std::array<char*, {tensors}ul> >(int)"
    )


ADAM = [
    elementwise("mul"), elementwise("lerp", 3), elementwise("mul"), elementwise("addcmul", 4),
    elementwise("sqrt"), elementwise("div"), elementwise("add"), elementwise("addcdiv", 4),
]  # fmt: skip
Work = Sequence[tuple[str, float]]


class Steps:
    """Steps of kernels, launched 2 us apart, well ahead of the device unless told otherwise."""

    def __init__(self) -> None:
        self.build = Build()
        self.build.gpu("NVIDIA H200")
        self.host = self.device = 0.0

    def step(self, number: int, *parts: tuple[str, Work]) -> None:
        """One step; each part is a range (empty for none) and (kernel, us) pairs."""
        begin = self.host
        for name, work in parts:
            part = self.host
            for kernel, length in work:
                self.launch(kernel, length)
            if name:
                self.build.range(part, self.host, name)
            self.host += 1
        self.build.range(begin, self.host, f"step_{number}")

    def launch(self, kernel: str, length: float, *, every: float = 2.0, thread: int = MAIN,
               blocks: int = 1000, batch: int = 1) -> None:  # fmt: skip
        self.device = max(self.device, self.host + 3)
        self.build.kernel(self.device, self.device + length, call=(self.host, self.host + 1),
                          name=kernel, thread=thread, grid_x=blocks, grid_y=1, grid_z=batch,
                          block_x=128, block_y=1, block_z=1)  # fmt: skip
        self.host += every
        self.device += length

    def diagnose(self, folder: Path) -> tuple[Diagnosis, Job]:
        job = Job([self.build.trace(folder).folder])
        return job.diagnose(), job


def only(diagnosis: Diagnosis, cause: str) -> Finding:
    found = [f for f in diagnosis.findings if f.cause == cause]
    assert len(found) == 1, diagnosis.findings
    return found[0]


def layers(n: int = 4) -> Work:
    return [
        (CAST, 10.0),
        (BF16, 100.0),
        (elementwise("gelu"), 20.0),
        (BF16, 100.0),
        (NORM, 20.0),
    ] * n


def test_an_ordinary_mix_is_healthy(tmp_path: Path) -> None:
    steps = Steps()
    for i in range(STEPS):
        steps.step(i, ("forward", layers()), ("optimizer", [("multi_tensor_apply_kernel<A>", 80)]))
    diagnosis, _ = steps.diagnose(tmp_path)
    assert diagnosis.findings == []


@pytest.mark.parametrize("annotated", [True, False])
def test_a_loop_over_the_parameters(tmp_path: Path, annotated: bool) -> None:
    steps = Steps()
    for i in range(STEPS):
        update = [(kernel, 9.0) for _ in range(20) for kernel in ADAM]
        steps.step(i, ("forward" if annotated else "", layers()),
                   ("optimizer" if annotated else "", update))  # fmt: skip
    diagnosis, job = steps.diagnose(tmp_path)
    finding = only(diagnosis, "unfused_optimizer")
    assert diagnosis.verdict == "unfused_optimizer"
    # 21 passes over 20 parameters at 8 us of traffic a kernel; a fused Adam needs 7
    loop, fused = 160 * 9_000, 160 * 8_000 * 7 / 21
    assert finding.time_ns_per_step == pytest.approx(loop - fused, rel=0.02)
    assert finding.predicted_step_ns < finding.prediction_high_ns
    assert finding.where.range == ("optimizer" if annotated else None)
    assert {e.figure: e.value for e in finding.evidence}["kernels_per_step"] == 160
    check_evidence(diagnosis, job)


@pytest.mark.parametrize("ends", ["optimizer", "average"])
def test_an_average_of_the_weights_that_goes_through_them(tmp_path: Path, ends: str) -> None:
    """Two products and a sum for each weight; what is marked as a step may end before them."""
    steps = Steps()
    average = [elementwise("mul"), elementwise("mul"), elementwise("add", 3)]
    marks = [0.0]
    for _ in range(STEPS + 1):
        for kernel, length in [*layers(), ("multi_tensor_apply_kernel<FusedAdamMath>", 80.0)]:
            steps.launch(kernel, length)
        updated = steps.host
        for number in range(20):
            for kernel in average:
                steps.launch(kernel, 9.0, blocks=(8, 64, 1000)[number % 3])
        marks.append(updated if ends == "optimizer" else steps.host)
    for number, (begin, end) in enumerate(pairwise(marks)):
        steps.build.range(begin, end, f"step_{number}")
    diagnosis, job = steps.diagnose(tmp_path)
    finding = only(diagnosis, "unfused_optimizer")
    assert "an average of the weights" in finding.message
    assert "_foreach_lerp_" in finding.recommendations[0]
    # seven passes over each weight, where three would do, at 8 us of traffic a kernel
    assert finding.value("kernels_per_step") == pytest.approx(60, abs=0.5)
    loop, at_once = 60 * 9_000, 60 * 8_000 * 3 / 7
    assert finding.time_ns_per_step == pytest.approx(loop - at_once, rel=0.05)
    check_evidence(diagnosis, job)


def test_light_kernels_of_one_size_behind_the_optimizer_are_no_update(tmp_path: Path) -> None:
    """Pictures that the GPU changes at random before they are seen."""
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for _ in range(20):
            for kernel in (elementwise("mul"), elementwise("mul"), elementwise("add", 3)):
                steps.launch(kernel, 9.0)
        for kernel, length in [*layers(), ("multi_tensor_apply_kernel<FusedAdamMath>", 80.0)]:
            steps.launch(kernel, length)
        steps.build.range(begin, steps.host, f"step_{i}")
    diagnosis, _ = steps.diagnose(tmp_path)
    assert "unfused_optimizer" not in {one.cause for one in diagnosis.findings}


@pytest.mark.parametrize(
    ("forwards", "backwards", "beside"),
    [
        ("cunn_SoftMaxForward<4, float, float>", "cunn_SoftMaxBackward<4, float, float>",
         ("mul", "exp", "add", "gelu", "mul")),
        ("vectorized_layer_norm_kernel<float>", "layer_norm_grad_input_kernel<float>", ()),
    ],
)  # fmt: skip
def test_a_softmax_or_a_norm_over_two_long_rows(
    tmp_path: Path, forwards: str, backwards: str, beside: tuple[str, ...]
) -> None:
    """Beside a chain of elementwise kernels, which is not what is slow; with its gradient."""
    chain = [elementwise(name) for name in beside]
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for kernel, length in layers():
            steps.launch(kernel, length)
        for name in (forwards, backwards):
            for kernel in chain:
                steps.launch(kernel, 9.0)
            steps.launch(f"void at::native::{name}(int)", 3_000.0, blocks=2)
        steps.launch(BF16, 100.0)
        steps.build.range(begin, steps.host, f"step_{i}")
    diagnosis, job = steps.diagnose(tmp_path)
    finding = only(diagnosis, "inefficient_kernel")
    assert diagnosis.verdict == "inefficient_kernel"
    # 2 of 132 SMs work; all of them are assumed to take twice their part
    left = 2 * 6_000e3 * 2 / 132
    assert finding.time_ns_per_step == pytest.approx(6_000e3 - left, rel=0.01)
    check_evidence(diagnosis, job)


def test_a_step_inside_the_optimizers_closure_is_no_loop(tmp_path: Path) -> None:
    steps = Steps()
    layer = [(BF16, 50.0), (elementwise("gelu"), 9.0), (NORM, 9.0)]
    for i in range(STEPS):
        fused = [("multi_tensor_apply_kernel<A>", 80.0)]
        steps.step(i, ("Optimizer.step#AdamW.step", [*layer * 50, *fused]))
    diagnosis, _ = steps.diagnose(tmp_path)
    assert diagnosis.findings == []


def test_late_launches_inside_the_loop_are_the_loops(tmp_path: Path) -> None:
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        steps.build.range(begin, begin + 4_000, f"step_{i}")
        for kernel, length in layers():
            steps.launch(kernel, length)
        part = steps.host = steps.device - 5
        for kernel in ADAM * 20:
            steps.launch(kernel, 2.0, every=15.0)
        steps.build.range(part, steps.host, "optimizer")
        steps.host = max(steps.host, begin + 4_000)
    diagnosis, job = steps.diagnose(tmp_path)
    finding = only(diagnosis, "unfused_optimizer")
    assert diagnosis.verdict == "unfused_optimizer"
    assert "launch_bound" not in [f.cause for f in diagnosis.findings]
    assert finding.time_ns_per_step == pytest.approx(159 * 15_000, rel=0.05)
    check_evidence(diagnosis, job)


def test_where_all_launches_are_late_the_loop_is_only_a_part(tmp_path: Path) -> None:
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for kernel, _ in layers(10):
            steps.launch(kernel, 2.0, every=20.0)
        for kernel in ADAM * 6:
            steps.launch(kernel, 2.0, every=20.0)
        steps.build.range(begin, steps.host, f"step_{i}")
    diagnosis, _ = steps.diagnose(tmp_path)
    assert diagnosis.verdict == "launch_bound"
    assert [f.cause for f in diagnosis.findings] == ["launch_bound", "unfused_optimizer"]


def attention(softmax: str = SOFTMAX, between: Work = (), before: Work = ()) -> Work:
    return [
        (BF16, 50.0), (elementwise("div"), 60.0), (elementwise("masked_fill"), 60.0), *before,
        (softmax, 90.0), *between, (CAST, 40.0), (BF16, 50.0),
    ]  # fmt: skip


@pytest.mark.parametrize("before", [0, 2])
def test_attention_written_out(tmp_path: Path, before: int) -> None:
    """The largest score of each row may be taken off before the softmax."""
    steps = Steps()
    for i in range(STEPS):
        stable = WRITTEN[1 : 1 + before]
        steps.step(i, ("forward", [*layers(2), *attention(before=stable), *layers(1)]))
    diagnosis, job = steps.diagnose(tmp_path)
    finding = only(diagnosis, "unfused_attention")
    expected = 60 + 60 + 90 + 40 + sum(us for _, us in stable) + (1 - SHARES[MASKED][LENGTH]) * 100
    assert finding.time_ns_per_step == pytest.approx(expected * 1000)
    assert {e.figure: e.value for e in finding.evidence}["softmax_kernels"] == STEPS
    check_evidence(diagnosis, job)


def test_its_gradient_has_two_products_on_either_side(tmp_path: Path) -> None:
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for kernel, length in layers(2):
            steps.launch(kernel, length)
        for kernel in (NORM, BF16, BF16, CAST, SOFTMAX_BACKWARD, CAST, BF16, BF16, NORM):
            steps.launch(kernel, 50.0, thread=AUTOGRAD)
        steps.build.range(begin, steps.host, f"step_{i}")
    diagnosis, _ = steps.diagnose(tmp_path)
    finding = only(diagnosis, "unfused_attention")
    assert finding.time_ns_per_step == pytest.approx(
        (150 + (1 - SHARES[UNMASKED][LENGTH]) * 200) * 1000
    )


def test_attention_that_the_library_widens(tmp_path: Path) -> None:
    """Where it has no fused kernel for operands in half precision, it computes in single."""
    lay_out = (elementwise("direct_copy"), 20.0)
    alone = [
        *[lay_out] * 3, (elementwise("mul"), 20.0), (elementwise("mul"), 20.0), *[lay_out] * 2,
        (FP32, 500.0), (SOFTMAX, 90.0), (elementwise("isneginf"), 40.0), (ALL_MASKED, 60.0),
        (elementwise("where", 3), 60.0), (CAST, 40.0), lay_out, (FP32, 500.0),
    ]  # fmt: skip
    steps = Steps()
    for i in range(STEPS):
        steps.step(i, ("forward", [*layers(2), *alone, *layers(1)]))
    diagnosis, job = steps.diagnose(tmp_path)
    finding = only(diagnosis, "unfused_attention")
    between = sum(us for kernel, us in alone if kernel != FP32)
    saved = between + (1 - WIDENED_SHARE[0]) * 1000
    assert finding.time_ns_per_step == pytest.approx(saved * 1000)
    check_evidence(diagnosis, job)


WRITTEN: Work = [
    (elementwise("mul"), 30.0),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<MaxOps<float> > >(int)", 20.0),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >",
        30.0,
    ),
    (elementwise("exp"), 30.0),
    (f"{SUM}sum_functor", 20.0),
    (elementwise("div", 3), 30.0),
]
"""A softmax in primitive operations: the largest, taken off, exponentials, their sum."""
ITS_GRADIENT: Work = [
    (elementwise("div", 3), 30.0),
    (elementwise("mul", 3), 30.0),
    (f"{SUM}sum_functor", 20.0),
    (elementwise("add", 3), 30.0),
    (elementwise("mul", 3), 30.0),
]


@pytest.mark.parametrize(
    ("gradients", "mask", "kind"),
    [
        pytest.param(1, [], UNMASKED, id="with its gradient"),
        pytest.param(1, [WRITTEN[2]], MASKED, id="a bias is added"),
        pytest.param(3, [], UNMASKED, id="other gradients look alike"),
    ],
)
def test_attention_whose_softmax_is_written_out(
    tmp_path: Path, gradients: int, mask: list[tuple[str, float]], kind: str
) -> None:
    """Its gradients are told where there are as many as softmaxes."""
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for kernel, us in [*layers(1), (BF16, 50.0), *mask, *WRITTEN, (BF16, 50.0), *layers(1)]:
            steps.launch(kernel, us)
        for _ in range(gradients):
            for kernel, us in (
                (NORM, 5.0),
                *[(BF16, 50.0)] * 2,
                *ITS_GRADIENT,
                *[(BF16, 50.0)] * 2,
            ):
                steps.launch(kernel, us, thread=AUTOGRAD)
        steps.build.range(begin, steps.host, f"step_{i}")
    diagnosis, job = steps.diagnose(tmp_path)
    finding = only(diagnosis, "unfused_attention")
    share = SHARES[kind][-1]  # how long rows are no kernel's name tells
    saved = sum(us for _, us in [*mask, *WRITTEN]) + (1 - share) * 100
    if gradients == 1:
        saved += sum(us for _, us in ITS_GRADIENT) + (1 - share) * 200
    assert finding.time_ns_per_step == pytest.approx(saved * 1000)
    check_evidence(diagnosis, job)


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param(
            [(BF16, 50.0), *WRITTEN, (elementwise("log"), 5.0), (BF16, 50.0)], id="a loss"
        ),
        pytest.param(attention(LOG_SOFTMAX), id="log-softmax of a loss"),
        pytest.param(attention(between=[(TOP_K, 5.0)]), id="a router's choice"),
        pytest.param(attention(between=[(GATHER, 5.0)]), id="a router's weights, known before"),
        pytest.param(attention()[:-1], id="a classifier's probabilities"),
        pytest.param(attention(between=[(CAST, 3.0)] * 20), id="too much in between"),
    ],
)
def test_other_softmaxes_are_no_attention(tmp_path: Path, chain: Work) -> None:
    steps = Steps()
    for i in range(STEPS):
        steps.step(i, ("forward", [*layers(2), *chain, (NORM, 5.0), *layers(1)]))
    diagnosis, _ = steps.diagnose(tmp_path)
    assert "unfused_attention" not in [f.cause for f in diagnosis.findings]


def test_products_without_tensor_cores(tmp_path: Path) -> None:
    steps = Steps()
    for i in range(STEPS):
        steps.step(i, ("forward", [(FP32, 500.0), (NORM, 50.0)] * 4))
    diagnosis, job = steps.diagnose(tmp_path)
    finding = only(diagnosis, "low_precision_unused")
    # datasheet of the H200: 67 TFLOP/s against 494.5, of which 0.8 and 0.79 are achieved
    ratio = 494.5 / 67 * 0.79 / 0.8
    gain = 2_000_000 * (1 - 1 / ratio) - 4 * 10_000
    assert finding.time_ns_per_step == pytest.approx(gain, rel=1e-3)
    assert finding.prediction_low_ns < finding.predicted_step_ns < finding.prediction_high_ns
    assert "set_float32_matmul_precision" in finding.recommendations[0]
    shares = {e.figure: e.value for e in finding.evidence}
    assert shares["single_precision_share"] == pytest.approx(2_000 / 2_200)
    check_evidence(diagnosis, job)


@pytest.mark.parametrize(
    ("gemm", "kernel"),
    [
        ("Tesla P100", FP32),
        ("an unknown device", FP32),
        ("NVIDIA H200", BF16),
        ("NVIDIA H200", "cutlass_80_tensorop_s1688tf32gemm_256x128"),
        ("NVIDIA H200", "ampere_dgemm_128x64_nn"),
    ],
)
def test_no_better_cores_or_already_used(tmp_path: Path, gemm: str, kernel: str) -> None:
    steps = Steps()
    steps.build.rows["device"] = []
    steps.build.gpu(gemm)
    for i in range(STEPS):
        steps.step(i, ("forward", [(kernel, 500.0), (NORM, 50.0)] * 4))
    diagnosis, _ = steps.diagnose(tmp_path)
    assert "low_precision_unused" not in [f.cause for f in diagnosis.findings]


@pytest.mark.parametrize(
    ("named", "major", "kernel", "said"),
    [
        ("", 0, FP32, "no GPU is named"),
        ("an unknown device", 0, FP32, "not known here"),
        ("an unknown device", 9, FP32, "not known here"),
        ("Quadro GP100", 6, FP32, ""),
        ("AMD Instinct MI300X", 0, FP32, ""),
        ("NVIDIA H200", 9, FP32, ""),
        ("", 0, BF16, ""),
    ],
)
def test_single_precision_where_the_device_is_not_known(
    named: str, major: int, kernel: str, said: str, tmp_path: Path
) -> None:
    steps = Steps()
    del steps.build.rows["device"]
    if named:
        steps.build.gpu(named, compute_major=major or None)
    for i in range(STEPS):
        steps.step(i, ("forward", [(kernel, 500.0), (NORM, 50.0)] * 4))
    diagnosis, job = steps.diagnose(tmp_path)
    remarks = [text for text in diagnosis.warnings if "whether tensor cores" in text]
    assert len(remarks) == bool(said)
    assert all(said in text and "take 2.0 ms per step" in text for text in remarks)
    check_evidence(diagnosis, job)


def test_a_function_spelled_out_in_primitives(tmp_path: Path) -> None:
    spelled = [elementwise("pow"), SUM, elementwise("add"), elementwise("rsqrt"),
               elementwise("mul"), elementwise("mul")]  # fmt: skip
    steps = Steps()
    for i in range(STEPS):
        chain = [(kernel, 30.0 + k) for k, kernel in enumerate(spelled)]
        steps.step(i, ("forward", [(BF16, 100.0), *chain] * 4))
    diagnosis, job = steps.diagnose(tmp_path)
    finding = only(diagnosis, "fusion_opportunity")
    # the fastest pointwise kernel tells what a pass takes; two remain: one read, one write
    assert finding.time_ns_per_step == pytest.approx(4 * (195 - 2 * 30 / 2) * 1000, rel=1e-3)
    check_evidence(diagnosis, job)


WIDENED = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(float), "
    "std::array<char*, 2ul>, 4>(int)"
)
TURNED = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(float)> >(int)"
)
SPELLED = [elementwise(name) for name in ("erf", "add", "mul", "abs", "sign", "cos")]


@pytest.mark.parametrize(
    ("around", "counted"),
    [
        ("{f} {c}", 6),  # autocast casts for the product behind it
        ("{f} {t}", 6),  # as a convolution wants it
        ("{f} {n} {a}", 6),  # a norm, and what is added to its result
        ("{f} {n} {f}", 12),  # two functions, and a layer between
        ("{c} {f}", 7),  # behind a product that is in half precision it may be the function's
    ],
)
def test_a_function_is_counted_without_the_layers_beside_it(
    around: str, counted: int, tmp_path: Path
) -> None:
    parts = {"f": SPELLED, "c": [CAST], "t": [TURNED], "n": [NORM], "a": [elementwise("add", 3)]}
    steps = Steps()
    for i in range(STEPS):
        run = [name for part in around.split() for name in parts[part.strip("{}")]]
        layer = [(BF16, 100.0), *((name, 30.0) for name in run)]
        steps.step(i, ("forward", [*layer * 4, (BF16, 100.0)]))
    finding = only(steps.diagnose(tmp_path)[0], "fusion_opportunity")
    assert finding.value("kernels_per_step") == 4 * counted
    # of two functions each becomes one kernel of two passes
    functions = around.count("{f}")
    assert finding.value("repaired_ns_per_step") == pytest.approx(4 * functions * 30e3, rel=0.01)


def test_kernels_that_count_batches_make_no_function(tmp_path: Path) -> None:
    """A convolution's bias, batch normalisation, which counts its batches, and an activation."""
    counted = [(elementwise("OnSelf_add"), 1.5), (elementwise("mul"), 1.5)]
    layer = [(BF16, 100.0), (elementwise("add", 3), 40.0), *counted, (NORM, 60.0),
             (elementwise("clamp_scalar"), 30.0)]  # fmt: skip
    steps = Steps()
    for i in range(STEPS):
        steps.step(i, ("forward", layer * 4))
    diagnosis, _ = steps.diagnose(tmp_path)
    assert "fusion_opportunity" not in {finding.cause for finding in diagnosis.findings}


@pytest.mark.parametrize(("first", "said"), [("MaxOps", True), ("MinOps", False)])
def test_a_softmax_that_is_spelled_out(first: str, said: bool, tmp_path: Path) -> None:
    kernel = "void at::native::{}_kernel<4, at::native::{}>(int)"
    spelled = [elementwise("mul"), kernel.format("reduce", f"{first}<float>"),
               elementwise("add", 3), kernel.format("vectorized_elementwise", "exp_kernel_cuda"),
               kernel.format("reduce", "sum_functor<float>"), elementwise("div", 3)]  # fmt: skip
    steps = Steps()
    for i in range(STEPS):
        chain = [(name, 15.0) for name in spelled for _ in range(2)]  # halves of large tensors
        # between products, it would be attention
        steps.step(i, ("forward", [(BF16, 100.0), *chain, (NORM, 5.0), (BF16, 100.0)] * 4))
    finding = only(steps.diagnose(tmp_path)[0], "fusion_opportunity")
    assert any("scaled_dot_product" in advice for advice in finding.recommendations) is said


def test_the_whole_model_compiled_is_the_low_end(tmp_path: Path) -> None:
    """Two kernels beside each chain go only where more than the function is compiled."""
    chain = [(elementwise("mul"), 30.0)] * 6
    beside = [(elementwise("gelu"), 30.0), (elementwise("add"), 30.0)]
    steps = Steps()
    for i in range(STEPS):
        steps.step(i, ("forward", [(BF16, 100.0), *chain, (BF16, 100.0), *beside] * 4))
    diagnosis, job = steps.diagnose(tmp_path)
    finding = only(diagnosis, "fusion_opportunity")
    assert {e.figure: e.value for e in finding.evidence}["kernels_per_step"] == 24
    case = job.explained.cases[0]
    repair = case.explanation.inside_kernels.repairs["fusion_opportunity"]
    assert repair.further is not None
    gone = {
        bound: sum(
            len(change.ops)
            for change in changes_of_repair(case, repair, bound, None)
            if isinstance(change, RemoveOps)
        )
        for bound in BOUNDS
    }
    steady = case.explanation.n_steady
    assert gone == {"low": 24 * steady, "expected": 20 * steady, "high": 20 * steady}
    called = [
        change
        for change in changes_of_repair(case, repair, "low", None)
        if isinstance(change, CallCompiled)
    ]
    assert [len(change.ops) for change in called] == [8 * steady]
    assert repair.saved_bounds_ns[1] > repair.saved_ns


def test_memory_bound_kernels_dominate(tmp_path: Path) -> None:
    steps = Steps()
    # 1000 blocks of 128 threads of 8 floats in two tensors: 8.2 MB in 2.5 us, 3.3 TB/s
    work = [(elementwise("gelu"), 2.5), (NORM, 2.5), (CAST, 2.5), (BF16, 1.0)] * 20
    for i in range(STEPS):
        begin = steps.host
        for kernel, length in work:
            steps.launch(kernel, length, every=1.2)
        steps.build.range(begin, steps.host, f"step_{i}")
    diagnosis, job = steps.diagnose(tmp_path)
    finding = only(diagnosis, "memory_bound_kernels")
    figures = {e.figure: e.value for e in finding.evidence}
    assert figures["memory_bound_share"] == pytest.approx(150 / 170)
    assert figures["known_bytes_per_s"] == pytest.approx(1000 * 128 * 8 * 8 / 2.5e-6, rel=1e-3)
    assert finding.time_ns_per_step == pytest.approx(75_000, rel=0.02)
    # what they could be spared is told beside them
    assert "casts_and_copies" in {lever.cause for lever in diagnosis.levers}
    check_evidence(diagnosis, job)


def test_slow_small_kernels_are_not_memory_bound(tmp_path: Path) -> None:
    steps = Steps()
    work = [(elementwise("gelu"), 60.0), (NORM, 60.0), (CAST, 60.0)] * 20 + [(BF16, 20.0)]
    for i in range(STEPS):
        steps.step(i, ("forward", work))
    diagnosis, _ = steps.diagnose(tmp_path)
    assert "memory_bound_kernels" not in [f.cause for f in diagnosis.findings]


def test_a_long_kernel_with_few_blocks(tmp_path: Path) -> None:
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for kernel, length in layers():
            steps.launch(kernel, length)
        steps.launch(SUM, 900.0, blocks=4)
        steps.build.range(begin, steps.host, f"step_{i}")
    diagnosis, job = steps.diagnose(tmp_path)
    finding = only(diagnosis, "inefficient_kernel")
    assert finding.time_ns_per_step == pytest.approx(900_000 * (1 - 2 * 4 / 132), rel=1e-3)
    assert finding.next_capture is not None
    assert "ncu" in finding.next_capture
    assert "reduce_kernel" in finding.next_capture
    assert {e.figure: e.value for e in finding.evidence}["median_blocks"] == 4
    check_evidence(diagnosis, job)


def test_a_product_far_below_what_its_shape_allows(tmp_path: Path) -> None:
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for kernel, length in layers():
            steps.launch(kernel, length)
        shapes = "[[4096,4096],[4096,4096]]"
        steps.build.operator(steps.host - 0.5, steps.host + 1.5, "aten::mm", input_shapes=shapes,
                             input_types='["c10::BFloat16","c10::BFloat16"]')  # fmt: skip
        steps.launch(BF16, 2_000.0)
        steps.build.range(begin, steps.host, f"step_{i}")
    diagnosis, _ = steps.diagnose(tmp_path)
    finding = only(diagnosis, "inefficient_kernel")
    ceiling = 2 * 4096**3 / 989e12 * 1e9
    assert finding.time_ns_per_step == pytest.approx(2_000_000 - 2 * ceiling, rel=1e-3)
    assert finding.where.operator == "aten::mm"


@pytest.mark.parametrize("shapes", [True, False])
def test_large_batches_of_tiny_matrices(tmp_path: Path, shapes: bool) -> None:
    """Two products of a million matrices of 3 by 3, in kernels of two names; one of 64 by 64."""
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for kernel, length in layers():
            steps.launch(kernel, length)
        for name, size in (("nn", 3), ("nt", 3), ("tn", 64)):
            both = f"[1048576,{size},{size}]"
            if shapes:
                steps.build.operator(steps.host - 0.5, steps.host + 1.5, "aten::bmm",
                                     input_shapes=f"[{both},{both}]",
                                     input_types='["float","float"]')  # fmt: skip
            gemm = f"sm80_xmma_gemm_f32f32_f32f32_f32_{name}_n_tilesize32x32x8_stage3"
            # by a vector, cuBLAS takes another one
            kernel = gemm if shapes or name != "nt" else "void gemv2N_kernel<int, int, float>(int)"
            steps.launch(kernel, 900.0, blocks=1 if size == 3 else 4, batch=65_535)
        steps.build.range(begin, steps.host, f"step_{i}")
    diagnosis, job = steps.diagnose(tmp_path)
    finding = only(diagnosis, "inefficient_kernel")
    kernels = job.explained.cases[0].explanation.kernels
    left = 2 * 90_000.0  # a tenth
    if shapes:  # two operands, the products written and read again, their sums; at half speed
        moved = 4 * 1_048_576 * (9 + 9 + 2 * 27 + 9)
        left = 2 * moved / (kernels.attainable_bandwidth / 2) * 1e9
    assert finding.time_ns_per_step == pytest.approx(1_800_000 - left, rel=1e-3)
    assert "unsqueeze" in finding.recommendations[0]
    repair = job.explained.cases[0].explanation.inside_kernels.repairs["inefficient_kernel"]
    assert repair.low_ns == pytest.approx(STEPS * left / 2, rel=1e-3)
    # where nothing tells how small they are, it may gain nothing
    assert repair.high_ns == pytest.approx(STEPS * (2 * left if shapes else 1_800_000), rel=1e-3)
    # tensor cores do not help them, but the larger ones
    precision = job.explained.cases[0].explanation.inside_kernels.precision
    assert precision is not None
    assert len(precision.repair.rows) == STEPS
    check_evidence(diagnosis, job)


@pytest.mark.parametrize(
    ("kernel", "us", "bytes_of_index"),
    [
        ("indexing_backward_kernel<float, 4>", 2_000.0, 128 * 4),
        ("indexing_backward_kernel<c10::BFloat16, 4>", 2_000.0, 128 * 2),
        ("indexing_backward_kernel_small_stride<float>", 2_000.0, 32 * 4),
        ("indexing_backward_kernel<float, 4>", 100.0, 0),  # as a permutation's
    ],
)
def test_the_gradient_of_rows_that_are_indexed_again_and_again(
    tmp_path: Path, kernel: str, us: float, bytes_of_index: int
) -> None:
    """65,536 indices, four a block of four warps: 128 threads."""
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for name, length in layers():
            steps.launch(name, length)
        steps.launch(f"void (anonymous namespace)::{kernel}(long const*)", us, blocks=16_384)
        steps.build.range(begin, steps.host, f"step_{i}")
    diagnosis, job = steps.diagnose(tmp_path)
    if not bytes_of_index:
        assert "inefficient_kernel" not in [f.cause for f in diagnosis.findings]
        return
    finding = only(diagnosis, "inefficient_kernel")
    bandwidth = job.explained.cases[0].explanation.kernels.attainable_bandwidth
    left = 3 * 65_536 * bytes_of_index / bandwidth * 1e9
    assert finding.time_ns_per_step == pytest.approx(us * 1000 - left, rel=1e-3)
    assert "embedding(index, table)" in finding.recommendations[0]
    check_evidence(diagnosis, job)


def test_convolutions_in_the_frequency_domain_are_one_product_on_tensor_cores(
    tmp_path: Path,
) -> None:
    gemm = "sm80_xmma_gemm_cf32cf32_f32f32_cf32_nt_n_tilesize64x64x8_stage3_ffma_aligna8_alignc8"
    there, back = "void fft2d_r2c_32x32<float, false>(int)", "void fft2d_c2r_32x32<float>(int)"
    convolution = [(there, 30.0), (there, 50.0), *[(gemm, 400.0)] * 4, (back, 40.0)]
    steps = Steps()
    for i in range(STEPS):
        steps.step(i, ("forward", [*convolution, (NORM, 50.0), (BF16, 100.0)]))
    _, job = steps.diagnose(tmp_path)
    found = job.explained.cases[0].explanation.inside_kernels.precision
    assert found is not None
    # of a call two products stay, and take what the transforms and the others would
    assert len(found.repair.rows) == 7 * STEPS
    assert found.repair.merged.tolist() == [True, True, False, False, True, True, True] * STEPS
    old = int(found.repair.old_ns.sum())
    assert old == STEPS * 1_720_000
    share = SHARE[found.after]["expected"]
    assert found.repair.new_ns.sum() == pytest.approx(share * old, rel=1e-3)


def test_names_of_kernels_cannot_smuggle_a_command(tmp_path: Path) -> None:
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for kernel, length in layers(2):
            steps.launch(kernel, length)
        steps.launch("x'; rm -rf / #(int)", 900.0, blocks=4)
        steps.build.range(begin, steps.host, f"step_{i}")
    diagnosis, _ = steps.diagnose(tmp_path)
    finding = only(diagnosis, "inefficient_kernel")
    assert "rm" not in f"{finding.next_capture} {finding.message}"


def test_a_report_goes_on_to_the_cause_inside_the_kernel(tmp_path: Path) -> None:
    steps = Steps()
    for i in range(STEPS):
        begin = steps.host
        for kernel, length in layers():
            steps.launch(kernel, length)
        steps.launch(SUM, 900.0, blocks=4)
        steps.build.range(begin, steps.host, f"step_{i}")
    folder = steps.build.trace(tmp_path).folder
    units, rows = bundled()
    rows[9].update({"Kernel Name": SUM.replace("> >", ">>"), "Grid Size": "(4, 1, 1)"})
    rows[4]["Kernel Name"] = SUM  # the same name with another grid
    report = written(tmp_path / "report.csv", units, rows)
    finding = only(Job([folder]).diagnose([report]), "inefficient_kernel")
    (inside,) = finding.inside
    assert (inside.limiter, inside.launch, inside.same_grid) == ("small_grid", 9, True)
    assert inside.share == 1
    assert "1 of 132 SMs" in inside.message
    assert only(Job([folder]).diagnose(), "inefficient_kernel").inside == []
    nothing = Job([folder]).diagnose([written(tmp_path / "other.csv", units, rows[:2])])
    assert only(nothing, "inefficient_kernel").inside == []
    assert any("hold none of the kernels" in warning for warning in nothing.warnings)
    text = diagnosis_markdown(Job([folder]).diagnose([report]))
    assert "inside" in text
    assert "grid too small" in text
