"""Exports of other versions: older, newer, shuffled, with columns and tables that differ."""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys

import numpy as np
import pyarrow as pa
import pytest
from nsys_data.build import (
    GLOBAL_PID,
    MAIN,
    PID,
    WINDOW,
    WORKER,
    call,
    gpu,
    kernel,
    make,
    nvtx,
    problems,
    read,
    rows,
    small,
    strings,
    window,
)

from stepscope.importers.nsys.sqlite_source import SqliteSource


def test_a_minimal_export(tmp_path):
    trace = read(make(tmp_path / "a.sqlite", small()), tmp_path)
    (op,) = rows(trace, "gpu_op")
    assert op | {"id": 0} == {
        "id": 0,
        "kind": "kernel",
        "process_id": PID,
        "device": 0,
        "context": 1,
        "stream": 7,
        "correlation_id": 1,
        "start_ns": 300,
        "end_ns": 900,
        "name": "gemm(float*)",
        "short_name": "gemm(float*)",
        "mangled_name": None,
        "grid_x": 8,
        **dict.fromkeys(("grid_y", "grid_z", "block_x", "block_y", "block_z", "registers")),
        **dict.fromkeys(("static_shared_bytes", "dynamic_shared_bytes", "local_bytes", "bytes")),
        **dict.fromkeys(("copy_kind", "src_memory", "dst_memory", "graph_id", "graph_node_id")),
        "green_context": None,
        **dict.fromkeys(("src_device", "dst_device", "virtual_address")),
    }
    (launch,) = rows(trace, "api_call")
    assert (launch["api"], launch["name"]) == ("runtime", "cudaLaunchKernel")
    assert launch["raw_name"] == "cudaLaunchKernel_v7000"
    assert trace.meta.problems == []


def test_old_exports_write_zeros_for_null(tmp_path):
    """Up to 2021.5 every column is NOT NULL: an open range then ends at 0."""
    tables = small()
    tables["NVTX_EVENTS"] = [
        nvtx(50, 950, "closed"),
        nvtx(60, None, "open"),
        nvtx(70, 90, None, textId=2),
    ]
    path = make(tmp_path / "old.sqlite", tables, not_null_defaults=True)
    trace = read(path, tmp_path)
    ranges = {row["name"]: row for row in rows(trace, "range")}
    assert ranges["open"]["end_ns"] == WINDOW
    assert [ranges[name]["closed"] for name in ("closed", "open", "gemm(float*)")] == [
        True,
        False,
        True,
    ]
    for row in ranges.values():
        assert row["end_thread_id"] is None
        assert row["domain"] is None
        assert row["payload"] is None
    (op,) = rows(trace, "gpu_op")
    assert (op["graph_node_id"], op["graph_id"], op["mangled_name"]) == (None, None, None)
    assert op["device"] == 0
    assert op["stream"] == 7
    assert problems(trace.meta) == {"unclosed_range": 1}


def test_old_columns_that_do_not_exist(tmp_path):
    """No event class (2019), no green contexts, no mangled names, no enumerations (2022)."""
    path = make(
        tmp_path / "old.sqlite",
        small(),
        without=[
            "CUPTI_ACTIVITY_KIND_RUNTIME.eventClass",
            "CUPTI_ACTIVITY_KIND_RUNTIME.callchainId",
            "CUPTI_ACTIVITY_KIND_KERNEL.greenContextId",
            "CUPTI_ACTIVITY_KIND_KERNEL.mangledName",
            "CUPTI_ACTIVITY_KIND_KERNEL.graphNodeId",
            "CUPTI_ACTIVITY_KIND_KERNEL.graphId",
            "NVTX_EVENTS.jsonText",
            "NVTX_EVENTS.jsonTextId",
        ],
    )
    trace = read(path, tmp_path)
    assert rows(trace, "api_call")[0]["api"] == "runtime"
    assert rows(trace, "gpu_op")[0]["mangled_name"] is None
    assert trace.meta.problems == []


def test_gpu_work_without_a_process_belongs_to_the_only_one(tmp_path):
    path = make(tmp_path / "a.sqlite", small(), without=["CUPTI_ACTIVITY_KIND_KERNEL.globalPid"])
    trace = read(path, tmp_path)
    assert rows(trace, "gpu_op")[0]["process_id"] == PID
    assert trace.meta.problems == []


def test_a_missing_required_column_is_said(tmp_path):
    path = make(tmp_path / "a.sqlite", small(), without=["CUPTI_ACTIVITY_KIND_KERNEL.streamId"])
    trace = read(path, tmp_path)
    assert trace.rows("gpu_op") == 0
    (problem,) = [p for p in trace.meta.problems if p.id == "missing_column"]
    assert problem.scope == ["gpu_op"]
    assert "streamId" in problem.detail


@pytest.mark.parametrize("version", ["_V2", "_V3", "_v2"])
def test_versioned_table_names(tmp_path, version):
    renamed = {"NVTX_EVENTS": f"NVTX_EVENTS{version}"}
    trace = read(make(tmp_path / "a.sqlite", small(), rename=renamed), tmp_path)
    assert [row["name"] for row in rows(trace, "range")] == ["step"]


def test_copies_without_enumerations_and_unknown_codes(tmp_path):
    tables = small()
    tables["CUPTI_ACTIVITY_KIND_MEMCPY"] = [
        gpu(910, 920, 1, bytes=5, copyKind=1, srcKind=0, dstKind=2),
        gpu(920, 930, 1, bytes=6, copyKind=8, srcKind=2, dstKind=2),
        gpu(930, 940, 1, bytes=7, copyKind=77, srcKind=1, dstKind=None),
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    copies = [
        (row["name"], row["copy_kind"], row["src_memory"], row["dst_memory"], row["bytes"])
        for row in rows(trace, "gpu_op")
        if row["kind"] == "memcpy"
    ]
    assert copies == [
        ("[CUDA memcpy Host-to-Device]", "HtoD", "pageable", "device", 5),
        ("[CUDA memcpy Device-to-Device]", "DtoD", "device", "device", 6),
        ("[CUDA memcpy 77]", "77", "pinned", None, 7),
    ]


def test_whole_graphs(tmp_path):
    tables = small()
    tables["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"] = [
        gpu(1000, 2000, 1, graphId=5, graphExecId=9),
        gpu(3000, 2500, 1, graphId=5),  # unfinished
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    (graph,) = [row for row in rows(trace, "gpu_op") if row["kind"] == "graph"]
    assert (graph["name"], graph["graph_id"]) == ("[CUDA graph 5]", 5)
    assert problems(trace.meta) == {"graph_mode": 2, "negative_duration": 1}


def test_graph_launches_that_left_no_trace(tmp_path):
    tables = small()
    tables["StringIds"] = strings("cudaLaunchKernel_v7000", "gemm", "cudaGraphLaunch_v10000")
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"] = [call(100, 200, 1, 1), call(210, 220, 3, 2)]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert problems(trace.meta) == {"graph_mode": 1}


def test_graph_nodes_are_not_taken_for_graphs(tmp_path):
    tables = small()
    tables["StringIds"] = strings("cudaGraphLaunch_v10000", "gemm")
    tables["CUPTI_ACTIVITY_KIND_KERNEL"] = [
        kernel(300, 400, 1, 2, graphNodeId=11, graphId=4),
        kernel(400, 500, 1, 2, graphNodeId=12, graphId=4),
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert [(r["graph_id"], r["graph_node_id"]) for r in rows(trace, "gpu_op")] == [
        (4, 11),
        (4, 12),
    ]
    assert trace.meta.problems == []


def test_overhead_by_name_and_by_type(tmp_path):
    tables = small()
    tables["StringIds"] = [*tables["StringIds"], {"id": 3, "value": "CUPTI Buffer flush"}]
    tables["PROFILER_OVERHEAD"] = [
        {"start": 1, "end": 2, "globalTid": MAIN, "nameId": 3, "returnValue": 0}
    ]
    tables["CUPTI_ACTIVITY_KIND_OVERHEAD"] = [
        {"start": 5, "end": 9, "globalTid": None, "overheadType": 7},
        {"start": 6, "end": 9, "globalTid": MAIN, "overheadType": 99},
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert [(r["name"], r["thread_id"], r["end_ns"]) for r in rows(trace, "overhead")] == [
        ("CUPTI Buffer flush", PID, 2),
        ("Lazy function loading", None, 9),
        ("overhead type 99", PID, 9),
    ]


def test_event_times_of_newer_exports(tmp_path):
    event = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 1, "eventId": 4}
    tables = small()
    tables["CUPTI_ACTIVITY_KIND_CUDA_EVENT"] = [event | {"globalPid": GLOBAL_PID, "timestamp": 77}]
    trace = read(make(tmp_path / "new.sqlite", tables), tmp_path)
    assert [row["time_ns"] for row in rows(trace, "event_record")] == [77]
    old = make(
        tmp_path / "old.sqlite", tables, without=["CUPTI_ACTIVITY_KIND_CUDA_EVENT.timestamp"]
    )
    assert [row["time_ns"] for row in rows(read(old, tmp_path), "event_record")] == [None]


def many_calls(count: int) -> list:
    return [
        call(10 * i, 10 * i + 5, 1, i, globalTid=MAIN if i % 3 else WORKER) for i in range(1, count)
    ]


def many(count: int) -> dict:
    tables = small()
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"] = many_calls(count)
    tables["CUPTI_ACTIVITY_KIND_KERNEL"] = [
        kernel(10 * i + 6, 10 * i + 9, i, 2, streamId=7 + i % 2) for i in range(1, count)
    ]
    tables["CUPTI_ACTIVITY_KIND_MEMCPY"] = [
        gpu(10 * i + 7, 10 * i + 8, i, bytes=i, copyKind=1, srcKind=1, dstKind=2)
        for i in range(1, count, 50)
    ]
    tables["ANALYSIS_DETAILS"] = window(20 * count)
    return tables


def plain(column):
    """A column whose texts stand in it, whatever numbers their dictionaries give them."""
    whole = column.combine_chunks()
    return whole.dictionary_decode() if pa.types.is_dictionary(whole.type) else whole


@pytest.mark.parametrize("count", [100, 70_000])
def test_shuffled_rows_give_the_same_trace(tmp_path, count):
    tables = many(count)
    ordered = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    shuffled = {
        name: random.Random(1).sample(list(data), len(data)) for name, data in tables.items()
    }
    other = read(make(tmp_path / "b.sqlite", shuffled), tmp_path)
    for table in ("gpu_op", "api_call"):
        ours, theirs = ordered.arrow(table), other.arrow(table)
        assert ours.num_rows == len(tables["CUPTI_ACTIVITY_KIND_RUNTIME"]) + (
            len(tables["CUPTI_ACTIVITY_KIND_MEMCPY"]) if table == "gpu_op" else 0
        )
        for name in ours.column_names:
            assert plain(ours[name]).equals(plain(theirs[name])), (table, name)
        assert (np.diff(ours["start_ns"].to_numpy()) >= 0).all()
        assert (ours["id"].to_numpy() == np.arange(ours.num_rows)).all()
    assert ordered.meta.problems == other.meta.problems == []


@pytest.mark.parametrize("mixed", [True, False])
def test_only_mixed_tables_are_sorted_by_sqlite(tmp_path, mixed):
    calls = many_calls(70_000)
    if mixed:
        random.Random(1).shuffle(calls)
    source = SqliteSource(make(tmp_path / "a.sqlite", {"CUPTI_ACTIVITY_KIND_RUNTIME": calls}))
    found = []
    for batch in source.batches(
        "CUPTI_ACTIVITY_KIND_RUNTIME", {"start": "int"}, lambda n, what: None, order="start"
    ):
        found += batch.column(0).to_pylist()
    assert found == sorted(row["start"] for row in calls)
    assert source._is_mixed("CUPTI_ACTIVITY_KIND_RUNTIME", "start") == mixed
    source.close()


@pytest.fixture(params=["adbc", "standard library"])
def reader(request, monkeypatch):
    """Both ways of reading SQLite."""
    if request.param != "adbc":
        monkeypatch.setitem(sys.modules, "adbc_driver_sqlite", None)
    return request.param


def test_late_text_after_nulls(tmp_path, reader):
    """The first 70,000 texts are NULL, later ones are not: types must not be guessed."""
    tables = small()
    ranges = [nvtx(i, i + 1, None, textId=2) for i in range(70_000)]
    ranges += [
        nvtx(80_000, 80_001, "late", int64Value=-4),
        nvtx(80_002, 80_003, "later", doubleValue=1.5),
        nvtx(80_004, 80_005, "json", jsonText='{"a": 1}'),
        nvtx(80_006, 80_007, "big", uint64Value=-1),
    ]
    tables["NVTX_EVENTS"] = ranges
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    found = trace.arrow("range")
    assert len(found) == len(ranges)
    assert found["name"][:70_000].unique().to_pylist() == ["gemm(float*)"]
    late = found.slice(70_000)
    assert list(zip(late["name"].to_pylist(), late["payload"].to_pylist(), strict=True)) == [
        ("late", "-4"),
        ("later", "1.5"),
        ("json", '{"a": 1}'),
        ("big", str(2**64 - 1)),
    ]
    assert trace.meta.problems == []


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """An export of more calls than a batch holds, of which copies are changed."""
    tables = small()
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"] = many_calls(70_000)
    tables["ANALYSIS_DETAILS"] = window(20 * 70_000)
    del tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    return make(tmp_path_factory.mktemp("calls") / "calls.sqlite", tables)


@pytest.mark.parametrize("where", [0, 5, 69_990])
def test_text_in_an_integer_column(tmp_path, reader, calls, where):
    """SQLite lets any value into any column; the row is left out, wherever it stands."""
    path = tmp_path / "a.sqlite"
    shutil.copy(calls, path)
    with sqlite3.connect(path) as db:
        misfits = [("end", "soon"), ("start", 1.5), ("nameId", b"\xff"), ("returnValue", "zero")]
        for row, (column, value) in enumerate(misfits, where + 1):
            db.execute(
                f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET {column} = ? WHERE rowid = ?", (value, row)
            )
    db.close()
    trace = read(path, tmp_path)
    starts = trace.arrow("api_call")["start_ns"].to_pylist()
    left = {10 * (where + 1), 10 * (where + 2), 10 * (where + 3)}
    assert len(starts) == 69_999 - 3
    assert not left & set(starts)
    # the fourth misfit is no reason to leave its row out: the value alone is
    assert problems(trace.meta)["bad_value"] == 4
    status = trace.arrow("api_call", ["return_value"])["return_value"]
    assert status[starts.index(10 * (where + 4))].as_py() is None


def test_null_where_a_value_is_needed(tmp_path, reader):
    tables = small()
    tables["NVTX_EVENTS"] = [nvtx(50, 950, "a"), nvtx(60, 70, "b", globalTid=None)]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert [row["name"] for row in rows(trace, "range")] == ["a"]
    assert problems(trace.meta) == {"bad_value": 1}


def test_values_that_cannot_be(tmp_path):
    tables = small()
    huge = 2**63 - 1
    tables["CUPTI_ACTIVITY_KIND_KERNEL"] = [
        kernel(300, 900, 1, 2),
        kernel(300, huge, 1, 2),
        kernel(300, 900, 1, 2, deviceId=2**40),
        kernel(300, 200, 1, 2),
        kernel(300, 900, 1, 2, gridX=-(2**50)),
        kernel(-500, -400, 1, 2),
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert [(r["start_ns"], r["grid_x"]) for r in rows(trace, "gpu_op")] == [
        (-500, 8),
        (300, 8),
        (300, None),
    ]
    assert problems(trace.meta) == {"bad_value": 3, "negative_duration": 1, "negative_time": 1}


def test_names_that_are_not_there(tmp_path):
    tables = small()
    tables["CUPTI_ACTIVITY_KIND_KERNEL"] = [kernel(300, 900, 1, 4000000)]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert rows(trace, "gpu_op")[0]["name"] == "[string 4000000]"
    assert problems(trace.meta)["missing_text"] == 2  # the name and the short name


def test_untrusted_names(tmp_path, reader):
    tables = small()
    long = "x" * 100_000
    tables["StringIds"] = [
        {"id": 1, "value": "cudaLaunchKernel_v7000"},
        {"id": 2, "value": "\x1b[31m<b>gemm</b>\x00"},
        {"id": 3, "value": long},
        {"id": 10**12, "value": "far"},
    ]
    tables["CUPTI_ACTIVITY_KIND_KERNEL"] = [
        kernel(300, 400, 1, 2),
        kernel(400, 500, 1, 3),
        kernel(500, 600, 1, 10**12),
    ]
    tables["NVTX_EVENTS"] = [nvtx(1, 2, "fine \N{GREEK SMALL LETTER ALPHA}"), nvtx(3, 4, "bad\x07")]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert [row["name"] for row in rows(trace, "gpu_op")] == [
        "\ufffd[31m<b>gemm</b>\ufffd",
        long,
        "far",
    ]
    assert [row["name"] for row in rows(trace, "range")] == [
        "fine \N{GREEK SMALL LETTER ALPHA}",
        "bad\ufffd",
    ]
    assert problems(trace.meta) == {"invalid_text": 3}


def test_invalid_utf8(tmp_path, reader):
    path = make(tmp_path / "a.sqlite", small())
    db = sqlite3.connect(path)
    db.execute("UPDATE StringIds SET value = CAST(x'67ff656d6d' AS TEXT) WHERE id = 2")
    db.execute("UPDATE NVTX_EVENTS SET text = CAST(x'c328' AS TEXT)")
    db.commit()
    db.close()
    trace = read(path, tmp_path)
    assert rows(trace, "gpu_op")[0]["name"] == "g\ufffdemm"
    assert rows(trace, "range")[0]["name"] == "\ufffd("
    assert "invalid_text" in problems(trace.meta)


def test_domains_marks_and_ranges_across_threads(tmp_path):
    tables = small()
    tables["NVTX_EVENTS"] = [
        nvtx(10, 20, "in domain", domainId=3),
        nvtx(11, None, "hello", eventType=34),
        nvtx(12, 40, "moved", eventType=60, endGlobalTid=WORKER),
        nvtx(13, 14, "imported", eventType=70),
        nvtx(15, 16, "other process", domainId=3, globalTid=MAIN + (1 << 24)),
        nvtx(1, None, "NCCL", eventType=75, domainId=3),
        nvtx(1, None, "loader", eventType=39, globalTid=WORKER),
        nvtx(1, None, "category", eventType=33),
        nvtx(50, 60, "future", eventType=4711),
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert [
        (r["kind"], r["name"], r["domain"], r["end_ns"], r["end_thread_id"], r["source_row"])
        for r in rows(trace, "range")
    ] == [
        ("pushpop", "in domain", "NCCL", 20, None, 1),
        ("mark", "hello", None, 11, None, 2),
        ("startend", "moved", None, 40, 1300, 3),
        ("pushpop", "imported", None, 14, None, 4),
        ("pushpop", "other process", None, 16, None, 5),
    ]
    assert problems(trace.meta)["unsupported_source"] == 1


def test_a_range_that_nsys_closed_at_the_end_of_the_capture(tmp_path):
    tables = small()
    tables["NVTX_EVENTS"] = [nvtx(10, WINDOW, "open"), nvtx(20, 30, "inner")]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert [row["closed"] for row in rows(trace, "range")] == [False, True]
    assert problems(trace.meta) == {"unclosed_range": 1}


def test_overlapping_ranges_are_counted(tmp_path):
    tables = small()
    tables["NVTX_EVENTS"] = [nvtx(10, 30, "a"), nvtx(20, 40, "b"), nvtx(50, 60, "c")]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert problems(trace.meta) == {"overlapping_range": 2}


def test_global_lock(tmp_path):
    tables = small()
    gil = {"domainId": 1}
    tables["NVTX_EVENTS"] = [
        nvtx(0, None, "GIL Trace", eventType=75, **gil),
        nvtx(10, 20, "Holding GIL", **gil),
        nvtx(12, 20, "Waiting for GIL", globalTid=WORKER, **gil),
        nvtx(15, 30, "user range"),
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert [(r["thread_id"], r["start_ns"], r["state"]) for r in rows(trace, "gil")] == [
        (PID, 10, "holding"),
        (1300, 12, "waiting"),
    ]
    assert trace.rows("range") == 3
    assert trace.meta.problems == []  # the lock's ranges do not nest with the user's


def test_metrics_memory_and_libraries(tmp_path):
    tables = small()
    tables["StringIds"] = strings("cudaLaunchKernel_v7000", "gemm", "MPI_Allreduce", "cublasGemmEx")
    kind = (5 << 48) | 3
    tables["GPU_METRICS"] = [
        {"timestamp": 5, "typeId": kind, "metricId": 1, "value": 40},
        {"timestamp": 6, "typeId": kind, "metricId": 2, "value": 50},
    ]
    tables["TARGET_INFO_GPU_METRICS"] = [
        {"typeId": kind, "metricId": 1, "metricName": "SMs Active [%]"}
    ]
    memory = {"globalPid": GLOBAL_PID, "deviceId": 0, "address": 64}
    tables["CUDA_GPU_MEMORY_USAGE_EVENTS"] = [
        memory | {"start": 1, "bytes": 100, "memKind": 2, "memoryOperationType": 0},
        memory | {"start": 2, "bytes": 100, "memKind": 2, "memoryOperationType": 1},
        memory | {"start": 3, "bytes": 7, "memKind": 1, "memoryOperationType": 0},
    ]
    tables["MPI_COLLECTIVES_EVENTS"] = [{"start": 4, "end": 9, "globalTid": MAIN, "textId": 3}]
    tables["CUBLAS_EVENTS"] = [
        {"start": 5, "end": 8, "eventClass": 29, "globalTid": MAIN, "nameId": 4}
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert [(r["device"], r["metric"], r["value"]) for r in rows(trace, "metric_sample")] == [
        (3, "SMs Active [%]", 40.0),
        (3, "metric 2", 50.0),
    ]
    assert [(r["kind"], r["device"], r["bytes"]) for r in rows(trace, "memory_event")] == [
        ("alloc", 0, 100),
        ("free", 0, -100),
        ("alloc", None, 7),
    ]
    assert [(r["api"], r["name"]) for r in rows(trace, "api_call")] == [
        ("mpi", "MPI_Allreduce"),
        ("cublas", "cublasGemmEx"),
        ("runtime", "cudaLaunchKernel"),
    ]


def test_streams_and_devices_from_events_alone(tmp_path):
    tables = small()
    tables["TARGET_INFO_CUDA_STREAM"] = [
        {"streamId": 13, "processId": PID, "contextId": 1, "priority": 4294967291, "flag": 2}
    ]
    tables["TARGET_INFO_GPU"] = [{"id": 4, "name": "NVIDIA H200", "smCount": 132, "cuDevice": 0}]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert [
        (r["stream"], r["device"], r["priority"], r["flag"]) for r in rows(trace, "stream")
    ] == [(7, 0, None, None), (13, None, -5, "non_blocking")]
    (device,) = rows(trace, "device")
    assert (device["process_id"], device["device"], device["physical_id"]) == (PID, 0, 4)
    assert (device["name"], device["sm_count"]) == ("NVIDIA H200", 132)


def test_launches_without_their_kernels_are_lost_records(tmp_path):
    tables = small()
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"] = [
        call(100, 200, 1, 1),
        call(210, 220, 1, 2),
        call(230, 240, 1, 3, returnValue=98),  # failed: enqueued nothing
    ]
    tables["DIAGNOSTIC_EVENT"] = [
        {"timestamp": 0, "severity": 2, "text": "Not all CUDA events might have been collected."}
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert problems(trace.meta) == {"dropped_records": 1}
    assert rows(trace, "diagnostic")[0]["severity"] == "warning"


def test_launches_into_a_stream_capture_are_no_loss(tmp_path):
    tables = small()
    tables["StringIds"] = strings("cudaLaunchKernel_v7000", "gemm", "cudaStreamBeginCapture_v10010")
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"] = [
        call(50, 60, 3, 9),
        call(100, 200, 1, 1),
        call(210, 220, 1, 2),
    ]
    assert read(make(tmp_path / "a.sqlite", tables), tmp_path).meta.problems == []


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("Not all CUDA events might have been collected.", 0),
        ("Not all NVTX events might have been collected.", 0),
        ("Number of CUDA events collected: \t12.", 0),
        ("1200 events were dropped because buffers were full.", 1),
        ("CUDA trace data was lost.", 1),
    ],
)
def test_remarks_of_loss(tmp_path, text, lost):
    tables = small()
    tables["DIAGNOSTIC_EVENT"] = [{"timestamp": 0, "severity": 2, "text": text}]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert problems(trace.meta).get("dropped_records", 0) == lost
    assert rows(trace, "diagnostic")[0]["text"] == " ".join(text.split())


def test_gpu_work_without_calls_is_unresolved(tmp_path):
    tables = small()
    tables["CUPTI_ACTIVITY_KIND_KERNEL"] = [
        kernel(300, 900, 1, 2),
        kernel(300, 900, 2, 2),
        kernel(300, 900, None, 2),
        kernel(300, 900, 1, 2, globalPid=GLOBAL_PID + (1 << 24)),  # same id, another process
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert problems(trace.meta) == {"unresolved_correlation": 3}


@pytest.mark.parametrize(
    ("rows_", "expected"),
    [
        ([("META_DATA_CAPTURE", "PROCESS_0:ENVIRONMENT_VARIABLE", 'RANK="2"')], (2, None, "RANK")),
        (
            [("TARGET_INFO_SYSTEM_ENV", "DeviceEnvironment", "A=1;SLURM_PROCID=5;SLURM_NTASKS=8")],
            (5, 8, "SLURM_PROCID"),
        ),
        (
            [
                ("META_DATA_CAPTURE", "PROCESS_0:ENVIRONMENT_VARIABLE", "OMPI_COMM_WORLD_RANK=1"),
                ("META_DATA_CAPTURE", "PROCESS_0:ENVIRONMENT_VARIABLE", "OMPI_COMM_WORLD_SIZE=2"),
                ("TARGET_INFO_SYSTEM_ENV", "DeviceEnvironment", "SLURM_PROCID=0"),
            ],
            (1, 2, "OMPI_COMM_WORLD_RANK"),
        ),
        ([("META_DATA_CAPTURE", "PROCESS_0:ENVIRONMENT_VARIABLE", "RANK=one")], (None, None, "")),
        (
            [("META_DATA_CAPTURE", "PROCESS_0:ENVIRONMENT_VARIABLE", "NODE_RANK=3")],
            (None, None, ""),
        ),
    ],
)
def test_rank_from_the_environment(tmp_path, rows_, expected):
    tables = small()
    for table, name, value in rows_:
        tables.setdefault(table, []).append({"name": name, "value": value})
    meta = read(make(tmp_path / "a.sqlite", tables), tmp_path).meta
    rank, size, variable = expected
    assert (meta.rank, meta.world_size) == (rank, size)
    assert meta.rank_source == (f"environment {variable}" if variable else "")


def test_several_ranks_in_one_report_have_no_common_rank(tmp_path):
    tables = small()
    other = 1 << 24
    tables["CUPTI_ACTIVITY_KIND_KERNEL"].append(kernel(1, 2, 1, 2, globalPid=GLOBAL_PID + other))
    tables["META_DATA_CAPTURE"] = [{"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": "RANK=0"}]
    tables["MPI_RANKS"] = [
        {"globalTid": MAIN, "rank": 0},
        {"globalTid": MAIN + other, "rank": 1},
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert trace.meta.rank is None
    assert [(r["process_id"], r["rank"]) for r in rows(trace, "process")] == [
        (PID, 0),
        (PID + 1, 1),
    ]


@pytest.mark.parametrize("shift", [1_000_000, -5_000, 1_795_272_092_908_608_263])
def test_shifted_exports_are_shifted_back(tmp_path, shift):
    tables = small()
    moved = {
        name: [
            {key: value + shift if key in ("start", "end") else value for key, value in row.items()}
            for row in data
        ]
        for name, data in tables.items()
    }
    moved["META_DATA_EXPORT"] = [{"name": "EXPORT_CONFIG_TIME_SHIFT", "value": str(shift)}]
    plain = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    trace = read(make(tmp_path / "b.sqlite", moved), tmp_path)
    for table in ("gpu_op", "api_call", "range"):
        assert rows(trace, table) == rows(plain, table)
    assert trace.meta.problems == []


def test_what_is_absent_and_how_to_get_it(tmp_path):
    tables = small()
    tables["META_DATA_CAPTURE"] = [
        {"name": "CAPTURE_EVENT_TYPE", "value": "Cuda"},
        {"name": "CAPTURE_EVENT_TYPE", "value": "OSRuntime"},
    ]
    missing = {a.table: a for a in read(make(tmp_path / "a.sqlite", tables), tmp_path).meta.missing}
    assert missing["osrt"].flag == "nsys profile -t osrt"
    assert "recorded none" in missing["osrt"].reason
    assert missing["cpu_sample"].flag == "nsys profile --sample=process-tree"
    assert missing["sched"].flag == "nsys profile --cpuctxsw=process-tree"
    assert missing["gil"].flag == "nsys profile -t python-gil"
    assert "gpu_op" not in missing
    assert "range" not in missing


def test_the_environment_is_not_stored(tmp_path):
    tables = small()
    tables["META_DATA_CAPTURE"] = [
        {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": "API_KEY=hunter2"},
        {"name": "PROCESS_0:COMMAND", "value": "python"},
        {"name": "PROCESS_0:ARGUMENT_10", "value": "last"},
        {"name": "PROCESS_0:ARGUMENT_2", "value": "a b"},
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    assert trace.meta.command == "python 'a b' last"
    assert "hunter2" not in (trace.folder / "meta.json").read_text()
