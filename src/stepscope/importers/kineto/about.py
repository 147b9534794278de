"""What a trace says about itself: options, devices, processes, threads, window, what it lacks."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from stepscope.importers.common.stream import truncated
from stepscope.importers.kineto.events import MISSING, NO_TEXT, repair
from stepscope.importers.kineto.spans import (
    Events,
    Spans,
    fitting32,
    integers,
    nanoseconds,
    value_of,
)
from stepscope.trace.errors import InputError
from stepscope.trace.meta import Meta, MissingTable
from stepscope.trace.store import TraceWriter
from stepscope.trace.text import LONGEST_JUDGED, JsonError, from_json

_OPTIONS = frozenset(
    {
        "with_stack",
        "with_flops",
        "with_modules",
        "profile_memory",
        "record_shapes",
        "experimental_config",
        "displayTimeUnit",
    }
)
_TORCH_VERSION = ("torch_version", "pytorch_version", "PT_VERSION")
_HOST = ("hostname", "host_name", "host")
_ELSEWHERE = frozenset(
    {"schemaVersion", "traceEvents", "deviceProperties", "distributedInfo", "traceName", "trace_id"}
)
_REMARKS = {"ERROR": "error", "WARNING": "warning", "INFO": "info"}
_VERSION_KEY = re.compile(r"version$", re.I)
_LONGEST_VALUE = 1000
_MOST_RANKS = 1 << 31


def parse_header(header: bytes, trailer: bytes, path: Path) -> dict[str, Any]:
    """The top-level object without its events.

    Args:
        header: text before the events, up to their key; empty for a bare array of events.
        trailer: text after the array of events.
        path: the file, for messages.

    Raises:
        InputError: the text around the events is not JSON; mostly, the file is cut short.
    """
    joined = InputError(
        f"{path} goes on after the end of the trace; it was damaged or joined from several files, "
        "export it again"
    )
    if not header:
        if trailer.strip():
            raise joined
        return {}
    text = header + b'"traceEvents": []' + trailer
    try:
        found = from_json(text)
    except JsonError:
        try:
            repaired = repair(text.decode("utf-8", "replace"))[0]
            found, end = json.JSONDecoder(strict=False).raw_decode(repaired.lstrip())
            if repaired.lstrip()[end:].strip():
                raise joined
        except RecursionError as error:
            raise InputError(
                f"{path} is nested too deeply around its events, so it is no profiler trace; "
                "check what wrote it"
            ) from error
        except ValueError as error:
            raise truncated(path) from error
    if isinstance(found, dict) and found.get("traceEvents"):
        raise InputError(
            f"{path} has a second list of traceEvents; it was joined from several files, export it "
            "again"
        )
    if not isinstance(found, dict) or "traceEvents" not in found:
        raise InputError(
            f"{path} holds no list of traceEvents at its top level; check what wrote it"
        )
    return found


def describe(meta: Meta, found: dict[str, Any]) -> None:
    """Fill options, versions, host, rank and world size from the header."""
    for key, value in found.items():
        if isinstance(value, dict | list) or value is None:
            continue
        text = str(value)[:_LONGEST_VALUE]
        if key in _TORCH_VERSION:
            meta.source_version = text
        elif key in _HOST:
            meta.hostname = text
        elif key in _OPTIONS:
            meta.capture_options[key] = text
        elif _VERSION_KEY.search(key) and key not in _ELSEWHERE:
            meta.environment[key] = text
    job = found.get("distributedInfo")
    if not isinstance(job, dict):
        return
    rank, world = job.get("rank"), job.get("world_size")
    if isinstance(rank, int) and 0 <= rank < _MOST_RANKS:
        meta.rank, meta.rank_source = rank, "distributedInfo"
    if isinstance(world, int) and 0 < world <= _MOST_RANKS:
        meta.world_size = world
    for key in ("nccl_version", "backend"):
        if isinstance(job.get(key), str):
            meta.environment[key] = job[key][:_LONGEST_VALUE]


def write_devices(writer: TraceWriter, process_id: int, found: dict[str, Any]) -> None:
    """Write the ``device`` table from deviceProperties."""
    devices = _list(found.get("deviceProperties"))
    numbered, _ = fitting32([_int(d, "id") for d in devices])
    devices = [d for d, number in zip(devices, numbered, strict=True) if number is not None]
    small = {
        column: fitting32([_int(d, key) for d in devices])
        for column, key in (
            ("sm_count", "numSms"), ("compute_major", "computeMajor"),
            ("compute_minor", "computeMinor"),
        )
    }  # fmt: skip
    lost = numbered.count(None) + sum(beyond for _, beyond in small.values())
    writer.problems.count("bad_value", lost, scope="device")
    if devices:
        writer.append(
            "device",
            {
                "process_id": [process_id] * len(devices),
                "device": [_int(d, "id") for d in devices],
                "name": [_text(d, "name") for d in devices],
                "uuid": [_text(d, "uuid") for d in devices],
                **{column: values for column, (values, _) in small.items()},
                "memory_bytes": [_int(d, "totalGlobalMem") for d in devices],
            },
        )


def write_communicators(writer: TraceWriter, found: dict[str, Any]) -> None:
    """Write the ``communicator`` table from the process groups of distributedInfo."""
    job = found.get("distributedInfo")
    groups = _list(job.get("pg_config")) if isinstance(job, dict) else []
    if groups:
        ranks = [group.get("ranks") for group in groups]
        writer.append(
            "communicator",
            {
                "name": [_text(group, "pg_name") for group in groups],
                "description": [_text(group, "pg_desc") for group in groups],
                "backend": [_text(group, "backend_config") for group in groups],
                "size": [_int(group, "pg_size") for group in groups],
                "ranks": [
                    r if isinstance(r, str) or r is None else msgspec.json.encode(r).decode()
                    for r in ranks
                ],
            },
        )


def write_remarks(writer: TraceWriter, process_id: int, found: dict[str, Any]) -> None:
    """Write what the profiler logged about its own capture as ``diagnostic``."""
    rows = [
        (severity, str(entry))
        for key, severity in _REMARKS.items()
        for entry in (found[key] if isinstance(found.get(key), list) else [])
    ]
    if rows:
        writer.append(
            "diagnostic",
            {
                "process_id": [process_id] * len(rows),
                "severity": [severity for severity, _ in rows],
                "text": [text for _, text in rows],
            },
        )


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _int(item: dict[str, Any], key: str) -> int | None:
    value = item.get(key)
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _text(item: dict[str, Any], key: str) -> str | None:
    value = item.get(key)
    return None if value is None else str(value)


_THREAD = re.compile(r"thread\s+\S+\s+\((.*)\)\s*\Z", re.S)
_PROFILER_SPAN = "PyTorch Profiler"


class Marks:
    """Metadata events, profiler spans and the end mark; there are few of them."""

    def __init__(self) -> None:
        self._processes: dict[Any, str] = {}
        self._labels: dict[Any, str] = {}
        self._threads: dict[tuple[Any, Any], str] = {}
        self._ranks: dict[Any, int] = {}
        self._spans: list[tuple[int, int]] = []
        self._end: int | None = None
        self._counted: Counter[str] = Counter()

    def add(self, events: Events) -> None:
        """Take over events that are neither calls nor work."""
        for event in events:
            if event.ph == "M" and event.args is not None:
                self._name(event.name, event.pid, event.tid, event.args)
            elif event.ph == "X" and event.name.startswith(_PROFILER_SPAN):
                (start, duration), timed = nanoseconds([event.ts, event.dur])
                if timed.all():
                    self._spans.append((int(start), int(start + duration)))
            elif event.name == "Record Window End":
                time, timed = nanoseconds([event.ts])
                self._end = int(time[0]) if timed.all() else None

    def _name(self, what: str, pid: Any, tid: Any, args: Any) -> None:
        if args.trace_rank is not NO_TEXT:  # what merges the traces of all ranks says whose it is
            rank = value_of(args.trace_rank, self._counted)
            if isinstance(rank, int) and 0 <= rank < _MOST_RANKS:
                self._ranks[pid] = rank
        if what == "process_name":
            self._processes[pid] = self._text(args.name)
        elif what == "process_labels":
            self._labels[pid] = self._text(args.labels)
        elif what == "thread_name":
            thread = (pid, integers([tid])[0].item())
            self._threads[thread] = self._text(args.name) or self._threads.get(thread, "")

    def _text(self, raw: msgspec.Raw) -> str:
        value = value_of(raw, self._counted)
        if isinstance(value, str):
            return value
        self._counted["bad_value"] += value is not None
        return ""

    def window(self, tables: Iterable[Spans]) -> tuple[int, int] | None:
        """Begin and end of the captured window, as recorded, with every event inside.

        None when there is no event with a time.
        """
        extents = [extent for table in tables if (extent := table.extent())]
        if not extents:
            return None
        extents += self._spans
        ends = [end for _, end in extents]
        if not self._spans and self._end is not None:
            ends.append(self._end)
        return min(start for start, _ in extents), max(ends)

    def host(self, pids: Counter[int]) -> int:
        """The captured process: the one that most host events, else the labels, name."""
        known = [pid for pid, _ in pids.most_common() if pid != MISSING]
        labelled = [pid for pid, label in self._labels.items() if label == "CPU"]
        numbers = [pid for pid in known + labelled if isinstance(pid, int) and abs(pid) < -MISSING]
        return numbers[0] if numbers else 0

    def write(
        self,
        writer: TraceWriter,
        host: int,
        threads: set[tuple[int, int]],
        rank: int | None,
        working: list[int],
    ) -> None:
        """Write the ``thread`` and ``process`` tables.

        Args:
            writer: the sink.
            host: the captured process.
            threads: process and thread of the host events.
            rank: rank of the captured process.
            working: the processes whose work a GPU ran.
        """
        for problem, number in self._counted.items():
            writer.problems.count(problem, number, scope="thread")
        found = {(host if pid == MISSING else pid, tid) for pid, tid in threads if tid != MISSING}
        own = {host, *working}
        named = {key: name for key, name in self._threads.items() if key[0] in own}
        every = sorted(found | {(int(pid), tid) for pid, tid in named if tid != MISSING})
        if every:
            writer.append(
                "thread",
                {
                    "process_id": [pid for pid, _ in every],
                    "thread_id": [tid for _, tid in every],
                    "name": [_thread_name(self._threads.get(key)) for key in every],
                },
            )
        processes = sorted({host} | {pid for pid, _ in every})
        if len(processes) > 1 and len(own) == 1:
            writer.problems.count(
                "unsupported_source",
                1,
                scope="process",
                detail=f"host events of {len(processes)} processes in one file; GPU work is "
                f"attributed to process {host}",
            )
        writer.append(
            "process",
            {
                "process_id": processes,
                "name": [self._processes.get(pid) or None for pid in processes],
                "rank": [self._ranks.get(pid, rank if pid == host else None) for pid in processes],
            },
        )


def _thread_name(text: str | None) -> str | None:
    """``thread 565 (pt_autograd_0)`` gives ``pt_autograd_0``."""
    match = _THREAD.match((text or "")[:LONGEST_JUDGED])
    return (match[1] if match else text) or None


_CPU = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ...])"
_CUDA = "torch.profiler.profile(activities=[..., ProfilerActivity.CUDA])"
_NEVER = (
    MissingTable(
        "cpu_sample",
        "the PyTorch profiler does not sample call stacks",
        "nsys profile --sample=process-tree",
    ),
    MissingTable(
        "sched",
        "the PyTorch profiler does not record when threads run",
        "nsys profile --cpuctxsw=process-tree",
    ),
    MissingTable(
        "gil",
        "the PyTorch profiler does not record who holds Python's lock",
        "nsys profile --trace=cuda,nvtx,osrt,python-gil",
    ),
    MissingTable(
        "metric_sample",
        "the PyTorch profiler does not sample hardware counters",
        "nsys profile --gpu-metrics-devices=all",
    ),
    MissingTable(
        "event_record",
        "the PyTorch profiler does not record CUDA events",
        "nsys profile --cuda-event-trace=true",
    ),
)


def missing_tables(
    *,
    operators: bool,
    shapes: bool,
    gpu: bool,
    calls: bool,
    python: bool,
    memory: bool,
    sync: bool,
    distributed: bool,
    collectives: bool,
) -> list[MissingTable]:
    """The tables that hold nothing, given which ones hold something.

    Args:
        operators: there are framework operators.
        shapes: operators came with input shapes.
        gpu: there is GPU work.
        calls: there are CUDA calls.
        python: there are Python functions.
        memory: there are allocations.
        sync: there are synchronisation records.
        distributed: the trace is one of several ranks.
        collectives: communication kernels are described.
    """
    lacking = [
        (not operators, "operator", "framework operators were not recorded", _CPU),
        (
            operators and not shapes,
            "operator",
            "operators were recorded without the sizes of their inputs",
            "torch.profiler.profile(record_shapes=True)",
        ),
        (not gpu, "gpu_op", "GPU work was not recorded", _CUDA),
        (not calls, "api_call", "CUDA calls were not recorded", _CUDA),
        (
            not python,
            "python_function",
            "Python functions were not recorded",
            "torch.profiler.profile(with_stack=True)",
        ),
        (
            not memory,
            "memory_event",
            "allocations were not recorded",
            "torch.profiler.profile(profile_memory=True)",
        ),
        (
            gpu and not sync,
            "sync",
            "what synchronisations waited for was not recorded",
            "torch.profiler.profile(experimental_config="
            "torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True))",
        ),
        (
            distributed and not collectives,
            "collective",
            "this version of PyTorch does not describe communication kernels",
            "capture with PyTorch 2.2 or newer and the NCCL backend",
        ),
        (
            gpu,
            "gpu_op",
            "the PyTorch profiler only records the sum of static and dynamic shared memory, "
            "which stands in dynamic_shared_bytes",
            "nsys profile --trace=cuda",
        ),
    ]
    return [
        *(MissingTable(*what) for missing, *what in lacking if missing),
        MissingTable(
            "api_call",
            "the PyTorch profiler does not record calls of the operating system",
            "nsys profile --trace=cuda,nvtx,osrt",
        ),
        *_NEVER,
    ]
