"""GPU work, and what the driver and the capturing tool report around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from stepscope.importers.common.cuda import COPY_KINDS, COPY_LABELS, MEMORY_KINDS, SYNC_KINDS
from stepscope.importers.nsys.rows import Columns, Field, Rows, code, may, merged, must
from stepscope.importers.nsys.sink import Sink, process_of, thread_of
from stepscope.intervals.distinct import among, distinct_rows, distinct_values
from stepscope.trace.frame import BoolArray, IntArray

_PAGE_BITS = 16
_PAGE = 1 << _PAGE_BITS
_MAX_PAGES = 4096
Flags = npt.NDArray[np.uint8]


class CorrelationFlags:
    """A set of flags for each (process, correlation id).

    Ids are handed out in sequence, so pages of 65,536 ids fill up; with absurdly scattered ids
    (more than ``_MAX_PAGES`` pages) the set gives up and ``complete`` turns False.
    """

    def __init__(self) -> None:
        self._pages: dict[tuple[int, int], Flags] = {}
        self.complete = True

    def mark(self, processes: IntArray, ids: IntArray, flag: int) -> None:
        """Set a flag for ids."""
        for process, page, where in _pages(processes, ids):
            flags = self._pages.get((process, page))
            if flags is None:
                if len(self._pages) >= _MAX_PAGES:
                    self.complete = False
                    return
                flags = self._pages[process, page] = np.zeros(_PAGE, np.uint8)
            low = ids[where] & (_PAGE - 1)
            flags[low] |= flag

    def lacking(self, processes: IntArray, ids: IntArray, flag: int) -> int:
        """How many of these rows have an id without the flag."""
        count = 0
        for process, page, where in _pages(processes, ids):
            flags = self._pages.get((process, page))
            low = ids[where] & (_PAGE - 1)
            count += len(low) if flags is None else int((flags[low] & flag == 0).sum())
        return count

    def count(self, with_flag: int, without: int) -> int:
        """How many ids have the first flag but not the second."""
        wanted = with_flag | without
        return sum(int((page & wanted == with_flag).sum()) for page in self._pages.values())


def _pages(processes: IntArray, ids: IntArray) -> list[tuple[int, int, BoolArray | slice]]:
    """The rows of each (process, page); ids are mostly of one process and close together."""
    if not len(ids):
        return []
    pages = ids >> _PAGE_BITS
    if processes[0] == processes[-1] and (processes == processes[0]).all():
        low, high = int(pages.min()), int(pages.max())
        if low == high:
            return [(int(processes[0]), low, slice(None))]
        found = distinct_values(pages).tolist()
        return [(int(processes[0]), page, pages == page) for page in found]
    first, _ = distinct_rows((processes, pages))
    pairs = zip(processes[first].tolist(), pages[first].tolist(), strict=True)
    return [(p, page, (processes == p) & (pages == page)) for p, page in pairs]


TABLE = "gpu_op"
NO_ID = 4294967295
"""The unsigned 32-bit -1 that stands for "none" in stream and event ids."""
# Codes of exports that hold no ENUM_* tables, or newer codes.
MEMCPY_LABELS = {
    **{number: COPY_LABELS.get(kind, "Unknown") for number, kind in enumerate(COPY_KINDS)},
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
_MIGRATIONS: Final = [11, 12, 13]
"""Pages of managed memory that move when they are touched: no call asks for them."""
_MEMCPY_KINDS = {**dict(enumerate(COPY_KINDS)), 11: "UVM HtoD", 12: "UVM DtoH", 13: "UVM DtoD"}
_MEMORY_KINDS = {**dict(enumerate(MEMORY_KINDS)), len(MEMORY_KINDS): "unknown"}
_HOST_MEMORY = (0, 1)
OVERHEAD_LABELS = {
    0: "Undefined",
    1: "Unknown",
    2: "Driver JIT",
    3: "Buffer flush",
    4: "Instrumentation",
    5: "Resource creation",
    6: "Module loading",
    7: "Lazy function loading",
    8: "Command buffer full",
}
API, LAUNCH, DEVICE = 1, 2, 4
"""Flags of a correlation id: a host call has it; a kernel launch has it; GPU work has it."""

_COMMON = (
    must("start", "time"),
    must("end", "time"),
    must("deviceId", "int32"),
    code("contextId", "int32"),
    may("greenContextId", "int32", none=(0,)),
    must("streamId"),
    may("correlationId"),
    may("globalPid"),
    may("graphNodeId"),
    may("graphId", none=(0,)),
)
_KERNEL = (
    *_COMMON,
    must("demangledName"),
    code("shortName"),
    may("mangledName"),
    code("gridX", "int32"),
    code("gridY", "int32"),
    code("gridZ", "int32"),
    code("blockX", "int32"),
    code("blockY", "int32"),
    code("blockZ", "int32"),
    code("registersPerThread", "int32"),
    code("staticSharedMemory"),
    code("dynamicSharedMemory"),
    code("localMemoryPerThread"),
)
_SAME = {
    "device": "deviceId",
    "context": "contextId",
    "green_context": "greenContextId",
    "stream": "streamId",
    "correlation_id": "correlationId",
    "start_ns": "start",
    "end_ns": "end",
    "graph_node_id": "graphNodeId",
    "graph_id": "graphId",
}
_SAME_KERNEL = {
    "grid_x": "gridX",
    "grid_y": "gridY",
    "grid_z": "gridZ",
    "block_x": "blockX",
    "block_y": "blockY",
    "block_z": "blockZ",
    "registers": "registersPerThread",
    "static_shared_bytes": "staticSharedMemory",
    "dynamic_shared_bytes": "dynamicSharedMemory",
    "local_bytes": "localMemoryPerThread",
}
_SAME_COPY = {
    "src_device": "srcDeviceId",
    "dst_device": "dstDeviceId",
    "virtual_address": "virtualAddress",
}


class GpuReader:
    """Reads all GPU work.

    Args:
        sink: takes the rows.
        flags: correlation ids of host calls, already complete; receives those of the GPU.
        memcpy_labels: label of each copy kind.
        default_process: process of rows that name none.
    """

    def __init__(
        self,
        sink: Sink,
        flags: CorrelationFlags,
        memcpy_labels: dict[int, str],
        default_process: int,
    ) -> None:
        self._sink = sink
        self._flags = flags
        self._memcpy_labels = memcpy_labels
        self._default_process = default_process
        self.graph_rows = 0
        self.node_rows = 0

    def read(self) -> None:
        """Fill ``gpu_op``."""
        self._sink.put_all(
            TABLE, merged([self._kernels(), self._copies(), self._memsets(), self._graphs()])
        )
        self._sink.tables.problems.count(
            "graph_mode", self.graph_rows, scope=TABLE, detail="CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
        )

    def _kernels(self) -> Iterator[Columns]:
        name = self._sink.names(TABLE, "name")
        short = self._sink.names(TABLE, "short_name")
        mangled = self._sink.names(TABLE, "mangled_name")
        for rows in self._rows("CUPTI_ACTIVITY_KIND_KERNEL", _KERNEL):
            columns = self._common(rows, "kernel")
            columns |= {ours: rows[theirs] for ours, theirs in _SAME_KERNEL.items()}
            columns["name"] = name(rows["demangledName"])
            columns["short_name"] = short(rows["shortName"])
            columns["mangled_name"] = mangled(rows["mangledName"])
            yield columns

    def _copies(self) -> Iterator[Columns]:
        fields = (
            *_COMMON,
            code("bytes"),
            must("copyKind"),
            code("srcKind"),
            code("dstKind"),
            code("srcDeviceId", "int32", none=(NO_ID,)),
            code("dstDeviceId", "int32", none=(NO_ID,)),
            may("virtualAddress"),
        )
        names = {kind: f"[CUDA memcpy {text}]" for kind, text in self._memcpy_labels.items()}
        kinds, memory = _MEMCPY_KINDS, _MEMORY_KINDS
        sink = self._sink
        for rows in self._rows("CUPTI_ACTIVITY_KIND_MEMCPY", fields):
            columns = self._common(rows, "memcpy")
            columns["bytes"] = rows["bytes"]
            for ours, theirs in _SAME_COPY.items():
                if rows[theirs].null_count < len(rows):
                    columns[ours] = rows[theirs]
            kind = rows["copyKind"]
            columns["name"] = sink.labels(TABLE, "name", kind, names, "[CUDA memcpy {}]")
            columns["copy_kind"] = sink.labels(TABLE, "copy_kind", kind, kinds, "{}")
            for ours, theirs in (("src_memory", "srcKind"), ("dst_memory", "dstKind")):
                columns[ours] = sink.labels(TABLE, ours, rows[theirs], memory, "{}")
            yield columns

    def _memsets(self) -> Iterator[Columns]:
        fields = (*_COMMON, code("bytes"), code("memKind"))
        sink = self._sink
        for rows in self._rows("CUPTI_ACTIVITY_KIND_MEMSET", fields):
            columns = self._common(rows, "memset")
            columns["bytes"] = rows["bytes"]
            columns["name"] = sink.constant(TABLE, "name", "[CUDA memset]", len(rows))
            columns["src_memory"] = sink.labels(
                TABLE, "src_memory", rows["memKind"], _MEMORY_KINDS, "{}"
            )
            yield columns

    def _graphs(self) -> Iterator[Columns]:
        import pyarrow.compute as pc

        fields = (*_COMMON, may("graphExecId", none=(0,)))
        for rows in self._rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", fields):
            columns = self._common(rows, "graph")
            graph = pc.coalesce(rows["graphId"], rows["graphExecId"])
            columns["graph_id"] = graph
            columns["name"] = self._sink.labels(
                TABLE, "name", graph.fill_null(0), {0: "[CUDA graph]"}, "[CUDA graph {}]"
            )
            self.graph_rows += len(rows)
            yield columns

    def _rows(self, table: str, fields: tuple[Field, ...]) -> Iterator[Rows]:
        return self._sink.tables.read(table, fields, TABLE)

    def _common(self, rows: Rows, kind: str) -> Columns:
        import pyarrow as pa

        sink = self._sink
        columns: Columns = {ours: rows[theirs] for ours, theirs in _SAME.items()}
        columns = {name: data for name, data in columns.items() if data.null_count < len(data)}
        process = process_of(rows.ints("globalPid"))
        named = rows.valid("globalPid")
        if not named.all():
            process = np.where(named, process, self._default_process)
        columns["process_id"] = pa.array(process)
        columns["kind"] = sink.constant(TABLE, "kind", kind, len(rows))
        migrated = among(rows.ints("copyKind"), _MIGRATIONS) if kind == "memcpy" else None
        self._check_correlation(rows, process, migrated)
        self._note_streams(rows, process)
        self.node_rows += len(rows) - rows["graphNodeId"].null_count
        return columns

    def _check_correlation(self, rows: Rows, process: IntArray, migrated: BoolArray | None) -> None:
        ids, known = rows.ints("correlationId"), rows.valid("correlationId")
        called = np.ones(len(ids), bool) if migrated is None else ~migrated
        missing = int((called & ~known).sum())
        known = known & called
        if not known.all():
            ids, process = ids[known], process[known]
        lacking = self._flags.lacking(process, ids, API) + missing
        if lacking and self._flags.complete:
            self._sink.tables.problems.count("unresolved_correlation", lacking, scope=TABLE)
        self._flags.mark(process, ids, DEVICE)

    def _note_streams(self, rows: Rows, process: IntArray) -> None:
        if not len(rows):
            return
        keys = np.stack(
            [process, rows.ints("contextId"), rows.ints("deviceId"), rows.ints("streamId")]
        )
        changes = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
        found = keys[:, np.concatenate(([0], changes))]
        found = found[:, distinct_rows(list(found))[0]]
        self._sink.streams.update(map(tuple, found.T.tolist()))
        self._sink.processes.update(distinct_values(found[0]).tolist())


_NO_IDS = (NO_ID, -1)


def read_syncs(sink: Sink) -> None:
    """Fill ``sync``."""
    import pyarrow as pa

    fields = (
        must("start", "time"),
        must("end", "time"),
        code("deviceId", "int32"),
        code("contextId", "int32"),
        code("streamId", none=_NO_IDS),
        may("correlationId"),
        must("globalPid"),
        code("syncType"),
        code("eventId", none=_NO_IDS),
        code("eventSyncId", none=_NO_IDS),
    )
    for rows in sink.tables.read("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", fields, "sync"):
        kinds = rows["syncType"].fill_null(0)
        sink.put(
            "sync",
            {
                "process_id": pa.array(process_of(rows.ints("globalPid"))),
                "device": rows["deviceId"],
                "context": rows["contextId"],
                "stream": rows["streamId"],
                "correlation_id": rows["correlationId"],
                "start_ns": rows["start"],
                "end_ns": rows["end"],
                "kind": sink.labels("sync", "kind", kinds, SYNC_KINDS, "unknown"),
                "event_id": rows["eventId"],
                "event_sync_id": rows["eventSyncId"],
            },
        )


def read_event_records(sink: Sink) -> None:
    """Fill ``event_record``."""
    import pyarrow as pa

    fields = (
        code("deviceId", "int32"),
        code("contextId", "int32"),
        code("streamId", none=_NO_IDS),
        may("correlationId"),
        must("globalPid"),
        must("eventId"),
        code("eventSyncId", none=_NO_IDS),
        may("timestamp", "time", none=(0,)),
    )
    for rows in sink.tables.read("CUPTI_ACTIVITY_KIND_CUDA_EVENT", fields, "event_record"):
        sink.put(
            "event_record",
            {
                "process_id": pa.array(process_of(rows.ints("globalPid"))),
                "device": rows["deviceId"],
                "context": rows["contextId"],
                "stream": rows["streamId"],
                "correlation_id": rows["correlationId"],
                "event_id": rows["eventId"],
                "event_sync_id": rows["eventSyncId"],
                "time_ns": rows["timestamp"],
            },
        )


def read_overhead(sink: Sink, labels: dict[int, str]) -> None:
    """Fill ``overhead``; ``labels`` name the overhead types of exports without names."""
    for table in ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"):
        _read_overhead(sink, table, labels)


def _read_overhead(sink: Sink, table: str, labels: dict[int, str]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = (
        must("start", "time"),
        must("end", "time"),
        may("globalTid"),
        code("nameId"),
        code("overheadType"),
    )
    name = sink.names("overhead", "name")
    for rows in sink.tables.read(table, fields, "overhead"):
        tids, known = rows.ints("globalTid"), rows.valid("globalTid")
        sink.saw_threads(tids[known])
        by_type = sink.labels(
            "overhead", "name", rows["overheadType"].fill_null(1), labels, "overhead type {}"
        )
        sink.put(
            "overhead",
            {
                "process_id": pa.array(process_of(tids), mask=~known),
                "thread_id": pa.array(thread_of(tids), mask=~known),
                "start_ns": rows["start"],
                "end_ns": rows["end"],
                "name": pc.coalesce(name(rows["nameId"]), by_type),
            },
        )


def read_memory_events(sink: Sink) -> None:
    """Fill ``memory_event`` from the driver's allocations and releases."""
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = (
        must("start", "time"),
        must("globalPid"),
        code("deviceId", "int32"),
        must("bytes"),
        code("address"),
        code("memKind"),
        must("memoryOperationType"),
    )
    table = "memory_event"
    for rows in sink.tables.read("CUDA_GPU_MEMORY_USAGE_EVENTS", fields, table):
        released = pc.equal(rows["memoryOperationType"], 1)
        on_host = pc.is_in(rows["memKind"], value_set=pa.array(_HOST_MEMORY, pa.int64()))
        size = rows["bytes"]
        kind = sink.labels(
            table, "kind", rows["memoryOperationType"], {0: "alloc", 1: "free"}, "{}"
        )
        sink.put(
            table,
            {
                "process_id": pa.array(process_of(rows.ints("globalPid"))),
                "time_ns": rows["start"],
                "kind": kind,
                "device": pc.if_else(on_host, pa.scalar(None, pa.int32()), rows["deviceId"]),
                "address": rows["address"],
                "bytes": pc.if_else(released, pc.negate(pc.abs(size)), size),
            },
        )
