"""Where in the program some time was spent: range, operator and Python function."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analysis import vocabulary as words
from stepscope.analysis.lanes import Lane, Reader
from stepscope.analysis.sampled_lines import SampledLines
from stepscope.analysis.shapes import marking_steps
from stepscope.intervals import stab_innermost
from stepscope.trace.frame import Frame, IntArray


@dataclass(frozen=True)
class Where:
    """The place that holds most of some time; None where the trace cannot tell.

    Attributes:
        range: innermost annotation, leaving out those that mark steps.
        operator: outermost framework operator.
        source: innermost Python function outside the framework, as ``file:line``.
    """

    range: str | None
    operator: str | None
    source: str | None


_SAMPLE = 20_000
_FRAMEWORK_FILE = ("torch/", "<built-in", "threading.py", "contextlib.py", "nn.Module:", "<frozen")


class Places:
    """Looks places up in one process's host tables (read once).

    Args:
        lane: the device whose host side is asked.
        read: gives tables as frames.
        step_label: stem of the ranges that mark steps.
    """

    def __init__(self, lane: Lane, read: Reader, step_label: str) -> None:
        self._lane = lane
        main = lane.host.main_thread
        ranges = lane.host.ranges
        keep = ranges["thread_id"] == main
        texts = ranges.texts.get("name", [])
        telling = ~np.append(marking_steps(texts, step_label), True)
        self._ranges = ranges.take(keep & telling[ranges["name"]]) if len(ranges) else ranges
        operators = read("operator", "process_id", "thread_id", "start_ns", "end_ns", "name")
        # while autograd's thread launches the main thread waits: at any time one of them drives
        self._operators = [
            self._of_thread(operators, thread) for thread in lane.host.launch_threads
        ]
        functions = self._of_thread(
            read("python_function", "process_id", "thread_id", "start_ns", "end_ns", "name"), main
        )
        if len(functions):
            functions = functions.take(
                functions.that("name", lambda text: not is_framework_function(text))
            )
        self._functions = functions
        self._samples = SampledLines(lane, read)

    def of(self, start_ns: IntArray, end_ns: IntArray) -> Where:
        """The places that hold most of the given intervals' time."""
        middle = (start_ns + end_ns) // 2
        weight = end_ns - start_ns
        source = _heaviest([self._functions], middle, weight)
        return Where(
            range=_heaviest([self._ranges], middle, weight),
            operator=_heaviest(self._operators, middle, weight),
            source=file_and_line(source) if source else self._sampled(start_ns, end_ns),
        )

    def of_waits(self, begin_ns: int, end_ns: int) -> str | None:
        """The line whose synchronising calls on the main thread wait longest, by samples."""
        api = self._lane.host.api
        if len(self._functions) or not len(api):
            return None
        rows = api.matches("name", words.SYNC_CALL)
        rows &= api["thread_id"] == self._lane.host.main_thread
        rows &= (api["start_ns"] >= begin_ns) & (api["start_ns"] < end_ns)
        found = self._samples.heaviest(api["start_ns"][rows], api["end_ns"][rows])
        return found[0] if found else None

    def _sampled(self, start_ns: IntArray, end_ns: IntArray) -> str | None:
        """The line that samples of the main thread show, where no function was traced."""
        found = None if len(self._functions) else self._samples.heaviest(start_ns, end_ns)
        return found[0] if found else None

    def _of_thread(self, frame: Frame, thread: int) -> Frame:
        if not len(frame):
            return frame
        return frame.take(
            (frame["process_id"] == self._lane.process_id) & (frame["thread_id"] == thread)
        )


def _heaviest(threads: list[Frame], at: IntArray, weight: IntArray) -> str | None:
    """The name whose innermost intervals hold most of the weight, if they hold a third of it.

    Args:
        threads: intervals of each thread with ``name``, all of one table.
        at: times, ascending, ns.
        weight: weight of each time.
    """
    if not len(at):
        return None
    if len(at) > _SAMPLE:  # a run of neighbouring steps shows the same places as all of them
        begin = (len(at) - _SAMPLE) // 2
        at, weight = at[begin : begin + _SAMPLE], weight[begin : begin + _SAMPLE]
    held: dict[str, float] = {}
    for frame in threads:
        if not len(frame):
            continue
        near = (frame["start_ns"] <= at.max()) & (frame["end_ns"] >= at.min())
        close = frame.take(near)
        row = stab_innermost(close["start_ns"], close["end_ns"], at)
        inside = row >= 0
        if inside.any():
            sums = np.bincount(close["name"][row[inside]], weights=weight[inside])
            for code in np.flatnonzero(sums).tolist():
                name = close.texts["name"][code]
                held[name] = held.get(name, 0.0) + float(sums[code])
    best = max(held, key=lambda name: held[name], default=None)
    return best if best is not None and held[best] >= weight.sum() / 3 else None


def is_framework_function(text: str) -> bool:
    """Whether a traced Python function belongs to the framework or the interpreter."""
    return any(mark in text for mark in _FRAMEWORK_FILE)


def file_and_line(function: str) -> str:
    """``train.py(118): step`` as ``train.py:118``."""
    head, _, _ = function.partition("):")
    file, bracket, line = head.rpartition("(")
    return f"{file}:{line}" if bracket and line.isdigit() else function
