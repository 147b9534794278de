"""A SQLite file in the schema of Nsight Systems' exports, for tools that read those.

The tables and columns are those of schema 3.20 that hold what a trace holds; ``nsys stats`` runs
on the file. A trace that was read from such an export gives the same reports again. What other
sources do not tell, and the schema wants, is 0 (registers, shared memory) or null.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stepscope.trace.errors import UsageError
from stepscope.trace.frame import BoolArray, IntArray
from stepscope.trace.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 1 << 16
_VM: Final = 1 << 48
_ID_BITS: Final = 24
_MOST_ID: Final = (1 << _ID_BITS) - 1
_NO_STREAM: Final = (1 << 32) - 1
_SCHEMA: Final = "3.20.3"

_MEMORY: Final = {
    name: code
    for code, name in enumerate(
        ("pageable", "pinned", "device", "array", "managed", "device_static", "managed_static",
         "unknown")
    )
}  # fmt: skip
_COPIES: Final = {
    name: code
    for code, name in enumerate(
        ("unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
         "UVM HtoD", "UVM DtoH", "UVM DtoD")
    )
}  # fmt: skip
_SYNCS: Final = {"unknown": 0, "event": 1, "stream_wait_event": 2, "stream": 3, "context": 4}
_FLAGS: Final = {"default": 1, "non_blocking": 2, "null": 3}
_SEVERITIES: Final = {"info": 1, "warning": 2, "error": 3}
_RANGES: Final = {"pushpop": 59, "annotation": 59, "startend": 60, "mark": 34}
_DOMAIN: Final = 75
_MARKS: Final = {"OS runtime libraries profiling finished": 32}
"""Rows among the calls of the operating system that are no calls, and their classes."""
_CLASSES: Final = {"runtime": 0, "driver": 1, "osrt": 27, "cudnn": 28, "cublas": 29, "syscall": 107}

_ENUMS: Final[dict[str, tuple[tuple[int, str, str], ...]]] = {
    "ENUM_CUDA_MEMCPY_OPER": (
        (0, "CUDA_MEMCPY_KIND_UNKNOWN", "Unknown"),
        (1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"),
        (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
        (3, "CUDA_MEMCPY_KIND_HTOA", "Host-to-Array"),
        (4, "CUDA_MEMCPY_KIND_ATOH", "Array-to-Host"),
        (5, "CUDA_MEMCPY_KIND_ATOA", "Array-to-Array"),
        (6, "CUDA_MEMCPY_KIND_ATOD", "Array-to-Device"),
        (7, "CUDA_MEMCPY_KIND_DTOA", "Device-to-Array"),
        (8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
        (9, "CUDA_MEMCPY_KIND_HTOH", "Host-to-Host"),
        (10, "CUDA_MEMCPY_KIND_PTOP", "Peer-to-Peer"),
        (11, "CUDA_MEMCPY_KIND_UVM_HTOD", "Unified Host-to-Device"),
        (12, "CUDA_MEMCPY_KIND_UVM_DTOH", "Unified Device-to-Host"),
        (13, "CUDA_MEMCPY_KIND_UVM_DTOD", "Unified Device-to-Device"),
    ),
    "ENUM_CUDA_MEM_KIND": tuple(
        (code, f"CUDA_MEMOPR_MEMORY_KIND_{name.upper()}", name.replace("_", " ").title())
        for name, code in _MEMORY.items()
    ),
    "ENUM_CUPTI_SYNC_TYPE": (
        (0, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_UNKNOWN", "Unknown"),
        (1, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE", "Event sync"),
        (2, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT", "Stream wait sync"),
        (3, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE", "Stream sync"),
        (4, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE", "Context sync"),
    ),
    "ENUM_CUPTI_STREAM_TYPE": (
        (0, "CUPTI_ACTIVITY_STREAM_CREATE_FLAG_UNKNOWN", "Unknown stream type"),
        (1, "CUPTI_ACTIVITY_STREAM_CREATE_FLAG_DEFAULT", "Default stream"),
        (2, "CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NON_BLOCKING", "Non-blocking stream"),
        (3, "CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NULL", "Null stream"),
    ),
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": (
        (0, "CUDA_KERNEL_LAUNCH_TYPE_UNKNOWN", "Unknown"),
        (1, "CUDA_KERNEL_LAUNCH_TYPE_REGULAR", "Regular"),
        (2, "CUDA_KERNEL_LAUNCH_TYPE_COOPERATIVE_SINGLE_DEVICE", "Coop Single Device"),
        (3, "CUDA_KERNEL_LAUNCH_TYPE_COOPERATIVE_MULTI_DEVICE", "Coop Multi Device"),
    ),
    "ENUM_NSYS_EVENT_CLASS": (
        (0, "TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"),
        (1, "TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver"),
        (27, "TRACE_PROCESS_EVENT_OS_RUNTIME", "OSRT runtime"),
        (28, "TRACE_PROCESS_EVENT_CUDNN", "cuDNN"),
        (29, "TRACE_PROCESS_EVENT_CUBLAS", "cuBLAS"),
        (107, "TRACE_PROCESS_EVENT_SYSCALL", "Syscall"),
    ),
    "ENUM_NSYS_EVENT_TYPE": tuple(
        (code, name, name)
        for code, name in (
            (33, "NvtxCategory"), (34, "NvtxMark"), (39, "NvtxThread"), (59, "NvtxPushPopRange"),
            (60, "NvtxStartEndRange"), (75, "NvtxDomainCreate"), (76, "NvtxDomainDestroy"),
        )
    ),
    "ENUM_DIAGNOSTIC_SEVERITY_LEVEL": (
        (0, "UnknownLevel", "Unknown"),
        (1, "Info", "Info"),
        (2, "Warning", "Warning"),
        (3, "Error", "Error"),
    ),
    "ENUM_DIAGNOSTIC_TIMESTAMP_SOURCE": (
        (0, "UnknownTimestamp", "Unknown timestamp"),
        (1, "TargetTimestamp", "Target timestamp"),
    ),
    "ENUM_DIAGNOSTIC_SOURCE_TYPE": ((0, "UnknownSource", "Unknown source"),),
}  # fmt: skip
"""Codes that reports look up. An upper-case name stands in the SDK's headers, a label is shown."""

_PLACE: Final = "deviceId! contextId! greenContextId streamId! correlationId globalPid"
_TABLES: Final = {
    "StringIds": "id! value:TEXT!",
    "META_DATA_EXPORT": "name:TEXT! value:TEXT",
    "META_DATA_CAPTURE": "name:TEXT! value:TEXT",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:TEXT localTime:TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName:TEXT! name:TEXT! nameEnum! value:TEXT!",
    "TARGET_INFO_GPU": "vmId! id! name:TEXT busLocation:TEXT isDiscrete l2CacheSize totalMemory "
    "memoryBandwidth clockRate smCount pwGpuId uuid:TEXT luid chipName:TEXT cuDevice "
    "ctxswDevPath:TEXT ctrlDevPath:TEXT revision nodeMask constantMemory maxIPC "
    "maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm "
    "threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX "
    "maxBlockDimY maxBlockDimZ maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor "
    "smMajor smMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId! pid!",
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId! hwId! vmId! processId! deviceId! contextId! "
    "parentContextId isGreenContext",
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
    "PROCESSES": "globalPid pid name:TEXT",
    "ThreadNames": "nameId! priority globalTid",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"start! end! {_PLACE} demangledName! shortName! mangledName "
    "launchType cacheConfig registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ! "
    "staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId! "
    "sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"start! end! {_PLACE} bytes! copyKind! deprecatedSrcId srcKind "
    "dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause graphNodeId "
    "virtualAddress copyCount",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"start! end! {_PLACE} value! bytes! graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"start! end! {_PLACE} graphId! graphExecId!",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! "
    "returnValue! callchainId",
    "OSRT_API": "start! end! eventClass! globalTid correlationId nameId! returnValue! "
    "nestingLevel callchainId!",
    "CUDNN_EVENTS": "start! end! eventClass! globalTid nameId!",
    "CUBLAS_EVENTS": "start! end! eventClass! globalTid nameId!",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"start! end! {_PLACE} deprecatedSyncType syncType! "
    "eventId! eventSyncId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": f"{_PLACE} eventId! eventSyncId",
    "NVTX_EVENTS": "start! end eventType! rangeId category color text:TEXT globalTid endGlobalTid "
    "textId domainId uint64Value int64Value doubleValue:REAL uint32Value int32Value "
    "floatValue:REAL jsonTextId jsonText:TEXT binaryData:TEXT",
    "PROFILER_OVERHEAD": "start! end! globalTid nameId! returnValue!",
    "DIAGNOSTIC_EVENT": "timestamp! timestampType! source! severity! text:TEXT! globalPid",
}
"""Tables and their columns: integers where no type stands, ``!`` for those that are never null."""


def write(trace: Trace, path: Path) -> None:
    """Write a trace.

    Args:
        trace: one rank's.
        path: the file, which does not exist.

    Raises:
        UsageError: its process ids do not fit the schema.
        OSError: the file cannot be written.
    """
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            _Export(trace, connection).write()
            connection.commit()
    except sqlite3.OperationalError as error:
        raise OSError(None, str(error)) from error


@dataclass
class _Batch:
    """Some rows of a table, column by column."""

    data: pa.RecordBatch

    def __len__(self) -> int:
        rows: int = self.data.num_rows
        return rows

    def ints(self, column: str, null: int = 0) -> IntArray:
        """A column of numbers."""
        filled = self.data.column(column).cast("int64").fill_null(null)
        return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)

    def values(self, column: str) -> list[Any]:
        """A column as Python values, null as None."""
        found: list[Any] = self.data.column(column).to_pylist()
        return found

    def filled(self, column: str, null: int = 0) -> list[int]:
        """A column of numbers, with something for null."""
        found: list[int] = self.ints(column, null).tolist()
        return found

    def coded(self, column: str, codes: Mapping[str, int], other: int) -> list[int]:
        """Codes of a column of words; ``other`` for null and the unknown."""
        return self.texts(column, lambda text: codes.get(text, other), other)

    def texts(self, column: str, value: Callable[[str], Any], null: Any = None) -> list[Any]:
        """What each text stands for; asked once a distinct text."""
        coded = self.data.column(column)
        known = [value(text) for text in coded.dictionary.to_pylist()]
        return [null if code is None else known[code] for code in coded.indices.to_pylist()]

    def where(self, column: str, *words: str) -> _Batch:
        """The rows that hold one of some words."""
        import pyarrow as pa
        import pyarrow.compute as pc

        held = pc.is_in(self.data.column(column).cast(pa.string()), pa.array(words, pa.string()))
        return _Batch(self.data.filter(held))


@dataclass
class _Export:
    trace: Trace
    connection: sqlite3.Connection
    texts: dict[str, int] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    threads: dict[int, int] = field(default_factory=dict)
    domains: dict[tuple[int, str], int] = field(default_factory=dict)

    def write(self) -> None:
        """Write all tables. Those without rows are left out, as nsys does with ``--lazy``."""
        self._check()
        self._gpu()
        self._calls()
        self._ranges()
        self._waits()
        self._about()
        self.put("StringIds", [list(self.texts.values()), list(self.texts)])
        for name, rows in _ENUMS.items():
            self.connection.execute(
                f'CREATE TABLE "{name}" (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT)'
            )
            self.connection.executemany(f'INSERT INTO "{name}" VALUES (?, ?, ?)', rows)

    # How rows get there

    def batches(self, table: str) -> Iterator[_Batch]:
        """The rows of a table, some at a time."""
        if self.trace.rows(table):
            found = self.trace.arrow(table).unify_dictionaries()
            for batch in found.to_batches(max_chunksize=_ROWS):
                yield _Batch(batch)

    def put(
        self, table: str, columns: Sequence[Sequence[Any]], numbers: Sequence[int] | None = None
    ) -> None:
        """Append rows, given by column; under the numbers of rows that are given."""
        count = len(columns[0])
        if not count:
            return
        names = _TABLES[table].split()
        if table not in self.made:
            self.made.add(table)
            declared = ", ".join(_declared(name) for name in names)
            self.connection.execute(f'CREATE TABLE "{table}" ({declared})')
        into = "" if numbers is None else f"(rowid, {', '.join(_quoted(name) for name in names)})"
        rows = columns if numbers is None else [numbers, *columns]
        marks = ", ".join("?" * len(rows))
        self.connection.executemany(
            f'INSERT INTO "{table}" {into} VALUES ({marks})', zip(*rows, strict=True)
        )

    def text(self, text: str) -> int:
        """The number of a text."""
        found: int = self.texts.setdefault(text, len(self.texts) + 1)
        return found

    def pids(self, batch: _Batch) -> list[int]:
        """``globalPid`` of each row."""
        found: list[int] = (_VM | batch.ints("process_id") << _ID_BITS).tolist()
        return found

    def tids(self, batch: _Batch, column: str = "thread_id") -> list[int | None]:
        """``globalTid`` of each row; None where the thread is null."""
        process = batch.ints("process_id")
        thread = batch.ints(column, -1)
        missing = np.array([t is None for t in batch.values(column)], bool)
        small = self._small(thread)
        found = (_VM | process << _ID_BITS | small).tolist()
        return [None if m else t for t, m in zip(found, missing.tolist(), strict=True)]

    def _small(self, threads: IntArray) -> IntArray:
        """Thread ids as they are, where 24 bits hold them, else numbers that stand for them."""
        beyond: BoolArray = (threads < 0) | (threads > _MOST_ID)
        if not beyond.any():
            return threads
        found = threads.copy()
        for row in np.flatnonzero(beyond).tolist():
            thread = int(threads[row])
            found[row] = self.threads.setdefault(thread, _MOST_ID - len(self.threads))
        return found

    def _check(self) -> None:
        processes = (
            self.trace.arrow("process", ["process_id"]) if self.trace.rows("process") else None
        )
        ids = [] if processes is None else processes.column("process_id").to_pylist()
        if any(not 0 <= i <= _MOST_ID for i in ids):
            raise UsageError(
                f"{self.trace.path} has process ids that the schema of Nsight Systems does not "
                "hold (24 bits); export as parquet instead"
            )

    # The tables

    def _gpu(self) -> None:
        for batch in self.batches("gpu_op"):
            self._kernels(batch.where("kind", "kernel"))
            self._copies(batch.where("kind", "memcpy"))
            sets = batch.where("kind", "memset")
            self.put(
                "CUPTI_ACTIVITY_KIND_MEMSET",
                [
                    *self._timed(sets), *self._place(sets), [0] * len(sets), sets.filled("bytes"),
                    sets.values("graph_node_id"), sets.coded("src_memory", _MEMORY, 7),
                ],
            )  # fmt: skip
            graphs = batch.where("kind", "graph")
            self.put(
                "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
                [*self._timed(graphs), *self._place(graphs), graphs.filled("graph_id"),
                 graphs.filled("graph_id")],
            )  # fmt: skip

    def _kernels(self, rows: _Batch) -> None:
        none = [None] * len(rows)
        self.put(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            [
                *self._timed(rows), *self._place(rows), rows.texts("name", self.text),
                [s or n for s, n in zip(rows.texts("short_name", self.text),
                                        rows.texts("name", self.text), strict=True)],
                rows.texts("mangled_name", self.text), none, none, rows.filled("registers"),
                *(rows.filled(f"{what}_{axis}") for what in ("grid", "block") for axis in "xyz"),
                rows.filled("static_shared_bytes"), rows.filled("dynamic_shared_bytes"),
                rows.filled("local_bytes"), [0] * len(rows), rows.filled("id"), none,
                rows.values("graph_node_id"), none,
            ],
        )  # fmt: skip

    def _copies(self, rows: _Batch) -> None:
        none = [None] * len(rows)
        self.put(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            [
                *self._timed(rows), *self._place(rows), rows.filled("bytes"),
                rows.coded("copy_kind", _COPIES, 0), none, rows.coded("src_memory", _MEMORY, 7),
                rows.coded("dst_memory", _MEMORY, 7), rows.values("src_device"), none,
                rows.values("dst_device"), none, none, rows.values("graph_node_id"),
                rows.values("virtual_address"), none,
            ],
        )  # fmt: skip

    def _timed(self, rows: _Batch) -> list[list[int]]:
        return [rows.filled("start_ns"), rows.filled("end_ns")]

    def _place(self, rows: _Batch) -> list[list[Any]]:
        """Columns that all work of a GPU has."""
        green = rows.values("green_context") if "green_context" in rows.data.schema.names else None
        return [
            rows.filled("device"),
            rows.filled("context", 1),
            green or [None] * len(rows),
            rows.filled("stream", _NO_STREAM),
            rows.values("correlation_id"),
            list(self.pids(rows)),
        ]

    def _calls(self) -> None:
        for batch in self.batches("api_call"):
            cuda = batch.where("api", "runtime", "driver")
            named: list[list[Any]] = [
                *self._timed(cuda), cuda.coded("api", _CLASSES, 0), self.tids(cuda),
                cuda.values("correlation_id"), cuda.texts("raw_name", self.text),
                cuda.filled("return_value"), cuda.values("callchain_id"),
            ]  # fmt: skip
            self.put("CUPTI_ACTIVITY_KIND_RUNTIME", named)
            system = batch.where("api", "osrt")
            self.put(
                "OSRT_API",
                [
                    *self._timed(system),
                    system.texts("raw_name", lambda name: _MARKS.get(name, _CLASSES["osrt"])),
                    self.tids(system),
                    system.values("correlation_id"), system.texts("raw_name", self.text),
                    system.filled("return_value"), [None] * len(system),
                    system.filled("callchain_id"),
                ],
            )  # fmt: skip
            for api in ("cudnn", "cublas"):
                rows = batch.where("api", api)
                self.put(
                    f"{api.upper()}_EVENTS",
                    [*self._timed(rows), rows.coded("api", _CLASSES, 0), self.tids(rows),
                     rows.texts("raw_name", self.text)],
                )  # fmt: skip

    def _ranges(self) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.trace.rows("range"):
            return
        found = self.trace.arrow("range").unify_dictionaries()
        # reports show the number of a range's row
        numbered = found.column("source_row").null_count == 0
        if numbered:
            found = found.take(pc.sort_indices(found, [("source_row", "ascending")]))
        for part in found.to_batches(max_chunksize=_ROWS):
            rows = _Batch(part).where("kind", *_RANGES)
            missing = pc.or_(
                pc.fill_null(rows.data.column("end_missing"), False),
                pc.equal(rows.data.column("kind").cast(pa.string()), "mark"),
            ).to_pylist()
            ends = [None if m else e for e, m in zip(rows.filled("end_ns"), missing, strict=True)]
            none = [None] * len(rows)
            whole, json = _payloads(rows)
            self.put(
                "NVTX_EVENTS",
                [
                    rows.filled("start_ns"), ends, rows.coded("kind", _RANGES, 59),
                    [i if k == 60 else None
                     for i, k in zip(rows.filled("id"), rows.coded("kind", _RANGES, 59),
                                     strict=True)],
                    none, none, rows.values("name"), self.tids(rows),
                    self.tids(rows, "end_thread_id"), none, self._domain_ids(rows), none, whole,
                    none, none, none, none, none, json, none,
                ],
                rows.filled("source_row") if numbered else None,
            )  # fmt: skip
        for (process, name), number in self.domains.items():
            thread = _VM | process << _ID_BITS | process & _MOST_ID
            row: list[Any] = [None] * len(_TABLES["NVTX_EVENTS"].split())
            row[0], row[2], row[6], row[7], row[10] = 0, _DOMAIN, name, thread, number
            self.put("NVTX_EVENTS", [[value] for value in row])

    def _domain_ids(self, rows: _Batch) -> list[int]:
        found = []
        for process, name in zip(rows.filled("process_id"), rows.values("domain"), strict=True):
            if name is None:
                found.append(0)
            else:
                found.append(self.domains.setdefault((process, name), len(self.domains) + 1))
        return found

    def _waits(self) -> None:
        for rows in self.batches("sync"):
            self.put(
                "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
                [*self._timed(rows), *self._place(rows), [None] * len(rows),
                 rows.coded("kind", _SYNCS, 0), rows.filled("event_id"),
                 rows.values("event_sync_id")],
            )  # fmt: skip
        for rows in self.batches("event_record"):
            self.put(
                "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
                [*self._place(rows), rows.filled("event_id"), rows.values("event_sync_id")],
            )
        for rows in self.batches("overhead"):
            self.put(
                "PROFILER_OVERHEAD",
                [*self._timed(rows), self.tids(rows), rows.texts("name", self.text),
                 [0] * len(rows)],
            )  # fmt: skip

    def _about(self) -> None:
        for rows in self.batches("thread_name"):
            self._names(rows, rows.values("priority"))
        if not self.trace.rows("thread_name"):
            for rows in self.batches("thread"):
                self._names(rows, [20] * len(rows))
        for rows in self.batches("process"):
            self.put("PROCESSES", [self.pids(rows), rows.values("process_id"), rows.values("name")])
        self._devices()
        for rows in self.batches("diagnostic"):
            times, processes = rows.filled("time_ns"), rows.values("process_id")
            known = [None if p is None else _VM | p << _ID_BITS for p in processes]
            self.put(
                "DIAGNOSTIC_EVENT",
                [times, [1] * len(rows), [0] * len(rows),
                 rows.coded("severity", _SEVERITIES, 0), rows.values("text"), known],
            )  # fmt: skip
        meta = self.trace.meta
        begin, end = meta.window_start_ns, meta.window_end_ns
        self.put("ANALYSIS_DETAILS", [[_VM], [end - begin], [begin], [end]])
        if meta.origin_epoch_ns is not None:
            when = str(np.datetime64(meta.origin_epoch_ns // 10**9, "s"))
            self.put("TARGET_INFO_SESSION_START_TIME", [[meta.origin_epoch_ns], [when], [when]])
        if meta.hostname:
            self.put(
                "TARGET_INFO_SYSTEM_ENV", [[_VM], ["Hostname"], ["Hostname"], [0], [meta.hostname]]
            )
        numbers = dict(zip(("MAJOR", "MINOR", "MICRO"), _SCHEMA.split("."), strict=True))
        facts = {
            "EXPORT_PRODUCT_NAME": "Stepscope",
            "EXPORT_SCHEMA_VERSION": _SCHEMA,
            **{f"EXPORT_SCHEMA_VERSION_{part}": value for part, value in numbers.items()},
            "EXPORT_PARAM_INPUT_FILE": meta.input_name,
            "EXPORT_PARAM_LAZY": "true",
        }
        self.put("META_DATA_EXPORT", [list(facts), list(facts.values())])
        captured = {"CAPTURE_SOURCE": meta.source, "CAPTURE_SOURCE_VERSION": meta.source_version}
        if meta.command:
            captured["PROCESS_0:COMMAND"] = meta.command
        self.put("META_DATA_CAPTURE", [list(captured), list(captured.values())])

    def _names(self, rows: _Batch, priorities: list[Any]) -> None:
        tids = self.tids(rows)
        named = [
            (name, priority, tid)
            for name, priority, tid in zip(
                rows.texts("name", self.text), priorities, tids, strict=True
            )
            if name is not None
        ]
        if named:
            self.put("ThreadNames", list(zip(*named, strict=True)))

    def _devices(self) -> None:
        names = _TABLES["TARGET_INFO_GPU"].replace("!", "").replace(":TEXT", "").split()
        known: set[int] = set()
        for rows in self.batches("device"):
            for item in rows.data.to_pylist():
                gpu = item["device"] if item["physical_id"] is None else item["physical_id"]
                process = item["process_id"]
                if process is not None:
                    self.put("TARGET_INFO_CUDA_DEVICE", [[gpu], [item["device"]], [process]])
                if gpu in known:
                    continue
                known.add(gpu)
                facts = {
                    "vmId": _VM, "id": gpu, "name": item["name"], "uuid": item["uuid"],
                    "totalMemory": item["memory_bytes"], "clockRate": item["clock_hz"],
                    "memoryBandwidth": item["memory_bandwidth"], "smCount": item["sm_count"],
                    "cuDevice": item["device"], "computeMajor": item["compute_major"],
                    "computeMinor": item["compute_minor"],
                }  # fmt: skip
                self.put("TARGET_INFO_GPU", [[facts.get(name)] for name in names])
        contexts: set[tuple[int, int, int]] = set()
        for rows in self.batches("stream"):
            process, context = rows.filled("process_id"), rows.filled("context", 1)
            device = rows.filled("device")
            contexts |= set(zip(process, device, context, strict=True))
            zero = [0] * len(rows)
            self.put(
                "TARGET_INFO_CUDA_STREAM",
                [rows.filled("stream"), zero, [1] * len(rows), process, context,
                 rows.filled("priority"), rows.coded("flag", _FLAGS, 0)],
            )  # fmt: skip
        for process_id, device_id, context_id in sorted(contexts):
            self.put(
                "TARGET_INFO_CUDA_CONTEXT_INFO",
                [[7], [0], [1], [process_id], [device_id], [context_id], [0], [0]],
            )


def _quoted(column: str) -> str:
    return '"' + column.rstrip("!").partition(":")[0] + '"'


def _declared(column: str) -> str:
    """``name:TYPE!`` as SQL."""
    kind = column.rstrip("!").partition(":")[2]
    return f"{_quoted(column)} {kind or 'INTEGER'}{' NOT NULL' if column.endswith('!') else ''}"


def _payloads(rows: _Batch) -> tuple[list[int | None], list[str | None]]:
    """Payloads that are whole numbers, and the others as text."""
    texts = rows.values("payload")
    whole = [
        int(text) if text is not None and len(text) < 19 and text.lstrip("-").isdecimal() else None
        for text in texts
    ]
    return whole, [t if w is None else None for t, w in zip(texts, whole, strict=True)]
