"""Counts and sums of every canonical table equal those of the SQLite export itself."""

from __future__ import annotations

import lzma
import sqlite3
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from nsys_data.build import SHARED, problems, read, rows, unpacked

from stepscope.trace.trace import Trace

BUNDLED = ["ddp_2steps.sqlite", "host_2023_4.sqlite"]
REAL = sorted(SHARED.glob("*.sqlite.xz")) if SHARED.is_dir() else []


@pytest.fixture(scope="module", params=[*BUNDLED, *[p.name for p in REAL]])
def capture(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("capture")
    name = request.param
    if name in BUNDLED:
        path = unpacked(name, folder)
    else:
        path = folder / name.removesuffix(".xz")
        path.write_bytes(lzma.decompress((SHARED / name).read_bytes()))
    out = tmp_path_factory.mktemp("out")
    db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    trace = read(path, out)
    trace.arrow = cache(trace.arrow)  # dozens of tests read the same tables
    yield trace, db
    db.close()


def distinct(trace: Trace, table: str, *columns: str) -> set[tuple]:
    """The distinct rows of some columns of a canonical table."""
    found = trace.arrow(table).group_by([*columns]).aggregate([])
    return {tuple(row[name] for name in columns) for row in found.to_pylist()}


def figures(trace: Trace, table: str, kind: str | None = None, column: str = "kind"):
    """(rows, sum of durations, sum of starts) of a canonical table."""
    data = trace.arrow(table)
    if kind is not None:
        data = data.filter(pc.equal(data[column].cast("string"), kind))
    if not data.num_rows:
        return (0, None, None)
    duration = pc.subtract(data["end_ns"], data["start_ns"])
    return (data.num_rows, pc.sum(duration).as_py(), pc.sum(data["start_ns"]).as_py())


def expected(db: sqlite3.Connection, table: str, where: str = "1", end: str = "end"):
    if not has(db, table):
        return (0, None, None)
    return db.execute(
        f'SELECT count(*), sum("{end}" - start), sum(start) FROM {table} WHERE {where}'
    ).fetchone()


def has(db: sqlite3.Connection, table: str) -> bool:
    found = db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    return found is not None


@pytest.mark.parametrize("kind", ["kernel", "memcpy", "memset"])
def test_gpu_work(capture, kind):
    trace, db = capture
    table = f"CUPTI_ACTIVITY_KIND_{kind.upper()}"
    assert figures(trace, "gpu_op", kind) == expected(db, table)


def test_gpu_time_by_name(capture):
    trace, db = capture
    if not has(db, "CUPTI_ACTIVITY_KIND_KERNEL"):
        assert trace.rows("gpu_op") == 0
        return
    data = trace.arrow("gpu_op").filter(pc.equal(trace.arrow("gpu_op")["kind"], "kernel"))
    data = data.append_column("took", pc.subtract(data["end_ns"], data["start_ns"]))
    for ours, theirs in (
        ("name", "demangledName"),
        ("short_name", "shortName"),
        ("mangled_name", "mangledName"),
    ):
        got = data.group_by(ours).aggregate([("took", "sum")]).to_pylist()
        want = db.execute(
            f"SELECT value, sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds"
            f" ON id = {theirs} GROUP BY value"
        )
        assert {row[ours]: row["took_sum"] for row in got} == dict(want)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("stream", "streamId"),
        ("grid_x", "gridX"),
        ("grid_y", "gridY"),
        ("grid_z", "gridZ"),
        ("block_x", "blockX"),
        ("block_y", "blockY"),
        ("block_z", "blockZ"),
        ("registers", "registersPerThread"),
        ("static_shared_bytes", "staticSharedMemory"),
        ("dynamic_shared_bytes", "dynamicSharedMemory"),
        ("local_bytes", "localMemoryPerThread"),
        ("correlation_id", "correlationId"),
        ("device", "deviceId"),
        ("context", "contextId"),
        ("graph_node_id", "graphNodeId"),
    ],
)
def test_kernel_columns(capture, ours, theirs):
    trace, db = capture
    if not has(db, "CUPTI_ACTIVITY_KIND_KERNEL"):
        pytest.skip("a capture without GPU work")
    data = trace.arrow("gpu_op").filter(pc.equal(trace.arrow("gpu_op")["kind"], "kernel"))
    # weighted by the start, so that values in wrong rows show
    weighted = pc.sum(
        pc.multiply(data[ours].cast("int64"), pc.bit_wise_and(data["start_ns"], 1023))
    )
    want = db.execute(
        f"SELECT sum({theirs} * (start & 1023)), count({theirs}) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    ).fetchone()
    assert (weighted.as_py(), len(data) - data[ours].null_count) == want


def test_copies(capture):
    trace, db = capture
    if not has(db, "CUPTI_ACTIVITY_KIND_MEMCPY"):
        pytest.skip("a capture without copies")
    data = trace.arrow("gpu_op").filter(pc.equal(trace.arrow("gpu_op")["kind"], "memcpy"))
    got = data.group_by(["name", "src_memory", "dst_memory"]).aggregate([("bytes", "sum")])
    got = {(r["name"], r["src_memory"], r["dst_memory"]): r["bytes_sum"] for r in got.to_pylist()}
    want = db.execute(
        "SELECT '[CUDA memcpy ' || k.label || ']', lower(replace(s.label, ' ', '_')),"
        " lower(replace(d.label, ' ', '_')), sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY"
        " LEFT JOIN ENUM_CUDA_MEMCPY_OPER k ON k.id = copyKind"
        " LEFT JOIN ENUM_CUDA_MEM_KIND s ON s.id = srcKind"
        " LEFT JOIN ENUM_CUDA_MEM_KIND d ON d.id = dstKind GROUP BY 1, 2, 3"
    )
    assert got == {row[:3]: row[3] for row in want}


@pytest.mark.parametrize(("api", "event_class"), [("runtime", 0), ("driver", 1)])
def test_cuda_calls(capture, api, event_class):
    trace, db = capture
    table = "CUPTI_ACTIVITY_KIND_RUNTIME"
    want = expected(db, table, f"eventClass = {event_class}")
    assert figures(trace, "api_call", api, "api") == want


def test_call_names_threads_and_status(capture):
    trace, db = capture
    if not has(db, "CUPTI_ACTIVITY_KIND_RUNTIME"):
        pytest.skip("a capture without CUDA calls")
    data = trace.arrow("api_call")
    cuda = pa.array(["runtime", "driver"])
    data = data.filter(pc.is_in(data["api"].cast("string"), cuda))
    got = data.group_by(["raw_name", "process_id", "thread_id", "return_value"]).aggregate(
        [("start_ns", "sum"), ("correlation_id", "sum"), ("start_ns", "count")]
    )
    want = db.execute(
        "SELECT value, (globalTid >> 24) & 16777215, globalTid & 16777215, returnValue,"
        " sum(start), sum(correlationId), count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        " JOIN StringIds ON id = nameId GROUP BY 1, 2, 3, 4"
    )
    assert sorted(tuple(row.values()) for row in got.to_pylist()) == sorted(want)


def test_os_runtime(capture):
    trace, db = capture
    # class 31 is a marker that tracing began, which nsys does not report as a call either
    assert figures(trace, "api_call", "osrt", "api") == expected(db, "OSRT_API", "eventClass <> 31")


def test_call_names_lose_their_version_only(capture):
    trace, _ = capture
    pairs = distinct(trace, "api_call", "name", "raw_name")
    for name, raw in pairs:
        assert raw == name or (raw.startswith(f"{name}_v") and raw[len(name) + 2 :].isdigit())
    if any(raw == "cudaLaunchKernel_v7000" for _, raw in pairs):
        assert ("cudaLaunchKernel", "cudaLaunchKernel_v7000") in pairs


def test_syncs(capture):
    trace, db = capture
    assert figures(trace, "sync") == expected(db, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")
    if trace.rows("sync"):
        without = db.execute(
            "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION WHERE streamId = 4294967295"
        ).fetchone()[0]
        assert trace.arrow("sync")["stream"].null_count == without


def test_event_records(capture):
    trace, db = capture
    want = (0, None)
    if has(db, "CUPTI_ACTIVITY_KIND_CUDA_EVENT"):
        want = db.execute(
            "SELECT count(*), sum(eventId) FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT"
        ).fetchone()
    data = trace.arrow("event_record")
    assert (data.num_rows, pc.sum(data["event_id"]).as_py()) == want


def test_overhead(capture):
    trace, db = capture
    assert figures(trace, "overhead") == expected(db, "PROFILER_OVERHEAD")


def test_ranges(capture):
    trace, db = capture
    want = expected(db, "NVTX_EVENTS", "eventType = 59")
    assert figures(trace, "range", "pushpop") == want
    want = expected(db, "NVTX_EVENTS", "eventType = 60")
    assert figures(trace, "range", "startend") == want
    marks = expected(db, "NVTX_EVENTS", "eventType = 34", end="start")
    assert figures(trace, "range", "mark") == marks


def test_range_texts_and_domains(capture):
    trace, db = capture
    want = db.execute(
        "SELECT n.rowid, coalesce(s.value, n.text, ''), d.text, n.globalTid & 16777215"
        " FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId"
        " LEFT JOIN NVTX_EVENTS d ON d.eventType = 75 AND d.domainId = n.domainId"
        " AND d.globalTid >> 24 = n.globalTid >> 24 WHERE n.eventType IN (34, 59, 60)"
    )
    got = [
        (row["source_row"], row["name"], row["domain"], row["thread_id"])
        for row in rows(trace, "range")
    ]
    assert sorted(got, key=lambda row: row[0]) == sorted(want, key=lambda row: row[0])


def test_samples_and_gil(capture):
    trace, db = capture
    samples = trace.arrow("cpu_sample")
    want = (0, None)
    if has(db, "COMPOSITE_EVENTS"):
        want = db.execute("SELECT count(*), sum(start) FROM COMPOSITE_EVENTS").fetchone()
    assert (samples.num_rows, pc.sum(samples["time_ns"]).as_py()) == want
    gil = db.execute(
        "SELECT count(*), sum(end - start) FROM NVTX_EVENTS JOIN StringIds ON id = textId"
        " WHERE value = 'Holding GIL'"
    ).fetchone()
    assert figures(trace, "gil", "holding", "state")[:2] == gil


def test_scheduling(capture):
    trace, db = capture
    if not has(db, "SCHED_EVENTS"):
        assert trace.rows("sched") == 0
        return
    expected_rows = []
    pending: dict[int, tuple[int, int]] = {}
    for start, cpu, into, tid in db.execute(
        "SELECT start, cpu, isSchedIn, globalTid FROM SCHED_EVENTS ORDER BY start"
    ):
        if into:
            pending[tid] = (start, cpu)
        elif pending.get(tid, (0, None))[1] == cpu:
            expected_rows.append((pending.pop(tid)[0], start, cpu, tid & 0xFFFFFF))
    expected_rows += [
        (start, trace.meta.window_end_ns, cpu, tid & 0xFFFFFF)
        for tid, (start, cpu) in pending.items()
    ]
    got = [(r["start_ns"], r["end_ns"], r["cpu"], r["thread_id"]) for r in rows(trace, "sched")]
    assert sorted(got) == sorted(expected_rows)


def test_window_and_origin(capture):
    trace, db = capture
    duration = db.execute("SELECT duration FROM ANALYSIS_DETAILS").fetchone()[0]
    epoch = db.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()[0]
    assert (trace.meta.window_start_ns, trace.meta.window_end_ns) == (0, duration)
    assert trace.meta.origin_epoch_ns == epoch


def test_a_complete_capture_has_no_loss(capture):
    trace, _ = capture
    assert not [p for p in trace.meta.problems if p.severity in ("data_loss", "error")]
    assert "unresolved_correlation" not in problems(trace.meta)


def test_every_thread_and_process_of_the_events_is_listed(capture):
    trace, _ = capture
    threads = {(row["process_id"], row["thread_id"]) for row in rows(trace, "thread")}
    seen = {
        row
        for table in ("api_call", "range", "cpu_sample", "sched")
        for row in distinct(trace, table, "process_id", "thread_id")
    }
    assert seen <= threads
    processes = {row["process_id"]: row for row in rows(trace, "process")}
    assert {process for process, _ in seen} <= set(processes)
    assert all(row["name"] for row in processes.values())


def test_devices(capture):
    trace, db = capture
    if not has(db, "TARGET_INFO_CUDA_DEVICE"):
        pytest.skip("a capture without GPUs")
    want = db.execute(
        "SELECT pid, cudaId, gpuId, name, uuid, smCount, computeMajor, computeMinor, totalMemory,"
        " memoryBandwidth, clockRate FROM TARGET_INFO_CUDA_DEVICE d JOIN TARGET_INFO_GPU g"
        " ON g.id = d.gpuId ORDER BY 1, 2"
    ).fetchall()
    assert [tuple(row.values()) for row in rows(trace, "device")] == want


def test_streams(capture):
    trace, db = capture
    if not has(db, "TARGET_INFO_CUDA_STREAM"):
        pytest.skip("a capture without GPUs")
    want = db.execute(
        "SELECT processId, contextId, streamId, CASE WHEN priority > 2147483647"
        " THEN priority - 4294967296 ELSE priority END, flag FROM TARGET_INFO_CUDA_STREAM"
        " ORDER BY 1, 2, 3"
    ).fetchall()
    flags = {"default": 1, "non_blocking": 2, "null": 3}
    got = [
        (r["process_id"], r["context"], r["stream"], r["priority"], flags[r["flag"]])
        for r in rows(trace, "stream")
    ]
    assert got == want
    devices = {row[0] for row in db.execute("SELECT deviceId FROM TARGET_INFO_CUDA_CONTEXT_INFO")}
    assert {row["device"] for row in rows(trace, "stream")} == devices


def test_rank_of_a_job(capture):
    trace, _ = capture
    name = Path(trace.path).name
    if name.startswith("ddp_") and ".rank" in name:
        rank = int(name.split(".rank")[1][0])
        assert (trace.meta.rank, trace.meta.world_size) == (rank, 4)
        assert trace.meta.rank_source == "environment RANK"
    elif name == "ddp_2steps.sqlite":
        assert (trace.meta.rank, trace.meta.world_size) == (2, 4)
        assert [row["rank"] for row in rows(trace, "process")] == [2]
    elif name == "host_2023_4.sqlite":
        assert (trace.meta.rank, trace.meta.world_size) == (3, 8)
    else:
        assert trace.meta.rank is None
