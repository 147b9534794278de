"""GPU work and what CUPTI says around it: kernels, copies, fills, graphs, waits, memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.importers.common.naming import MEMSET_NAME, copy_name, short_kernel_name
from stepscope.importers.stepscope import layout
from stepscope.importers.stepscope.launched import Called, unrecorded
from stepscope.importers.stepscope.raw import Raw
from stepscope.importers.stepscope.sink import Sink, constant, dictionary, ids, labels, texts
from stepscope.intervals.distinct import among, distinct_rows, distinct_values, with_inverse
from stepscope.trace.frame import AnyArray, BoolArray

TABLE = "gpu_op"
# CUpti_ActivityMemcpyKind, CUpti_ActivityMemoryKind and so on, by their documented numbers.
_COPIES = {
    0: "unknown",
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
_MEMORIES = {
    0: "unknown",
    1: "pageable",
    2: "pinned",
    3: "device",
    4: "array",
    5: "managed",
    6: "device_static",
    7: "managed_static",
}
_HOST_MEMORIES = (1, 2)
_SYNCS = {0: "unknown", 1: "event", 2: "stream_wait_event", 3: "stream", 4: "context"}
_OVERHEADS = {
    0: "Unknown",
    1: "Driver JIT",
    1 << 16: "Buffer flush",
    2 << 16: "Instrumentation",
    3 << 16: "Resource creation",
    4 << 16: "Module loading",
    5 << 16: "Lazy function loading",
    6 << 16: "Command buffer full",
    7 << 16: "Buffer request",
    8 << 16: "Unified memory set-up",
}
_OVERHEAD_OF_THREAD = 2
_STREAM_FLAGS = {0: "unknown", 1: "default", 2: "non_blocking", 3: "null"}


def read_gpu(sink: Sink, raw: Raw, process: int, known: Called | None) -> None:
    """Fill ``gpu_op`` with the work of one process, whose calls bear the known numbers."""
    for rows in raw.parts(layout.KERNEL):
        _put_kernels(sink, raw, process, _timed(sink, rows))
    for rows in raw.parts(layout.COPY):
        _put_copies(sink, process, _timed(sink, rows))
    for rows in raw.parts(layout.SET):
        _put_fills(sink, process, _timed(sink, rows))
    for rows in raw.parts(layout.GRAPH):
        recorded = rows[~unrecorded(raw, rows, known)]
        if len(recorded):
            _put_graphs(sink, process, _timed(sink, recorded))


def _put_kernels(sink: Sink, raw: Raw, process: int, kernels: AnyArray) -> None:
    shorts = {
        number: short_kernel_name(raw.texts[number])
        for number in distinct_values(kernels["name"]).tolist()
        if number in raw.texts
    }
    sink.put(
        TABLE,
        _common(sink, kernels, process, "kernel")
        | {
            "name": texts(raw, kernels["name"]).fill_null("[unnamed kernel]"),
            "short_name": texts(raw, kernels["name"], shorts),
            "mangled_name": texts(raw, kernels["symbol"]),
            **{
                f"{what}_{axis}": kernels[what][:, i]
                for what in ("grid", "block")
                for i, axis in enumerate("xyz")
            },
            "registers": kernels["registers"],
            "static_shared_bytes": kernels["static_shared"],
            "dynamic_shared_bytes": kernels["dynamic_shared"],
            "local_bytes": kernels["local"],
            "graph_node_id": ids(kernels["graph_node"], 0),
            "graph_id": ids(kernels["graph"], 0),
        },
    )


def _put_copies(sink: Sink, process: int, copies: AnyArray) -> None:
    kinds = {number: copy_name(kind) for number, kind in _COPIES.items()}
    sink.put(
        TABLE,
        _common(sink, copies, process, "memcpy")
        | {
            "name": labels(copies["kind"], kinds, "[CUDA memcpy {}]"),
            "bytes": copies["bytes"],
            "copy_kind": labels(copies["kind"], _COPIES),
            "src_memory": labels(copies["src_memory"], _MEMORIES),
            "dst_memory": labels(copies["dst_memory"], _MEMORIES),
            "src_device": _on_device(copies, "src"),
            "dst_device": _on_device(copies, "dst"),
            "graph_node_id": ids(copies["graph_node"], 0),
            "graph_id": ids(copies["graph"], 0),
        },
    )


def _put_fills(sink: Sink, process: int, fills: AnyArray) -> None:
    sink.put(
        TABLE,
        _common(sink, fills, process, "memset")
        | {
            "name": constant(MEMSET_NAME, len(fills)),
            "bytes": fills["bytes"],
            "src_memory": labels(fills["memory"], _MEMORIES),
            "graph_node_id": ids(fills["graph_node"], 0),
            "graph_id": ids(fills["graph"], 0),
        },
    )


def _put_graphs(sink: Sink, process: int, graphs: AnyArray) -> None:
    numbers, inverse = with_inverse(graphs["graph"])
    sink.put(
        TABLE,
        _common(sink, graphs, process, "graph")
        | {
            "name": dictionary(inverse, [f"[CUDA graph {n}]" for n in numbers.tolist()]),
            "graph_id": graphs["graph"].astype(np.int64),
        },
    )
    sink.writer.problems.count("graph_mode", len(graphs), scope=TABLE)


def _timed(sink: Sink, rows: AnyArray) -> AnyArray:
    """Rows that have a time: CUPTI gives none to work that was not finished."""
    lacking = (rows["start"] == 0) | (rows["end"] == 0)
    sink.writer.problems.count("no_time", int(lacking.sum()), scope=TABLE)
    return rows[~lacking] if lacking.any() else rows


def _on_device(copies: AnyArray, side: str) -> Any:
    """The device of a copy's side; null for the host's."""
    import pyarrow as pa

    host: BoolArray = among(copies[f"{side}_memory"], _HOST_MEMORIES)
    return pa.array(copies[f"{side}_device"].astype(np.int32), mask=host)


def _common(sink: Sink, rows: AnyArray, process: int, kind: str) -> dict[str, Any]:
    keys = [rows[name] for name in ("context", "device", "stream")]
    first, _ = distinct_rows(keys)
    for context, device, stream in zip(*(key[first].tolist() for key in keys), strict=True):
        sink.devices[process, context] = device
        sink.streams.add((process, context, device, stream))
    return {
        "kind": constant(kind, len(rows)),
        "process_id": np.full(len(rows), process),
        "device": rows["device"].astype(np.int32),
        "context": rows["context"].astype(np.int32),
        "stream": rows["stream"].astype(np.int64),
        "correlation_id": ids(rows["correlation"], 0),
        "start_ns": sink.times(rows["start"]),
        "end_ns": sink.times(rows["end"]),
    }


def read_syncs(sink: Sink, raw: Raw, process: int) -> None:
    """Fill ``sync`` and ``event_record``; GPU work has been read."""
    for rows in raw.parts(layout.SYNC):
        _put_syncs(sink, process, rows)
    for records in raw.parts(layout.EVENT):
        _put_events(sink, process, records)


def _put_syncs(sink: Sink, process: int, rows: AnyArray) -> None:
    sink.put(
        "sync",
        {
            "process_id": np.full(len(rows), process),
            "device": sink.device_of(process, rows["context"]),
            "context": rows["context"].astype(np.int32),
            "stream": ids(rows["stream"]),
            "correlation_id": ids(rows["correlation"], 0),
            "start_ns": sink.times(rows["start"]),
            "end_ns": sink.times(rows["end"]),
            "kind": labels(rows["type"], _SYNCS),
            "event_id": ids(rows["event"]),
            "event_sync_id": ids(rows["event_sync"], 0),
        },
    )


def _put_events(sink: Sink, process: int, records: AnyArray) -> None:
    times = records["device_time"].astype(np.int64)
    sink.put(
        "event_record",
        {
            "process_id": np.full(len(records), process),
            "device": sink.device_of(process, records["context"]),
            "context": records["context"].astype(np.int32),
            "stream": ids(records["stream"]),
            "correlation_id": ids(records["correlation"], 0),
            "event_id": records["event"].astype(np.int64),
            "event_sync_id": ids(records["event_sync"], 0),
            "time_ns": _or_null(times - sink.origin_ns, times == 0),
        },
    )


def _or_null(values: AnyArray, null: BoolArray) -> Any:
    import pyarrow as pa

    return pa.array(values, mask=null)


def read_memory(sink: Sink, raw: Raw, process: int) -> None:
    """Fill ``memory_event`` from the driver's allocations and releases."""
    for rows in raw.parts(layout.MEMORY):
        _put_memory(sink, process, rows)


def _put_memory(sink: Sink, process: int, rows: AnyArray) -> None:
    rows = rows[among(rows["operation"], (1, 2))]
    release = rows["operation"] == 2
    size = rows["bytes"].astype(np.int64)
    sink.put(
        "memory_event",
        {
            "process_id": np.full(len(rows), process),
            "time_ns": sink.times(rows["time"]),
            "kind": labels(rows["operation"], {1: "alloc", 2: "free"}),
            "device": _or_null(
                rows["device"].astype(np.int32), among(rows["kind"], _HOST_MEMORIES)
            ),
            "address": rows["address"].astype(np.int64),
            "bytes": np.where(release, -size, size),
        },
    )


def read_overhead(sink: Sink, raw: Raw, process: int) -> None:
    """Fill ``overhead``: what CUPTI says it cost itself."""
    for rows in raw.parts(layout.OVERHEAD):
        _put_overhead(sink, process, rows)


def _put_overhead(sink: Sink, process: int, rows: AnyArray) -> None:
    rows = rows[(rows["start"] != 0) & (rows["end"] != 0)]
    sink.put(
        "overhead",
        {
            "process_id": np.full(len(rows), process),
            "thread_id": _or_null(
                rows["thread"].astype(np.int64), rows["object_kind"] != _OVERHEAD_OF_THREAD
            ),
            "start_ns": sink.times(rows["start"]),
            "end_ns": sink.times(rows["end"]),
            "name": labels(rows["kind"], _OVERHEADS),
        },
    )


def read_streams(sink: Sink, raw: Raw, process: int) -> None:
    """Fill ``stream``: those that CUPTI announced and those that work ran on."""
    said = {
        (context, stream): (priority, flag)
        for context, stream, priority, flag in raw.of(layout.STREAM).tolist()
    }
    used = {(c, s): d for p, c, d, s in sink.streams if p == process}
    records = []
    for context, stream in sorted(said.keys() | used.keys()):
        priority, flag = said.get((context, stream), (None, None))
        records.append(
            {
                "process_id": process,
                "context": context,
                "device": used.get((context, stream), sink.devices.get((process, context))),
                "stream": stream,
                "priority": priority,
                "flag": None if flag is None else _STREAM_FLAGS.get(flag),
            }
        )
    sink.put_records("stream", records)
