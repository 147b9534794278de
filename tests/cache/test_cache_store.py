"""The cache: keyed by content, bounded, safe when several processes use it."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.cache.store import Cache, default_folder, limit_bytes
from stepscope.trace.errors import InputError, StorageError, UsageError
from stepscope.trace.meta import Meta
from stepscope.trace.store import META_NAME, read_meta, write_meta

OLD = 1_000_000


class Builder:
    """Fills an entry with some bytes, and counts how often it is asked to."""

    def __init__(self, size: int = 1000) -> None:
        self.size = size
        self.calls = 0
        self.digests: list[str] = []

    def __call__(self, folder: Path, digest: str) -> None:
        self.calls += 1
        self.digests.append(digest)
        (folder / "data").write_bytes(bytes(self.size))
        write_meta(folder, Meta(source="nsys", input_name="x", input_digest=digest))


@pytest.fixture
def build() -> Builder:
    return Builder()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 10**9)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    def make_input(name: str, content: str = "") -> Path:
        path = tmp_path / name
        path.write_text(content or name)
        return path

    return make_input


def release(cache: Cache) -> None:
    for handle in cache._held:
        handle.close()
    cache._held.clear()


def names(cache: Cache) -> list[str]:
    return sorted(p.name for p in cache.folder.iterdir() if p.name != "digests.json")


def test_an_entry_is_built_once(cache: Cache, build: Builder, make: Callable[..., Path]) -> None:
    path = make("a")
    entry = cache.get(path, "nsys/1", build)
    assert (entry / META_NAME).exists()
    assert cache.get(path, "nsys/1", build) == entry
    assert Cache(cache.folder, 10**9).get(path, "nsys/1", build) == entry
    assert build.calls == 1


def test_the_key_is_the_content_and_the_importer(
    cache: Cache, build: Builder, make: Callable[..., Path]
) -> None:
    one, same, other = make("a", "x"), make("b", "x"), make("c", "y")
    entry = cache.get(one, "nsys/1", build)
    assert cache.get(same, "nsys/1", build) == entry
    assert cache.get(other, "nsys/1", build) != entry
    assert cache.get(one, "nsys/2", build) != entry
    assert build.calls == 3


def test_the_memo_of_digests_notices_changes(
    cache: Cache, build: Builder, make: Callable[..., Path]
) -> None:
    path = make("a", "one")
    cache.get(path, "nsys/1", build)
    time.sleep(0.01)
    path.write_text("two")  # the same length
    cache.get(path, "nsys/1", build)
    os.utime(path, (OLD, OLD))  # another stamp, the same content
    cache.get(path, "nsys/1", build)
    assert build.calls == 2
    assert len(set(build.digests)) == 2


def test_the_memo_spares_reading(
    cache: Cache, build: Builder, make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make("a")
    cache.get(path, "nsys/1", build)

    def never(*args: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr("hashlib.file_digest", never)
    cache.get(path, "nsys/1", build)


def test_a_folder_of_files_is_one_input(cache: Cache, build: Builder, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_text("1")
    (folder / "sub" / "b").write_text("2")
    first = cache.get(folder, "nsys/1", build)
    assert cache.get(folder, "nsys/1", build) == first
    (folder / "a").rename(folder / "c")  # names count
    assert cache.get(folder, "nsys/1", build) != first


def test_an_input_that_changes_is_refused(cache: Cache, make: Callable[..., Path]) -> None:
    path = make("a")
    good = Builder()

    def build(folder: Path, digest: str) -> None:
        good(folder, digest)
        path.write_text("longer than before")

    with pytest.raises(InputError, match="changed while it was read"):
        cache.get(path, "nsys/1", build)
    assert names(cache) == []


def test_a_change_explains_what_looked_like_damage(cache: Cache, make: Callable[..., Path]) -> None:
    path = make("a")

    def build(folder: Path, digest: str) -> None:
        path.unlink()
        raise InputError("it is truncated")

    with pytest.raises(InputError, match="changed while"):
        cache.get(path, "nsys/1", build)
    assert names(cache) == []


@pytest.mark.parametrize("error", [InputError("no"), ValueError("bug"), KeyboardInterrupt()])
def test_a_failed_build_leaves_nothing(
    error: BaseException, cache: Cache, make: Callable[..., Path]
) -> None:
    def build(folder: Path, digest: str) -> None:
        (folder / "data").write_text("half")
        raise error

    with pytest.raises(type(error)):
        cache.get(make("a"), "nsys/1", build)
    assert names(cache) == []


def aged(cache: Cache, entry: Path, age: int) -> None:
    os.utime(entry / "lock", (OLD - age, OLD - age))
    os.utime(entry, (OLD - age, OLD - age))


def test_the_least_recently_used_go_first(
    cache: Cache, build: Builder, make: Callable[..., Path]
) -> None:
    entries = [cache.get(make(name), "nsys/1", build) for name in "abcd"]
    release(cache)
    for entry, age in zip(entries, (30, 40, 10, 20), strict=True):
        aged(cache, entry, age)
    assert [entry.folder for entry in cache.entries()] == [entries[i] for i in (2, 3, 0, 1)]
    size = cache.entries()[0].bytes
    cache.limit = 2 * size
    cache.shrink()
    assert names(cache) == sorted(entries[i].name for i in (2, 3))


def test_entries_are_looked_at_once_an_eighth_of_what_was_free_is_written(
    cache: Cache, build: Builder, make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.get(make("a"), "nsys/1", build)
    size = cache.entries()[0].bytes
    looked: list[int] = []
    shrink = Cache.shrink

    def looking(self: Cache) -> None:
        looked.append(len(self.entries()))
        shrink(self)

    monkeypatch.setattr(Cache, "shrink", looking)
    cache.limit = 100 * size  # another bound: nothing is known of it
    for name in "bcdefghijklmno":  # of 98 free ones, after b, 12.25 are an eighth: o is beyond
        cache.get(make(name), "nsys/1", build)
    assert looked == [2, 15]
    cache.limit = 13 * size
    cache.get(make("p"), "nsys/1", build)
    assert looked == [2, 15, 16]
    release(cache)
    cache.get(make("q"), "nsys/1", build)
    assert len(cache.entries()) == 13


def test_looking_at_entries_is_no_use_of_them(
    cache: Cache, build: Builder, make: Callable[..., Path]
) -> None:
    entry = cache.get(make("a"), "nsys/1", build)
    release(cache)
    aged(cache, entry, 0)
    os.utime(entry / META_NAME, (OLD, OLD + 10))  # the next reading changes its time of access
    assert cache.entries()[0].used_at == OLD
    assert cache.entries()[0].used_at == OLD
    cache.get(make("a"), "nsys/1", build)
    assert cache.entries()[0].used_at > OLD


def test_held_entries_survive(cache: Cache, build: Builder, make: Callable[..., Path]) -> None:
    held = cache.get(make("a"), "nsys/1", build)
    other = Cache(cache.folder, 1)
    last = other.get(make("b"), "nsys/1", build)
    assert names(cache) == sorted([held.name, last.name])
    assert other.clear() == 0
    release(other)
    assert other.clear() > 0
    assert names(cache) == [held.name]
    release(cache)
    cache.clear()
    assert names(cache) == []
    assert list(cache.folder.iterdir()) == []


def test_the_entry_just_made_survives_any_bound(
    tmp_path: Path, build: Builder, make: Callable[..., Path]
) -> None:
    cache = Cache(tmp_path / "cache", 0)
    for name in "abc":
        entry = cache.get(make(name), "nsys/1", build)
        release(cache)
        assert names(cache) == [entry.name]


def test_what_a_killed_process_left_is_removed(
    cache: Cache, build: Builder, make: Callable[..., Path]
) -> None:
    cache.folder.mkdir()
    for name, locked in (("tmp-dead", True), ("tmp-alive", True), ("tmp-young", False)):
        (cache.folder / name).mkdir()
        (cache.folder / name / "data").write_text("x")
        if locked:
            (cache.folder / name / "lock").touch()
    old = cache.folder / "tmp-file"
    old.write_text("x")
    os.utime(old, (OLD, OLD))
    writing = cache.folder / "tmp-writing"
    writing.write_text("x")
    os.utime(writing, (OLD, OLD))
    with (cache.folder / "tmp-alive" / "lock").open() as handle, writing.open() as file:
        fcntl.flock(handle, fcntl.LOCK_SH)
        fcntl.flock(file, fcntl.LOCK_SH)
        entry = cache.get(make("a"), "nsys/1", build)
        assert names(cache) == sorted([entry.name, "tmp-alive", "tmp-writing", "tmp-young"])


def test_concurrent_builds(cache: Cache, make: Callable[..., Path]) -> None:
    path = make("a")
    meet = threading.Barrier(4)
    builders = [Builder() for _ in range(4)]
    found: list[Path] = []

    def work(builder: Builder) -> None:
        def build(folder: Path, digest: str) -> None:
            meet.wait(20)  # all are building at once
            builder(folder, digest)

        found.append(Cache(cache.folder, 10**9).get(path, "nsys/1", build))

    threads = [threading.Thread(target=work, args=(builder,)) for builder in builders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4
    assert len(set(found)) == 1
    assert names(cache) == [found[0].name]


def test_again_builds_anew(cache: Cache, build: Builder, make: Callable[..., Path]) -> None:
    path = make("a")
    entry = cache.get(path, "nsys/1", build)
    release(cache)
    (entry / "old").touch()
    assert cache.get(path, "nsys/1", build, again=True) == entry
    assert build.calls == 2
    assert not (entry / "old").exists()


def test_again_spares_what_another_reads(
    cache: Cache, build: Builder, make: Callable[..., Path]
) -> None:
    path = make("a")
    entry = cache.get(path, "nsys/1", build)
    (entry / "old").touch()
    assert Cache(cache.folder, 10**9).get(path, "nsys/1", build, again=True) == entry
    assert (entry / "old").exists()


@pytest.mark.parametrize("gone", ["lock", META_NAME])
def test_a_damaged_entry_is_replaced(
    gone: str, cache: Cache, build: Builder, make: Callable[..., Path]
) -> None:
    path = make("a")
    entry = cache.get(path, "nsys/1", build)
    release(cache)
    (entry / gone).unlink()
    assert len(cache.entries()) == 1  # it takes space, so it counts
    assert cache.get(path, "nsys/1", build) == entry
    assert build.calls == 2
    assert (entry / gone).exists()


def test_a_damaged_entry_in_use_is_made_anew_in_place(
    cache: Cache, build: Builder, make: Callable[..., Path]
) -> None:
    path = make("a")
    entry = cache.get(path, "nsys/1", build)
    before = (entry / "lock").stat().st_ino
    (entry / META_NAME).write_text("{")
    (entry / "sync.parquet").touch()
    assert Cache(cache.folder, 10**9).get(path, "nsys/1", build) == entry
    assert read_meta(entry).input_digest == build.digests[0]
    assert (entry / "lock").stat().st_ino == before  # whoever holds it still does
    assert not (entry / "sync.parquet").exists()


def test_an_entry_of_another_input_is_made_anew(
    cache: Cache, build: Builder, make: Callable[..., Path]
) -> None:
    one, other = (cache.get(make(name, name), "nsys/1", build) for name in "ab")
    release(cache)
    shutil.rmtree(one)
    shutil.copytree(other, one)
    cache.get(make("a", "a"), "nsys/1", build)
    assert build.calls == 3
    assert read_meta(one).input_digest != read_meta(other).input_digest


def test_names_that_are_no_unicode(cache: Cache, build: Builder, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        path.write_text("x")
    except OSError:
        pytest.skip("this file system refuses such names")
    entry = cache.get(path, "nsys/1", build)
    assert cache.get(path, "nsys/1", build) == entry
    assert build.calls == 1


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "mine"))
    assert default_folder() == tmp_path / "mine"
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_folder() == tmp_path / "xdg" / "stepscope"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "stepscope"

    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(StorageError, match="STEPSCOPE_CACHE_DIR"):
        default_folder()


def test_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPSCOPE_CACHE_MAX_BYTES", raising=False)
    assert limit_bytes() == 20 * 10**9
    monkeypatch.setenv("STEPSCOPE_CACHE_MAX_BYTES", "0")
    assert limit_bytes() == 0
    for wrong in ("-1", "1.5", "²", "٣", "1_000", "many"):
        monkeypatch.setenv("STEPSCOPE_CACHE_MAX_BYTES", wrong)
        with pytest.raises(UsageError, match="whole number"):
            limit_bytes()


def test_an_input_that_is_gone(cache: Cache, build: Builder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        cache.get(tmp_path / "gone", "nsys/1", build)
    assert build.calls == 0
