"""Old and unusual formats, generated after what those versions of the profiler wrote."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.api import Job
from stepscope.cache.store import Cache
from stepscope.importers.common.cuda import call_name, copy_name, short_kernel_name
from stepscope.importers.kineto.pieces import EventReader
from stepscope.importers.kineto.spans import nanoseconds
from stepscope.importers.registry import detect, load
from stepscope.trace.trace import Trace

EPOCH_US = 1_623_143_089_861_000

OLD = f"""
{{
  "schemaVersion": 1,
  "traceEvents": [
  {{
    "name": "process_name", "ph": "M", "ts": {EPOCH_US}, "pid": 13721, "tid": 0,
    "args": {{
      "name": "python3"
    }}
  }},
  {{
    "name": "thread_name", "ph": "M", "ts": {EPOCH_US}, "pid": 13721, "tid": "123",
    "args": {{
      "name": "thread 123 (worker)"
    }}
  }},
  {{
    "ph": "X", "cat": "Operator",
    "name": "ProfilerStep#1", "pid": 13721, "tid": "123",
    "ts": {EPOCH_US + 50}, "dur": 400,
    "args": {{"Device": 13721, "External id": 1, "Trace name": "PyTorch Profiler"}}
  }},
  {{
    "ph": "X", "cat": "Operator",
    "name": "aten::to", "pid": 13721, "tid": "123",
    "ts": {EPOCH_US + 200}, "dur": 60,
    "args": {{"Device": 13721, "External id": 3, "Input Dims": [[2, 8, 5], [], []]}}
  }},
  {{
    "ph": "X", "cat": "Runtime",
    "name": "cudaMemcpyAsync", "pid": 13721, "tid": "123",
    "ts": {EPOCH_US + 210}, "dur": 20,
    "args": {{"cbid": 41, "correlation": 334, "external id": 3, "external ts": 5}}
  }},
  {{
    "ph": "s", "id": 334, "pid": 13721, "tid": 123, "ts": {EPOCH_US + 210},
    "cat": "async", "name": "launch"
  }},
  {{
    "ph": "X", "cat": "Memcpy",
    "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": "stream 7",
    "ts": {EPOCH_US + 225}, "dur": 0,
    "args": {{
      "device": 0, "context": 1,
      "stream": 7, "correlation": 334, "external id": 3,
      "bytes": 200, "memory bandwidth (GB/s)": inf
    }}
  }},
  {{
    "ph": "X", "cat": "Memset",
    "name": "Memset (Device)", "pid": 0, "tid": "stream 7",
    "ts": {EPOCH_US + 230}, "dur": 5,
    "args": {{"device": 0, "context": 1, "stream": 7, "correlation": 335, "bytes": 64}}
  }},
  {{
    "ph": "X", "cat": "Kernel",
    "name": "void cunn_ClassNLLCriterion<float>(float*)", "pid": 0, "tid": "stream 7",
    "ts": {EPOCH_US + 240}, "dur": 15,
    "args": {{
      "queued": 0, "device": 0, "context": 1,
      "stream": 7, "correlation": 336, "external id": 3,
      "registers per thread": 16,
      "shared memory": 0,
      "blocks per SM": 0.1,
      "warps per SM": 0.2,
      "grid": [1, 2, 3],
      "block": [32, 4, 1],
      "est. achieved occupancy %": 12
    }}
  }},
  {{
    "ph": "X", "cat": "User", "name": "my range",
    "pid": 0, "tid": "stream 7 user",
    "ts": {EPOCH_US + 225}, "dur": 30,
    "args": {{
      "External id": 1
    }}
  }},
  {{
    "ph": "i", "s": "t", "name": "[memory]", "pid": 13721, "tid": 123, "ts": {EPOCH_US + 205},
    "args": {{"Device Type": 1, "Device Id": 0, "Addr": 140231955619840, "Bytes": -512}}
  }},
  {{
    "ph": "X", "cat": "Trace", "ts": {EPOCH_US}, "dur": 1000,
    "pid": "Traces", "tid": "PyTorch Profiler",
    "name": "PyTorch Profiler (0)",
    "args": {{
      "Op count": 3
    }}
  }},
  {{
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": {EPOCH_US + 5000}
  }}
]}}"""


def opened(text: str, tmp_path: Path) -> Trace:
    path = tmp_path / "trace"
    path.write_text(text)
    found = detect(path)
    assert found is not None
    assert found.name == "kineto"
    return load(path, Cache(tmp_path / "cache"))


def chrome(events: list[dict[str, Any]], **header: Any) -> str:
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": events})


def span(cat: str, name: str, ts: float, dur: float, **rest: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": 8, "ts": ts, "dur": dur, **rest}


def test_first_generation_of_names_and_string_threads(tmp_path: Path) -> None:
    trace = opened(OLD, tmp_path)
    meta = trace.meta
    assert meta.origin_epoch_ns == EPOCH_US * 1000
    assert (meta.window_start_ns, meta.window_end_ns) == (0, 1_000_000)
    assert meta.rows["operator"] == 1
    operator = trace.arrow("operator").to_pylist()[0]
    assert (operator["start_ns"], operator["end_ns"]) == (200_000, 260_000)
    assert (operator["thread_id"], operator["input_shapes"]) == (123, "[[2,8,5],[],[]]")
    ranges = trace.arrow("range").to_pylist()
    assert [(r["kind"], r["name"], r["thread_id"], r["stream"]) for r in ranges] == [
        ("annotation", "ProfilerStep#1", 123, None),
        ("gpu_annotation", "my range", None, 7),
    ]
    call = trace.arrow("api_call").to_pylist()[0]
    assert (call["api"], call["operator_external_id"], call["correlation_id"]) == (
        "runtime",
        3,
        334,
    )
    work = trace.arrow("gpu_op").to_pylist()
    assert [(w["kind"], w["name"], w["bytes"]) for w in work] == [
        ("memcpy", "[CUDA memcpy Host-to-Device]", 200),
        ("memset", "[CUDA memset]", 64),
        ("kernel", "void cunn_ClassNLLCriterion<float>(float*)", None),
    ]
    assert {w["process_id"] for w in work} == {13721}
    assert work[0]["src_memory"] == "pageable"
    assert (work[2]["grid_y"], work[2]["block_x"], work[2]["short_name"]) == (
        2,
        32,
        "cunn_ClassNLLCriterion",
    )
    memory = trace.arrow("memory_event").to_pylist()[0]
    assert (memory["bytes"], memory["device"], memory["time_ns"]) == (-512, 0, 205_000)
    assert trace.arrow("thread").to_pylist()[0]["name"] == "worker"
    # the copy and the set of this file have no recorded call
    counts = {p.id: p.count for p in meta.problems}
    assert counts == {"invalid_number": 1, "unresolved_correlation": 2}


@pytest.mark.parametrize("annotated", [False, True])
def test_annotations_among_the_operators_of_old_files(annotated: bool, tmp_path: Path) -> None:
    events = [
        span("cpu_op", "model_inference", 0, 100),
        span("cpu_op", "aten::detach", 10, 20),
        span("cpu_op", "detach", 12, 5),
        span("cpu_op", "AddmmBackward", 40, 5, args={"Sequence number": 4, "Fwd thread id": 1}),
        span("Runtime", "cudaLaunchKernel", 15, 2, args={"correlation": 3}),
        span("Kernel", "k", 20, 5, args={"correlation": 3, "device": 0, "stream": 7}),
    ]
    if annotated:  # a profiler that has a category for them records scripted functions as operators
        events.append(span("user_annotation", "mine", 0, 100))
    trace = opened(chrome(events), tmp_path)
    ranges = [(r["name"], r["start_ns"], r["end_ns"]) for r in trace.arrow("range").to_pylist()]
    operators = {row["name"] for row in trace.arrow("operator").to_pylist()}
    named = "mine" if annotated else "model_inference"
    assert ranges == [(named, 0, 100_000)]
    assert ("model_inference" in operators) is annotated
    assert {"aten::detach", "detach", "AddmmBackward"} <= operators


def test_decimal_epoch_times_keep_their_nanoseconds(tmp_path: Path) -> None:
    texts = ["1712345678901234.567", "1712345678901235.001", "1712345678901236.999"]
    events = ",".join(
        f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{t},"dur":0.001}}'
        for t in texts
    )
    trace = opened(f'{{"schemaVersion":1,"traceEvents":[{events}]}}', tmp_path)
    origin = trace.meta.origin_epoch_ns
    assert origin is not None
    frame = trace.frame("operator", "start_ns", "end_ns")
    assert (frame["start_ns"] + origin).tolist() == [int(Decimal(t) * 1000) for t in texts]
    assert (frame["end_ns"] - frame["start_ns"]).tolist() == [1, 1, 1]


@given(st.integers(0, 2**43 * 1000 - 1))
def test_times_below_2_to_the_43_are_exact(ns: int) -> None:
    got, good = nanoseconds([float(f"{ns // 1000}.{ns % 1000:03}")])
    assert good.all()
    assert got.tolist() == [ns]


def test_array_of_events_without_header(tmp_path: Path) -> None:
    events = [span("cpu_op", "aten::add", 5, 2), span("kernel", "k", 6, 1, tid="stream 3", pid=1)]
    trace = opened(json.dumps(events, indent=1), tmp_path)
    assert trace.meta.origin_epoch_ns is None  # a counter, not the time of day
    row = trace.arrow("gpu_op").to_pylist()[0]
    assert (row["device"], row["stream"], row["process_id"]) == (1, 3, 7)


def test_exporter_without_kineto(tmp_path: Path) -> None:
    events = [
        {"name": "aten::zeros", "ph": "X", "ts": 1897, "dur": 30, "tid": 1, "pid": "CPU functions"},
        {"name": "aten::zeros", "ph": "X", "ts": 1898, "dur": 3, "tid": 0, "pid": "CUDA functions"},
    ]
    trace = opened(json.dumps(events), tmp_path)
    assert trace.meta.rows["operator"] == 1
    assert {p.id: p.count for p in trace.meta.problems} == {"unread_events": 1}


def test_rocm_calls_and_addresses_for_streams(tmp_path: Path) -> None:
    events = [
        span("cpu_op", "aten::mm", 1.0, 9.0, args={"External id": 4}),
        span(
            "cuda_runtime",
            "hipLaunchKernel",
            2.0,
            1.0,
            args={
                "External id": 4,
                "kernel": "Cijk_x",
                "cid": 211,
                "correlation": 9,
                "stream": "0x55d0c0",
                "grid": [4, 1, 1],
                "block": [256, 1, 1],
                "shared memory": 0,
            },
        ),
        span(
            "cuda_runtime",
            "hipMemcpyAsync",
            3.0,
            1.0,
            args={"cid": 2, "correlation": 10, "size": "64", "kind": "1", "src": "0x1"},
        ),
        span("kernel", "Cijk_x", 4.0, 2.0, pid=2, tid=1, args={"External id": 4}),
        span("gpu_memcpy", "Memcpy ? (? -> ?)", 7.0, 2.0, pid=2, tid=1),
    ]
    trace = opened(chrome(events, deviceProperties=[]), tmp_path)
    calls = trace.arrow("api_call").to_pylist()
    assert [(c["name"], c["api"], c["correlation_id"]) for c in calls] == [
        ("hipLaunchKernel", "runtime", 9),
        ("hipMemcpyAsync", "runtime", 10),
    ]
    work = trace.arrow("gpu_op").to_pylist()
    assert [(w["device"], w["stream"], w["correlation_id"]) for w in work] == [(2, 1, None)] * 2
    assert (work[1]["name"], work[1]["copy_kind"]) == ("[CUDA memcpy Unknown]", None)
    # the GPU events of this generation carry no correlation id
    assert {p.id: p.count for p in trace.meta.problems} == {"unresolved_correlation": 2}


def test_rocm_until_march_2024_ties_by_the_external_id(tmp_path: Path) -> None:
    """As Kineto at 5d3c3090 writes it: no correlation, and ids of calls that are no operators'."""

    def launch(number: int, name: str, ts: int, **args: Any) -> dict[str, Any]:
        return span("cuda_runtime", name, ts, 2, args={"External id": number, **args})

    def work(category: str, number: int, name: str, ts: int, **args: Any) -> dict[str, Any]:
        args = {"External id": number, **args}
        return span(category, name, ts, 5, pid=2, tid=1, args=args)

    def tied(phase: str, number: int, ts: int, **place: int) -> dict[str, Any]:
        flow = {"ph": phase, "id": number, "ts": ts, "cat": "ac2g", "name": "ac2g"}
        return {**flow, "pid": 1, "tid": 1, **place}

    shape = {"grid dim": [4, 1, 1], "block dim": [256, 1, 1], "shared size": 0, "stream": "0x55d0"}
    events = [
        span("cpu_op", "aten::relu", 1, 4, args={"External id": 102}),
        span("cpu_op", "aten::mm", 10, 9, args={"External id": 101}),
        launch(101, "hipLaunchKernel", 2, **shape),
        tied("s", 101, 2),
        launch(102, "hipMemcpyWithStream", 12, src="0x1", dst="0x2", size=64, kind=1),
        tied("s", 102, 12),
        launch(103, "hipExtModuleLaunchKernel", 15, **shape),
        work("kernel", 101, "relu_kernel", 20, **shape),
        tied("f", 101, 20, pid=2, tid=1),
        work("gpu_memcpy", 102, "CopyHostToDevice", 30, size=64, kind=1),
        work("kernel", 103, "Cijk_Alik", 40, **shape),
        work("kernel", 104, "FillBuffer", 50),
        {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 60},
    ]
    trace = opened(chrome(events), tmp_path)
    assert [
        (w["name"], w["kind"], w["copy_kind"], w["bytes"], w["correlation_id"])
        for w in trace.arrow("gpu_op").to_pylist()
    ] == [
        ("relu_kernel", "kernel", None, None, 101),
        ("[CUDA memcpy Host-to-Device]", "memcpy", "HtoD", 64, 102),
        ("Cijk_Alik", "kernel", None, None, 103),
        ("[CUDA memset]", "memset", None, None, 104),
    ]
    assert [
        (c["correlation_id"], c["operator_external_id"])
        for c in trace.arrow("api_call").to_pylist()
    ] == [(101, None), (102, None), (103, None)]
    assert {p.id: p.count for p in trace.meta.problems} == {"unresolved_correlation": 1}
    # operators are known by time: aten::relu launched relu, though its id is that of the copy
    averages = Job([tmp_path / "trace"]).key_averages()
    device = {row.name: row.device_ns for row in averages.operators}
    assert (device["aten::relu"], device["aten::mm"]) == (5_000, 10_000)


def test_graph_launches_and_synchronisations(tmp_path: Path) -> None:
    def kernel(ts: float, graph: int, node: int) -> dict[str, Any]:
        args = {"device": 0, "stream": 7, "correlation": 50, "graph id": graph}
        return span("kernel", "k", ts, 1.0, pid=0, args={**args, "graph node id": node})

    events = [
        span("cuda_runtime", "cudaGraphLaunch_v10000", 1.0, 2.0, args={"correlation": 50}),
        kernel(5.0, 3, 77),
        kernel(7.0, 3, 78),
        kernel(9.0, 0, 0),
        span(
            "cuda_sync",
            "Event Sync",
            11.0,
            1.0,
            pid=0,
            args={
                "cuda_sync_kind": "Event Sync",
                "wait_on_stream": 7,
                "wait_on_cuda_event_id": 12,
                "stream": 4294967295,
                "correlation": 60,
                "device": 0,
                "context": 1,
            },
        ),
        span("cuda_sync", "Context Sync", 13.0, 1.0, pid=0, args={"stream": -1, "device": 0}),
    ]
    trace = opened(chrome(events), tmp_path)
    work = trace.arrow("gpu_op").to_pylist()
    assert [(w["graph_id"], w["graph_node_id"], w["correlation_id"]) for w in work] == [
        (3, 77, 50),
        (3, 78, 50),
        (None, None, 50),
    ]
    call = trace.arrow("api_call").to_pylist()[0]
    assert (call["name"], call["raw_name"]) == ("cudaGraphLaunch", "cudaGraphLaunch_v10000")
    syncs = trace.arrow("sync").to_pylist()
    assert [(s["kind"], s["stream"], s["event_id"], s["correlation_id"]) for s in syncs] == [
        ("event", None, 12, 60),
        ("context", None, None, None),
    ]


def test_what_stands_after_the_events_counts_too(tmp_path: Path) -> None:
    groups = [{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": "1", "ranks": "[1]"}]
    text = json.dumps(
        {
            "schemaVersion": 1,
            "traceEvents": [span("cpu_op", "a", 1.5, 1.0), span("cpu_op", "b", 3.5, 1.0)],
            "distributedInfo": {"rank": 1, "world_size": 2, "pg_config": groups},
            "WARNING": ["lost 3 records", "second"],
            "pytorch_version": "2.9.0",
        }
    )
    trace = opened(text, tmp_path)
    assert (trace.meta.rank, trace.meta.world_size) == (1, 2)
    assert trace.meta.source_version == "2.9.0"
    assert [c["ranks"] for c in trace.arrow("communicator").to_pylist()] == ["[0,1]", "[1]"]
    remarks = trace.arrow("diagnostic").to_pylist()
    assert [(r["severity"], r["text"]) for r in remarks] == [
        ("warning", "lost 3 records"),
        ("warning", "second"),
    ]


def test_collective_known_only_from_the_operator(tmp_path: Path) -> None:
    args = {"External id": 5, "Collective name": "allreduce", "In msg nelems": 10, "Seq": 3}
    events = [span("cpu_op", "record_param_comms", 1.5, 1.0, args={**args, "dtype": "Float"})]
    row = opened(chrome(events), tmp_path).arrow("collective").to_pylist()[0]
    assert (row["name"], row["in_elements"], row["sequence"], row["correlation_id"]) == (
        "allreduce",
        10,
        3,
        None,
    )


def test_arrows_find_the_outer_of_two_operators_that_start_together(tmp_path: Path) -> None:
    flow = {"cat": "fwdbwd", "name": "fwdbwd", "pid": 7, "id": 1}
    events = [
        span("cpu_op", "forward", 10.0, 5.0),
        {"ph": "s", **flow, "tid": 8, "ts": 10.0},
        span("cpu_op", "backward", 50.0, 9.0, tid=9),
        span("cpu_op", "inner", 50.0, 3.0, tid=9),
        {"ph": "f", **flow, "tid": 9, "ts": 50.0},
        {"ph": "f", **flow, "id": 2, "tid": 9, "ts": 50.0},
    ]
    trace = opened(chrome(events), tmp_path)
    links = {r["name"]: r["forward_start_ns"] for r in trace.arrow("operator").to_pylist()}
    start = trace.frame("operator", "start_ns")["start_ns"][0]
    assert links == {"forward": None, "backward": start, "inner": None}
    assert {p.id: p.count for p in trace.meta.problems} == {"unresolved_forward": 1}


EVENTS = [
    span("cpu_op", name, 1.0 + i, 0.5, args={"x": [{"y": "},{"}, {"z": [1, [2]]}], "e": {}})
    for i, name in enumerate(["a", 'quote " },\n  {', "back\\slash", "é⚡", "}]", "", "[{", "last"])
]
LAYOUTS = {
    "compact": json.dumps({"a": 1, "traceEvents": EVENTS, "z": [{}, {}]}, separators=(",", ":")),
    "one line": json.dumps({"traceEvents": EVENTS, "distributedInfo": {"x": [{}, {"y": []}]}}),
    "pretty": json.dumps({"h": [{}, {}], "traceEvents": EVENTS, "z": 1}, indent=2),
    "flat": json.dumps({"traceEvents": EVENTS}, indent=0),
    "array": json.dumps(EVENTS),
    "array, pretty": json.dumps(EVENTS, indent=4, ensure_ascii=False),
}


def read_events(text: bytes, sizes: list[int]) -> EventReader:
    """Events of a text that arrives in pieces of the given sizes, over and over."""
    pieces = []
    at = turn = 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
        turn += 1
    remaining = iter(pieces)
    reader = EventReader(lambda: next(remaining, b""), Path("trace"))
    reader.names = [event.name for group in reader for event in group]  # type: ignore[attr-defined]
    return reader


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_any_layout_in_any_pieces(layout: str, sizes: list[int]) -> None:
    reader = read_events(LAYOUTS[layout].encode(), sizes)
    assert reader.names == [event["name"] for event in EVENTS]  # type: ignore[attr-defined]
    assert reader.malformed == 0


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::(anonymous namespace)::sum_and_scatter<float, long>(long)",
            "sum_and_scatter",
        ),
        ("void f<128, g(at::X&)::{lambda()#3}::operator()() const::{lambda(int)#1}>(int)", "f"),
        ("ncclDevKernel_AllReduce(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllReduce"),
        ("sm90_xmma_gemm_bf16", "sm90_xmma_gemm_bf16"),
        ("std::enable_if<true, void>::type ns::kern<int>(int)", "kern"),
        ("", ""),
        (")))", ")))"),
        ("<" * 50_000, "<" * 50_000),
    ],
)
def test_short_kernel_names(name: str, short: str) -> None:
    assert short_kernel_name(name) == short


def test_names_of_calls_and_copies() -> None:
    assert call_name("cudaMalloc_v3020") == "cudaMalloc"
    assert call_name("cuMemAlloc_v2") == "cuMemAlloc"
    assert copy_name("PtoP") == "[CUDA memcpy Peer-to-Peer]"
    assert copy_name("?") == "[CUDA memcpy Unknown]"


def test_the_grid_of_a_triton_operator_is_a_text_and_no_damage(tmp_path: Path) -> None:
    args = {"External id": 3, "grid": "grid(4096,)", "stream": 0, "kernel_backend": "triton"}
    kernel = {"correlation": 5, "device": 0, "stream": 7, "grid": [4096, 1, 1], "block": [64, 1, 1]}
    trace = opened(
        chrome(
            [
                span("cpu_op", "triton_poi_fused_cat_0", 10, 9, args=args),
                span("cuda_driver", "cuLaunchKernel", 12, 4, args={"correlation": 5}),
                span("kernel", "triton_poi_fused_cat_0", 20, 5, args=kernel),
            ]
        ),
        tmp_path,
    )
    assert trace.meta.problems == []
    assert trace.frame("operator", "name").text("name", 0) == "triton_poi_fused_cat_0"
    assert trace.frame("gpu_op", "grid_x")["grid_x"].tolist() == [4096]


def test_python_threads_without_an_id_are_no_second_process(tmp_path: Path) -> None:
    frame = {"Python parent id": None, "Python id": 1}
    monitor = {"pid": 0, "tid": 0, "args": frame}
    trace = opened(
        chrome(
            [
                span("cpu_op", "aten::add", 10, 9, args={"External id": 3}),
                span("python_function", "train.py(3): step", 8, 20, args=frame),
                span("python_function", "tqdm/_monitor.py(60): run", 1, 50, **monitor),
            ]
        ),
        tmp_path,
    )
    assert trace.meta.problems == []
    assert set(trace.frame("process", "process_id")["process_id"].tolist()) == {7}
    functions = trace.frame("python_function", "process_id", "thread_id")
    assert functions["process_id"].tolist() == [7, 7]
    assert functions["thread_id"].tolist() == [0, 8]


def test_work_launched_before_the_recording_is_told_from_lost_calls(tmp_path: Path) -> None:
    def kernel(ts: float, correlation: int, stream: int = 7) -> dict[str, Any]:
        args = {"correlation": correlation, "device": 0, "stream": stream}
        return span("kernel", "gemm", ts, 5, args=args)

    trace = opened(
        chrome(
            [
                span("cuda_runtime", "cudaLaunchKernel", 100, 4, args={"correlation": 5}),
                kernel(90, 1),  # before the first call
                kernel(110, 2),  # in the queue ahead of the first launch
                kernel(120, 5),
                kernel(130, 3),  # behind it: its call is lost
                kernel(95, 4, stream=9),
                kernel(140, 6, stream=9),
            ]
        ),
        tmp_path,
    )
    counts = {p.id: p.count for p in trace.meta.problems}
    assert counts == {"launched_before": 3, "unresolved_correlation": 2}
