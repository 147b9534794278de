"""Nsight Compute: what a few kernels do inside. It runs every kernel many times."""

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
from stepscope.capture.options import PROFILER_RANGE, Options

RESULT = "kernels"
_LOG = "ncu.log"
_MOST_KERNELS = 20
"""Kernels of a capture by an ncu that cannot tell launches apart: more take very long."""
_ASSUMED = (2025, 3)
"""Version that a command is shown for where there is no ncu."""
_WARM_LAUNCHES = 5
"""Launches of each kernel and shape to let pass: caches, clocks and autotuning settle."""
_LIMIT_S = 180.0
"""Seconds of profiling, at half a second to a second a launch."""


def check(command: tuple[str, ...]) -> Readiness:
    """Is there an ncu that runs?"""
    return tool_readiness(
        "ncu",
        "install Nsight Compute from developer.nvidia.com/nsight-compute, or the CUDA toolkit",
    )


def plan(options: Options, shown: bool = False) -> Plan:
    """``ncu`` on one launch of each kernel and shape, after warm-up or in the range."""
    remedy = check(options.command).remedy
    tool, note = tool_or("ncu", _ASSUMED, shown=shown, missing=remedy)
    refuse(
        options,
        "the ncu back-end does not know {}",
        *("paused", "delay_s", "duration_s", "ring_s", "max_bytes", "ranks", "ranges", "record"),
        *("gc", "waits", "sample_hz", "stacks", "memory", "memory_snapshot", "ops"),
    )
    log = options.output.resolve() / _LOG
    command = [tool.path, "--set", "full", "--target-processes", "all", "--force-overwrite"]
    command += ["--log-file", path_for_tool(log)]
    # whether filters can be applied to each kernel and launch shape separately
    apart = bool(note) or "per-launch-config" in tool_help(tool.path)
    filters, metadata = _filters(options, apart)
    command += filters
    command += ["--export", path_for_tool(options.output.resolve() / RESULT)]
    if options.steps or options.range == PROFILER_RANGE:
        command += ["--profile-from-start", "off"]
    elif options.range:
        name, _, domain = options.range.partition("@")
        command += ["--nvtx", "--nvtx-include", f"{domain}@{name}/" if domain else f"{name}/"]
    environment, files = steps_by_hook(options, {})
    return Plan(
        command=(*command, *options.command),
        environment=environment,
        files=files,
        notes=(
            *([note] if note else []),
            f"{metadata}; each is run some 40 times. The program is ended after {_LIMIT_S:.0f} "
            "seconds of that, or by Ctrl+C, and what was recorded by then is kept",
        ),
        outside=True,
        results=f"{RESULT}.ncu-rep",
        log=log,
        limit_s=_LIMIT_S,
        working="==PROF== Profiling ",
    )


def _filters(options: Options, apart: bool) -> tuple[list[str], str]:
    """The flags that choose launches, and what they choose.

    Args:
        options: what is wanted.
        apart: whether this ncu applies counts to each kernel and launch shape separately.
    """
    in_a_range = bool(options.steps or options.range)
    what = "matching " if options.kernel else ""
    where = " of the range" if in_a_range else ""
    named = ["--kernel-name", options.kernel] if options.kernel else []
    if options.launch_count:  # counted in a capture of the same program
        skip = ["--launch-skip", str(options.launch_skip)] if options.launch_skip else []
        after = f" after {options.launch_skip:,}" if options.launch_skip else ""
        count = f"{options.launch_count} {what}kernels{where}"
        counted = ["--launch-count", str(options.launch_count), *skip]
        return [*named, *counted], f"the first {count}{after} are recorded"
    warm = 0 if in_a_range else options.launch_skip or _WARM_LAUNCHES
    if apart:
        if not re.search(r"[\^$]", options.kernel):
            # by function names it takes kernels for one that differ in template arguments only;
            # what is anchored is meant for function names
            named += ["--kernel-name-base", "demangled"]
        counted = ["--filter-mode", "per-launch-config", "--launch-count", "1"]
        counted += ["--launch-skip", str(warm)] if warm else []
        metadata = f"one launch of each {what}kernel and launch shape is recorded"
        return [*named, *counted], metadata + (f", after {warm} that are let pass" if warm else "")
    most = ["--launch-count", str(_MOST_KERNELS)]
    if not warm:
        return [*named, *most], f"the first {_MOST_KERNELS} {what}kernels of the range are recorded"
    if ":" not in options.kernel.removeprefix("regex:"):  # which parts the identifier
        chosen = ["--kernel-id", f"::{options.kernel}:{warm + 1}"]
        metadata = f"launch {warm + 1} of each {what}kernel is recorded, of {_MOST_KERNELS} at most"
        return [*chosen, *most], metadata
    counted = [*most, "--launch-skip", str(warm)]
    return [*named, *counted], f"{_MOST_KERNELS} {what}kernels are recorded, after the first {warm}"


BACKEND = Backend("ncu", "Nsight Compute", check, plan)
"""Registered by :mod:`stepscope.capture.backends.registry`."""
