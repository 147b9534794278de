"""Keeps the threads that launch kernels on one core that is quiet at that time.

A virtual core shares a physical one with whoever else computes on the machine, and a thread that is
woken on another core costs more there. On the virtual machines of the exam a step of many
small launches took 4.7 to 5.3 ms on one quiet core, and 5.3 to 8.5 ms where the system put it, from
process to process: too much for a ratio of two processes. All other threads, DataLoader workers and
new threads among them, go anywhere.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from program import SMALL

TASKS = Path("/proc/self/task")
PINS = hasattr(os, "sched_setaffinity") and TASKS.exists()
EVERYWHERE = os.sched_getaffinity(0) if PINS else set()
TURNS = 20_000
"""Of the loop that is timed: a millisecond."""
ROUNDS = 4
"""A neighbour that computes now and then is met in one of them."""
AS_QUIET = 1.05
"""A core that takes so much longer than the quietest is kept."""


def launching() -> list[int]:
    """The main thread and those that run backward passes."""
    backward = [
        int(task.name)
        for task in TASKS.iterdir()
        if (task / "comm").read_text().startswith("pt_autograd")
    ]
    return [os.getpid(), *backward]


def loop_s() -> float:
    begin, total = time.perf_counter(), 0
    for i in range(TURNS):
        total += i * i
    return time.perf_counter() - begin


def slowest_loop_s(cores: list[int]) -> dict[int, float]:
    """The longest of some loops on each core, s; this thread stays on the last one."""
    found = dict.fromkeys(cores, 0.0)
    for _ in range(ROUNDS):
        for core in cores:
            os.sched_setaffinity(0, {core})
            loop_s()  # the core's clock and caches
            found[core] = max(found[core], loop_s())
    return found


def on_a_quiet_core(rank: int = 0, ranks: int = 1) -> int | None:
    """Move what launches to the quietest core.

    Args:
        rank: of a job's process; each has cores of its own to choose from.
        ranks: of the job.

    Returns:
        The core; None where threads cannot be moved.
    """
    mine = sorted(EVERYWHERE)[
        rank * len(EVERYWHERE) // ranks : (rank + 1) * len(EVERYWHERE) // ranks
    ]
    if SMALL or not mine:
        return None
    before = os.sched_getaffinity(0)
    took = slowest_loop_s(mine)
    quietest = min(mine, key=took.__getitem__)
    if len(before) == 1 and took.get(min(before), 1e9) <= AS_QUIET * took[quietest]:
        quietest = min(before)
    _move({quietest})
    return quietest


def anywhere() -> None:
    """Let what launches run on all cores again."""
    if PINS:
        _move(EVERYWHERE)


def _move(cores: set[int]) -> None:
    for thread in launching():
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(thread, cores)


def _free(frame: FrameType, event: str, value: object) -> None:
    """A new thread begins: on any core, whatever the one that started it has."""
    sys.setprofile(None)
    os.sched_setaffinity(0, EVERYWHERE)


if PINS and not SMALL:
    os.register_at_fork(after_in_child=lambda: os.sched_setaffinity(0, EVERYWHERE))
    threading.setprofile(_free)
