"""Tables and steps of a job that another process explains are those of one explained here."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.support.build import Build

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture
from stepscope.api.stored import STEPS, TABLES
from stepscope.cache.arrays import ArrayFile
from stepscope.server.background import DIAGNOSIS, Process
from stepscope.server.panels import PanelHandlers
from stepscope.server.steps import StepHandlers
from stepscope.trace.errors import InputError, StorageError, UsageError

BYS = ("kernel", "operator", "inner", "range", "module", "source", "category")


@pytest.fixture(scope="module")
def here() -> Job:
    return Job([bundled_capture()])


def elsewhere(*paths: Path) -> Job:
    """A job that must not explain anything."""
    job = Job(paths)
    job.views.explains_elsewhere = True
    return job


def stored(*paths: Path) -> list[str]:
    """Store what the job of another process would, and give the names."""
    names: list[str] = []
    Job(paths).views.store_tables_and_steps(names.append)
    return names


def file_of(job: Job, name: str) -> Path:
    path = job.views._stored._beside[0].path(name)
    assert path is not None
    return path


def test_tables_and_steps_are_the_same(here: Job) -> None:
    assert set(stored(bundled_capture())) == {STEPS, TABLES}
    there, lock = elsewhere(bundled_capture()), threading.Lock()
    pairs = [(PanelHandlers(s, lock), StepHandlers(s, lock)) for s in (here, there)]
    window = {"begin": "50000000", "end": "130000000"}
    for query in ({}, window):
        for by in BYS:
            answer = [panels.table({"by": by, **query}) for panels, _ in pairs]
            assert answer[0] == answer[1]
            assert len(answer[0]) > 300
        for group in "0", "3":
            asked = {"by": "kernel", "group": group, **query}
            assert pairs[0][0].instances(asked) == pairs[1][0].instances(asked)
    assert pairs[0][0].flame({}) == pairs[1][0].flame({})
    grid = {"first": "0", "count": "9", "begin": "0", "bucket": "65536", "columns": "300"}
    for align in ("start", "kernel", "range:0", "range:1"):
        assert pairs[0][1].steps({"align": align}) == pairs[1][1].steps({"align": align})
        for colour in ("kind", "category", "phase"):
            asked = {**grid, "align": align, "colour": colour, "sort": "duration", "phases": "1"}
            assert pairs[0][1].grid(asked) == pairs[1][1].grid(asked)
    for wrong in ({"align": "range:99"}, {"align": "middle"}, {"device": "1"}):
        with pytest.raises(UsageError):
            pairs[1][1].steps(wrong)
    assert not there.explained.is_known


def test_ranks_keep_their_clocks(tmp_path: Path) -> None:
    for rank in range(2):
        build = Build()
        for step in range(4):
            at = 1000 * step
            build.range(at, at + 900, f"step_{step}")
            build.kernel(at + 100, at + 500 + 10 * rank, name="gemm", call=(at + 10, at + 20))
        (tmp_path / f"rank{rank}").mkdir()
        build.trace(tmp_path / f"rank{rank}", rank=rank, origin_epoch_ns=1_000_000 + 400 * rank)
    paths = sorted(tmp_path.glob("*/*.stepscope"))
    stored(*paths)
    there, here, lock = elsewhere(*paths), Job(paths), threading.Lock()
    there.views.store_timeline(lambda share: None)
    assert there.timeline.offsets_ns == here.timeline.offsets_ns
    for device in ("0", "1"):
        asked = {"device": device}
        one, other = (StepHandlers(s, lock).steps(asked) for s in (here, there))
        assert one == other
    one, other = (PanelHandlers(s, lock).table({}) for s in (here, there))
    assert one == other


def test_what_is_damaged_or_of_another_version_is_made_again() -> None:
    path = bundled_capture()
    stored(path)
    job = elsewhere(path)
    for name in (STEPS, TABLES):
        file = file_of(job, name)
        good = file.read_bytes()
        file.write_bytes(good[:-9])
        handlers = PanelHandlers(job, threading.Lock())
        steps = StepHandlers(job, threading.Lock())
        with pytest.raises(StorageError, match="start stepscope ui again"):
            handlers.table({}) if name == TABLES else steps.steps({})
        stored(path)
        assert ArrayFile(file, None).verify()
        assert file.read_bytes() == good
        middle = len(good) // 3
        file.write_bytes(good[:middle] + bytes([good[middle] ^ 255]) + good[middle + 1 :])
        assert not job.views.timeline_is_whole()
        assert not file.exists()
    stored(path)


def test_a_question_waits_for_its_file_only() -> None:
    path = bundled_capture()
    job = elsewhere(path)
    for name in (STEPS, TABLES):
        file_of(job, name).unlink(missing_ok=True)
    process = Process(job, DIAGNOSIS)
    try:
        handlers = StepHandlers(job, threading.Lock(), process)
        assert b'"found":' in handlers.steps({})
        assert ArrayFile(file_of(job, STEPS), None).verify()
        process.wait(TABLES)
        assert ArrayFile(file_of(job, TABLES), None).verify()
        process.wait()
        assert process.doing == ""
        assert job.views.diagnosed() is not None
    finally:
        process.stop()


def test_a_job_that_cannot_be_explained_says_so(tmp_path: Path) -> None:
    build = Build()
    build.range(0, 900, "step_0")
    path = build.trace(tmp_path).folder
    job = elsewhere(path)
    process = Process(job, DIAGNOSIS)
    handlers = PanelHandlers(job, threading.Lock(), process)
    with pytest.raises(InputError, match="holds no GPU work"):
        handlers.table({})
    process.stop()
