"""Processes of a run, found by the environment that they inherit."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

VARIABLE = "STEPSCOPE_CAPTURE"
"""Environment variable that names the collector's configuration; every process of a run has it."""


def configuration_of(process: int) -> Path | None:
    """The configuration that a process runs under; None where it runs under none."""
    try:
        data = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return None
    for entry in data.split(b"\0"):
        if entry.startswith(VARIABLE.encode() + b"="):
            return Path(os.fsdecode(entry.split(b"=", 1)[1]))
    return None


def members(configuration: Path) -> list[int]:
    """Processes that run under a configuration, this one left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            process = int(entry.name)
            if configuration_of(process) == configuration and not is_zombie(process):
                found.append(process)
    return found


def children(process: int) -> list[int]:
    """Direct children of a process."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            found += [int(text) for text in (task / "children").read_text().split()]
    return found


def is_zombie(process: int) -> bool:
    """Whether a process has ended, though its parent has not asked how yet."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
