"""From a kernel to the operator, range, module and line of Python that launched it.

A kernel is launched by a CUDA call (correlation id); what was open on the calling thread at that
time is what launched it. A kernel of the backward pass is launched by autograd's thread; its
operator is linked to the operator of the forward pass by autograd, and so it gets the module and
the line of that one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.activity.device import GpuTimeline, Reader
from stepscope.activity.locations import SampledLines, Where, function_at, is_framework_function
from stepscope.activity.names import marking_steps
from stepscope.intervals import nest
from stepscope.intervals.distinct import among, distinct_values, with_inverse
from stepscope.trace.frame import BoolArray, FloatArray, Frame, IntArray
from stepscope.trace.text import LONGEST_JUDGED

OPERATOR_COLUMNS = (
    "id",
    "process_id",
    "thread_id",
    "start_ns",
    "end_ns",
    "name",
    "sequence_number",
    "forward_thread_id",
    "forward_start_ns",
    "input_shapes",
    "input_types",
)
MODULE_PREFIX = "nn.Module: "
_AUTOGRAD_RANGE = re.compile(r", (seq|op_id|sizes|input_op_ids) = .*$")
OF_BACKWARD = re.compile(r"^autograd::engine|Backward\d*$")
ENGINE = "autograd::engine::evaluate_function: "
_LINE = re.compile(r"^\S+ (.+:\d+)$", re.S)


@dataclass(frozen=True)
class Stack:
    """Nested intervals of one thread, to ask what was open at a time.

    Attributes:
        rows: rows of the table that the intervals come from.
        start: begins, ascending, outer first, ns.
        end: ends, ns.
        parent: position of the enclosing interval; -1 at the top.
    """

    rows: IntArray
    start: IntArray
    end: IntArray
    parent: IntArray

    def innermost(self, at: IntArray) -> IntArray:
        """Position of the innermost interval open at each time; -1 where none is."""
        if not len(self.start):
            return np.full(len(at), -1, np.int64)
        row = np.searchsorted(self.start, at, side="right").astype(np.int64) - 1
        pending = np.flatnonzero(row >= 0)
        while len(pending):
            pending = pending[self.end[row[pending]] < at[pending]]
            row[pending] = self.parent[row[pending]]
            pending = pending[row[pending] >= 0]
        return row

    @cached_property
    def root(self) -> IntArray:
        """Position of the outermost interval around each one."""
        root = np.arange(len(self.start))
        while True:
            up = self.parent[root]
            if (up < 0).all():
                return root
            root = np.where(up >= 0, up, root)


def stack_of(frame: Frame, rows: IntArray) -> Stack:
    """The stack of some rows of one thread, of a table with ``start_ns`` and ``end_ns``."""
    start, end = frame["start_ns"][rows], frame["end_ns"][rows]
    order = np.lexsort((-end, start))
    rows, start, end = rows[order], start[order], end[order]
    return Stack(rows, start, end, nest(start, end, np.zeros(len(rows), np.int64))[0])


class Attribution:
    """Who launched each operation of one device; read and computed when first asked.

    Every array has one value an operation of ``GPU.ops``.

    Args:
        gpu: the device.
        read: gives tables as frames.
        step_label: stem of the ranges that mark steps.
    """

    def __init__(self, gpu: GpuTimeline, read: Reader, step_label: str) -> None:
        self._gpu = gpu
        self._read = read
        self._step_label = step_label

    @cached_property
    def thread(self) -> IntArray:
        """Thread that launched it; -1 where unknown."""
        api, call = self._gpu.host.api, self._gpu.call
        if not len(api):
            return np.full(len(call), -1, np.int64)
        return np.where(call >= 0, api["thread_id"][np.maximum(call, 0)], -1)

    @cached_property
    def operators(self) -> Frame:
        """The process's operators, sorted by start."""
        return self._of_process(self._read("operator", *OPERATOR_COLUMNS))

    @cached_property
    def operator(self) -> IntArray:
        """Row of ``operators``: the innermost one at the launch; -1 for none."""
        return self._launched_in(self.operators)[0]

    @cached_property
    def outermost(self) -> IntArray:
        """Row of ``operators``: the outermost one at the launch; -1 for none."""
        return self._launched_in(self.operators)[1]

    @cached_property
    def forward(self) -> IntArray:
        """Row of ``operators``: that of the forward pass whose gradient is computed; -1 for none.

        Autograd's link (``forward_start_ns``) is taken from the innermost enclosing operator that
        has one; without any link, from the sequence number.
        """
        table = self.operators
        found = np.full(len(self._gpu.ops), -1, np.int64)
        if not len(table):
            return found
        linked = forward_rows(table)
        at = self.operator.copy()
        parent = self.parents
        open_ = at >= 0
        while open_.any():
            here = np.where(open_, linked[np.maximum(at, 0)], -1)
            found = np.where(here >= 0, here, found)
            at = np.where(open_ & (here < 0), parent[np.maximum(at, 0)], -1)
            open_ = at >= 0
        return found

    @cached_property
    def ranges(self) -> Frame:
        """The process's annotations, without those that mark steps."""
        ranges = self._gpu.host.ranges
        texts = ranges.texts.get("name", [])
        telling = ~np.append(marking_steps(texts, self._step_label), True)
        return ranges.take(telling[ranges["name"]]) if len(ranges) else ranges

    @cached_property
    def range(self) -> IntArray:
        """Row of ``ranges``: the innermost one at the launch; -1 for none.

        On the launching thread, else on the main thread, which waits while autograd's launches.
        """
        own = self._launched_in(self.ranges)[0]
        table = self.ranges
        if not len(table):
            return own
        main = np.flatnonzero(table["thread_id"] == self._gpu.host.main_thread)
        stack = stack_of(table, main)
        at = stack.innermost(self._gpu.enqueue_begin_ns)
        around = np.where(at >= 0, stack.rows[np.maximum(at, 0)], -1) if len(main) else own
        return np.where(own >= 0, own, around)

    @property
    def range_names(self) -> tuple[IntArray, list[str]]:
        """Code of the innermost range of each operation, -1 for none, and the ranges' names."""
        texts = [plain_range_name(text) for text in self.ranges.texts.get("name", [])]
        return name_codes(self.ranges, self.range), texts

    def of_ranges(self, weight: IntArray) -> tuple[FloatArray, list[str]]:
        """What each range launched, itself or in ranges nested in it, and the ranges' names.

        A range on a launching thread that is in none there is in that of the main thread, which
        waits meanwhile. Of ranges of one name in each other the outermost counts.

        Args:
            weight: what is added up, one value an operation.
        """
        table, (_, texts) = self.ranges, self.range_names
        held = np.zeros(len(texts))
        if not len(table):
            return held, texts
        above = self._range_parents
        plain = {text: code for code, text in reversed(list(enumerate(texts)))}
        name = np.array([plain[text] for text in texts], np.int64)[table["name"]]
        counts = _outermost_of_name(name, above)
        at, rows = self.range, np.arange(len(weight))
        while len(rows := rows[at >= 0]):
            at = at[at >= 0]
            counted = counts[at]
            np.add.at(held, name[at[counted]], weight[rows[counted]])
            at = above[at]
        return held, texts

    def ranges_around(self, operations: IntArray) -> tuple[IntArray, list[list[str]]]:
        """The set of ranges that each of some operations is launched in, and the names of each set.

        Args:
            operations: rows of ``GPU.ops``.
        """
        rows, which = with_inverse(self.range[operations])
        table, sets = self.ranges, []
        for row in rows.tolist():
            names: dict[str, None] = {}
            while row >= 0:
                names[plain_range_name(table.text("name", row))] = None
                row = int(self._range_parents[row])  # noqa: PLW2901
            sets.append(list(names))
        return which, sets

    @cached_property
    def _range_parents(self) -> IntArray:
        """Row of the range around each of ``ranges``, at its begin; -1 at the top."""
        table = self.ranges
        parents = nest(table["start_ns"], table["end_ns"], table["thread_id"])[0]
        main = np.flatnonzero(table["thread_id"] == self._gpu.host.main_thread)
        others = (parents < 0) & (table["thread_id"] != self._gpu.host.main_thread)
        others &= among(table["thread_id"], self._gpu.host.launch_threads)
        if not len(main) or not others.any():
            return parents
        stack = stack_of(table, main)
        inner = stack.innermost(table["start_ns"][others])
        parents = parents.copy()
        parents[others] = np.where(inner >= 0, stack.rows[np.maximum(inner, 0)], -1)
        return parents

    @property
    def operator_names(self) -> tuple[IntArray, list[str]]:
        """The same of the outermost operator."""
        texts = [plain_operator_name(text) for text in self.operators.texts.get("name", [])]
        return name_codes(self.operators, self.outermost), texts

    def of_operators(self, weight: IntArray) -> tuple[FloatArray, list[str]]:
        """What each outermost operator launched, itself or in those that it calls, and their names.

        Args:
            weight: what is added up, one value an operation.
        """
        codes, texts = self.operator_names
        rows = codes >= 0
        held = np.bincount(codes[rows], weights=weight[rows], minlength=len(texts))
        return held.astype(np.float64), texts

    @cached_property
    def python(self) -> Frame:
        """The process's Python functions, sorted by start."""
        return self._of_process(
            self._read("python_function", "process_id", "thread_id", "start_ns", "end_ns", "name")
        )

    @cached_property
    def source(self) -> IntArray:
        """Code of ``sources``: innermost function outside the framework; -1 for none.

        Where no function was traced, the line that the main thread's samples show at the launch.
        The line that a compiler says a kernel was made from comes before both: what launches a
        compiled program says nothing of its parts.
        """
        if not len(self.python):
            found = self._samples.at(self._gpu.enqueue_begin_ns, self._part)
        else:
            found = self._python_name(lambda text: not is_framework_function(text))
        compiled = self._compiled[0]
        return np.where(compiled >= 0, compiled + len(self._launching), found)

    @cached_property
    def _compiled(self) -> tuple[IntArray, list[str]]:
        """The line that each operation was compiled from, by the domain ``hlo``; -1 for none.

        Importers put a range with the operation's own times on its stream; its payload is the
        instruction's name and, behind a blank, ``file:line``.
        """
        ops = self._gpu.ops
        found = np.full(len(ops), -1, np.int64)
        if "hlo" not in self._read("range", "domain").texts.get("domain", []):
            return found, []
        columns = ("process_id", "device", "stream", "start_ns", "domain", "payload")
        ranges = self._read("range", *columns)
        mine = ranges.equals("domain", "hlo") & (ranges["process_id"] == self._gpu.process_id)
        ranges = ranges.take(mine & (ranges["device"] == self._gpu.device))
        lines = [
            match[1] if (match := _LINE.match(text[:LONGEST_JUDGED])) else ""
            for text in ranges.texts["payload"]
        ]
        names = _short_lines(lines)
        distinct = list(dict.fromkeys(name for name in names if name))
        code_of = np.array([distinct.index(n) if n else -1 for n in names] + [-1], np.int64)
        for stream in distinct_values(ranges["stream"]).tolist():
            of_stream = np.flatnonzero(ranges["stream"] == stream)
            asked = np.flatnonzero(ops["stream"] == stream)
            if not len(of_stream) or not len(asked):
                continue
            row = _exactly(ranges["start_ns"][of_stream], ops["start_ns"][asked])
            payload = ranges["payload"][of_stream[np.maximum(row, 0)]]
            found[asked] = np.where(row >= 0, code_of[payload], -1)
        return found, distinct

    @cached_property
    def module(self) -> IntArray:
        """Code of ``python`` names: innermost module; -1 for none."""
        return self._python_name(lambda text: text.startswith(MODULE_PREFIX))

    @cached_property
    def _samples(self) -> SampledLines:
        return SampledLines(self._gpu, self._read)

    def _part(self, at_ns: IntArray) -> IntArray:
        """The outermost annotation of the main thread at each time; -1 for none."""
        table = self.ranges
        if not len(table):
            return np.full(len(at_ns), -1, np.int64)
        stack = stack_of(table, np.flatnonzero(table["thread_id"] == self._gpu.host.main_thread))
        inner = stack.innermost(at_ns)
        if not len(stack.rows):
            return inner
        return np.where(inner >= 0, stack.root[np.maximum(inner, 0)], -1)

    @cached_property
    def sources(self) -> list[str]:
        """By code of ``source``: a traced function as ``step() train.py:99``, or a line."""
        return [*self._launching, *self._compiled[1]]

    @cached_property
    def _launching(self) -> list[str]:
        """Functions, or lines of samples, that launched operations."""
        if not len(self.python):
            return [line for line, _ in self._samples.lines]
        return [function_at(text) for text in self.python.texts["name"]]

    def source_text(self, code: int) -> str | None:
        """What a code of ``source`` stands for, see :attr:`sources`."""
        return self.sources[code] if code >= 0 else None

    def heaviest(self, rows: IntArray, weight: IntArray | None = None) -> Where:
        """Range, operator and Python function or line that hold most of some operations' time.

        Args:
            rows: rows of ``GPU.ops``.
            weight: what of each counts, ns; by default its length.

        Returns:
            Each None where no value holds a third of the time.
        """
        ops = self._gpu.ops
        if weight is None:
            weight = (ops["end_ns"] - ops["start_ns"])[rows]
        ranges = name_codes(self.ranges, self.range[rows])
        operators = name_codes(self.operators, self.outermost[rows])
        source = _top(self.source[rows], weight)
        range_ = _top(ranges, weight)
        operator = _top(operators, weight)
        text = self.source_text(source) if source is not None else None
        is_function = len(self.python) > 0 and (source or 0) < len(self._launching)
        return Where(
            range=self.ranges.texts["name"][range_] if range_ is not None else None,
            operator=plain_operator_name(self.operators.texts["name"][operator])
            if operator is not None
            else None,
            source=None if is_function else text,
            function=text if is_function else None,
        )

    @cached_property
    def parents(self) -> IntArray:
        """Row of the operator around each of ``operators``; -1 at the top."""
        table = self.operators
        return nest(table["start_ns"], table["end_ns"], table["thread_id"])[0]

    def _of_process(self, frame: Frame) -> Frame:
        if not len(frame):
            return frame
        return frame.take(frame["process_id"] == self._gpu.process_id)

    def _launched_in(self, table: Frame) -> tuple[IntArray, IntArray]:
        """Innermost and outermost row of a table that was open on the thread at the launch."""
        inner = np.full(len(self._gpu.ops), -1, np.int64)
        outer = inner.copy()
        if not len(table):
            return inner, outer
        at = self._gpu.enqueue_begin_ns
        for thread in self._gpu.host.launch_threads:
            mine = np.flatnonzero(self.thread == thread)
            stack = stack_of(table, np.flatnonzero(table["thread_id"] == thread))
            if not len(mine) or not len(stack.rows):
                continue
            found = stack.innermost(at[mine])
            inside = found >= 0
            inner[mine[inside]] = stack.rows[found[inside]]
            outer[mine[inside]] = stack.rows[stack.root[found[inside]]]
        return inner, outer

    def _python_name(self, holds: Callable[[str], bool]) -> IntArray:
        """Name code of the innermost function that satisfies a predicate; -1 for none.

        At the launch, or at the operator of the forward pass where one is linked.
        """
        table = self.python
        found = np.full(len(self._gpu.ops), -1, np.int64)
        if not len(table):
            return found
        table = table.take(table.that("name", holds))
        forward = self.forward
        at, thread = self._gpu.enqueue_begin_ns, self.thread
        if len(self.operators):
            linked = forward >= 0
            row = np.maximum(forward, 0)
            at = np.where(linked, self.operators["start_ns"][row], at)
            thread = np.where(linked, self.operators["thread_id"][row], thread)
        for number in distinct_values(thread).tolist():
            mine = np.flatnonzero(thread == number)
            stack = stack_of(table, np.flatnonzero(table["thread_id"] == number))
            if len(stack.rows):
                inner = stack.innermost(at[mine])
                name = table["name"][stack.rows[np.maximum(inner, 0)]]
                found[mine] = np.where(inner >= 0, name, -1)
        return found


def forward_rows(operators: Frame) -> IntArray:
    """The operator of the forward pass that each operator of the backward pass is linked to.

    By autograd's link (``forward_start_ns``), else by the sequence number; -1 for none.

    Args:
        operators: one process's, sorted by start.
    """
    if not len(operators):
        return np.empty(0, np.int64)
    start, sequence = operators["forward_start_ns"], operators["sequence_number"]
    is_backward = (operators["forward_thread_id"] > 0) | (start >= 0)
    if not is_backward.any():  # NVTX ranges of autograd tell the number only
        is_backward = operators.matches("name", OF_BACKWARD)
    linked = np.where(start >= 0, _exactly(operators["start_ns"], start), -1)
    first_of = np.full(max(int(sequence.max(initial=-1)), -1) + 2, -1, np.int64)
    ahead = np.flatnonzero((sequence >= 0) & ~is_backward)
    first_of[sequence[ahead]] = ahead  # of several the innermost, which began last
    by_sequence = np.where(is_backward & (sequence >= 0), first_of[sequence], -1)
    return np.where(linked >= 0, linked, by_sequence)


def plain_range_name(text: str) -> str:
    """A range's name without the sequence number and sizes that autograd's NVTX ranges carry."""
    head = text[:LONGEST_JUDGED]
    return _AUTOGRAD_RANGE.sub("", head) if " = " in head else text


def plain_operator_name(text: str) -> str:
    """An operator's name without what autograd's engine puts before it."""
    return text.removeprefix(ENGINE)


def _short_lines(lines: list[str]) -> list[str]:
    """``file:line`` without folders, where that tells the files apart."""
    short = {line: line.rsplit("/", 1)[-1] for line in lines}
    files: dict[str, set[str]] = {}
    for line, name in short.items():
        files.setdefault(name.rsplit(":", 1)[0], set()).add(line.rsplit(":", 1)[0])
    apart = {name for name, paths in files.items() if len(paths) == 1}
    return [short[line] if short[line].rsplit(":", 1)[0] in apart else line for line in lines]


def _exactly(ascending: IntArray, values: IntArray) -> IntArray:
    """Row that holds each value exactly; -1 where none does."""
    row = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.where(ascending[row] == values, row, -1)


def name_codes(frame: Frame, rows: IntArray) -> IntArray:
    """Code of the name of some rows of ranges or operators; -1 for none."""
    if not len(frame):
        return np.full(len(rows), -1, np.int64)
    return np.where(rows >= 0, frame["name"][np.maximum(rows, 0)], -1).astype(np.int64)


def _outermost_of_name(name: IntArray, parents: IntArray) -> BoolArray:
    """Rows around which no row has the same name."""
    found = np.ones(len(name), bool)
    at = parents.copy()
    while (at >= 0).any():
        found &= (at < 0) | (name[np.maximum(at, 0)] != name)
        at = np.where(at >= 0, parents[np.maximum(at, 0)], -1)
    return found


def _top(codes: IntArray, weight: IntArray) -> int | None:
    """The code that holds most of the weight, if it holds a third of it."""
    known = codes >= 0
    if not known.any():
        return None
    held = np.bincount(codes[known], weights=weight[known])
    best = int(np.argmax(held))
    return best if held[best] >= weight.sum() / 3 else None
