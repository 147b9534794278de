"""Which launches ncu shall capture, and the command that captures them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.command import Stepscope
from tests.support.build import Build

from stepscope.breakdown.explain import Explanation, explain
from stepscope.operators.roofline import MOST_LAUNCHES, Launches, launches_of

SLOW = "void lib::slow<float, 4>(float const*, int)"
OTHER = "other_kernel"
STEPS = 8


def steps(folder: Path, slow: int = 2, before: int = 3) -> Explanation:
    """Equal steps with ``slow`` launches of one kernel among others, and a warm-up before them."""
    build = Build()
    build.gpu("NVIDIA H200")
    at = 0.0

    def launch(name: str) -> None:
        nonlocal at
        build.kernel(at + 4, at + 9, call=(at, at + 1), name=name)
        at += 10

    for _ in range(before):
        launch(SLOW)
    for number in range(STEPS):
        begin = at
        launch(OTHER)
        for _ in range(slow):
            launch(SLOW)
        launch("tail")
        build.range(begin, at, f"step_{number}")
    trace = build.trace(folder)
    (found,) = explain(trace.frame, trace.meta)
    return found


def chosen(found: Explanation, *names: str) -> Launches:
    launches = launches_of(found.kernels, names)
    assert launches is not None
    return launches


def test_launches_of_the_first_steady_step(tmp_path: Path) -> None:
    found = steps(tmp_path)
    launches = chosen(found, SLOW)
    assert launches.functions == ("slow",)
    assert launches.pattern == "regex:^(slow)$"
    # the warm-up's, and two of each step before the first steady one
    assert (launches.skip, launches.count) == (3 + 2 * found.first, 2)
    both = chosen(found, SLOW, OTHER)
    assert (both.skip, both.count) == (3 + 3 * found.first, 3)


def test_many_launches_leave_lighter_kernels_out(tmp_path: Path) -> None:
    launches = chosen(steps(tmp_path, slow=MOST_LAUNCHES + 5), SLOW, OTHER)
    assert launches.functions == ("slow",)  # the heaviest stays, cut
    assert launches.count == MOST_LAUNCHES
    assert launches.left_out == ("other_kernel",)


def test_nothing_where_the_kernels_are_not(tmp_path: Path) -> None:
    found = steps(tmp_path).kernels
    assert launches_of(found, ["missing"]) is None
    assert launches_of(found, []) is None


def test_names_of_a_trace_reach_no_shell(tmp_path: Path) -> None:
    build = Build()
    for number in range(STEPS):
        build.kernel(number * 10 + 4, number * 10 + 9, call=(number * 10, number * 10 + 1),
                     name="x'; rm -rf $HOME|`id`")  # fmt: skip
        build.range(number * 10, number * 10 + 10, f"step_{number}")
    trace = build.trace(tmp_path)
    (found,) = explain(trace.frame, trace.meta)
    launches = chosen(found, "x'; rm -rf $HOME|`id`")
    assert re.fullmatch(r"regex:\^\([A-Za-z0-9_.|]*\)\$", launches.pattern)
    assert "|" not in launches.functions[0]


@pytest.fixture
def with_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stepscope:
    ncu = tmp_path / "bin" / "ncu"
    ncu.parent.mkdir()
    ncu.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "Version 2025.3.1.0 (build 1)" && exit\n'
        'while [ "$1" != --export ]; do shift; done; touch "$2.ncu-rep"\n'
    )
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ncu.parent}:/usr/bin:/bin")
    return Stepscope(tmp_path / "cache")


@pytest.fixture
def slow_gemm(tmp_path: Path) -> Path:
    """Steps with a product that takes 50 us for what the device does in less than one."""
    build = Build()
    build.gpu("NVIDIA H200")
    for number in range(STEPS):
        at = number * 100
        build.range(at, at + 100, f"step_{number}")
        build.operator(at, at + 5, "aten::mm", input_shapes="[[64,64],[64,64]]",
                       input_types='["float","float"]')  # fmt: skip
        build.kernel(at + 10, at + 60, call=(at + 1, at + 2), name="void cutlass::sgemm_nn<1>(int)")
        build.kernel(at + 60, at + 90, call=(at + 20, at + 21), name=OTHER)
    folder = tmp_path / "trace"
    folder.mkdir()
    return Path(build.trace(folder).path)


def test_run_captures_what_the_diagnosis_is_about(
    with_ncu: Stepscope, slow_gemm: Path, tmp_path: Path
) -> None:
    run = ("run", "--backend", "ncu", "--dry-run", "-o", tmp_path / "out")
    (gemm,) = with_ncu.json("kernels", slow_gemm, "--roofline")["operators"]
    assert "regex:^sgemm_nn$" in gemm["examine"]
    command = with_ncu(*run, "--examine", slow_gemm, "--", "true").stdout
    assert "--kernel-name 'regex:^(sgemm_nn)$'" in command
    assert "--launch-count 1 " in command
    # the hook begins at a step: nothing is let pass
    command = with_ncu(*run, "--examine", slow_gemm, "--steps", "1", "--", "true").stdout
    assert "--profile-from-start off" in command
    assert "--launch-skip" not in command
    command = with_ncu(*run, "--kernel", "gemm", "--", "true").stdout
    assert "--kernel-id ::regex:gemm:6" in command


def test_a_run_shows_what_it_captured(with_ncu: Stepscope, slow_gemm: Path, tmp_path: Path) -> None:
    """The stand-in writes an empty report: each reader says so in its own words."""
    out = tmp_path / "out"
    run = ("run", "--backend", "ncu", "-o", out, "--kernel", "x", "--", "true")
    output = with_ncu(*run).stderr
    assert f"stepscope kernels {out}/kernels.ncu-rep" in output
    assert "no Nsight Compute report" in output


def test_nothing_to_examine_is_said(with_ncu: Stepscope, tmp_path: Path) -> None:
    build = Build()
    for number in range(STEPS):
        at = number * 100
        build.range(at, at + 100, f"step_{number}")
        build.kernel(at + 10, at + 60, call=(at + 1, at + 2), name=OTHER)
    trace = build.trace(tmp_path).path
    line = with_ncu("run", "--backend", "ncu", "--examine", trace, "--", "true", expect=2).stderr
    assert "name kernels with --kernel REGEX" in line


def test_kernels_are_for_ncu(with_ncu: Stepscope, slow_gemm: Path) -> None:
    line = with_ncu("run", "--kernel", "gemm", "--", "true", expect=2).stderr
    assert "--backend ncu" in line
    both = ("--kernel", "x", "--examine", slow_gemm)
    line = with_ncu("run", "--backend", "ncu", *both, "--", "true", expect=2).stderr
    assert "give one of them" in line
