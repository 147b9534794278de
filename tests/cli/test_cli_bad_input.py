"""Bad input through the real command line: one line, exit 2, nothing left, nothing touched."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard
from tests.cli.command import (
    LIMIT_S,
    Stepscope,
    is_one_line,
    left_over,
    python,
    snapshot,
)
from tests.cli.conftest import changed

from stepscope.cli.main import main
from stepscope.render.text import no_formula

NOBODY = 65534
AS_ROOT = os.geteuid() == 0
CUTS = 12

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)) * 8
KINETO_HEAD = '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": ['


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("steps", "x", "--limit", "many"), "'many' is not a whole number"),
     (("compare", "a", "b", "--run-noise", "some"), "'some' is not a number")],
)  # fmt: skip
def test_what_is_no_number_is_said_without_names_of_types(
    stepscope: Stepscope, arguments: tuple[str, ...], words: str
) -> None:
    assert stepscope.refuses(*arguments).endswith(words)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the input lies, apart from the cache."""
    made = tmp_path / "input"
    made.mkdir()
    return made


@pytest.fixture(scope="session")
def kineto_text(kineto_capture: Path) -> bytes:
    return gzip.decompress(kineto_capture.read_bytes())


@pytest.fixture(scope="session")
def packed(kineto_text: bytes, sqlite_capture: Path) -> dict[str, bytes]:
    """The bytes of one small capture in every form."""
    return {
        "sqlite": sqlite_capture.read_bytes(),
        "json": kineto_text,
        "json.gz": gzip.compress(kineto_text, 1),
        "json.zst": zstandard.compress(kineto_text, 1),
    }


FORMS = ("sqlite", "json", "json.gz", "json.zst")


def database(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


def random_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "text": b"this is the log of a training run\n" * 100,
    "png": PNG,
    "random": random_bytes(5000),
    "zeros": bytes(5000),
    "random behind the SQLite magic": b"SQLite format 3\0" + random_bytes(5000),
    "random behind the gzip magic": b"\x1f\x8b\x08\x00" + random_bytes(5000),
    "random behind the zstd magic": b"\x28\xb5\x2f\xfd" + random_bytes(5000),
    "gzip of text": gzip.compress(b"hello " * 1000),
    "gzip of nothing": gzip.compress(b""),
    "gzip of gzip": gzip.compress(gzip.compress(b"{}")),
    "zstd of nothing": zstandard.compress(b""),
    "a list": b"[]",
    "a list of numbers": b"[1, 2, 3]",
    "a number": b"17",
    "a string": b'"traceEvents"',
    "null": b"null",
    "package.json": json.dumps(
        {"name": "x", "version": "1.0", "dependencies": {"a": "^1"}}
    ).encode(),
    "a Chrome trace without events": b'{"traceEvents": []}',
    "a Chrome trace without events, padded": b'{"traceEvents": [  ], "x": "' + b"y" * 70000 + b'"}',
    "a PyTorch header without events": (KINETO_HEAD + "]}").encode(),
    "traceEvents is no list": b'{"schemaVersion": 1, "traceEvents": {"a": 1}}',
    "traceEvents holds numbers": (KINETO_HEAD + "1, 2]}").encode(),
    "traceEvents holds lists": (KINETO_HEAD + "[], []]}").encode(),
    "only metadata events": (
        KINETO_HEAD + '{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}]}'
    ).encode(),
    "deeply nested": b'{"traceEvents": [' + b'{"args":' * 100_000,
    "deeply nested list": b"[" * 200_000,
    "an unfinished string": (KINETO_HEAD + '{"name": "').encode() + b"a" * 300_000,
    "an integer of many digits": (
        KINETO_HEAD + '{"ph": "X", "cat": "kernel", "name": "k", "ts": ' + "9" * 10_000 + "}]}"
    ).encode(),
    "UTF-16": '{"traceEvents": []}'.encode("utf-16"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_content(name: str, folder: Path, stepscope: Stepscope) -> None:
    path = folder / "capture.json"
    path.write_bytes(CONTENTS[name])
    before = snapshot(folder)
    message = stepscope.refuses("diagnose", path)
    assert str(path) in message
    assert snapshot(folder) == before


@pytest.mark.parametrize("command", ["diagnose", "steps", "info", "query"])
@pytest.mark.parametrize("form", FORMS)
def test_a_cut_capture(
    command: str, form: str, folder: Path, stepscope: Stepscope, packed: dict[str, bytes]
) -> None:
    path = folder / f"capture.{form}"
    path.write_bytes(packed[form][: len(packed[form]) * 2 // 3])
    before = snapshot(folder)
    more = ["SELECT 1"] if command == "query" else []
    message = stepscope.refuses(command, path, *more)
    assert str(path) in message
    assert snapshot(folder) == before


@pytest.mark.parametrize("form", FORMS)
def test_a_capture_cut_anywhere(
    form: str,
    folder: Path,
    packed: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, for speed: the same entry point, many cuts."""
    cache = folder.parent / "cache"
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(cache))
    whole = packed[form].rstrip() if form == "json" else packed[form]
    choose = random.Random(form)
    edges = [1, 15, 16, 17, 99, 100, 101, 4095, 4096, 65536, len(whole) - 1, len(whole) - 4]
    for cut in [*edges, *(choose.randrange(1, len(whole)) for _ in range(CUTS))]:
        path = folder / f"capture.{form}"
        path.write_bytes(whole[:cut])
        before = snapshot(folder)
        monkeypatch.setattr(sys, "argv", ["stepscope", "info", str(path)])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        assert (cut, ended.value.code, output.out) == (cut, 2, "")
        assert str(path) in is_one_line(output.err)
        assert left_over(cache) == []
        assert snapshot(folder) == before


def test_whole_captures_are_read(
    folder: Path, stepscope: Stepscope, packed: dict[str, bytes]
) -> None:
    """What the cuts are cuts of."""
    for form in FORMS:
        path = folder / f"capture.{form}"
        path.write_bytes(packed[form])
    before = snapshot(folder)
    verdicts = {form: stepscope.json("diagnose", folder / f"capture.{form}") for form in FORMS}
    assert {found["verdict"] for found in verdicts.values()} == {"input_starvation"}
    del verdicts["sqlite"]
    accounts = [json.dumps(found["accounting"]) for found in verdicts.values()]
    assert len(set(accounts)) == 1
    assert snapshot(folder) == before


def test_another_database(folder: Path, stepscope: Stepscope) -> None:
    path = database(folder / "history.sqlite", "CREATE TABLE urls (id INTEGER, url TEXT)")
    before = snapshot(folder)
    assert "not a capture" in stepscope.refuses("diagnose", path)
    assert snapshot(folder) == before


def test_an_empty_database(folder: Path, stepscope: Stepscope) -> None:
    path = database(folder / "empty.sqlite", "CREATE TABLE x (y)", "DROP TABLE x", "VACUUM")
    assert str(path) in stepscope.refuses("diagnose", path)


GPU_TABLES = ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "CUDA_EVENT")


def no_gpu_sqlite(capture: Path, target: Path) -> Path:
    return changed(capture, target, *(f"DELETE FROM CUPTI_ACTIVITY_KIND_{t}" for t in GPU_TABLES))


def no_gpu_kineto(text: bytes, target: Path) -> Path:
    document = json.loads(text)
    document["traceEvents"] = [
        event
        for event in document["traceEvents"]
        if not str(event.get("cat", "")).startswith(("kernel", "gpu_"))
    ]
    target.write_text(json.dumps(document))
    return target


@pytest.mark.parametrize("form", ["sqlite", "json"])
def test_no_gpu_work(
    form: str, folder: Path, stepscope: Stepscope, sqlite_capture: Path, kineto_text: bytes
) -> None:
    if form == "sqlite":
        path = no_gpu_sqlite(sqlite_capture, folder / "cpu.sqlite")
    else:
        path = no_gpu_kineto(kineto_text, folder / "cpu.json")
    for command in ("diagnose", "steps"):
        done = stepscope(command, path, expect=2)
        assert done.stdout == ""
        assert "no GPU work" in is_one_line(done.stderr)
    info = stepscope.json("info", path)
    assert "gpu_op" not in info["traces"][0]["meta"]["rows"]
    assert "api_call" in stepscope("info", path).stdout
    assert stepscope.json("query", path, "SELECT count(*) FROM gpu_op")["rows"] == [[0]]


BAD_TIMES = {
    "negative": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -start, end = -start + 5",
    "end before start": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1 WHERE rowid % 2",
    "infinite": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 9e999 WHERE rowid % 2",
    "text": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'NaN' WHERE rowid % 2",
    "huge": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 9223372036854775807 WHERE rowid % 2",
    "null": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = NULL WHERE rowid % 2",
    "all at once": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 5, end = 5",
}


def relaxed(capture: Path, target: Path, statement: str) -> Path:
    """A changed copy whose kernel table accepts any value."""
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    return changed(
        capture,
        target,
        f"CREATE TABLE k AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE k RENAME TO {table}",
        statement,
    )


def survives(stepscope: Stepscope, path: Path) -> dict[str, int]:
    """Diagnose ends well or in one line; returns the counted problems."""
    done = stepscope.ends("diagnose", path, "--format", "json")
    assert done.returncode in (0, 2), done.stderr
    if done.returncode:
        assert done.stdout == ""
        is_one_line(done.stderr)
    else:
        for gpu in json.loads(done.stdout)["accounting"]:
            holds(gpu)
    meta = stepscope.json("info", path)["traces"][0]["meta"]
    return {problem["id"]: problem["count"] for problem in meta["problems"]}


def holds(gpu: dict[str, int]) -> None:
    parts = ("compute", "exposed_communication", "exposed_copy", "memset", "idle")
    assert gpu["wall_ns"] == sum(gpu[f"{part}_ns"] for part in parts)
    assert gpu["idle_ns"] == sum(gpu["idle_by_cause_ns"].values())  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", BAD_TIMES)
def test_bad_times_in_sqlite(
    name: str, folder: Path, stepscope: Stepscope, sqlite_capture: Path
) -> None:
    path = relaxed(sqlite_capture, folder / "times.sqlite", BAD_TIMES[name])
    before = snapshot(folder)
    problems = survives(stepscope, path)
    if name != "all at once":
        counted = {"negative_time", "negative_duration", "bad_value", "not_a_number"}
        assert counted & set(problems)
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    "times",
    [
        [("NaN", "1"), ("Infinity", "1"), ("-Infinity", "1"), ("4413301311172.5", "NaN")],
        [("1e400", "1")],
        [("-4413301311172.5", "1")],
        [("null", "1"), ('"soon"', "1")],
        [("4413301311172.5", "-3")],
        [("4413301311172.5", "1e30")],
    ],
    ids=["no JSON", "infinite", "far away", "no number", "backwards", "too long"],
)
def test_bad_times_in_kineto(
    times: list[tuple[str, str]], folder: Path, stepscope: Stepscope, kineto_text: bytes
) -> None:
    events = "".join(
        '{"ph": "X", "cat": "kernel", "name": "odd", "pid": 0, "tid": 7, '
        f'"ts": {value}, "dur": {duration}, "args": {{"correlation": 1, "stream": 7}}}},\n'
        for value, duration in times
    )
    at = kineto_text.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    path = folder / "times.json"
    path.write_bytes(kineto_text[:at] + events.encode() + kineto_text[at:])
    problems = survives(stepscope, path)
    assert sum(problems.values()) >= len(times)


def test_a_capture_given_twice_is_not_two_ranks(
    sqlite_capture: Path, folder: Path, stepscope: Stepscope
) -> None:
    link = folder / "again.sqlite"
    link.symlink_to(sqlite_capture)
    for same in (sqlite_capture, link):
        message = stepscope.refuses("diagnose", sqlite_capture, same)
        assert f"{same} is given twice" in message


def test_paths_that_lead_nowhere(folder: Path, stepscope: Stepscope) -> None:
    link = folder / "link.sqlite"
    link.symlink_to(folder / "gone.sqlite")
    loop = folder / "loop.sqlite"
    loop.symlink_to(loop)
    assert "does not exist" in stepscope.refuses("diagnose", folder / "nothing.sqlite")
    assert "link" in stepscope.refuses("diagnose", link)
    assert "link" in stepscope.refuses("diagnose", loop)
    assert "too long" in stepscope.refuses("diagnose", folder / ("x" * 300))
    assert "empty" in stepscope.refuses("diagnose", "")
    assert "holds no capture" in stepscope.refuses("diagnose", folder)
    inside = folder / "file"
    inside.write_text("x")
    assert "cannot read" in stepscope.refuses("diagnose", inside / "below.sqlite")


def test_what_is_no_file(folder: Path, stepscope: Stepscope) -> None:
    pipe = folder / "pipe.json"
    os.mkfifo(pipe)
    assert "pipe" in stepscope.refuses("diagnose", pipe)
    for device in ("/dev/null", "/dev/zero"):
        assert "device" in stepscope.refuses("diagnose", device)
    assert "holds no capture" in stepscope.refuses("diagnose", folder)


def test_numbers_out_of_all_range(sqlite_capture: Path, stepscope: Stepscope) -> None:
    huge = "9" * 30
    assert "--rows" in stepscope.refuses("report", sqlite_capture, "--rows", huge)
    assert "--latest" in stepscope.refuses("history", "keep", "--latest", huge)


def test_a_folder_is_no_file_to_write(sqlite_capture: Path, stepscope: Stepscope) -> None:
    folder = sqlite_capture.parent
    output = stepscope.refuses("export", sqlite_capture, "-t", "chrome", "-o", folder, "--force")
    assert "is a folder; name a file" in output


def test_a_program_that_is_not_there(stepscope: Stepscope) -> None:
    output = stepscope.refuses("doctor", "--", "no-such-program")
    assert output == "no-such-program is no program that can be found; check its name"


def test_what_people_read_has_one_name_everywhere(
    sqlite_capture: Path, stepscope: Stepscope
) -> None:
    assert "'yaml' is not one of" in stepscope.refuses("steps", sqlite_capture, "-f", "yaml")
    for command in ("info", "steps"):
        texts = {
            stepscope(command, sqlite_capture, "-f", name).stdout
            for name in ("text", "terminal", "column")
        }
        assert len(texts) == 1


def test_folders_without_captures(folder: Path, stepscope: Stepscope) -> None:
    empty = folder / "empty"
    empty.mkdir()
    assert "holds no capture" in stepscope.refuses("diagnose", empty)
    (folder / "train.log").write_text("loss 1.0")
    (folder / "meta.json").write_text('{"mine": true}')
    assert "holds no capture" in stepscope.refuses("diagnose", folder)


def test_a_folder_of_captures_and_other_files(
    folder: Path, stepscope: Stepscope, sqlite_capture: Path, kineto_capture: Path
) -> None:
    (folder / "rank0.sqlite").write_bytes(sqlite_capture.read_bytes())
    (folder / "rank1.json.gz").write_bytes(kineto_capture.read_bytes())
    (folder / "rank0.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report" + bytes(4000))
    (folder / "train.py").write_text("import torch")
    (folder / "meta.json").write_text('{"mine": true}')
    (folder / "rank2.json").write_bytes(b"")
    (folder / "link.json").symlink_to(folder / "gone")
    (folder / ".hidden.sqlite").write_bytes(b"SQLite format 3\0broken")
    os.mkfifo(folder / "pipe.json")
    (folder / "sub").mkdir()
    before = snapshot(folder)
    info = stepscope.json("info", folder)
    assert [Path(found["path"]).name for found in info["traces"]] == [
        "rank0.sqlite",
        "rank1.json.gz",
    ]
    warning = next(warning for warning in info["warnings"] if "left out" in warning)
    assert "rank2.json" in warning
    assert snapshot(folder) == before


def test_one_damaged_rank_stops_all(
    folder: Path, stepscope: Stepscope, sqlite_capture: Path
) -> None:
    data = sqlite_capture.read_bytes()
    (folder / "rank0.sqlite").write_bytes(data)
    (folder / "rank1.sqlite").write_bytes(data[: len(data) // 2])
    done = stepscope("diagnose", folder, expect=2)
    assert "rank1.sqlite is truncated" in is_one_line(done.stderr)
    assert done.stdout == ""


@pytest.mark.parametrize("name", [b"caf\xe9.sqlite", b"\x1b[31mred.sqlite", b"new\nline.sqlite"])
def test_names_of_files(
    name: bytes, folder: Path, stepscope: Stepscope, sqlite_capture: Path
) -> None:
    path = os.path.join(os.fsencode(folder), name)  # noqa: PTH118 - not valid Unicode
    try:
        Path(os.fsdecode(path)).write_bytes(sqlite_capture.read_bytes())
    except OSError:
        pytest.skip("this file system refuses such names")
    for command in (["diagnose"], ["diagnose", "-f", "json"], ["diagnose", "-f", "markdown"],
                    ["info"], ["info", "-f", "json"]):  # fmt: skip
        assert "\x1b" not in stepscope(*command, os.fsdecode(path)).stdout
    listed = stepscope("cache", "show").stdout
    assert len(listed.split("\n\n")[1].splitlines()) == 3  # head, rule, one capture
    assert "\x1b" not in listed
    Path(os.fsdecode(path)).write_bytes(b"SQLite format 3\0")
    done = subprocess.run(
        [*python("diagnose"), path],
        capture_output=True,
        env=stepscope.environment(),
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 2
    is_one_line(done.stderr.decode("utf-8"))


# ---- rights and space ----------------------------------------------------------------------------

AS_NOBODY = f"""
import importlib, os, pkgutil, sys
import pyarrow.parquet, stepscope
for module in pkgutil.walk_packages(stepscope.__path__, "stepscope."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)  # the user may not be able to read the program
from stepscope.cli.main import main
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
    os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
main()
"""


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users can enter; pytest closes its own to them."""
    with tempfile.TemporaryDirectory(prefix="stepscope-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def as_nobody(shared_folder: Path) -> Callable[..., str]:
    """Runs a command as a user without rights; returns the line it says."""
    cache = shared_folder / "nobodys"
    cache.mkdir()
    cache.chmod(0o777)

    def run(*arguments: str | Path, **env: str) -> str:
        env = {"HOME": "/nonexistent", **env}
        done = Stepscope(cache).ends(*arguments, program=AS_NOBODY, **env)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        return is_one_line(done.stderr)

    return run


def test_without_rights(
    shared_folder: Path, as_nobody: Callable[..., str], sqlite_capture: Path
) -> None:
    folder = shared_folder
    file = folder / "closed.sqlite"
    file.write_bytes(sqlite_capture.read_bytes())
    file.chmod(0)
    shut = folder / "shut"
    shut.mkdir()
    (shut / "a.sqlite").write_bytes(sqlite_capture.read_bytes())
    shut.chmod(0)
    try:
        assert "cannot read" in as_nobody("diagnose", file)
        assert "rights" in as_nobody("diagnose", shut)
        assert "rights" in as_nobody("diagnose", shut / "a.sqlite")
        shut.chmod(0o444)  # the names can be read, the files cannot
        assert "rights" in as_nobody("diagnose", shut)
    finally:
        shut.chmod(0o755)


def test_a_cache_without_rights(
    shared_folder: Path, as_nobody: Callable[..., str], sqlite_capture: Path
) -> None:
    folder = shared_folder
    file = folder / "open.sqlite"
    file.write_bytes(sqlite_capture.read_bytes())
    file.chmod(0o644)
    closed = folder / "cache"
    closed.mkdir(mode=0o555)
    message = as_nobody("diagnose", file, STEPSCOPE_CACHE_DIR=str(closed))
    assert "cannot write below" in message
    assert "STEPSCOPE_CACHE_DIR" in message
    closed.chmod(0)
    assert "cannot write below" in as_nobody("diagnose", file, STEPSCOPE_CACHE_DIR=str(closed))
    assert "cannot write below" in as_nobody(
        "diagnose", file, STEPSCOPE_CACHE_DIR=str(closed / "below")
    )


def test_a_cache_that_is_a_file(folder: Path, stepscope: Stepscope, sqlite_capture: Path) -> None:
    stepscope.cache.write_text("not a folder")
    for where in (stepscope.cache, stepscope.cache / "below"):
        done = stepscope("diagnose", sqlite_capture, expect=2, STEPSCOPE_CACHE_DIR=str(where))
        assert "no folder" in is_one_line(done.stderr)
        assert done.stdout == ""
    assert stepscope.cache.read_text() == "not a folder"
    assert "0 captures" in stepscope("cache").stdout


@pytest.mark.parametrize("value", ["plenty", "-1", "1e9", "20 GB", "²", "٣", "0x10"])
def test_a_senseless_bound(value: str, stepscope: Stepscope, sqlite_capture: Path) -> None:
    message = stepscope.refuses("diagnose", sqlite_capture, STEPSCOPE_CACHE_MAX_BYTES=value)
    assert "whole number" in message


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    point = tmp_path / "tiny"
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(point)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False, timeout=20)
    except OSError:
        pytest.skip("needs the command mount")
    if done.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield point
    subprocess.run(["umount", str(point)], check=True, timeout=20)


def test_a_full_disk(tiny_disk: Path, kineto_capture: Path) -> None:
    cache = tiny_disk / "cache"
    message = Stepscope(cache).refuses("diagnose", kineto_capture)
    assert "disk is full" in message
    assert "STEPSCOPE_CACHE_DIR" in message


FULL = """
import errno, os, sys
import pyarrow.parquet as pq
budget = int(sys.argv.pop(1))
class Full(pq.ParquetWriter):
    def write_batch(self, *a, **k):
        global budget
        budget -= 1
        if budget < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_batch(*a, **k)
    def close(self):
        super().close()
        if budget < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
pq.ParquetWriter = Full
from stepscope.cli.main import main
main()
"""


@pytest.mark.parametrize("budget", [0, 3])
@pytest.mark.parametrize("form", ["sqlite", "kineto"])
def test_a_disk_that_fills_up(
    budget: int, form: str, stepscope: Stepscope, sqlite_capture: Path, kineto_capture: Path
) -> None:
    """Where no small disk can be mounted: the writer itself fails."""
    path = sqlite_capture if form == "sqlite" else kineto_capture
    done = stepscope.ends(str(budget), "diagnose", path, program=FULL)
    assert (done.returncode, done.stdout) == (2, "")
    assert "disk is full" in is_one_line(done.stderr)
    assert left_over(stepscope.cache) == []


# ---- memory, interruption, spreadsheets ----------------------------------------------------------


NO_MEMORY = """
import sys
from stepscope.cli import main as module
import duckdb, pyarrow
kind = sys.argv.pop(1)
def fail():
    if kind == "wrapped":
        try:
            raise MemoryError
        except MemoryError as error:
            raise RuntimeError("a library failed") from error
    raise {
        "python": MemoryError(),
        "arrow": pyarrow.ArrowMemoryError("malloc of size 9 failed"),
        "duckdb": duckdb.OutOfMemoryException("Out of Memory Error: could not allocate"),
        "loader": ImportError("x.so: failed to map segment from shared object"),
        "system": OSError(12, "Cannot allocate memory"),
        "thread": RuntimeError("can't start new thread"),
    }[kind]
module._run = fail
module.main()
"""


@pytest.mark.parametrize(
    "kind", ["python", "arrow", "duckdb", "loader", "system", "thread", "wrapped"]
)
def test_memory_that_is_not_enough(kind: str, stepscope: Stepscope) -> None:
    done = stepscope.ends(kind, program=NO_MEMORY)
    assert (done.returncode, done.stdout) == (2, "")
    assert "memory is not enough" in is_one_line(done.stderr)


INTERRUPTED = """
import os, runpy, signal, sys
class Importing:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Importing())
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[0] = "stepscope"
from stepscope.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["click", "stepscope.cli.main"])
def test_interrupted_while_loading(module: str, stepscope: Stepscope) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module], capture_output=True, text=True,
        env=stepscope.environment(), timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


LOADED = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
Path(sys.argv[1], "slow_library.py").write_text(
    "import os, signal, time\\nos.kill(os.getpid(), signal.SIGINT)\\ntime.sleep(0.2)\\nwhole = True"
)
import stepscope.cli.main as module
def work():
    import slow_library
    print(slow_library.whole, flush=True)
    while True:  # signal.pause() would miss what comes right before it
        time.sleep(0.01)
module._run = work
module.main()
"""


def test_an_interrupt_waits_for_a_module_that_is_loaded(
    tmp_path: Path, stepscope: Stepscope
) -> None:
    done = stepscope.ends(str(tmp_path), program=LOADED)
    assert (done.returncode, done.stdout) == (130, "True\n")
    assert is_one_line(done.stderr) == "interrupted"


def test_nothing_is_printed_before_a_refusal(
    folder: Path, stepscope: Stepscope, sqlite_capture: Path
) -> None:
    (folder / "bad.sql").write_text("SELECT nothing FROM nowhere")
    reports = ("-r", "cuda_gpu_kern_sum", "-r", "bad", "--report-dir", folder)
    done = stepscope("stats", sqlite_capture, *reports, expect=2)
    assert done.stdout == ""
    is_one_line(done.stderr)


FORMULAS = ["=1+1", "+1+1", "-1+cmd|' /C calc'!A0", "@SUM(1)", "\t=1", "\r=1", "--cmd(1)"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_csv_is_a_formula(
    text: str, folder: Path, stepscope: Stepscope, sqlite_capture: Path
) -> None:
    path = folder / "formula.sqlite"
    changed(sqlite_capture, path)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE StringIds SET value = ? WHERE id IN "
            "(SELECT shortName FROM CUPTI_ACTIVITY_KIND_KERNEL UNION "
            "SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL)", (text,)
        )  # fmt: skip
    connection.close()
    outputs = [
        stepscope("stats", path, "-r", "cuda_gpu_kern_sum", "--format", "csv").stdout,
        stepscope(
            "query", path, "SELECT name FROM gpu_op WHERE kind = 'kernel'", "-f", "csv"
        ).stdout,
    ]
    for out in outputs:
        cells = [cell for row in csv.reader(io.StringIO(out)) for cell in row]
        assert any(cell.startswith("'") or cell.startswith("\ufffd") for cell in cells)
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)


def test_numbers_and_indented_ranges_stay() -> None:
    for text in ("-1", "+2.5", "-1e-9", "-12,000.5", "--dataload", "-", "void f<-1>()", "a=b"):
        assert no_formula(text) == text


@pytest.mark.parametrize(
    ("lacking", "code", "stated"),
    [
        ("msgspec", 2, "the Python package msgspec is missing"),
        ("stepscope.api.job", 3, "a bug in Stepscope"),
    ],
)
def test_a_missing_package_is_named_and_a_missing_module_is_a_bug(
    lacking: str, code: int, stated: str
) -> None:
    """As where the package was copied without what it needs."""
    program = (
        f"import sys; sys.modules[{lacking!r}] = None; sys.argv = ['stepscope', 'info', 'a.json']; "
        "from stepscope.cli.main import main; main()"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert stated in done.stderr
    assert done.stderr.count("\n") == 1
