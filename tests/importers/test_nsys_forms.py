"""Every form of input: SQLite under odd names, reports, Arrow and Parquet, the single stream."""

from __future__ import annotations

import hashlib
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nsys_data.build import SHARED, make, problems, read, rows, small, unpacked
from pyarrow import ipc

from stepscope.cache.store import Cache
from stepscope.importers.nsys import IMPORTER
from stepscope.importers.nsys.sqlite_source import find_nsys
from stepscope.importers.registry import detect, load, read_head
from stepscope.trace.errors import InputError, StorageError

NSYS = find_nsys()
REPORT = b"NVIDIA Tegra Profiler Report 363"


def confidence(path: Path) -> float:
    return IMPORTER.sniff(path, b"" if path.is_dir() else read_head(path))


def snapshot(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(file.relative_to(folder)): (
            hashlib.sha256(file.read_bytes()).hexdigest(),
            file.stat().st_mtime_ns,
        )
        for file in folder.rglob("*")
        if file.is_file()
    }


def stream_tables(path: Path) -> dict[str, pa.Table]:
    found = {}
    with pa.OSFile(str(path)) as stream:
        while stream.tell() < stream.size():
            table = ipc.open_stream(stream).read_all()
            found[table.schema.metadata[b"table_name"].decode()] = table
    return found


@pytest.fixture
def host(tmp_path):
    """The fixture's report as nsys 2023.4 exports it in its forms."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    sqlite = unpacked("host_2023_4.sqlite", inputs)
    stream = unpacked("host_2023_4.arrows", inputs)
    arrow, parquet, files = (inputs / name for name in ("r_arwdir", "r_pqtdir", "r_files"))
    for folder in (arrow, parquet, files):
        folder.mkdir()
    for name, table in stream_tables(stream).items():
        with ipc.new_stream(str(arrow / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table)
        with ipc.new_file(str(files / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table)
        pq.write_table(table, parquet / f"{name}.parquet")
    return {
        "sqlite": sqlite,
        "stream": stream,
        "arrow": arrow,
        "parquet": parquet,
        "files": files,
    }


@pytest.mark.parametrize("form", ["stream", "arrow", "parquet", "files"])
def test_all_exports_of_a_report_give_the_same_tables(host, tmp_path, form):
    expected = read(host["sqlite"], tmp_path)
    trace = read(host[form], tmp_path)
    assert confidence(host[form]) > 0.5
    # nsys 2023.4 writes META_DATA_CAPTURE into SQLite only
    assert trace.meta.rows == expected.meta.rows
    for table in expected.meta.rows:
        if table != "process":  # its rank comes from there
            assert rows(trace, table) == rows(expected, table), table
    assert problems(trace.meta) == problems(expected.meta)
    assert trace.meta.window_end_ns == expected.meta.window_end_ns
    assert trace.meta.source_version == "2023.4.4.54"


@pytest.mark.parametrize("form", ["sqlite", "stream", "arrow", "parquet"])
def test_inputs_stay_as_they_are(host, tmp_path, form):
    inputs = host["sqlite"].parent
    before = snapshot(inputs)
    for file in inputs.rglob("*"):
        file.chmod(0o555 if file.is_dir() else 0o444)
    inputs.chmod(0o555)
    try:
        load(host[form], Cache(tmp_path / "cache"))
    finally:
        for folder in (inputs, *(f for f in inputs.iterdir() if f.is_dir())):
            folder.chmod(0o755)
    assert snapshot(inputs) == before


@pytest.mark.parametrize(
    "name",
    [
        "a#b.sqlite",
        "what?.sqlite",
        "100%25.sqlite",
        "two words & more.sqlite",
        "quote'\".sqlite",
        "m\N{LATIN SMALL LETTER U WITH DIAERESIS}de.db",
        "file:x?mode=rw",
        "no extension",
    ],
)
@pytest.mark.parametrize("driver", ["adbc", "standard library"])
def test_odd_names(tmp_path, name, driver, monkeypatch):
    if driver != "adbc":
        monkeypatch.setitem(sys.modules, "adbc_driver_sqlite", None)
    folder = tmp_path / name.replace(".sqlite", " folder")
    folder.mkdir()
    path = make(tmp_path / "plain.sqlite", small()).rename(folder / name)
    assert confidence(path) > 0.5
    assert read(path, tmp_path).rows("gpu_op") == 1
    assert [file.name for file in folder.iterdir()] == [name]


@pytest.mark.parametrize("name", ["ddp_2steps.sqlite", "host_2023_4.sqlite"])
def test_without_adbc_the_tables_are_the_same(tmp_path, name, monkeypatch):
    path = unpacked(name, tmp_path)
    fast = read(path, tmp_path)
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite", None)
    slow = read(path, tmp_path)
    assert slow.meta == fast.meta
    for table in fast.meta.rows:
        assert rows(slow, table) == rows(fast, table), table


def test_a_relative_path(tmp_path, monkeypatch):
    make(tmp_path / "a.sqlite", small())
    monkeypatch.chdir(tmp_path)
    assert read(Path("a.sqlite"), tmp_path).rows("gpu_op") == 1


def test_content_decides_not_the_name(tmp_path):
    assert confidence(make(tmp_path / "trace.json", small())) > 0.5
    (tmp_path / "x.sqlite").write_bytes(b'{"traceEvents": []}')
    assert confidence(tmp_path / "x.sqlite") == 0
    (tmp_path / "y.json").write_bytes(REPORT + b"\x08")
    assert confidence(tmp_path / "y.json") > 0.5


def test_other_folders_are_not_ours(tmp_path):
    (tmp_path / "a").mkdir()
    assert confidence(tmp_path / "a") == 0
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a" / "people.parquet")
    assert confidence(tmp_path / "a") == 0


def test_the_registry_finds_it(tmp_path):
    found = detect(make(tmp_path / "a", small()))
    assert found is not None
    assert found.name == "nsys"


# reports -----------------------------------------------------------------------------------------


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "in" / "my run.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(REPORT + b" some report")
    return path


def fake_nsys(tmp_path: Path, body: str, folder: str = "bin") -> Path:
    file = tmp_path / folder / "nsys"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!{sys.executable}\nimport sys, shutil, os, pathlib\n{body}")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


EXPORT = """
if "--version" in sys.argv:
    print("NVIDIA Nsight Systems version 2099.1.2")
    sys.exit()
args = dict(a.split("=", 1) for a in sys.argv[2:-1])
assert sys.argv[1] == "export" and args["--type"] == "sqlite", sys.argv
assert pathlib.Path(sys.argv[-1]).read_bytes().startswith(b"NVIDIA Tegra")
pathlib.Path("scratch").write_text("in the working directory")
shutil.copy({source!r}, args["--output"])
"""


def test_a_report_is_exported_and_the_export_removed(tmp_path, report, temporary, monkeypatch):
    source = make(tmp_path / "source.sqlite", small())
    nsys = fake_nsys(tmp_path, EXPORT.format(source=str(source)))
    monkeypatch.setenv("STEPSCOPE_NSYS", str(nsys))
    assert confidence(report) > 0.5
    assert read(report, tmp_path).rows("gpu_op") == 1
    assert list(temporary.iterdir()) == []
    assert [file.name for file in report.parent.iterdir()] == [report.name]


def test_the_export_is_removed_after_an_error_too(tmp_path, report, temporary, monkeypatch):
    source = tmp_path / "source.sqlite"
    source.write_bytes(b"SQLite format 3\0" + bytes(50))
    monkeypatch.setenv(
        "STEPSCOPE_NSYS", str(fake_nsys(tmp_path, EXPORT.format(source=str(source))))
    )
    with pytest.raises(InputError) as error:
        read(report, tmp_path)
    assert str(report) in str(error.value)
    assert str(temporary) not in str(error.value)
    assert list(temporary.iterdir()) == []


def test_no_nsys(tmp_path, report, monkeypatch):
    monkeypatch.delenv("STEPSCOPE_NSYS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("stepscope.importers.nsys.sqlite_source._USUAL_FOLDERS", ())
    with pytest.raises(InputError) as error:
        read(report, tmp_path)
    assert "nsys export -t sqlite 'my run.nsys-rep'" in str(error.value)


def test_the_variable_names_nothing(tmp_path, report, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_NSYS", str(tmp_path / "none"))
    with pytest.raises(InputError, match="STEPSCOPE_NSYS"):
        read(report, tmp_path)


OLD = """
if "--version" in sys.argv:
    print("NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0")
    sys.exit()
sys.stderr.write("[libprotobuf ERROR x.cc:133] Can't parse message of type SessionState\\n"
    "Exportation error: Throw in function void\\nstd::exception::what: ProtobufParseException\\n")
sys.exit(1)
"""


def test_an_nsys_older_than_the_report(tmp_path, report, temporary, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_NSYS", str(fake_nsys(tmp_path, OLD)))
    with pytest.raises(InputError) as error:
        read(report, tmp_path)
    message = str(error.value)
    assert "version 2023.4.4.54" in message
    assert "newer nsys" in message
    assert "protobuf" not in message
    assert "\n" not in message
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "kind", "summary"),
    [
        ("print('Unknown thing'); sys.exit(3)", InputError, "Unknown thing"),
        ("sys.exit(7)", InputError, "exit status 7"),
        ("pass", InputError, "exit status 0"),
        ("sys.stderr.write('No space left on device'); sys.exit(1)", StorageError, "space"),
    ],
)
def test_an_export_that_fails(tmp_path, report, monkeypatch, body, kind, summary):
    monkeypatch.setenv("STEPSCOPE_NSYS", str(fake_nsys(tmp_path, body)))
    with pytest.raises(kind, match=summary) as error:
        read(report, tmp_path)
    assert "\n" not in str(error.value)


def test_which_nsys_is_used(tmp_path, monkeypatch):
    monkeypatch.delenv("STEPSCOPE_NSYS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    usual = tmp_path / "opt"
    monkeypatch.setattr("stepscope.importers.nsys.sqlite_source._USUAL_FOLDERS", (str(usual),))
    assert find_nsys() is None
    fake_nsys(usual, "", "2025.3.2/bin")
    newest = fake_nsys(usual, "", "2025.10.1/bin")
    assert find_nsys() == newest
    on_path = fake_nsys(tmp_path, "")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_nsys() == on_path
    monkeypatch.setenv("STEPSCOPE_NSYS", "/elsewhere/nsys")
    assert find_nsys() == Path("/elsewhere/nsys")


@pytest.mark.skipif(
    NSYS is None or not (SHARED / "healthy.nsys-rep").exists(),
    reason="needs nsys and a real report",
)
def test_a_real_report_with_the_real_nsys(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_NSYS", str(NSYS))
    real = SHARED / "healthy.nsys-rep"
    version = subprocess.run([NSYS, "--version"], capture_output=True, text=True, check=True)
    year = int(version.stdout.split("version ")[1].split(".")[0])
    if year < 2025:
        with pytest.raises(InputError, match="newer nsys"):
            read(real, tmp_path)
    else:
        assert read(real, tmp_path).rows("gpu_op") == 7548


def test_a_raw_stream(tmp_path):
    path = tmp_path / "a.qdstrm"
    path.write_bytes(b"U3w[END]NVIDIA Nsight Systems Stream 2023.4.4.54" + bytes(100))
    assert confidence(path) > 0.5
    with pytest.raises(InputError, match="nsys import"):
        read(path, tmp_path)


def test_one_table_of_a_folder(host, tmp_path):
    path = tmp_path / "NVTX_EVENTS.arrow"
    shutil.copy(host["arrow"] / path.name, path)
    with pytest.raises(InputError, match="StringIds"):
        read(path, tmp_path)
