"""What the CUDA driver and the capturing tool report beside calls and GPU work."""

from __future__ import annotations

from stepscope.importers.nsys import codes
from stepscope.importers.nsys.rows import code, may, must
from stepscope.importers.nsys.sink import Sink, process_of, thread_of

_NO_ID = (codes.NO_ID, -1)


def read_syncs(sink: Sink) -> None:
    """Fill ``sync``."""
    import pyarrow as pa

    fields = (
        must("start", "time"),
        must("end", "time"),
        code("deviceId", "int32"),
        code("contextId", "int32"),
        code("streamId", none=_NO_ID),
        may("correlationId"),
        must("globalPid"),
        code("syncType"),
        code("eventId", none=_NO_ID),
        code("eventSyncId", none=_NO_ID),
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
                "kind": sink.labels("sync", "kind", kinds, codes.SYNC_KINDS, "unknown"),
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
        code("streamId", none=_NO_ID),
        may("correlationId"),
        must("globalPid"),
        must("eventId"),
        code("eventSyncId", none=_NO_ID),
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
        on_host = pc.is_in(rows["memKind"], value_set=pa.array(codes.HOST_MEMORY, pa.int64()))
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
