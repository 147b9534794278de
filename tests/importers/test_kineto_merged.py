"""Traces of several processes in one file, and copies whose size only their call knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.importers.test_kineto_formats import chrome, opened, span

from stepscope.importers.kineto.processes import Launchers

FIRST, SECOND, FAR = 700, 100_000_701, 100_000_003


def _of_rank(rank: int, pid: int, device: int, at: float, correlation: int) -> list[dict[str, Any]]:
    """What a merged file holds of one rank: a named thread, an operator, a launch, a kernel."""
    place = {"pid": pid, "tid": 1}
    of_device = {"pid": FAR if rank else device, "tid": 0}
    tied = {"correlation": correlation, "rank": rank}
    return [
        {"ph": "M", "name": "thread_name", "args": {"name": f"thread 1 (r{rank})", "rank": rank}}
        | place,
        span("cpu_op", "aten::mm", at, 9.0, args={"External id": 3, "rank": rank}) | place,
        span("cuda_runtime", "hipLaunchKernel", at + 1, 1.0, args=tied) | place,
        span("kernel", "mm", at + 3, 2.0, args={**tied, "device": device, "stream": 0}) | of_device,
    ]


def test_work_of_merged_traces_belongs_to_the_process_that_launched_it(tmp_path: Path) -> None:
    events = _of_rank(0, FIRST, 2, 1.0, 40) + _of_rank(1, SECOND, 3, 5.0, 41)
    # launched before the recording began: the device tells whose it is
    early = span("kernel", "early", 0.5, 0.2, args={"device": 3, "stream": 0, "correlation": 7})
    trace = opened(chrome([*events, early]), tmp_path)
    work = [(w["name"], w["device"], w["process_id"]) for w in trace.arrow("gpu_op").to_pylist()]
    assert work == [("early", 3, SECOND), ("mm", 2, FIRST), ("mm", 3, SECOND)]
    ranks = [(p["process_id"], p["rank"]) for p in trace.arrow("process").to_pylist()]
    assert ranks == [(FIRST, 0), (SECOND, 1)]
    streams = [(s["process_id"], s["device"]) for s in trace.arrow("stream").to_pylist()]
    assert streams == [(FIRST, 2), (SECOND, 3)]
    assert [t["name"] for t in trace.arrow("thread").to_pylist()] == ["r0", "r1"]
    assert "unsupported_source" not in {p.id for p in trace.meta.problems}


def test_host_events_of_a_process_without_gpu_work_are_told(tmp_path: Path) -> None:
    events = _of_rank(0, FIRST, 2, 1.0, 40)
    events += [span("cpu_op", "aten::mm", 20.0, 1.0) | {"pid": SECOND, "tid": 5}]
    trace = opened(chrome(events), tmp_path)
    assert {w["process_id"] for w in trace.arrow("gpu_op").to_pylist()} == {FIRST}
    assert "unsupported_source" in {p.id for p in trace.meta.problems}


@pytest.mark.parametrize(
    ("correlation", "launcher"),
    [(1, 10), (2, 20), (9, 20), (5, 20)],
    ids=["of the first", "of the second", "of no call", "of calls of both"],
)
def test_owner_of_one_operation(correlation: int, launcher: int) -> None:
    calls = np.array([10, 20, 20, 10, 20]), np.array([1, 2, 3, 5, 5])
    work = np.array([0, 1, 1]), np.array([1, 2, 3])
    launchers = Launchers(10, calls, work)
    device = 0 if launcher == 10 else 1
    assert launchers.of(np.array([device]), np.array([correlation])).tolist() == [launcher]
    assert launchers.processes == [10, 20]


def test_all_work_is_the_captured_process_s_where_only_one_calls() -> None:
    calls = np.array([10, 10]), np.array([1, 2])
    launchers = Launchers(10, calls, (np.array([0, 1]), np.array([1, 2])))
    assert launchers.of(np.array([0, 1, 4])).tolist() == [10, 10, 10]
    assert Launchers(10, None, None).of(np.array([3])).tolist() == [10]


def test_a_copy_without_a_size_takes_that_of_its_call(tmp_path: Path) -> None:
    """ROCm writes the size to the call; what both write, and calls of one number, stay apart."""

    def call(correlation: int, size: object) -> dict[str, Any]:
        args = {"correlation": correlation, "size": size}
        return span("cuda_runtime", "hipMemcpyAsync", 1.0 + correlation, 0.5, args=args)

    def copy(correlation: int, **args: Any) -> dict[str, Any]:
        tied = {"correlation": correlation, "device": 0, "stream": 0, **args}
        return span("gpu_memcpy", "Memcpy HtoD (Host -> Device)", 50.0 + correlation, 1, args=tied)

    events = [call(1, "3145728"), call(2, 4), call(3, "0x10"), call(4, "8"), call(4, "16")]
    events += [copy(1), copy(2, bytes=64), copy(3), copy(4), copy(5)]
    events.append(span("kernel", "k", 90.0, 1.0, args={"correlation": 1, "device": 0}))
    sizes = [w["bytes"] for w in opened(chrome(events), tmp_path).arrow("gpu_op").to_pylist()]
    assert sizes == [3145728, 64, None, None, None, None]
