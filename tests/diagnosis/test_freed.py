"""``whatif`` without a cause gives what the diagnosis predicts, or says what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnosis.test_loader import WORK, captured
from tests.support.build import Build
from tests.support.captures import DATA, unpack
from tests.support.loading import loading

from stepscope.api import Job
from stepscope.api.explained import changes_of


def test_input_comes_no_faster_than_in_the_diagnosis(tmp_path: Path) -> None:
    """Two workers deliver a batch every 16.5 ms; pinning and the rest limit what more would."""
    today = loading(workers=2, batch_us=33_000.0, step_us=WORK)
    job = Job([captured(today[100:124]).trace(tmp_path).folder])
    (finding,) = [one for one in job.diagnose().findings if one.cause == "input_starvation"]
    alone = job.whatif(changes_of(free=["input_starvation"]))
    ends = (finding.prediction_low_ns, finding.prediction_high_ns)
    assert alone.predicted_step_ns == finding.predicted_step_ns
    assert (alone.prediction_low_ns, alone.prediction_high_ns) == ends
    parts = alone.budget_after
    total = parts.compute_ns + parts.communication_ns + parts.copy_ns + parts.idle_ns
    assert total == alone.predicted_step_ns
    together = job.whatif(changes_of(free=["input_starvation", "host_sync"]))
    assert together.alone[0].predicted_step_ns == finding.predicted_step_ns


def test_another_repair_than_none_of_its_idle_time_is_told_apart() -> None:
    job = Job([unpack(DATA / "nsys" / "gpt64_launch_bound.sqlite.xz")])
    finding = next(one for one in job.diagnose().findings if one.cause == "launch_bound")
    found = job.whatif(changes_of(free=["launch_bound"]))
    (note,) = [text for text in found.warnings if "the diagnosis predicts" in text]
    assert "all idle time of launch_bound is gone" in note
    assert "CUDA graph" in note
    assert found.predicted_step_ns < finding.predicted_step_ns


def test_kernels_of_two_streams_overlap_no_more_than_they_did(tmp_path: Path) -> None:
    """Blocking copies keep kernels of two streams apart: 2 ms each, whatever the host waits for."""
    build, at = Build(), 0.0
    for step in range(8):
        begin = at
        for stream in (7, 13):
            build.copy(at + 10, at + 3_010, call=(at, at + 3_020), src="pageable", stream=stream,
                       size=12_000_000)  # fmt: skip
            at += 3_030
            build.kernel(at + 10, at + 2_010, call=(at, at + 5), stream=stream, name="gemm")
            at += 10
        at += 2_000
        build.range(begin, at, f"step_{step}")
    job = Job([build.trace(tmp_path).folder])
    found = job.whatif(changes_of(free=["blocking_copy"]))
    assert found.predicted_step_ns >= 4e6
    assert found.budget_after.compute_ns == pytest.approx(4e6, rel=0.02)
    assert found.prediction_low_ns < 4e6  # they may after all
    finding = next(f for f in job.diagnose().findings if f.cause == "blocking_copy")
    assert finding.predicted_step_ns == found.predicted_step_ns
