"""Exports for other tools: Nsight Systems' SQLite, Parquet and Arrow."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from tests.cli.command import Stepscope
from tests.support.captures import DATA, unpack
from tests.support.xspace import training

from stepscope.api import Job
from stepscope.api.reports import known_reports, stats_requests

NSYS_DATA = Path(__file__).parents[1] / "importers" / "nsys_data"
FIXTURES = [
    DATA / "nsys" / "cnn_small.sqlite.xz",
    NSYS_DATA / "ddp_2steps.sqlite.xz",
    NSYS_DATA / "host_2023_4.sqlite.xz",
]
REPORTS = [
    "cuda_api_sum", "cuda_api_trace", "cuda_api_gpu_sum", "cuda_gpu_kern_gb_sum",
    "cuda_gpu_kern_sum", "cuda_gpu_kern_sum:base", "cuda_gpu_kern_sum:mangled",
    "cuda_gpu_mem_size_sum", "cuda_gpu_mem_time_sum", "cuda_gpu_sum", "cuda_gpu_trace",
    "cuda_kern_exec_sum", "cuda_kern_exec_trace", "nvtx_gpu_proj_sum", "nvtx_gpu_proj_trace",
    "nvtx_kern_sum", "nvtx_pushpop_sum", "nvtx_pushpop_trace", "nvtx_startend_sum", "nvtx_sum",
    "osrt_sum",
]  # fmt: skip


def answers(path: Path) -> dict[str, list[dict[str, object]]]:
    """What each report says of a capture."""
    reports = Job([path]).reports
    return {
        name: [] if outcome.table is None else outcome.table.to_pylist()
        for name in REPORTS
        for _, outcome in reports.answers(stats_requests([name], known_reports()))
    }


@pytest.mark.parametrize("packed", FIXTURES, ids=lambda path: path.name)
def test_an_export_of_an_export_gives_the_same_reports(
    packed: Path, reader: Stepscope, tmp_path: Path
) -> None:
    original = unpack(packed)
    made = tmp_path / "made.sqlite"
    assert reader("export", original, "-o", made).stdout == ""
    before, after = answers(original), answers(made)
    assert sum(map(len, before.values())) > 100
    for name in REPORTS:
        assert after[name] == before[name], name


@pytest.mark.parametrize("packed", FIXTURES, ids=lambda path: path.name)
def test_nsys_prints_the_same(packed: Path, reader: Stepscope, tmp_path: Path) -> None:
    nsys = shutil.which("nsys") or shutil.which(Path.home() / ".cache/nsys-2023.4/nsys")
    if nsys is None:
        pytest.skip("no nsys is installed")
    original = tmp_path / "original.sqlite"
    original.write_bytes(unpack(packed).read_bytes())
    made = tmp_path / "made.sqlite"
    reader("export", original, "-o", made)
    output = [
        subprocess.run(
            [nsys, "stats", "-q", "-f", "csv", *(w for r in REPORTS for w in ("-r", r)), path],
            capture_output=True, text=True, check=False, timeout=120,
        ).stdout
        for path in (original, made)
    ]  # fmt: skip
    assert len(output[0].splitlines()) > 100
    assert output[1] == output[0]


def test_a_trace_of_pytorch_becomes_a_database(
    kineto_events: list[dict[str, object]], reader: Stepscope, tmp_path: Path
) -> None:
    capture = DATA / "kineto" / "cnn_small.json.gz"
    made = tmp_path / "made.sqlite"
    reader("export", capture, "-o", made)
    kernels = [e for e in kineto_events if e.get("cat") == "kernel"]
    with closing(sqlite3.connect(made)) as connection:
        found = dict(
            connection.execute(
                "SELECT value, count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
                "JOIN StringIds s ON s.id = k.demangledName GROUP BY 1"
            )
        )
        linked = connection.execute(
            "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k WHERE EXISTS (SELECT 1 FROM "
            "CUPTI_ACTIVITY_KIND_RUNTIME r WHERE r.correlationId = k.correlationId "
            "AND r.globalTid / 0x1000000 * 0x1000000 = k.globalPid)"
        ).fetchone()[0]
    names = [event["name"] for event in kernels]
    assert found == {name: names.count(name) for name in names}
    assert linked == len(kernels)
    mine, theirs = answers(capture), answers(made)
    for name in ("cuda_gpu_kern_sum", "cuda_api_sum", "nvtx_sum", "cuda_gpu_mem_time_sum"):
        assert theirs[name] == mine[name]
        assert mine[name]


def test_threads_beyond_24_bits_get_numbers_of_their_own(reader: Stepscope, tmp_path: Path) -> None:
    capture = tmp_path / "host.xplane.pb"
    capture.write_bytes(training(steps=4))
    made = tmp_path / "made.sqlite"
    reader("export", capture, "-o", made)
    with closing(sqlite3.connect(made)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    assert count == 16
    assert answers(made)["cuda_gpu_kern_sum"] == (answers(capture)["cuda_gpu_kern_sum"])


@pytest.fixture
def kineto_events() -> list[dict[str, object]]:
    text = gzip.decompress((DATA / "kineto" / "cnn_small.json.gz").read_bytes())
    events: list[dict[str, object]] = json.loads(text)["traceEvents"]
    return events


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_tables_arrive_whole(kind: str, reader: Stepscope, tmp_path: Path) -> None:
    capture = unpack(FIXTURES[0])
    folder = tmp_path / f"out.{kind}"
    reader("export", capture, "-o", folder)
    trace = Job([capture]).traces[0]
    written = {path.stem: path for path in folder.iterdir()}
    assert written.keys() == {name for name, rows in trace.meta.rows.items() if rows}
    for name, path in written.items():
        table = pq.read_table(path) if kind == "parquet" else _ipc(path)
        assert table.column_names[0] == "trace_rank"
        assert set(table.column("trace_rank").to_pylist()) == {0}
        expected = trace.arrow(name)
        assert table.drop_columns(["trace_rank"]).to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_ranks_stand_below_each_other(kind: str, reader: Stepscope, tmp_path: Path) -> None:
    capture = unpack(FIXTURES[0])
    for rank in range(2):
        (tmp_path / f"run.rank{rank}.sqlite").write_bytes(capture.read_bytes())
    folder = tmp_path / f"out.{kind}"
    paths = sorted(tmp_path.glob("run.*"))
    reader("export", *paths, "-o", folder)
    path = folder / f"gpu_op.{kind}"
    table = pq.read_table(path) if kind == "parquet" else _ipc(path)
    ranks = table.column("trace_rank").to_pylist()
    assert ranks == sorted(ranks)
    assert ranks.count(0) == ranks.count(1) > 0
    output = reader("export", *paths, "-o", tmp_path / "x.sqlite", expect=2).stderr
    assert "holds one capture, and these are 2 ranks" in output


def _ipc(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def test_what_cannot_be_written_is_refused(stepscope: Stepscope, tmp_path: Path) -> None:
    capture = unpack(FIXTURES[0])
    assert "says no format" in stepscope.refuses("export", capture, "-o", tmp_path / "x.abc")
    assert "not packed" in stepscope.refuses("export", capture, "-o", tmp_path / "x.sqlite.gz")
    other = tmp_path / "mine.parquet"
    other.mkdir()
    (other / "letter.txt").write_text("mine")
    output = stepscope.refuses("export", capture, "-o", other, "--force")
    assert "letter.txt, which no export wrote" in output
    assert [path.name for path in other.iterdir()] == ["letter.txt"]
    assert [path.name for path in tmp_path.glob(".*partial")] == []
    made = tmp_path / "x.sqlite"
    stepscope("export", capture, "-o", made)
    output = stepscope("export", capture, "-o", made, expect=2).stderr
    assert "exists; --force overwrites it" in output
    stepscope("export", capture, "-o", made, "--force")
