"""Calls and events of the host: CUDA and its libraries, the system, MPI, OpenACC, OpenMP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.importers.common.cuda import call_name
from stepscope.importers.nsys.about import read_mpi_ranks
from stepscope.importers.nsys.gpu import API, LAUNCH, CorrelationFlags
from stepscope.importers.nsys.rows import Columns, Field, Rows, code, may, merged, must
from stepscope.importers.nsys.sink import NameColumn, Sink, process_of, records, thread_of
from stepscope.intervals.distinct import distinct_rows, with_inverse
from stepscope.trace.frame import BoolArray, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

TABLE = "api_call"
_DRIVER_CLASS = 1
_OSRT_START_CLASS = 31  # a marker "OS runtime tracing has begun", not a call
_KERNEL_LAUNCH = re.compile(r"(cuda|cu)Launch(Cooperative)?Kernel")
_GRAPH_LAUNCH = re.compile(r"(cuda|cu)GraphLaunch")
_STREAM_CAPTURE = re.compile(r"(cuda|cu)StreamBeginCapture")

_CALL = (
    must("start", "time"),
    must("end", "time"),
    must("globalTid"),
    code("returnValue"),
)


@dataclass
class CudaCalls:
    """What the CUDA calls tell about the completeness of the GPU's records.

    Attributes:
        graph_launches: successful launches of whole graphs.
        stream_captures: calls that begin to capture a graph: launches then enqueue nothing.
    """

    graph_launches: int = 0
    stream_captures: int = 0


class HostReader:
    """Reads all host calls.

    Args:
        sink: takes the rows.
        flags: receives the correlation ids of CUDA calls.
    """

    def __init__(self, sink: Sink, flags: CorrelationFlags) -> None:
        self._sink = sink
        self._flags = flags
        self.cuda = CudaCalls()
        self.osrt_rows = 0

    def read(self) -> None:
        """Fill ``api_call``."""
        streams = [self._cuda(), self._osrt(), self._syscalls()]
        streams += [
            self._library(table, api)
            for table, api in (("CUBLAS_EVENTS", "cublas"), ("CUDNN_EVENTS", "cudnn"))
        ]
        streams += [
            self._mpi(f"MPI_{part}_EVENTS")
            for part in ("P2P", "START_WAIT", "OTHER", "COLLECTIVES")
        ]
        self._sink.put_all(TABLE, merged(streams))

    def _cuda(self) -> Iterator[Columns]:
        import pyarrow as pa

        fields = (
            *_CALL,
            must("nameId"),
            code("eventClass"),
            may("correlationId"),
            may("callchainId"),
        )
        sink = self._sink
        name, raw = self._names()
        names = sink.string_table(TABLE, "name")
        runtime = sink.string_table(TABLE, "api").code("runtime")
        driver = sink.string_table(TABLE, "api").code("driver")
        for rows in sink.tables.read("CUPTI_ACTIVITY_KIND_RUNTIME", fields, TABLE):
            columns = self._common(rows)
            columns["name"] = name(rows["nameId"])
            columns["raw_name"] = raw(rows["nameId"])
            columns["name_number"] = rows["nameId"]
            is_driver = rows.ints("eventClass") == _DRIVER_CLASS
            columns["api"] = pa.array(np.where(is_driver, driver, runtime).astype(np.int32))
            columns["correlation_id"] = rows["correlationId"]
            columns["callchain_id"] = rows["callchainId"]
            self._note_launches(rows, columns["name"].to_numpy(), names.texts)
            yield columns

    def _osrt(self) -> Iterator[Columns]:
        fields = (*_CALL, must("nameId"), code("eventClass"), may("callchainId", none=(0,)))
        for rows in self._sink.tables.read("OSRT_API", fields, TABLE):
            calls = rows.filter(rows.ints("eventClass") != _OSRT_START_CLASS)
            self.osrt_rows += len(calls)
            yield self._named(calls, "osrt", "nameId") | {"callchain_id": calls["callchainId"]}

    def _syscalls(self) -> Iterator[Columns]:
        for rows in self._sink.tables.read("SYSCALL", (*_CALL, must("nameId")), TABLE):
            yield self._named(rows, "syscall", "nameId")

    def _library(self, table: str, api: str) -> Iterator[Columns]:
        for rows in self._sink.tables.read(table, (*_CALL, must("nameId")), TABLE):
            yield self._named(rows, api, "nameId")

    def _mpi(self, table: str) -> Iterator[Columns]:
        for rows in self._sink.tables.read(table, (*_CALL, must("textId")), TABLE):
            yield self._named(rows, "mpi", "textId")

    def _named(self, rows: Rows, api: str, name_field: str) -> Columns:
        name, raw = self._names()
        return self._common(rows) | {
            "name": name(rows[name_field]),
            "raw_name": raw(rows[name_field]),
            "name_number": rows[name_field],
            "api": self._sink.constant(TABLE, "api", api, len(rows)),
        }

    def _names(self) -> tuple[NameColumn, NameColumn]:
        return (
            self._sink.names(TABLE, "name", call_name),
            self._sink.names(TABLE, "raw_name"),
        )

    def _common(self, rows: Rows) -> Columns:
        import pyarrow as pa

        global_tid = rows.ints("globalTid")
        self._sink.saw_threads(global_tid)
        return {
            "process_id": pa.array(process_of(global_tid)),
            "thread_id": pa.array(thread_of(global_tid)),
            "start_ns": rows["start"],
            "end_ns": rows["end"],
            "return_value": rows["returnValue"],
        }

    def _note_launches(self, rows: Rows, names: IntArray, texts: list[str]) -> None:
        known = rows.valid("correlationId")
        ids, process = rows.ints("correlationId"), process_of(rows.ints("globalTid"))
        worked = rows.ints("returnValue") == 0
        self._flags.mark(process[known], ids[known], API)
        launch = _which(texts, _KERNEL_LAUNCH)[names] & worked & known
        self._flags.mark(process[launch], ids[launch], LAUNCH)
        self.cuda.graph_launches += int((_which(texts, _GRAPH_LAUNCH)[names] & worked).sum())
        self.cuda.stream_captures += int(_which(texts, _STREAM_CAPTURE)[names].sum())


def _which(texts: list[str], pattern: re.Pattern[str]) -> BoolArray:
    return np.array([pattern.match(text) is not None for text in texts], dtype=bool)


_OPENMP = (
    *("THREAD", "PARALLEL", "SYNC_REGION_WAIT", "SYNC_REGION", "TASK", "MASTER", "REDUCTION"),
    *("TASK_CREATE", "TASK_SCHEDULE", "CANCEL", "MUTEX_WAIT", "CRITICAL_SECTION"),
    *("MUTEX_RELEASED", "LOCK_INIT", "LOCK_DESTROY", "WORKSHARE", "DISPATCH", "FLUSH"),
)
_INTERVAL = (must("start", "time"), must("end", "time"), must("globalTid"))
_MPI: dict[str, dict[str, str]] = {
    "P2P": {"tag": "tag", "remoteRank": "peer_rank", "size": "bytes"},
    "START_WAIT": {},
    "OTHER": {},
    "COLLECTIVES": {"rootRank": "root_rank", "size": "send_bytes", "recvSize": "receive_bytes"},
}
_MPI_KINDS = {"P2P": "p2p", "START_WAIT": "start_wait", "OTHER": "other"}


def read_page_faults(sink: Sink) -> None:
    """Fill ``page_fault``."""
    import pyarrow as pa

    table = "page_fault"
    fields: tuple[Field, ...]
    fields = (must("start", "time"), must("globalPid"), code("address"), code("CpuInstruction"))
    instruction = sink.names(table, "instruction")
    for rows in sink.tables.read("CUDA_UM_CPU_PAGE_FAULT_EVENTS", fields, table):
        sink.put(
            table,
            {
                "kind": sink.constant(table, "kind", "cpu", len(rows)),
                "process_id": pa.array(process_of(rows.ints("globalPid"))),
                "start_ns": rows["start"],
                "end_ns": rows["start"],
                "address": rows["address"],
                "instruction": instruction(rows["CpuInstruction"]),
            },
        )
    fields = (
        *(must("start", "time"), must("end", "time"), must("globalPid")),
        *(code("deviceId", "int32"), code("address"), code("numberOfPageFaults")),
    )
    for rows in sink.tables.read("CUDA_UM_GPU_PAGE_FAULT_EVENTS", fields, table):
        sink.put(
            table,
            {
                "kind": sink.constant(table, "kind", "gpu", len(rows)),
                "process_id": pa.array(process_of(rows.ints("globalPid"))),
                "device": rows["deviceId"],
                "start_ns": rows["start"],
                "end_ns": rows["end"],
                "address": rows["address"],
                "faults": rows["numberOfPageFaults"],
            },
        )


def read_mpi_events(sink: Sink) -> None:
    """Fill ``mpi_event``."""
    table = "mpi_event"
    ranks = read_mpi_ranks(sink.tables)
    name = sink.names(table, "name")
    for part, more in _MPI.items():
        fields = (*_INTERVAL, must("textId"), *(code(theirs) for theirs in more))
        for rows in sink.tables.read(f"MPI_{part}_EVENTS", fields, table):
            columns = _common(sink, rows)
            columns["name"] = name(rows["textId"])
            kind = _MPI_KINDS.get(part, "collective")
            columns["kind"] = sink.constant(table, "kind", kind, len(rows))
            columns["rank"] = _ranks(rows, ranks)
            columns |= {ours: rows[theirs] for theirs, ours in more.items()}
            sink.put(table, columns)


def _ranks(rows: Rows, ranks: dict[int, int]) -> pa.Array:
    import pyarrow as pa

    processes, inverse = with_inverse(process_of(rows.ints("globalTid")))
    found = pa.array([ranks.get(process) for process in processes.tolist()], type=pa.int64())
    return found.take(pa.array(inverse))


def read_openacc_events(sink: Sink) -> None:
    """Fill ``openacc_event``."""
    table = "openacc_event"
    fields: tuple[Field, ...] = (*_INTERVAL, must("nameId"), code("lineNo"), may("srcFile"))
    name, file = sink.names(table, "name"), sink.names(table, "file")
    for part in ("DATA", "LAUNCH", "OTHER"):
        for rows in sink.tables.read(f"CUPTI_ACTIVITY_KIND_OPENACC_{part}", fields, table):
            columns = _common(sink, rows)
            columns["kind"] = sink.constant(table, "kind", part.lower(), len(rows))
            columns["name"] = name(rows["nameId"])
            columns["name_number"] = rows["nameId"]
            columns["file"] = file(rows["srcFile"])
            columns["line"] = rows["lineNo"]
            sink.put(table, columns)


def read_openmp_events(sink: Sink) -> None:
    """Fill ``openmp_event``."""
    table = "openmp_event"
    name = sink.names(table, "name")
    for part in _OPENMP:
        source = f"OPENMP_EVENT_KIND_{part}"
        for rows in sink.tables.read(source, (*_INTERVAL, must("nameId")), table):
            columns = _common(sink, rows)
            columns["kind"] = sink.constant(table, "kind", part.lower(), len(rows))
            columns["name"] = name(rows["nameId"])
            columns["name_number"] = rows["nameId"]
            sink.put(table, columns)


def _common(sink: Sink, rows: Rows) -> Columns:
    import pyarrow as pa

    tids = rows.ints("globalTid")
    sink.saw_threads(tids)
    return {
        "process_id": pa.array(process_of(tids)),
        "thread_id": pa.array(thread_of(tids)),
        "start_ns": rows["start"],
        "end_ns": rows["end"],
    }


def read_network_samples(sink: Sink) -> None:
    """Fill ``network_sample``."""
    table = "network_sample"
    fields: tuple[Field, ...]
    fields = (must("metricsListId"), must("metricsIdx"), may("name", "text"))
    metrics = {
        (row["metricsListId"], row["metricsIdx"]): row["name"] or ""
        for row in records(sink, "TARGET_INFO_NETWORK_METRICS", fields, table)
    }
    fields = (must("id"), may("label", "text"))
    products = {
        row["id"]: row["label"] for row in records(sink, "ENUM_NET_DEVICE_ID", fields, table)
    }
    fields = (must("nicId"), may("GUID"), may("name", "text"), may("deviceId"))
    cards = {
        row["nicId"]: row | {"product": products.get(row["deviceId"])}
        for row in records(sink, "TARGET_INFO_NIC_INFO", fields, table)
    }
    fields = (must("nicId"), must("globalId"))
    devices: dict[int, Any] = {
        row["globalId"]: cards.get(row["nicId"])
        for row in records(sink, "NIC_ID_MAP", fields, table)
    }
    for source, label in (("NET_NIC_METRIC", "nic"), ("NET_IB_SWITCH_METRIC", "ib_switch")):
        _read_samples(sink, source, label, metrics, devices)


def _read_samples(
    sink: Sink,
    source: str,
    label: str,
    metrics: dict[tuple[int, int], str],
    devices: dict[int, Any],
) -> None:
    import pyarrow as pa

    table = "network_sample"
    fields = (
        *(must("start", "time"), must("end", "time"), must("globalId")),
        *(must("metricsListId"), must("metricsIdx"), must("value")),
    )
    for rows in sink.tables.read(source, fields, table):
        lists, places = rows.ints("metricsListId"), rows.ints("metricsIdx")
        first, which = distinct_rows((lists, places))
        pairs = zip(lists[first].tolist(), places[first].tolist(), strict=True)
        names = [metrics.get((a, b), f"metric {a}.{b}") for a, b in pairs]
        metric = sink.string_table(table, "metric")
        codes = np.array([metric.code(name) for name in names], np.int32)[which]
        ids, device = with_inverse(rows.ints("globalId"))
        known = [devices.get(number) or {} for number in ids.tolist()]
        guids = pa.array([card.get("GUID") for card in known], type=pa.int64())
        sink.put(
            table,
            {
                "source": sink.constant(table, "source", label, len(rows)),
                "start_ns": rows["start"],
                "end_ns": rows["end"],
                "metric": pa.array(codes),
                "value": rows["value"],
                "guid": guids.take(pa.array(device)),
                "device_name": _texts(sink, "device_name", known, "name", device),
                "product": _texts(sink, "product", known, "product", device),
            },
        )


def _texts(
    sink: Sink, column: str, known: list[dict[str, Any]], key: str, device: IntArray
) -> pa.Array:
    """Codes of a text that each device has, for every row."""
    import pyarrow as pa

    string_table = sink.string_table("network_sample", column)
    codes = [string_table.code(card[key]) if card.get(key) else None for card in known]
    return pa.array(codes, type=pa.int32()).take(pa.array(device))
