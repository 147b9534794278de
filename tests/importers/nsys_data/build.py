"""Databases that imitate exports of other Nsight Systems versions, and the bundled fixtures."""

from __future__ import annotations

import lzma
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stepscope.importers.nsys import IMPORTER
from stepscope.trace.meta import Meta
from stepscope.trace.problems import ProblemLog
from stepscope.trace.store import TraceWriter, write_meta
from stepscope.trace.trace import Trace

HERE = Path(__file__).parent
SHARED = HERE.parents[3] / "shared" / "data" / "h200" / "nsys"
PID = 1234
GLOBAL_PID = (1 << 48) | (PID << 24)
MAIN = GLOBAL_PID | PID
WORKER = GLOBAL_PID | 1300
WINDOW = 1_000_000

Row = Mapping[str, Any]
Tables = Mapping[str, Iterable[Row]]

# name: (declared type, nullable)
COLUMNS: dict[str, dict[str, tuple[str, bool]]] = {
    "StringIds": {"id": ("INTEGER", False), "value": ("TEXT", False)},
    "ANALYSIS_DETAILS": {
        "globalVid": ("INTEGER", False),
        "duration": ("INTEGER", False),
        "startTime": ("INTEGER", False),
        "stopTime": ("INTEGER", False),
    },
    "META_DATA_EXPORT": {"name": ("TEXT", False), "value": ("TEXT", True)},
    "META_DATA_CAPTURE": {"name": ("TEXT", False), "value": ("TEXT", True)},
    "TARGET_INFO_SYSTEM_ENV": {"name": ("TEXT", False), "value": ("TEXT", False)},
    "CUPTI_ACTIVITY_KIND_RUNTIME": {
        "start": ("INTEGER", False),
        "end": ("INTEGER", False),
        "eventClass": ("INTEGER", False),
        "globalTid": ("INTEGER", True),
        "correlationId": ("INTEGER", True),
        "nameId": ("INTEGER", False),
        "returnValue": ("INTEGER", False),
        "callchainId": ("INTEGER", True),
    },
    "CUPTI_ACTIVITY_KIND_KERNEL": {
        "start": ("INTEGER", False),
        "end": ("INTEGER", False),
        "deviceId": ("INTEGER", False),
        "contextId": ("INTEGER", False),
        "greenContextId": ("INTEGER", True),
        "streamId": ("INTEGER", False),
        "correlationId": ("INTEGER", True),
        "globalPid": ("INTEGER", True),
        "demangledName": ("INTEGER", False),
        "shortName": ("INTEGER", False),
        "mangledName": ("INTEGER", True),
        "gridX": ("INTEGER", False),
        "graphNodeId": ("INTEGER", True),
        "graphId": ("INTEGER", True),
    },
    "CUPTI_ACTIVITY_KIND_MEMCPY": {
        "start": ("INTEGER", False),
        "end": ("INTEGER", False),
        "deviceId": ("INTEGER", False),
        "contextId": ("INTEGER", False),
        "streamId": ("INTEGER", False),
        "correlationId": ("INTEGER", True),
        "globalPid": ("INTEGER", True),
        "bytes": ("INTEGER", False),
        "copyKind": ("INTEGER", False),
        "srcKind": ("INTEGER", True),
        "dstKind": ("INTEGER", True),
    },
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": {
        "start": ("INTEGER", False),
        "end": ("INTEGER", False),
        "deviceId": ("INTEGER", False),
        "contextId": ("INTEGER", False),
        "streamId": ("INTEGER", False),
        "correlationId": ("INTEGER", True),
        "globalPid": ("INTEGER", True),
        "graphId": ("INTEGER", True),
        "graphExecId": ("INTEGER", True),
    },
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": {
        "deviceId": ("INTEGER", False),
        "contextId": ("INTEGER", False),
        "streamId": ("INTEGER", False),
        "correlationId": ("INTEGER", True),
        "globalPid": ("INTEGER", True),
        "eventId": ("INTEGER", False),
        "timestamp": ("INTEGER", True),
    },
    "NVTX_EVENTS": {
        "start": ("INTEGER", False),
        "end": ("INTEGER", True),
        "eventType": ("INTEGER", False),
        "text": ("TEXT", True),
        "globalTid": ("INTEGER", True),
        "endGlobalTid": ("INTEGER", True),
        "textId": ("INTEGER", True),
        "domainId": ("INTEGER", True),
        "uint64Value": ("INTEGER", True),
        "int64Value": ("INTEGER", True),
        "doubleValue": ("REAL", True),
        "jsonTextId": ("INTEGER", True),
        "jsonText": ("TEXT", True),
    },
    "PROFILER_OVERHEAD": {
        "start": ("INTEGER", False),
        "end": ("INTEGER", False),
        "globalTid": ("INTEGER", True),
        "nameId": ("INTEGER", False),
        "returnValue": ("INTEGER", False),
    },
    "CUPTI_ACTIVITY_KIND_OVERHEAD": {
        "start": ("INTEGER", False),
        "end": ("INTEGER", False),
        "globalTid": ("INTEGER", True),
        "overheadType": ("INTEGER", True),
    },
    "SCHED_EVENTS": {
        "start": ("INTEGER", False),
        "cpu": ("INTEGER", False),
        "isSchedIn": ("INTEGER", False),
        "globalTid": ("INTEGER", True),
        "threadState": ("INTEGER", True),
    },
    "COMPOSITE_EVENTS": {
        "id": ("INTEGER", False),
        "start": ("INTEGER", False),
        "cpu": ("INTEGER", True),
        "globalTid": ("INTEGER", True),
        "cpuCycles": ("INTEGER", False),
    },
    "SAMPLING_CALLCHAINS": {
        "id": ("INTEGER", False),
        "symbol": ("INTEGER", False),
        "module": ("INTEGER", True),
        "stackDepth": ("INTEGER", False),
    },
    "GPU_METRICS": {
        "timestamp": ("INTEGER", False),
        "typeId": ("INTEGER", False),
        "metricId": ("INTEGER", False),
        "value": ("INTEGER", False),
    },
    "TARGET_INFO_GPU_METRICS": {
        "typeId": ("INTEGER", False),
        "metricId": ("INTEGER", False),
        "metricName": ("TEXT", False),
    },
    "CUDA_GPU_MEMORY_USAGE_EVENTS": {
        "start": ("INTEGER", False),
        "globalPid": ("INTEGER", False),
        "deviceId": ("INTEGER", False),
        "address": ("INTEGER", False),
        "bytes": ("INTEGER", False),
        "memKind": ("INTEGER", False),
        "memoryOperationType": ("INTEGER", False),
    },
    "TARGET_INFO_CUDA_STREAM": {
        "streamId": ("INTEGER", False),
        "processId": ("INTEGER", False),
        "contextId": ("INTEGER", False),
        "priority": ("INTEGER", False),
        "flag": ("INTEGER", False),
    },
    "TARGET_INFO_GPU": {
        "id": ("INTEGER", False),
        "name": ("TEXT", True),
        "smCount": ("INTEGER", True),
        "cuDevice": ("INTEGER", True),
    },
    "TARGET_INFO_CUDA_DEVICE": {
        "gpuId": ("INTEGER", True),
        "cudaId": ("INTEGER", False),
        "pid": ("INTEGER", False),
    },
    "MPI_COLLECTIVES_EVENTS": {
        "start": ("INTEGER", False),
        "end": ("INTEGER", False),
        "globalTid": ("INTEGER", True),
        "textId": ("INTEGER", True),
    },
    "CUBLAS_EVENTS": {
        "start": ("INTEGER", False),
        "end": ("INTEGER", False),
        "eventClass": ("INTEGER", False),
        "globalTid": ("INTEGER", True),
        "nameId": ("INTEGER", False),
    },
    "MPI_RANKS": {"globalTid": ("INTEGER", True), "rank": ("INTEGER", True)},
    "PROCESSES": {
        "globalPid": ("INTEGER", True),
        "pid": ("INTEGER", True),
        "name": ("TEXT", True),
    },
    "ThreadNames": {
        "nameId": ("INTEGER", False),
        "priority": ("INTEGER", True),
        "globalTid": ("INTEGER", True),
    },
    "DIAGNOSTIC_EVENT": {
        "timestamp": ("INTEGER", False),
        "severity": ("INTEGER", False),
        "text": ("TEXT", False),
        "globalPid": ("INTEGER", True),
    },
}


def strings(*texts: str) -> list[Row]:
    """``StringIds`` rows numbered from 1."""
    return [{"id": number, "value": text} for number, text in enumerate(texts, 1)]


def window(duration: int = WINDOW) -> list[Row]:
    return [{"globalVid": 1, "duration": duration, "startTime": 5, "stopTime": 5 + duration}]


def call(start: int, end: int, name: int, correlation: int | None, **more: Any) -> Row:
    return {
        "start": start,
        "end": end,
        "eventClass": 0,
        "globalTid": MAIN,
        "correlationId": correlation,
        "nameId": name,
        "returnValue": 0,
    } | more


def gpu(start: int, end: int, correlation: int | None, **more: Any) -> Row:
    return {
        "start": start,
        "end": end,
        "deviceId": 0,
        "contextId": 1,
        "streamId": 7,
        "correlationId": correlation,
        "globalPid": GLOBAL_PID,
    } | more


def kernel(start: int, end: int, correlation: int | None, name: int, **more: Any) -> Row:
    names = {"demangledName": name, "shortName": name, "gridX": 8}
    return gpu(start, end, correlation) | names | more


def nvtx(start: int, end: int | None, text: str | None, **more: Any) -> Row:
    return {
        "start": start,
        "end": end,
        "eventType": 59,
        "text": text,
        "globalTid": MAIN,
        "domainId": 0,
    } | more


def small() -> dict[str, list[Row]]:
    """One launch, its kernel and a range around it."""
    return {
        "StringIds": strings("cudaLaunchKernel_v7000", "gemm(float*)"),
        "ANALYSIS_DETAILS": window(),
        "CUPTI_ACTIVITY_KIND_RUNTIME": [call(100, 200, 1, 1)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(300, 900, 1, 2)],
        "NVTX_EVENTS": [nvtx(50, 950, "step")],
    }


def make(
    path: Path,
    tables: Tables,
    *,
    not_null_defaults: bool = False,
    without: Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
) -> Path:
    """Write a database.

    Args:
        path: where.
        tables: rows by table; a column that a row lacks is NULL.
        not_null_defaults: declare every column NOT NULL and write 0 or '' for NULL, as exports
            up to 2021.5 did.
        without: columns, ``TABLE.column``, that do not exist.
        rename: other names of tables.
    """
    db = sqlite3.connect(path)
    for table, rows in tables.items():
        columns = {
            name: declared
            for name, declared in COLUMNS[table].items()
            if f"{table}.{name}" not in without
        }
        shown = (rename or {}).get(table, table)
        db.execute(
            f'CREATE TABLE "{shown}" ('
            + ", ".join(
                f'"{name}" {kind}{"" if nullable and not not_null_defaults else " NOT NULL"}'
                for name, (kind, nullable) in columns.items()
            )
            + ")"
        )
        marks = ", ".join("?" * len(columns))

        def value(row: Row, name: str, kind: str) -> Any:
            found = row.get(name)
            if found is None and not_null_defaults:
                return "" if kind == "TEXT" else 0
            return found

        db.executemany(
            f'INSERT INTO "{shown}" VALUES ({marks})',
            [tuple(value(row, n, kind) for n, (kind, _) in columns.items()) for row in rows],
        )
    db.commit()
    db.close()
    return path


def unpacked(name: str, folder: Path) -> Path:
    """A bundled fixture, unpacked."""
    target = folder / name
    target.write_bytes(lzma.decompress((HERE / f"{name}.xz").read_bytes()))
    return target


def read(path: Path, folder: Path) -> Trace:
    """Import a capture into ``folder``."""
    out = folder / f"out{len(list(folder.iterdir()))}.stepscope"
    out.mkdir()
    problems = ProblemLog()
    writer = TraceWriter(out, problems)
    try:
        meta = IMPORTER.read(path, writer)
        meta.rows = writer.close()
    except BaseException:
        writer.abort()
        raise
    meta.problems = problems.problems()
    write_meta(out, meta)
    return Trace(out, path)


def rows(trace: Trace, table: str) -> list[dict[str, Any]]:
    """Rows of a canonical table as dictionaries."""
    found: list[dict[str, Any]] = trace.arrow(table).to_pylist()
    return found


def problems(meta: Meta) -> dict[str, int]:
    """Counts by problem id."""
    return {problem.id: problem.count for problem in meta.problems}
