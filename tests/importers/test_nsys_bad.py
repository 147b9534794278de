"""Damaged and foreign inputs: one sentence each, never a traceback, never part of a trace."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from nsys_data.build import MAIN, call, kernel, make, read, small, unpacked, window

from stepscope.cache.store import Cache
from stepscope.importers.nsys import IMPORTER
from stepscope.importers.registry import load, read_head
from stepscope.trace.errors import InputError


@pytest.fixture(params=["adbc", "standard library"])
def reader(request, monkeypatch):
    if request.param != "adbc":
        monkeypatch.setitem(sys.modules, "adbc_driver_sqlite", None)
    return request.param


@pytest.fixture
def elsewhere(tmp_path_factory):
    """A folder for the cache, apart from the input."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A database of many pages; do not change it."""
    tables = small()
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"] = [call(i, i + 1, 1, i) for i in range(20_000)]
    tables["CUPTI_ACTIVITY_KIND_KERNEL"] = [kernel(i, i + 1, i, 2) for i in range(20_000)]
    tables["ANALYSIS_DETAILS"] = window(30_000)
    return make(tmp_path_factory.mktemp("whole") / "run.sqlite", tables)


@pytest.fixture
def export(tmp_path, whole):
    """A copy of it, alone in a folder."""
    folder = tmp_path / "in"
    folder.mkdir()
    return Path(shutil.copy(whole, folder))


def refused(path, elsewhere) -> str:
    """The message of the refusal; the cache holds nothing afterwards."""
    cache = Cache(elsewhere)
    listing = sorted(file.name for file in path.parent.iterdir())
    with pytest.raises(InputError) as error:
        load(path, cache)
    assert cache.entries() == []
    assert sorted(file.name for file in path.parent.iterdir()) == listing
    message = str(error.value)
    assert "\n" not in message
    assert path.name in message
    return message


@pytest.mark.parametrize("keep", [0.05, 0.5, 0.9, 0.999])
def test_truncated(export, reader, keep, elsewhere):
    data = export.read_bytes()
    export.write_bytes(data[: int(len(data) * keep)])
    assert "truncated" in refused(export, elsewhere)


def test_only_the_header(export, reader, elsewhere):
    export.write_bytes(export.read_bytes()[:60])
    assert "damaged" in refused(export, elsewhere)


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_pages_overwritten(export, reader, part, elsewhere):
    data = bytearray(export.read_bytes())
    start = int(len(data) * part) // 4096 * 4096
    data[start : start + 8 * 4096] = b"\xa5" * 8 * 4096
    export.write_bytes(data)
    assert "damaged" in refused(export, elsewhere)


def test_the_catalogue_overwritten(export, reader, elsewhere):
    data = bytearray(export.read_bytes())
    data[100:4096] = b"\xff" * 3996
    export.write_bytes(data)
    assert "damaged" in refused(export, elsewhere)


def test_empty(tmp_path, elsewhere):
    path = tmp_path / "in.sqlite"
    path.touch()
    assert "empty" in refused(path, elsewhere)


def test_another_database(tmp_path, elsewhere):
    path = tmp_path / "people.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE people (name TEXT)")
    db.commit()
    db.close()
    assert IMPORTER.sniff(path, read_head(path)) == 0
    assert "not a capture" in refused(path, elsewhere)


@pytest.mark.parametrize("with_log", [True, False])
def test_write_ahead_log_mode(export, tmp_path, with_log, elsewhere):
    db = sqlite3.connect(export)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
    db.commit()
    if with_log:  # the writer is still there: its last rows are in the log only
        message = refused(export, elsewhere)
        db.close()
    else:
        copy = tmp_path / "alone" / "copy.sqlite"
        copy.parent.mkdir()
        shutil.copy(export, copy)
        db.close()
        message = refused(copy, elsewhere)
    assert "write-ahead" in message


def test_an_unfinished_transaction(export, elsewhere):
    (export.parent / "run.sqlite-journal").write_bytes(b"x" * 512)
    assert "unfinished" in refused(export, elsewhere)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_rights(export, elsewhere):
    export.chmod(0)
    assert "rights" in refused(export, elsewhere)


def test_unreadable_at_the_second_look(export, tmp_path, monkeypatch):
    """Rights are checked when the file is read, not only when it is detected."""
    from stepscope.importers.nsys import sqlite_source

    def denied(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", denied)
    with pytest.raises(InputError, match="rights"):
        sqlite_source.SqliteSource(export)


def test_no_strings(tmp_path, elsewhere):
    tables = small()
    del tables["StringIds"]
    message = refused(make(tmp_path / "in.sqlite", tables), elsewhere)
    assert "StringIds" in message


def test_nothing_in_it(tmp_path, elsewhere):
    tables = {"StringIds": [], "NVTX_EVENTS": []}
    assert "no GPU work" in refused(make(tmp_path / "in.sqlite", tables), elsewhere)


def test_a_stream_that_lacks_only_its_end_marker(tmp_path, elsewhere):
    path = unpacked("host_2023_4.arrows", tmp_path)
    path.write_bytes(path.read_bytes()[:-8])
    assert "damaged" in refused(path, elsewhere)


@pytest.mark.parametrize("keep", [0.2, 0.7, 0.99])
def test_a_truncated_stream(tmp_path, keep, elsewhere):
    path = unpacked("host_2023_4.arrows", tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    assert "damaged" in refused(path, elsewhere)


@pytest.mark.parametrize("cut", [8, 700])
@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_a_truncated_file_in_a_folder(tmp_path, suffix, cut, elsewhere):
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import ipc

    folder = tmp_path / "exports" / "run"
    folder.mkdir(parents=True)
    for name, table in {
        "StringIds": pa.table({"id": [1], "value": ["x" * 1000]}),
        "NVTX_EVENTS": pa.table(
            {
                "start": list(range(5000)),
                "end": [9000] * 5000,
                "eventType": [59] * 5000,
                "globalTid": [MAIN] * 5000,
            }
        ),
    }.items():
        if suffix == "parquet":
            pq.write_table(table, folder / f"{name}.parquet")
        else:
            with ipc.new_stream(str(folder / f"{name}.arrow"), table.schema) as writer:
                writer.write_table(table)
    broken = folder / f"NVTX_EVENTS.{suffix}"
    broken.write_bytes(broken.read_bytes()[:-cut])
    message = refused(folder, elsewhere)
    assert "NVTX_EVENTS" in message


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_reading_leaves_nothing_open(export, tmp_path):
    read(export, tmp_path)
    opened = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert export not in opened
