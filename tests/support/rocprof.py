"""Results of rocprofv3 written for tests: one run as JSON and as a database of either layout."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KINDS = {
    "HIP_RUNTIME_API": ["hipLaunchKernel", "hipMemcpyAsync"],
    "MARKER_CORE_RANGE_API": ["roctxMarkA", "roctxThreadRangeA"],
    "MEMORY_COPY": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE", "MEMORY_COPY_DEVICE_TO_HOST"],
}
KERNELS = ["", "void gemm<float>(float*)", "Cijk_Ailk_Bljk_SB_MT64.kd"]
HOST, GPU = 7, 8  # agents
PID = 4711
INIT_NS = 5_000_000_000


@dataclass
class Run:
    """A loop: in each step a range, a copy to the device and two kernels, with their calls."""

    steps: int = 6
    kernels: list[dict[str, int]] = field(default_factory=list)
    copies: list[dict[str, int]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        at, number = INIT_NS + 1_000_000, 0
        for step in range(self.steps):
            number += 1
            self._call("MARKER_CORE_RANGE_API", 1, at, 4_600_000, number, f"step {step}")
            number += 1
            self._call("HIP_RUNTIME_API", 1, at + 10_000, 20_000, number)
            self.copies.append(
                {"start": at + 40_000, "end": at + 50_000, "correlation": number, "bytes": 8192}
            )
            for kernel in (1, 2):
                number += 1
                begin = at + 100_000 * kernel
                self._call("HIP_RUNTIME_API", 0, begin, 10_000, number)
                start = at + 60_000 + 2_300_000 * (kernel - 1)
                start = max(start, begin + 20_000)
                self.kernels.append(
                    {"start": start, "end": at + 60_000 + 2_300_000 * kernel, "kernel": kernel,
                     "correlation": number}
                )  # fmt: skip
            at += 4_680_000

    def _call(
        self, kind: str, operation: int, start: int, length: int, number: int, text: str = ""
    ) -> None:
        self.calls.append(
            {"kind": kind, "operation": operation, "start": start, "end": start + length,
             "correlation": number, "message": text}
        )  # fmt: skip


def as_json(run: Run) -> bytes:
    """As ``PID_results.json``."""
    kinds = list(KINDS)

    def call(item: dict[str, Any]) -> dict[str, Any]:
        return {
            "kind": kinds.index(item["kind"]), "operation": item["operation"], "thread_id": PID,
            "start_timestamp": item["start"], "end_timestamp": item["end"],
            "correlation_id": {"internal": item["correlation"], "external": 0},
        }  # fmt: skip

    tool = {
        "metadata": {"pid": PID, "init_time": INIT_NS, "fini_time": INIT_NS + 10**9,
                     "node": {"hostname": "amd1"}, "command": ["python", "train.py"]},
        "agents": [
            {"id": {"handle": HOST}, "type": 1, "name": "EPYC"},
            {"id": {"handle": GPU}, "type": 2, "name": "gfx942", "logical_node_type_id": 0,
             "product_name": "AMD Instinct MI300X", "cu_count": 304,
             "max_engine_clk_fcompute": 2100, "mem_banks": [{"size_in_bytes": 1000}]},
        ],
        "strings": {
            "buffer_records": [{"kind": k, "operations": names} for k, names in KINDS.items()],
            "marker_api": [{"key": c["correlation"], "value": c["message"]}
                           for c in run.calls if c["message"]],
        },
        "kernel_symbols": [
            {"kernel_id": n, "kernel_name": name, "formatted_kernel_name": name or 0}
            for n, name in enumerate(KERNELS)
        ],
        "buffer_records": {
            "kernel_dispatch": [
                {"start_timestamp": k["start"], "end_timestamp": k["end"], "thread_id": PID,
                 "correlation_id": {"internal": k["correlation"], "external": 0},
                 "dispatch_info": {
                     "agent_id": {"handle": GPU}, "queue_id": {"handle": 3},
                     "kernel_id": k["kernel"], "group_segment_size": 64,
                     "workgroup_size": {"x": 256, "y": 1, "z": 1},
                     "grid_size": {"x": 1000, "y": 2, "z": 1}},
                 "stream_id": {"handle": 5}}
                for k in run.kernels
            ],
            "memory_copy": [
                {"start_timestamp": c["start"], "end_timestamp": c["end"], "bytes": c["bytes"],
                 "kind": kinds.index("MEMORY_COPY"), "operation": 1,
                 "src_agent_id": {"handle": HOST}, "dst_agent_id": {"handle": GPU},
                 "stream_id": {"handle": 5}, "correlation_id": {"internal": c["correlation"]}}
                for c in run.copies
            ],
            "hip_api": [call(c) for c in run.calls if c["kind"].startswith("HIP")],
            "marker_api": [call(c) for c in run.calls if c["kind"].startswith("MARKER")],
        },
    }  # fmt: skip
    return json.dumps({"rocprofiler-sdk-tool": [tool]}).encode()


def as_database(run: Run, path: Path, *, tracks: bool) -> None:
    """As ``PID_results.db``.

    Args:
        run: the run.
        path: the file.
        tracks: whether times and places stand in tables of their own, as in schema 4.
    """
    end = "_00ab_cd"
    strings: dict[str, int] = {}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings) + 1)

    with closing(sqlite3.connect(path)) as c:

        def table(name: str, columns: str) -> None:
            c.execute(f'CREATE TABLE "{name}{end}" ({columns})')
            c.execute(f'CREATE VIEW "{name}" AS SELECT * FROM "{name}{end}"')

        def put(name: str, *values: Any) -> None:
            c.execute(f'INSERT INTO "{name}{end}" VALUES ({", ".join("?" * len(values))})', values)

        table("rocpd_string", "id INTEGER PRIMARY KEY, string TEXT")
        table("rocpd_info_node", "id INTEGER, hostname TEXT")
        table("rocpd_info_process", "id INTEGER, pid INTEGER, name TEXT, init, fini, command TEXT")
        table("rocpd_info_thread", "id INTEGER, tid INTEGER")
        table("rocpd_info_agent", "id INTEGER, type TEXT, type_index, name TEXT, product_name TEXT")
        table("rocpd_info_kernel_symbol", "id INTEGER, kernel_name TEXT, display_name TEXT")
        table("rocpd_event", "id INTEGER PRIMARY KEY, stack_id, category_id, extdata TEXT")
        put("rocpd_info_node", 1, "amd1")
        put("rocpd_info_process", 1, PID, None, INIT_NS, INIT_NS + 10**9, "python train.py")
        put("rocpd_info_thread", 9, PID)
        put("rocpd_info_agent", HOST, "CPU", 0, "EPYC", "EPYC")
        put("rocpd_info_agent", GPU, "GPU", 0, "gfx942", "AMD Instinct MI300X")
        for number, name in enumerate(KERNELS):
            put("rocpd_info_kernel_symbol", number + 20, name, name)
        where = "track_id, start_id, end_id" if tracks else 'tid, start, "end"'
        place = "" if tracks else ", agent_id, queue_id, stream_id"
        table(
            "rocpd_kernel_dispatch",
            f"id INTEGER, {where}{place}, kernel_id, event_id, "
            "group_segment_size, private_segment_size, "
            + ", ".join(f"{w}_size_{a}" for w in ("workgroup", "grid") for a in "xyz"),
        )
        copy_place = "" if tracks else ", queue_id, stream_id"
        table(
            "rocpd_memory_copy",
            f"id INTEGER, {where}{copy_place}, name_id, src_agent_id, dst_agent_id, size, event_id",
        )
        table("rocpd_region", f"id INTEGER, {where}, name_id, event_id")
        if tracks:
            table("rocpd_timestamp", "id INTEGER PRIMARY KEY, value")
            table("rocpd_track", "id INTEGER PRIMARY KEY, tid, agent_id, queue_id, stream_id")
            put("rocpd_track", 1, 9, GPU, 3, 5)
            put("rocpd_track", 2, 9, None, None, None)
        stamps = 0

        def times(item: dict[str, Any], track: int) -> tuple[int, ...]:
            nonlocal stamps
            if not tracks:
                return 9, item["start"], item["end"]
            for value in (item["start"], item["end"]):
                stamps += 1
                put("rocpd_timestamp", stamps, value)
            return track, stamps - 1, stamps

        events = 0

        def event(item: dict[str, Any], kind: str) -> int:
            nonlocal events
            events += 1
            extra = json.dumps({"message": item["message"]}) if item.get("message") else "{}"
            put("rocpd_event", events, item["correlation"], text(kind), extra)
            return events

        for number, k in enumerate(run.kernels, 1):
            at = () if tracks else (GPU, 3, 5)
            put(
                "rocpd_kernel_dispatch",
                number,
                *times(k, 1),
                *at,
                k["kernel"] + 20,
                event(k, "KERNEL_DISPATCH"),
                64,
                0,
                256,
                1,
                1,
                1000,
                2,
                1,
            )
        for number, m in enumerate(run.copies, 1):
            at = () if tracks else (3, 5)
            put(
                "rocpd_memory_copy",
                number,
                *times(m, 1),
                *at,
                text("MEMORY_COPY_HOST_TO_DEVICE"),
                HOST,
                GPU,
                m["bytes"],
                event(m, "MEMORY_COPY"),
            )
        for number, r in enumerate(run.calls, 1):
            name = KINDS[r["kind"]][r["operation"]]
            put("rocpd_region", number, *times(r, 2), text(name), event(r, r["kind"]))
        for value, number in strings.items():
            put("rocpd_string", number, value)
        c.commit()
