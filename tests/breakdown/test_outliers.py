"""Outlier steps: found where they are, not where there is noise; their parts add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.build import US, Build
from tests.support.evidence import check_evidence

from stepscope.api import Job
from stepscope.breakdown.explain import Explanation, explain
from stepscope.breakdown.outliers import MIN_STEPS, PARTS, outlier_steps, works_more
from stepscope.diagnosis.result import Diagnosis
from stepscope.diagnosis.sentence import unsupported

STEPS = 12
PERIOD = 10_000.0  # us


def made(build: Build, folder: Path) -> tuple[Explanation, Diagnosis]:
    trace = build.trace(folder)
    (only,) = explain(trace.frame, trace.meta)
    job = Job([trace.folder])
    diagnosis = job.diagnose()
    for finding in diagnosis.findings:
        assert unsupported(finding.message, finding.evidence, finding.names) == [], finding.message
    check_evidence(diagnosis, job)
    return only, diagnosis


@pytest.mark.parametrize("n", [5, 6, 8, 12, 50, 500])
@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_steps_of_a_sound_run_are_not_odd(n: int, noise: float) -> None:
    draw = np.random.default_rng(n)
    found = 0
    for _ in range(200):
        odd, _ = outlier_steps((20e6 * draw.normal(1, noise, n)).astype(np.int64))
        found += int(odd.sum())
    assert found <= 0.001 * 200 * n


@pytest.mark.parametrize("n", [6, 12, 40])
def test_long_steps_are(n: int) -> None:
    draw = np.random.default_rng(n)
    steps = (20e6 * draw.normal(1, 0.02, n)).astype(np.int64)
    steps[3::4] *= 2
    odd, limit = outlier_steps(steps)
    assert np.flatnonzero(odd).tolist() == list(range(3, n, 4))
    assert limit < 2 * 20e6


def test_a_few_steps_have_no_normal_length() -> None:
    odd, _ = outlier_steps(np.array([1, 9, 1, 1][: MIN_STEPS - 1], np.int64))
    assert not odd.any()


def step(build: Build, at: float, number: int, *, work: float = 1.0, extra: int = 0) -> float:
    """Ten 800 us kernels, launched at once; ``extra`` further ones of another name."""
    length = 0.0
    for k in range(10 + extra):
        begin = at + 50 + length
        build.kernel(begin, begin + 800 * work, call=(at + 5 + k, at + 6 + k),
                     name=f"k{k}" if k < 10 else "ema_update")  # fmt: skip
        length += 800 * work
    end = at + 50 + length + 50
    build.range(at, end, f"step {number}")
    return end


def parts_of(e: Explanation, odd: int) -> dict[tuple[str, str], tuple[int, int]]:
    o = e.outliers
    rows = np.flatnonzero(o.parts["step"] == odd)
    found = {
        (PARTS[o.parts["part"][i]], o.names[o.parts["name"][i]]): (
            int(o.parts["excess_ns"][i]),
            int(o.parts["more"][i]),
        )
        for i in rows
    }
    excess = e.durations_ns[odd] - e.durations_ns[o.reference]
    assert sum(ns for ns, _ in found.values()) == excess
    return found


def test_further_kernels_in_a_few_steps(tmp_path: Path) -> None:
    build, at = Build(), 0.0
    for i in range(STEPS):
        at = step(build, at, i, extra=8 if i % 5 == 4 else 0)
    e, diagnosis = made(build, tmp_path)
    assert e.outliers.steps.tolist() == [4, 9]
    assert parts_of(e, 4)["compute", "ema_update"] == (8 * 800 * US, 8)
    assert diagnosis.verdict == "step_jitter"
    assert "ema_update" in diagnosis.findings[0].message


def test_what_recording_takes_of_further_kernels_is_no_cause_of_theirs(tmp_path: Path) -> None:
    """Two steps launch eight kernels more, of 400 us, and recording each takes the host 600 us."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        at = step(build, at, i)
        if i % 5 == 4:
            build.rows["range"].pop()
            for _ in range(8):
                build.overhead(at, at + 600, "profiler")
                build.kernel(at + 605, at + 1_005, call=(at + 601, at + 604), name="validation")
                at += 1_005
            build.range(begin, at, f"step {i}")
    e, diagnosis = made(build, tmp_path)
    idle = e.outliers.excess_ns("idle", "profiler_overhead")
    # two steps of eight times 600 us, but for what lies beside the calls
    assert idle == pytest.approx(2 * 8 * 600 * US, rel=0.02)
    assert idle > 0.5 * int(e.outliers.parts["excess_ns"].sum())
    assert "step_jitter" in {f.cause for f in diagnosis.findings}


def test_the_same_kernels_slower(tmp_path: Path) -> None:
    build, at = Build(), 0.0
    for i in range(STEPS):
        at = step(build, at, i, work=2.0 if i in (5, 6) else 1.0)
    e, diagnosis = made(build, tmp_path)
    assert e.outliers.steps.tolist() == [5, 6]
    assert parts_of(e, 5)["compute", "k3"] == (800 * US, 0)
    assert diagnosis.verdict == "step_jitter"
    assert "slower" in diagnosis.findings[0].message


def test_an_evaluation_every_few_steps_is_named(tmp_path: Path) -> None:
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        at = step(build, at, i)
        if i % 4 == 3:
            for k in range(10):
                build.kernel(at + 20 + 800 * k, at + 820 + 800 * k, call=(at + k, at + k + 1),
                             name=f"k{k}")  # fmt: skip
            build.range(at, at + 8_100, "validate")
            at += 8_100
        build.rows["range"] = [r for r in build.rows["range"] if r["name"] != f"step {i}"]
        build.range(begin, at, f"step {i}")
    _, diagnosis = made(build, tmp_path)
    assert diagnosis.verdict == "step_jitter"
    assert "evaluation" in diagnosis.findings[0].message


def paused(folder: Path, pause: str, every: int) -> Diagnosis:
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        at = step(build, at, i)
        if i % every == every - 1:
            build.range(at, at + 9_000, pause)
            at += 9_000
        build.rows["range"] = [r for r in build.rows["range"] if r["name"] != f"step {i}"]
        build.range(begin, at, f"step {i}")
    return made(build, folder)[1]


def test_host_work_in_a_few_steps_is_jitter(tmp_path: Path) -> None:
    diagnosis = paused(tmp_path, "log_images", 4)
    assert [f.cause for f in diagnosis.findings] == ["step_jitter"]
    assert diagnosis.findings[0].where.range == "log_images"


@pytest.mark.parametrize(
    ("pause", "every", "cause"),
    [
        ("dataload", 4, "input_starvation"),  # a loader that is late in some steps only
        ("checkpoint", 4, "checkpoint_stall"),
        ("log_images", 1, "host_compute"),  # in every step alike
    ],
)
def test_a_more_specific_cause_is_not_jitter(
    tmp_path: Path, pause: str, every: int, cause: str
) -> None:
    assert [f.cause for f in paused(tmp_path, pause, every).findings] == [cause]


def test_a_slow_first_step_is_not_jitter(tmp_path: Path) -> None:
    build, at = Build(), 0.0
    for i in range(8):
        at = step(build, at, i, work=1.25 if i == 0 else 1.0)
    e, diagnosis = made(build, tmp_path)
    assert len(e.outliers) == 0
    assert diagnosis.findings == []


_WORK = st.lists(st.floats(0.2, 4.0), min_size=6, max_size=9)


@given(_WORK, st.integers(0, 3), st.integers(0, 1))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_parts_of_any_odd_step_add_up(
    tmp_path_factory: pytest.TempPathFactory, work: list[float], extra: int, streams: int
) -> None:
    build, at = Build(), 0.0
    for i, amount in enumerate(work):
        begin = at
        at = step(build, at, i, work=amount, extra=extra * (i % 2))
        build.copy(begin + 500, begin + 1_900, call=(begin + 30, begin + 31), stream=8 + streams)
        build.memset(begin + 1_000, begin + 3_000, call=(begin + 32, begin + 33))
        build.kernel(begin + 700, begin + 2_500, call=(begin + 34, begin + 35),
                     name="ncclDevKernel_AllReduce", stream=9)  # fmt: skip
    trace = build.trace(tmp_path_factory.mktemp("odd"))
    (e,) = explain(trace.frame, trace.meta)
    for odd in e.outliers.steps.tolist():
        parts_of(e, odd)


def test_an_evaluation_is_odd_however_uneven_the_host_is() -> None:
    # ms; while it is recorded, the host needs 4 to 13 of each step, and the evaluation 14 of three
    wall = np.array([19, 31, 15, 15, 15, 38, 19, 15, 23, 45], np.int64) * 1_000_000
    busy = np.array([10, 24, 10, 10, 10, 24, 10, 10, 10, 24], np.int64) * 1_000_000
    odd, _ = outlier_steps(wall)
    assert np.flatnonzero(odd).tolist() == [9]
    assert np.flatnonzero(works_more(wall, busy)).tolist() == [1, 5, 9]


def test_more_work_that_makes_no_step_longer_is_not_odd() -> None:
    wall = np.full(10, 100_000_000, np.int64)
    busy = np.full(10, 10_000_000, np.int64)
    busy[[2, 6]] = 60_000_000  # the host is the limit in all of them
    assert not works_more(wall, busy).any()
    assert not works_more(wall[:3], busy[:3]).any()
