"""An allocator that is out of memory waits for other streams before it releases and tries again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.build import Build

from stepscope.breakdown.explain import Explanation, explain
from stepscope.collectives.exposure import host_waits
from stepscope.intervals import total

US = 1_000
STEPS = 4
PERIOD = 100_000.0  # us


def out_of_memory(folder: Path, *, ends: float, after: str = "cudaFree") -> Explanation:
    """A refused allocation at 1 ms, releases from 81 ms on, a kernel on another stream up to then.

    Args:
        folder: where the trace is written.
        ends: when that kernel ends, us.
        after: the call behind the silence.
    """
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD - 1, f"step {i}")
        build.kernel(at + 10, at + ends, call=(at + 1, at + 5), name="exchange", stream=20)
        if i == 1:
            build.api(at + 900, at + 1_000, "cudaMalloc")
            for k in range(4):
                build.api(at + 81_000 + 1_000 * k, at + 81_900 + 1_000 * k, after)
        build.kernel(at + 90_010, at + 99_900, call=(at + 90_000, at + 90_005))
    trace = build.trace(folder)
    (only,) = explain(trace.frame, trace.meta)
    return only


@pytest.mark.parametrize(
    ("ends", "after", "ms"),
    [
        (80_990, "cudaFree", 79.99),  # it waited from 1 ms on for what ended 10 us before
        (40_000, "cudaFree", 0.0),  # nothing ended then: the host was at work
        (80_990, "cudaEventRecord", 0.0),  # nothing was given back
    ],
)
def test_the_wait_of_a_refused_allocation(
    tmp_path: Path, ends: float, after: str, ms: float
) -> None:
    e = out_of_memory(tmp_path, ends=ends, after=after)
    assert total(host_waits(e)) / 1e6 == pytest.approx(ms)
    idle = e.idle_by_cause_ns.get("allocator_churn", 0) / US
    if ms:  # behind the kernel, the releases, pauses between them, and the late launch of a step
        assert idle == pytest.approx(10 + 4 * 900 + 3 * 100 + 10)
    assert e.idle_by_cause_ns.get("compilation_or_warmup", 0) == 0
