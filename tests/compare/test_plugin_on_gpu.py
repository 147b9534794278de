"""The fixture ``stepscope_step`` on a real GPU: counts, times and memory that are known beforehand.

Needs PyTorch with CUDA and pytest, nothing else of the project, so it also runs where only those
are: ``PYTHONPATH=src python -m pytest --noconftest -c /dev/null -p stepscope.pytest_plugin
tests/compare/test_plugin_on_gpu.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.pytest_plugin import StepMeasurement, _no_device, measure

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(_no_device()), reason=f"needs an NVIDIA GPU: {_no_device()}"),
]
SOURCE = Path(__file__).parents[2] / "src"
MIB = 2**20


def torch_() -> Any:
    import torch

    return torch


def test_kernels_and_launches_are_counted_exactly() -> None:
    x = torch_().zeros(1024, device="cuda")

    def step() -> None:
        for _ in range(7):
            x.add_(1)

    found = measure(step, steps=5, warmup=2)
    assert (found.kernels_per_step, found.launches_per_step) == (7, 7)
    assert found.step_ms > 0
    assert len(found.steps_ms) == 5


def test_copies_and_ranges_are_no_kernels() -> None:
    torch = torch_()
    x = torch.zeros(4 * MIB, device="cuda")
    host = torch.zeros(4 * MIB, pin_memory=True)

    def step() -> None:
        with torch.profiler.record_function("a range"):
            x.copy_(host, non_blocking=True)
            x.add_(1)

    found = measure(step, steps=3, warmup=1)
    assert (found.kernels_per_step, found.launches_per_step) == (1, 1)


def test_a_graph_is_one_launch_of_its_kernels() -> None:
    torch = torch_()
    x = torch.zeros(1024, device="cuda")
    x.add_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(5):
            x.add_(1)
    found = measure(graph.replay, steps=5, warmup=2)
    assert (found.kernels_per_step, found.launches_per_step) == (5, 1)


def test_the_time_is_that_of_the_device() -> None:
    torch = torch_()

    def of(cycles: int) -> StepMeasurement:
        return measure(lambda: torch.cuda._sleep(cycles), steps=9, warmup=2)

    short, long = of(20_000_000), of(60_000_000)  # some 10 and 30 ms
    assert long.step_ms / short.step_ms == pytest.approx(3, rel=0.1)
    assert short.step_ms > 2


def test_the_peak_of_memory_is_seen() -> None:
    torch = torch_()
    found = measure(lambda: torch.empty(256 * MIB, dtype=torch.uint8, device="cuda"), steps=3)
    small = measure(lambda: torch.empty(MIB, dtype=torch.uint8, device="cuda"), steps=3)
    assert 255 * MIB <= found.peak_memory_bytes - small.peak_memory_bytes <= 257 * MIB


def test_a_training_step_and_its_limits() -> None:
    torch = torch_()
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(64, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    found = measure(step)
    assert found.kernels_per_step is not None
    assert found.kernels_per_step >= 5
    assert found.launches_per_step is not None
    assert found.launches_per_step >= 5
    again = measure(step)
    assert again.kernels_per_step == found.kernels_per_step  # nothing of the measuring is left
    found.check(step_ms=10 * found.step_ms, kernels_per_step=found.kernels_per_step)
    with pytest.raises(pytest.fail.Exception, match="kernels_per_step is"):
        found.check(kernels_per_step=found.kernels_per_step - 1)


def test_the_fixture_in_a_project(
    tmp_path: Path, stepscope_step: Callable[..., StepMeasurement]
) -> None:
    assert stepscope_step is measure
    (tmp_path / "test_it.py").write_text(
        "import torch\n"
        "def test_fast(stepscope_step):\n"
        "    x = torch.zeros(8, device='cuda')\n"
        "    stepscope_step(lambda: x.add_(1)).check(step_ms=1e3, kernels_per_step=1)\n"
        "def test_slow(stepscope_step):\n"
        "    x = torch.zeros(8, device='cuda')\n"
        "    stepscope_step(lambda: x.add_(1)).check(step_ms=1e-9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "stepscope.pytest_plugin", "-p",
         "no:cacheprovider", "--rootdir", str(tmp_path), "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "step_ms is" in done.stdout
