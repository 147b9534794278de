"""Idle time of the device that is not the program's: work, or anything, that was not recorded.

A recording that begins while the device is busy does not hold what was launched before. The first
recorded operation of such a stream starts long after its launch, and nothing is recorded on the
device in between: the stream was busy. SGLang's overlap schedule makes this the usual case.

And a recording may have holes: seconds between two islands of GPU work in which nothing of the
program is recorded at all. That it computed there is only one of the possibilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline, Reader
from stepscope.intervals import complement, subtract, union
from stepscope.intervals.algebra import EMPTY, Intervals
from stepscope.intervals.distinct import among, with_first
from stepscope.trace.frame import BoolArray, IntArray

BUSY: Final = "a stream was busy with work that was launched before the recording began"
HOLE: Final = "nothing of the program was recorded"

LONG_AFTER_NS: Final = 1_000_000
"""A launch takes effect within some 10 us on a device that is free."""

HOLE_NS: Final = 1_000_000_000
"""Silence from here on may be a hole in the record; host work of a step is shorter."""

_MOST: Final = 0.9
_HALF: Final = 0.5


@dataclass(frozen=True)
class Unrecorded:
    """Stretches of idle time that nothing recorded accounts for, in time order.

    Attributes:
        start_ns: begins.
        end_ns: ends.
        is_hole: whether nothing of the program was recorded; else a stream was busy.
        op: row of ``GPU.ops`` that began then or next.
        waiting: row of ``host.api`` in which the host waited for most of it; -1 for none.
    """

    start_ns: IntArray
    end_ns: IntArray
    is_hole: BoolArray
    op: IntArray
    waiting: IntArray

    @property
    def intervals(self) -> Intervals:
        """The stretches, which are disjoint."""
        return self.start_ns, self.end_ns


def find_unrecorded(gpu: GpuTimeline, read: Reader, *, one_step: bool) -> Unrecorded:
    """Find them on one device.

    Args:
        gpu: the device.
        read: gives tables as frames.
        one_step: whether no repetition was found, so that the whole capture counts as one step.
    """
    busy = gpu.busy
    gaps = complement(busy, int(busy[0][0]), int(busy[1][-1])) if len(busy[0]) else EMPTY
    begin, end, waiting = _busy_before(gpu, gaps)
    holes = subtract(_holes(gpu, read, gaps, one_step=one_step), (begin, end))
    start = np.concatenate((begin, holes[0]))
    until = np.concatenate((end, holes[1]))
    order = np.argsort(start, kind="stable")
    is_hole = np.arange(len(start)) >= len(begin)
    waits = np.concatenate((waiting, np.full(len(holes[0]), -1, np.int64)))
    op = np.searchsorted(gpu.ops["start_ns"], until[order], side="left").astype(np.int64)
    return Unrecorded(start[order], until[order], is_hole[order], op, waits[order])


def _busy_before(gpu: GpuTimeline, gaps: Intervals) -> tuple[IntArray, IntArray, IntArray]:
    """Gaps that end with the first operation of a stream, which was launched long before.

    Returns:
        Since when it waited, when it began, and the row of the call in which the host waited.
    """
    api, ops = gpu.host.api, gpu.ops
    none = np.empty(0, np.int64)
    start, end = gaps
    if not len(api) or not len(start):
        return none, none, none
    op = np.searchsorted(ops["start_ns"], end, side="left").astype(np.int64)
    first = np.zeros(len(ops), bool)
    first[with_first(ops["stream"])[1]] = True
    called = gpu.enqueue_end_ns[op]
    begin = np.maximum(start, called)
    # a graph takes time of its own to begin, and a copy is first staged by the host
    hits = first[op] & ops.equals("kind", "kernel", "memset")[op] & (ops["graph_id"][op] < 0)
    hits &= (gpu.call[op] >= 0) & (end - begin >= LONG_AFTER_NS)
    hits &= end - begin >= _MOST * (end - called)
    waits = api.matches("name", words.SYNC_CALL) | api.matches("name", words.COPY_CALL)
    rows = np.flatnonzero(waits & among(api["thread_id"], gpu.host.launch_threads))
    found = []
    for gap in np.flatnonzero(hits).tolist() if len(rows) else ():  # one a stream at most
        until = np.minimum(api["end_ns"][rows], end[gap])
        held = until - np.maximum(api["start_ns"][rows], begin[gap])
        best = int(np.argmax(held))
        if held[best] >= _HALF * (end[gap] - begin[gap]):
            found.append((gap, int(rows[best])))
    which = np.array([gap for gap, _ in found], np.int64)
    return begin[which], end[which], np.array([call for _, call in found], np.int64)


def _holes(gpu: GpuTimeline, read: Reader, gaps: Intervals, *, one_step: bool) -> Intervals:
    """Long parts of gaps in which nothing of the process is recorded.

    Where nothing of the host is recorded on one side of it either, it is the recorder's doing. So
    may it be where calls are all that is recorded and nothing repeats; between the steps of a loop
    it is more likely that the host was at work.
    """
    if not (gaps[1] - gaps[0] >= HOLE_NS).any():
        return EMPTY
    host = gpu.host
    seen = [(f["start_ns"], f["end_ns"]) for f in (host.api, host.os_calls, host.ranges)]
    for table in ("operator", "python_function"):
        frame = read(table, "process_id", "start_ns", "end_ns")
        mine = frame["process_id"] == gpu.process_id
        seen.append((frame["start_ns"][mine], frame["end_ns"][mine]))
    samples = read("cpu_sample", "process_id", "time_ns")
    at = samples["time_ns"][samples["process_id"] == gpu.process_id]
    seen.append((at, at + 1))
    starts, ends = (np.concatenate(column) for column in zip(*seen, strict=True))
    if not len(starts):
        return EMPTY
    begin, end = subtract(gaps, union(starts, ends))
    only_calls = len(starts) == len(host.api)
    hits = (starts.min() >= end) | (ends.max() <= begin) | np.bool_(only_calls and one_step)
    hits &= end - begin >= HOLE_NS
    return begin[hits], end[hits]
