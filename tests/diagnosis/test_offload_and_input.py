"""Offload to the CPU, waiting for input and other host work: what tells one from the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnosis.test_time_causes import diagnosed, figures
from tests.support.build import MAIN, PID, Build
from tests.support.captures import shared

from stepscope.api import Job

STEPS = 10
SIZES = [4 << 20, 1 << 20, 2 << 20, 1 << 20, 4 << 20]


def work(
    build: Build, at: float, kernels: int = 40, name: str = "gemm", thread: int = MAIN
) -> float:
    """Kernels one after the other, launched ahead; when the host has launched them and they end."""
    end = at + 20
    for i in range(kernels):
        build.kernel(end, end + 50, call=(at + 4 * i, at + 4 * i + 3), name=f"{name}_{i % 9}",
                     thread=thread)  # fmt: skip
        end += 50
    return end


def journey(
    build: Build,
    at: float,
    sizes: list[int],
    kind: str,
    *,
    host: float = 0.0,
    thread: int = MAIN,
) -> float:
    for size in sizes:
        time = size / 25_000  # us at 25 GB/s
        down = kind == "DtoH"
        build.copy(at + 5, at + 5 + time, call=(at, at + 8 + time), kind=kind, size=size,
                   src="device" if down else "pageable", dst="pageable" if down else "device",
                   call_name="cudaMemcpy", thread=thread)  # fmt: skip
        at += 12 + time + host
    return at


def offloading(build: Build, sizes: list[int], host: float, back: list[int] | None = None) -> None:
    """Backward pass, gradients down, an update on the host, parameters up."""
    at = 0.0
    for i in range(STEPS):
        begin = at
        at = work(build, at)
        at = journey(build, at, sizes, "DtoH") + host
        at = journey(build, at, sizes if back is None else back, "HtoD")
        build.range(begin, at, f"step {i}")


def test_what_goes_down_and_comes_back_is_offload(tmp_path: Path) -> None:
    build = Build()
    offloading(build, SIZES, host=20_000)
    found = diagnosed(build, tmp_path)
    assert [f.cause for f in found.findings] == ["cpu_offload"]
    first = found.findings[0]
    known = figures(first)
    assert (known["downs"], known["ups"]) == (5, 5)
    assert known["down_bytes"] == known["up_bytes"] == sum(SIZES)
    copies = 2 * sum(SIZES) / 25_000 * 1e3
    assert first.time_ns_per_step == pytest.approx(20e6 + copies, rel=0.02)
    # what the GPU computes stays, 2 ms, and an update takes the host 0.28 ms, which had no call
    # meanwhile: 0.25 of them are after the GPU has ended
    assert first.predicted_step_ns == pytest.approx(2.25e6, rel=0.02)


def test_an_update_on_the_device_takes_the_host_its_time(tmp_path: Path) -> None:
    """Where the host sets the pace: a quarter of a millisecond, and 6 us a tensor."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        for k in range(40):  # 100 us each on the host, with the device idle
            build.kernel(at + 97, at + 99, call=(at + 92, at + 95), name=f"gemm_{k % 9}")
            at += 100
        at = journey(build, at, SIZES, "DtoH") + 20_000
        at = journey(build, at, SIZES, "HtoD")
        build.range(begin, at, f"step {i}")
    (first,) = (f for f in diagnosed(build, tmp_path).findings if f.cause == "cpu_offload")
    assert first.predicted_step_ns == pytest.approx(4e6 + 0.25e6 + 5 * 6e3, rel=0.02)


def test_an_update_after_gradients_that_go_down_one_by_one(tmp_path: Path) -> None:
    """The host works in one of five journeys of each step, and in every step."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        for size in SIZES:
            at = journey(build, work(build, at), [size], "DtoH")
        at = journey(build, at + 20_000, SIZES, "HtoD")
        build.range(begin, at, f"step {i}")
    (offload,) = (f for f in diagnosed(build, tmp_path).findings if f.cause == "cpu_offload")
    assert offload.time_ns_per_step > 20e6


def test_small_tensors_travel_along_and_a_loss_does_not(tmp_path: Path) -> None:
    """Biases lie between large tensors and at either end; a number goes up and down anyway."""
    build, at = Build(), 0.0
    biases = [256, *SIZES, 8, 512, 512]
    for i in range(STEPS):
        begin = at
        at = journey(build, work(build, at), [4], "HtoD")
        at = journey(build, at, biases, "DtoH") + 20_000
        at = journey(build, at, biases, "HtoD")
        at = journey(build, work(build, at), [4], "DtoH")
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    known = figures(found.findings[0])
    assert (known["downs"], known["ups"]) == (len(biases), len(biases))
    assert known["down_bytes"] == known["up_bytes"] == sum(biases)


def test_what_comes_back_after_the_backward_pass_is_not_updated(tmp_path: Path) -> None:
    """Nothing is put in the place of activations that went down."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        at = journey(build, work(build, at), SIZES, "DtoH")
        at = journey(build, work(build, at), SIZES, "HtoD")
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    assert found.verdict == "cpu_offload"
    assert found.findings[0].predicted_step_ns == pytest.approx(4.1e6, rel=0.02)


def test_a_batch_up_and_a_result_down_are_no_offload(tmp_path: Path) -> None:
    """An image goes in and one of the same size comes out: nothing is brought back."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        at = journey(build, at, [4 << 20], "HtoD")
        at = work(build, at)
        at = journey(build, at, [4 << 20], "DtoH") + 20_000
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    assert "cpu_offload" not in {f.cause for f in found.findings}


def fetching(build: Build, between: int, name: str, *, ends_step: bool) -> None:
    """Four moments of one size come up, kernels follow, and the moments go down again."""
    at, begin = 0.0, 0.0
    for i in range(STEPS):
        at = work(build, at)
        at = journey(build, at, [4 << 20] * 4, "HtoD")
        at = work(build, at, between, name)
        if ends_step:
            build.range(begin, at, f"step {i}")
            begin = at
        at = journey(build, at, [4 << 20] * 4, "DtoH")
        if not ends_step:
            build.range(begin, at, f"step {i}")
            begin = at


@pytest.mark.parametrize(
    ("between", "name", "ends_step", "offloads"),
    [
        pytest.param(12, "mul", False, True, id="Adam written out"),
        pytest.param(40, "multi_tensor_apply", False, True, id="an optimizer's kernels"),
        pytest.param(12, "mul", True, True, id="they go down after the step"),
        pytest.param(40, "gemm", False, False, id="images through a model"),
    ],
)
def test_moments_of_one_size_that_are_fetched_for_the_update(
    tmp_path: Path, between: int, name: str, ends_step: bool, offloads: bool
) -> None:
    build = Build()
    fetching(build, between, name, ends_step=ends_step)
    causes = [f.cause for f in diagnosed(build, tmp_path).findings]
    assert (causes[:1] == ["cpu_offload"]) == offloads
    assert ("cpu_offload" in causes) == offloads


def test_other_sizes_are_no_offload(tmp_path: Path) -> None:
    build = Build()
    offloading(build, SIZES, host=20_000, back=[3 << 20, 5 << 19, 7 << 19, 9 << 18, 6 << 20])
    found = diagnosed(build, tmp_path)
    assert "cpu_offload" not in {f.cause for f in found.findings}


def test_one_flat_buffer_where_the_optimizer_says_so(tmp_path: Path) -> None:
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        at = work(build, at)
        inner = at
        at = journey(build, at, [16 << 20], "DtoH") + 20_000
        at = journey(build, at, [16 << 20], "HtoD")
        build.range(inner, at, "Optimizer.step#DeepSpeedCPUAdam.step")
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    assert found.verdict == "cpu_offload"


def test_an_update_on_the_host_between_two_flat_copies(tmp_path: Path) -> None:
    """The range holds the update alone; a fused update on the device launches kernels in it."""
    for on_device in (False, True):
        build, at = Build(), 0.0
        for i in range(STEPS):
            begin = at
            at = work(build, at)
            at = journey(build, at, [16 << 20], "DtoH")
            inner = at
            if on_device:
                at = work(build, at, kernels=20, name="adam")
            at += 20_000
            build.range(inner, at, "Optimizer.step#AdamW.step")
            at = journey(build, at, [16 << 20], "HtoD")
            build.range(begin, at, f"step {i}")
        folder = tmp_path / str(on_device)
        folder.mkdir()
        found = diagnosed(build, folder)
        assert (found.verdict == "cpu_offload") == (not on_device)


AVERAGED = [4 << 20, 4096, 8, 1 << 20, 512, 2 << 20, 4, 4096, 1 << 20, 512]


def averaging(build: Build, *, host: float, sizes: list[int], changing: bool = False) -> None:
    """Forward and backward pass, then tensors down one by one, the host at work on each."""
    at = 0.0
    for i in range(STEPS):
        begin = at
        at = work(build, at)
        sent = [size + 256 * i for size in sizes] if changing else sizes
        at = journey(build, at, sent, "DtoH", host=host)
        build.range(begin, at, f"step {i}")


def test_an_average_of_the_weights_on_the_cpu(tmp_path: Path) -> None:
    """Eight tensors and two numbers go down, with a millisecond of work on each, and stay."""
    build = Build()
    averaging(build, host=900, sizes=AVERAGED)
    found = diagnosed(build, tmp_path)
    assert [f.cause for f in found.findings] == ["cpu_offload"]
    first = found.findings[0]
    known = figures(first)
    assert (known["downs"], known["ups"]) == (8, 0)
    assert known["down_bytes"] == sum(size for size in AVERAGED if size > 8)
    assert "nothing comes back" in first.message
    # the copies and all the host does around them, but for the launch of the next kernel
    copied = sum(AVERAGED) / 25_000 + len(AVERAGED) * (12 + 900)
    assert first.time_ns_per_step == pytest.approx(copied * 1e3, rel=0.02)
    # 2 ms of kernels stay, and the average is updated on the device
    assert first.predicted_step_ns == pytest.approx(2.3e6, rel=0.05)


@pytest.mark.parametrize(
    ("sizes", "changing"),
    [
        (AVERAGED[:8], False),  # six tensors may be results
        ([1 << 20] * 10, False),  # so may ten of one size
        ([512] * 5 + [1024] * 5, False),  # little data
        (AVERAGED, True),  # what changes from step to step is no model's
    ],
)
def test_results_that_go_down_are_no_offload(
    tmp_path: Path, sizes: list[int], changing: bool
) -> None:
    build = Build()
    averaging(build, host=900, sizes=sizes, changing=changing)
    found = diagnosed(build, tmp_path)
    assert found.verdict != "gpu_bound_healthy"
    assert "cpu_offload" not in {f.cause for f in found.findings}


def test_a_pause_in_one_step_is_no_work_on_what_went_down(tmp_path: Path) -> None:
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        at = work(build, at)
        at = journey(build, at, AVERAGED[:5], "DtoH", host=300) + (20_000 if i == 5 else 0)
        at = journey(build, at, AVERAGED[5:], "DtoH", host=300)
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    (offload,) = (f for f in found.findings if f.cause == "cpu_offload")
    # 3 ms of work and 0.3 ms of copies in each step, and none of the 2 ms that the pause adds
    assert offload.time_ns_per_step == pytest.approx(3.4e6, rel=0.05)
    assert "step_jitter" in {f.cause for f in found.findings}


@pytest.mark.parametrize("autograd", [True, False])
def test_a_layer_on_the_cpu_gets_its_gradient_back(tmp_path: Path, autograd: bool) -> None:
    """Of one size up and down only autograd's thread, which launches kernels, tells a gradient."""
    build, at, second = Build(), 0.0, MAIN + 1
    for i in range(STEPS):
        begin = at
        at = journey(build, at, [4 << 20], "HtoD")
        at = work(build, work(build, at), name="backward", thread=second)
        at = journey(build, at, [4 << 20], "DtoH", thread=second if autograd else MAIN)
        build.kernel(at + 6, at + 16, call=(at, at + 4), name="multi_tensor_apply_kernel")
        at += 20_000
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    assert (found.verdict == "cpu_offload") == autograd
    if autograd:
        known = figures(found.findings[0])
        assert known["down_bytes"] == known["up_bytes"] == 4 << 20
        # two passes of 2 ms each stay, and what the device updates
        assert found.findings[0].predicted_step_ns == pytest.approx(4.1e6, rel=0.1)


def waiting(build: Build, *, upload: int, late: bool = False, kernel: str = "gemm") -> None:
    """A silence of 20 ms in each step, then an upload: at its beginning, or in its middle."""
    at = 0.0
    for _ in range(STEPS):
        if late:
            at = work(build, at, name="first")
        at += 20_000
        build.copy(at + 5, at + 20, call=(at, at + 4), size=upload)
        at = work(build, at + 30, kernels=80, name=kernel)
        build.kernel(at, at + 40, call=(at - 8, at - 4), name="multi_tensor_apply_kernel")
        at += 42


def ranged(build: Build) -> None:
    """Steps as a program marks them, each from one update to the next."""
    ends = [r["end_ns"] / 1000 for r in build.rows["gpu_op"] if "multi_tensor" in r["name"]]
    for i, (begin, end) in enumerate(zip([0.0, *ends[:-1]], ends, strict=True)):
        build.range(begin, end, f"step {i}")


def test_an_upload_at_the_beginning_of_a_step_is_a_batch(tmp_path: Path) -> None:
    build = Build()
    waiting(build, upload=1 << 20, kernel="at::native::gemm")
    ranged(build)
    found = diagnosed(build, tmp_path)
    assert found.verdict == "input_starvation"
    # nothing tells a loader's worker that is late from a thread that makes its batches itself
    assert "makes it itself" in found.findings[0].message
    assert "the training thread makes the batch itself" in found.findings[0].recommendations[0]


@pytest.mark.parametrize(
    ("change", "upload", "kernel"),
    [("middle", 1 << 20, "gemm"), ("scalar", 8, "gemm"), ("decoding", 1 << 20, "paged_attention")],
)
def test_without_evidence_it_is_host_work(
    tmp_path: Path, change: str, upload: int, kernel: str
) -> None:
    build = Build()
    waiting(build, upload=upload, late=change == "middle", kernel=kernel)
    ranged(build)
    found = diagnosed(build, tmp_path)
    assert found.verdict == "host_compute"
    assert "nothing in the capture says at what" in found.findings[0].message
    asked = "scheduling of requests" if change == "decoding" else "input, or other host work"
    assert asked in found.findings[0].message


@pytest.mark.parametrize("loader", [True, False])
def test_a_wait_in_the_system_needs_a_loader(tmp_path: Path, loader: bool) -> None:
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        build.api(at + 10, at + 19_990, "pthread_cond_wait", api="osrt")
        at = work(build, at + 20_000, kernels=80)
        build.range(begin, at, f"step {i}")
    if loader:
        build.rows["thread"] = [{"process_id": PID, "thread_id": 7, "name": "pt_data_pin"}]
    found = diagnosed(build, tmp_path)
    assert found.verdict == ("input_starvation" if loader else "host_compute")
    if not loader:
        assert "nothing says for what" in found.findings[0].message


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        ("transformers/models/videomae/image_processing_videomae.py(235): preprocess",
         "input_starvation"),
        ("transformers/models/detr/image_processing_detr.py(900): post_process_object_detection",
         "host_compute"),
        ("metrics.py(12): update", "host_compute"),
    ],
)  # fmt: skip
def test_python_functions_say_what_the_host_did(tmp_path: Path, function: str, cause: str) -> None:
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        build.python(at + 5, at + 19_995, function, thread=MAIN)
        at = work(build, at + 20_000, kernels=80)
        build.range(begin, at, f"step {i}")
    assert diagnosed(build, tmp_path).verdict == cause


def test_the_offload_of_a_real_run() -> None:
    capture = shared("h200-2/cpu_offload.sqlite.xz")
    found = Job([capture]).diagnose()
    assert found.verdict == "cpu_offload"
    first = found.findings[0]
    known = figures(first)
    # per step, counted from the raw export: 34 gradients of weights, 536.9 MB, 17 of biases, 4 KB
    # each, and as many parameters
    assert (known["downs"], known["down_bytes"]) == (34 + 17, 536_870_912 + 17 * 4096)
    assert known["up_bytes"] == known["down_bytes"]
    # 14.4 ms a step with the optimizer on the GPU, not recorded
    assert first.prediction_low_ns <= 15.0e6
    assert first.predicted_step_ns <= 18e6
