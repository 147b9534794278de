"""The plane of the host: calls, Python functions, annotations of XLA and the program, memory."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from stepscope.importers.common.sink import Sink
from stepscope.importers.common.texts import dictionary
from stepscope.importers.xplane.gpu import Gpus, nullable
from stepscope.importers.xplane.space import MISSING, Events, Line, Plane
from stepscope.intervals.distinct import among, with_inverse
from stepscope.trace.frame import BoolArray, IntArray

_PYTHON: Final = re.compile(r"\$(?P<file>.*?):(?P<line>\d+) (?P<name>.+)", re.S)
_BUILT_IN: Final = re.compile(r"\$(?P<module>\S+) (?P<name>.+)", re.S)
_OS_THREAD: Final = re.compile(r"Host Threads/(\d{1,18})$")
_CALL: Final = re.compile(r"(?:cu|cuda|hip|hsa_|nccl|rccl)[A-Z_]\w*")
_COPY: Final = re.compile(r"Memcpy(H2D|D2H|D2D|P2P|H2H)$")
_COPIES: Final = {
    "H2D": "cuMemcpyHtoD", "D2H": "cuMemcpyDtoH", "D2D": "cuMemcpyDtoD", "P2P": "cuMemcpyPeer",
    "H2H": "cuMemcpy",
}  # fmt: skip
_AMD_COPIES: Final = {
    "H2D": "hipMemcpyHtoD", "D2H": "hipMemcpyDtoH", "D2D": "hipMemcpyDtoD", "P2P": "hipMemcpyPeer",
    "H2H": "hipMemcpy",
}  # fmt: skip
_TOOL: Final = frozenset(
    {
        "BUFFER_FLUSH", "INSTRUMENTATION", "RESOURCE", "COMPILER", "DRIVER_COMPILER",
        "DRIVER_OVERHEAD", "ACTIVITY_BUFFER_REQUEST", "<UNKNOWN>",
    }
)  # fmt: skip
"""What CUPTI says of its own time, on lines of threads that have no other events."""
_LOADING: Final = frozenset({"COMPILER", "DRIVER_COMPILER"})
_ALLOCATION: Final = {"MemoryAllocation": 1, "MemoryDeallocation": -1}
_GPU_ALLOCATOR: Final = re.compile(r"GPU_(\d{1,6})_")


@dataclass
class Threads:
    """What the lines of the host told.

    Attributes:
        names: of threads.
        correlated: correlation ids of calls, a part an array.
        steps: whether a step was numbered by the program.
        unread: events that are not read, by why.
    """

    names: dict[int, str] = field(default_factory=dict)
    correlated: list[IntArray] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)


def read_host(sink: Sink, plane: Plane, process: int, gpus: Gpus, threads: Threads) -> None:
    """Fill the tables of the host from its plane."""
    for line in plane.lines:
        os_thread = _OS_THREAD.search(line.name)
        thread = int(os_thread[1]) if os_thread else line.id
        threads.names[thread] = "" if os_thread else line.name
        for events in line.events():
            if len(events):
                _Part(sink, line, events, (process, thread), os_thread is not None).put(
                    gpus, threads
                )


class _Part:
    """Some events of one thread, on their way to their tables."""

    def __init__(
        self, sink: Sink, line: Line, events: Events, place: tuple[int, int], os_line: bool
    ) -> None:
        self.sink, self.events, self.place, self._os_line = sink, events, place, os_line
        self.plane = line.plane
        numbers, self.code = with_inverse(events.name)
        self.names = [self.plane.names.get(n) or f"[event {n}]" for n in numbers.tolist()]

    def put(self, gpus: Gpus, threads: Threads) -> None:
        """Hand each event to its table."""
        names = self.names
        correlation = self.events.stats.numbers("correlation_id")
        call = correlation > 0
        call |= self._of(lambda name: _CALL.fullmatch(name) is not None)
        python = ~call & self._of(lambda name: name.startswith("$"))
        tool = ~call & self._of(lambda name: self._os_line and name in _TOOL)
        memory = ~call & self._of(lambda name: name in _ALLOCATION)
        operation = ~call & self._of(lambda name: name in gpus.operations)
        annotation = ~(call | python | tool | memory | operation)
        annotation &= ~self._repeated()
        threads.correlated.append(correlation[call & (correlation > 0)])
        self._calls(np.flatnonzero(call), correlation, gpus)
        self._python(np.flatnonzero(python))
        self._simple("overhead", np.flatnonzero(tool), [_overhead(name) for name in names])
        self._memory(np.flatnonzero(memory))
        self._simple("operator", np.flatnonzero(operation), names)
        self._operators_of_calls(np.flatnonzero(call), bool(operation.any()))
        self._ranges(np.flatnonzero(annotation))

    def _of(self, judge: Any) -> BoolArray:
        return np.array([judge(name) for name in self.names], bool)[self.code]

    def _repeated(self) -> BoolArray:
        """Calls of a compiled function that are recorded twice, one inside the other."""
        jitted = np.flatnonzero(self._of(lambda name: name.startswith("PjitFunction(")))
        inner = np.zeros(len(self.events), bool)
        if len(jitted) > 1:
            start, end = self.events.start_ns[jitted], self.events.end_ns[jitted]
            order = np.lexsort((-end, start))
            one, other = jitted[order][:-1], jitted[order][1:]
            inner[other] = (self.code[one] == self.code[other]) & (
                self.events.end_ns[other] <= self.events.end_ns[one]
            )
        return inner

    def _common(self, rows: IntArray) -> dict[str, Any]:
        process, thread = self.place
        return {
            "process_id": np.full(len(rows), process),
            "thread_id": np.full(len(rows), thread),
            "start_ns": self.sink.times(self.events.start_ns[rows]),
            "end_ns": self.sink.times(self.events.end_ns[rows]),
        }

    def _simple(self, table: str, rows: IntArray, names: list[str]) -> None:
        if len(rows):
            columns = self._common(rows)
            self.sink.put(table, {**columns, "name": dictionary(self.code[rows], names)})
            self.sink.threads.add(self.place)

    def _calls(self, rows: IntArray, correlation: IntArray, gpus: Gpus) -> None:
        if not len(rows):
            return
        shown = [_call_name(name, gpus.amd) for name in self.names]
        self.sink.put(
            "api_call",
            {
                **self._common(rows),
                "api": dictionary(
                    self.code[rows],
                    ["runtime" if re.match(r"cuda|hip", n) else "driver" for n in shown],
                ),
                "name": dictionary(self.code[rows], shown),
                "raw_name": dictionary(self.code[rows], shown),
                "correlation_id": nullable(
                    np.where(correlation[rows] > 0, correlation[rows], MISSING)
                ),
            },
        )
        self.sink.threads.add(self.place)

    def _operators_of_calls(self, rows: IntArray, reported: bool) -> None:
        """Operations of HLO by the calls that launch them, where the host tells them nowhere else.

        XLA's collector puts the calls of a thread on a line of their own; where the thread's
        annotations tell the operations, these hold the calls.
        """
        if reported or not len(rows) or not self._os_line:
            return
        known: list[str] = []
        found = self.events.stats.texts("hlo_op", known)[rows]
        rows, found = rows[found >= 0], found[found >= 0]
        if len(rows):
            columns = self._common(rows)
            self.sink.put("operator", {**columns, "name": dictionary(found, known)})

    def _python(self, rows: IntArray) -> None:
        if not len(rows):
            return
        names = [_function(name) for name in self.names]
        self.sink.put(
            "python_function",
            {**self._common(rows), "name": dictionary(self.code[rows], names)},
        )
        self.sink.threads.add(self.place)

    def _memory(self, rows: IntArray) -> None:
        if not len(rows):
            return
        stats = self.events.stats
        allocators: list[str] = []
        allocator = stats.texts("allocator_name", allocators)[rows]
        devices = [int(m[1]) if (m := _GPU_ALLOCATOR.match(a)) else MISSING for a in allocators]
        sign = np.array([_ALLOCATION.get(name, 0) for name in self.names])[self.code[rows]]
        size = stats.numbers("allocation_bytes")[rows]
        process, thread = self.place
        self.sink.put(
            "memory_event",
            {
                "process_id": np.full(len(rows), process),
                "thread_id": np.full(len(rows), thread),
                "time_ns": self.sink.times(self.events.start_ns[rows]),
                "kind": dictionary(np.zeros(len(rows), np.int32), ["cache"]),
                "device": nullable(np.array([*devices, MISSING], np.int64)[allocator]),
                "address": nullable(stats.numbers("addr")[rows]),
                "bytes": nullable(np.where(size == MISSING, MISSING, size * sign)),
                "total_allocated_bytes": nullable(stats.numbers("bytes_allocated")[rows]),
            },
        )

    def _ranges(self, rows: IntArray) -> None:
        if not len(rows):
            return
        step = self.events.stats.numbers("step_num")[rows]
        numbered = np.flatnonzero(step != MISSING)
        names = list(self.names)
        code = self.code[rows].copy()
        for row in numbered.tolist():  # one a step of the program
            names.append(f"{self.names[int(code[row])]} step {int(step[row])}")
            code[row] = len(names) - 1
        self.sink.put(
            "range",
            {
                **self._common(rows),
                "kind": dictionary(np.zeros(len(rows), np.int32), ["annotation"]),
                "name": dictionary(code, names),
                "closed": np.ones(len(rows), bool),
            },
        )
        self.sink.threads.add(self.place)


def _overhead(name: str) -> str:
    return f"{name} (code loading)" if name in _LOADING else name


def _call_name(name: str, amd: bool) -> str:
    """The function that was called. XLA shows a launch by its kernel, a copy by its direction."""
    called = _CALL.match(name)
    if called is not None:
        return called[0].removesuffix("_v2")
    copy = _COPY.match(name)
    if copy is not None:
        return f"{(_AMD_COPIES if amd else _COPIES)[copy[1]]}Async"
    if name == "Memset":
        return "hipMemsetAsync" if amd else "cuMemsetD32Async"
    return "hipModuleLaunchKernel" if amd else "cuLaunchKernel"


def _function(name: str) -> str:
    """``$train.py:42 step`` as other profilers write it: ``train.py(42): step``."""
    match = _PYTHON.match(name)
    if match is not None:
        return f"{match['file']}({match['line']}): {match['name']}"
    built_in = _BUILT_IN.match(name)
    if built_in is None:
        return name[1:]
    module = built_in["module"]
    where = "" if module in ("<unknown>", "builtins") else f"{module}."
    return f"<built-in function {where}{built_in['name']}>"


def is_correlated(gpus: Gpus, threads: Threads) -> int:
    """Number of launches of the GPU's work that no call of the host explains."""
    launched = np.concatenate(gpus.launched) if gpus.launched else np.empty(0, np.int64)
    calls = np.concatenate(threads.correlated) if threads.correlated else np.empty(0, np.int64)
    return int((~among(launched, calls)).sum()) if len(launched) else 0
