"""The collector records what CUPTI and NVTX tell, through its real code and raw files."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.capture.conftest import Program, read, texts

from stepscope.trace.trace import Trace

EVERYTHING = """
    launch(300)
    for _ in range(20):
        cuda.fake_copy(1 << 20, 1, 2, 3, 5000)
        cuda.fake_set(4096)
        cuda.fake_sync(10_000)
    cuda.fake_copy_between(64, 0, 1)
    cuda.fake_rest()
"""


def rows(trace: Trace, table: str) -> list[dict[str, Any]]:
    return trace.arrow(table).to_pylist()


@pytest.mark.parametrize("version", ["18", "22", "26", "130001"])
def test_records_of_every_layout(
    program: Program, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Records only grow at their end: the same content is read from each documented version."""
    monkeypatch.setenv("FAKE_CUPTI_VERSION", version)
    trace = program.trace(EVERYTHING, record=("event", "memory"))
    ops = rows(trace, "gpu_op")
    kinds = [op["kind"] for op in ops]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "kernel": 300,
        "memcpy": 21,
        "memset": 20,
        "graph": 1,
    }
    kernel = next(op for op in ops if op["kind"] == "kernel")
    assert kernel["name"] == "void at::native::kernel<4, float>(int)"
    assert kernel["short_name"] == "kernel"
    assert kernel["mangled_name"] == "_ZN2at6native6kernelILi4EfEEvi"
    assert [kernel[f"grid_{a}"] for a in "xyz"] == [10, 2, 1]
    assert [kernel[f"block_{a}"] for a in "xyz"] == [128, 1, 1]
    assert kernel["end_ns"] - kernel["start_ns"] == 3000
    assert (kernel["device"], kernel["context"], kernel["stream"]) == (0, 1, 7)
    assert (kernel["registers"], kernel["local_bytes"]) == (40, 16)
    assert (kernel["static_shared_bytes"], kernel["dynamic_shared_bytes"]) == (1024, 2048)
    assert kernel["graph_id"] is None
    copy = next(op for op in ops if op["kind"] == "memcpy")
    assert (copy["copy_kind"], copy["bytes"], copy["stream"]) == ("HtoD", 1 << 20, 8)
    assert (copy["src_memory"], copy["dst_memory"]) == ("pinned", "device")
    assert (copy["src_device"], copy["dst_device"]) == (None, 0)
    between = next(op for op in ops if op["copy_kind"] == "PtoP")
    assert (between["src_device"], between["dst_device"]) == (0, 1)
    assert trace.rows("sync") == 20
    sync = rows(trace, "sync")[0]
    assert (sync["kind"], sync["stream"], sync["device"]) == ("context", None, 0)
    assert texts(trace, "overhead", "name") == ["Buffer flush"]
    assert rows(trace, "event_record") == []
    memory = rows(trace, "memory_event")[0]
    assert (memory["kind"], memory["bytes"]) == ("alloc", 4096)
    assert [row["priority"] for row in rows(trace, "stream") if row["stream"] == 7] == [-5]
    assert trace.meta.environment["cupti"] == version
    assert [p.id for p in trace.meta.problems] == ["graph_mode", "unresolved_correlation"]


def test_calls_match_their_work_and_dull_ones_are_left_out(program: Program) -> None:
    trace = program.trace("launch(50); cuda.fake_sync(100)")
    calls = rows(trace, "api_call")
    # The driver's launch beneath the runtime's is the same work, and left out.
    assert {call["name"] for call in calls} == {"cudaLaunchKernel", "cudaDeviceSynchronize"}
    assert len(calls) == 51
    by_correlation = {call["correlation_id"]: call for call in calls}
    for op in rows(trace, "gpu_op"):
        call = by_correlation[op["correlation_id"]]
        assert call["raw_name"] == "cudaLaunchKernel_v7000"
        assert op["start_ns"] - call["start_ns"] == 2000
        assert call["api"] == "runtime"
    whole = program.trace("launch(50)", every_call=True)
    assert whole.rows("api_call") == 150


def test_waits_and_their_streams_are_noted_without_records_of_cupti(program: Program) -> None:
    """The kinds that make CUPTI handle every driver function are never enabled."""
    trace = program.trace(
        """
        launch(1)
        assert not any(cuda.fake_enabled(kind) for kind in (4, 36, 38)), "kinds"
        assert cuda.fake_enabled(5) and cuda.fake_enabled(10)
        cuda.fake_record(0x8000, 3); cuda.fake_record(0x8000, 3)
        cuda.fake_stream_wait(4, 0x8000); cuda.fake_stream_wait(0, 0x9000)
        cuda.fake_stream_sync(2, 50_000); cuda.fake_stream_sync(5, 10)
        cuda.fake_driver_launch()
        """,
        record=("event",),
    )
    records = rows(trace, "event_record")
    assert [row["stream"] for row in records] == [13, 13]
    assert len({row["event_sync_id"] for row in records}) == 2
    assert len({row["event_id"] for row in records}) == 1
    waits = [row for row in rows(trace, "sync") if row["kind"] == "stream_wait_event"]
    assert [row["stream"] for row in waits] == [14, 7]
    assert [row["event_sync_id"] for row in waits] == [records[1]["event_sync_id"], None]
    syncs = [row for row in rows(trace, "sync") if row["kind"] == "stream"]
    assert [row["stream"] for row in syncs] == [9, 15]  # handle 2: the thread's default stream
    assert syncs[0]["end_ns"] - syncs[0]["start_ns"] >= 50_000
    calls = rows(trace, "api_call")
    names = [call["name"] for call in calls]
    assert names.count("cudaStreamSynchronize") == 2
    assert names.count("cuLaunchKernel") == 1
    assert "cuKernelGetName" not in names
    by_correlation = {call["correlation_id"]: call for call in calls}
    for row in syncs:
        call = by_correlation[row["correlation_id"]]
        assert call["name"] == "cudaStreamSynchronize"
        assert row["start_ns"] <= call["start_ns"] <= call["end_ns"] <= row["end_ns"]


def test_driver_calls_and_waits_are_recorded_in_every_range(program: Program) -> None:
    trace = program.trace(
        """
        for recorded in (False, True, False, True):
            if recorded: cuda.fake_profiler(1)
            for _ in range(5): cuda.fake_driver_launch()
            cuda.fake_sync(1000)
            if recorded: cuda.fake_profiler(0)
        """,
        range="cudaProfilerApi",
    )
    names = [call["name"] for call in rows(trace, "api_call")]
    assert names.count("cuLaunchKernel") == 10
    assert trace.rows("sync") == 2


def test_a_wait_that_outlasts_its_range_hides_nothing_of_the_next(program: Program) -> None:
    trace = program.trace(
        """
        begun, go_on = threading.Event(), threading.Event()
        def work():
            begun.set()
            cuda.fake_sync(300_000_000)
            go_on.wait()
            cuda.fake_driver_sync(ctypes.c_uint64(3))
        thread = threading.Thread(target=work)
        cuda.fake_profiler(1); thread.start(); begun.wait(); time.sleep(0.1); cuda.fake_profiler(0)
        time.sleep(0.3)
        cuda.fake_profiler(1); go_on.set(); thread.join(); cuda.fake_profiler(0)
        """,
        range="cudaProfilerApi",
    )
    assert "stream" in texts(trace, "sync", "kind")


def test_calls_in_a_forked_child_harm_nobody(program: Program) -> None:
    """The parent's callbacks still stand there, the collector's CUPTI does not."""
    trace = program.trace(
        """
        launch(1); cuda.fake_stream_sync(5, 10)
        child = os.fork()
        if child == 0:
            for _ in range(3):
                cuda.fake_stream_sync(5, 10); cuda.fake_record(0x8000, 3); cuda.fake_driver_launch()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        cuda.fake_stream_sync(5, 10)
        """,
        record=("event",),
    )
    assert trace.rows("sync") == 2


def test_nvtx_of_every_flavour(program: Program) -> None:
    trace = program.trace(
        """
        push("step"); push("forward"); pop(); nvtx.push_wide("größer"); pop(); pop()
        nvtx.mark(b"here")
        a = nvtx.range_start(b"a"); b = nvtx.range_start(b"b"); nvtx.range_end(a); nvtx.range_end(b)
        d = nvtx.domain(b"library"); s = nvtx.registered(d, b"registered")
        nvtx.name_category(d, 3, b"category")
        nvtx.domain_push(d, s, 3, 2.5)
        push("other domain nests by itself"); nvtx.domain_pop(d); pop()
        nvtx.domain_end(d, nvtx.domain_start(d, b"started"))
        schema = nvtx.schema(d)
        nvtx.collective_push(d, schema, b"allreduce", 2**63 + 1, -1); nvtx.domain_pop(d)
        nvtx.name_thread(threading.get_native_id(), b"the main one")
        """
    )
    found = {row["name"]: row for row in rows(trace, "range")}
    assert set(found) == {
        *("step", "forward", "größer", "here", "a", "b", "registered", "allreduce", "started"),
        "other domain nests by itself",
    }
    assert {name: row["kind"] for name, row in found.items() if row["kind"] != "pushpop"} == {
        "here": "mark",
        "a": "startend",
        "b": "startend",
        "started": "startend",
    }
    step, forward, wide = found["step"], found["forward"], found["größer"]
    assert step["start_ns"] <= forward["start_ns"] <= forward["end_ns"] <= wide["start_ns"]
    assert wide["end_ns"] <= step["end_ns"]
    assert found["a"]["end_ns"] < found["b"]["end_ns"]
    assert (found["registered"]["domain"], found["registered"]["payload"]) == ("library", "2.5")
    assert found["step"]["domain"] is None
    payload = json.loads(found["allreduce"]["payload"])
    assert payload == {"comm": 2**63 + 1, "op": 2, "root": -1, "scale": 0.5}
    assert all(row["closed"] for row in found.values())
    assert texts(trace, "thread", "name") == ["the main one"]


def test_ranges_that_were_never_closed_end_with_the_capture(program: Program) -> None:
    trace = program.trace('pop(); push("open"); push("closed"); pop(); launch()')
    found = {row["name"]: row for row in rows(trace, "range")}
    assert set(found) == {"open", "closed"}
    assert (found["open"]["closed"], found["closed"]["closed"]) == (False, True)
    assert found["open"]["end_ns"] >= rows(trace, "gpu_op")[0]["start_ns"]
    assert "unclosed_range" in [p.id for p in trace.meta.problems]


def test_nothing_is_lost_under_load(program: Program) -> None:
    """Far more than the pool holds at once, from several threads, with ever new names."""
    trace = program.trace(
        """
        def work(k):
            for i in range(30_000):
                push(f"t{k} {i % 3000}"); push("inner"); pop(); pop()
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        [t.start() for t in threads]
        launch(20_000)
        [t.join() for t in threads]
        """
    )
    assert trace.rows("range") == 4 * 30_000 * 2
    assert trace.rows("gpu_op") == 20_000
    assert trace.meta.problems == []
    frame = trace.frame("range", "name", "thread_id", "start_ns", "end_ns")
    assert len(set(frame["thread_id"].tolist())) == 4
    inner = frame.equals("name", "inner")
    assert int(inner.sum()) == 120_000
    assert len(frame.texts["name"]) == 12_001


def test_threads_that_work_on_while_the_capture_ends_add_nothing_to_it(program: Program) -> None:
    """Texts are no longer taken then: what is told so late would stand there without its name."""
    trace = program.trace(
        """
        nvtx.late_begin(); push("around")
        cuda.fake_at_end(nvtx.late_go)
        launch()
        """,
        waits=True,
    )
    assert sorted(texts(trace, "range", "name")) == ["around", "before"]
    assert "" not in texts(trace, "api_call", "name")
    assert {p.id for p in trace.meta.problems} == {"unclosed_range"}


def test_without_shared_memory_events_come_from_the_heap(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.capture.backends.collector._SHARED_MEMORY_BYTES", 1 << 60)
    trace = program.trace('[(push("a"), pop()) for _ in range(20_000)]; launch(10)')
    assert (trace.rows("range"), trace.rows("gpu_op")) == (20_000, 10)
    assert any("too small" in line for line in program.output)


def test_a_full_disk_never_stops_the_program(program: Program) -> None:
    outcome = program.record(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
        [(push("a"), pop()) for _ in range(20_000)]
        launch(20_000)
        time.sleep(0.3)
        """
    )
    assert outcome.exit_code == 0
    assert [line for line in outcome.warnings if "(File too large)" in line]
    trace = read(outcome.raw[0])
    assert 0 < trace.rows("range") + trace.rows("gpu_op") < 40_000
    assert {p.id for p in trace.meta.problems} >= {"dropped_records"}


def test_another_profiler_is_named_and_nvtx_goes_on(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUPTI_BUSY", "1")
    outcome = program.record('launch(5); push("a"); pop()')
    assert [line for line in outcome.warnings if "another profiler already uses CUPTI" in line]
    trace = read(outcome.raw[0])
    assert (trace.rows("range"), trace.rows("gpu_op")) == (1, 0)
    assert texts(trace, "diagnostic", "severity") == ["error"]


def test_what_cupti_refuses_or_drops_is_told(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUPTI_OLD", "1")
    monkeypatch.setenv("FAKE_CUPTI_DROPS", "1")
    trace = program.trace("launch(5)")
    assert any("activity kind 51" in text for text in texts(trace, "diagnostic", "text"))
    dropped = next(p for p in trace.meta.problems if p.id == "dropped_records")
    assert dropped.count == 5
    assert trace.rows("gpu_op") == 5


def test_graph_nodes_on_request(program: Program) -> None:
    trace = program.trace("cuda.fake_rest(); launch(3)", graph="node")
    assert set(texts(trace, "gpu_op", "kind")) == {"kernel"}
    assert trace.meta.capture_options["graph"] == "node"


def test_graphs_alone_are_gpu_work(program: Program) -> None:
    outcome = program.record("cuda.fake_rest()")
    assert outcome.warnings == []
    assert texts(read(outcome.raw[0]), "gpu_op", "kind") == ["graph"]


def test_what_a_capture_says_of_itself(program: Program) -> None:
    trace = program.trace("launch(3)")
    meta = trace.meta
    assert meta.source == "stepscope"
    assert "program1.py" in meta.command
    assert 0 <= meta.window_start_ns < meta.window_end_ns
    assert abs((meta.origin_epoch_ns or 0) / 1e9 - (trace.path / "meta.json").stat().st_mtime) < 60
    assert {a.table for a in meta.missing} >= {"metric_sample", "operator", "sched"}


def test_waits_in_the_c_library_and_for_pythons_lock(program: Program) -> None:
    trace = program.trace(
        """
        import select
        name = threading.current_thread().native_id
        push("around"); time.sleep(0.05); pop()
        r, w = os.pipe()
        threading.Timer(0.05, lambda: os.write(w, b"x")).start()
        select.poll().poll(0)
        os.read(r, 1)
        end = time.monotonic() + 0.3
        def spin():
            while time.monotonic() < end: pass
        threads = [threading.Thread(target=spin) for _ in range(3)]
        [t.start() for t in threads]; [t.join() for t in threads]
        launch(10)
        """,
        waits=True,
    )
    assert texts(trace, "range", "name") == ["around"]
    calls = [row for row in rows(trace, "api_call") if row["api"] == "osrt"]
    by_name = {row["name"]: row for row in calls}
    slept = by_name.get("clock_nanosleep") or by_name["select"]  # Python's versions differ
    around = rows(trace, "range")[0]
    assert around["start_ns"] <= slept["start_ns"] < slept["end_ns"] <= around["end_ns"]
    assert 45e6 < slept["end_ns"] - slept["start_ns"] < 300e6
    assert by_name["read"]["end_ns"] - by_name["read"]["start_ns"] > 20e6
    assert all(row["end_ns"] - row["start_ns"] >= 1000 for row in calls)
    gil = rows(trace, "gil")
    assert len(gil) > 10
    assert {row["state"] for row in gil} == {"waiting"}
    assert len({row["thread_id"] for row in gil}) >= 3
    assert "osrt" not in {a.table for a in trace.meta.missing}
