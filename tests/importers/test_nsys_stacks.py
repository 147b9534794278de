"""Stacks of samples and states of threads, from exports of Nsight Systems."""

from __future__ import annotations

from nsys_data.build import MAIN, PID, make, read, rows, small, strings


def point(start: int, into: int, state: int | None, cpu: int = 0) -> dict[str, int | None]:
    return {"start": start, "cpu": cpu, "isSchedIn": into, "globalTid": MAIN, "threadState": state}


def test_frames_count_from_the_outermost(tmp_path):
    tables = small()
    tables["StringIds"] = strings("cudaLaunchKernel_v7000", "gemm(float*)", "main", "leaf", "a.so")
    tables["COMPOSITE_EVENTS"] = [
        {"id": n, "start": 10 * n, "cpu": 1, "globalTid": MAIN, "cpuCycles": 5} for n in (1, 2)
    ]
    # the second stack before the first, its frames apart: nothing is said about the order
    tables["SAMPLING_CALLCHAINS"] = [
        {"id": 2, "symbol": 4, "module": None, "stackDepth": 0},
        {"id": 1, "symbol": 4, "module": 5, "stackDepth": 0},
        {"id": 1, "symbol": 3, "module": 5, "stackDepth": 2},
        {"id": 1, "symbol": 77, "module": 5, "stackDepth": 1},
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    frames = sorted(
        (r["stack_id"], r["depth"], r["function"], r["module"]) for r in rows(trace, "stack_frame")
    )
    assert frames == [
        (1, 0, "main", "a.so"),
        (1, 1, "[string 77]", "a.so"),
        (1, 2, "leaf", "a.so"),
        (2, 0, "leaf", None),
    ]
    assert {r["stack_id"] for r in rows(trace, "cpu_sample")} == {1, 2}


def test_states_between_runs(tmp_path):
    tables = small()
    tables["SCHED_EVENTS"] = [
        point(100, 1, None),
        point(200, 0, 3),  # uninterruptible
        point(260, 1, None),
        point(300, 0, 1),  # still wanted to run
        point(310, 1, None, cpu=1),
        point(400, 0, 2, cpu=1),
        point(500, 1, None),
        point(600, 0, 5),  # ended: no state of a thread
    ]
    trace = read(make(tmp_path / "a.sqlite", tables), tmp_path)
    states = [(r["start_ns"], r["end_ns"], r["state"]) for r in rows(trace, "thread_state")]
    assert states == [
        (100, 200, "running"),
        (200, 260, "disk"),
        (260, 300, "running"),
        (300, 310, "runnable"),
        (310, 400, "running"),
        (400, 500, "sleeping"),
        (500, 600, "running"),
    ]
    assert {r["process_id"] for r in rows(trace, "thread_state")} == {PID}


def test_exports_that_do_not_tell_states_have_none(tmp_path):
    tables = small()
    tables["SCHED_EVENTS"] = [point(100, 1, None), point(200, 0, None), point(300, 1, None)]
    path = make(tmp_path / "a.sqlite", tables, without=["SCHED_EVENTS.threadState"])
    trace = read(path, tmp_path)
    assert trace.rows("thread_state") == 0
    assert trace.rows("sched") == 2
    missing = {one.table: one.flag for one in trace.meta.missing}
    assert missing["thread_state"] == "nsys profile --cpuctxsw=process-tree"
    assert missing["stack_frame"] == "nsys profile --sample=process-tree"
