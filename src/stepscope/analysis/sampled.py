"""Lines of Python that samples of stacks saw, on the threads that enqueue work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Final

import numpy as np

from stepscope.analysis.lanes import Lane, Reader
from stepscope.analysis.owners import inside
from stepscope.intervals.algebra import Intervals
from stepscope.trace.frame import Frame, IntArray

MIN_SAMPLES: Final = 3
"""Fewer samples say nothing about where most of some time was spent."""

_LIBRARY_FILE: Final = re.compile(r"/(site|dist)-packages/|/lib/python\d|^<|torchinductor_")


class SampledLines:
    """The sampled lines of one process; everything is read when first asked.

    Args:
        lane: the device whose launching threads count.
        read: gives tables as frames.
    """

    def __init__(self, lane: Lane, read: Reader) -> None:
        self._lane = lane
        self._read = read

    def heaviest(self, intervals: Intervals) -> str | None:
        """The line that most samples inside some intervals show, if it is in a third of them.

        Args:
            intervals: a disjoint set.
        """
        samples = self._samples
        seen = self._code[inside(intervals, samples["time_ns"])]
        if len(seen) < MIN_SAMPLES:
            return None
        count = Counter(self.lines[code] for code in seen.tolist() if code >= 0)
        best = max(count, key=lambda line: (count[line], line), default=None)
        return best if best is not None and 3 * count[best] >= len(seen) else None

    def nearest(
        self, thread: int, at_ns: IntArray, place_of: Callable[[IntArray], IntArray]
    ) -> IntArray:
        """Index into ``lines`` of the sample of a thread that is nearest to each time; -1 for none.

        A sample speaks for half the time to its neighbours, as long as samples usually are apart,
        and for nothing beyond the annotation that it lies in.

        Args:
            thread: the thread.
            at_ns: the times.
            place_of: numbers of the annotations that are open at some times.
        """
        rows = np.flatnonzero(self._samples["thread_id"] == thread)
        none = np.full(len(at_ns), -1, np.int64)
        if len(rows) < MIN_SAMPLES:
            return none
        time = self._samples["time_ns"][rows]
        reach = int(np.median(np.diff(time))) // 2
        right = np.clip(np.searchsorted(time, at_ns), 0, len(time) - 1)
        left = np.maximum(right - 1, 0)
        closer = np.where(np.abs(time[left] - at_ns) <= np.abs(time[right] - at_ns), left, right)
        near = np.abs(time[closer] - at_ns) <= reach
        near &= place_of(at_ns) == place_of(time)[closer]
        return np.where(near, self._code[rows[closer]], none)

    @property
    def lines(self) -> list[str]:
        """Every line that was seen, as ``file:line``."""
        return self._lines[0]

    @cached_property
    def _samples(self) -> Frame:
        """Samples of the launching threads, in time order."""
        samples = self._read("cpu_sample", "process_id", "thread_id", "time_ns", "stack_id")
        if not len(samples):
            return samples
        mine = (samples["process_id"] == self._lane.process_id) & (samples["stack_id"] >= 0)
        return samples.take(mine & np.isin(samples["thread_id"], self._lane.host.launch_threads))

    @cached_property
    def _code(self) -> IntArray:
        """Index into ``lines`` of each sample; -1 where its stack has none."""
        stacks, codes = self._lines[1], self._lines[2]
        asked = self._samples["stack_id"]
        if not len(stacks):
            return np.full(len(asked), -1, np.int64)
        at = np.minimum(np.searchsorted(stacks, asked), len(stacks) - 1)
        return np.where(stacks[at] == asked, codes[at], -1)

    @cached_property
    def _lines(self) -> tuple[list[str], IntArray, IntArray]:
        """Lines; stacks that have one, ascending; and the index of each one's line.

        The line of a stack is its innermost one outside libraries.
        """
        frames = self._read("stack_frame", "stack_id", "depth", "module", "line")
        none = np.empty(0, np.int64)
        if not len(frames) or not len(self._samples):
            return [], none, none
        wanted = np.isin(frames["stack_id"], np.unique(self._samples["stack_id"]))
        wanted &= (frames["line"] > 0) & (frames["module"] >= 0)
        wanted &= frames.that("module", lambda file: not _LIBRARY_FILE.search(file))
        frames = frames.take(wanted)
        order = np.lexsort((frames["depth"], frames["stack_id"]))
        last = order[np.append(np.diff(frames["stack_id"][order]) != 0, True)[: len(order)]]
        place: dict[str, int] = {}
        codes = [
            place.setdefault(f"{frames.text('module', row)}:{frames['line'][row]}", len(place))
            for row in last.tolist()
        ]
        return list(place), frames["stack_id"][last], np.array(codes, np.int64)
