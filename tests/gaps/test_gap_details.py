"""What ended each gap and where the host was, against looking at the events one by one."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest
from tests.support.build import US, Build
from tests.support.captures import DATA, unpack

import stepscope
from stepscope.api import Job
from stepscope.cache.store import Cache
from stepscope.trace.errors import UsageError

FILES = (
    "nsys/cnn_workers.sqlite.xz",
    "nsys/gpt1024_sync_item.sqlite.xz",
    "nsys/cnn_small.sqlite.xz",
    "kineto/cnn_disk.json.gz",
    "kineto/gpt_graph.json.gz",
)
STEPS = 6
PERIOD = 10_000.0  # us


def opened(file: str) -> Job:
    cache = Cache(Path(os.environ["STEPSCOPE_CACHE_DIR"]))
    return stepscope.open(unpack(DATA / file), cache=cache)


@pytest.mark.parametrize("file", FILES)
def test_sums_are_the_idle_time_of_the_steps(file: str) -> None:
    job = opened(file)
    steps = [row for row in job.steps.to_pylist() if row["steady"]]
    for view in ("cause", "gap"):
        whole = sum(job.idle_gaps(view).column("idle_ns").to_pylist())
        assert whole == sum(row["idle_ns"] for row in steps)
        for row in (steps[0], steps[-1]):
            one = sum(job.idle_gaps(view, step=row["step"]).column("idle_ns").to_pylist())
            assert one == row["idle_ns"]
    causes: dict[str, int] = defaultdict(int)
    for row in job.idle_gaps().to_pylist():
        causes[row["cause"]] += row["idle_ns"]
    ((_, e),) = job.explained.explanations
    assert causes == e.idle_by_cause_ns


@pytest.mark.parametrize("file", FILES)
def test_single_gaps_are_those_between_the_operations(file: str) -> None:
    """Gaps, what ended them and its call, from the canonical tables alone."""
    job = opened(file)
    begin, end = (
        job.query("SELECT min(start_ns), max(end_ns) FROM step WHERE steady")
        .to_pylist()[0]
        .values()
    )
    ops = job.query("SELECT * FROM gpu_op ORDER BY start_ns, end_ns").to_pylist()
    calls = {
        row["correlation_id"]: row
        for row in job.query(
            "SELECT * FROM api_call WHERE correlation_id > 0 ORDER BY start_ns DESC"
        ).to_pylist()
    }
    expected, busy_until = [], begin
    for op in ops:
        if op["end_ns"] <= begin or op["start_ns"] >= end:
            continue
        if op["start_ns"] > busy_until:
            call = calls.get(op["correlation_id"], {"name": None, "start_ns": None})
            gap = (busy_until, op["start_ns"] - busy_until)
            expected.append((*gap, op["id"], call["name"], call["start_ns"]))
        busy_until = max(busy_until, op["end_ns"])
    if busy_until < end:
        expected.append((busy_until, end - busy_until, None, None, None))
    found = [
        (r["start_ns"], r["idle_ns"], r["gpu_op_id"], r["launch_call"], r["launch_start_ns"])
        for r in job.idle_gaps("gap", sort="start").to_pylist()
    ]
    # where two operations begin at once, either ended the gap
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    assert sum(a == b for a, b in zip(found, expected, strict=True)) >= 0.99 * len(expected)
    lengths = job.idle_gaps("gap").column("idle_ns").to_pylist()
    assert lengths == sorted(lengths, reverse=True)


def _waiting(folder: Path) -> Job:
    """Each step waits 4 ms in a loader, uploads, computes; then a call waits for the device."""
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        build.range(at, at + PERIOD, f"step_{i}")
        build.range(at + 50, at + 4_050, "dataload")
        build.python(at, at + PERIOD - 10, "train.py(3): main")
        build.python(at + 60, at + 4_040, "data.py(40): __next__")
        build.python(at + 70, at + 4_030, "torch/utils/data/dataloader.py(700): _next_data")
        build.copy(at + 4_100, at + 4_200, call=(at + 4_060, at + 4_080))
        build.kernel(at + 4_200, at + 8_000, call=(at + 4_085, at + 4_095))
        build.api(at + 4_150, at + 8_020, "cudaDeviceSynchronize")
        build.kernel(at + 8_400, at + 9_990, call=(at + 8_390, at + 8_396))
        build.operator(at + 8_030, at + 8_398, "aten::add")
    return stepscope.open(build.trace(folder).folder, cache=Cache(folder / "cache"))


def test_where_the_host_was(tmp_path: Path) -> None:
    job = _waiting(tmp_path)
    rows = job.idle_gaps("gap").to_pylist()
    (wait, *_) = [row for row in rows if row["step"] == 2]
    assert wait["cause"] == "input_starvation"
    assert wait["idle_ns"] == (4_100 + 10) * US
    assert wait["ended_by"] == "memcpy HtoD (upload)"
    assert wait["launch_call"] == "cudaMemcpyAsync"
    assert wait["range"] == "dataload"
    assert wait["host_call"] is None
    assert wait["function"] == "__next__() data.py:40"
    assert wait["stack"] == (
        "train.py(3): main > data.py(40): __next__ > "
        "torch/utils/data/dataloader.py(700): _next_data"
    )
    (short,) = [row for row in rows if row["start_ns"] == (2 * PERIOD + 8_000) * US]
    assert (short["ended_by"], short["operator"]) == ("gemm", "aten::add")
    first, *_ = job.idle_gaps().to_pylist()
    assert (first["cause"], first["ended_by"]) == ("input_starvation", "memcpy HtoD (upload)")
    assert first["gaps_per_step"] == 1.0


def test_the_critical_path_charges_a_wait_for_input_to_its_range(tmp_path: Path) -> None:
    path = _waiting(tmp_path).critical_path()
    (wait,) = [part for part in path.parts if part.cause == "input_starvation"]
    assert wait.ns / STEPS > 3_900 * US
    (load,) = [place for place in path.ranges if place.name == "dataload"]
    assert load.ns / STEPS == pytest.approx(4_000 * US, rel=0.05)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    job = _waiting(tmp_path)
    with pytest.raises(UsageError, match="step 77 is no steady step; those are 0 to"):
        job.idle_gaps(step=77)
    with pytest.raises(UsageError, match="there is no rank 3; the ranks are 0"):
        job.idle_gaps(rank=3)
    with pytest.raises(UsageError, match="'start' is no order"):
        job.idle_gaps(sort="start")
