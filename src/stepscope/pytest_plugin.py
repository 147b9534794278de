"""A pytest plugin: the fixture ``stepscope_step`` measures a training step on the GPU.

It stands alone: pytest loads it at start, and PyTorch only where a test asks for the fixture. On a
machine without a GPU such a test is skipped, and the summary says that nothing was measured.
"""

from __future__ import annotations

import importlib
import itertools
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

_COPY = re.compile(r"^(Memcpy|Memset|\[CUDA mem)")
_LAUNCH = re.compile(r"^(cuda|cu|hip)\w*(LaunchKernel|GraphLaunch|LaunchCooperative)")
_UNMEASURED = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class StepMeasurement:
    """What a step took.

    Attributes:
        step_ms: median length of a step by CUDA events, ms.
        steps_ms: length of each step, ms.
        peak_memory_bytes: most memory that PyTorch had allocated on the device meanwhile.
        kernels_per_step: kernels that one step runs.
        launches_per_step: calls that launch kernels or graphs, in one step.
    """

    step_ms: float
    steps_ms: list[float] = field(repr=False)
    peak_memory_bytes: int
    kernels_per_step: int
    launches_per_step: int

    def check(self, **limits: float) -> None:
        """Fail the test when a figure is over its limit.

        Args:
            limits: figure to the largest value allowed, as in ``step_ms=25``.

        Raises:
            ValueError: a figure is unknown.
        """
        known = ("step_ms", "peak_memory_bytes", "kernels_per_step", "launches_per_step")
        over = []
        for name, limit in limits.items():
            if name not in known:
                raise ValueError(f"no figure {name!r}; known: {', '.join(known)}")
            value = getattr(self, name)
            if value > limit:
                over.append(f"{name} is {value:.6g}, over {limit:.6g}")
        if over:
            pytest.fail("; ".join(over), pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the list of tests that measured nothing."""
    config.stash[_UNMEASURED] = []


@pytest.fixture
def stepscope_step(
    request: pytest.FixtureRequest,
) -> Callable[..., StepMeasurement]:
    """Measure a callable that does one training step: ``stepscope_step(step, steps=20, warmup=5)``.

    Skips the test where PyTorch finds no CUDA device.
    """
    why = _no_device()
    if why:
        request.config.stash[_UNMEASURED].append(request.node.nodeid)
        pytest.skip(f"stepscope_step measured nothing: {why}")
    return measure


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say loudly which tests measured nothing."""
    unmeasured = config.stash.get(_UNMEASURED, [])
    if unmeasured:
        terminalreporter.section("stepscope: steps that were NOT measured", yellow=True)
        for name in unmeasured:
            terminalreporter.line(name)


def measure(step: Callable[[], object], *, steps: int = 20, warmup: int = 5) -> StepMeasurement:
    """Measure a step.

    Args:
        step: does one training step.
        steps: steps that are timed, 3 at least.
        warmup: steps before them.

    Raises:
        ValueError: fewer than 3 steps are asked for.
    """
    if steps < 3:
        raise ValueError("measure 3 steps at least, or one slow step decides")
    torch = importlib.import_module("torch")
    cuda = torch.cuda
    for _ in range(warmup):
        step()
    cuda.synchronize()
    cuda.reset_peak_memory_stats()
    marks = [cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    cuda.synchronize()
    lengths = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    peak = int(cuda.max_memory_allocated())
    kernels, launches = _counted(torch, step)  # apart: the profiler slows the step
    return StepMeasurement(statistics.median(lengths), lengths, peak, kernels, launches)


def _counted(torch: Any, step: Callable[[], object]) -> tuple[int, int]:
    """Kernels and launching calls of one step."""
    profiler = torch.profiler
    activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    with profiler.profile(activities=activities) as recorded:
        step()
        torch.cuda.synchronize()
    kernels = launches = 0
    for event in recorded.events():
        on_device = "CPU" not in str(event.device_type)
        if on_device and not getattr(event, "is_user_annotation", False):
            kernels += not _COPY.match(event.name)
        elif not on_device:
            launches += bool(_LAUNCH.match(event.name))
    return kernels, launches


def _no_device() -> str:
    """Why nothing can be measured here; empty where it can."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return "PyTorch is not installed"
    return "" if torch.cuda.is_available() else "PyTorch finds no CUDA device"
