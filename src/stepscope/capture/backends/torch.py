"""torch.profiler, started and stopped by the hook: no change to the script."""

from __future__ import annotations

from pathlib import Path

from stepscope.capture.backends.base import (
    HOOK_CONFIGURATION,
    Backend,
    Plan,
    Readiness,
    configuration,
    refuse,
    with_hook,
)
from stepscope.capture.libraries import site_folders
from stepscope.capture.options import Options

STEPS, WARMUP = 10, 5
"""Recorded where --steps is not given: torch.profiler keeps everything in memory, so never all."""


def check(command: tuple[str, ...]) -> Readiness:
    """Has the program's Python a torch?"""
    for folder in site_folders(command):
        if (Path(folder) / "torch" / "__init__.py").exists():
            return Readiness(True, "ready", detail=f"{folder}/torch")
    return Readiness(
        False, "PyTorch was not found in the program's Python", "install PyTorch 2.1 or newer"
    )


def plan(options: Options, shown: bool = False) -> Plan:
    """The program itself, with a hook that records some optimizer steps."""
    refuse(
        options,
        "the torch back-end records optimizer steps and does not know {}; give --steps and "
        "--warmup, or use --backend collector",
        *("range", "paused", "delay_s", "duration_s", "ring_s", "record"),
        *("gc", "waits", "sample_hz"),
    )
    steps, warmup = options.steps or STEPS, options.warmup if options.steps else WARMUP
    path = options.output.resolve() / HOOK_CONFIGURATION
    values: dict[str, object] = {
        "hook": "torch",
        "steps": steps,
        "warmup": warmup,
        "settle": options.settle or not options.steps,
        "stacks": options.stacks,
        "memory": options.memory,
        "memory_snapshot": options.memory_snapshot,
        "output": options.output.resolve(),
        "ranks": f",{','.join(map(str, options.ranks))}," if options.ranks else "",
        "stop_program": options.stop_program,
    }
    return Plan(
        command=options.command,
        environment=with_hook({"STEPSCOPE_CAPTURE": str(path)}),
        files={path: configuration(values)},
        notes=(
            f"recording {steps} optimizer steps after {warmup}",
            *(
                [f"stepscope memory {options.output}/memory/* explains memory snapshots"]
                * options.memory_snapshot
            ),
        ),
        results="torch.rank*.json.gz",
    )


BACKEND = Backend("torch", "torch.profiler", check, plan)
"""Registered by :mod:`stepscope.capture.backends.registry`."""
