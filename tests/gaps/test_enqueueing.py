"""Operations whose launching call is missing, and the time that a launch takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.build import MAIN, PID, Build

from stepscope.activity.device import UNKNOWN_NS, GpuTimeline, HostSide, gpus
from stepscope.breakdown.explain import explain
from stepscope.gaps.idle import FEW_LOST, LATENCY_NS, enqueued
from stepscope.trace.frame import Frame
from stepscope.trace.trace import Trace


def late(n: int = 120, *, without: frozenset[int] = frozenset()) -> Build:
    """Kernels of 10 us, one every 100 us; the host calls 8 us before each starts, for 5 us.

    Args:
        n: kernels; ten a step.
        without: numbers of kernels whose call is lost.
    """
    build = Build()
    for k in range(n):
        start = 100.0 * k + 50
        call = None if k in without else (start - 8, start - 3)
        build.kernel(start, start + 10, call=call, name=f"k{k % 10}")
        if k % 10 == 0:
            build.range(start - 20, start + 980, f"step {k // 10}")
    return build


def idle(trace: Trace) -> dict[str, int]:
    (explanation,) = explain(trace.frame, trace.meta)
    return explanation.idle_by_cause_ns


def test_a_lost_call_leaves_nothing_unexplained(tmp_path: Path) -> None:
    """The kernels behind and ahead of it tell that the host was late for it as well."""
    for name in "ab":
        (tmp_path / name).mkdir()
    whole = idle(late().trace(tmp_path / "a"))
    lost = idle(late(without=frozenset({15, 42, 43, 77})).trace(tmp_path / "b"))
    assert "unexplained" not in lost
    assert lost == whole
    # 12 steps of ten gaps of 90 us, the last of which the end of the last range cuts
    assert whole["launch_bound"] == pytest.approx(119 * 90_000, rel=0.02)


def test_many_lost_calls_stay_unexplained(tmp_path: Path) -> None:
    """Work of which no call is there may come from anywhere."""
    lost = frozenset(range(40, 40 + FEW_LOST + 1))
    found = idle(late(without=lost).trace(tmp_path))
    assert found["unexplained"] == len(lost) * 90_000


def test_work_that_was_enqueued_in_time_is_not_late(tmp_path: Path) -> None:
    """A kernel whose successor had been enqueued before the device went idle was so, too."""
    build = Build()
    for i in range(10):
        at = 1_000.0 * i
        build.range(at, at + 1_000, f"step {i}")
        build.kernel(at + 10, at + 410, call=(at, at + 5))
        build.kernel(at + 500, at + 600)  # its call is lost
        build.kernel(at + 601, at + 990, call=(at + 20, at + 25))
    found = idle(build.trace(tmp_path))
    assert found["unexplained"] == 10 * 90_000


@pytest.mark.parametrize("offset", [-20.0, 0.0, 10.0, 20.0])
def test_a_clock_that_is_off_does_not_hide_late_launches(tmp_path: Path, offset: float) -> None:
    """Kernels of 5 us; the host launches one every 18 us, and every tenth 60 us later.

    By a clock that is 20 us ahead, most calls seem to begin while the device is still busy. The
    later ones show that a launch then takes 27 us and not 7.
    """
    build, at, steps = Build(), 50.0, []
    for k in range(400):
        at += 78 if k % 10 == 0 else 18
        steps += [at - 8] if k % 20 == 0 else []
        build.kernel(at + offset, at + 5 + offset, call=(at - 7, at - 2), name=f"k{k % 20}")
    for number, (begin, end) in enumerate(zip(steps, [*steps[1:], at + 6], strict=True)):
        build.range(begin, end, f"step {number}")
    found = idle(build.trace(tmp_path))
    assert found.get("unexplained", 0) == 0
    assert found["launch_bound"] > 0.99 * sum(found.values())


def _gpu(stream: list[int], start: list[int], call: list[int], calls: list[int]) -> GpuTimeline:
    empty = Frame({})
    api = Frame({"start_ns": np.array(calls, np.int64), "end_ns": np.array(calls, np.int64) + 1})
    ops = Frame({"stream": np.array(stream, np.int64), "start_ns": np.array(start, np.int64)})
    host = HostSide(PID, api, empty, empty, empty, [MAIN])
    return GpuTimeline(PID, 0, ops, np.array(call, np.int64), host)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9), st.booleans()), min_size=1,
                max_size=30))  # fmt: skip
def test_bounds_are_those_of_a_naive_search(rows: list[tuple[int, int, bool]]) -> None:
    start = np.cumsum([gap + 1 for _, gap, _ in rows]).tolist()
    stream = [s for s, _, _ in rows]
    calls = [t - 1 for t in start]
    call = [i if known else -1 for i, (_, _, known) in enumerate(rows)]
    gpu = _gpu(stream, start, call, calls)
    earliest, latest = gpu.enqueued_between_ns
    for i in range(len(rows)):
        same = [j for j in range(len(rows)) if stream[j] == stream[i] and call[j] >= 0]
        ahead = [calls[j] for j in same if j <= i]
        behind = [calls[j] for j in same if j >= i]
        assert earliest[i] == (ahead[-1] if ahead else UNKNOWN_NS)
        assert latest[i] == (behind[0] if behind else UNKNOWN_NS)
        at = gpu.enqueue_begin_ns[i]
        assert at <= start[i]
        if call[i] >= 0:
            assert at == calls[i]
        elif ahead and behind:
            assert ahead[-1] <= at <= behind[0]


def test_without_any_call_nothing_is_known(tmp_path: Path) -> None:
    build = Build()
    build.kernel(10, 20)
    (gpu,) = gpus(build.trace(tmp_path).frame)
    found = enqueued(gpu, np.array([0, -1]), np.array([0, 20_000]))
    assert found.begin_ns.tolist() == [UNKNOWN_NS, UNKNOWN_NS]
    assert not found.recorded.any()
    assert found.latency_ns == LATENCY_NS
