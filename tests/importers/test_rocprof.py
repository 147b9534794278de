"""Results of rocprofv3: three forms of one run hold the same, and that is what was written."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.captures import query_rows as rows
from tests.support.rocprof import INIT_NS, Run, as_database, as_json

from stepscope.api import Job
from stepscope.cache.store import Cache
from stepscope.trace.errors import InputError

FORMS = ["json", "json.gz", "inline.db", "tracks.db"]


def made(form: str, folder: Path, run: Run) -> Path:
    path = folder / f"results.{form}"
    if form == "json":
        path.write_bytes(as_json(run))
    elif form == "json.gz":
        path.write_bytes(gzip.compress(as_json(run)))
    else:
        as_database(run, path, tracks=form.startswith("tracks"))
    return path


def opened(path: Path) -> Job:
    return Job([path], cache=Cache(path.parent / "cache"))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_run(form: str, tmp_path: Path) -> None:
    run = Run()
    job = opened(made(form, tmp_path, run))
    meta = job.traces[0].meta
    assert meta.source == "rocprof"
    assert meta.hostname == "amd1"
    assert meta.command == "python train.py"
    assert meta.problems == []
    assert meta.window_end_ns == 10**9
    assert rows(
        job,
        "SELECT name, start_ns, end_ns, grid_x, grid_y, grid_z, block_x, static_shared_bytes, "
        "stream, device, correlation_id FROM gpu_op WHERE kind = 'kernel' ORDER BY start_ns",
    ) == [
        (
            "void gemm<float>(float*)" if k["kernel"] == 1 else "Cijk_Ailk_Bljk_SB_MT64",
            k["start"] - INIT_NS, k["end"] - INIT_NS, 4, 2, 1, 256, 64, 5, 0, k["correlation"],
        )
        for k in run.kernels
    ]  # fmt: skip
    assert rows(
        job,
        "SELECT copy_kind, bytes, name, count(*) FROM gpu_op WHERE kind = 'memcpy' GROUP BY ALL",
    ) == [("HtoD", 8192, "[CUDA memcpy Host-to-Device]", 6)]
    assert rows(job, "SELECT name, api, count(*) FROM api_call GROUP BY ALL ORDER BY 1") == [
        ("hipLaunchKernel", "runtime", 12),
        ("hipMemcpyAsync", "runtime", 6),
    ]
    assert rows(job, "SELECT name, kind FROM range ORDER BY start_ns") == [
        (f"step {n}", "pushpop") for n in range(6)
    ]
    assert rows(job, "SELECT name FROM device") == [("AMD Instinct MI300X",)]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_diagnosed(form: str, tmp_path: Path) -> None:
    diagnosis = opened(made(form, tmp_path, Run(steps=8))).diagnose()
    assert diagnosis.trace.steps == 8
    assert diagnosis.step_ns.median == pytest.approx(4_680_000, rel=0.01)
    assert diagnosis.verdict == "gpu_bound_healthy"


def test_kernels_alone_say_what_more_would_tell(tmp_path: Path) -> None:
    document = json.loads(as_json(Run()))
    records = document["rocprofiler-sdk-tool"][0]["buffer_records"]
    records["hip_api"] = records["marker_api"] = records["memory_copy"] = []
    path = tmp_path / "results.json"
    path.write_text(json.dumps(document))
    lacking = {item.table: item.flag for item in opened(path).traces[0].meta.missing}
    assert lacking["api_call"] == "rocprofv3 --hip-trace"
    assert "--marker-trace" in lacking["range"]


def test_work_whose_call_is_not_there_is_counted(tmp_path: Path) -> None:
    document = json.loads(as_json(Run()))
    records = document["rocprofiler-sdk-tool"][0]["buffer_records"]
    records["hip_api"] = records["hip_api"][:3]
    path = tmp_path / "results.json"
    path.write_text(json.dumps(document))
    problems = {p.id: p.count for p in opened(path).traces[0].meta.problems}
    assert problems == {"unresolved_correlation": 15}


@pytest.mark.parametrize("share", [0.3, 0.8, 0.99])
@pytest.mark.parametrize("form", FORMS)
def test_a_cut_result_is_refused(form: str, share: float, tmp_path: Path) -> None:
    path = made(form, tmp_path, Run())
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError) as raised:
        opened(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_two_processes_in_one_database_are_refused(tmp_path: Path) -> None:
    path = made("inline.db", tmp_path, Run())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            'INSERT INTO "rocpd_info_process_00ab_cd" VALUES (2, 9, NULL, 0, 0, NULL)'
        )
        connection.commit()
    with pytest.raises(InputError, match="holds 2 processes"):
        opened(path)


def test_a_real_result_holds_what_its_json_tells(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data.parent / "public" / "formats" / "rocprof_908.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    tool = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"][0]
    dispatches = tool["buffer_records"]["kernel_dispatch"]
    names = {s["kernel_id"]: s["formatted_kernel_name"] for s in tool["kernel_symbols"]}
    expected: Counter[str] = Counter()
    for item in dispatches:
        expected[names[item["dispatch_info"]["kernel_id"]]] += (
            item["end_timestamp"] - item["start_timestamp"]
        )
    job = Job([path], cache=Cache(tmp_path))
    found = dict(rows(job, "SELECT name, sum(end_ns - start_ns)::BIGINT FROM gpu_op GROUP BY name"))
    assert found == dict(expected)
    # the command says how many steps it trains
    assert job.diagnose().trace.steps == 50
