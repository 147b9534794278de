"""``stepscope phases``: the phases of a step, which add up to it exactly."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope
from tests.support.build import AUTOGRAD, Build
from tests.support.captures import DATA, unpack

from stepscope.api import Job
from stepscope.operators.phases import (
    BACKWARD,
    COPIES,
    DATALOAD,
    FORWARD,
    OPTIMIZER,
    phase_of_range,
)

CAPTURES = [
    "kineto/gpt1024_unfused_attention.json.xz",
    "kineto/gpt_graph.json.gz",
    "kineto/cnn_workers.json.gz",
    "nsys/gpt1024_healthy.sqlite.xz",
    "nsys/cnn_small.sqlite.xz",
    "nsys/gpt_graph.sqlite.xz",
]


@pytest.mark.parametrize("capture", CAPTURES)
def test_phases_add_up_to_every_step(reader: Stepscope, capture: str) -> None:
    path = unpack(DATA / capture)
    document: dict[str, Any] = reader.json("phases", path)
    assert document["schema"] == "stepscope.phases/1"
    steps = reader.json("query", path, "SELECT step, wall_ns FROM step WHERE steady ORDER BY step")
    gpu: dict[int, int] = defaultdict(int)
    host: dict[int, int] = defaultdict(int)
    for row in document["steps"]:
        assert min(row["gpu_ns"], row["idle_ns"], row["host_ns"]) >= 0
        gpu[row["step"]] += row["gpu_ns"] + row["idle_ns"]
        host[row["step"]] += row["host_ns"]
    assert gpu == dict(steps["rows"])
    (device,) = document["devices"]
    assert sum(gpu.values()) == device["wall_ns"]
    assert sum(host.values()) == device["host_wall_ns"]
    idle = sum(row["idle_ns"] for row in document["phases"])
    accounted = reader.json("query", path, "SELECT sum(idle_ns)::BIGINT FROM step WHERE steady")
    assert idle == accounted["rows"][0][0]
    assert sum(row["share_of_step"] for row in document["phases"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("forward", FORWARD),
        ("fwd_3", FORWARD),
        ("DistributedDataParallel.forward", FORWARD),
        ("loss", FORWARD),
        ("backward", BACKWARD),
        ("loss.backward", BACKWARD),
        ("Optimizer.step#AdamW.step", OPTIMIZER),
        ("Optimizer.zero_grad#SGD.zero_grad", OPTIMIZER),
        ("optimizer_step", OPTIMIZER),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", DATALOAD),
        ("next_batch", DATALOAD),
        ("h2d", COPIES),
        ("batch_to_device", COPIES),
        ("step_7", -1),
        ("layer3.attention", -1),
        ("loss_scale_update", -1),
    ],
)
def test_names_of_phases(text: str, phase: int) -> None:
    assert phase_of_range(text) == phase


def looped(*, marked: bool, calls: bool = True) -> Build:
    """Six steps of 1000 us: loader, copy, forward, backward on autograd's thread, optimizer."""
    build = Build()
    for step in range(6):
        t = 1000.0 * step

        def call(begin: float, end: float, t: float = t) -> tuple[float, float] | None:
            return (t + begin, t + end) if calls else None

        build.range(t, t + 999, f"step_{step}")
        if marked:
            build.range(t + 5, t + 300, "dataload")
            build.range(t + 320, t + 400, "forward")
            build.range(t + 400, t + 600, "backward")
            build.range(t + 600, t + 700, "optimizer")
        build.copy(t + 310, t + 330, call=call(302, 305))
        build.kernel(t + 330, t + 430, call=call(325, 330), name="gemm")
        build.kernel(t + 430, t + 630, call=call(420, 425), thread=AUTOGRAD, name="some_backward")
        build.kernel(t + 640, t + 700, call=call(620, 630), name="multi_tensor_apply_kernel<Adam>")
    return build


def times(trace: Any) -> dict[str, tuple[float | None, float, float]]:
    """Phase -> host, GPU and idle time of a step, us."""
    found = Job(trace.folder).phases()
    (device,) = found.devices
    return {
        row.phase: (
            None if row.host_ns is None else row.host_ns / device.steps / 1000,
            row.gpu_ns / device.steps / 1000,
            row.idle_ns / device.steps / 1000,
        )
        for row in found.phases
    }


def test_annotations_tell_host_and_device(tmp_path: Path) -> None:
    found = times(looped(marked=True).trace(tmp_path))
    assert {phase: row[1] for phase, row in found.items()} == {
        "dataload": 0, "copies": 20, "forward": 100, "backward": 200, "optimizer": 60, "other": 0,
    }  # fmt: skip
    host = {phase: row[0] for phase, row in found.items()}
    # the 15 us before the range of the forward pass prepare its launch, too
    assert (host["forward"], host["backward"], host["optimizer"]) == (95, 200, 100)
    assert host["dataload"] == 295
    # the device waits for the next batch from the end of a step to the next copy
    assert found["dataload"][2] == 295
    assert sum(row[1] + row[2] for row in found.values()) == pytest.approx(1000, abs=1)


def test_threads_and_names_tell_without_annotations(tmp_path: Path) -> None:
    found = times(looped(marked=False).trace(tmp_path))
    assert {phase: row[1] for phase, row in found.items()} == {
        "dataload": 0, "copies": 20, "forward": 100, "backward": 200, "optimizer": 60, "other": 0,
    }  # fmt: skip
    assert found["forward"][0] == 25  # from the end of the copy's call to that of the launch
    assert found["backward"][0] == 95
    assert found["optimizer"][0] == 205


def test_kernels_alone_tell_where_nothing_else_is_recorded(tmp_path: Path) -> None:
    job = Job(looped(marked=False, calls=False).trace(tmp_path).folder)
    found = {row.phase: row for row in job.phases().phases}
    steps = job.phases().devices[0].steps
    assert found["backward"].gpu_ns == 200_000 * steps
    assert found["backward"].gpu_evidence == "names and order of kernels"
    assert found["optimizer"].gpu_ns == 60_000 * steps
    assert all(row.host_ns is None for row in found.values())
    assert any("host time is unknown" in warning for warning in job.phases().warnings)


def test_people_see_each_step_and_who_told(reader: Stepscope) -> None:
    path = unpack(DATA / "nsys/gpt1024_healthy.sqlite.xz")
    text = reader("phases", path, "--each", "--limit", "3").stdout
    assert "evidence" in text
    assert "annotations" in text
    assert "more steps" in text
    markdown = reader("phases", path, "--format", "markdown").stdout
    assert "| backward |" in markdown
    csv = reader("phases", path, "--format", "csv").stdout
    assert csv.startswith("rank,device,step,phase,host_ns,gpu_ns,idle_ns")


def test_python_time_by_phase_and_thread(reader: Stepscope, tmp_path: Path) -> None:
    build = looped(marked=True)
    for step in range(6):
        t = 1000.0 * step
        build.python(t + 10, t + 290, "data.py(3): fetch")
        build.python(t + 20, t + 120, "data.py(9): decode")
        build.python(t + 605, t + 690, "train.py(7): update")
        build.range(t + 50, t + 70, "garbage collection, generation 2", domain="python gc")
    job = Job(build.trace(tmp_path).folder)
    report = job.python_time()
    steps = job.phases().devices[0].steps
    found = {(row.place, row.phase): row.time_ns / steps for row in report.places}
    assert found["fetch() data.py:3", "dataload"] == pytest.approx(180_000)
    assert found["decode() data.py:9", "dataload"] == pytest.approx(100_000)
    (process,) = report.processes
    assert process.collections == steps
    assert process.collecting_ns == 20_000 * steps
    assert process.gil_held_ns is None
    text = reader("phases", "--python", job.given[0]).stdout
    assert "fetch() data.py:3" in text
    assert "python-gil records it" in text
