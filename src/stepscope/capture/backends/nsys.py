"""Nsight Systems, where it is installed."""

from __future__ import annotations

import re

from stepscope.capture.backends.base import (
    Backend,
    Plan,
    Readiness,
    path_for_tool,
    refuse,
    steps_by_hook,
    tool_help,
    tool_or,
    tool_readiness,
)
from stepscope.capture.errors import CaptureError
from stepscope.capture.libraries import Tool
from stepscope.capture.options import PROFILER_RANGE, Options

RESULT = "run"
_EVENTS_SINCE = (2025, 1)
"""Versions from here on know ``--cuda-event-trace``."""
_ASSUMED = (2025, 3)


def check(command: tuple[str, ...]) -> Readiness:
    """Is there an nsys that runs?"""
    return tool_readiness(
        "nsys",
        "install Nsight Systems from developer.nvidia.com/nsight-systems, or name it in "
        "STEPSCOPE_NSYS",
    )


def plan(options: Options, shown: bool = False) -> Plan:
    """``nsys profile`` with the flags that its version knows."""
    remedy = check(options.command).remedy
    tool, note = tool_or("nsys", _ASSUMED, shown=shown, missing=remedy)
    unknown = "the nsys back-end does not know {}; use --backend collector"
    if options.paused:
        raise CaptureError(unknown.format("--paused (use nsys start and nsys stop)"))
    refuse(
        options,
        unknown,
        *("ring_s", "max_bytes", "gc", "waits", "sample_hz", "stacks"),
        *("memory", "memory_snapshot", "ranks"),
    )
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
    environment, files = steps_by_hook(options, environment)
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
    known = assumed or re.search(r"(?m)^\s*--pytorch=", tool_help(tool.path, "profile"))
    if not known:
        raise CaptureError(
            f"nsys {tool.text()} does not record PyTorch's operators by itself; give --steps, too"
        )
    return ["--pytorch=autograd-shapes-nvtx"]


BACKEND = Backend("nsys", "Nsight Systems", check, plan)
"""Registered by :mod:`stepscope.capture.backends.registry`."""
