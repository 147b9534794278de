"""Read one Nsight Systems capture into the canonical tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from stepscope.importers.common.about import rank_of
from stepscope.importers.common.stream import first_bytes
from stepscope.importers.nsys.about import (
    About,
    missing_tables,
    read_about,
    read_devices,
    read_diagnostics,
    read_mpi_ranks,
    read_processes,
    read_streams,
    read_threads,
)
from stepscope.importers.nsys.arrow_source import FolderSource, StreamSource
from stepscope.importers.nsys.gpu import (
    DEVICE,
    LAUNCH,
    MEMCPY_LABELS,
    OVERHEAD_LABELS,
    CorrelationFlags,
    GpuReader,
    read_event_records,
    read_memory_events,
    read_overhead,
    read_syncs,
)
from stepscope.importers.nsys.host import (
    CudaCalls,
    HostReader,
    read_mpi_events,
    read_network_samples,
    read_openacc_events,
    read_openmp_events,
    read_page_faults,
)
from stepscope.importers.nsys.ranges import RangeReader
from stepscope.importers.nsys.rows import TableReader, may, must
from stepscope.importers.nsys.samples import (
    read_cpu_samples,
    read_metrics,
    read_scheduling,
    read_stacks,
)
from stepscope.importers.nsys.sink import Sink, Strings, records
from stepscope.importers.nsys.source import Kind, Source, kind_of
from stepscope.importers.nsys.sqlite_source import SqliteSource, exported
from stepscope.trace.errors import InputError
from stepscope.trace.frame import IntArray
from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter

_HEAD_BYTES = 4096


def read(path: Path, writer: TraceWriter) -> Meta:
    """Fill the writer from a report, a SQLite, Arrow or Parquet export.

    Raises:
        InputError: it cannot be read whole.
    """
    with opened(path) as source:
        return _fill(path, source, writer)


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """The tables of a capture, whatever its form.

    Raises:
        InputError: it cannot be opened.
    """
    kind = kind_of(path, b"" if path.is_dir() else first_bytes(path, _HEAD_BYTES))
    if kind is Kind.REPORT:
        with exported(path) as database, closing(SqliteSource(database, shown=path)) as source:
            yield source
        return
    if kind is Kind.STREAM:
        raise InputError(
            f"{path} is a raw stream that nsys did not finish to import; run nsys import "
            f"{path.name} (QdstrmImporter in older versions) and give the .nsys-rep file"
        )
    with closing(_plain(path, kind)) as plain:
        yield plain


def _plain(path: Path, kind: Kind | None) -> Source:
    if kind is Kind.TABLE_FOLDER:
        return FolderSource(path)
    if kind is Kind.ARROW_STREAM:
        return StreamSource(path)
    return SqliteSource(path)


def _fill(path: Path, source: Source, writer: TraceWriter) -> Meta:
    tables = TableReader(source, writer.problems)
    if not tables.has("StringIds"):
        raise InputError(
            f"{path} holds no table StringIds, so nothing in it has a name; export the report "
            "again with all tables (nsys export -t sqlite)"
        )
    about = read_about(tables)
    tables.shift_ns = about.shift_ns
    sink = Sink(writer, tables=tables, strings=_strings(tables), window_end_ns=about.duration_ns)
    parts = _memset_events(sink)
    meta = about.meta()
    meta.window_end_ns = sink.latest_ns if about.duration_ns is None else about.duration_ns
    _set_rank(meta, about, sink)
    meta.missing = missing_tables(sink.rows | parts, about.traced)
    return meta


def _memset_events(sink: Sink) -> dict[str, int]:
    """Fill all tables; returns the row counts of parts that have no table of their own."""
    flags = CorrelationFlags()
    host = HostReader(sink, flags)
    host.read()
    gpu = GpuReader(
        sink, flags, _enum(sink, "ENUM_CUDA_MEMCPY_OPER", MEMCPY_LABELS), _only_process(sink)
    )
    gpu.read()
    read_syncs(sink)
    read_event_records(sink)
    read_overhead(sink, _enum(sink, "ENUM_OVERHEAD_TYPE", OVERHEAD_LABELS))
    read_memory_events(sink)
    read_cpu_samples(sink)
    read_stacks(sink)
    read_scheduling(sink)
    read_metrics(sink)
    read_page_faults(sink)
    read_mpi_events(sink)
    read_openacc_events(sink)
    read_openmp_events(sink)
    read_network_samples(sink)
    ranges = RangeReader(sink)
    ranges.read()
    read_diagnostics(sink)
    _check_completeness(sink, flags, host.cuda, gpu)
    read_devices(sink)
    read_streams(sink)
    read_threads(sink, ranges.thread_names)
    return {"osrt": host.osrt_rows}


def _check_completeness(
    sink: Sink, flags: CorrelationFlags, cuda: CudaCalls, gpu: GpuReader
) -> None:
    """Count launches whose GPU work is not in the capture.

    After most captures nsys remarks that "not all CUDA events might have been collected", on
    complete ones too. What decides is the data: every successful kernel launch has its kernel in a
    complete capture.
    """
    problems = sink.tables.problems
    nothing = sink.rows["gpu_op"] == 0
    if cuda.graph_launches and not gpu.graph_rows and not gpu.node_rows:
        detail = f"{cuda.graph_launches} graph launches without any record of their work"
        problems.count("graph_mode", cuda.graph_launches, scope="gpu_op", detail=detail)
    if not flags.complete or (cuda.stream_captures and not nothing):
        return  # launches that a stream capture recorded into a graph enqueue nothing
    lost = flags.count(LAUNCH, DEVICE)
    detail = f"{lost} kernel launches have no recorded kernel"
    problems.count("dropped_records", lost, scope="gpu_op", detail=detail)


def _strings(tables: TableReader) -> Strings:
    import pyarrow as pa

    ids: list[IntArray] = []
    texts: list[pa.Array] = []
    for rows in tables.read("StringIds", (must("id"), may("value", "raw")), "api_call"):
        ids.append(rows.ints("id"))
        texts.append(rows["value"].cast(pa.binary()))
    if not ids:
        return Strings(np.empty(0, np.int64), pa.array([], pa.binary()))
    return Strings(np.concatenate(ids), pa.concat_arrays(texts))


def _enum(sink: Sink, table: str, known: dict[int, str]) -> dict[int, str]:
    """Labels of an enumeration: those of the export where it has them."""
    fields = (must("id"), may("label", "text"))
    return known | {
        row["id"]: row["label"] for row in records(sink, table, fields, "gpu_op") if row["label"]
    }


def _only_process(sink: Sink) -> int:
    """The process of GPU work that names none: the one that made calls, if it is one."""
    return next(iter(sink.processes)) if len(sink.processes) == 1 else 0


def _set_rank(meta: Meta, about: About, sink: Sink) -> None:
    """Set the rank, and fill ``process``, whose rows carry it."""
    ranks = read_mpi_ranks(sink.tables)
    rank, size, where = rank_of(about.variables)
    at_work = {process for process, *_ in sink.streams}
    if len(ranks) == 1:
        rank, where = next(iter(ranks.values())), "table MPI_RANKS"
    elif len(at_work) > 1 or len(ranks) > 1:
        # one report of several ranks: the environment is the launcher's, not theirs
        rank, where = None, ""
    meta.rank, meta.world_size, meta.rank_source = rank, size, where
    if rank is not None and len(at_work) == 1:
        ranks = dict.fromkeys(at_work, rank) | ranks
    read_processes(sink, ranks)
