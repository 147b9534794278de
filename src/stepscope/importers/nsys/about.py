"""What an export says about itself: machine, command, rank, processes, devices, what it lacks."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stepscope.importers.common.about import RANK_VARIABLES, Option, not_held, without_rows
from stepscope.importers.common.cuda import STREAM_FLAGS
from stepscope.importers.common.texts import clean
from stepscope.importers.nsys.rows import TableReader, code, may, must
from stepscope.importers.nsys.sink import (
    ID_MASK,
    PROCESS_SHIFT,
    Record,
    Sink,
    process_of,
    records,
)
from stepscope.trace.frame import NULL
from stepscope.trace.meta import Meta, MissingTable

_WANTED_VARIABLES = {name for names in RANK_VARIABLES for name in names}
_ENVIRONMENT = {
    "NvDriverVersion": "driver",
    "CudaDriverVersion": "cuda_driver",
    "OsDescription": "os",
    "CpuDescription": "cpu",
    "CpuCores": "cpu_cores",
}
_OPTIONS = {
    "PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE": "cuda_graph_trace",
    "PROCESS_0:COLLECT_GPU_MEMORY_USAGE": "cuda_memory_usage",
    "LINUX_PERF_OPTIONS:COLLECT_IP_BACKTRACE_SAMPLES": "cpu_sampling",
    "LINUX_PERF_OPTIONS:SAMPLING_PERIOD": "cpu_sampling_period",
    "LINUX_PERF_OPTIONS:COLLECT_CPU_CTXSW_TRACE": "cpu_context_switches",
    "OS_RUNTIME_OPTIONS:DURATION_THRESHOLD_NS": "osrt_threshold_ns",
    "TRACE_AFTER_FORK_BEFORE_EXEC": "trace_fork_before_exec",
    "START_TRIGGER": "start_trigger",
    "STOP_TRIGGER": "stop_trigger",
}
_EXPORT = {
    "EXPORT_SCHEMA_VERSION": "schema_version",
    "EXPORT_PARAM_TIMES_TO_EXPORT": "export_times",
    "EXPORT_PARAM_TABLES_TO_EXPORT": "export_tables",
}
_ARGUMENT = re.compile(r"PROCESS_0:ARGUMENT_(\d+)")


@dataclass
class About:
    """Facts about a capture.

    Attributes:
        export: ``META_DATA_EXPORT``.
        capture: ``META_DATA_CAPTURE`` without the environment; a name may come several times.
        system: ``TARGET_INFO_SYSTEM_ENV`` without the environment.
        variables: the few environment variables that tell the rank.
        duration_ns: length of the window.
        epoch_ns: wall-clock time of the session's start.
    """

    export: dict[str, str] = field(default_factory=dict)
    capture: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    system: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    duration_ns: int | None = None
    epoch_ns: int | None = None

    @property
    def traced(self) -> set[str]:
        """What was traced, as the tool names it: Cuda, NvtxEvents, OSRuntime, ..."""
        return set(self.capture.get("CAPTURE_EVENT_TYPE", ()))

    @property
    def shift_ns(self) -> int:
        """What the export added to all times (``--ts-normalize``, ``--ts-shift``)."""
        for name in ("EXPORT_CONFIG_TIME_SHIFT", "EXPORT_PARAM_TIME_SHIFT"):
            text = self.export.get(name, "")
            if re.fullmatch(r"-?\d+", text) and int(text):
                return int(text)
        return 0

    def meta(self) -> Meta:
        """The metadata, as far as these tables tell it."""
        options = {
            ours: self.capture[name][0] for name, ours in _OPTIONS.items() if name in self.capture
        }
        options |= {
            ours: self.export[name] for name, ours in _EXPORT.items() if self.export.get(name)
        }
        if self.traced:
            options["trace"] = ",".join(sorted(self.traced))
        return Meta(
            source_version=self.export.get("EXPORT_PRODUCT_VERSION", ""),
            origin_epoch_ns=self.epoch_ns,
            hostname=self.system.get("Hostname", ""),
            command=self._command(),
            capture_options=options,
            environment={
                ours: self.system[name]
                for name, ours in _ENVIRONMENT.items()
                if name in self.system
            },
        )

    def _command(self) -> str:
        parts = self.capture.get("PROCESS_0:COMMAND", [])[:1]
        arguments = [
            (int(match[1]), values[0])
            for name, values in self.capture.items()
            if (match := _ARGUMENT.fullmatch(name))
        ]
        return shlex.join(parts + [text for _, text in sorted(arguments)])


def read_about(tables: TableReader) -> About:
    """Read the tables that describe the capture."""
    about = About()
    for name, value in _pairs(tables, "META_DATA_EXPORT"):
        about.export[name] = value
    for name, value in _pairs(tables, "META_DATA_CAPTURE"):
        if name.endswith(":ENVIRONMENT_VARIABLE"):
            about.variables |= _variables([value])
        else:
            about.capture[name].append(value)
    for name, value in _pairs(tables, "TARGET_INFO_SYSTEM_ENV"):
        if name == "DeviceEnvironment":
            # what the tool itself ran under; the program's own environment comes first
            about.variables = _variables(value.split(";")) | about.variables
        else:
            about.system.setdefault(name, value)
    for rows in tables.read("ANALYSIS_DETAILS", (must("duration"),), "diagnostic"):
        about.duration_ns = max([about.duration_ns or 0, *rows.ints("duration").tolist()])
    for rows in tables.read("TARGET_INFO_SESSION_START_TIME", (may("utcEpochNs"),), "diagnostic"):
        starts = [value for value in rows["utcEpochNs"].to_pylist() if value]
        about.epoch_ns = min(starts, default=about.epoch_ns)
    return about


def read_mpi_ranks(tables: TableReader) -> dict[int, int]:
    """Rank of each process, by ``MPI_RANKS``."""
    ranks: dict[int, int] = {}
    for rows in tables.read("MPI_RANKS", (must("globalTid"), code("rank")), "process"):
        for tid, rank in zip(
            rows.ints("globalTid").tolist(), rows["rank"].to_pylist(), strict=True
        ):
            if rank is not None:
                ranks[(tid >> 24) & 0xFFFFFF] = rank
    return ranks


def _pairs(tables: TableReader, table: str) -> Iterable[tuple[str, str]]:
    for rows in tables.read(table, (must("name", "raw"), may("value", "raw")), "diagnostic"):
        for name, value in zip(rows["name"].to_pylist(), rows["value"].to_pylist(), strict=True):
            yield clean(name), clean(value or "")


def _variables(assignments: Iterable[str]) -> dict[str, str]:
    """The wanted variables among ``NAME=value`` texts; values may be quoted."""
    found = {}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        if name in _WANTED_VARIABLES:
            found[name] = value.strip('"')
    return found


_INT32 = 1 << 31


def read_processes(sink: Sink, ranks: dict[int, int]) -> None:
    """Fill ``process``; ``ranks`` gives the rank of processes where the source knows it."""
    fields = (may("pid"), may("name", "text"))
    names = {
        row["pid"]: row["name"]
        for row in records(sink, "PROCESSES", fields, "process")
        if row["pid"] is not None
    }
    sink.put_records(
        "process",
        [
            {"process_id": pid, "name": names.get(pid), "rank": ranks.get(pid)}
            for pid in sorted(sink.processes)
        ],
    )


def read_threads(sink: Sink, given: Mapping[tuple[int, int], str]) -> None:
    """Fill ``thread``; ``given`` are the names that the program itself set through NVTX."""
    fields = (must("nameId"), may("priority"), must("globalTid"))
    best: dict[tuple[int, int], tuple[int, int]] = {}
    every: list[tuple[tuple[int, int], int, int | None]] = []
    for row in records(sink, "ThreadNames", fields, "thread"):
        key = ((row["globalTid"] >> PROCESS_SHIFT) & ID_MASK, row["globalTid"] & ID_MASK)
        if key in sink.threads:
            every.append((key, row["nameId"], row["priority"]))
            # of several names the tool's own (lower number) says more than the system's
            name = (row["priority"] or 0, row["nameId"])
            best[key] = min(best.get(key, name), name)
    import pyarrow as pa

    ids = pa.array([name for _, name in best.values()], type=pa.int64())
    named = sink.strings.take(ids, sink.replaced("thread")).to_pylist()
    _put_thread_names(sink, every)
    texts = dict(zip(best, named, strict=True))
    texts |= given
    sink.put_records(
        "thread",
        [
            {"process_id": process, "thread_id": thread, "name": texts.get((process, thread))}
            for process, thread in sorted(sink.threads)
        ],
    )


def _put_thread_names(sink: Sink, names: Sequence[tuple[tuple[int, int], int, int | None]]) -> None:
    import pyarrow as pa

    ids = pa.array([number for _, number, _ in names], type=pa.int64())
    texts = sink.strings.take(ids, sink.replaced("thread_name")).to_pylist()
    sink.put_records(
        "thread_name",
        [
            {"process_id": process, "thread_id": thread, "name": text, "priority": priority}
            for ((process, thread), _, priority), text in zip(names, texts, strict=True)
        ],
    )


_GPU_FIELDS = (
    must("id", "int32"),
    may("name", "text"),
    may("uuid", "text"),
    may("smCount", "int32"),
    code("computeMajor", "int32"),
    code("computeMinor", "int32"),
    may("totalMemory"),
    may("memoryBandwidth"),
    may("clockRate"),
    code("cuDevice", "int32"),
)


def read_devices(sink: Sink) -> None:
    """Fill ``device``: each GPU under the ordinal that each process gives it."""
    gpus = {row["id"]: row for row in records(sink, "TARGET_INFO_GPU", _GPU_FIELDS, "device")}
    used = {(process, device) for process, _, device, _ in sink.streams}
    found: dict[tuple[int, int], Record] = {}
    fields = (code("gpuId", "int32"), must("cudaId", "int32"), must("pid"))
    for row in records(sink, "TARGET_INFO_CUDA_DEVICE", fields, "device"):
        found[row["pid"], row["cudaId"]] = _device(row["pid"], row["cudaId"], row["gpuId"], gpus)
    for process, device in sorted(used - found.keys()):
        found[process, device] = _device(process, device, _guess(device, gpus), gpus)
    sink.put_records("device", [found[key] for key in sorted(found)])


def _guess(device: int, gpus: dict[int, Record]) -> int | None:
    """The physical GPU of an ordinal in exports (before 2024) that hold no such table.

    Only sure where there is one GPU, or where the driver's numbering was recorded.
    """
    if len(gpus) == 1:
        return next(iter(gpus))
    numbered = [number for number, gpu in gpus.items() if gpu["cuDevice"] == device]
    return numbered[0] if len(numbered) == 1 else None


def _device(process: int, device: int, physical: int | None, gpus: dict[int, Record]) -> Record:
    gpu = gpus.get(physical, {}) if physical is not None else {}
    return {
        "process_id": process,
        "device": device,
        "physical_id": physical,
        "name": gpu.get("name"),
        "uuid": gpu.get("uuid"),
        "sm_count": gpu.get("smCount"),
        "compute_major": gpu.get("computeMajor"),
        "compute_minor": gpu.get("computeMinor"),
        "memory_bytes": gpu.get("totalMemory"),
        "memory_bandwidth": gpu.get("memoryBandwidth"),
        "clock_hz": gpu.get("clockRate"),
    }


def read_streams(sink: Sink) -> None:
    """Fill ``stream``: those the tool lists and those that GPU work ran on."""
    contexts = (must("processId"), must("contextId", "int32"), must("deviceId", "int32"))
    devices = {
        (row["processId"], row["contextId"]): row["deviceId"]
        for row in records(sink, "TARGET_INFO_CUDA_CONTEXT_INFO", contexts, "stream")
    }
    seen = {(process, context, stream): device for process, context, device, stream in sink.streams}
    found: dict[tuple[int, int, int], Record] = {}
    fields = (
        must("streamId"),
        must("processId"),
        must("contextId", "int32"),
        code("priority"),
        code("flag"),
    )
    for row in records(sink, "TARGET_INFO_CUDA_STREAM", fields, "stream"):
        key = (row["processId"], row["contextId"], row["streamId"])
        device = devices.get(key[:2], seen.get(key))
        found[key] = _stream(key, device, _signed(row["priority"]), row["flag"])
    for key in sorted(seen.keys() - found.keys()):
        found[key] = _stream(key, seen[key], None, None)
    sink.put_records("stream", [found[key] for key in sorted(found)])


def _stream(
    key: tuple[int, int, int], device: int | None, priority: int | None, flag: int | None
) -> Record:
    process, context, stream = key
    return {
        "process_id": process,
        "context": None if context == NULL else context,
        "device": device,
        "stream": stream,
        "priority": priority,
        "flag": None if flag is None else STREAM_FLAGS.get(flag),
    }


def _signed(value: int | None) -> int | None:
    """A signed priority that was stored as unsigned 32 bits."""
    if value is None or not -_INT32 <= value < 2 * _INT32:
        return None
    return value - 2 * _INT32 if value >= _INT32 else value


_WARNING = 2
_SEVERITIES = {0: "info", 1: "info", 2: "warning", 3: "error", 4: "info"}
_LOSS = re.compile(
    r"\b(dropped|discarded|lost|overflow\w*|wrong event order|out of memory)\b"
    r"|buffers? (is|are|was|were) full|failed to (collect|flush)",
    re.IGNORECASE,
)


def read_diagnostics(sink: Sink) -> None:
    """Fill ``diagnostic``; remarks that records were lost are counted as a problem."""
    import pyarrow as pa

    fields = (
        code("timestamp", "time"),
        must("text", "raw"),
        code("severity"),
        may("globalPid"),
    )
    for rows in sink.tables.read("DIAGNOSTIC_EVENT", fields, "diagnostic"):
        severity = rows["severity"].fill_null(1)
        global_pid = rows.ints("globalPid")
        # remarks are prose with tabs and line ends in it
        texts = [
            clean(b" ".join(text.split())) for text in rows["text"].cast(pa.binary()).to_pylist()
        ]
        for text, level in zip(texts, severity.to_pylist(), strict=True):
            if level in (_WARNING, _WARNING + 1) and _LOSS.search(text):
                sink.tables.problems.count("dropped_records", 1, scope="diagnostic", detail=text)
        sink.put(
            "diagnostic",
            {
                "time_ns": rows["timestamp"],
                # the session's own remarks carry process bits that are all ones
                "process_id": pa.array(process_of(global_pid), mask=global_pid < 0),
                "severity": sink.labels("diagnostic", "severity", severity, _SEVERITIES, "info"),
                "text": sink.string_table("diagnostic", "text").codes(pa.array(texts, pa.string())),
            },
        )


_OTHER = "torch.profiler"
_TABLES = (
    Option("gpu_op", "GPU work", "nsys profile -t cuda", "Cuda"),
    Option("api_call", "CUDA calls", "nsys profile -t cuda", "Cuda"),
    Option("osrt", "calls of the operating system's runtime", "nsys profile -t osrt", "OSRuntime"),
    Option("range", "NVTX ranges", "nsys profile -t nvtx", "NvtxEvents"),
    Option("sync", "synchronisations", "nsys profile -t cuda", "Cuda"),
    Option("event_record", "CUDA event records", "nsys profile --cuda-event-trace=true"),
    Option("cpu_sample", "samples of the CPU", "nsys profile --sample=process-tree"),
    Option("stack_frame", "stacks of the CPU", "nsys profile --sample=process-tree"),
    Option("sched", "thread scheduling", "nsys profile --cpuctxsw=process-tree"),
    Option("thread_state", "states of threads", "nsys profile --cpuctxsw=process-tree"),
    Option("gil", "use of the GIL", "nsys profile -t python-gil"),
    Option("metric_sample", "GPU counters", "nsys profile --gpu-metrics-devices=all"),
    Option("memory_event", "GPU memory allocations", "nsys profile --cuda-memory-usage=true"),
    Option(
        "operator",
        "framework operators",
        "torch.autograd.profiler.emit_nvtx(record_shapes=True) around the steps (or nsys profile "
        f"--pytorch=autograd-shapes-nvtx), or {_OTHER}",
    ),
    Option("overhead", "overhead of the tool itself", "nsys profile -t cuda", "Cuda"),
)
_NEVER = (
    Option("python_function", "Python function calls", f"{_OTHER} with with_stack=True"),
    Option("collective", "descriptions of collectives", f"{_OTHER}"),
    Option("communicator", "process groups", f"{_OTHER}"),
)


def missing_tables(rows: Mapping[str, int], traced: set[str]) -> list[MissingTable]:
    """The tables without rows.

    Args:
        rows: rows of each canonical table (and of ``osrt``).
        traced: what the capture's options name as traced; empty where they do not tell.
    """
    return [
        *without_rows(_TABLES, rows, lambda option: _reason(option, traced)),
        *without_rows(_NEVER, rows, lambda option: f"Nsight Systems records no {option.what}"),
    ]


def _reason(option: Option, traced: set[str]) -> str:
    if not option.traced or not traced:
        return not_held(option)
    if option.traced in traced:
        return f"the capture traced {option.what}, but recorded none"
    return f"the capture did not trace {option.what}"
