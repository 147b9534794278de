"""Nsight Compute: what a few kernels do inside. It runs every kernel many times."""

from __future__ import annotations

import re
import subprocess

from stepscope.capture.backends.base import Backend, Plan, Readiness, configuration, with_hook
from stepscope.capture.errors import CaptureError
from stepscope.capture.libraries import find_tool
from stepscope.capture.options import PROFILER_RANGE, Options

RESULT = "kernels"
_CONFIGURATION = "hook.conf"
_LOG = "ncu.log"
_MOST_KERNELS = 50
"""Kernels of a capture by an ncu that cannot tell launches apart: more take very long."""
_WARM_LAUNCHES = 5
"""Launches of each kernel and shape to let pass: caches, clocks and autotuning settle."""
_LIMIT_S = 180.0
"""Seconds of profiling, at half a second to a second a launch."""


def check(command: tuple[str, ...]) -> Readiness:
    """Is there an ncu that runs?"""
    tool = find_tool("ncu")
    if tool is None:
        return Readiness(
            False,
            "ncu is not installed",
            "install Nsight Compute from developer.nvidia.com/nsight-compute, or the CUDA toolkit",
        )
    return Readiness(True, "ready", detail=f"{tool.path} {tool.text()}")


def _tells_launches_apart(program: str) -> bool:
    """Whether filters can be applied to each kernel and launch shape separately."""
    try:
        done = subprocess.run(
            [program, "--help"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "per-launch-config" in done.stdout


def plan(options: Options) -> Plan:
    """``ncu`` on one launch of each kernel and shape, after warm-up or in the range."""
    tool = find_tool("ncu")
    if tool is None:
        raise CaptureError(check(options.command).remedy)
    for given, name in (
        (options.paused, "--paused"),
        (bool(options.delay_s or options.duration_s), "--delay and --duration"),
        (bool(options.ring_s), "--ring"),
        (bool(options.record), "--record"),
        (options.gc, "--gc"),
        (options.waits, "--waits"),
        (options.sample_hz > 0, "--sample-hz"),
        (options.stacks, "--stacks"),
        (options.ops, "--ops"),
    ):
        if given:
            raise CaptureError(f"the ncu back-end does not know {name}")
    log = options.output.resolve() / _LOG
    command = [tool.path, "--set", "full", "--target-processes", "all", "--force-overwrite"]
    command += ["--log-file", str(log)]
    if options.kernel:
        command += ["--kernel-name", options.kernel]
    in_a_range = bool(options.steps or options.range)
    what = "matching " if options.kernel else ""
    if not options.launch_count and _tells_launches_apart(tool.path):
        if not re.search(r"[\^$]", options.kernel):
            # by function names it takes kernels for one that differ in template arguments only;
            # what is anchored is meant for function names
            command += ["--kernel-name-base", "demangled"]
        command += ["--filter-mode", "per-launch-config", "--launch-count", "1"]
        skip = options.launch_skip or (0 if in_a_range else _WARM_LAUNCHES)
        said = f"one launch of each {what}kernel and launch shape is recorded"
        if skip:
            said += f", after {skip} that are let pass as warm-up"
    else:
        count, skip = options.launch_count or _MOST_KERNELS, options.launch_skip
        command += ["--launch-count", str(count)]
        said = f"the first {count} {what}kernels of the range are recorded"
    if skip:
        command += ["--launch-skip", str(skip)]
    command += ["--export", str(options.output.resolve() / RESULT)]
    environment: dict[str, str] = {}
    files = {}
    if options.steps or options.range == PROFILER_RANGE:
        command += ["--profile-from-start", "off"]
    elif options.range:
        name, _, domain = options.range.partition("@")
        command += ["--nvtx", "--nvtx-include", f"{domain}@{name}/" if domain else f"{name}/"]
    if options.steps:
        path = options.output.resolve() / _CONFIGURATION
        values = {"hook": "profiler", "steps": options.steps, "warmup": options.warmup}
        files[path] = configuration(values)
        environment = with_hook({"STEPSCOPE_CAPTURE": str(path)})
    return Plan(
        command=(*command, *options.command),
        environment=environment,
        files=files,
        notes=(
            f"{said}; each is run some 40 times. The program is ended after {_LIMIT_S:.0f} seconds "
            "of that, or by Ctrl+C, and what was recorded by then is kept",
        ),
        results=f"{RESULT}.ncu-rep",
        log=log,
        limit_s=_LIMIT_S,
        working="==PROF== Profiling ",
    )


BACKEND = Backend("ncu", "Nsight Compute", check, plan)
"""Registered by :mod:`stepscope.capture.backends.registry`."""
