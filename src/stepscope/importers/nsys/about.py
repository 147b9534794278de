"""What an export says about itself: tool, machine, command, window, rank."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from stepscope.importers.nsys.rows import TableReader, code, may, must
from stepscope.importers.nsys.text import clean
from stepscope.trace.meta import Meta

_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_WANTED_VARIABLES = {name for pair in _RANK_VARIABLES for name in pair} | {"SLURM_NPROCS"}
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

    def rank(self) -> tuple[int | None, int | None, str]:
        """Rank, world size and where they come from, by the captured environment."""
        for rank_name, size_name in _RANK_VARIABLES:
            rank = _number(self.variables.get(rank_name))
            if rank is not None:
                size = _number(self.variables.get(size_name))
                return rank, size, f"environment {rank_name}"
        return None, None, ""

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


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text) else None
