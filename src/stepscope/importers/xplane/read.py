"""Read a whole profile: planes of GPUs first, then the host's, then what describes them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stepscope.importers.common.protobuf import DamageError, mapped
from stepscope.importers.common.sink import Sink
from stepscope.importers.xplane.about import (
    describe,
    gpus_of,
    missing_tables,
    process_of,
    rank_of,
    refuse_mangled,
    times_of,
)
from stepscope.importers.xplane.gpu import Gpus, read_gpu
from stepscope.importers.xplane.hlo import Program, programs_of
from stepscope.importers.xplane.host import Threads, is_correlated, read_host
from stepscope.importers.xplane.space import Plane, planes_of
from stepscope.trace.errors import InputError
from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter

_HEAD: Final = 1 << 16
_EPOCH_NS: Final = 10**18


def read(path: Path, writer: TraceWriter) -> Meta:
    """Fill the tables from a profile.

    Args:
        path: one host's ``.xplane.pb``.
        writer: receives the tables.

    Raises:
        InputError: it is no profile, is damaged, or is of no GPU.
    """
    with mapped(path, writer.folder) as data:
        refuse_mangled(path, data[:_HEAD])
        try:
            planes, hosts = planes_of(data)
            return _read(path, writer, planes, hosts)
        except DamageError as error:
            raise InputError(
                f"{path} is damaged or not whole: it holds {error}; the capture or a copy did not "
                "finish, copy it again, or capture again"
            ) from error


def _read(path: Path, writer: TraceWriter, planes: list[Plane], hosts: list[str]) -> Meta:
    found = gpus_of(path, planes)
    process = process_of(planes)
    began, ended = times_of(planes)
    # lines count from the profile's begin; a profile that was not prepared counts from 1970
    absolute = any(line.timestamp_ns > _EPOCH_NS for plane in planes for line in plane.lines)
    starts = [line.timestamp_ns for plane in planes for line in plane.lines if line.timestamp_ns]
    origin = (began or min(starts, default=0)) if absolute else 0
    sink = Sink(writer, origin)
    programs: dict[str, Program] = {}
    for plane in planes:
        if plane.name == "/host:metadata":
            programs = programs_of(plane)
    gpus, threads = Gpus(), Threads()
    for plane in found:
        read_gpu(sink, plane, process, programs, gpus)
    for plane in planes:
        if plane.name.startswith("/host:CPU") or plane.name.startswith("/host:python"):
            read_host(sink, plane, process, gpus, threads)
    _count(writer, gpus, threads)
    _things(sink, process, threads)
    meta = Meta()
    describe(meta, planes, hosts)
    rank = rank_of(path)
    if rank is not None:
        meta.rank, meta.rank_source = rank, "file name"
    meta.origin_epoch_ns = began if began is not None else (origin or None)
    window = ended - began if began is not None and ended is not None else 0
    meta.window_end_ns = max(window, sink.latest_ns)
    meta.missing = missing_tables(sink.rows)
    return meta


def _count(writer: TraceWriter, gpus: Gpus, threads: Threads) -> None:
    writer.problems.count("unresolved_correlation", is_correlated(gpus, threads), scope="gpu_op")
    writer.problems.count("graph_mode", gpus.graphs, scope="gpu_op")


def _things(sink: Sink, process: int, threads: Threads) -> None:
    sink.put_records("process", [{"process_id": process}])
    sink.put_records(
        "thread",
        [
            {"process_id": process, "thread_id": thread, "name": threads.names.get(thread) or None}
            for _, thread in sorted(sink.threads)
        ],
    )
    sink.put_records(
        "stream",
        [
            {"process_id": at, "device": device, "stream": stream}
            for at, _, device, stream in sorted(sink.streams)
        ],
    )
