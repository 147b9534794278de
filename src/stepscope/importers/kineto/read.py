"""Read a whole trace: route events to their tables, then write them and the metadata."""

from __future__ import annotations

import gc
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.importers.common.stream import open_text
from stepscope.importers.common.stretches import TABLE as STRETCHES
from stepscope.importers.common.stretches import columns, read_header
from stepscope.importers.foreign import of_events
from stepscope.importers.kineto.about import (
    Marks,
    describe,
    missing_tables,
    parse_header,
    write_communicators,
    write_devices,
    write_remarks,
)
from stepscope.importers.kineto.events import MISSING
from stepscope.importers.kineto.gpu import GpuOperations, Synchronisations
from stepscope.importers.kineto.host import (
    Allocations,
    Calls,
    Operators,
    Overheads,
    PythonFunctions,
    Ranges,
)
from stepscope.importers.kineto.pieces import EventReader
from stepscope.importers.kineto.processes import Launchers
from stepscope.importers.kineto.spans import (
    Context,
    Events,
    Flows,
    Ints,
    Spans,
    runs,
    write_collectives,
)
from stepscope.intervals.distinct import among, distinct_rows
from stepscope.trace.errors import InputError
from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter

_EPOCH_NS = 10**18  # times beyond 2001 in ns can only count from 1970
_RUNTIME = re.compile(r"(?:cuda|hip|xpu|mtia|glow|privateuse1|musa|hpu)?_?runtime\Z")
_DRIVER = re.compile(r"(?:cuda|hip|xpu|mtia|privateuse1|musa|hpu)?_?driver\Z")

_SPANS = ("X", "B", "E")
_SHOWN = 40
"""Characters of what is no event."""

Sink = Callable[[Events], None]


class Tables:
    """The tables of one trace while its events arrive."""

    def __init__(self) -> None:
        self.ranges = Ranges()
        self.operators = Operators(self.ranges)
        self.calls = Calls()
        self.gpu = GpuOperations()
        self.syncs = Synchronisations()
        self.python = PythonFunctions()
        self.overheads = Overheads()
        self.allocations = Allocations()
        self.flows = Flows()
        self.marks = Marks()
        self.unread: Counter[str] = Counter()
        self._named: dict[str, Sink] = {
            "cpu_op": self.operators.add,
            "operator": self.operators.add,
            "user_annotation": self.ranges.add,
            "gpu_user_annotation": self.ranges.add_gpu,
            "user": self.ranges.add_gpu,
            "kernel": self.gpu.add,
            "concurrent_kernel": self.gpu.add,
            "gpu_memcpy": self.gpu.add_copies,
            "memcpy": self.gpu.add_copies,
            "gpu_memset": self.gpu.add_sets,
            "memset": self.gpu.add_sets,
            "cuda_sync": self.syncs.add,
            "python_function": self.python.add,
            "overhead": self.overheads.add,
            "cpu_instant_event": self.allocations.add,
            "fwdbwd": self.flows.add,
            "fwd_bwd": self.flows.add,
            "forward_backward": self.flows.add,
            "trace": self.marks.add,
            "": self._add_uncategorised,
            "ac2g": _ignore,
            "async": _ignore,
            "async_cpu_to_gpu": _ignore,
        }
        self._routes: dict[str, Sink] = {}

    def add(self, events: Events) -> None:
        """Hand a list of events to the tables they belong to."""
        groups = defaultdict(list)
        for event in events:
            groups[event.cat].append(event)
        for category, group in groups.items():
            sink = self._routes.get(category)
            if sink is None:
                sink = self._routes[category] = self._route(category)
            sink(group)

    @property
    def categories(self) -> set[str]:
        """Categories of all events."""
        return set(self._routes)

    @property
    def mixes_annotations(self) -> bool:
        """Whether the program's annotations stand among the operators.

        Until PyTorch 1.11 they had no category of their own, and calls began with a capital.
        """
        return "Runtime" in self._routes and "user_annotation" not in self._routes

    def spans(self) -> list[Spans]:
        """The tables that hold rows with times, in the order they are written."""
        return [
            self.operators,
            self.ranges,
            self.calls,
            self.gpu,
            self.syncs,
            self.python,
            self.allocations,
            self.overheads,
        ]

    def _route(self, category: str) -> Sink:
        name = category.lower()
        if name in self._named:
            return self._named[name]
        if _RUNTIME.match(name):
            return self.calls.add
        if _DRIVER.match(name):
            return self.calls.add_driver
        return lambda events: self.unread.update({category: len(events)})

    def _add_uncategorised(self, events: Events) -> None:
        """Metadata, marks, and what exporters older than Kineto wrote without a category."""
        self.allocations.add([e for e in events if e.ph == "i" and e.name == "[memory]"])
        self.operators.add([e for e in events if e.ph == "X" and e.pid == "CPU functions"])
        kept = [e for e in events if e.name != "[memory]" and e.ph != "X"]
        other = sum(e.ph in _SPANS and e.pid != "CPU functions" for e in events)
        if other:
            self.unread["(none)"] += other
        self.marks.add(kept)


def _ignore(events: Events) -> None:
    """Flow events from calls to GPU work say no more than the correlation ids."""


def read(path: Path, writer: TraceWriter) -> Meta:
    """Fill the tables from a trace file.

    Args:
        path: the trace.
        writer: receives the tables; its ``problems`` count what was wrong.

    Raises:
        InputError: no trace, damaged, or cut short.
    """
    tables = Tables()
    with open_text(path) as text, _no_collection():
        events = EventReader(text, path)
        for group in events:
            tables.add(group)
    if tables.mixes_annotations:
        tables.operators.hand_over_annotations()
    found = parse_header(events.header, events.trailer, path)
    meta = _meta(tables, found)
    base = found.get("baseTimeNanoseconds")
    window = tables.marks.window(tables.spans())
    foreign = of_events(
        tables.categories, tables.calls.names.texts, gpu=tables.gpu.columns.rows > 0
    )
    if foreign is not None:
        raise InputError(f"{path} is {foreign.what}; {foreign.do}")
    if window is None:
        raise InputError(f"{path} {_without_work(tables, events)}")
    origin = window[0] // 1000 * 1000
    meta.window_start_ns, meta.window_end_ns = window[0] - origin, window[1] - origin
    if isinstance(base, int) and not isinstance(base, bool):
        meta.origin_epoch_ns = base + origin if abs(base + origin) < 2**63 else None
    elif origin >= _EPOCH_NS:
        meta.origin_epoch_ns = origin
    _tie_by_external_id(tables)
    _count_problems(writer, events, tables)
    _write(writer, tables, found, meta, origin)
    return meta


def _without_work(tables: Tables, events: EventReader) -> str:
    """What a file is in which no event of a program has a time."""
    if events.malformed and not tables.categories:
        return (
            "is no profiler trace: none of its traceEvents can be read as a JSON object; the first "
            f"is {events.first_malformed[:_SHOWN]}; check what wrote it"
        )
    if tables.unread:
        return (
            "is a Chrome trace of another tool than PyTorch's profiler: its events are of the "
            f"categories {_listed(tables.unread)}; record the run with stepscope run, nsys or "
            "torch.profiler"
        )
    if untimed := sum(spans.dropped for spans in tables.spans()):
        return (
            f"holds no event with a time: in {untimed:,}, ts or dur is no number of microseconds, "
            "or far from any that a clock gives; check what wrote it"
        )
    return (
        "holds no operator, call, GPU work or annotation; capture again with work between the "
        "start and the stop of the profiler"
    )


def _meta(tables: Tables, found: dict[str, Any]) -> Meta:
    meta = Meta()
    describe(meta, found)
    meta.missing = missing_tables(
        operators=tables.operators.columns.rows > 0,
        shapes=tables.operators.has_shapes(),
        gpu=tables.gpu.columns.rows > 0,
        calls=tables.calls.columns.rows > 0,
        python=tables.python.columns.rows > 0,
        memory=tables.allocations.columns.rows > 0,
        sync=tables.syncs.columns.rows > 0,
        distributed=meta.world_size not in {None, 1},
        collectives=bool(tables.gpu.communications or tables.operators.communications),
    )
    return meta


def _tie_by_external_id(tables: Tables) -> None:
    """Tie calls of ROCm and GPU work where Kineto wrote no correlation (until March 2024).

    What it wrote as the external id of both was the number of the call, not that of an operator.
    """
    calls, gpu = tables.calls.columns, tables.gpu.columns
    if not any(name.startswith("hip") for name in tables.calls.names.texts):
        return
    if any((rows.peek("correlation") != MISSING).any() for rows in (calls, gpu)):
        return
    for rows in (calls, gpu):
        if rows.rows:
            rows.replace("correlation", rows.peek("external"))
    calls.replace("external", np.full(calls.rows, MISSING))


def _write(
    writer: TraceWriter, tables: Tables, found: dict[str, Any], meta: Meta, origin: int
) -> None:
    pids, threads = _threads(tables)
    process = tables.marks.host(pids)
    streams = tables.gpu.streams()
    launchers = Launchers(process, _of(tables.calls, "pid"), _of(tables.gpu, "device"))
    context = Context(writer, origin, process, launchers, tables.calls.sizes(), tables.flows)
    for spans in tables.spans():
        spans.write(context)
    write_collectives(writer, launchers, tables.gpu.communications, tables.operators.communications)
    tables.marks.write(writer, process, threads, meta.rank, launchers.processes)
    if streams:
        writer.append(
            "stream",
            {
                "process_id": launchers.of(np.array([device for device, _, _ in streams])),
                "device": [max(device, 0) for device, _, _ in streams],
                "context": [None if c < 0 else c for _, c, _ in streams],
                "stream": [max(stream, 0) for _, _, stream in streams],
            },
        )
    if timed := read_header(found):
        writer.append(STRETCHES, columns(timed, process, meta.origin_epoch_ns or 0))
    write_devices(writer, process, found)
    write_communicators(writer, found)
    write_remarks(writer, process, found)


def _of(spans: Spans, column: str) -> tuple[Ints, Ints] | None:
    """A column of rows, and their correlations; None without rows."""
    columns = spans.columns
    if not columns.rows:
        return None
    return columns.peek(column).astype(np.int64), columns.peek("correlation")


def _threads(tables: Tables) -> tuple[Counter[int], set[tuple[int, int]]]:
    """Processes of host events with their number of events, and their threads."""
    pids: Counter[int] = Counter()
    threads: set[tuple[int, int]] = set()
    for spans in (tables.operators, tables.calls, tables.python):
        for (pid, tid), count in runs(spans.columns.peek("pid"), spans.columns.peek("tid")):
            pids[pid] += count
            threads.add((pid, tid))
    return pids, threads


def _count_problems(writer: TraceWriter, events: EventReader, tables: Tables) -> None:
    count = writer.problems.count
    count("malformed_event", events.malformed, scope="operator", detail=events.first_malformed)
    count("invalid_text", events.tolerant.invalid_text, scope="operator")
    count("invalid_number", events.tolerant.invalid_number, scope="gpu_op")
    count("bad_value", events.tolerant.bad_value, scope="gpu_op")
    lacking, early = _without_calls(tables)
    count("unresolved_correlation", int((lacking & ~early).sum()), scope="gpu_op")
    count("launched_before", int((lacking & early).sum()), scope="gpu_op")
    if tables.unread:
        detail = f"events of categories that are not read: {_listed(tables.unread)}"
        total = sum(tables.unread.values())
        count("unread_events", total, scope="range", detail=detail)


def _without_calls(tables: Tables) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Operations without a recorded call, and those that were launched before any recorded one.

    A stream runs operations in the order of their launches: what runs ahead of the first one with
    a call was launched before it. What runs before the first call of all was, on any stream.
    """
    gpu, calls = tables.gpu.columns, tables.calls.columns
    known = calls.peek("correlation")
    lacking: npt.NDArray[np.bool_] = ~among(gpu.peek("correlation"), known[known > 0])
    if not lacking.any() or not calls.rows:
        return lacking, np.zeros(len(lacking), bool)
    start = gpu.peek("start")
    stream = distinct_rows((gpu.peek("device"), gpu.peek("stream")))[1]
    first = np.full(int(stream.max()) + 1, int(calls.peek("start").min()))
    linked = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(linked, stream[~lacking], start[~lacking])
    known_first = linked < np.iinfo(np.int64).max
    first[known_first] = np.maximum(first, linked)[known_first]
    return lacking, start < first[stream]


def _listed(categories: Counter[str]) -> str:
    return ", ".join(f"{name} ({n})" for name, n in categories.most_common(5))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Switch the cyclic garbage collector off.

    Events hold no cycles, and scanning them would take as long as decoding them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
