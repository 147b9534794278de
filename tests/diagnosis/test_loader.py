"""What more workers gain: predictions against a loader that is simulated on its own."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import cast

import msgspec
import pytest
from rich.console import Console
from tests.diagnosis.test_time_causes import diagnosed, figures
from tests.support.build import Build
from tests.support.loading import Batch, loading, mean_step

from stepscope.api import Job
from stepscope.api.explained import changes_of
from stepscope.diagnosis.sentence import unsupported
from stepscope.render.markdown import diagnosis_markdown
from stepscope.render.terminal import print_diagnosis
from stepscope.simulation.pace import LOADED
from stepscope.trace.errors import UsageError

WORK = 6_000.0
"""What a step takes without waiting, us."""
NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def captured(batches: list[Batch], *, fetches: bool = True, size: int = 1 << 16) -> Build:
    """The steps of some batches as ``stepscope run`` records them."""
    b = Build()
    begin = batches[0].asked
    for batch in batches:
        asked, given = batch.asked - begin, batch.given - begin
        b.range(asked, given + WORK, "step 1")
        b.range(asked, given + 5, NEXT)
        b.copy(given + 20, given + 60, call=(given + 10, given + 14), size=size)
        for k in range(2):
            at = given + 60 + 2_960 * k
            call = (given + 20 + 8 * k, given + 24 + 8 * k)
            b.kernel(at, at + 2_960, call=call, name=f"k{k}")
        if fetches and batch.made[0] >= begin:
            worker = 200 + batch.worker
            b.range(*(t - begin for t in batch.made), "DataLoader fetch", thread=worker)
            b.rows["range"][-1]["process_id"] = worker
            b.rows["range"][-1]["end_missing"] = False
    b.rows["thread"] = [{"process_id": 100, "thread_id": 7, "name": "pt_data_pin"}] + [
        {"process_id": p, "thread_id": p, "name": "pt_data_worker"}
        for p in {200 + batch.worker for batch in batches}
    ]
    return b


@pytest.mark.parametrize(("workers", "batch_us"), [(2, 33_000.0), (4, 27_000.0)])
def test_more_workers_are_predicted(tmp_path: Path, workers: int, batch_us: float) -> None:
    today = loading(workers=workers, batch_us=batch_us, step_us=WORK)
    found = diagnosed(captured(today[100:124]), tmp_path)
    first = found.findings[0]
    known = figures(first)
    assert (first.cause, first.at_least) == ("input_starvation", False)
    assert known["loader_workers"] == workers
    assert known["fetch_ns"] == pytest.approx(batch_us * 1e3, rel=0.05)
    needed = int(known["workers_needed"])
    enough = mean_step(loading(workers=needed, batch_us=batch_us, step_us=WORK))
    assert enough == pytest.approx(WORK, rel=0.02)  # so many do keep up, and one less does not
    assert mean_step(loading(workers=needed - 1, batch_us=batch_us, step_us=WORK)) > 1.02 * WORK
    truth = enough / mean_step(today)
    # the loader of this test takes nothing of the host's processor
    slowed = 1 + (LOADED["expected"] - 1) * min(1 / truth - 1, 1)
    predicted = first.predicted_step_ns / known["step_ns"]
    assert 0.98 * truth < predicted < 1.02 * truth * slowed
    low, high = first.prediction_low_ns, first.prediction_high_ns
    assert low / known["step_ns"] < truth < high / known["step_ns"]


def test_a_worker_that_ends_no_batch_in_the_capture_is_a_worker(tmp_path: Path) -> None:
    build = captured(loading(workers=4, batch_us=60_000.0, step_us=WORK)[100:112])
    ranges = build.rows["range"]
    fetches = [row for row in ranges if row["name"] == "DataLoader fetch"]
    one = fetches[0]["process_id"]
    build.rows["range"] = [r for r in ranges if r not in fetches or r["process_id"] != one]
    first = diagnosed(build, tmp_path).findings[0]
    assert figures(first)["loader_workers"] == 4
    assert "; 4 workers take " in first.message


@pytest.mark.parametrize(("first", "last"), [(101, 108), (101, 109)])
@pytest.mark.parametrize("fetches", [True, False])
def test_a_few_steps_of_two_workers_hold_more_or_less_of_the_waits(
    tmp_path: Path, first: int, last: int, *, fetches: bool
) -> None:
    """Both bring a batch every 60 ms: three waits for them are in seven steps, or four."""
    today = loading(workers=2, batch_us=60_000.0, step_us=WORK)
    found = diagnosed(captured(today[first:last], fetches=fetches), tmp_path)
    step = figures(found.findings[0])["step_ns"]
    assert abs(step / 30e6 - 1) > 0.05
    truth = WORK / 30_000
    slowed = LOADED["expected"]
    assert 0.95 * truth < found.findings[0].predicted_step_ns / step < 1.05 * truth * slowed


def test_one_thread_that_pins_sets_the_pace_in_the_end(tmp_path: Path) -> None:
    """60 MB a batch: 12 ms at 5 GB/s, while the step has work for 6 ms."""
    size, pin_us = 60_000_000, 12_000.0
    today = loading(workers=2, batch_us=80_000.0, step_us=WORK, pin_us=pin_us)
    build = captured(today[100:124], size=size)
    for row in build.rows["gpu_op"]:
        row["name"] = f"void at::native::{row['name']}"
    first = diagnosed(build, tmp_path).findings[0]
    enough = mean_step(loading(workers=20, batch_us=80_000.0, step_us=WORK, pin_us=pin_us))
    truth = enough / mean_step(today)
    step = figures(first)["step_ns"]
    assert first.predicted_step_ns / step == pytest.approx(truth, rel=0.03)
    assert "one thread that copies 60.0 MB per step into pinned memory" in first.message
    assert any("uint8" in text for text in first.recommendations)
    assert not any("off the training thread" in text for text in first.recommendations)


@pytest.mark.parametrize(("waits", "lacks"), [(0.5, True), (0.1, False)])
def test_workers_that_find_no_cpu_free(tmp_path: Path, waits: float, *, lacks: bool) -> None:
    """Each worker's eight threads want a CPU all the time, and get none for a part of it."""
    today = loading(workers=2, batch_us=33_000.0, step_us=WORK)
    build = captured(today[100:124])
    for row in build.rows["gpu_op"]:
        row["name"] = f"void at::native::{row['name']}"
    length = round((today[123].given - today[100].asked + WORK) * 1e3)
    turn = round((1 - waits) * 1e6)
    build.rows["thread_state"] = [
        {"process_id": p, "thread_id": p + t, "start_ns": at + a, "end_ns": at + b, "state": state}
        for p in (200, 201)
        for t in range(0, 80, 10)
        for at in range(0, length, 1_000_000)
        for a, b, state in ((0, turn, "running"), (turn, 1_000_000, "runnable"))
    ]
    first = diagnosed(build, tmp_path).findings[0]
    known = figures(first)
    assert first.cause == "input_starvation"
    assert ("worker_cpus" in known) == lacks
    assert ("OMP_NUM_THREADS=1" in first.recommendations[0]) == lacks
    assert (first.prediction_high_ns == known["step_ns"]) == lacks
    assert any("num_workers" in text for text in first.recommendations) != lacks
    if lacks:
        assert known["worker_cpus"] == 8
        assert known["workers_without_cpu"] == pytest.approx(0.5, abs=0.02)
        assert "find none free for 50 % of the time" in first.message
        assert "would keep up" not in first.message
        # between all of the gain and nothing
        assert WORK * 1e3 < first.prediction_low_ns * 2 < known["step_ns"]
        assert first.predicted_step_ns == pytest.approx(
            (WORK * 1e3 * known["step_ns"]) ** 0.5, rel=0.02
        )


def test_batches_that_were_ready_before_the_capture(tmp_path: Path) -> None:
    """Recording begins after a pause in which the workers prepared all that they may."""
    workers, batch_us = 4, 60_000.0
    paused = loading(workers=workers, batch_us=batch_us, step_us=WORK, steps=12, pause_us=1e6)
    sustained = mean_step(loading(workers=workers, batch_us=batch_us, step_us=WORK))
    found = diagnosed(captured(paused[1:], fetches=False), tmp_path)
    first = found.findings[0]
    assert first.cause == "input_starvation"
    assert first.at_least
    assert "or less" in diagnosis_markdown(found).split("Fixed: ")[1].split("\n")[0]
    console = Console(record=True, width=200)
    print_diagnosis(found, console)
    assert re.search(r"the step takes about \S+ ms or less \(", console.export_text())
    assert b'"at_least":true' in msgspec.json.encode(found)
    assert "--warmup 20" in (first.next_capture or "")
    # the mean of these steps hides how long they take in the long run
    assert figures(first)["step_ns"] < 0.9 * sustained * 1e3


@pytest.mark.parametrize("fetches", [True, False])
def test_a_stated_number_of_workers_is_the_one_that_is_captured(
    tmp_path: Path, *, fetches: bool
) -> None:
    today = loading(workers=2, batch_us=33_000.0, step_us=WORK)
    trace = captured(today[100:124], fetches=fetches).trace(tmp_path)
    job = Job([trace.folder])
    more = job.whatif(["workers=2:4"])
    assert more.predicted_step_ns < more.measured_step_ns
    with pytest.raises(UsageError, match=r"rank 0 shows .*workers?, not 0; state"):
        job.whatif(["workers=0:4"])
    if fetches:
        with pytest.raises(UsageError, match=r"shows 2 workers, not 4; .*\(workers=4\)"):
            job.whatif(["workers=4:4"])
    else:  # that there are some is known, not how many
        assert job.whatif(["workers=4:4"]).changes


def test_a_range_that_speaks_of_workers_is_no_loader(tmp_path: Path) -> None:
    """``pt_data_worker`` is the name of a thread, and begins it; a range may hold it anywhere."""
    build = captured(loading(workers=2, batch_us=33_000.0, step_us=WORK)[100:124], fetches=False)
    build.rows["thread"] = [{"process_id": 100, "thread_id": 7, "name": "helper"}]
    for row in build.rows["range"]:
        row["name"] = row["name"].replace("_MultiProcessingDataLoaderIter", "Loader")
    build.range(10.0, 20.0, "count pt_data_worker")
    job = Job([build.trace(tmp_path).folder])
    with pytest.raises(UsageError, match=r"how many .*\(nothing in it tells of a loader\)"):
        job.whatif(["workers=4"])
    assert job.whatif(["workers=0:4"]).changes


def test_a_finding_on_a_rank_of_shorter_steps_is_about_the_step_of_the_job(tmp_path: Path) -> None:
    # rank 1 waits for batches every step of 16 ms, and rank 0 computes for 40 ms
    busy = Build()
    for k in range(24):
        at = 40_000.0 * k
        busy.range(at, at + 40_000, "step 1")
        busy.kernel(at + 10, at + 39_990, call=(at + 2, at + 6), name="k0")
    today = loading(workers=2, batch_us=33_000.0, step_us=WORK)
    folders = []
    for rank, build in enumerate((busy, captured(today[100:124]))):
        (tmp_path / f"rank{rank}").mkdir()
        folders.append(build.trace(tmp_path / f"rank{rank}", rank=rank, world_size=2).folder)
    job = Job(folders)
    found = job.diagnose()
    first = found.findings[0]
    assert (first.cause, first.ranks, first.value("step_ns")) == (
        "input_starvation",
        [1],
        40_000_000,
    )
    # rank 0 waits for nobody, so that the job gains nothing: as whatif says
    without = job.whatif(changes_of(free=["input_starvation"]))
    assert first.predicted_step_ns == without.predicted_step_ns == without.measured_step_ns
    assert first.time_ns_per_step == 0
    assert re.search(r"costs [\d.]+ ms of each 40\.0 ms step, of which fixing it", first.message)
    assert unsupported(first.message, first.evidence, first.names) == []
    console = Console(width=2000, file=io.StringIO())
    print_diagnosis(found, console)
    text = cast("io.StringIO", console.file).getvalue()
    assert re.search(r"on rank 1 costs [\d.]+ ms of each 40\.0 ms step; fixing", text)
    assert "steady 0 to 23 on rank 0" in text
    assert "on rank 0, the longest" in text


@pytest.mark.parametrize(("batch_us", "slower"), [(33_000.0, True), (11_000.0, False)])
def test_batches_that_were_ready_do_not_hide_slow_workers(
    tmp_path: Path, batch_us: float, slower: bool
) -> None:
    """Four workers had 24 batches ready when the steps began; a step takes 6 ms."""
    today = loading(workers=4, batch_us=batch_us, step_us=WORK, ahead=6, pause_us=400_000.0)
    steps = today[1:13]
    begin, end = steps[0].asked, steps[-1].given
    build = captured(steps, fetches=False)
    for batch in today:  # those that are made meanwhile are for later steps
        if begin <= batch.made[0] and batch.made[1] <= end:
            build.range(*(at - begin for at in batch.made), "DataLoader fetch")
            build.rows["range"][-1]["process_id"] = 200 + batch.worker
            build.rows["range"][-1]["end_missing"] = False
    found = diagnosed(build, tmp_path)
    assert "input_starvation" not in {finding.cause for finding in found.findings}
    said = [text for text in found.warnings if "the run as a whole waits" in text]
    assert len(said) == slower
    if slower:
        assert "4 workers take 33.0 ms for a batch each, so that one comes every 8.2 ms" in said[0]
        assert mean_step(today) == pytest.approx(batch_us / 4, rel=0.02)
