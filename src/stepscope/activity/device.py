"""The parts of a trace that belong together: one process with its host side and its GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.communication import is_communication
from stepscope.activity.retries import with_waits
from stepscope.intervals import union
from stepscope.intervals.algebra import EMPTY, Intervals
from stepscope.intervals.distinct import among, distinct_values, with_counts, with_first
from stepscope.trace.frame import BoolArray, Frame, IntArray, distinct


def launching_calls(gpu: Frame, api: Frame) -> IntArray:
    """Row of the CUDA call that enqueued each GPU operation.

    The link is the correlation id within one process (a correlation id alone is ambiguous when
    several processes are captured together). Where several calls carry one id (a runtime call and
    the driver call inside it), the earliest counts: it is the one the program made.

    Args:
        gpu: ``gpu_op`` rows with ``process_id`` and ``correlation_id``.
        api: ``api_call`` rows sorted by start, with ``process_id`` and ``correlation_id``.

    Returns:
        Rows of ``api``; -1 where no call is recorded.
    """
    calls = np.flatnonzero(api["correlation_id"] > 0)
    if not len(calls) or not len(gpu):
        return np.full(len(gpu), -1, np.int64)
    processes = distinct_values(
        np.concatenate((distinct(gpu["process_id"]), distinct(api["process_id"])))
    )
    span = int(max(gpu["correlation_id"].max(), api["correlation_id"].max())) + 1

    def key_of(frame: Frame) -> IntArray:
        if len(processes) == 1:
            return frame["correlation_id"]
        return np.searchsorted(processes, frame["process_id"]) * span + frame["correlation_id"]

    gpu_key, api_key = key_of(gpu), key_of(api)[calls]
    known = gpu["correlation_id"] > 0
    size = span * len(processes)
    if size <= 8 * (len(gpu) + len(api)) + 1_000_000:
        # Ids are counters, so a table indexed by id is small and needs no sorting.
        row_of = np.full(size, -1, np.int64)
        row_of[api_key[::-1]] = calls[::-1]
        return np.where(known, row_of[np.where(known, gpu_key, 0)], -1)
    order = np.argsort(api_key, kind="stable")
    found = np.searchsorted(api_key[order], gpu_key)
    found = np.minimum(found, len(order) - 1)
    hit = known & (api_key[order][found] == gpu_key)
    return np.where(hit, calls[order][found], -1)


GPU_COLUMNS = (
    "id",
    "kind",
    "process_id",
    "device",
    "stream",
    "correlation_id",
    "start_ns",
    "end_ns",
    "name",
    "bytes",
    "copy_kind",
    "src_memory",
    "dst_memory",
    "graph_id",
)
API_COLUMNS = (
    "id",
    "api",
    "process_id",
    "thread_id",
    "start_ns",
    "end_ns",
    "name",
    "correlation_id",
)
RANGE_COLUMNS = (
    "id",
    "kind",
    "process_id",
    "thread_id",
    "start_ns",
    "end_ns",
    "name",
    "domain",
)

UNKNOWN_NS: Final = int(np.iinfo(np.int64).min // 2)
"""A time that nothing tells."""

Reader = Callable[..., Frame]
"""``(table, *columns) -> Frame``: how an analysis gets its tables."""


@dataclass(frozen=True)
class HostSide:
    """What one process did on its CPU threads.

    Attributes:
        process_id: the process.
        api: its CUDA runtime and driver calls, sorted by start.
        os_calls: its operating-system runtime calls, sorted by start.
        ranges: its annotations (push/pop, start/end, user annotations), sorted by start.
        overhead: intervals that the capturing tool says it spent itself.
        launch_threads: threads that enqueued work on a GPU, most operations first.
        thread_names: names of its threads, as far as they have any.
        loading: when, as the capturing tool says, CUDA loaded device code.
    """

    process_id: int
    api: Frame
    os_calls: Frame
    ranges: Frame
    overhead: Frame
    launch_threads: list[int]
    thread_names: tuple[str, ...] = ()
    loading: Intervals = EMPTY

    @cached_property
    def main_thread(self) -> int:
        """The thread that drives training: the one that opens ranges, else the busiest launcher.

        Backward kernels are launched by autograd's own thread, so launching most is not enough:
        the thread whose id equals the process id is the main thread where it launches at all.
        """
        if self.process_id in self.launch_threads:
            return self.process_id
        return self.launch_threads[0] if self.launch_threads else -1


@dataclass(frozen=True)
class GpuTimeline:
    """One GPU as one process uses it.

    Attributes:
        process_id: the process.
        device: CUDA device ordinal inside the process.
        ops: its GPU operations, sorted by start.
        call: row of ``host.api`` that enqueued each operation; -1 where unknown.
        host: the process's host side.
        described: correlation ids of the kernels that the framework described as collectives.
    """

    process_id: int
    device: int
    ops: Frame
    call: IntArray
    host: HostSide
    described: IntArray = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def is_kernel(self) -> BoolArray:
        """Kernels and whole graphs."""
        return self.ops.equals("kind", "kernel", "graph")

    @property
    def computes(self) -> bool:
        """Whether any of the work is a kernel or a whole graph."""
        return bool(self.is_kernel.any())

    @cached_property
    def is_communication(self) -> BoolArray:
        """Kernels that move data between GPUs: by name, or because the framework says so."""
        return self.is_kernel & (self.ops.that("name", is_communication) | self._is_described)

    @cached_property
    def _is_described(self) -> BoolArray:
        if not len(self.described):
            return np.zeros(len(self.ops), bool)
        return among(self.ops["correlation_id"], self.described)

    @cached_property
    def is_compute(self) -> BoolArray:
        """Kernels that are not communication."""
        return self.is_kernel & ~self.is_communication

    @property
    def by_class(self) -> dict[str, BoolArray]:
        """Operations by class; where several run at once, the first class counts."""
        return {
            "compute": self.is_compute,
            "communication": self.is_communication,
            "copy": self.ops.equals("kind", "memcpy"),
            "memset": self.ops.equals("kind", "memset"),
        }

    @cached_property
    def busy(self) -> Intervals:
        """When the device executed anything."""
        return union(self.ops["start_ns"], self.ops["end_ns"])

    @cached_property
    def enqueue_begin_ns(self) -> IntArray:
        """Begin of the launching call of each operation.

        Where none is known: between those of its neighbours on the stream, which runs operations in
        the order in which they were enqueued; without neighbours its own start.
        """
        return self._call_time("start_ns")

    @cached_property
    def enqueue_end_ns(self) -> IntArray:
        """End of the launching call of each operation; ``enqueue_begin_ns`` where none is known."""
        return self._call_time("end_ns")

    def _call_time(self, column: str) -> IntArray:
        if not len(self.host.api):
            return self.ops["start_ns"]
        called = self.host.api[column][np.maximum(self.call, 0)]
        return np.where(self.call >= 0, called, self._probably_ns)

    @cached_property
    def _probably_ns(self) -> IntArray:
        """When operations without a call were enqueued: in the middle of what is possible.

        That is after the call ahead and before the call behind on their stream, and before they
        started. Without a call ahead, the capture began later: then at the end of what is possible.
        """
        start = self.ops["start_ns"]
        if not (self.call < 0).any():
            return start
        earliest, latest = self.enqueued_between_ns
        latest = np.where(latest > UNKNOWN_NS, latest, start)
        middle = np.where(earliest > UNKNOWN_NS, (earliest + latest) // 2, latest)
        return np.minimum(middle, start)

    @cached_property
    def enqueued_between_ns(self) -> tuple[IntArray, IntArray]:
        """Begins of the calls ahead of and behind each operation on its stream, ns.

        Of one whose call is known, its own twice. ``UNKNOWN_NS`` where there is no such call.
        """
        n = len(self.ops)
        stream = self.ops["stream"]
        order = np.lexsort((np.arange(n), self.ops["start_ns"], stream))
        at, of, linked = np.arange(n), stream[order], self.call[order] >= 0
        ahead = np.maximum.accumulate(np.where(linked, at, -1))
        behind = np.minimum.accumulate(np.where(linked, at, n)[::-1])[::-1]
        begin = self.host.api["start_ns"][np.maximum(self.call[order], 0)]
        found = []
        for place in (ahead, behind):
            row = np.clip(place, 0, n - 1)
            known = (place >= 0) & (place < n) & (of[row] == of)
            times = np.empty(n, np.int64)
            times[order] = np.where(known, begin[row], UNKNOWN_NS)
            found.append(times)
        return found[0], found[1]

    @cached_property
    def launched_before(self) -> BoolArray:
        """Operations ahead of the first one of their stream whose launching call was recorded.

        Their own calls came before the recording began.
        """
        if not len(self.host.api):
            return np.zeros(len(self.ops), bool)
        ahead, behind = self.enqueued_between_ns
        before: BoolArray = (self.call < 0) & (ahead == UNKNOWN_NS) & (behind > UNKNOWN_NS)
        return before

    def calls_of(self, mask: BoolArray) -> BoolArray:
        """Mask of the rows of ``host.api`` that enqueued any of the selected operations."""
        calls = np.zeros(len(self.host.api), bool)
        linked = self.call[mask]
        calls[linked[linked >= 0]] = True
        return calls

    def union_of(self, mask: BoolArray) -> Intervals:
        """When the device executed any of the selected operations."""
        return union(self.ops["start_ns"][mask], self.ops["end_ns"][mask])


def gpus(read: Reader) -> list[GpuTimeline]:
    """All (process, device) pairs that executed GPU work, busiest process first.

    Args:
        read: gives tables as frames, for example ``Trace.frame``.
    """
    gpu = read("gpu_op", *GPU_COLUMNS)
    if not len(gpu):
        return []
    api = read("api_call", *API_COLUMNS)
    ranges = read("range", *RANGE_COLUMNS)
    named = read("thread", "process_id", "name")
    overhead = read("overhead", "process_id", "thread_id", "start_ns", "end_ns", "name")
    described = read("collective", "process_id", "correlation_id")
    described = described.take(described["correlation_id"] > 0)
    is_cuda = api.equals("api", "runtime", "driver")
    is_os = api.equals("api", "osrt")
    cuda, os_calls = api.take(is_cuda), api.take(is_os)
    cuda = with_waits(cuda, gpu)
    call = launching_calls(gpu, cuda)
    of_process = rows_by(gpu["process_id"])
    calls_of_process = rows_by(cuda["process_id"])
    local = np.full(len(cuda) + 1, -1, np.int64)  # row of each call among those of its process
    for rows in calls_of_process.values():
        local[rows] = np.arange(len(rows))
    annotations = ranges.take(ranges.equals("kind", "pushpop", "startend", "annotation"))
    tables = (os_calls, annotations, named, described)
    os_calls_of, ranges_of, named_of, described_of = map(_by_process, tables)
    found: list[GpuTimeline] = []
    for process_id in sorted(of_process, key=lambda p: -len(of_process[p])):
        mine = of_process[process_id]
        own_api = _rows(cuda, calls_of_process.get(process_id, _NONE))
        own_call = local[call[mine]]
        linked = own_call[own_call >= 0]
        threads, launches = with_counts(own_api["thread_id"][linked])
        spent = overhead.take((overhead["process_id"] == process_id) | (overhead["process_id"] < 0))
        loads = spent.matches("name", words.LOADING_OVERHEAD)
        host = HostSide(
            process_id=process_id,
            api=own_api,
            os_calls=os_calls_of(process_id),
            ranges=ranges_of(process_id),
            overhead=spent.take(~loads),
            launch_threads=threads[np.argsort(-launches, kind="stable")].tolist(),
            thread_names=_names(named_of(process_id)),
            loading=union(spent["start_ns"][loads], spent["end_ns"][loads]),
        )
        for device, rows in rows_by(gpu["device"][mine]).items():
            found.append(
                GpuTimeline(
                    process_id,
                    device,
                    _rows(gpu, mine[rows]),
                    own_call[rows],
                    host,
                    described_of(process_id)["correlation_id"],
                )
            )
    return found


_NONE: Final = np.empty(0, np.int64)


def rows_by(values: IntArray) -> dict[int, IntArray]:
    """The rows of each distinct value, ascending, by value."""
    if not len(values):
        return {}
    if values.min() == values.max():
        return {int(values[0]): np.arange(len(values))}
    order = np.argsort(values, kind="stable")
    found, first = with_first(values[order])
    return dict(zip(found.tolist(), np.split(order, first[1:]), strict=True))


def _rows(frame: Frame, rows: IntArray) -> Frame:
    """Distinct rows of a frame; the frame itself where these are all."""
    return frame if len(rows) == len(frame) else frame.take(rows)


def _by_process(frame: Frame) -> Callable[[int], Frame]:
    """Gives the rows of a process."""
    rows = rows_by(frame["process_id"])
    return lambda process_id: _rows(frame, rows.get(process_id, _NONE))


def _names(frame: Frame) -> tuple[str, ...]:
    codes = set(frame["name"].tolist()) - {-1} if len(frame) else set()
    return tuple(sorted(frame.texts["name"][code] for code in codes))
