"""Where in the program some time was spent: range, operator, Python function and line.

Profilers trace a function from its first line to its return: what they tell is the function, by
the line of its ``def``, never the line that took the time. Samples of stacks tell that line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity.device import Lane, Reader
from stepscope.activity.sampled_lines import SampledLines
from stepscope.activity.shapes import marking_steps
from stepscope.intervals import stab_innermost
from stepscope.trace.frame import Frame, IntArray


@dataclass(frozen=True)
class Where:
    """The place that holds most of some time; None where the trace cannot tell.

    Attributes:
        range: innermost annotation, leaving out those that mark steps.
        operator: outermost framework operator.
        source: innermost line of Python outside libraries that samples saw, as ``file:line``.
        function: innermost Python function outside the framework, as ``step() train.py:99`` where
            99 is the line of its ``def``.
    """

    range: str | None
    operator: str | None
    source: str | None
    function: str | None = None


_SAMPLE = 20_000

_FRAMEWORK_FUNCTION: Final = re.compile(
    r"^torch/|/torch/(nn|_\w+|autograd|utils|optim|distributed|cuda|amp|ao|fx|jit|functional|profiler"
    r"|overrides|random|serialization|func|export|compiler|library|backends|distributions"
    r"|multiprocessing|nested|accelerator)[/.]|^<built-in|threading\.py|contextlib\.py|^nn\.Module:"
    r"|^<frozen|torchinductor_|^triton/|-packages/triton/|^torch\.|^<string>"
)
_TRACED: Final = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<name>.*)$")


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
        function = _heaviest([self._functions], middle, weight)
        return Where(
            range=_heaviest([self._ranges], middle, weight),
            operator=_heaviest(self._operators, middle, weight),
            source=self._sampled(start_ns, end_ns),
            function=function_at(function) if function else None,
        )

    def _sampled(self, start_ns: IntArray, end_ns: IntArray) -> str | None:
        """The line that samples of the main thread show, if they show one for a third."""
        found = self._samples.heaviest(start_ns, end_ns)
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
    return _FRAMEWORK_FUNCTION.search(text) is not None


def function_at(traced: str) -> str:
    """``train.py(99): step`` as ``step() train.py:99``: a function, by the line of its ``def``.

    The code of a module has no such line.
    """
    parts = _TRACED.match(traced)
    if parts is None:
        return traced
    if parts["name"] == "<module>":
        return f"<module> {parts['file']}"
    return f"{parts['name']}() {parts['file']}:{parts['line']}"
