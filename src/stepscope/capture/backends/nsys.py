"""Nsight Systems, where it is installed."""

from __future__ import annotations

import re
import subprocess

from stepscope.capture.backends.base import (
    Backend,
    Plan,
    Readiness,
    configuration,
    path_for_tool,
    tool_or,
    with_hook,
)
from stepscope.capture.errors import CaptureError
from stepscope.capture.libraries import Tool, find_tool
from stepscope.capture.options import PROFILER_RANGE, Options

RESULT = "run"
_CONFIGURATION = "hook.conf"
_EVENTS_SINCE = (2025, 1)
"""Versions from here on know ``--cuda-event-trace``."""
_ASSUMED = (2025, 3)


def check(command: tuple[str, ...]) -> Readiness:
    """Is there an nsys that runs?"""
    tool = find_tool("nsys")
    if tool is None:
        return Readiness(
            False,
            "nsys is not installed",
            "install Nsight Systems from developer.nvidia.com/nsight-systems, or name it in "
            "STEPSCOPE_NSYS",
        )
    return Readiness(True, "ready", detail=f"{tool.path} {tool.text()}")


def plan(options: Options, shown: bool = False) -> Plan:
    """``nsys profile`` with the flags that its version knows."""
    remedy = check(options.command).remedy
    tool, note = tool_or("nsys", _ASSUMED, shown=shown, missing=remedy)
    for given, name in (
        (options.paused, "--paused (use nsys start and nsys stop)"),
        (bool(options.ring_s), "--ring"),
        (bool(options.max_bytes), "--max-size"),
        (options.gc, "--gc"),
        (options.waits, "--waits"),
        (options.sample_hz > 0, "--sample-hz"),
        (options.stacks, "--stacks"),
        (options.memory, "--memory"),
        (options.memory_snapshot, "--memory-snapshot"),
        (bool(options.ranks), "--ranks"),
    ):
        if given:
            raise CaptureError(f"the nsys back-end does not know {name}; use --backend collector")
    command = [tool.path, "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none"]
    command += [f"--cuda-graph-trace={options.graph}", "--force-overwrite=true"]
    command.append(f"--output={path_for_tool(options.output.resolve() / RESULT)}")
    if "memory" in options.record:
        command.append("--cuda-memory-usage=true")
    if "event" in options.record:
        if tool.version < _EVENTS_SINCE:
            raise CaptureError(
                f"nsys {tool.text()} does not record CUDA events; it needs 2025.1 or newer"
            )
        command.append("--cuda-event-trace=true")
    command += _operators(options, tool, assumed=bool(note))
    environment: dict[str, str] = {}
    files = {}
    end = "stop-shutdown" if options.stop_program else "stop"
    if options.steps or options.range == PROFILER_RANGE:
        command += ["--capture-range=cudaProfilerApi", f"--capture-range-end={end}"]
    elif options.range:
        command += ["--capture-range=nvtx", f"--capture-range-end={end}"]
        command.append(f"--nvtx-capture={options.range}")
        # names that the program did not register count as well
        environment["NSYS_NVTX_PROFILER_REGISTER_ONLY"] = "0"
    if options.delay_s:
        command.append(f"--delay={options.delay_s:g}")
    if options.duration_s:
        command.append(f"--duration={options.duration_s:g}")
        command.append(f"--kill={'sigterm' if options.stop_program else 'none'}")
    if options.steps:
        path = options.output.resolve() / _CONFIGURATION
        values: dict[str, object] = {
            "hook": "profiler",
            "steps": options.steps,
            "warmup": options.warmup,
            "ops": options.ops,
        }
        files[path] = configuration(values)
        environment = with_hook({**environment, "STEPSCOPE_CAPTURE": str(path)})
    return Plan(
        command=(*command, *options.command),
        environment=environment,
        files=files,
        notes=(note,) if note else (),
        results=f"{RESULT}.nsys-rep",
        outside=True,
    )


def _operators(options: Options, tool: Tool, *, assumed: bool) -> list[str]:
    """The flag for PyTorch's operators; none where the hook does it, in the recorded steps only."""
    if not options.ops or options.steps:
        return []
    if not assumed and not _knows(tool.path, "--pytorch"):
        raise CaptureError(
            f"nsys {tool.text()} does not record PyTorch's operators by itself; give --steps, too"
        )
    return ["--pytorch=autograd-shapes-nvtx"]


def _knows(program: str, option: str) -> bool:
    """Whether this nsys lists an option: they came and went with versions."""
    try:
        done = subprocess.run(
            [program, "profile", "--help"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return re.search(rf"(?m)^\s*{re.escape(option)}=", done.stdout) is not None


BACKEND = Backend("nsys", "Nsight Systems", check, plan)
"""Registered by :mod:`stepscope.capture.backends.registry`."""
