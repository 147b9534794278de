"""Traces without GPU work say why, and what they can tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.build import PID, Build

from stepscope.api import Job
from stepscope.api.explained import why_without_gpu
from stepscope.trace.errors import InputError


def why(build: Build, folder: Path, source: str = "nsys") -> str:
    trace = build.trace(folder)
    with pytest.raises(InputError, match="holds no GPU work"):
        Job([trace.folder]).diagnose()
    trace.meta.source = source
    return why_without_gpu("x", trace.frame, trace.meta)


@pytest.mark.parametrize(
    ("call", "word"), [("cudaLaunchKernel", "ERR_NVGPUCTRPERM"), ("hipLaunchKernel", "ROCm")]
)
def test_launches_without_kernels(tmp_path: Path, call: str, word: str) -> None:
    build = Build()
    for k in range(12):
        build.api(10 * k, 10 * k + 4, call)
    build.api(200, 300, "cudaDeviceSynchronize")
    output = why(build, tmp_path)
    assert "12 calls that launch kernels were recorded, the kernels were not" in output
    assert word in output


def test_operators_on_the_cpu(tmp_path: Path) -> None:
    build = Build()
    build.operator(0, 50, "aten::mm")
    output = why(build, tmp_path, "kineto")
    assert "nothing ran on a GPU in this trace; the model or its tensors are on the CPU" in output
    assert "although" not in output


def test_operators_on_the_cpu_of_a_machine_with_a_gpu(tmp_path: Path) -> None:
    build = Build()
    build.operator(0, 50, "aten::mm")
    build.gpu("NVIDIA A100-PCIE-40GB")
    output = why(build, tmp_path, "kineto")
    assert "although the machine has one (NVIDIA A100-PCIE-40GB)" in output


def test_ranges_alone_say_what_repeats(tmp_path: Path) -> None:
    build = Build()
    for i in range(20):
        at = 130_000 * i
        build.range(at, at + 17_000, "backbone")
        build.range(at + 20_000, at + 88_000, "find_centers")
        build.range(at + 20_000, at + 89_000, "loader", thread=PID + 5)
    build.range(0, 5_000, "start")
    output = why(build, tmp_path)
    assert "its ranges repeat 20 times, every 130 ms: 'loader' (69.0 ms)" in output
    assert "nsys profile -t cuda,nvtx" in output


def test_parts_of_an_iteration_are_named_together(tmp_path: Path) -> None:
    build = Build()
    for i in range(20):
        at = 130_000 * i
        build.range(at, at + 17_000, "backbone")
        build.range(at + 20_000, at + 88_000, "find_centers")
    output = why(build, tmp_path)
    assert "20 times, every 130 ms: 'find_centers' (68.0 ms), 'backbone' (17.0 ms)" in output


def test_operations_that_end_before_they_begin_are_no_capture_without_cuda(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": 5}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 9, "dur": -1}
    events = [operator | {"dur": 1}, kernel, kernel]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    with pytest.raises(InputError) as error:
        Job([path]).diagnose()
    assert "holds no GPU work that can be used: 2 events ended before they" in str(error.value)
    assert "CUDA was off" not in str(error.value)


def test_nothing_at_all(tmp_path: Path) -> None:
    build = Build()
    build.api(0, 5, "cudaMalloc")
    assert "capture with CUDA tracing on" in why(build, tmp_path)
