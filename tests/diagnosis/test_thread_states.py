"""States of the training thread as evidence: a disk, CPUs that are overcommitted."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnosis.test_time_causes import diagnosed, figures
from tests.support.build import MAIN, PID, US, Build

STEPS = 12


def starved(build: Build) -> None:
    """Each step: 9 ms getting a batch, 6 ms on the device."""
    at = 0.0
    for i in range(STEPS):
        build.range(at, at + 15_000, f"step {i}")
        build.range(at, at + 9_000, "dataload")
        for k in range(2):
            begin = at + 9_010 + 2_995 * k
            build.kernel(begin, begin + 2_995, call=(at + 9_001 + 4 * k, at + 9_004 + 4 * k))
        at += 15_000


def state(build: Build, start: float, end: float, name: str, thread: int = MAIN) -> None:
    build.rows.setdefault("thread_state", []).append(
        {
            "process_id": PID,
            "thread_id": thread,
            "start_ns": round(start * US),
            "end_ns": round(end * US),
            "state": name,
        }
    )


@pytest.mark.parametrize(
    ("name", "message", "recommendations"),
    [
        ("disk", "waited for a disk or file system", "faster disk"),
        ("runnable", "wanted a CPU and got none", "more CPUs"),
    ],
)
def test_a_state_of_most_of_the_time_is_said(
    tmp_path: Path, name: str, message: str, recommendations: str
) -> None:
    build = Build()
    starved(build)
    for i in range(STEPS):
        state(build, 15_000 * i + 1_000, 15_000 * i + 8_000, name)
        state(build, 15_000 * i + 8_000, 15_000 * i + 9_000, "running")
        state(build, 15_000 * i, 15_000 * i + 15_000, "runnable", thread=MAIN + 5)
    (finding, *_) = diagnosed(build, tmp_path).findings
    assert finding.cause == "input_starvation"
    assert message in finding.message
    assert recommendations in finding.recommendations[0]
    assert figures(finding)[f"thread_{name}_ns"] == pytest.approx(7e6, rel=0.01)


def test_a_state_of_less_is_not(tmp_path: Path) -> None:
    build = Build()
    starved(build)
    for i in range(STEPS):
        state(build, 15_000 * i + 1_000, 15_000 * i + 5_000, "disk")
        state(build, 15_000 * i + 9_000, 15_000 * i + 15_000, "disk")  # the device is busy
    (finding, *_) = diagnosed(build, tmp_path).findings
    assert "disk or file" not in finding.message
    assert not any("thread_" in name for name in figures(finding))


def late(build: Build) -> None:
    """Each step: 40 launches of short kernels, 300 us apart."""
    at = 0.0
    for i in range(STEPS):
        build.range(at, at + 12_000, f"step {i}")
        for k in range(40):
            begin = at + 300 * k
            build.kernel(begin + 20, begin + 30, call=(begin + 5, begin + 10))
        at += 12_000


@pytest.mark.parametrize(("ran", "said"), [(3_000, True), (200, False)])
def test_other_threads_beside_late_launches_are_said_to_be_unknown(
    tmp_path: Path, ran: float, said: bool
) -> None:
    build = Build()
    late(build)
    for i in range(STEPS):
        state(build, 12_000 * i, 12_000 * (i + 1), "running")
        state(build, 12_000 * i + 1_000, 12_000 * i + 1_000 + ran, "running", thread=MAIN + 5)
    finding = next(f for f in diagnosed(build, tmp_path).findings if f.cause == "launch_bound")
    assert ("this capture cannot tell" in finding.message) == said
    if said:
        assert figures(finding)["other_threads_ns"] == pytest.approx(ran * US, rel=0.01)
        assert finding.next_capture is not None
        assert "--waits" in finding.next_capture


@pytest.mark.parametrize("where", ["by lot", "same place", "same kernel"])
def test_pauses_that_no_step_has_alike_are_said_to_be_unknown(tmp_path: Path, where: str) -> None:
    """Each step: 40 launches of 300 us, and a pause of 4 ms ahead of another one of them.

    Lost records move the number of a place, but not what the thread launches at it.
    """
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin, pause = at, 20 if where == "same place" else 3 * i + 2
        for k in range(40):
            at += 4_000 if k == pause else 0
            name = "first" if where == "same kernel" and k == pause else f"gemm_{k % 10}"
            build.kernel(at + 20, at + 30, call=(at + 5, at + 10), name=name)
            at += 300
        build.range(begin, at, f"step {i}")
    found = {f.cause: f for f in diagnosed(build, tmp_path).findings}
    assert ("host_compute" in found) == (where == "same place")
    late = found["launch_bound"]
    assert ("places that differ from step to step" in late.message) == (where == "by lot")
    assert ("--waits" in (late.next_capture or "")) == (where == "by lot")
