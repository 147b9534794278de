"""Captures and caches that change under the reader; interrupts; several processes at once."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import pytest
from tests.cli.command import (
    LIMIT_S,
    Stepscope,
    entries,
    forks,
    is_one_line,
    left_over,
    python,
    snapshot,
)

from stepscope.trace.store import read_meta, write_meta

IMPORT_HOOK = """
import os, sys, time
import stepscope.trace.store as store
change, capture = sys.argv.pop(1), sys.argv.pop(1)
real = store.TraceWriter.close
def close(self):
    rows = real(self)
    if change == "append":
        with open(capture, "ab") as stream:
            stream.write(b" ")
    elif change == "replace":
        data = open(capture, "rb").read()
        os.replace(capture, capture + ".old")
        open(capture, "wb").write(data)
    elif change == "remove":
        os.remove(capture)
    elif change == "touch":
        os.utime(capture, (1, 1))
    elif change == "wait":
        open(capture, "w").close()
        time.sleep(60)
    return rows
store.TraceWriter.close = close
from stepscope.cli.main import main
main()
"""


def hooked(change: str, mark: Path, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", IMPORT_HOOK, change, str(mark), *map(str, arguments)]


@pytest.mark.parametrize("change", ["append", "replace", "remove", "touch"])
@pytest.mark.parametrize("form", ["sqlite", "kineto"])
def test_a_capture_that_changes_while_it_is_read(
    change: str,
    form: str,
    tmp_path: Path,
    stepscope: Stepscope,
    sqlite_capture: Path,
    kineto_capture: Path,
) -> None:
    original = sqlite_capture if form == "sqlite" else kineto_capture
    path = tmp_path / original.name
    shutil.copy(original, path)
    done = stepscope.ends(change, path, "diagnose", path, program=IMPORT_HOOK)
    assert (done.returncode, done.stdout) == (2, "")
    assert "changed while it was read" in is_one_line(done.stderr)
    assert left_over(stepscope.cache) == []


def test_a_capture_that_still_grows(
    tmp_path: Path, stepscope: Stepscope, kineto_capture: Path
) -> None:
    """A writer that goes on all the time: never a part passed off as the whole."""
    text = gzip.decompress(kineto_capture.read_bytes())
    path = tmp_path / "growing.json"
    path.write_bytes(text[: len(text) // 2])
    stop = threading.Event()

    def write() -> None:
        with path.open("ab", buffering=0) as stream:
            for at in range(len(text) // 2, len(text) - 10, 1000):
                if stop.wait(0.001):
                    return
                stream.write(text[at : at + 1000])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        message = stepscope.refuses("diagnose", path)
    finally:
        stop.set()
        writer.join()
    assert "changed while" in message or "middle of the trace" in message


def all_at_once(stepscope: Stepscope, *arguments: str | Path) -> list[str]:
    """What four processes print that run the same command at once."""
    words = [*map(str, arguments)]
    with contextlib.ExitStack() as stack:
        streams = [
            [stack.enter_context(tempfile.TemporaryFile()) for _ in ("out", "err")]
            for _ in range(4)
        ]
        processes = [
            forks().start(words, stepscope.environment(), out.fileno(), err.fileno())
            for out, err in streams
        ]
        codes = [process.wait() for process in processes]
        for stream in itertools.chain(*streams):
            stream.seek(0)
        outputs = [(out.read().decode(), err.read().decode()) for out, err in streams]
    assert codes == [0] * 4, outputs
    return [out for out, _ in outputs]


def test_two_processes_import_at_once(stepscope: Stepscope, kineto_capture: Path) -> None:
    outputs = all_at_once(stepscope, "diagnose", kineto_capture, "--format", "json")
    assert len(set(outputs)) == 1
    assert left_over(stepscope.cache) == [path.name for path in entries(stepscope.cache)]
    assert len(entries(stepscope.cache)) == 1


def test_importing_again_at_once(stepscope: Stepscope, sqlite_capture: Path) -> None:
    """Entries are replaced under each other's feet."""
    outputs = all_at_once(stepscope, "diagnose", sqlite_capture, "--again", "--format", "json")
    assert len(set(outputs)) == 1
    assert left_over(stepscope.cache) == [entries(stepscope.cache)[0].name]


# ---- a cache that is damaged ---------------------------------------------------------------------


def truncate_table(entry: Path) -> None:
    table = entry / "gpu_op.parquet"
    table.write_bytes(table.read_bytes()[: table.stat().st_size // 2])


def empty_table(entry: Path) -> None:
    (entry / "gpu_op.parquet").write_bytes(b"")


def remove_table(entry: Path) -> None:
    (entry / "gpu_op.parquet").unlink()


def damage_meta(entry: Path) -> None:
    (entry / "meta.json").write_bytes(b'{"schema_version": 1, "rows": ')


def other_meta(entry: Path) -> None:
    (entry / "meta.json").write_bytes(b"[]")


def newer_meta(entry: Path) -> None:
    meta = msgspec.json.decode((entry / "meta.json").read_bytes())
    meta["schema_version"] = 99
    (entry / "meta.json").write_bytes(msgspec.json.encode(meta))


def remove_meta(entry: Path) -> None:
    (entry / "meta.json").unlink()


def remove_lock(entry: Path) -> None:
    (entry / "lock").unlink()


def remove_all(entry: Path) -> None:
    for file in entry.iterdir():
        file.unlink()


def make_a_file(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("not a folder")


DAMAGES = [
    truncate_table,
    empty_table,
    remove_table,
    damage_meta,
    other_meta,
    newer_meta,
    remove_meta,
    remove_lock,
    remove_all,
]


@pytest.fixture(scope="module")
def diagnosed(sqlite_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A cache that holds the small export and its diagnosis, and what was said of it."""
    command = Stepscope(tmp_path_factory.mktemp("diagnosed") / "cache")
    return command.cache, command("diagnose", sqlite_capture, "--format", "json").stdout


@pytest.fixture
def filled(stepscope: Stepscope, diagnosed: tuple[Path, str]) -> Stepscope:
    """The command line with a copy of that cache."""
    shutil.copytree(diagnosed[0], stepscope.cache)
    return stepscope


@pytest.fixture(scope="module")
def mended(diagnosed: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Stepscope:
    """The command line with a copy of that cache, which each test leaves whole again."""
    command = Stepscope(tmp_path_factory.mktemp("mended") / "cache")
    shutil.copytree(diagnosed[0], command.cache)
    return command


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_made_again(
    damage, mended: Stepscope, diagnosed: tuple[Path, str], sqlite_capture: Path
) -> None:
    stepscope, (_, first) = mended, diagnosed
    assert stepscope("diagnose", sqlite_capture, "--format", "json").stdout == first
    (entry,) = entries(stepscope.cache)
    damage(entry)
    stepscope("cache")
    assert stepscope("diagnose", sqlite_capture, "--format", "json").stdout == first
    assert left_over(stepscope.cache) == [entry.name]


def test_an_entry_that_is_no_folder(stepscope: Stepscope, sqlite_capture: Path) -> None:
    stepscope("info", sqlite_capture)
    (entry,) = entries(stepscope.cache)
    make_a_file(entry)
    done = stepscope("info", sqlite_capture, expect=2)
    assert str(entry) in is_one_line(done.stderr)


@pytest.mark.parametrize("memo", [b"", b"{", b"[1]", b'{"a": 1}', b"\xff\xfe", b'{"\xff": "x"}'])
def test_a_damaged_memo(memo: bytes, stepscope: Stepscope, sqlite_capture: Path) -> None:
    stepscope.cache.mkdir()
    (stepscope.cache / "digests.json").write_bytes(memo)
    stepscope("info", sqlite_capture)
    stepscope("info", sqlite_capture)
    assert len(entries(stepscope.cache)) == 1


@pytest.mark.parametrize("damage", DAMAGES[:-1])
def test_a_damaged_trace_folder(
    damage, tmp_path: Path, filled: Stepscope, diagnosed: tuple[Path, str]
) -> None:
    """A Stepscope trace named directly: nothing can be made again, so it is refused."""
    stepscope, whole = filled, msgspec.json.decode(diagnosed[1])
    (entry,) = entries(stepscope.cache)
    folder = tmp_path / "mine.stepscope"
    shutil.copytree(entry, folder)
    assert whole["verdict"] == "input_starvation"
    damage(folder)
    before = snapshot(folder)
    if damage is remove_lock:
        assert stepscope.json("diagnose", folder)["findings"] == whole["findings"]
    else:
        message = is_one_line(stepscope("diagnose", folder, expect=2).stderr)
        assert str(folder) in message
        done = stepscope("query", folder, "SELECT count(*) FROM gpu_op", expect=2)
        assert done.stdout == ""
    assert snapshot(folder) == before


def test_rows_that_are_missing_are_noticed(
    tmp_path: Path, stepscope: Stepscope, sqlite_capture: Path
) -> None:
    import pyarrow.parquet as pq

    stepscope("info", sqlite_capture)
    (entry,) = entries(stepscope.cache)
    folder = tmp_path / "mine.stepscope"
    shutil.copytree(entry, folder)
    file = folder / "gpu_op.parquet"
    pq.write_table(pq.read_table(file).slice(5), file)
    for summary in ("gpu_op.parquet is damaged", "rows"):
        for more in (["diagnose", folder], ["query", folder, "SELECT count(*) FROM gpu_op"]):
            done = stepscope(*more, expect=2)
            assert summary in is_one_line(done.stderr)
            assert done.stdout == ""
        write_meta(folder, read_meta(folder))  # as if it had been written so


REMOVED_WHILE_READ = """
import shutil, sys
import stepscope.api.job as job
from pathlib import Path
cache = Path(sys.argv.pop(1))
real = job.Job.__init__
def opened(self, *a, **k):
    real(self, *a, **k)
    for entry in cache.glob("*.stepscope"):
        shutil.rmtree(entry)
job.Job.__init__ = opened
from stepscope.cli.main import main
main()
"""


@pytest.mark.parametrize("command", ["diagnose", "steps", "query"])
def test_an_entry_deleted_while_it_is_read(
    command: str, stepscope: Stepscope, sqlite_capture: Path
) -> None:
    """It is made again, and read on."""
    more = ["SELECT count(*) FROM gpu_op"] if command == "query" else []
    whole = stepscope(command, sqlite_capture, *more)
    done = stepscope.ends(
        stepscope.cache, command, sqlite_capture, *more, program=REMOVED_WHILE_READ
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, whole.stdout, whole.stderr)
    assert left_over(stepscope.cache) == [entries(stepscope.cache)[0].name]


def test_clear_spares_what_is_being_written(
    tmp_path: Path, stepscope: Stepscope, sqlite_capture: Path
) -> None:
    mark = tmp_path / "mark"
    process = subprocess.Popen(
        hooked("wait", mark, "info", sqlite_capture),
        env=stepscope.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(mark, process)
    (temporary,) = stepscope.cache.glob("tmp-*")
    stepscope("cache", "clear")
    assert (temporary / "gpu_op.parquet").exists()
    process.kill()
    process.communicate(timeout=LIMIT_S)
    stepscope("cache", "clear")  # nobody writes it any more
    assert left_over(stepscope.cache) == []


def wait_for(mark: Path, process: subprocess.Popen[str]) -> None:
    ends = time.monotonic() + LIMIT_S
    while not mark.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends
        time.sleep(0.01)


def interrupted(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, err
    assert out == ""
    return is_one_line(err)


def test_an_interrupt_before_the_end_of_an_import(
    tmp_path: Path, stepscope: Stepscope, sqlite_capture: Path
) -> None:
    mark = tmp_path / "mark"
    process = subprocess.Popen(
        hooked("wait", mark, "diagnose", sqlite_capture),
        env=stepscope.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(mark, process)
    assert interrupted(process) == "interrupted"
    assert left_over(stepscope.cache) == []


@pytest.mark.parametrize("form", ["sqlite", "json"])
@pytest.mark.parametrize("delay_ms", [0, 30, 80])
def test_an_interrupt_in_the_middle(
    form: str,
    delay_ms: int,
    tmp_path: Path,
    stepscope: Stepscope,
    sqlite_capture: Path,
    kineto_capture: Path,
) -> None:
    """However far the import has come, it ends at once and cleanly."""
    path = sqlite_capture
    if form == "json":
        text = gzip.decompress(kineto_capture.read_bytes())
        end = text.rindex(b"\n  ],")
        first = text.index(b'"traceEvents": [') + len(b'"traceEvents": [')
        path = tmp_path / "long.json"
        path.write_bytes(text[:end] + (b"," + text[first:end]) * 4 + text[end:])
    process = subprocess.Popen(
        python("diagnose", str(path), "--again"),
        env=stepscope.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(stepscope.cache.glob("tmp-*")) and process.poll() is None:
        time.sleep(0.001)
    time.sleep(delay_ms / 1000)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode in (0, 130), err
    if process.returncode:
        assert is_one_line(err) == "interrupted"
        assert out == ""
    assert list(stepscope.cache.glob("tmp-*")) == []


@pytest.mark.parametrize(
    "endless",
    [
        "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b",
        # one piece of work, in which DuckDB does not look for an interrupt
        "SELECT levenshtein(repeat('a', 10000000), repeat('b', 10000000))",
    ],
)
def test_an_interrupt_during_a_query(
    endless: str, stepscope: Stepscope, sqlite_capture: Path
) -> None:
    stepscope("info", sqlite_capture)
    process = subprocess.Popen(
        python("query", str(sqlite_capture), endless),
        env=stepscope.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # one that comes while modules are loaded may get lost in them, so it is repeated
        for _ in range(20):
            time.sleep(1.0)
            process.send_signal(signal.SIGINT)
            if process.poll() is not None:
                break
        out, err = process.communicate(timeout=10)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert is_one_line(err) == "interrupted"


def test_the_bound_of_the_cache(
    tmp_path: Path, stepscope: Stepscope, sqlite_capture: Path, kineto_capture: Path
) -> None:
    stepscope("info", sqlite_capture)
    stepscope("info", kineto_capture, STEPSCOPE_CACHE_MAX_BYTES="1")
    document = stepscope.json("cache", "show")
    assert [entry["source"] for entry in document["entries"]] == ["kineto"]
    assert document["bytes"] == sum(
        file.stat().st_size for entry in entries(stepscope.cache) for file in entry.iterdir()
    )


def test_the_input_may_be_read_only(
    tmp_path: Path, stepscope: Stepscope, sqlite_capture: Path
) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    path = folder / "capture.sqlite"
    shutil.copy(sqlite_capture, path)
    path.chmod(0o400)
    folder.chmod(0o500)
    before = snapshot(folder)
    try:
        stepscope("diagnose", path)
        assert snapshot(folder) == before
    finally:
        folder.chmod(0o700)


def test_the_real_home_is_not_needed(
    tmp_path: Path, stepscope: Stepscope, sqlite_capture: Path
) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STEPSCOPE_")}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        python("info", str(sqlite_capture)),
        capture_output=True,
        env=environment,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0
    where = tmp_path / ("xdg/stepscope" if sys.platform != "darwin" else "home/Library/Caches")
    assert where.is_dir()


@pytest.mark.parametrize("name", ["with [1] and *", "a=b", "it's; --", "näme ☂"])
def test_odd_names_of_the_cache_folder(name: str, tmp_path: Path, sqlite_capture: Path) -> None:
    """SQL engines take some characters of a path for a pattern or a partition."""
    command = Stepscope(tmp_path / name / "cache")
    assert command.json("diagnose", sqlite_capture)["verdict"] == "input_starvation"
    found = command.json("query", sqlite_capture, "SELECT * FROM device")
    assert "a" not in found["columns"]
    assert len(found["rows"]) == 1
