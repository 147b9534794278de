"""Tables and steps of a job that another process explains are those of one explained here."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.support.build import Build

from stepscope.prepared import STEPS, TABLES, Prepared, store
from stepscope.server.background import DIAGNOSIS, Process
from stepscope.server.panels import PanelDesk
from stepscope.server.steps import StepDesk
from stepscope.session import Session, bundled_capture, open_cache
from stepscope.session.shelves import Shelves
from stepscope.trace.arrays import ArrayFile
from stepscope.trace.errors import InputError, StorageError, UsageError

BYS = ("kernel", "operator", "inner", "range", "module", "source", "family")


@pytest.fixture(scope="module")
def here() -> Session:
    return Session([bundled_capture()])


def elsewhere(*paths: Path) -> Session:
    """A session that must not explain anything."""
    session = Session(paths)
    session.explains_elsewhere = True
    return session


def stored(*paths: Path) -> list[str]:
    """Store what the session of another process would, and give the names."""
    names: list[str] = []
    store(Session(paths), names.append)
    return names


def file_of(session: Session, name: str) -> Path:
    return Shelves(session.job.members, open_cache(), session.paths).place(name)


def test_tables_and_steps_are_the_same(here: Session) -> None:
    assert set(stored(bundled_capture())) == {STEPS, TABLES}
    there, lock = elsewhere(bundled_capture()), threading.Lock()
    desks = [
        (PanelDesk(s, lock, Prepared(s)), StepDesk(s, lock, Prepared(s))) for s in (here, there)
    ]
    window = {"begin": "50000000", "end": "130000000"}
    for query in ({}, window):
        for by in BYS:
            told = [panels.table({"by": by, **query}) for panels, _ in desks]
            assert told[0] == told[1]
            assert len(told[0]) > 300
        for group in "0", "3":
            asked = {"by": "kernel", "group": group, **query}
            assert desks[0][0].instances(asked) == desks[1][0].instances(asked)
    assert desks[0][0].flame({}) == desks[1][0].flame({})
    grid = {"first": "0", "count": "9", "begin": "0", "bucket": "65536", "columns": "300"}
    for align in ("start", "kernel", "range:0", "range:1"):
        assert desks[0][1].steps({"align": align}) == desks[1][1].steps({"align": align})
        for colour in ("kind", "family", "phase"):
            asked = {**grid, "align": align, "colour": colour, "sort": "duration", "phases": "1"}
            assert desks[0][1].grid(asked) == desks[1][1].grid(asked)
    for wrong in ({"align": "range:99"}, {"align": "middle"}, {"device": "1"}):
        with pytest.raises(UsageError):
            desks[1][1].steps(wrong)
    assert not there.is_explained


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
    there, here, lock = elsewhere(*paths), Session(paths), threading.Lock()
    there.store_timeline(lambda share: None)
    assert there.timeline.offsets_ns == here.timeline.offsets_ns
    for device in ("0", "1"):
        asked = {"device": device}
        one, other = (StepDesk(s, lock, Prepared(s)).steps(asked) for s in (here, there))
        assert one == other
    one, other = (PanelDesk(s, lock, Prepared(s)).table({}) for s in (here, there))
    assert one == other


def test_what_is_damaged_or_of_another_version_is_made_again() -> None:
    path = bundled_capture()
    stored(path)
    session = elsewhere(path)
    for name in (STEPS, TABLES):
        file = file_of(session, name)
        good = file.read_bytes()
        file.write_bytes(good[:-9])
        desk = PanelDesk(session, threading.Lock(), Prepared(session))
        steps = StepDesk(session, threading.Lock(), Prepared(session))
        with pytest.raises(StorageError, match="start stepscope ui again"):
            desk.table({}) if name == TABLES else steps.steps({})
        stored(path)
        assert ArrayFile(file).verify()
        assert file.read_bytes() == good
        middle = len(good) // 3
        file.write_bytes(good[:middle] + bytes([good[middle] ^ 255]) + good[middle + 1 :])
        assert not session.timeline_is_whole()
        assert not file.exists()
    stored(path)


def test_a_question_waits_for_its_file_only() -> None:
    path = bundled_capture()
    session = elsewhere(path)
    for name in (STEPS, TABLES):
        if _kept(session, name):
            file_of(session, name).unlink()
    process = Process(session, DIAGNOSIS)
    try:
        desk = StepDesk(session, threading.Lock(), Prepared(session), process)
        assert b'"found":' in desk.steps({})
        assert ArrayFile(file_of(session, STEPS)).verify()
        process.wait(TABLES)
        assert ArrayFile(file_of(session, TABLES)).verify()
        process.wait()
        assert process.doing == ""
        assert session.diagnosed() is not None
    finally:
        process.stop()


def _kept(session: Session, name: str) -> bool:
    from stepscope.trace.arrays import NotWholeError

    try:
        return file_of(session, name).exists()
    except NotWholeError:
        return False


def test_a_job_that_cannot_be_explained_says_so(tmp_path: Path) -> None:
    build = Build()
    build.range(0, 900, "step_0")
    path = build.trace(tmp_path).folder
    session = elsewhere(path)
    process = Process(session, DIAGNOSIS)
    desk = PanelDesk(session, threading.Lock(), Prepared(session), process)
    with pytest.raises(InputError, match="holds no GPU work"):
        desk.table({})
    process.stop()
