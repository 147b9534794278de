"""Step times without a recorder: CUDA events on the current stream, read when they are done."""

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

        Args:
            skip: steps at the beginning to leave out.
        """
        found = self.times()[skip:]
        if not found:
            return {"steps": 0}
        return {
            "steps": len(found),
            "mean_ms": statistics.fmean(found),
            "median_ms": statistics.median(found),
            "shortest_ms": min(found),
            "longest_ms": max(found),
        }


def step_time() -> StepTimes:
    """A new timer of steps."""
    return StepTimes()
