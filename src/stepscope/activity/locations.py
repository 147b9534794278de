"""Where in the program some time was spent: range, operator, Python function and line.

A sample says which line each thread executed at one moment. A stretch of time that holds samples is
shared out among them; where few samples fall on what is asked about, a stretch without one belongs
to the nearest sample within a period.
The line is that of the innermost frame of the program itself, outside of installed packages, of
Python's library and of the recorder; where all of a stack is installed, outside of PyTorch.

Profilers trace a function from its first line to its return: what they tell is the function, by
the line of its ``def``, never the line that took the time. Samples of stacks tell that line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final

import numpy as np

from stepscope.activity.device import GpuTimeline, Reader
from stepscope.activity.names import marking_steps
from stepscope.intervals import stab_innermost, union
from stepscope.intervals.distinct import among, distinct_rows
from stepscope.trace.frame import Frame, IntArray

_RECORDER: Final = re.compile(r"stepscope/capture/hook/|^<|/sitecustomize\.py$")
_PYTHON: Final = re.compile(r"(^|/)lib(64)?/python3(\.\d+)?/(?!(site|dist)-packages/)")
_INSTALLED: Final = re.compile(r"/(site|dist)-packages/")
_FRAMEWORK: Final = re.compile(r"/(torch|triton|numpy|jax|lightning|pytorch_lightning)/")
_THIRD: Final = 1 / 3
_ENOUGH: Final = 8
"""Samples inside of intervals from which on they alone tell where the program was meanwhile."""


class SampledLines:
    """Looks lines up in the samples of one process's main thread; read when first asked.

    Args:
        gpu: the device whose process is asked.
        read: gives tables as frames.
    """

    def __init__(self, gpu: GpuTimeline, read: Reader) -> None:
        self._gpu = gpu
        self._read = read

    @cached_property
    def lines(self) -> list[tuple[str, str]]:
        """(``file:line``, function) by code; files as short as tells them apart."""
        return self._found[2]

    @property
    def samples(self) -> tuple[IntArray, IntArray]:
        """Times of the samples, ascending, and the code of each one's line; -1 for none."""
        return self._found[0], self._found[1]

    @property
    def period_ns(self) -> int:
        """Time from one sample to the next."""
        return self._period_ns

    def at(self, time_ns: IntArray, part: Callable[[IntArray], IntArray]) -> IntArray:
        """Code of the line at each time; -1 where no sample is near or none tells a line.

        Args:
            time_ns: the times.
            part: gives the part of the program that each of some times lies in: a sample from
                another part, such as the forward pass beside the optimizer's first kernel, tells
                nothing.
        """
        times, codes, _ = self._found
        found = np.full(len(time_ns), -1, np.int64)
        if not len(times):
            return found
        part_of, part_at = part(times), part(time_ns)
        distance = np.full(len(time_ns), self._period_ns, np.int64)
        after = np.searchsorted(times, time_ns)
        for row in (after - 1, after):
            near = np.clip(row, 0, len(times) - 1)
            away = np.abs(times[near] - time_ns)
            better = (row == near) & (away <= distance) & (part_of[near] == part_at)
            found = np.where(better, codes[near], found)
            distance = np.where(better, away, distance)
        return found

    def heaviest(self, start_ns: IntArray, end_ns: IntArray) -> tuple[str, str] | None:
        """The line and function that hold most of the intervals' time, if they hold a third of it.

        Args:
            start_ns: begins of the intervals.
            end_ns: their ends.
        """
        times, codes, lines = self._found
        length = end_ns - start_ns
        if not len(times) or not length.sum():
            return None
        first, past = np.searchsorted(times, start_ns), np.searchsorted(times, end_ns, "right")
        inside = past > first
        share = np.where(inside, length / np.maximum(past - first, 1), 0.0)
        steps = np.zeros(len(times) + 1)
        np.add.at(steps, first, share)
        np.subtract.at(steps, past, share)
        weight = np.cumsum(steps)[:-1]
        asked = length
        if int((past - first).sum()) >= _ENOUGH:
            # samples fall on intervals by chance: those that none fell on were spent as the others
            asked = length[inside]
        else:
            near = self._nearest((start_ns + end_ns) // 2)
            short = ~inside & (near >= 0)
            np.add.at(weight, near[short], length[short])
        known = codes >= 0
        if not known.any():
            return None
        held = np.bincount(codes[known], weights=weight[known], minlength=len(lines))
        best = int(np.argmax(held))
        return lines[best] if held[best] >= _THIRD * asked.sum() else None

    def _nearest(self, time_ns: IntArray) -> IntArray:
        """Row of the nearest sample; -1 where it is further away than a period."""
        times = self._found[0]
        after = np.minimum(np.searchsorted(times, time_ns), len(times) - 1)
        before = np.maximum(after - 1, 0)
        nearer = np.abs(times[before] - time_ns) <= np.abs(times[after] - time_ns)
        row = np.where(nearer, before, after)
        return np.where(np.abs(times[row] - time_ns) <= self._period_ns, row, -1)

    @cached_property
    def _period_ns(self) -> int:
        times = self._found[0]
        return int(np.median(np.diff(times))) if len(times) > 1 else 0

    @cached_property
    def _found(self) -> tuple[IntArray, IntArray, list[tuple[str, str]]]:
        """Times of the samples, the code of each one's line, and the lines by code."""
        nothing = np.empty(0, np.int64), np.empty(0, np.int64), list[tuple[str, str]]()
        frames = self._read("stack_frame", "stack_id", "depth", "function", "module", "line")
        if not len(frames) or not (frames["line"] > 0).any():
            return nothing  # stacks of native code have no lines
        samples = self._read("cpu_sample", "process_id", "thread_id", "time_ns", "stack_id")
        mine = samples["process_id"] == self._gpu.process_id
        mine &= samples["thread_id"] == self._gpu.host.main_thread
        samples = samples.take(mine & (samples["stack_id"] >= 0))
        if not len(samples):
            return nothing
        row_of = _own_frames(frames)
        places = [row_of.get(stack, -1) for stack in samples["stack_id"].tolist()]
        rows = np.array(places, np.int64)
        columns = [frames[name][rows] for name in ("module", "line", "function")]
        first, code = distinct_rows(columns)
        named = np.stack([column[first] for column in columns])
        modules = frames.texts["module"]
        short = _short_names({modules[int(m)] for m in named[0] if m >= 0})
        lines = [
            (f"{short[modules[int(m)]]}:{int(n)}", frames.texts["function"][int(f)])
            if m >= 0
            else ("", "")
            for m, n, f in named.T
        ]
        codes = np.where(rows >= 0, code.reshape(-1), -1).astype(np.int64)
        order = np.argsort(samples["time_ns"], kind="stable")
        return samples["time_ns"][order], codes[order], lines


def _own_frames(frames: Frame) -> dict[int, int]:
    """Row of the frame that tells the line, by stack; stacks without one are left out."""
    modules = frames.texts["module"]
    rank_of = np.array([_rank(module) for module in modules] + [0], np.int64)
    rank = np.where(frames["line"] > 0, rank_of[frames["module"]], 0)
    # a stack's best frame comes last: the program's own before installed ones, inner before outer
    order = np.lexsort((frames["depth"], rank, frames["stack_id"]))
    stacks = frames["stack_id"][order]
    last = np.append(np.flatnonzero(stacks[1:] != stacks[:-1]), len(stacks) - 1)
    best = order[last]
    return {int(frames["stack_id"][row]): int(row) for row in best.tolist() if int(rank[row]) > 0}


def _rank(module: str) -> int:
    """2 for a file of the program, 1 for an installed one, 0 for one that tells nothing."""
    if _RECORDER.search(module) or _PYTHON.search(module):
        return 0
    if _INSTALLED.search(module):
        return 0 if _FRAMEWORK.search(module) else 1
    return 2


def _short_names(paths: Iterable[str]) -> dict[str, str]:
    """Each path's last parts, as many as tell it from all others."""
    parts = {path: PurePosixPath(path).parts for path in paths}
    found: dict[str, str] = {}
    depth = 1
    while left := [path for path in parts if path not in found]:
        ends = Counter("/".join(own[-depth:]) for own in parts.values())
        for path in left:
            name = "/".join(parts[path][-depth:])
            if ends[name] == 1 or depth >= len(parts[path]):
                found[path] = name
        depth += 1
    return found


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
_NEARLY_ALL: Final = 0.95

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
        gpu: the device whose host side is asked.
        read: gives tables as frames.
        step_label: stem of the ranges that mark steps.
        window: begin and end of the steady steps, ns. A range that holds nearly all of their time
            and of their launches is no place in them; a function by that name is where they are.
    """

    def __init__(
        self, gpu: GpuTimeline, read: Reader, step_label: str, window: tuple[int, int]
    ) -> None:
        self._gpu = gpu
        main = gpu.host.main_thread
        ranges = gpu.host.ranges
        keep = ranges["thread_id"] == main
        texts = ranges.texts.get("name", [])
        telling = ~np.append(marking_steps(texts, step_label), True)
        self._ranges = ranges.take(keep & telling[ranges["name"]]) if len(ranges) else ranges
        operators = read("operator", "process_id", "thread_id", "start_ns", "end_ns", "name")
        # while autograd's thread launches the main thread waits: at any time one of them drives
        self._operators = [self._of_thread(operators, thread) for thread in gpu.host.launch_threads]
        functions = self._of_thread(
            read("python_function", "process_id", "thread_id", "start_ns", "end_ns", "name"), main
        )
        if len(functions):
            functions = functions.take(
                functions.that("name", lambda text: not is_framework_function(text))
            )
        launched = np.sort(gpu.enqueue_begin_ns)
        launched = launched[slice(*np.searchsorted(launched, window))]
        self._ranges = _without_wrappers(self._ranges, window, launched)
        self._functions = functions
        self._samples = SampledLines(gpu, read)

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
            (frame["process_id"] == self._gpu.process_id) & (frame["thread_id"] == thread)
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


def _without_wrappers(frame: Frame, window: tuple[int, int], launched: IntArray) -> Frame:
    """The intervals whose name does not hold nearly all of a window's time and launches.

    What holds all of the time but few launches (a loader that starves the step) stays.

    Args:
        frame: intervals with ``name``.
        window: its begin and end, ns.
        launched: times of the launches in it, ascending, ns.
    """
    if not len(frame) or not len(launched):
        return frame
    begin, end = (np.clip(frame[name], *window) for name in ("start_ns", "end_ns"))
    held = np.bincount(frame["name"] + 1, weights=np.maximum(end - begin, 0))
    wrappers = []
    for code in (np.flatnonzero(held >= _NEARLY_ALL * (window[1] - window[0])) - 1).tolist():
        rows = frame["name"] == code
        start, stop = union(begin[rows], end[rows])
        inside = np.searchsorted(launched, stop) - np.searchsorted(launched, start)
        time = int((stop - start).sum())
        if time >= _NEARLY_ALL * (window[1] - window[0]) and (
            int(inside.sum()) >= _NEARLY_ALL * len(launched)
        ):
            wrappers.append(code)
    return frame.take(~among(frame["name"], wrappers)) if wrappers else frame


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
