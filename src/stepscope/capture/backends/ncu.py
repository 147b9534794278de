"""Nsight Compute: what a few kernels do inside. It runs every kernel many times."""

from __future__ import annotations

from stepscope.capture.backends.base import Backend, Plan, Readiness, configuration, with_hook
from stepscope.capture.errors import CaptureError
from stepscope.capture.libraries import find_tool
from stepscope.capture.options import PROFILER_RANGE, Options

RESULT = "kernels"
_CONFIGURATION = "hook.conf"
_MOST_KERNELS = 50
"""Kernels of a capture: with the full set each takes some 40 runs, so more take very long."""


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


def plan(options: Options) -> Plan:
    """``ncu`` on the first kernels of the range."""
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
    command = [tool.path, "--set", "full", "--target-processes", "all", "--force-overwrite"]
    count = options.launch_count or _MOST_KERNELS
    if options.kernel:
        command += ["--kernel-name", options.kernel]
    if options.launch_skip:
        command += ["--launch-skip", str(options.launch_skip)]
    command += ["--launch-count", str(count)]
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
            f"the first {count} {'matching ' if options.kernel else ''}kernels of the range are "
            "recorded, each run many times",
        ),
        results=f"{RESULT}.ncu-rep",
    )


BACKEND = Backend("ncu", "Nsight Compute", check, plan)
"""Registered by :mod:`stepscope.capture.backends.registry`."""
