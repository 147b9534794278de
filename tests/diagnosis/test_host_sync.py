"""Which call waits, for what, on whose behalf; and idle time that nothing explains."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnosis.test_time_causes import diagnosed, figures
from tests.support.build import AUTOGRAD, MAIN, Build
from tests.support.captures import shared

from stepscope.api import Job
from stepscope.diagnosis.causes.host_sync import CAUSE

STEPS = 8
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def reading(build: Build, *, kind: str, size: int, operator: str = "") -> None:
    """Each step waits for a long product twice, in a synchronisation behind a copy."""
    at = 0.0
    for i in range(STEPS):
        begin = at
        for _ in range(2):
            build.kernel(at + 10, at + 2_010, call=(at, at + 4), name="gemm", stream=7)
            down = kind == "DtoH"
            build.copy(at + 2_010, at + 2_012, call=(at + 10, at + 14), kind=kind, size=size,
                       src="device" if down else "pageable", dst="pageable" if down else "device",
                       stream=7)  # fmt: skip
            build.api(at + 16, at + 2_016, "cudaStreamSynchronize")
            if operator:
                build.operator(at + 8, at + 2_020, operator)
            at += 2_600
        build.kernel(at + 10, at + 60, call=(at, at + 4), name="gemm")
        at += 100
        build.range(begin, at, f"step {i}")


def test_the_call_that_reads_a_value_is_named(tmp_path: Path) -> None:
    build = Build()
    reading(build, kind="DtoH", size=4, operator="aten::_local_scalar_dense")
    found = diagnosed(build, tmp_path)
    assert found.verdict == "host_sync"
    first = found.findings[0]
    assert "cudaStreamSynchronize to read a value, called by 'aten::_local_scalar_dense'" in (
        first.message
    )
    assert "until 'gemm' on stream 7 has ended" in first.message
    known = figures(first)
    assert known["calls_per_step"] == 2
    assert known["waited_ns_per_step"] == 2 * 2_000_000
    assert first.recommendations[0].startswith("keep values on the GPU")


OR = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<bool, or_kernel_cuda> >(int)"
COMPARE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::compare_scalar_kernel(float), "
    "std::array<char*, 2ul> >(int)"
)
CHECKS = 10


def checked(thread: int, reduction: str = OR) -> Build:
    """Each step makes ten gradients of 500 us, and asks each whether it holds NaN, for 300 us."""
    build, at = Build(), 0.0
    build.gpu("NVIDIA H100 80GB HBM3")
    for i in range(STEPS):
        begin = at
        build.kernel(at + 10, at + 510, call=(at, at + 4), name="nvjet_sm90_tst_128x256")
        at += 520
        for _ in range(CHECKS):
            build.kernel(at + 10, at + 510, call=(at, at + 4), name="nvjet_sm90_tst_128x256_NTN",
                         thread=thread)  # fmt: skip
            build.kernel(at + 510, at + 660, call=(at + 5, at + 7), name=COMPARE, thread=thread)
            build.kernel(at + 660, at + 810, call=(at + 8, at + 10), name=reduction, thread=thread)
            build.copy(at + 810, at + 812, call=(at + 11, at + 13), kind="DtoH", size=1,
                       src="device", dst="pageable", thread=thread)  # fmt: skip
            build.api(at + 14, at + 814, "cudaStreamSynchronize", thread=thread)
            at += 1_000
        build.range(begin, at, f"step {i}")
    return build


def test_anomaly_detection_is_told_and_goes_with_its_kernels(tmp_path: Path) -> None:
    first = diagnosed(checked(AUTOGRAD), tmp_path).findings[0]
    assert first.cause == "host_sync"
    assert "torch.autograd.detect_anomaly" in first.message
    assert "set_detect_anomaly(False)" in first.recommendations[0]
    assert figures(first)["nan_checks_per_step"] == CHECKS
    assert first.predicted_step_ns == pytest.approx((CHECKS + 1) * 500_000, rel=0.03)


@pytest.mark.parametrize(
    ("thread", "reduction"), [(MAIN, OR), (AUTOGRAD, OR.replace("or_", "sum_"))]
)
def test_other_reads_are_no_anomaly_detection(tmp_path: Path, thread: int, reduction: str) -> None:
    first = diagnosed(checked(thread, reduction), tmp_path).findings[0]
    assert first.cause == "host_sync"
    assert "anomaly" not in " ".join([first.message, *first.recommendations])
    assert first.predicted_step_ns > 1.1 * (CHECKS + 1) * 500_000


def test_an_inference_that_synchronises_the_device_is_told_to_leave_that_out(
    tmp_path: Path,
) -> None:
    """Eight passes of 2 ms, after each of which the host waits, and takes 0.6 ms for the next."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        for k in range(4):
            build.operator(at + 10 * k, at + 10 * k + 8, "aten::linear")
            begin = at + 20 + 500 * k
            call = (at + 10 * k, at + 10 * k + 4)
            build.kernel(begin, begin + 500, call=call, name=f"gemm{k}")
        build.api(at + 50, at + 2_030, "cudaDeviceSynchronize")
        build.range(at, at + 2_040, f"step {i}")
        at += 2_600
    first = diagnosed(build, tmp_path).findings[0]
    assert first.cause == "host_sync"
    assert first.recommendations[0].startswith("drop torch.cuda.synchronize()")


@pytest.mark.parametrize(("waited", "cause"), [(False, "launch_bound"), (True, "host_sync")])
def test_a_wait_for_an_idle_device_takes_nothing(waited: bool, cause: str, tmp_path: Path) -> None:
    """Eight launches a step, each 20 us after the one before; then a synchronisation.

    Each kernel runs 3 us, and the device is idle before the host waits; or the last one runs until
    the host has waited for it for 50 us.
    """
    build = Build()
    for i in range(STEPS):
        at = 240.0 * i
        for k in range(8):
            begin = at + 20 * k
            end = at + 215 if waited and k == 7 else begin + 11
            build.kernel(begin + 8, end, call=(begin, begin + 5), name="void at::native::work")
        build.api(at + 165, at + (216 if waited else 170), "cudaDeviceSynchronize")
        build.range(at, at + 239, f"step {i}")
    e = Job([build.trace(tmp_path).folder]).explained.cases[0].explanation
    idle = e.idle_by_cause_ns
    assert max(("launch_bound", "host_sync"), key=lambda name: idle.get(name, 0)) == cause


def test_a_shape_that_depends_on_data_is_advised_first(tmp_path: Path) -> None:
    build = Build()
    reading(build, kind="DtoH", size=8, operator="aten::nonzero")
    assert (
        diagnosed(build, tmp_path)
        .findings[0]
        .recommendations[0]
        .startswith("avoid data-dependent shapes")
    )


@pytest.mark.parametrize("size", [8, 512])
def test_a_few_bytes_up_are_a_wait_and_no_transfer(tmp_path: Path, size: int) -> None:
    build = Build()
    reading(build, kind="HtoD", size=size, operator="aten::to")
    found = diagnosed(build, tmp_path)
    assert [f.cause for f in found.findings] == ["host_sync"]
    assert "to upload a value" in found.findings[0].message
    assert found.findings[0].recommendations[0].startswith("make small tensors on the GPU")


def test_a_column_of_a_batch_up_is_a_transfer(tmp_path: Path) -> None:
    build = Build()
    reading(build, kind="HtoD", size=1 << 16, operator="aten::to")
    found = diagnosed(build, tmp_path)
    assert [f.cause for f in found.findings] == ["blocking_copy"]


def test_waits_of_the_logger_of_ddp_are_no_finding(tmp_path: Path) -> None:
    """The last of eight waits is the one that lasts: it waits for the iteration before."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        build.range(at + 5, at + 5_000, "DistributedDataParallel.forward")
        if i:
            for k in range(7):
                build.api(at + 10 + 3 * k, at + 12 + 3 * k, "cudaEventSynchronize")
            build.api(at + 40, at + 3_040, "cudaEventSynchronize")
        for k in range(20):
            start = at + 3_640 + 60 * k
            build.kernel(start, start + 50, call=(start - 8, start - 4), name="gemm")
        build.kernel(at + 4_900, at + 8_040, call=(at + 4_890, at + 4_895), name=NCCL, stream=20)
        at += 5_000
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    assert "host_sync" not in {f.cause for f in found.findings}
    (output,) = [r for r in found.warnings if "DistributedDataParallel makes itself" in r]
    assert "this passes" in output


def test_the_programs_own_waits_stay_one(tmp_path: Path) -> None:
    """Two events a step, waited for by the program itself, in DDP's forward or not."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        for k in range(20):
            start = at + 640 + 60 * k
            build.kernel(start, start + 50, call=(start - 8, start - 4), name="gemm")
        build.kernel(at + 1_900, at + 5_040, call=(at + 1_890, at + 1_895), name=NCCL, stream=20)
        build.api(at + 1_900, at + 5_045, "cudaEventSynchronize")
        at += 5_100
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    assert found.verdict == "host_sync"
    assert "cudaEventSynchronize" in found.findings[0].message


def test_nothing_is_said_of_a_call_with_an_odd_name(tmp_path: Path) -> None:
    """Names of the trace reach no statement unless they are plain words."""
    build = Build()
    reading(build, kind="DtoH", size=4)
    for row in build.rows["api_call"]:
        if row["name"] == "cudaStreamSynchronize":
            row["name"] = row["raw_name"] = "cudaStreamSynchronize'; --"
    found = diagnosed(build, tmp_path)
    finding = next(f for f in found.findings if f.cause == CAUSE.id)
    assert "--" not in finding.message


def test_unexplained_idle_time_names_where_it_lies(tmp_path: Path) -> None:
    """Kernels were launched long before, and nothing says what the device waited for."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        build.range(at, at + 1_500, "exchange")
        for k in range(20):
            build.kernel(at + 20 + 200 * k, at + 120 + 200 * k, call=(at + 4 * k, at + 4 * k + 2),
                         name="late_kernel" if k % 2 else "gemm")  # fmt: skip
        at += 4_020
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    (output,) = [r for r in found.warnings if "that the capture does not hold" in r]
    assert "while the launching threads are in no CUDA call" in output
    assert "on stream 7" in output
    assert "stepscope run --waits" in output


@pytest.mark.parametrize("equal", [True, False])
def test_pauses_of_one_length_are_the_slices_of_another_program(
    tmp_path: Path, equal: bool
) -> None:
    """All is enqueued in time on one stream, and the device pauses here and there."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin, time = at, at + 20
        for k in range(40):
            build.kernel(time, time + 100, call=(at + 4 * k, at + 4 * k + 2), name=f"kernel_{k}")
            time += 101
            if k in (20 + i, 30 + i % 5):
                time += 2_440 if equal else 900 + 700 * (i + k % 3)
        at = time
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    (output,) = [r for r in found.warnings if "that the capture does not hold" in r]
    assert ("another program" in output) == equal


def test_small_copies_of_a_real_run_are_no_bandwidth() -> None:
    found = Job([shared("public/mfu_2gpu_before.sqlite.xz")]).diagnose()
    assert "blocking_copy" not in {f.cause for f in found.findings}


def test_the_waits_of_ddp_in_a_real_run_are_no_finding() -> None:
    captures = [shared(f"h200-2/ddp_noisy_gpu2.rank{rank}.json.gz") for rank in range(4)]
    found = Job(captures).diagnose()
    assert "host_sync" not in {f.cause for f in found.findings}


def test_the_call_of_a_real_run_is_named() -> None:
    found = Job([shared("h200-2/run_torch_stacks.json.gz")]).diagnose()
    sync = next(f for f in found.findings if f.cause == "host_sync")
    assert "'aten::_local_scalar_dense'" in sync.message
    # the profiler has the first line of a function, which is no place of a wait
    assert sync.where.source is None
    assert sync.where.function == "step() train.py:99"
