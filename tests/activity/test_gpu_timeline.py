"""Which rows belong to which process and device, against picking them one by one."""

from __future__ import annotations

import numpy as np

from stepscope.activity.device import gpus, rows_by
from stepscope.trace.frame import Frame


def test_rows_of_each_value() -> None:
    values = np.array([7, 3, 7, 7, 3, 9])
    found = {value: rows.tolist() for value, rows in rows_by(values).items()}
    assert found == {3: [1, 4], 7: [0, 2, 3], 9: [5]}
    assert {v: r.tolist() for v, r in rows_by(np.array([4, 4])).items()} == {4: [0, 1]}
    assert rows_by(np.empty(0, np.int64)) == {}


def test_lanes_of_processes_with_several_devices() -> None:
    random = np.random.default_rng(5)
    n = 300
    process, device = random.choice([10, 20, 30], n, p=[0.2, 0.5, 0.3]), random.integers(0, 2, n)
    ids = np.arange(1, n + 1)
    texts = {"kind": ["kernel"], "name": ["gemm"], "copy_kind": [], "src_memory": [],
             "dst_memory": []}  # fmt: skip
    zero, none = np.zeros(n, np.int32), np.full(n, -1, np.int32)
    time = ids * 1000
    gpu = Frame(
        {"id": ids - 1, "kind": zero, "process_id": process, "device": device, "stream": zero,
         "correlation_id": ids, "start_ns": time + 500, "end_ns": time + 900, "name": zero,
         "bytes": none, "copy_kind": none, "src_memory": none, "dst_memory": none,
         "graph_id": none}, texts)  # fmt: skip
    known = random.random(n) < 0.9  # calls of the others were not recorded
    api = Frame(
        {"id": ids - 1, "api": zero, "process_id": process, "thread_id": process,
         "start_ns": time, "end_ns": time + 100, "name": zero,
         "correlation_id": np.where(known, ids, -1)},
        {"api": ["runtime"], "name": ["cudaLaunchKernel"]})  # fmt: skip
    empty = np.empty(0, np.int64)
    tables = {"gpu_op": gpu, "api_call": api}

    def read(table: str, *columns: str) -> Frame:
        found = tables.get(table, Frame(dict.fromkeys(columns, empty), {"kind": [], "name": []}))
        return found.only(columns)

    found = gpus(read)
    counts = {p: int((process == p).sum()) for p in (10, 20, 30)}
    order = sorted(counts, key=lambda p: -counts[p])
    assert [(gpu_timeline.process_id, gpu_timeline.device) for gpu_timeline in found] == [
        (p, d) for p in order for d in (0, 1)
    ]
    for gpu_timeline in found:
        mine = (process == gpu_timeline.process_id) & (device == gpu_timeline.device)
        assert gpu_timeline.ops["correlation_id"].tolist() == ids[mine].tolist()
        assert len(gpu_timeline.host.api) == counts[gpu_timeline.process_id]
        linked = gpu_timeline.host.api["correlation_id"][gpu_timeline.call[gpu_timeline.call >= 0]]
        assert linked.tolist() == ids[mine & known].tolist()
        assert (gpu_timeline.call >= 0).tolist() == known[mine].tolist()
        assert gpu_timeline.host.launch_threads == [gpu_timeline.process_id]


def test_only_the_texts_that_rows_have() -> None:
    names = Frame({"name": np.array([4, -1, 1, 4], np.int32)}, {"name": list("abcdef")})
    kept = names.with_used_texts("name")
    assert kept.texts["name"] == ["b", "e"]
    assert [kept.text("name", row) for row in range(4)] == ["e", "", "b", "e"]
    many = Frame(names.columns, {"name": [f"t{i}" for i in range(100)]})
    assert many.with_used_texts("name").texts["name"] == ["t1", "t4"]
    assert kept.with_used_texts("name") is kept
