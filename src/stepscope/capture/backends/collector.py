"""Stepscope's own collector: needs nothing installed but what the program uses anyway."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from stepscope.capture.backends.base import Backend, Plan, Readiness, configuration, with_hook
from stepscope.capture.collector.build import find
from stepscope.capture.errors import CaptureError
from stepscope.capture.libraries import cupti_candidates
from stepscope.capture.options import PROFILER_RANGE, Options
from stepscope.capture.profilers import in_environment

RAW_FOLDER = "raw"
CONFIGURATION = "collector.conf"
_CANDIDATES_BYTES = 8000
_SHARED_MEMORY = Path("/dev/shm")
_SHARED_MEMORY_BYTES = 256 << 20
"""Free space below which NVTX events are kept on the heap instead, and die with a killed process. A
process needs 8 MiB, a forked worker one; PyTorch's workers need the same memory for their batches,
so the collector also leaves three quarters of it free."""


def check(command: tuple[str, ...]) -> Readiness:
    """Is there a library, and a CUPTI for it?"""
    library = find()
    if library.path is None:
        return Readiness(False, "the collector has no library", library.remedy)
    candidates = cupti_candidates(command)
    if not candidates:
        return Readiness(
            True,
            "ready, but no libcupti was found: unless the program brings one, NVTX ranges are "
            "recorded and GPU work is not",
            "install PyTorch with CUDA, or the package nvidia-cuda-cupti, or set STEPSCOPE_CUPTI",
            str(library.path),
        )
    return Readiness(True, "ready", detail=f"{library.path}; CUPTI {candidates[0]}")


def plan(options: Options, shown: bool = False) -> Plan:
    """The program itself, with two variables that make CUDA and NVTX load the collector."""
    library = find()
    if library.path is None:
        raise CaptureError(f"the collector has no library: {library.remedy}")
    if options.stacks:
        raise CaptureError("the collector records no Python stacks; use --backend torch")
    if options.memory or options.memory_snapshot:
        raise CaptureError(
            "the collector sees allocations of the driver only (--record memory); use "
            "--backend torch"
        )
    if options.ops and not options.steps:
        raise CaptureError(
            "--ops makes every operator slower, so it is for some steps only; give --steps 10, too"
        )
    raw = options.output.resolve() / RAW_FOLDER
    pool = _pool_folder()
    name, _, domain = options.range.partition("@")
    hook = options.hook
    now = time.monotonic_ns()
    begin_ns = now + round(options.delay_s * 1e9) if options.delay_s else 0
    values: dict[str, object] = {
        "folder": raw,
        "pool": pool or "",
        "cupti": _candidates(options.command),
        "kinds": ",".join(map(str, options.kinds())),
        "range": _range_mode(options),
        "nvtx_name": name if _range_mode(options) == "nvtx" else "",
        "nvtx_domain": domain,
        "ranges": options.ranges,
        "ranks": f",{','.join(map(str, options.ranks))}," if options.ranks else "",
        "filter_api": not options.every_call,
        "flush_ms": options.flush_ms,
        "max_bytes": options.max_bytes,
        "start_ns": begin_ns,
        "duration_ns": round(options.duration_s * 1e9),
        "ring_ns": round(options.ring_s * 1e9),
        "slow_step": options.slow_step or "",
        "ops": options.ops,
        "hook": "collector" if hook else "",
        "library": library.path,
        "steps": options.steps,
        "warmup": options.warmup,
        "settle": options.settle,
        "gc": options.gc,
        "sample_hz": options.sample_hz or "",
        "stop_program": options.stop_program,
        "stand_aside": options.stand_aside,
    }
    environment = {
        "STEPSCOPE_CAPTURE": str(raw / CONFIGURATION),
        "CUDA_INJECTION64_PATH": str(library.path),
        "NVTX_INJECTION64_PATH": str(library.path),
    }
    if options.waits:
        preload = find("waits")
        if preload.path is None:
            raise CaptureError(preload.remedy)
        before = os.environ.get("LD_PRELOAD", "")
        environment["LD_PRELOAD"] = f"{preload.path}:{before}" if before else str(preload.path)
    notes = []
    if pool is None:
        notes.append(
            f"{_SHARED_MEMORY} is missing or too small: NVTX ranges of killed processes are lost"
        )
    notes += [f"{message}; {remedy}" for message, remedy in in_environment()]
    return Plan(
        command=options.command,
        environment=with_hook(environment) if hook else environment,
        files={raw / CONFIGURATION: configuration(values)},
        notes=tuple(notes),
        pool=pool,
    )


def _candidates(command: tuple[str, ...]) -> str:
    """Copies of libcupti, best first, as many as the collector reads."""
    text = ""
    for path in map(str, cupti_candidates(command)):
        longer = f"{text}:{path}" if text else path
        if path.isprintable() and ":" not in path and len(os.fsencode(longer)) < _CANDIDATES_BYTES:
            text = longer
    return text


def _range_mode(options: Options) -> str:
    if options.range == PROFILER_RANGE:
        return "profiler"
    if options.range:
        return "nvtx"
    return "external" if options.paused or options.steps else "process"


def _pool_folder() -> Path | None:
    """A folder in memory for this run, made later; None where there is no room."""
    try:
        if shutil.disk_usage(_SHARED_MEMORY).free < _SHARED_MEMORY_BYTES:
            return None
    except OSError:
        return None
    return _SHARED_MEMORY / f"stepscope-{os.getuid()}-{os.getpid()}-{time.monotonic_ns():x}"


BACKEND = Backend("collector", "Stepscope's own collector", check, plan)
"""Registered by :mod:`stepscope.capture.backends.registry`."""
