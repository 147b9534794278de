"""Real traces: every row, every nanosecond, compared with the file as JSON libraries read it."""

from __future__ import annotations

import gc
import json
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.support.captures import shared

from stepscope.cache.store import Cache
from stepscope.importers.common.stream import open_text
from stepscope.importers.registry import detect, load
from stepscope.trace.trace import Trace

DATA = Path(__file__).parent / "kineto_data"
TABLES = {
    "cpu_op": "operator",
    "user_annotation": "range",
    "gpu_user_annotation": "range",
    "cuda_runtime": "api_call",
    "cuda_driver": "api_call",
    "kernel": "gpu_op",
    "gpu_memcpy": "gpu_op",
    "gpu_memset": "gpu_op",
    "python_function": "python_function",
    "overhead": "overhead",
}


def raw_text(path: Path) -> bytes:
    with open_text(path) as read:
        return b"".join(iter(read, b""))


def raw_json(path: Path) -> dict[str, Any]:
    text = raw_text(path)
    gc.disable()  # it would be looked for among millions of events, again and again
    try:
        found: dict[str, Any] = json.loads(text, parse_float=Decimal)
    finally:
        gc.enable()
    return found


class Event(msgspec.Struct, gc=False):
    """What large traces are compared by; the rest of an event is not even built."""

    ph: str
    ts: Decimal = Decimal(0)
    dur: Decimal = Decimal(0)
    cat: str = ""


class Raw(msgspec.Struct):
    trace_events: list[Event] = msgspec.field(name="traceEvents")
    origin: int = msgspec.field(name="baseTimeNanoseconds")


def raw_events(path: Path) -> Raw:
    return msgspec.json.decode(raw_text(path), type=Raw)


def opened(path: Path, tmp_path: Path) -> Trace:
    return load(path, Cache(tmp_path / "cache"))


def column(trace: Trace, table: str, name: str) -> list[Any]:
    found: list[Any] = trace.arrow(table, [name])[name].to_pylist()
    return found


def check_rows(trace: Trace, raw: Raw) -> None:
    """Counts, starts and durations of every table, exact in ns."""
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in raw.trace_events:
        table = TABLES.get(event.cat)
        if event.ph == "X" and table:
            spans[table].append((int(event.ts * 1000), int(event.dur * 1000)))
    assert trace.meta.origin_epoch_ns is not None
    origin = trace.meta.origin_epoch_ns - raw.origin
    for table, expected in spans.items():
        frame = trace.frame(table, "start_ns", "end_ns")
        start, end = frame["start_ns"], frame["end_ns"]
        assert (np.diff(start) >= 0).all()
        assert start.min() >= 0
        got = np.array([start + origin, end - start])
        wanted = np.array(expected, np.int64).T
        # each sorted by start, then duration
        ours, theirs = (pairs[:, np.lexsort(pairs[::-1])] for pairs in (got, wanted))
        assert np.array_equal(ours, theirs), table
    assert set(spans) <= set(trace.meta.rows)


@pytest.mark.parametrize("name", ["ddp_rank2.json.zst", "with_stack.json.zst"])
def test_every_event_is_there_to_the_nanosecond(name: str, tmp_path: Path) -> None:
    check_rows(opened(DATA / name, tmp_path), raw_events(DATA / name))


@pytest.mark.parametrize("name", ["healthy", "pageable_h2d", "ddp_straggler.rank2"])
def test_every_event_of_the_large_traces(name: str) -> None:
    """One with Python's stacks, one with copies by the programs, one of a job's ranks."""
    path = shared(f"h200/kineto/{name}.json.gz")
    trace, raw = load(path, Cache()), raw_events(path)
    check_rows(trace, raw)
    arrows = sum(e.ph == "f" and e.cat == "fwdbwd" for e in raw.trace_events)
    linked = trace.arrow("operator", ["forward_start_ns"])["forward_start_ns"]
    assert len(linked) - linked.null_count == arrows > 0
    assert trace.meta.problems == []


def test_gpu_operations_carry_what_the_profiler_wrote(tmp_path: Path) -> None:
    path = DATA / "ddp_rank2.json.zst"
    trace, raw = opened(path, tmp_path), raw_json(path)
    kernels = [e for e in raw["traceEvents"] if e.get("cat") == "kernel"]
    table = trace.arrow("gpu_op")
    rows = [row for row in table.to_pylist() if row["kind"] == "kernel"]
    expected = Counter(
        (
            e["name"],
            e["args"]["device"],
            e["args"]["context"],
            e["args"]["stream"],
            e["args"]["correlation"],
            e["args"]["registers per thread"],
            e["args"]["shared memory"],
            *e["args"]["grid"],
            *e["args"]["block"],
        )
        for e in kernels
    )
    columns = (
        *("name", "device", "context", "stream", "correlation_id", "registers"),
        *("dynamic_shared_bytes", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"),
    )
    assert Counter(tuple(row[c] for c in columns) for row in rows) == expected
    assert {row["process_id"] for row in table.to_pylist()} == {1840}
    short = {row["short_name"] for row in rows}
    assert "ncclDevKernel_AllReduce_Sum_f32_RING_LL" in short
    assert "vectorized_elementwise_kernel" in short
    copies = [row for row in table.to_pylist() if row["kind"] == "memcpy"]
    assert {(c["name"], c["copy_kind"], c["src_memory"], c["dst_memory"]) for c in copies} == {
        ("[CUDA memcpy Host-to-Device]", "HtoD", "pinned", "device"),
        ("[CUDA memcpy Device-to-Device]", "DtoD", "device", "device"),
    }
    sets = [row for row in table.to_pylist() if row["kind"] == "memset"]
    assert {(s["name"], s["src_memory"], s["short_name"]) for s in sets} == {
        ("[CUDA memset]", "device", None)
    }


def test_every_gpu_operation_has_its_launching_call(tmp_path: Path) -> None:
    trace = opened(DATA / "with_stack.json.zst", tmp_path)
    launched = set(column(trace, "gpu_op", "correlation_id"))
    assert launched <= set(column(trace, "api_call", "correlation_id"))
    operators = set(column(trace, "operator", "external_id"))
    linked = {i for i in column(trace, "api_call", "operator_external_id") if i is not None}
    assert len(linked & operators) > 100


def test_collectives_and_job(tmp_path: Path) -> None:
    trace = opened(DATA / "ddp_rank2.json.zst", tmp_path)
    meta = trace.meta
    assert (meta.rank, meta.world_size, meta.rank_source) == (2, 4, "distributedInfo")
    assert meta.environment["nccl_version"] == "2.28.9"
    assert meta.environment["cuda_driver_version"] == "13000"
    rows = trace.arrow("collective").to_pylist()
    assert len(rows) == 14
    assert {row["rank"] for row in rows} == {2}
    assert {(r["name"], r["dtype"], r["group_size"], r["group_ranks"]) for r in rows} == {
        ("allreduce", "Float", 4, "[0, 1, 2, 3]")
    }
    by_correlation = {r["correlation_id"]: r for r in trace.arrow("gpu_op").to_pylist()}
    assert all("AllReduce" in by_correlation[row["correlation_id"]]["name"] for row in rows)
    assert all(row["in_elements"] == row["out_elements"] > 0 for row in rows)
    assert trace.arrow("communicator").to_pylist() == [
        {
            "name": "0",
            "description": "default_pg",
            "backend": "cuda:nccl",
            "size": 4,
            "ranks": "[0,1,2,3]",
        }
    ]


def test_operators_know_inputs_and_forward_call(tmp_path: Path) -> None:
    path = DATA / "with_stack.json.zst"
    trace, raw = opened(path, tmp_path), raw_json(path)
    rows = {row["external_id"]: row for row in trace.arrow("operator").to_pylist()}
    events = [e for e in raw["traceEvents"] if e.get("cat") == "cpu_op"]
    for event in events:
        args, row = event["args"], rows[event["args"]["External id"]]
        for key, name in (
            ("Input Dims", "input_shapes"),
            ("Input type", "input_types"),
            ("Concrete Inputs", "concrete_inputs"),
        ):
            assert (None if row[name] is None else json.loads(row[name])) == args.get(key)
        assert row["sequence_number"] == args.get("Sequence number")
        assert row["forward_thread_id"] == args.get("Fwd thread id")
    flows: dict[str, dict[int, Decimal]] = {"s": {}, "f": {}}
    for event in raw["traceEvents"]:
        if event.get("cat") == "fwdbwd":
            flows[event["ph"]][event["id"]] = event["ts"]
    origin = (trace.meta.origin_epoch_ns or 0) - raw["baseTimeNanoseconds"]
    expected = {
        int(flows["f"][i] * 1000) - origin: int(flows["s"][i] * 1000) - origin
        for i in flows["f"].keys() & flows["s"].keys()
    }
    got = {r["start_ns"]: r["forward_start_ns"] for r in rows.values() if r["forward_start_ns"]}
    assert got == expected
    assert len(got) > 100


def test_python_functions_and_allocations(tmp_path: Path) -> None:
    path = DATA / "with_stack.json.zst"
    trace, raw = opened(path, tmp_path), raw_json(path)
    events = [e for e in raw["traceEvents"] if e.get("cat") == "python_function"]
    rows = {row["python_id"]: row for row in trace.arrow("python_function").to_pylist()}
    assert {(e["args"]["Python id"], e["args"]["Python parent id"], e["name"]) for e in events} == {
        (i, row["python_parent_id"], row["name"]) for i, row in rows.items()
    }
    marks = [e for e in raw["traceEvents"] if e["name"] == "[memory]"]
    memory = trace.arrow("memory_event").to_pylist()
    assert [
        (e["args"]["Addr"], e["args"]["Bytes"]) for e in sorted(marks, key=lambda e: e["ts"])
    ] == [(row["address"], row["bytes"]) for row in memory]
    assert {row["device"] for row in memory} <= {0, None}
    assert {row["kind"] for row in memory} == {"cache"}


def test_names_of_threads_devices_and_options(tmp_path: Path) -> None:
    trace = opened(DATA / "with_stack.json.zst", tmp_path)
    threads = {row["thread_id"]: row["name"] for row in trace.arrow("thread").to_pylist()}
    assert threads[565] == "pt_autograd_0"
    assert trace.arrow("process").to_pylist() == [
        {"process_id": 527, "name": "python3", "rank": None}
    ]
    device = trace.arrow("device").to_pylist()[0]
    assert (device["name"], device["sm_count"], device["compute_major"]) == ("NVIDIA H200", 132, 9)
    assert trace.meta.capture_options["with_stack"] == "1"
    assert {row["stream"] for row in trace.arrow("stream").to_pylist()} == {7}
    missing = {(a.table, a.flag) for a in trace.meta.missing}
    assert not {table for table, _ in missing} & {"python_function", "memory_event"}


def test_what_is_absent_names_the_option_that_records_it(tmp_path: Path) -> None:
    flags = {a.flag for a in opened(DATA / "ddp_rank2.json.zst", tmp_path).meta.missing}
    assert "torch.profiler.profile(with_stack=True)" in flags
    assert "torch.profiler.profile(profile_memory=True)" in flags
    assert not any("record_shapes" in flag for flag in flags)


def test_bare_quotes_in_an_annotation_lose_nothing(tmp_path: Path) -> None:
    path = DATA / "cpu_only.json.gz"
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(raw_text(path))
    trace = opened(path, tmp_path)
    names = Counter(column(trace, "range", "name"))
    assert names['train "quoted" step/n'] == 2
    assert names["ProfilerStep#2"] == names["ProfilerStep#3"] == 1
    text = raw_text(path)
    for category, table in (("cpu_op", "operator"), ("python_function", "python_function")):
        assert trace.rows(table) == text.count(f'"cat": "{category}"'.encode())
    assert {p.id: p.count for p in trace.meta.problems} == {"invalid_text": 2}
    assert trace.meta.hostname == "vm"
    assert {"gpu_op", "api_call"} <= {a.table for a in trace.meta.missing}


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json.*")), ids=lambda p: p.name)
def test_recognised_by_content(path: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "no_suffix"
    renamed.write_bytes(path.read_bytes())
    found = detect(renamed)
    assert found is not None
    assert found.name == "kineto"


def test_compression_makes_no_difference(tmp_path: Path) -> None:
    import gzip

    path = DATA / "ddp_rank2.json.zst"
    text = raw_text(path)
    plain = tmp_path / "plain.json"
    plain.write_bytes(text)
    packed = tmp_path / "packed"
    half = len(text) // 2  # two members, as parallel compressors write them
    packed.write_bytes(gzip.compress(text[:half]) + gzip.compress(text[half:]) + b"\0" * 512)
    first = opened(path, tmp_path)
    for other in (opened(plain, tmp_path), opened(packed, tmp_path)):
        assert other.meta.rows == first.meta.rows
        for table in first.meta.rows:
            assert other.arrow(table).to_pylist() == first.arrow(table).to_pylist()


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Events that fill no table cost nothing, however many there are."""
    import tracemalloc

    from stepscope.importers.kineto import IMPORTER
    from stepscope.trace.problems import ProblemLog
    from stepscope.trace.store import TraceWriter

    event = '{"ph":"s","id":1,"pid":1,"tid":1,"ts":5.000,"cat":"ac2g","name":"ac2g"}'
    call = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1.000,"dur":1.000}'
    peaks = []
    for count in (20_000, 200_000):
        path = tmp_path / f"{count}.json"
        path.write_text('{"traceEvents":[' + ",".join([call] + [event] * count) + "]}")
        folder = tmp_path / f"out{count}"
        folder.mkdir()
        writer = TraceWriter(folder, ProblemLog())
        tracemalloc.start()
        IMPORTER.read(path, writer)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert writer.close()["operator"] == 1
    assert peaks[1] < peaks[0] * 1.5


def test_arrow_text_columns_are_dictionaries(tmp_path: Path) -> None:
    trace = opened(DATA / "ddp_rank2.json.zst", tmp_path)
    assert pa.types.is_dictionary(trace.arrow("gpu_op").schema.field("name").type)
