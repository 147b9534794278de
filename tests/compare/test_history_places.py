"""Wherever a history is kept: the same answers, two writers, writers that are killed, copies."""

from __future__ import annotations

import gzip
import itertools
import multiprocessing
import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.compare.profiles import profile
from tests.support.captures import DATA, unpack

from stepscope.api.history import UNSENT, history_add, history_copy, history_entries, history_plot
from stepscope.compare.history import History, record_of
from stepscope.compare.history import sqlite as sqlite_module
from stepscope.compare.history.folder import ABANDONED_S, FolderStore
from stepscope.compare.history.remote import shown
from stepscope.compare.history.sqlite import SqliteStore
from stepscope.compare.history.store import opened
from stepscope.compare.profile import Profile
from stepscope.trace.errors import InputError, StorageError, UsageError

GOLDEN = DATA.parent / "history-1.sqlite.gz"
KINDS = ("sqlite", "folder", "memory", "postgres")
NUMBERS = itertools.count()


@pytest.fixture
def place_of(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """A function from a kind of place to a new place of that kind."""

    def make(kind: str) -> str:
        number = next(NUMBERS)
        if kind == "sqlite":
            return str(tmp_path / f"h{number}.sqlite")
        if kind == "folder":
            return f"{tmp_path}/h{number}/"
        if kind == "memory":
            pytest.importorskip("fsspec")
            return f"memory://team{number}/history"
        url: str = request.getfixturevalue("server").database()
        return url

    return make


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, place_of: Callable[[str], str]) -> str:
    return place_of(request.param)


def run(ms: float, **more: object) -> Profile:
    return profile([round(ms * 1e6)] * 6, **more)  # type: ignore[arg-type]


def test_what_was_added_comes_back(place: str) -> None:
    evil = "a'; DROP TABLE entry; --\x00%s \udcff é"
    with History(place, create=True) as history:
        assert history.entries() == []
        first = history.add(run(10), name="gpt", revision="abc", label=evil)
        second = history.add(run(11, figures={"kernels_per_step": 7.0}), name="cnn")
        third = history.add(run(12), name="gpt")
    assert first.id < second.id < third.id
    with History(place) as history:
        assert history.entries() == [first, second, third]
        assert history.entries("gpt") == [first, third]
        assert first.label.startswith("a'; DROP TABLE entry; --%s ")
        assert second.figures["kernels_per_step"] == 7
        assert history.profile(second.id).step_ns == 11e6
        with pytest.raises(UsageError, match="has no entry 99"):
            history.profile(99)
        assert history.plot("gpt", "step_ms").name == "gpt"


def test_the_latest_of_each_name_are_kept(place: str) -> None:
    with History(place, create=True) as history:
        for ms in range(5):
            history.add(run(10 + ms), name="a")
            history.add(run(20 + ms), name="b")
        assert history.keep(3, "a") == 2
        assert history.keep(2) == 1 + 3
        assert [e.figures["step_ms"] for e in history.entries("a")] == [13, 14]
        assert [e.figures["step_ms"] for e in history.entries("b")] == [23, 24]
        assert history.keep(2) == 0


def test_a_run_that_is_written_twice_is_there_once(place: str) -> None:
    with History(place, create=True) as history:
        record = record_of(run(10), name="gpt")
        assert history.store.write(record) == history.store.write(record)
        assert len(history.entries()) == 1


@pytest.mark.parametrize(("source", "target"), list(itertools.pairwise((*KINDS, "sqlite"))))
def test_copies_are_whole_and_may_be_repeated(
    source: str, target: str, place_of: Callable[[str], str]
) -> None:
    ours, theirs = place_of(source), place_of(target)
    with History(ours, create=True) as history:
        for ms in (10, 11, 12):
            history.add(run(ms), name="gpt", revision=f"c{ms}", label="x")
    assert history_copy(ours, theirs) == (3, 3)
    assert history_copy(ours, theirs) == (3, 0)
    copied = history_entries(theirs)
    assert [(e.added_ns, e.name, e.revision, e.label, e.figures) for e in copied] == [
        (e.added_ns, e.name, e.revision, e.label, e.figures) for e in history_entries(ours)
    ]
    with History(theirs) as history:
        assert history.profile(copied[1].id).step_ns == 11e6


# --- several writers -----------------------------------------------------------------------------


def add_many(place: str, name: str, count: int) -> None:
    with History(place, create=True) as history:
        for number in range(count):
            history.add(run(10 + number), name=name)


@pytest.mark.parametrize("kind", ["sqlite", "folder", "postgres"])
def test_two_writers_lose_nothing(kind: str, place_of: Callable[[str], str]) -> None:
    place = place_of(kind)  # nobody has made it yet: both try
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=add_many, args=(place, name, 20)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    for name in "ab":
        found = [e.figures["step_ms"] for e in history_entries(place, name)]
        assert found == [10 + number for number in range(20)]


@pytest.mark.parametrize("kind", ["sqlite", "folder", "postgres"])
def test_a_writer_that_is_killed_leaves_whole_entries(
    kind: str, place_of: Callable[[str], str]
) -> None:
    place = place_of(kind)
    add_many(place, "a", 1)
    context = multiprocessing.get_context("spawn")
    writer = context.Process(target=add_many, args=(place, "b", 100_000))
    writer.start()
    try:
        deadline = time.monotonic() + 60
        while len(history_entries(place)) < 5 and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        assert writer.pid
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(30)
    with History(place) as history:
        entries = history.entries()
        assert len(entries) >= 5
        for entry in entries:
            assert history.profile(entry.id).step_ns / 1e6 == entry.figures["step_ms"]
        history.add(run(12), name="after")
        assert len(history.entries()) == len(entries) + 1


# --- the folder ----------------------------------------------------------------------------------


def test_a_folder_is_plain_parquet(tmp_path: Path) -> None:
    place = f"{tmp_path}/h/"
    with History(f"file://{place}", create=True) as history:
        history.add(run(10), name="gpt")
        history.add(run(11), name="gpt")
    (tmp_path / "h" / "README.txt").write_text("not a run")
    assert pq.read_table(sorted((tmp_path / "h").glob("*.parquet"))).column("name").to_pylist() == [
        "gpt", "gpt",
    ]  # fmt: skip
    assert len(history_entries(str(tmp_path / "h"))) == 2  # a folder is recognised without a slash
    assert [p.name for p in (tmp_path / "h").glob(".*")] == []


def test_two_runs_of_one_microsecond_are_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
    with History(f"{tmp_path}/h/", create=True) as history:
        added = [history.add(run(ms), name="a") for ms in (10, 11, 12)]
        assert len({e.id for e in history.entries()}) == 3
        found = {history.profile(e.id).step_ns / 1e6 for e in history.entries()}
        assert found == {e.figures["step_ms"] for e in added}


def test_an_interrupted_write_is_not_seen_and_goes_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "h"
    with History(f"{folder}/", create=True) as history:
        history.add(run(10), name="a")

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            with pytest.raises(StorageError, match="No space left"):
                history.add(run(11), name="a")
        # what a killed writer leaves: half a file under its first name
        old = time.time_ns() - (ABANDONED_S + 60) * 10**9
        for moment in (old, time.time_ns()):
            (folder / f".{moment:019d}-{'0' * 32}.partial").write_bytes(b"PAR1 half")
        assert len(history.entries()) == 1
        assert history.keep(5) == 0
        assert len(list(folder.glob(".*"))) == 1  # a younger one may still be written


def test_damage_in_a_folder_is_one_sentence(tmp_path: Path) -> None:
    place = f"{tmp_path}/h/"
    with History(place, create=True) as history:
        entry = history.add(run(10), name="a")
    (file,) = (tmp_path / "h").glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"is damaged .*remove it"):
        history_entries(place)
    pq.write_table(pa.table({"x": [1]}), file)
    with pytest.raises(InputError, match="is no run of a history"):
        history_entries(place)
    later = pq.read_table(_write(file, whole)).replace_schema_metadata({"stepscope.history": "9"})
    pq.write_table(later, file)
    with pytest.raises(InputError, match="later Stepscope"):
        history_entries(place)
    _write(file, whole)
    with History(place) as history:
        assert history.profile(entry.id).step_ns == 10e6
    for missing in (f"{tmp_path}/none/", f"{tmp_path}/none.sqlite"):
        with pytest.raises(InputError, match="does not exist"):
            history_entries(missing)


def _write(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


def test_an_object_store_without_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in which a folder is only what its files' names begin with, as S3 has it."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    class Flat(MemoryFileSystem):  # type: ignore[misc]
        protocol = "flat"
        store: ClassVar[dict[str, object]] = {}
        pseudo_dirs: ClassVar[list[str]] = [""]

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            pass

    fsspec.register_implementation("flat", Flat, clobber=True)
    with History("flat://bucket/h", create=True) as history:
        assert history.entries() == []
        history.add(run(10), name="a")
        assert len(history.entries()) == 1
    with pytest.raises(InputError, match="does not exist"):
        history_entries("flat://bucket/none")

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Access\nDenied")

    monkeypatch.setattr(Flat, "mv", refuse)
    with History("flat://bucket/h") as history:
        with pytest.raises(StorageError, match=r"cannot use flat://bucket/h \(Access Denied\)"):
            history.add(run(11), name="a")
        assert len(history.entries()) == 1
        assert len(history.store._files.names()) == 1  # type: ignore[attr-defined]


def test_places_that_cannot_be_reached_are_one_sentence() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(UsageError, match="nonsense://x cannot be reached"):
        opened("nonsense://x", create=True)
    with pytest.raises(StorageError, match=r"cannot use|went away"):
        opened("postgresql://tester@/x?host=/nowhere", create=True)


def test_missing_packages_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for module, place, package in (
        ("fsspec", "s3://bucket/h", "fsspec"), ("psycopg", "postgresql://h/d", "psycopg[binary]"),
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(UsageError, match=re.escape(f"pip install '{package}'")):
            opened(place, create=True)


def test_passwords_are_not_shown() -> None:
    assert shown("postgresql://me:secret@db/x?password=secret") == "postgresql://me@db/x"
    assert shown("s3://key:secret@bucket/h") == "s3://key@bucket/h"
    assert shown("a b.sqlite") == "a b.sqlite"
    assert shown("postgresql://me:se@cret@db") == "postgresql://me@db"
    assert shown("postgresql://[x") == "postgresql://[x"
    pytest.importorskip("psycopg")
    for place in ("postgresql://me:hidden@[x/d", "postgresql://me:hidden@a:b/d"):
        with pytest.raises((UsageError, StorageError)) as caught:
            opened(place, create=True)
        assert "hidden" not in str(caught.value)


# --- upgrades ------------------------------------------------------------------------------------


def test_a_file_of_the_first_layout_is_upgraded(tmp_path: Path) -> None:
    """The file was written when the layout was new; it must be readable for ever."""
    path = tmp_path / "h.sqlite"
    path.write_bytes(gzip.decompress(GOLDEN.read_bytes()))
    with History(path) as history:
        entries = history.entries()
        assert [(e.id, e.revision, e.label) for e in entries] == [
            (n + 1, f"c00{n}", "first layout") for n in range(3)
        ]
        assert history.profile(2).step_ns == 11e6
        assert len({r.key for r in history.store.records()}) == 3
        history.add(run(13), name="gpt")
    assert len(history_plot(str(path), "gpt", "step_ms", added=True).entries) == 4


def test_reading_changes_no_file(tmp_path: Path) -> None:
    """A file of the first layout is read as it is, and copied the same however often."""
    path = tmp_path / "h.sqlite"
    path.write_bytes(gzip.decompress(GOLDEN.read_bytes()))
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert len(history_entries(str(path))) == 3
    history_plot(str(path), "gpt", "step_ms", added=True)
    other = str(tmp_path / "other.sqlite")
    assert [history_copy(str(path), other) for _ in range(2)] == [(3, 3), (3, 0)]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert {found.name for found in tmp_path.iterdir()} == {"h.sqlite", "other.sqlite"}
    with History(path, create=True) as history:  # now it has the layout of today
        keys = [record.key for record in history.store.records()]
    with History(other) as history:
        assert [record.key for record in history.store.records()] == keys


def test_an_upgrade_that_fails_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "h.sqlite"
    path.write_bytes(gzip.decompress(GOLDEN.read_bytes()))
    broken = (*sqlite_module.LAYOUTS, "CREATE TABLE x (a); CREATE TABLE x (a)")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_module, "LAYOUTS", broken)
        with pytest.raises(StorageError):
            SqliteStore(path, create=True)
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'x'").fetchone() == (0,)
    db.close()
    assert len(history_entries(str(path))) == 3


# --- what a remote history does not take ---------------------------------------------------------


def test_a_run_that_cannot_be_sent_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = str(unpack(DATA / "nsys" / "cnn_small.sqlite.xz", tmp_path))
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("psycopg")
    place = "postgresql://tester@/x?host=/nowhere"
    with pytest.raises(StorageError, match="1 of 1 runs are kept in stepscope-history-unsent"):
        list(history_add(place, [capture], name="gpt", revision="abc"))
    (kept,) = history_entries(UNSENT)
    assert (kept.name, kept.revision) == ("gpt", "abc")
    assert history_copy(UNSENT, "later.sqlite") == (1, 1)
    assert isinstance(opened(UNSENT, create=False), FolderStore)
