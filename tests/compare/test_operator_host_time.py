"""Host time of operators in a comparison: the outermost ones, a step."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.support.build import Build

from stepscope.api import Job
from stepscope.compare.comparison import compare


def job(folder: Path, slow: float) -> Job:
    """Eight steps with one operator of ``slow`` us that calls another inside."""
    folder.mkdir()
    build = Build()
    for step in range(8):
        t = 500.0 * step
        build.range(t, t + 499, f"step_{step}")
        build.operator(t + 10, t + 10 + slow, "aten::linear")
        build.operator(t + 12, t + 5 + slow, "aten::addmm")
        build.kernel(t + 200, t + 300, call=(t + 15, t + 20), name="gemm")
    return Job(build.trace(folder).folder)


def test_the_host_column_holds_what_operators_take(tmp_path: Path) -> None:
    before, after = job(tmp_path / "a", 50), job(tmp_path / "b", 90)
    (row,) = before.compare(after).operators
    assert row.name == "aten::linear"
    assert (row.host_before_ns, row.host_after_ns) == (50_000, 90_000)
    assert row.device_before_ns == row.device_after_ns == 100_000


def test_profiles_that_tell_no_host_time_make_no_difference(tmp_path: Path) -> None:
    before, after = job(tmp_path / "a", 50).profile(), job(tmp_path / "b", 90).profile()
    old = [msgspec.structs.replace(place, host_ns=0.0) for place in before.operators]
    (row,) = compare([msgspec.structs.replace(before, operators=old)], [after]).operators
    assert (row.host_before_ns, row.host_after_ns) == (None, None)
