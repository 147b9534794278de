"""CUDA calls, the GPU work that they launched, and what CUPTI says around it.

The collector lets CUPTI trace graphs all the time, since switching that on later crashes programs
that have made a graph by then. A graph's work belongs to the capture where its launch does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.importers.common.cuda import (
    COPY_KINDS,
    MEMORY_KINDS,
    MEMSET_NAME,
    STREAM_FLAGS,
    SYNC_KINDS,
    call_name,
    copy_name,
    short_kernel_name,
)
from stepscope.importers.common.sink import Sink
from stepscope.importers.common.texts import constant, dictionary, labels
from stepscope.importers.stepscope import layout
from stepscope.importers.stepscope.raw import Raw, ids, texts
from stepscope.intervals.distinct import among, distinct_rows, distinct_values, with_inverse
from stepscope.trace.frame import AnyArray, BoolArray, distinct

_MOST_IDS = 1 << 30  # correlation ids count from 1: a byte each of what is held


@dataclass(frozen=True)
class Called:
    """Which numbers recorded calls bear.

    Attributes:
        by_number: whether a call bears a number; the last element, false, stands for all above it.
    """

    by_number: BoolArray

    def contain(self, numbers: AnyArray) -> BoolArray:
        """Which of some numbers a call bears."""
        found: BoolArray = self.by_number[np.minimum(numbers, len(self.by_number) - 1)]
        return found

    def later(self, numbers: AnyArray) -> BoolArray:
        """Which numbers a call bears that was made later, or at the same time."""
        found: BoolArray = numbers < len(self.by_number) - 1
        return found


def called(raw: Raw, *, of_runtime: bool = False) -> Called | None:
    """The numbers of the recorded calls; None for damaged ones, too large for a table.

    Args:
        raw: the process's files.
        of_runtime: only those of the runtime; 0, which is no number, is not among them.
    """

    def numbers() -> Iterator[AnyArray]:
        for part in raw.parts(layout.API):
            rows = part[(part["call"] & layout.DRIVER_CALL) == 0] if of_runtime else part
            yield rows["correlation"]

    most = max((int(part.max()) for part in numbers() if len(part)), default=-1)
    if most > _MOST_IDS:
        return None
    found = np.zeros(most + 2, dtype=bool)
    for part in numbers():
        found[part] = True
    if of_runtime:
        found[0] = False
    return Called(found)


def unrecorded(raw: Raw, graphs: AnyArray, known: Called | None) -> BoolArray:
    """Which rows of graphs were launched while recording was off.

    Their call is missing although a later one is there, or recording had ended in order. Where
    CUPTI lost records, or no call was recorded at all, a missing call says nothing.
    """
    if known is None or not raw.count(layout.API) or raw.one("end").get("cupti_dropped"):
        return np.zeros(len(graphs), dtype=bool)
    number = graphs["correlation"]
    states = raw.of(layout.STATE)
    over = bool(len(states)) and not states["recording"][-1]
    found: BoolArray = ~known.contain(number) & (known.later(number) | over)
    return found


TABLE = "gpu_op"
# CUpti_ActivityMemcpyKind, CUpti_ActivityMemoryKind and so on, by their documented numbers.
_COPIES = dict(enumerate(COPY_KINDS))
_MEMORIES = {0: "unknown", **dict(enumerate(MEMORY_KINDS, 1))}
_HOST_MEMORIES = (1, 2)
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
_STREAM_FLAGS = {0: "unknown", **STREAM_FLAGS}


def read_gpu(sink: Sink, raw: Raw, process: int, known: Called | None) -> None:
    """Fill ``gpu_op`` with the work of one process, whose calls bear the known numbers."""
    for rows in raw.parts(layout.KERNEL):
        _put_kernels(sink, raw, process, _timed(sink, rows))
    for rows in raw.parts(layout.COPY):
        _put_copies(sink, process, _timed(sink, rows))
    for rows in raw.parts(layout.SET):
        _put_memsets(sink, process, _timed(sink, rows))
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


def _put_memsets(sink: Sink, process: int, memsets: AnyArray) -> None:
    sink.put(
        TABLE,
        _common(sink, memsets, process, "memset")
        | {
            "name": constant(MEMSET_NAME, len(memsets)),
            "bytes": memsets["bytes"],
            "src_memory": labels(memsets["memory"], _MEMORIES),
            "graph_node_id": ids(memsets["graph_node"], 0),
            "graph_id": ids(memsets["graph"], 0),
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
            "device": _device_of(sink, process, rows["context"]),
            "context": rows["context"].astype(np.int32),
            "stream": ids(rows["stream"]),
            "correlation_id": ids(rows["correlation"], 0),
            "start_ns": sink.times(rows["start"]),
            "end_ns": sink.times(rows["end"]),
            "kind": labels(rows["type"], SYNC_KINDS),
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
            "device": _device_of(sink, process, records["context"]),
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


def _device_of(sink: Sink, process: int, contexts: AnyArray) -> Any:
    """The device of each context; null where no GPU work told it."""
    devices = {context: device for p, context, device, _ in sink.streams if p == process}
    distinct_, inverse = with_inverse(contexts)
    found = np.array([devices.get(context, -1) for context in distinct_.tolist()], np.int32)
    found = found[inverse]
    return _or_null(found, found < 0)


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
    metadata = {
        (context, stream): (priority, flag)
        for context, stream, priority, flag in raw.of(layout.STREAM).tolist()
    }
    used = {(c, s): d for p, c, d, s in sink.streams if p == process}
    devices = {context: device for (context, _), device in used.items()}
    records = []
    for context, stream in sorted(metadata.keys() | used.keys()):
        priority, flag = metadata.get((context, stream), (None, None))
        records.append(
            {
                "process_id": process,
                "context": context,
                "device": used.get((context, stream), devices.get(context)),
                "stream": stream,
                "priority": priority,
                "flag": None if flag is None else _STREAM_FLAGS.get(flag),
            }
        )
    sink.put_records("stream", records)


CALLS = "api_call"


def read_calls(sink: Sink, raw: Raw, process: int) -> None:
    """Fill ``api_call`` with the calls of one process."""
    named = dict(raw.of(layout.API_NAME).tolist())
    above = called(raw, of_runtime=True)
    for part in raw.parts(layout.API):
        rows = part
        if above is not None:
            # What the runtime calls of the driver bears the runtime's number, and is the same work.
            driver = (part["call"] & layout.DRIVER_CALL) != 0
            beneath = driver & above.contain(part["correlation"])
            rows = part[~beneath] if beneath.any() else part
        _put_calls(sink, raw, process, rows, named)


def _put_calls(
    sink: Sink, raw: Raw, process: int, rows: AnyArray, named: Mapping[int, int]
) -> None:
    numbers, inverse = with_inverse(rows["call"])
    names = []
    for number in numbers.tolist():
        driver = bool(number & layout.DRIVER_CALL)
        known = raw.texts.get(named.get(number, 0))
        names.append(known or f"{'cu' if driver else 'cuda'}[{number & ~layout.DRIVER_CALL}]")
    is_driver = (rows["call"] & layout.DRIVER_CALL) != 0
    sink.threads |= {(process, thread) for thread in distinct(rows["thread"]).tolist()}
    sink.put(
        CALLS,
        {
            "api": dictionary(is_driver.astype(np.int32), ["runtime", "driver"]),
            "process_id": np.full(len(rows), process),
            "thread_id": rows["thread"].astype(np.int64),
            "start_ns": sink.times(rows["start"]),
            "end_ns": sink.times(rows["end"]),
            "name": dictionary(inverse, [call_name(name) for name in names]),
            "raw_name": dictionary(inverse, names),
            "name_number": rows["call"].astype(np.int64),
            "return_value": rows["result"].astype(np.int64),
            "correlation_id": ids(rows["correlation"], 0),
        },
    )


def count_unresolved(sink: Sink, raw: Raw, known: Called | None) -> None:
    """Count GPU work whose launching call was not recorded."""
    if known is None:
        return
    lacking = 0
    for kind in layout.WORK:
        for part in raw.parts(kind):
            rows = part[~unrecorded(raw, part, known)] if kind == layout.GRAPH else part
            lacking += int((~known.contain(rows["correlation"])).sum())
    sink.writer.problems.count("unresolved_correlation", lacking, scope="gpu_op")
