"""Which host events and device operations of a trace are wanted: all, or the steady steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.activity.device import Reader
from stepscope.jobs.view import JobView
from stepscope.operators.calltree import CallTree
from stepscope.trace.frame import BoolArray


@dataclass(frozen=True)
class Source:
    """One trace whose host events are wanted.

    Attributes:
        read: gives its tables.
        window_ns: host time in which events must begin; None for all.
        steps: steps in this window.
        process_id: the process whose events are wanted; None for all.
    """

    read: Reader
    window_ns: tuple[int, int] | None = None
    steps: int = 0
    process_id: int | None = None


def whole_sources(reads: Sequence[Reader]) -> list[Source]:
    """All of some traces."""
    return [Source(read) for read in reads]


def steady_sources(job: JobView) -> list[Source]:
    """The steady steps of a job, by the host's time: of several devices of a process the first."""
    found: dict[tuple[int, int], Source] = {}
    for device in job.devices:
        e = device.explanation
        begin = int(e.steps.begin_ns[e.first])
        last = e.last + 1
        end = int(e.steps.begin_ns[last]) if last < len(e.steps) else int(e.steps.end_ns)
        key = device.trace_rank, e.gpu.process_id
        if key not in found:
            source = Source(device.read, (begin, end), e.last - e.first + 1, e.gpu.process_id)
            found[key] = source
    return list(found.values())


def in_scope(tree: CallTree, source: Source) -> tuple[BoolArray, BoolArray]:
    """Which events, and which operations of the devices, are wanted."""
    if source.window_ns is None:
        return np.ones(len(tree), bool), np.ones(len(tree.gpu), bool)
    begin, end = source.window_ns
    wanted = (tree.start_ns >= begin) & (tree.start_ns < end)
    if source.process_id is not None:
        wanted &= tree.process == source.process_id
    if not len(tree.gpu):
        return wanted, np.zeros(0, bool)
    start = tree.gpu["start_ns"]
    alone = (start >= begin) & (start < end)
    if source.process_id is not None:
        alone &= tree.gpu["process_id"] == source.process_id
    return wanted, np.where(tree.launcher >= 0, np.append(wanted, False)[tree.launcher], alone)
