"""What a profile says about itself, which tables it lacks, and which profiles are not read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from stepscope.importers.common.about import Option, without_rows
from stepscope.importers.xplane.gpu import DEVICE
from stepscope.importers.xplane.space import Plane
from stepscope.trace.errors import InputError
from stepscope.trace.meta import Meta, MissingTable

_EPOCH_NS: Final = 10**18
_WHAT: Final = "a profile of JAX or TensorFlow (XSpace, .xplane.pb)"
_REPLACED: Final = b"\xef\xbf\xbd"
_FEW: Final = 4
"""More characters that stand for unreadable ones than this are no accident of a binary file."""
_XPROF: Final = "open this one in xprof"


def refuse_mangled(path: Path, head: bytes) -> None:
    """Refuse a file whose bytes were replaced as if it were text.

    Raises:
        InputError: it was.
    """
    if head.count(_REPLACED) > _FEW:
        device = ", of a TPU" if b"/device:TPU" in head else ""
        raise InputError(
            f"{path} is {_WHAT}{device}, damaged: its bytes were replaced as if it were text; "
            "copy it again as a binary file"
        )


def gpus_of(path: Path, planes: Sequence[Plane]) -> list[Plane]:
    """The planes of GPUs.

    Raises:
        InputError: there is none; the message says what the profile is of instead.
    """
    found = [plane for plane in planes if DEVICE.search(plane.name)]
    if found:
        return found
    if any("/device:TPU" in plane.name for plane in planes):
        raise InputError(f"{path} is {_WHAT}, of a TPU; Stepscope reads GPUs only; {_XPROF}")
    if not any(plane.name.startswith(("/host:", "/device:", "Task")) for plane in planes):
        raise InputError(f"{path} is no profile that Stepscope knows; check what wrote it")
    raise InputError(
        f"{path} is {_WHAT}, without a GPU in it; record while the GPU works, and {_XPROF}"
    )


def process_of(planes: Sequence[Plane]) -> int:
    """The captured process; 0 where nothing tells it."""
    for plane in planes:
        value = plane.facts.get("process_id")
        if isinstance(value, int) and 0 < value < 2**31:
            return value
    return 0


def times_of(planes: Sequence[Plane]) -> tuple[int | None, int | None]:
    """Wall-clock times of the profile's begin and end, ns since 1970."""
    facts = next((p.facts for p in planes if p.name == "Task Environment"), {})
    begin, end = facts.get("profile_start_time"), facts.get("profile_stop_time")
    if not isinstance(begin, int) or not _EPOCH_NS < begin < 2**62:
        return None, None
    return begin, end if isinstance(end, int) and begin <= end < 2**62 else None


def describe(meta: Meta, planes: Sequence[Plane], hosts: Sequence[str]) -> None:
    """Fill versions and host."""
    meta.hostname = hosts[0] if hosts else ""
    facts: dict[str, str | int | float] = {}
    for plane in planes:
        if plane.name == "/host:metadata":
            facts = plane.facts
    meta.source_version = str(facts.get("jaxlib_version", ""))
    names = {
        "jax_version": "jax",
        "jaxlib_version": "jaxlib",
        "cuda_version": "cuda",
        "cuda_runtime_version": "cuda_runtime",
        "cuda_driver_version": "cuda_driver",
        "gpu_version": "gpu_version",
    }
    for key, name in names.items():
        if facts.get(key) not in (None, ""):
            meta.environment[name] = str(facts[key])[:200]


def rank_of(path: Path) -> int | None:
    """The rank where the file's name tells it as XLA's own hosts do; None where it does not."""
    match = re.search(r"(?:^|[._-])(?:host|task|process)[._-]?(\d{1,6})\.xplane\.pb", path.name)
    return int(match[1]) if match else None


_JAX: Final = "jax.profiler.start_trace"
_NSYS: Final = "nsys profile --trace=cuda,nvtx,osrt"
_LACKING: Final = (
    Option("api_call", "CUDA calls", f"{_JAX} with ProfileOptions.host_tracer_level = 2"),
    Option(
        "range", "annotations of the host", f"{_JAX} with ProfileOptions.host_tracer_level = 2"
    ),
    Option(
        "python_function",
        "Python functions",
        f"{_JAX} with ProfileOptions.python_tracer_level = 1",
    ),
    Option("operator", "operations of HLO on the host", f"{_JAX} without command buffers: "
           "XLA_FLAGS=--xla_gpu_enable_command_buffer="),
    Option("memory_event", "allocations", f"{_JAX} with ProfileOptions.host_tracer_level = 2"),
    Option("sync", "synchronisation records", "nsys profile --trace=cuda"),
    Option("event_record", "CUDA events", "nsys profile --cuda-event-trace=true"),
    Option("osrt", "calls of the operating system", _NSYS),
    Option("cpu_sample", "samples of stacks", "stepscope run --sample-hz 100"),
    Option("sched", "times at which threads ran", "nsys profile --cpuctxsw=process-tree"),
    Option("gil", "times at which threads held the GIL", "nsys profile --trace=python-gil"),
    Option("metric_sample", "hardware counters", "nsys profile --gpu-metrics-devices=all"),
)  # fmt: skip


def missing_tables(rows: Mapping[str, int]) -> list[MissingTable]:
    """The tables that the profile does not hold, and how to get them."""
    return without_rows(_LACKING, rows)
