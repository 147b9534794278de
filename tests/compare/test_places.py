"""Ranges and operators of two runs: nested ones, and what one run did not record; times in us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.compare.profiles import profile
from tests.support.build import AUTOGRAD, Build

from stepscope.api import Job
from stepscope.compare.comparison import compare
from stepscope.compare.profile import PlaceUse
from stepscope.render.compare import compare_text, sections


def use(name: str, device_ns: float | None = 5_000.0) -> PlaceUse:
    return PlaceUse(name, 9_000.0, device_ns)


def run(source: str, **more: Any) -> Any:
    return profile(setup={"source": source}, **more)


def test_a_range_holds_what_nested_ranges_launch(tmp_path: Path) -> None:
    """Of 100, 30 and 20 us a step, 50 are launched in a block, and all but 20 in the forward."""
    build = Build()
    for step in range(6):
        t = 1_000.0 * step
        build.range(t, t + 990, f"step_{step}")
        build.range(t + 10, t + 300, "forward")
        build.range(t + 20, t + 100, "block")
        build.range(t + 30, t + 60, "block")  # of one name in each other: counted once
        build.kernel(t + 400, t + 430, call=(t + 40, t + 45), name="a")
        build.kernel(t + 430, t + 450, call=(t + 70, t + 75), name="b")
        build.kernel(t + 450, t + 550, call=(t + 200, t + 205), name="c")
        build.range(t + 310, t + 700, "backward")
        build.kernel(t + 600, t + 640, call=(t + 400, t + 405), name="d", thread=AUTOGRAD)
        build.range(t + 500, t + 600, "cub::Sort", thread=AUTOGRAD)
        build.kernel(t + 650, t + 660, call=(t + 550, t + 555), name="e", thread=AUTOGRAD)
    found = {
        place.name: place.device_ns for place in Job(build.trace(tmp_path).folder).profile().ranges
    }
    assert found == {
        "forward": 150_000,
        "block": 50_000,
        "backward": 50_000,  # the main thread's range holds what autograd's thread launches
        "cub::Sort": 10_000,
    }


def test_operators_that_one_run_did_not_record_are_not_compared() -> None:
    before = run("kineto", operators=[use("aten::mm")])
    for source in ("nsys", "kineto"):
        found = compare([before], [run(source)])
        (row,) = found.operators
        assert (row.device_before_ns, row.device_after_ns) == (5_000, None)
        assert (row.host_before_ns, row.host_after_ns) == (9_000, None)
        (told,) = found.not_recorded
        assert (told.what, told.side, told.names) == ("operators", "after", 1)
        assert "torch.profiler records them" in told.message
        assert not [title for title, _, _ in sections(found) if title.startswith("Operators")]
        assert told.message in " ".join(compare_text(found).split())


def test_ranges_of_another_tool_are_not_compared() -> None:
    before = run("kineto", ranges=[use("forward"), use("Optimizer.step#AdamW.step")])
    after = run("nsys", ranges=[use("forward", 9_000.0), use("cub::DeviceScan")])
    found = compare([before], [after])
    rows = {row.name: (row.device_before_ns, row.device_after_ns) for row in found.ranges}
    assert rows == {
        "forward": (5_000, 9_000),
        "Optimizer.step#AdamW.step": (5_000, None),
        "cub::DeviceScan": (None, 5_000),
    }
    assert [(told.what, told.side, told.names) for told in found.not_recorded] == [
        ("ranges", "before", 1),
        ("ranges", "after", 1),
    ]
    ((_, _, shown),) = [one for one in sections(found) if one[0].startswith("Ranges")]
    assert [row[0] for row in shown] == ["forward"]


def test_ranges_that_went_took_no_time_where_one_tool_recorded_both_runs() -> None:
    before = run("nsys", ranges=[use("forward"), use("checkpoint")])
    found = compare([before], [run("nsys", ranges=[use("forward")])])
    rows = {row.name: (row.device_before_ns, row.device_after_ns) for row in found.ranges}
    assert rows == {"forward": (5_000, 5_000), "checkpoint": (5_000, 0)}
    assert found.not_recorded == []


def test_earlier_profiles_do_not_tell_what_nested_ranges_launch() -> None:
    after = run("nsys", ranges=[use("forward")])
    before = replace(after, ranges=[use("forward", None)])
    (row,) = compare([before], [after]).ranges
    assert (row.device_before_ns, row.device_after_ns) == (None, 5_000)


def test_each_figure_of_noise_says_what_it_is() -> None:
    found = compare([run("nsys")], [run("nsys")])
    text = " ".join(compare_text(found).split())
    deviation = f"{100 * found.step.run_noise:.1f} %"
    assert f"standard deviation of runs of the same code {deviation} (assumed)" in text
    assert f"assumed is a standard deviation of {deviation}, so that two runs lie up to" in text
