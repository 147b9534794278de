"""Read one raw capture, of one process or of a group of them, into the canonical tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stepscope.importers.common.sink import Sink
from stepscope.importers.stepscope.about import (
    count_profilers,
    ends_of,
    launcher_message,
    members_of,
    meta_of,
    missing_tables,
    names_of,
    origin_of,
    process_of,
    read_diagnostics,
    read_processes_threads_devices,
    read_stretches,
    recorded_in,
    window_of,
)
from stepscope.importers.stepscope.cuda import (
    called,
    count_unresolved,
    read_calls,
    read_gpu,
    read_memory,
    read_overhead,
    read_streams,
    read_syncs,
)
from stepscope.importers.stepscope.ranges import read_ranges
from stepscope.importers.stepscope.raw import examined, names_in, read_raw
from stepscope.importers.stepscope.samples import read_counters, read_stacks, read_threads
from stepscope.trace.errors import InputError
from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter

_NEVER = 1 << 62


def read(path: Path, writer: TraceWriter) -> Meta:
    """Fill the writer from a folder of raw files, or from one process's file.

    Raises:
        InputError: there is nothing in it, or it was written by another version.
    """
    folder = path if path.is_dir() else path.parent
    files = examined(folder, writer.problems)
    names = names_in(files) if path.is_dir() else [path.name.split(".", 1)[0]]
    raws = [read_raw(files, name, writer.problems) for name in names]
    raws = [raw for raw in raws if raw.meta or raw.blocks]
    if not raws:
        raise InputError(
            f"{path} holds no whole record; the program ended before anything was recorded"
        )
    metadata = launcher_message(files)
    origin, epoch = origin_of(raws, metadata)
    window = window_of(raws)
    meta = meta_of(raws, metadata)
    sink = Sink(writer, origin)
    processes = members_of(files, raws)
    names_of_threads: dict[tuple[int, int], str] = {}
    count_profilers(sink, files, raws, processes)
    inside = recorded_in(raws, window)
    for raw in raws:
        process = process_of(raw)
        known = called(raw)
        read_gpu(sink, raw, process, known)
        read_calls(sink, raw, process)
        count_unresolved(sink, raw, known)
        read_syncs(sink, raw, process)
        read_overhead(sink, raw, process)
        read_memory(sink, raw, process)
        within = inside
        if raw.one("cupti"):  # it records within, once it uses the GPU
            within = np.array([window.start_ns]), np.array([_NEVER])
        named = read_ranges(sink, raw, process, ends_of(raw, window), within)
        names_of_threads |= {(process, thread): name for thread, name in named.items()}
        read_streams(sink, raw, process)
        raw.blocks.clear()
        raw.nvtx.clear()
    read_counters(sink, files, raws, window)
    read_threads(sink, files, processes, window)
    read_stacks(sink, files, window)
    read_stretches(sink, files, [process_of(raw) for raw in raws])
    read_diagnostics(sink, raws)
    read_processes_threads_devices(sink, raws, names_of_threads, names_of(files))
    meta.origin_epoch_ns = epoch
    meta.window_start_ns = window.start_ns - origin
    meta.window_end_ns = max(window.end_ns - origin, sink.latest_ns)
    meta.missing = missing_tables(sink.rows)
    return meta
