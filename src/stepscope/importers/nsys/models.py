"""Events of other programming models: unified memory, MPI, OpenACC, OpenMP, the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.importers.nsys.about import read_mpi_ranks
from stepscope.importers.nsys.merge import Columns
from stepscope.importers.nsys.rows import Field, Rows, code, may, must
from stepscope.importers.nsys.sink import Sink, process_of, thread_of
from stepscope.importers.nsys.targets import records
from stepscope.intervals.distinct import distinct_rows, with_inverse
from stepscope.trace.frame import IntArray

if TYPE_CHECKING:
    import pyarrow as pa

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
        metric = sink.lexicon(table, "metric")
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

    lexicon = sink.lexicon("network_sample", column)
    codes = [lexicon.code(card[key]) if card.get(key) else None for card in known]
    return pa.array(codes, type=pa.int32()).take(pa.array(device))
