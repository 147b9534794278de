"""Training is told from inference, and the advice follows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnosis.test_offload_and_input import STEPS, work
from tests.diagnosis.test_time_causes import diagnosed, figures
from tests.support.build import Build
from tests.support.captures import shared

from stepscope.api import Job
from stepscope.breakdown.explain import Explanation, explain
from stepscope.diagnosis.causes import launch_bound


def built(folder: Path, build: Build) -> Explanation:
    trace = build.trace(folder)
    (e,) = explain(trace.frame, trace.meta)
    return e


def one(name: str = "gemm") -> Build:
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        at = work(build, at, name=name)
        build.range(begin, at, f"step {i}")
    return build


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("void at::native::FusedAdamMathFunctor", "training"),
        ("softmax_warp_backward", "training"),
        ("sm90_xmma_wgrad", "training"),
        ("paged_attention_v2_kernel", "inference"),
        ("BatchDecodeWithPagedKVCacheKernel", "inference"),
        ("reshape_and_cache_flash", "inference"),
        ("gemm_{lambda()#1}", "unknown"),
    ],
)
def test_kernels_tell(tmp_path: Path, kernel: str, kind: str) -> None:
    assert built(tmp_path, one(kernel)).workload.kind == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Optimizer.step#AdamW.step", "training"),
        ("backward", "training"),
        ("execute_model", "inference"),
        ("prefill", "inference"),
        ("decode_step", "inference"),
        ("execute_32_context_0(sq0)", "inference"),
        ("decoder_layer", "unknown"),
        ("generated_samples_logger", "unknown"),
    ],
)
def test_ranges_tell(tmp_path: Path, name: str, kind: str) -> None:
    build = one()
    build.range(1, 30, name)
    assert built(tmp_path, build).workload.kind == kind


def test_training_that_samples_stays_training(tmp_path: Path) -> None:
    build = one("layer_norm_grad_input_kernel")
    build.range(1, 30, "generate")
    assert built(tmp_path, build).workload.kind == "training"


@pytest.mark.parametrize(("counts", "kind"), [(True, "training"), (False, "inference")])
def test_a_forward_pass_that_autograd_records_is_training(
    tmp_path: Path, counts: bool, kind: str
) -> None:
    build = one()
    for i in range(30):
        more = {"sequence_number": 100 + i // 2} if counts else {}
        build.operator(2 * i, 2 * i + 1, "aten::mm", **more)
    assert built(tmp_path, build).workload.kind == kind


@pytest.mark.parametrize("infers", [True, False])
def test_advice_fits(tmp_path: Path, infers: bool) -> None:
    """Kernels of 5 us, launched every 40: the host is too slow."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        for k in range(60):
            name = "paged_attention" if infers and k % 9 == 0 else "at::native::gemm"
            build.kernel(at + 8, at + 13, call=(at, at + 6), name=name)
            at += 40
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    assert found.verdict == launch_bound.CAUSE.id
    advice = " ".join(found.findings[0].recommendations)
    assert ("speculative decoding" in advice) == infers
    assert ("fused optimizer" in advice) == (not infers)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tb_resnet50_w0.json.gz", "training"),
        ("deepseek_train.json.gz", "training"),
        ("param_dlrm.rank0.json.gz", "training"),
        ("mfu_2gpu_before.sqlite.xz", "training"),
        ("timesformer.h100.json.gz", "inference"),
        ("qwen.mi300.json.gz", "inference"),
        ("bert_small.h100.json.gz", "inference"),
        ("sglang_decode.json.gz", "inference"),
        ("vllm_decode.json.gz", "inference"),
        ("xdit_sd35.json.gz", "inference"),
    ],
)
def test_public_traces(name: str, kind: str) -> None:
    job = Job([shared(f"public/{name}")])
    assert {e.workload.kind for _, e in job.explained.explanations} == {kind}


def test_compiled_code_that_runs_is_not_compiled() -> None:
    """Nothing is compiled in this trace, but frames of compiled code hold most of it."""
    job = Job([shared("public/xdit_sd35.json.gz")])
    assert "compilation_or_warmup" not in {f.cause for f in job.diagnose().findings}
    for _, e in job.explained.explanations:
        assert e.idle_by_cause_ns.get("compilation_or_warmup", 0) < 0.01 * (e.end_ns - e.begin_ns)


def test_products_of_amd_are_products_and_lambdas_no_optimizer() -> None:
    """hipBLASLt takes 16.9 ms of 47 ms of kernels, counted from the trace itself."""
    job = Job([shared("public/qwen.mi300.json.gz")])
    rows = job.query(
        "SELECT category, sum(end_ns - start_ns) / 1e6 AS ms FROM kernel_category GROUP BY category"
    ).to_pylist()
    taken = {row["category"]: row["ms"] for row in rows}
    assert "optimizer" not in taken
    assert taken["matmul"] == pytest.approx(16.888, abs=0.01)


def test_a_loader_that_falls_behind_in_one_step() -> None:
    """All starvation lies in the last step, whose end nothing marks: the mean counts."""
    found = Job([shared("h200-2/v_starved.own.tar.xz")]).diagnose()
    assert found.verdict == "input_starvation"
    first = found.findings[0]
    known = figures(first)
    # one thread copies 77 MB a step into pinned memory, which takes longer than the rest
    assert first.predicted_step_ns == pytest.approx(known["pinning_ns_per_step"], rel=0.01)
    assert known["pinned_bytes_per_step"] == 77_070_336
    assert first.prediction_low_ns <= 17.5e6 <= first.prediction_high_ns  # measured once repaired
    assert figures(first)["late_steps"] == 1


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("stencil", "cudaStreamBeginCapture"),
        ("at::native::add", "torch.compile"),
        ("triton_poi_fused_add_0", "torch.compile"),
        ("optimizer_step_backward", "torch.compile"),  # it trains, with whatever framework
    ],
)
def test_a_program_without_a_framework_is_told_what_to_call(
    tmp_path: Path, kernel: str, expected: str
) -> None:
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        for _ in range(60):
            build.kernel(at + 8, at + 13, call=(at, at + 6), name=kernel)
            at += 40
        build.range(begin, at, f"step {i}")
    first = diagnosed(build, tmp_path).findings[0]
    assert first.cause == launch_bound.CAUSE.id
    assert expected in " ".join(first.recommendations)
    assert ("torch" in " ".join(first.recommendations)) == (expected == "torch.compile")


@pytest.mark.parametrize(("last", "thread"), [("gelu", "launching"), ("gelu_backward", "training")])
def test_a_thread_trains_only_where_something_goes_back(
    last: str, thread: str, tmp_path: Path
) -> None:
    """Eight steps of three kernels, whose graph autograd keeps, and 5 ms of work on the CPU."""
    build = Build()
    for i in range(8):
        at = 6_000.0 * i
        build.range(at, at + 5_900, f"ProfilerStep#{i}")
        build.operator(at + 10, at + 4_900, "aten::sort")
        for k, name in enumerate(["gemm", "norm", last]):
            begin = at + 5_000 + 200 * k
            build.operator(begin, begin + 20, "aten::linear", sequence_number=10 * i + k)
            build.kernel(begin + 10, begin + 205, call=(begin + 5, begin + 10), name=name)
    first = diagnosed(build, tmp_path).findings[0]
    assert first.cause == "host_compute"
    assert f"the {thread} thread works on the CPU" in first.message
