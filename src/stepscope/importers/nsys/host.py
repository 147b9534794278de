"""Host calls of CUDA, its libraries, MPI and the operating system: the table ``api_call``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.importers.nsys import codes
from stepscope.importers.nsys.correlation import CorrelationFlags
from stepscope.importers.nsys.gpu import API, LAUNCH
from stepscope.importers.nsys.merge import Columns, merged
from stepscope.importers.nsys.rows import Rows, code, may, must
from stepscope.importers.nsys.sink import Sink, process_of, thread_of
from stepscope.importers.nsys.text import NameColumn
from stepscope.trace.frame import BoolArray, IntArray

TABLE = "api_call"
_VERSION = re.compile(r"_v\d+$")
_KERNEL_LAUNCH = re.compile(r"(cuda|cu)Launch(Cooperative)?Kernel")
_GRAPH_LAUNCH = re.compile(r"(cuda|cu)GraphLaunch")
_STREAM_CAPTURE = re.compile(r"(cuda|cu)StreamBeginCapture")

_CALL = (
    must("start", "time"),
    must("end", "time"),
    must("globalTid"),
    code("returnValue"),
)


def without_version(name: str) -> str:
    """The function's name without its interface version (``cudaMalloc_v3020``)."""
    return _VERSION.sub("", name)


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
        names = sink.lexicon(TABLE, "name")
        runtime = sink.lexicon(TABLE, "api").code("runtime")
        driver = sink.lexicon(TABLE, "api").code("driver")
        for rows in sink.tables.read("CUPTI_ACTIVITY_KIND_RUNTIME", fields, TABLE):
            columns = self._common(rows)
            columns["name"] = name(rows["nameId"])
            columns["raw_name"] = raw(rows["nameId"])
            columns["name_number"] = rows["nameId"]
            is_driver = rows.ints("eventClass") == codes.DRIVER_CLASS
            columns["api"] = pa.array(np.where(is_driver, driver, runtime).astype(np.int32))
            columns["correlation_id"] = rows["correlationId"]
            columns["callchain_id"] = rows["callchainId"]
            self._note_launches(rows, columns["name"].to_numpy(), names.texts)
            yield columns

    def _osrt(self) -> Iterator[Columns]:
        fields = (*_CALL, must("nameId"), code("eventClass"), may("callchainId", none=(0,)))
        for rows in self._sink.tables.read("OSRT_API", fields, TABLE):
            calls = rows.filter(rows.ints("eventClass") != codes.OSRT_START_CLASS)
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
            self._sink.names(TABLE, "name", without_version),
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
