"""Processes, threads, GPUs and streams that appear in the events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stepscope.importers.nsys import codes
from stepscope.importers.nsys.ranges import ThreadName
from stepscope.importers.nsys.rows import Field, code, may, must
from stepscope.importers.nsys.sink import ID_MASK, PROCESS_SHIFT, Sink
from stepscope.trace.frame import NULL
from stepscope.trace.schema import TABLES

Record = dict[str, Any]
_INT32 = 1 << 31


def records(sink: Sink, table: str, fields: Sequence[Field], scope: str) -> Iterator[Record]:
    """Rows of a small table as dictionaries."""
    for rows in sink.tables.read(table, fields, scope):
        columns = [rows[field.name].to_pylist() for field in fields]
        for values in zip(*columns, strict=True):
            yield {field.name: value for field, value in zip(fields, values, strict=True)}


def put_records(sink: Sink, table: str, rows: Sequence[Record]) -> None:
    """Hand a few rows to the writer."""
    import pyarrow as pa

    if not rows:
        return
    types = {"int64": pa.int64(), "int32": pa.int32(), "float64": pa.float64(), "bool": pa.bool_()}
    columns: dict[str, pa.Array] = {}
    for column in TABLES[table].columns:
        values = [row.get(column.name) for row in rows]
        if column.type == "text":
            lexicon = sink.lexicon(table, column.name)
            codes_ = [None if value is None else lexicon.code(str(value)) for value in values]
            columns[column.name] = pa.array(codes_, type=pa.int32())
        else:
            columns[column.name] = pa.array(values, type=types[column.type])
    sink.put(table, columns)


def read_processes(sink: Sink, ranks: dict[int, int]) -> None:
    """Fill ``process``; ``ranks`` gives the rank of processes where the source knows it."""
    fields = (may("pid"), may("name", "text"))
    names = {
        row["pid"]: row["name"]
        for row in records(sink, "PROCESSES", fields, "process")
        if row["pid"] is not None
    }
    put_records(
        sink,
        "process",
        [
            {"process_id": pid, "name": names.get(pid), "rank": ranks.get(pid)}
            for pid in sorted(sink.processes)
        ],
    )


def read_threads(sink: Sink, given: Sequence[ThreadName]) -> None:
    """Fill ``thread``; ``given`` are the names that the program itself set through NVTX."""
    fields = (must("nameId"), may("priority"), must("globalTid"))
    wanted = {(tid >> PROCESS_SHIFT) & ID_MASK: set[int]() for tid in sink.threads}
    for tid in sink.threads:
        wanted[(tid >> PROCESS_SHIFT) & ID_MASK].add(tid & ID_MASK)
    best: dict[tuple[int, int], tuple[int, int]] = {}
    every: list[tuple[tuple[int, int], int, int | None]] = []
    for row in records(sink, "ThreadNames", fields, "thread"):
        key = ((row["globalTid"] >> PROCESS_SHIFT) & ID_MASK, row["globalTid"] & ID_MASK)
        if key[1] in wanted.get(key[0], ()):
            every.append((key, row["nameId"], row["priority"]))
            # of several names the tool's own (lower number) says more than the system's
            name = (row["priority"] or 0, row["nameId"])
            best[key] = min(best.get(key, name), name)
    import pyarrow as pa

    ids = pa.array([name for _, name in best.values()], type=pa.int64())
    named = sink.strings.take(ids, sink.replaced("thread")).to_pylist()
    _put_thread_names(sink, every)
    texts = dict(zip(best, named, strict=True))
    texts |= {(name.process_id, name.thread_id): name.name for name in given}
    put_records(
        sink,
        "thread",
        [
            {"process_id": process, "thread_id": thread, "name": texts.get((process, thread))}
            for process in sorted(wanted)
            for thread in sorted(wanted[process])
        ],
    )


def _put_thread_names(sink: Sink, names: Sequence[tuple[tuple[int, int], int, int | None]]) -> None:
    import pyarrow as pa

    ids = pa.array([number for _, number, _ in names], type=pa.int64())
    texts = sink.strings.take(ids, sink.replaced("thread_name")).to_pylist()
    put_records(
        sink,
        "thread_name",
        [
            {"process_id": process, "thread_id": thread, "name": text, "priority": priority}
            for ((process, thread), _, priority), text in zip(names, texts, strict=True)
        ],
    )


_GPU_FIELDS = (
    must("id", "int32"),
    may("name", "text"),
    may("uuid", "text"),
    may("smCount", "int32"),
    code("computeMajor", "int32"),
    code("computeMinor", "int32"),
    may("totalMemory"),
    may("memoryBandwidth"),
    may("clockRate"),
    code("cuDevice", "int32"),
)


def read_devices(sink: Sink) -> None:
    """Fill ``device``: each GPU under the ordinal that each process gives it."""
    gpus = {row["id"]: row for row in records(sink, "TARGET_INFO_GPU", _GPU_FIELDS, "device")}
    used = {(process, device) for process, _, device, _ in sink.streams}
    found: dict[tuple[int, int], Record] = {}
    fields = (code("gpuId", "int32"), must("cudaId", "int32"), must("pid"))
    for row in records(sink, "TARGET_INFO_CUDA_DEVICE", fields, "device"):
        found[row["pid"], row["cudaId"]] = _device(row["pid"], row["cudaId"], row["gpuId"], gpus)
    for process, device in sorted(used - found.keys()):
        found[process, device] = _device(process, device, _guess(device, gpus), gpus)
    put_records(sink, "device", [found[key] for key in sorted(found)])


def _guess(device: int, gpus: dict[int, Record]) -> int | None:
    """The physical GPU of an ordinal in exports (before 2024) that hold no such table.

    Only sure where there is one GPU, or where the driver's numbering was recorded.
    """
    if len(gpus) == 1:
        return next(iter(gpus))
    numbered = [number for number, gpu in gpus.items() if gpu["cuDevice"] == device]
    return numbered[0] if len(numbered) == 1 else None


def _device(process: int, device: int, physical: int | None, gpus: dict[int, Record]) -> Record:
    gpu = gpus.get(physical, {}) if physical is not None else {}
    return {
        "process_id": process,
        "device": device,
        "physical_id": physical,
        "name": gpu.get("name"),
        "uuid": gpu.get("uuid"),
        "sm_count": gpu.get("smCount"),
        "compute_major": gpu.get("computeMajor"),
        "compute_minor": gpu.get("computeMinor"),
        "memory_bytes": gpu.get("totalMemory"),
        "memory_bandwidth": gpu.get("memoryBandwidth"),
        "clock_hz": gpu.get("clockRate"),
    }


def read_streams(sink: Sink) -> None:
    """Fill ``stream``: those the tool lists and those that GPU work ran on."""
    contexts = (must("processId"), must("contextId", "int32"), must("deviceId", "int32"))
    devices = {
        (row["processId"], row["contextId"]): row["deviceId"]
        for row in records(sink, "TARGET_INFO_CUDA_CONTEXT_INFO", contexts, "stream")
    }
    seen = {(process, context, stream): device for process, context, device, stream in sink.streams}
    found: dict[tuple[int, int, int], Record] = {}
    fields = (
        must("streamId"),
        must("processId"),
        must("contextId", "int32"),
        code("priority"),
        code("flag"),
    )
    for row in records(sink, "TARGET_INFO_CUDA_STREAM", fields, "stream"):
        key = (row["processId"], row["contextId"], row["streamId"])
        device = devices.get(key[:2], seen.get(key))
        found[key] = _stream(key, device, _signed(row["priority"]), row["flag"])
    for key in sorted(seen.keys() - found.keys()):
        found[key] = _stream(key, seen[key], None, None)
    put_records(sink, "stream", [found[key] for key in sorted(found)])


def _stream(
    key: tuple[int, int, int], device: int | None, priority: int | None, flag: int | None
) -> Record:
    process, context, stream = key
    return {
        "process_id": process,
        "context": None if context == NULL else context,
        "device": device,
        "stream": stream,
        "priority": priority,
        "flag": None if flag is None else codes.STREAM_FLAGS.get(flag),
    }


def _signed(value: int | None) -> int | None:
    """A signed priority that was stored as unsigned 32 bits."""
    if value is None or not -_INT32 <= value < 2 * _INT32:
        return None
    return value - 2 * _INT32 if value >= _INT32 else value
