"""Idle time that is none of the program's: a busy stream and holes in the record."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.build import Build

from stepscope.api import Job
from stepscope.diagnosis.result import Diagnosis


def diagnosed(build: Build, folder: Path) -> Diagnosis:
    job = Job([build.trace(folder).folder])
    found = job.diagnose()
    for evidence in [*found.evidence, *(e for f in found.findings for e in f.evidence)]:
        assert (job.query(evidence.sql).column(0)[0].as_py() or 0) == evidence.value
    return found


def batch(build: Build, at: float, kernels: int = 40, *, stream: int = 3) -> float:
    """Kernels of 2 ms with names of their own, launched at once; when they are done."""
    for k in range(kernels):
        begin = at + 15 + 2_000 * k
        call = (at + 4 * k, at + 4 * k + 3)
        build.kernel(begin, begin + 1_999, call=call, name=f"n{k}", stream=stream)
    return at + 15 + 2_000 * kernels


def overlapped(build: Build, busy: float, *, seen: bool = False, waits: bool = True) -> None:
    """A launch behind ``busy`` us of a batch before; ``seen``: another kernel of its stream."""
    build.kernel(5, 9, call=(1, 3), name="small", stream=3 if seen else 2)
    build.kernel(busy, busy + 5, call=(120, 125), name="resolve", stream=3)
    if waits:
        name = "hipMemcpyWithStream"
        build.copy(busy + 5, busy + 9, call=(200, busy + 60), kind="DtoH", size=64,
                   src="device", dst="pageable", call_name=name, stream=3)  # fmt: skip
    done = batch(build, busy + 80)
    build.api(done - 1_000, done + 3, "hipDeviceSynchronize")
    build.range(0, done + 10, "execute_32_context_0")


def test_a_stream_that_was_busy_before_the_recording(tmp_path: Path) -> None:
    build = Build()
    overlapped(build, 60_000)
    found = diagnosed(build, tmp_path)
    assert not {"host_sync", "blocking_copy"} & {f.cause for f in found.findings}
    (output,) = (w for w in found.warnings if "launched before the recording" in w)
    assert "for 59.9 ms stream 3 was busy with work that is not recorded: 'resolve'" in output
    assert "the wait in hipMemcpyWithStream (59.9 ms) is for it" in output
    assert found.accounting[0].idle_by_cause_ns["unexplained"] == pytest.approx(59.875e6, rel=1e-3)


def test_where_that_is_nearly_all_nothing_else_is_claimed(tmp_path: Path) -> None:
    build = Build()
    overlapped(build, 800_000)
    found = diagnosed(build, tmp_path)
    assert found.verdict == "insufficient_data"
    message = found.findings[0].message
    assert message.startswith("800 ms of the 880 ms are a wait for work that was launched before")
    assert "the host waits 800 ms in hipMemcpyWithStream" in message


@pytest.mark.parametrize(("seen", "waits"), [(True, True), (False, False)])
def test_a_stream_whose_past_is_recorded_or_that_nobody_waits_for_is_not_that(
    tmp_path: Path, seen: bool, waits: bool
) -> None:
    build = Build()
    overlapped(build, 60_000, seen=seen, waits=waits)
    found = diagnosed(build, tmp_path)
    assert not any("launched before the recording" in w for w in found.warnings)


def islands(build: Build, *, calls_before: bool) -> None:
    """Two islands of GPU work with 3.7 s between them."""
    for k in range(40):
        call = (400 * k, 400 * k + 4) if calls_before else None
        build.kernel(400 * k + 10, 400 * k + 390, call=call, name=f"a{k}")
    batch(build, 3_700_000, stream=7)


def test_a_hole_in_the_record_is_no_host_computation(tmp_path: Path) -> None:
    build = Build()
    islands(build, calls_before=False)
    found = diagnosed(build, tmp_path)
    assert found.verdict == "insufficient_data"
    assert "nothing was recorded for 3,684 ms" in found.findings[0].message.lower()
    assert any("neither a call nor an operator" in w for w in found.warnings)


def test_silence_in_which_the_program_was_recorded_is_no_hole(tmp_path: Path) -> None:
    build = Build()
    islands(build, calls_before=True)
    build.python(15_000, 3_700_000, "train.py(3): shuffle")
    found = diagnosed(build, tmp_path)
    assert found.verdict == "host_compute"


def test_silence_between_recorded_calls_of_a_loop_is_no_hole(tmp_path: Path) -> None:
    build = Build()
    for i in range(5):
        build.range(i * 2_000_000, (i + 1) * 2_000_000, f"step {i}")
        batch(build, i * 2_000_000 + 1_500_000)
    assert diagnosed(build, tmp_path).verdict == "host_compute"
