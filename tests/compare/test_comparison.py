"""Whole comparisons: by hand, and of real captures against what was planted in them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.compare.profiles import finding, kernel, profile
from tests.support.captures import DATA, edited, of_each_cause, unpack

from stepscope.api import Job
from stepscope.compare.collect import profile_of
from stepscope.compare.comparison import compare, merged
from stepscope.compare.profile import Profile
from stepscope.compare.trend import trend
from stepscope.render.compare import compare_markdown, compare_text, trend_markdown, trend_text
from stepscope.render.compare_html import compare_html

PROFILES: dict[Path, Profile] = {}
FOLDER: list[Path] = []


@pytest.fixture(autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not FOLDER:
        FOLDER.append(tmp_path_factory.mktemp("captures"))


def of(path: Path) -> Profile:
    if path not in PROFILES:
        PROFILES[path] = Job([path]).profile()
    return PROFILES[path]


def bundled(name: str) -> Path:
    return unpack(DATA / "nsys" / f"{name}.sqlite.xz")


# --- by hand -------------------------------------------------------------------------------------


def test_differences_sum_exactly_whatever_rounding_leaves() -> None:
    rng = np.random.default_rng(5)
    sides = []
    for steps, devices in ((7, 3), (11, 2)):
        parts = {n: rng.integers(0, 10**7, steps) for n in ("compute", "memset", "idle:host_sync")}
        wall = sum(parts.values())
        sides.append(profile(wall, parts=parts, devices=devices))  # type: ignore[arg-type]
    found = compare([sides[0]], [sides[1]])
    assert sum(p.difference_ns for p in found.parts) == found.step.difference_ns
    assert sum(p.before_ns for p in found.parts) == found.step.before_ns


def shifted(ms: float, cause: str = "host_sync", **more: object) -> Profile:
    busy, idle = [10_000_000] * 10, [round(ms * 1e6)] * 10
    wall = [a + b for a, b in zip(busy, idle, strict=True)]
    return profile(wall, parts={"compute": busy, f"idle:{cause}": idle}, **more)  # type: ignore[arg-type]


def test_a_finding_that_went_and_its_prediction() -> None:
    before = shifted(5, findings=[finding("host_sync", 5_000_000, 10_000_000, 10**7, 11_000_000)])
    found = compare([before], [shifted(0)])
    assert found.verdict == "faster"
    assert found.causes[0].name == "host_sync"
    assert found.causes[0].difference_ns == -5_000_000
    assert [(f.cause, f.fate) for f in found.findings] == [("host_sync", "gone")]
    assert [p.came_true for p in found.predictions] == [True]
    worse = compare([before], [shifted(2.9, "host_compute")])
    assert [p.came_true for p in worse.predictions] == [False]
    back = compare([shifted(0)], [before])
    assert back.verdict == "slower"
    assert [(f.cause, f.fate) for f in back.findings] == [("host_sync", "new")]
    assert back.predictions == []


def test_a_finding_at_its_threshold_did_not_come() -> None:
    after = shifted(1.02, findings=[finding("host_sync", 1_020_000, 10**7, 10**7, 10**7)])
    found = compare([shifted(1.0)], [after])
    assert [(f.cause, f.fate) for f in found.findings] == [("host_sync", "unchanged")]


def test_a_finding_that_sank_under_its_threshold_says_what_its_time_did() -> None:
    """Its idle time grew by a half, but the step grew more, so that it is no finding any more."""
    found_there = finding("host_sync", 1_000_000, 10**7, 10**7, 11 * 10**6)
    before, after = shifted(1.0, findings=[found_there]), shifted(1.5)
    found = compare([before], [after])
    (one,) = found.findings
    assert (one.fate, one.before_ns, one.after_ns) == ("larger", 1_000_000, None)
    assert (one.idle_before_ns, one.idle_after_ns) == (1_000_000, 1_500_000)
    assert found.predictions == []  # nothing was repaired
    assert "went" not in found.message
    assert all(moved.difference_ns == 500_000 for moved in found.causes)
    row = next(line for line in compare_text(found).splitlines() if " larger " in line)
    assert row.split() == ["host_sync", "larger", "1.0", "ms", "[1.5", "ms]", "+0.50", "ms"]
    assert "in brackets" in compare_text(found)
    (back,) = compare([after], [before]).findings
    assert (back.fate, back.end_ns - back.start_ns) == ("smaller", -500_000)


def test_a_finding_that_is_gone_is_shown_with_the_time_that_went() -> None:
    """Its repair gains 1.9 ms, of which 1 ms is idle time: the table counts that on both sides."""
    before = shifted(1.0, findings=[finding("host_sync", 1_900_000, 10**7, 10**7, 11 * 10**6)])
    found = compare([before], [shifted(0)])
    row = next(line for line in compare_text(found).splitlines() if " gone " in line)
    assert row.split() == ["host_sync", "gone", "1.0", "ms", "-1.0", "ms"]


def test_a_finding_whose_idle_time_is_mostly_elsewhere_is_measured_by_its_own_time() -> None:
    before = shifted(1.0, findings=[finding("host_sync", 4_000_000, 10**7, 10**7, 11 * 10**6)])
    (one,) = compare([before], [shifted(0.9)]).findings
    assert (one.fate, one.start_ns, one.end_ns) == ("gone", 4_000_000, 900_000)


def test_a_slower_host_is_not_called_a_slower_program() -> None:
    def run(ms: float, launch: float) -> Profile:
        figures = {"launch_ns": launch, "host_paced_idle_ns": ms * 1e6}
        return shifted(ms, "launch_bound", figures=figures)

    assert compare([run(0.5, 4000)], [run(8, 4100)]).verdict == "slower"
    found = compare([run(0.5, 4000)], [run(6, 5600)])
    assert found.verdict == "not_comparable"
    assert "host_pace" in found.message
    # a host that is 1.4 times slower does not make the step four times as long
    assert compare([run(0.5, 4000)], [run(32, 5600)]).verdict == "slower"


def test_counts_have_no_noise() -> None:
    def run(launches: float, source: str = "nsys") -> Profile:
        figures = {"kernels_per_step": 600.0, "launches_per_step": launches}
        return shifted(3, "launch_bound", figures=figures, setup={"source": source})

    found = compare([run(600)], [run(660)])
    assert found.verdict == "no_difference"
    assert found.message.endswith("; yet a step has 660 launches instead of 600")
    assert "yet" not in compare([run(600)], [run(605)]).message
    assert "launches instead" not in compare([run(600)], [run(660, "kineto")]).message


def test_another_tool_is_said_and_bounds_the_claim() -> None:
    def run(ms: float, source: str, recording: float) -> Profile:
        figures = {"recording_ns_per_step": recording * 1e6, "host_paced_idle_ns": ms * 1e6}
        return shifted(ms, "profiler_overhead", setup={"source": source}, figures=figures)

    found = compare([run(0, "nsys", 0)], [run(6, "kineto", 5)])
    assert found.verdict == "not_comparable"
    assert next(s for s in found.setup if s.weight == "confounds").name == "source"
    assert compare([run(0, "nsys", 0)], [run(60, "kineto", 5)]).verdict == "slower"
    # the same tool with the same options: what it costs is on both sides
    assert compare([run(0, "kineto", 5)], [run(6, "kineto", 5)]).verdict == "slower"


def test_without_steps_there_is_nothing_to_compare() -> None:
    whole = shifted(5, setup={"steps_found_by": "whole_capture"})
    found = compare([shifted(0)], [whole])
    assert found.verdict == "not_comparable"
    assert "no repeating step" in found.message


def test_several_captures_are_one_run() -> None:
    runs = [shifted(ms) for ms in (1.0, 1.01, 0.99)]
    assert merged(runs).step_ns == pytest.approx(11e6)
    after = [shifted(ms) for ms in (1.30, 1.31, 1.32)]
    assert compare(runs[:1], after[:1]).verdict == "no_difference"
    found = compare(runs, after)
    assert found.verdict == "slower"
    assert found.step.run_noise_measured
    assert sum(p.difference_ns for p in found.parts) == found.step.difference_ns


def test_names_from_traces_cannot_break_out() -> None:
    evil = "<script>alert(1)</script>\x1b[31m|@everyone"
    before = profile(kernels=[kernel("a", 300_000)], marks=[(0, 900_000, evil)],
                     timeline=[(0, 1000, 0)])  # fmt: skip
    after = profile(kernels=[kernel(evil, 900_000, name="b")], marks=[(0, 900_000, evil)])
    found = compare([before], [after])
    page = compare_html(found)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http" not in page.replace("http-equiv", "")
    for text in (compare_text(found), compare_markdown(found), page):
        assert "\x1b" not in text
    assert "|@everyone" not in compare_markdown(found)


def test_a_trend_compares_with_the_first_and_the_one_before() -> None:
    found = trend([shifted(1), shifted(6), shifted(6.1)], run_noise=0.05)
    assert [(r.since_first, r.since_previous) for r in found.rows] == [
        ("no_difference", "no_difference"),
        ("slower", "slower"),
        ("slower", "no_difference"),
    ]
    assert found.rows[1].moved == "idle:host_sync"
    assert "slower" in trend_text(found)
    assert trend_markdown(found).count("\n|") == 4


# --- real captures -------------------------------------------------------------------------------

PLANTS = {
    # capture -> what made it slower than healthy, and the steps' difference that was measured, ms
    "gpt1024_host_compute": ("host_compute", 39.4),
    "gpt1024_pageable_h2d": ("blocking_copy", 30.3),
    "gpt1024_sync_item": ("host_sync", 8.4),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_against_healthy_both_ways(name: str) -> None:
    cause, difference_ms = PLANTS[name]
    healthy, planted = of(bundled("gpt1024_healthy")), of(bundled(name))
    for before, after, verdict, sign in (
        (healthy, planted, "slower", 1),
        (planted, healthy, "faster", -1),
    ):
        found = compare([before], [after])
        assert found.verdict == verdict
        assert found.causes[0].name == cause
        assert found.step.difference_ns == pytest.approx(sign * difference_ms * 1e6, rel=0.02)
        assert sum(p.difference_ns for p in found.parts) == found.step.difference_ns
        fate = "new" if sign > 0 else "gone"
        assert (cause, fate) in [(f.cause, f.fate) for f in found.findings]
        assert [p.came_true for p in found.predictions] == ([True] if sign < 0 else [])


def test_a_fused_optimizer_is_recognised() -> None:
    planted = of(bundled("gpt1024_unfused_optimizer"))
    found = compare([planted], [of(bundled("gpt1024_healthy"))])
    assert found.verdict == "faster"
    assert found.causes[0].name == "unfused_optimizer"
    fused = [k for k in found.kernels if k.relation == "fused"]
    assert any("multi_tensor" in name for k in fused for name in k.after)


HALVED = [Path(f).name.split(".")[0] for f in of_each_cause() if f.startswith("nsys/")]


def test_there_are_captures_to_halve() -> None:
    assert len(HALVED) >= 10


@pytest.mark.parametrize("name", HALVED)
def test_halves_of_one_capture_are_never_a_change(name: str) -> None:
    job = Job([bundled(name)])
    diagnosis, view = job.diagnose(), job.explained.view
    half = len(profile_of(view, diagnosis).wall_ns) // 2
    halves = [profile_of(view, diagnosis, p) for p in (slice(half), slice(half, None))]
    found = compare([halves[0]], [halves[1]])
    assert found.verdict == "no_difference"
    assert [k for k in found.kernels if k.changed] == []


def test_two_runs_of_the_same_code(unpacked: Callable[[str], Path]) -> None:
    for a, b in itertools.permutations(("healthy", "healthy_osrt")):
        found = compare([of(unpacked(a))], [of(unpacked(b))])
        assert found.verdict == "no_difference"
        assert [k for k in found.kernels if k.changed] == []
        assert [f.fate for f in found.findings if f.fate != "unchanged"] == []
        assert any(s.name == "capture.trace" for s in found.setup)


def test_the_same_code_under_two_tools_is_not_compared(
    unpacked: Callable[[str], Path], shared_data: Path
) -> None:
    kineto = of(shared_data / "kineto" / "healthy.json.gz")
    for before, after in itertools.permutations((of(unpacked("healthy")), kineto)):
        found = compare([before], [after])
        assert found.verdict == "not_comparable"
        assert [k for k in found.kernels if k.changed] == []
        assert {k.relation for k in found.kernels} == {"same"}  # names are written otherwise


def test_the_parts_of_every_step_sum_to_its_length() -> None:
    ranks = [unpack(f) for f in sorted((DATA.parent / "ranks").glob("*.xz"))]
    assert len(ranks) == 2
    runs = [of(bundled("cnn_small")), of(bundled("gpt_graph")), Job(ranks).profile()]
    for run in runs:
        table = np.array(list(run.parts_ns.values()))
        assert (table.sum(axis=0) == np.array(run.wall_ns)).all()
        assert sum(run.budget_ns().values()) == round(run.step_ns)
        assert compare([run], [run]).verdict == "no_difference"
    assert runs[2].devices == 2
    assert runs[2].collectives[0].group_size == 2


def test_ranks_of_a_job(unpacked: Callable[[str], Path]) -> None:
    healthy, late = (
        Job([unpacked(f"{name}.rank{rank}") for rank in range(4)]).profile()
        for name in ("ddp_healthy", "ddp_straggler")
    )
    found = compare([healthy], [late])
    assert found.verdict == "slower"
    assert found.causes[0].name == "straggler"
    assert sum(p.difference_ns for p in found.parts) == found.step.difference_ns
    waits = found.collectives[0]
    assert waits.waiting_after_ns - waits.waiting_before_ns > 5 * abs(
        waits.transfer_after_ns - waits.transfer_before_ns
    )


# --- one kernel in a noisy step ------------------------------------------------------------------


@cache
def noisy(seed: int) -> Profile:
    """A healthy run whose steps were disturbed, nothing else."""
    return of(edited(bundled("gpt1024_healthy"), FOLDER[0], noise=0.3, seed=seed))


@pytest.mark.parametrize("factor", [1.05, 0.95])
def test_five_percent_in_one_kernel_inside_noisy_steps(factor: float, tmp_path: Path) -> None:
    capture = bundled("gpt1024_healthy")
    heavy = max(of(capture).kernels, key=lambda k: k.ns_per_step)
    before = noisy(1)
    after = of(edited(capture, tmp_path, kernel=heavy.label, factor=factor, noise=0.3, seed=2))
    spread = np.std(before.lengths_ns()) / before.step_ns
    assert spread > 0.05  # the steps are noisy, and their means tell nothing
    found = compare([before], [after])
    assert found.verdict == "no_difference"
    changed = [k for k in found.kernels if k.changed]
    assert changed
    assert {name for k in changed for name in k.after} == {heavy.label}
    assert changed[0].each_ratio == pytest.approx(factor, abs=0.005)
    assert heavy.label in found.message


def test_noise_alone_names_no_kernel() -> None:
    found = compare([noisy(1)], [noisy(3)])
    assert [k for k in found.kernels if k.changed] == []
    assert found.verdict == "no_difference"


def test_the_profile_survives_json() -> None:
    run = of(bundled("cnn_small"))
    assert msgspec.json.decode(msgspec.json.encode(run), type=Profile) == run
    assert json.loads(msgspec.json.encode(run))["schema"] == "stepscope.profile/3"
