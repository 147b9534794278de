"""Host-side tables: operators, ranges, calls, Python functions, allocations, overhead.

Rows stay in memory as compact columns until the file has been read: the profiler writes one thread
after the other, so every table has to be put in time order as a whole anyway, and writing
sorted rows once is cheaper than rewriting the stored table (in time and in memory).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from stepscope.importers.common.cuda import call_name
from stepscope.importers.common.texts import Codes, StringTable, constant, dictionary
from stepscope.importers.kineto.events import MISSING, NO_ARGS, NO_TEXT, Args
from stepscope.importers.kineto.spans import (
    Context,
    Events,
    Ints,
    Metadata,
    Spans,
    external_ids,
    integers,
    metadata,
    nanoseconds,
    nullable,
    nullable32,
    place,
    value_of,
    write_sorted,
)
from stepscope.intervals.distinct import among, with_counts, with_inverse

_RANGE_NAMES = re.compile(r"ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)#")
_OPERATOR_NAMES = re.compile(r"::|[A-Za-z]Backward\d*$")
"""What has a namespace is an operator, and so is a node of autograd's graph."""
CUDA_DEVICE_TYPES = (1, 20)  # c10::DeviceType CUDA and HIP


class Ranges(Spans):
    """User annotations, on the host or projected on a GPU stream."""

    table = "range"

    def __init__(self) -> None:
        super().__init__()
        self.on_gpu = False

    def add_gpu(self, events: Events) -> None:
        """Take over annotations that the profiler projected on GPU streams."""
        self.on_gpu = True
        self.add(events)
        self.on_gpu = False

    def take_over(self, rows: dict[str, npt.NDArray[Any]], names: list[str]) -> None:
        """Take over annotations of the host that stood among operators.

        Args:
            rows: their columns.
            names: what the codes of their names mean.
        """
        codes, which = with_inverse(rows["name"])
        mine = self.names.codes_of([names[code] for code in codes.tolist()])
        rows = {**rows, "name": mine[which], "gpu": np.zeros(len(which), np.int32)}
        self.columns.add(**rows)

    def fields(self, events: Events, args: list[Args]) -> dict[str, npt.NDArray[Any]]:
        """Name and place."""
        return {
            **place(events),
            "name": self.names.codes_of([event.name for event in events]),
            "gpu": np.full(len(events), self.on_gpu, dtype=np.int32),
        }

    def output(self, context: Context, start: Ints) -> dict[str, Any]:
        """Threads for host ranges, devices and streams for GPU ones."""
        gpu = self.columns.pop("gpu")
        pid, tid = self.columns.pop("pid"), self.columns.pop("tid")
        on_host = np.where(pid == MISSING, context.process_id, pid)
        on_host = np.where(gpu == 1, context.launchers.of(pid), on_host)
        return {
            "kind": (gpu, lambda part: dictionary(part, ["annotation", "gpu_annotation"])),
            "process_id": on_host,
            "thread_id": (np.where(gpu == 1, MISSING, tid), nullable),
            "name": self.named(),
            "device": (np.where(gpu == 1, pid, MISSING), nullable32),
            "stream": (np.where(gpu == 1, tid, MISSING), nullable),
            "closed": np.ones(len(gpu), dtype=bool),
        }


class Operators(Spans):
    """Framework operators, and in old traces the annotations recorded among them.

    Args:
        ranges: receives operators that are annotations by their name.
    """

    table = "operator"

    def __init__(self, ranges: Ranges) -> None:
        super().__init__()
        self._ranges = ranges
        self._texts = {"shapes": StringTable(), "types": StringTable(), "concrete": StringTable()}
        self._range_codes: list[int] = []
        self._communication = -1
        self.communications: list[Metadata] = []

    def add(self, events: Events) -> None:
        """Take over operators; those that are annotations go to the ranges."""
        known = len(self.names.texts)
        codes = self.names.codes_of([event.name for event in events])
        for code, name in enumerate(self.names.texts[known:]):
            if _RANGE_NAMES.match(name):
                self._range_codes.append(known + code)
            elif name == "record_param_comms":
                self._communication = known + code
        if self._range_codes:
            annotated = among(codes, self._range_codes)
            if annotated.any():
                marks = annotated.tolist()
                self._ranges.add([e for e, mark in zip(events, marks, strict=True) if mark])
                events = [e for e, mark in zip(events, marks, strict=True) if not mark]
        if self._communication >= 0 and (codes == self._communication).any():
            found = (e.args for e in events if e.name == "record_param_comms")
            spoken = (a for a in found if a and a.collective is not NO_TEXT)
            self.communications += [metadata(a, self.counted) for a in spoken]
        super().add(events)

    def hand_over_annotations(self) -> None:
        """Give the ranges what the program annotated, in a file that has no category for that.

        By its name: the few operators that are recorded without their namespace, too, are
        recorded with it elsewhere.
        """
        names = self.names.texts
        known = set(names)
        codes = [
            code
            for code, name in enumerate(names)
            if not _OPERATOR_NAMES.search(name) and f"aten::{name}" not in known
        ]
        marks = among(self.columns.peek("name"), codes)
        if marks.any():
            columns = ("start", "end", "pid", "tid", "name")
            self._ranges.take_over(
                {name: self.columns.peek(name)[marks] for name in columns}, names
            )
            self.columns.keep(~marks)

    def fields(self, events: Events, args: list[Args]) -> dict[str, npt.NDArray[Any]]:
        """Identity, autograd links, inputs."""
        shapes = [bytes(a.input_shapes) for a in args]
        types = [bytes(a.input_types) for a in args]
        concrete = [bytes(a.concrete_inputs) for a in args]
        return {
            **place(events),
            "name": self.names.codes_of([event.name for event in events]),
            "external": external_ids(args),
            "sequence": integers([a.sequence_number for a in args]),
            "forward_thread": integers([a.forward_thread for a in args]),
            "shapes": self._texts["shapes"].codes_of(shapes),
            "types": self._texts["types"].codes_of(types),
            "concrete": self._texts["concrete"].codes_of(concrete),
        }

    def output(self, context: Context, start: Ints) -> dict[str, Any]:
        """All columns, with the forward links that the flows tell."""
        tid = self.columns.pop("tid")
        sequence = self.columns.pop("sequence")
        links = context.forward.resolve(tid, start, context.origin_ns, context.writer.problems)
        return {
            "process_id": self.processes(context),
            "thread_id": tid,
            "name": self.named(),
            "external_id": (self.columns.pop("external"), nullable),
            "sequence_number": (np.where(sequence < 0, MISSING, sequence), nullable),
            "forward_thread_id": (self.columns.pop("forward_thread"), nullable),
            "forward_start_ns": (links, nullable),
            "input_shapes": self._json("shapes"),
            "input_types": self._json("types"),
            "concrete_inputs": self._json("concrete"),
        }

    def has_shapes(self) -> bool:
        """Whether any operator came with input shapes."""
        return any(self._texts["shapes"].texts)

    def _json(self, column: str) -> tuple[Codes, Any]:
        texts = [compact(raw) if raw else None for raw in self._texts[column].texts]
        return self.columns.pop(column), lambda part: dictionary(part, texts)


def compact(raw: bytes) -> str:
    """JSON text without white space between its tokens."""
    return msgspec.json.format(raw, indent=-1).decode("utf-8", "replace")


class Calls(Spans):
    """CUDA or HIP runtime and driver calls."""

    table = "api_call"
    _APIS = ("runtime", "driver")

    def __init__(self) -> None:
        super().__init__()
        self._api = 0

    def add_driver(self, events: Events) -> None:
        """Take over driver calls."""
        self._api = 1
        self.add(events)
        self._api = 0

    def fields(self, events: Events, args: list[Args]) -> dict[str, npt.NDArray[Any]]:
        """Which call, and what it belongs to."""
        return {
            **place(events),
            "api": np.full(len(events), self._api, dtype=np.int32),
            "name": self.names.codes_of([event.name for event in events]),
            "correlation": integers([a.correlation for a in args]),
            "external": external_ids(args),
            "size": self._sizes(args),
        }

    def _sizes(self, args: list[Args]) -> Ints:
        found = [a.size for a in args]
        if found.count(NO_TEXT) == len(found):
            return np.full(len(found), MISSING)
        return integers([value_of(raw, self.counted) for raw in found])

    def sizes(self) -> tuple[Ints, Ints]:
        """Correlations of calls that state a size, ascending, and the sizes in bytes.

        Without the numbers that several calls have.
        """
        size, correlation = self.columns.peek("size"), self.columns.peek("correlation")
        stated = (size >= 0) & (correlation > 0)
        values, counts = with_counts(correlation[stated])
        first = np.searchsorted(values, correlation[stated])
        found = np.empty(len(values), np.int64)
        found[first] = size[stated]
        return values[counts == 1], found[counts == 1]

    def output(self, context: Context, start: Ints) -> dict[str, Any]:
        """All columns."""
        self.columns.pop("size")
        raw, names = self.columns.pop("name"), self.names.texts
        plain = [call_name(name) for name in names]
        return {
            "api": (self.columns.pop("api"), lambda part: dictionary(part, self._APIS)),
            "process_id": self.processes(context),
            "thread_id": self.columns.pop("tid"),
            "name": (raw, lambda part: dictionary(part, plain)),
            "raw_name": (raw, lambda part: dictionary(part, names)),
            "correlation_id": (self.columns.pop("correlation"), nullable),
            "operator_external_id": (self.columns.pop("external"), nullable),
        }


class PythonFunctions(Spans):
    """Python calls (with_stack).

    Those of threads that ran before the profiler started and did nothing else that it records
    (tqdm's monitor, queue managers) come with process and thread 0: the profiler knows neither.
    """

    table = "python_function"

    def fields(self, events: Events, args: list[Args]) -> dict[str, npt.NDArray[Any]]:
        """Name and place in the call tree."""
        parents = [a.python_parent_id for a in args]
        at = place(events)
        return {
            "pid": np.where((at["pid"] == 0) & (at["tid"] == 0), MISSING, at["pid"]),
            "tid": at["tid"],
            "name": self.names.codes_of([event.name for event in events]),
            "python": integers([a.python_id for a in args]),
            "parent": integers([MISSING if p is None else p for p in parents]),
        }

    def output(self, context: Context, start: Ints) -> dict[str, Any]:
        """All columns."""
        return {
            "process_id": self.processes(context),
            "thread_id": self.columns.pop("tid"),
            "name": self.named(),
            "python_id": (self.columns.pop("python"), nullable),
            "python_parent_id": (self.columns.pop("parent"), nullable),
        }


class Overheads(Spans):
    """The profiler's own work; it belongs to no thread that is named."""

    table = "overhead"

    def fields(self, events: Events, args: list[Args]) -> dict[str, npt.NDArray[Any]]:
        """Name and place."""
        names = self.names.codes_of([event.name for event in events])
        return {**place(events), "name": names}

    def output(self, context: Context, start: Ints) -> dict[str, Any]:
        """Process -1 and thread 0 mean that the profiler did not say whose time it was."""
        pid, tid = self.columns.pop("pid"), self.columns.pop("tid")
        return {
            "process_id": (np.where(pid < 0, context.process_id, pid), nullable),
            "thread_id": (np.where(tid <= 0, MISSING, tid), nullable),
            "name": self.named(),
        }


class Allocations(Spans):
    """Allocations and releases that the framework's allocator reported."""

    table = "memory_event"

    def add(self, events: Events) -> None:
        """Take over ``[memory]`` marks; other marks are not read."""
        events = [event for event in events if event.name == "[memory]"]
        time, timed = nanoseconds([event.ts for event in events])
        if not timed.all():
            self.dropped += len(events) - int(timed.sum())
            events = [event for event, good in zip(events, timed.tolist(), strict=True) if good]
            time = time[timed]
        if events:
            args = [event.args or NO_ARGS for event in events]
            self.columns.add(start=time, end=time, **self.fields(events, args))

    def fields(self, events: Events, args: list[Args]) -> dict[str, npt.NDArray[Any]]:
        """What was allocated where."""
        device = integers([a.device_id for a in args])
        on_gpu = among(integers([a.device_type for a in args]), CUDA_DEVICE_TYPES)
        return {
            **place(events),
            "device": np.where(on_gpu & (device >= 0), device, MISSING),
            "address": integers([a.address for a in args]),
            "bytes": integers([a.memory_bytes for a in args]),
            "allocated": integers([a.total_allocated for a in args]),
            "reserved": integers([a.total_reserved for a in args]),
        }

    def write(self, context: Context) -> None:
        """Write all rows and let go of them."""
        context.writer.problems.count("not_a_number", self.dropped, scope=self.table)
        if not self.columns.rows:
            return
        time = self.columns.pop("start") - context.origin_ns
        device = self.columns.pop("device")
        columns = {
            "process_id": self.processes(context),
            "thread_id": (self.columns.pop("tid"), nullable),
            "time_ns": time,
            "kind": (time, lambda part: constant("cache", len(part))),
            "device": (device, nullable32),
            "address": (self.columns.pop("address"), nullable),
            "bytes": (self.columns.pop("bytes"), nullable),
            "total_allocated_bytes": (self.columns.pop("allocated"), nullable),
            "total_reserved_bytes": (self.columns.pop("reserved"), nullable),
        }
        write_sorted(context.writer, self.table, time, columns, self.columns.rows)
