"""What CI asks of a step without a recorder: its time, its memory, the number of its kernels.

Times are those between CUDA events on the current stream, read when they are done.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any


class StepTimes:
    """Times of steps on the GPU and on the host, in ms.

    Call :meth:`step` once in each iteration. The program is never made to wait: an event is
    recorded on the current stream, and read by :meth:`times` or at a later step.

    Attributes:
        host_ms: host time of each step.
    """

    def __init__(self) -> None:
        self.host_ms: list[float] = []
        self._gpu_ms: list[float] = []
        self._pending: list[Any] = []
        self._since: float | None = None

    def step(self) -> None:
        """Mark the boundary of a step."""
        now = time.perf_counter()
        if self._since is not None:
            self.host_ms.append(1e3 * (now - self._since))
        self._since = now
        torch: Any = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._pending.append(event)
        self._read()

    def _read(self) -> None:
        """Read the events that are done; the first that is not ends it."""
        while len(self._pending) > 1 and self._pending[1].query():
            first = self._pending.pop(0)
            self._gpu_ms.append(first.elapsed_time(self._pending[0]))

    def times(self) -> list[float]:
        """GPU time of each step, ms; the host's without a GPU. Waits for the last step."""
        if self._pending:
            self._pending[-1].synchronize()
            self._read()
            return list(self._gpu_ms)
        return list(self.host_ms)

    def summary(self, skip: int = 0) -> dict[str, float]:
        """Number of steps, and their mean, median, shortest and longest time in ms.

        With a GPU also ``peak_memory_bytes``: the most that PyTorch's allocator handed out on the
        current device since the program began (or since it reset that figure).

        Args:
            skip: steps at the beginning to leave out.
        """
        found = self.times()[skip:]
        if not found:
            return {"steps": 0}
        summary: dict[str, float] = {
            "steps": len(found),
            "mean_ms": statistics.fmean(found),
            "median_ms": statistics.median(found),
            "shortest_ms": min(found),
            "longest_ms": max(found),
        }
        if self._pending:
            summary["peak_memory_bytes"] = sys.modules["torch"].cuda.max_memory_allocated()
        return summary


class KernelCount:
    """Counts the kernels that a block launches, by torch.profiler.

    ``with stepscope.kernel_count() as kernels: train_step()``, then ``kernels.count``. A count does
    not depend on the machine's mood, so CI can hold it to the exact number. The block itself takes
    longer than without: do not time it.

    Attributes:
        count: kernels, copies and memory sets left out; None until the block has ended, and
            without a GPU.
        names: how often each kernel was launched, by its full name.
    """

    def __init__(self) -> None:
        self.count: int | None = None
        self.names: dict[str, int] = {}
        self._profiler: Any = None
        self._found: Any = None

    def __enter__(self) -> KernelCount:
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.synchronize()  # what was launched before does not count
            kinds = [torch.profiler.ProfilerActivity.CUDA]
            self._profiler = torch.profiler.profile(activities=kinds)
            self._found = self._profiler.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        if self._profiler is None:
            return
        sys.modules["torch"].cuda.synchronize()
        self._profiler.__exit__(*(problem or (None, None, None)))
        for event in self._found.events():
            name = event.name
            # torch.profiler names copies and sets "Memcpy HtoD (...)" and "Memset (Device)"
            if str(event.device_type).endswith("CUDA") and not name.startswith(
                ("Memcpy", "Memset")
            ):
                self.names[name] = self.names.get(name, 0) + 1
        self.count = sum(self.names.values())
        self._profiler = None


def kernel_count() -> KernelCount:
    """A new counter of kernels, for a ``with`` block."""
    return KernelCount()


def step_time() -> StepTimes:
    """A new timer of steps."""
    return StepTimes()
