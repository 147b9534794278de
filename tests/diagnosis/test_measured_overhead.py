"""Profiler overhead measured against steps of the same run that were not recorded."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.diagnosis.test_time_causes import diagnosed
from tests.support.build import PID, Build

from stepscope.diagnosis.sentence import unsupported

STEP, STEPS = 10_000, 8


def busy(unrecorded_us: float, jitter_us: float = 0.0) -> Build:
    """Steps of 10 ms while recorded, and a stretch of ten that were not."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        length = STEP + (jitter_us if i % 2 else -jitter_us)
        build.range(at, at + length, f"step_{i}", domain="stepscope")
        build.kernel(at + 20, at + length - 10, call=(at + 5, at + 15))
        at += length
    stretch(build, 0, at, STEPS, recorded=True)
    stretch(build, at + 50_000, at + 50_000 + 10 * unrecorded_us, 10, recorded=False)
    return build


def stretch(build: Build, start: float, end: float, steps: int, *, recorded: bool) -> None:
    build._add("timed_stretch", process_id=PID, start_ns=round(start * 1000),
               end_ns=round(end * 1000), steps=steps, recorded=recorded)  # fmt: skip


def test_the_difference_of_the_means_is_said_with_its_evidence(tmp_path: Path) -> None:
    found = diagnosed(busy(8_000.0), tmp_path)
    (output,) = [text for text in found.warnings if "profiler overhead" in text]
    assert "2.0 ms of each step" in output
    assert "10 steps of the same run that were not recorded took 8.0 ms" in output
    about = {evidence.figure: evidence.value for evidence in found.evidence}
    assert about["profiler_overhead_ns"] == 2_000_000
    cost = found.profiler_overhead
    assert cost is not None
    assert (cost.measured_ns, cost.how) == (2_000_000, "unrecorded steps")
    assert (cost.low_ns, cost.high_ns) == (about["least_overhead_ns"], about["most_overhead_ns"])
    assert unsupported(output, found.evidence, []) == []


def test_a_difference_within_the_variation_of_steps_is_none(tmp_path: Path) -> None:
    found = diagnosed(busy(9_500.0, jitter_us=3_000.0), tmp_path)
    (output,) = [text for text in found.warnings if "profiler overhead" in text]
    assert "too small to tell" in output
    about = {evidence.figure: evidence.value for evidence in found.evidence}
    assert about["least_overhead_ns"] < 0 < about["most_overhead_ns"]
    # two standard errors of the difference of two means, by the sample deviation of 3 ms
    deviation = 3_000_000 * (8 / 7) ** 0.5
    wide = 2 * deviation * (1 / about["steady_steps"] + 1 / 10) ** 0.5
    assert about["most_overhead_ns"] - about["profiler_overhead_ns"] == pytest.approx(
        wide, rel=0.01
    )


@pytest.mark.parametrize(
    ("before_us", "later_us", "steps", "taken_ms"),
    [
        (9_000.0, [], 10, 8.0),  # of two the shorter one
        (7_000.0, [], 4, 7.0),
        (9_000.0, [30_000.0], 4, 9.0),  # one of three was disturbed
        (9_000.0, [30_000.0, 8_500.0], 5, 8.5),
    ],
)
def test_the_middle_one_of_the_timed_stretches_counts(
    tmp_path: Path, before_us: float, later_us: list[float], steps: int, taken_ms: float
) -> None:
    build = busy(8_000.0)
    stretch(build, -200_000, -200_000 + 4 * before_us, 4, recorded=False)
    for number, length in enumerate(later_us):
        begin = 1_000_000 * (number + 1)
        stretch(build, begin, begin + 5 * length, 5, recorded=False)
    about = {e.figure: e.value for e in diagnosed(build, tmp_path).evidence}
    assert about["unrecorded_steps"] == steps
    assert about["mean_unrecorded_step_ns"] == taken_ms * 1e6
    assert about["profiler_overhead_ns"] == (10 - taken_ms) * 1e6


def test_without_unrecorded_steps_nothing_is_said(tmp_path: Path) -> None:
    build = busy(8_000.0)
    del build.rows["timed_stretch"][1]
    found = diagnosed(build, tmp_path)
    cost = found.profiler_overhead
    assert cost is None or cost.how == "estimated"
    assert not [text for text in found.warnings if "profiler overhead" in text]


def test_recorded_steps_that_are_shorter_than_those_of_the_run(tmp_path: Path) -> None:
    found = diagnosed(busy(12_000.0), tmp_path)
    (output,) = [text for text in found.warnings if "not those of the run" in text]
    assert "10 steps of it that were not recorded took 12.0 ms" in output
    assert unsupported(output, found.evidence, []) == []


def test_work_that_took_longer_where_nothing_was_recorded_widens_the_range(tmp_path: Path) -> None:
    """The host works for 6 of 10 ms; in unrecorded steps it may have worked for 6 ms more."""
    lows, others = [], []
    for unrecorded in (10_000.0, 16_000.0):
        build, at = Build(), 0.0
        for i in range(STEPS):
            build.range(at, at + STEP, f"step_{i}", domain="stepscope")
            for k in range(8):
                begin, call = at + 6_000 + 500 * k, at + 5_900 + 4 * k
                build.kernel(begin, begin + 495, call=(call, call + 3), name=f"gemm_{k}")
            at += STEP
        stretch(build, 0, at, STEPS, recorded=True)
        stretch(build, at + 50_000, at + 50_000 + 10 * unrecorded, 10, recorded=False)
        folder = tmp_path / str(unrecorded)
        folder.mkdir()
        (first,) = (f for f in diagnosed(build, folder).findings if f.cause == "host_compute")
        lows.append(first.prediction_low_ns)
        others.append((first.predicted_step_ns, first.prediction_high_ns))
    assert others[0] == others[1]
    # 4 ms remain of 10, and may be those of 16: as a ratio, 2.5 of 10 instead of 4
    middle = others[0][0]
    assert middle == pytest.approx(4.0e6, rel=0.02)
    apart = middle - 10e6 * 4 / 16
    assert lows[1] == pytest.approx(middle - math.hypot(middle - lows[0], apart), rel=0.02)
