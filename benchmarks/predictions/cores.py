"""Keeps the threads that launch kernels on one core that is quiet at that time.

A virtual core shares a physical one with whoever else computes on the machine, and a thread that is
woken on another core costs more there. On the virtual machines of the exam a step of many small
launches took 4.7 to 5.3 ms on one quiet core, and 5.3 to 8.5 ms where the system put it, from
process to process: too much for a ratio of two processes. All other threads, DataLoader workers and
new threads among them, go anywhere.
"""

from __future__ import annotations

import os
from functools import cache

from program import SMALL

from stepscope.capture.tries import one_core

PINS = hasattr(os, "sched_setaffinity") and not SMALL
EVERYWHERE = os.sched_getaffinity(0) if PINS else set()


@cache
def _others_go_anywhere() -> None:
    one_core.start_others_on(EVERYWHERE)


def on_a_quiet_core(rank: int = 0, ranks: int = 1) -> None:
    """Move what launches to the quickest core.

    Args:
        rank: of a job's process; each has cores of its own to choose from.
        ranks: of the job.
    """
    if PINS:
        _others_go_anywhere()
        one_core.bind(one_core.share_of(sorted(EVERYWHERE), rank, ranks))


def anywhere() -> None:
    """Let this thread run on all cores again."""
    if PINS:
        os.sched_setaffinity(0, EVERYWHERE)
