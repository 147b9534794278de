"""``stepscope whatif`` and ``stepscope critical-path``."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.cli.command import Stepscope, is_one_line
from tests.support.captures import DATA, unpack

from stepscope.simulation.result import CriticalPath, WhatIf
from stepscope.trace.units import milliseconds

SYNC = DATA / "nsys" / "gpt1024_sync_item.sqlite.xz"


@pytest.fixture(scope="module")
def capture() -> Path:
    return unpack(SYNC)


def test_whatif(reader: Stepscope, capture: Path):
    done = reader("whatif", capture, "--free", "host_sync,launch_bound", "--format", "json")
    result = msgspec.json.decode(done.stdout, type=WhatIf, strict=False)
    assert result.schema == "stepscope.whatif/2"
    assert result.changes == ["without host_sync", "without launch_bound"]
    assert result.prediction_low_ns <= result.predicted_step_ns <= result.prediction_high_ns
    assert result.predicted_step_ns < 0.75 * result.measured_step_ns
    for budget, step in (
        (result.budget_before, result.measured_step_ns),
        (result.budget_after, result.predicted_step_ns),
    ):
        parts = msgspec.structs.astuple(budget)
        assert sum(parts) == step
        assert min(parts) >= 0
    text = reader("whatif", capture, "--free", "host_sync", "--free", "launch_bound").stdout
    assert text.startswith(f"Predicted step {milliseconds(result.predicted_step_ns)}")
    # without the waits and with launches free, the kernels alone: 20.1 ms untraced
    assert 19e6 < result.predicted_step_ns < 22e6
    assert "without host_sync" in text
    assert "were replayed" in text


def test_all_changes_are_made_together(reader: Stepscope, capture: Path):
    def step(*arguments: str) -> int:
        found: int = reader.json("whatif", capture, *arguments)["predicted_step_ns"]
        return found

    both = step("--free", "host_sync", "--scale-kernel", "nvjet=0.5", "--launches-free")
    assert both < step("--free", "host_sync", "--launches-free")
    assert both < step("--scale-kernel", "nvjet=0.5")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to change"),
        (("--free", "tea"), "'tea' is no cause of idle time"),
        (("--scale-kernel", "no_such_kernel=0.5"), "no kernel in the replayed steps matches"),
        (("--scale-kernel", "(=0.5"), "is no regular expression"),
        (("--scale-kernel", "gemm"), "is not REGEX=FACTOR"),
        (("--scale-kernel", "gemm=fast"), "is not REGEX=FACTOR"),
        (("--scale-kernel", "nvjet=-1"), "a factor is at least 0"),
        (("--scale-kernel", "nvjet=nan"), "a factor is at least 0"),
        (("--overlap-communication",), "no communication kernel"),
        (("--rank-like-median", "0"), "there is only one rank"),
        (("--even-work", "ranks"), "there is only one rank"),
        (("--set", "batch=2x", "--with", "x.json"), "is not CAPTURE@NAME=VALUE"),
        (("--set", "batch=2x", "--with", "x.json@tea=2"), "'tea' is no setting"),
        (("--set", "batch=2x", "--with", "nowhere.json@graphs=on"), "nowhere.json"),
        (("--set", "batch=2x", "--with", "nowhere.json@batch=4x"), "does not exist"),
        (("--rank-like-median", "3"), "there is no rank 3"),
        (("--set", "tea=2"), "'tea' is no setting that can be tried"),
        (("--set", "batch=2"), "is not batch=FACTORx or NOW:THEN, as in batch=2x"),
        (("--set", "batch=2x,batch=4x"), "batch is set twice"),
        (("--set", "batch=1000x"), "'batch=1000x': from 0.015625 to 64 can be tried, not 1000"),
        (("--set", "workers=0:1000"), "from 1 to 512 can be tried, not 1000"),
        (("--set", "accumulate=1"), "from 2 to 64 can be tried, not 1"),
        (("--set", "workers=4"), "state both numbers, as in --set workers=0:4 where"),
        (("--set", "precision=tf32"), "nothing would change"),
        (("--set", "bucket=50"), "reduces no gradients"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: tuple[str, ...], message: str, reader: Stepscope, capture: Path
):
    done = reader("whatif", capture, *arguments, expect=2)
    assert done.stdout == ""
    assert message in is_one_line(done.stderr)


def test_settings_are_tried_together(reader: Stepscope, capture: Path):
    arguments = ("--set", "batch=2x", "--set", "optimizer=fused", "--free", "host_sync")
    result = reader.json("whatif", capture, *arguments)
    assert result["schema"] == "stepscope.whatif/2"
    assert result["changes"] == ["without host_sync", "2 times the batch", "a fused optimizer"]
    assert [one["samples_factor"] for one in result["alone"]] == [1, 2, 1]
    assert [one["validity"] for one in result["alone"]] == ["modelled"] * 3
    # twice the samples take longer, but not twice as long: the update stays, the host waits less
    step = result["predicted_step_ns"]
    assert result["alone"][0]["predicted_step_ns"] < step < 2 * result["measured_step_ns"]
    gain = 2 * result["measured_step_ns"] / step
    assert result["throughput_factor"] == pytest.approx(gain, rel=1e-5)
    assert result["prediction_low_ns"] <= step <= result["prediction_high_ns"]
    text = reader("whatif", capture, *arguments).stdout
    assert "2 times the samples per step" in text
    assert "Each alone" in text
    listed = reader("whatif", "--list").stdout
    assert all(f"--set {name}=" in listed for name in ("batch", "precision", "ranks", "workers"))


def test_kernels_of_another_capture_with_the_setting(reader: Stepscope, capture: Path):
    """The same capture as if it had twice the batch: kernels do not grow, and are said measured."""
    arguments = ("whatif", capture, "--set", "batch=2x")
    modelled = reader.json(*arguments)
    measured = reader.json(*arguments, "--with", f"{capture}@batch=2x")
    kernels = [one["budget_after"]["compute_ns"] for one in (modelled, measured)]
    now = measured["budget_before"]["compute_ns"]
    assert kernels[0] > 1.5 * now
    assert kernels[1] == pytest.approx(now, rel=0.02)
    assert (modelled["validity"], measured["validity"]) == ("modelled", "measured")
    further = reader.json("whatif", capture, "--set", "batch=4x", "--with", f"{capture}@batch=2x")
    assert further["validity"] == "extrapolated"
    refused = ("whatif", capture, "--set", "precision=fp8", "--with", f"{capture}@precision=bf16")
    assert "says nothing of" in is_one_line(reader(*refused, expect=2).stderr)


def test_critical_path(reader: Stepscope, capture: Path):
    done = reader("critical-path", capture, "--format", "json")
    result = msgspec.json.decode(done.stdout, type=CriticalPath, strict=False)
    assert result.schema == "stepscope.critical_path/2"
    assert sum(part.ns for part in result.parts) == result.total_ns
    assert len(result.steps) == 12
    assert {place.name for place in result.ranges} >= {"forward", "backward", "optimizer"}
    text = reader("critical-path", capture).stdout
    assert text.startswith("Critical path of 12 steps of rank 0")
    assert "host work: launch_bound" in text


def test_critical_path_of_one_step_as_csv(reader: Stepscope, capture: Path):
    rows = reader("critical-path", capture, "--only-step", "5", "--format", "csv").stdout.split(
        "\n"
    )
    assert rows[0] == "step,kind,cause,ns"
    assert all(row.startswith("5,") for row in rows[1:-1])
    one = reader.json("critical-path", capture, "--only-step", "5")
    assert sum(int(row.rpartition(",")[2]) for row in rows[1:-1]) == one["total_ns"]
    done = reader("critical-path", capture, "--only-step", "99", expect=2)
    assert "step 99 is not among" in is_one_line(done.stderr)
