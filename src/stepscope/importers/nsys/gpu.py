"""Kernels, copies, fills and whole graphs: the canonical table ``gpu_op``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from stepscope.importers.nsys import codes
from stepscope.importers.nsys.correlation import CorrelationFlags
from stepscope.importers.nsys.merge import Columns, merged
from stepscope.importers.nsys.rows import Field, Rows, code, may, must
from stepscope.importers.nsys.sink import Sink, process_of
from stepscope.intervals.distinct import distinct_rows, distinct_values
from stepscope.trace.frame import IntArray

if TYPE_CHECKING:
    import pyarrow as pa

TABLE = "gpu_op"
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
            TABLE, merged([self._kernels(), self._copies(), self._fills(), self._graphs()])
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
            code("srcDeviceId", "int32", none=(codes.NO_ID,)),
            code("dstDeviceId", "int32", none=(codes.NO_ID,)),
            may("virtualAddress"),
        )
        names = {kind: f"[CUDA memcpy {text}]" for kind, text in self._memcpy_labels.items()}
        kinds, memory = codes.MEMCPY_KINDS, codes.MEMORY_KINDS
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

    def _fills(self) -> Iterator[Columns]:
        fields = (*_COMMON, code("bytes"), code("memKind"))
        sink = self._sink
        for rows in self._rows("CUPTI_ACTIVITY_KIND_MEMSET", fields):
            columns = self._common(rows, "memset")
            columns["bytes"] = rows["bytes"]
            columns["name"] = sink.constant(TABLE, "name", "[CUDA memset]", len(rows))
            columns["src_memory"] = sink.labels(
                TABLE, "src_memory", rows["memKind"], codes.MEMORY_KINDS, "{}"
            )
            yield columns

    def _graphs(self) -> Iterator[Columns]:
        fields = (*_COMMON, may("graphExecId", none=(0,)))
        for rows in self._rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", fields):
            columns = self._common(rows, "graph")
            graph = _coalesce(rows["graphId"], rows["graphExecId"])
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
        self._check_correlation(rows, process)
        self._note_streams(rows, process)
        self.node_rows += len(rows) - rows["graphNodeId"].null_count
        return columns

    def _check_correlation(self, rows: Rows, process: IntArray) -> None:
        ids, known = rows.ints("correlationId"), rows.valid("correlationId")
        if not known.all():
            ids, process = ids[known], process[known]
        lacking = self._flags.lacking(process, ids, API) + int((~known).sum())
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


def _coalesce(first: pa.Array, second: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.coalesce(first, second)
