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
_NOTHING = "stepscope_step measured nothing"


@dataclass(frozen=True)
class StepMeasurement:
    """What a step took.

    Attributes:
        step_ms: median length of a step by CUDA events, ms.
        steps_ms: length of each step, ms.
        peak_memory_bytes: most memory that PyTorch had allocated on the device meanwhile.
        kernels_per_step: kernels that one step runs; None where PyTorch's profiler saw none, as
            when another profiler is attached.
        launches_per_step: calls that launch kernels or graphs, in one step; None likewise.
    """

    step_ms: float
    steps_ms: list[float] = field(repr=False)
    peak_memory_bytes: int
    kernels_per_step: int | None
    launches_per_step: int | None

    def check(self, **limits: float) -> None:
        """Fail the test when a figure is over its limit, or was not measured.

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
            if value is None:
                over.append(f"{name} was not measured: PyTorch's profiler saw no kernel")
            elif value > limit:
                over.append(f"{name} is {value:.6g}, over {limit:.6g}")
        if over:
            pytest.fail("; ".join(over), pytrace=False)


@pytest.fixture
def stepscope_step() -> Callable[..., StepMeasurement]:
    """Measure a callable that does one training step: ``stepscope_step(step, steps=20, warmup=5)``.

    Skips the test where PyTorch finds no CUDA device.
    """
    why = _no_device()
    if why:
        pytest.skip(f"{_NOTHING}: {why}")
    return measure


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say loudly which tests measured nothing, whichever worker process skipped them."""
    skipped = terminalreporter.stats.get("skipped", [])
    unmeasured = [report for report in skipped if _NOTHING in str(report.longrepr)]
    if unmeasured:
        terminalreporter.section("stepscope: steps that were NOT measured", yellow=True)
        for report in unmeasured:
            terminalreporter.line(report.nodeid)


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


def _counted(torch: Any, step: Callable[[], object]) -> tuple[int | None, int | None]:
    """Kernels and launching calls of one step; None where nothing of the device was recorded."""
    profiler = torch.profiler
    activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    with profiler.profile(activities=activities) as recorded:
        step()
        torch.cuda.synchronize()
    kernels = launches = recorded_work = 0
    for event in recorded.events():
        on_device = "CPU" not in str(event.device_type)
        if on_device and not getattr(event, "is_user_annotation", False):
            recorded_work += 1
            kernels += not _COPY.match(event.name)
        elif not on_device:
            launches += bool(_LAUNCH.match(event.name))
    return (kernels, launches) if recorded_work else (None, None)


def _no_device() -> str:
    """Why nothing can be measured here; empty where it can."""
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        return "PyTorch is not installed"
    except (ImportError, OSError) as error:  # one of its libraries is missing
        return f"PyTorch cannot be imported ({error})"
    return "" if torch.cuda.is_available() else "PyTorch finds no CUDA device"
