"""Host events as a tree: operators, annotations, calls, Python functions; with their kernels.

The rules are those of ``torch.profiler``'s ``key_averages``, so that the same capture gives the
same times:

- An event's parent is the innermost event of its thread that holds it. Asynchronous events (ranges
  that another thread may close) have no parent and no children.
- A CUDA call belongs to the thread of the operator that the profiler linked it to.
- A kernel belongs to the operator that its call is linked to. Where a source has no such links
  (Nsight Systems, own captures), to what was open on the calling thread.
- An event that is its parent's only child and has its name is merged with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from stepscope.activity.device import Reader, launching_calls
from stepscope.activity.locations import function_at, is_framework_function
from stepscope.intervals import nest
from stepscope.intervals.distinct import among, distinct_rows, with_inverse
from stepscope.kernels.attribution import MODULE_PREFIX, forward_rows
from stepscope.kernels.categories import PRODUCTS, classify
from stepscope.trace.frame import BoolArray, Frame, IntArray
from stepscope.trace.text import LONGEST_JUDGED

KINDS: Final = ("operator", "annotation", "call", "python")
"""Kinds of host events."""
OPERATOR, ANNOTATION, CALL, PYTHON = range(4)

_STEP: Final = re.compile(r"^ProfilerStep#")
_VERSION: Final = re.compile(r"(?<=[a-zA-Z])_v\d{4,}$")
_OPERATOR_RANGE: Final = re.compile(r", (seq|op_id|sizes) = [\[\d]")
_FILTERED: Final = frozenset(
    {
        "profiler::_record_function_enter",
        "profiler::_record_function_enter_new",
        "profiler::_record_function_exit",
        "aten::is_leaf",
        "aten::output_nr",
        "aten::_version",
    }
)
"""Helpers that torch's table leaves out, too: their time counts as that of what called them."""
_TENSOR_CORES: Final = ("tf32", "16bit", "8bit", "tensor")

_OPERATOR_COLUMNS: Final = (
    *("id", "process_id", "thread_id", "start_ns", "end_ns", "name", "external_id"),
    *("sequence_number", "forward_thread_id", "forward_start_ns"),
    *("input_shapes", "input_types", "concrete_inputs"),
)
_RANGE_COLUMNS: Final = ("kind", "process_id", "thread_id", "start_ns", "end_ns", "name")
_CALL_COLUMNS: Final = (
    *("api", "process_id", "thread_id", "start_ns", "end_ns", "raw_name", "correlation_id"),
    "operator_external_id",
)
_GPU_COLUMNS: Final = (
    *("id", "kind", "process_id", "device", "stream", "correlation_id", "start_ns", "end_ns"),
    "name",
)


@dataclass(frozen=True)
class CallTree:
    """The host events of one trace; arrays have one value an event.

    Attributes:
        kind: index into ``KINDS``.
        name: code of ``texts``.
        texts: names.
        row: row of the event in its table: ``operators`` for an operator; -1 for the others.
        group: number of its process and thread; events nest within one.
        process: operating-system process.
        thread: operating-system thread; of a call that of the operator that it is linked to.
        start_ns: begin.
        end_ns: end.
        parent: the event around it; -1 at the top.
        depth: events around it before equal ones were merged, so that parents come first.
        asynchronous: whether it takes part in no nesting.
        operators: the operators of the trace.
        gpu: operations of the devices.
        launcher: event that each of these belongs to: an operator or annotation, else the call
            that launched it; -1 where that is not recorded.
    """

    kind: IntArray
    name: IntArray
    texts: list[str]
    row: IntArray
    group: IntArray
    process: IntArray
    thread: IntArray
    start_ns: IntArray
    end_ns: IntArray
    parent: IntArray
    depth: IntArray
    asynchronous: BoolArray
    operators: Frame
    gpu: Frame
    launcher: IntArray

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def duration_ns(self) -> IntArray:
        """Time from begin to end: what an event takes with all that it calls."""
        return self.end_ns - self.start_ns

    @cached_property
    def self_cpu_ns(self) -> IntArray:
        """Time less that of the direct children; 0 for asynchronous events."""
        own = self.without_children(self.duration_ns)
        return np.where(self.asynchronous, 0, own)

    @cached_property
    def gpu_ns(self) -> IntArray:
        """Length of each operation of the devices."""
        return self.gpu["end_ns"] - self.gpu["start_ns"] if len(self.gpu) else _NONE

    @cached_property
    def by_call(self) -> BoolArray:
        """Operations of the devices whose call stands in no operator or annotation."""
        kind = np.append(self.kind, -1)[self.launcher]
        found: BoolArray = np.equal(kind, CALL)
        return found

    def linked(self) -> CallTree:
        """The same without what no operator or annotation launched, as torch counts."""
        return replace(self, launcher=np.where(self.by_call, -1, self.launcher))

    @cached_property
    def self_device_ns(self) -> IntArray:
        """Time of the kernels, copies and memsets that belong to the event itself."""
        return self.of_launches(self.gpu_ns)

    @cached_property
    def device_ns(self) -> IntArray:
        """The same with all events inside."""
        return self.with_children(self.self_device_ns)

    @cached_property
    def self_kernels(self) -> IntArray:
        """Number of these operations."""
        return self.of_launches(np.ones(len(self.gpu), np.int64))

    @cached_property
    def kernels(self) -> IntArray:
        """The same with all events inside."""
        return self.with_children(self.self_kernels)

    @cached_property
    def eligible_ns(self) -> IntArray:
        """Time of GEMMs, convolutions and attention of known arithmetic, in it and all inside."""
        return self.with_children(self.of_launches(np.where(self._eligible, self.gpu_ns, 0)))

    @cached_property
    def tensor_core_ns(self) -> IntArray:
        """Time of those of them that run on tensor cores, as their names tell."""
        on = self._eligible & among(self._maths, _TENSOR_CORES)
        return self.with_children(self.of_launches(np.where(on, self.gpu_ns, 0)))

    @cached_property
    def categories(self) -> list[str]:
        """Kernel category of each distinct name of ``gpu``."""
        return [classify(text).category for text in self.gpu.texts["name"]] if len(self.gpu) else []

    @cached_property
    def gpu_category(self) -> IntArray:
        """Code of ``CATEGORIES`` of each operation of the devices."""
        if not len(self.gpu):
            return _NONE
        codes = np.array(
            [CATEGORIES.index(kernel_category) for kernel_category in self.categories] + [0]
        )
        found = codes[self.gpu["name"]]
        for kind in ("graph", "memcpy", "memset"):
            found = np.where(self.gpu.equals("kind", kind), CATEGORIES.index(kind), found)
        return found

    @cached_property
    def _eligible(self) -> BoolArray:
        gemms = among(
            self.gpu_category, [CATEGORIES.index(kernel_category) for kernel_category in PRODUCTS]
        )
        known: BoolArray = np.not_equal(self._maths, "")
        return gemms & known

    @cached_property
    def _maths(self) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
        texts = [classify(text).math for text in self.gpu.texts["name"]] if len(self.gpu) else []
        found = np.array([*texts, ""], dtype=str)
        return found[self.gpu["name"]] if len(self.gpu) else found[:0]

    def of_launches(self, values: IntArray) -> IntArray:
        """Sum of a value of the devices' operations over those that belong to each event."""
        known = self.launcher >= 0
        held = np.bincount(self.launcher[known], weights=values[known], minlength=len(self))
        return np.rint(held).astype(np.int64)

    def with_children(self, values: IntArray) -> IntArray:
        """Sum of a value over each event and all events inside."""
        total = values.copy()
        for rows in reversed(self._levels[1:]):
            inside = rows[self.parent[rows] >= 0]
            np.add.at(total, self.parent[inside], total[inside])
        return total

    def without_children(self, values: IntArray) -> IntArray:
        """A value of each event less that of its direct children."""
        inside = np.flatnonzero(self.parent >= 0)
        own = values.copy()
        np.subtract.at(own, self.parent[inside], values[inside])
        return own

    def inherited(self, values: IntArray) -> IntArray:
        """A value of each event, or where it is negative that of the nearest event around it."""
        found = values.copy()
        for rows in self._levels[1:]:
            missing = rows[(found[rows] < 0) & (self.parent[rows] >= 0)]
            found[missing] = found[self.parent[missing]]
        return found

    def nearest(self, wanted: BoolArray) -> IntArray:
        """The nearest event of a kind at or around each event; -1 for none."""
        return self.inherited(np.where(wanted, np.arange(len(self)), -1))

    def named(self, holds: BoolArray) -> BoolArray:
        """Which events have one of some names.

        Args:
            holds: one value a text.
        """
        hits: BoolArray = holds[self.name] if len(self) else np.zeros(0, bool)
        return hits

    @cached_property
    def forward(self) -> IntArray:
        """The operator of the forward pass whose gradient an event helps compute; -1 for none."""
        node = np.full(max(len(self.operators), 1), -1, np.int64)
        mine = np.flatnonzero(self.kind == OPERATOR)
        node[self.row[mine]] = mine
        found = np.full(len(self), -1, np.int64)
        if len(mine):
            target = self._forward_rows[self.row[mine]]
            found[mine] = np.where(target >= 0, node[np.maximum(target, 0)], -1)
        return self.inherited(found)

    @cached_property
    def _forward_rows(self) -> IntArray:
        return forward_rows(self.operators)

    @cached_property
    def module(self) -> IntArray:
        """Code of the innermost module of the model around each event, or its forward operator."""
        holds = np.array([text.startswith(MODULE_PREFIX) for text in self.texts] or [False])
        return self._python_name(holds)

    @cached_property
    def program(self) -> IntArray:
        """The innermost Python function outside the framework around each event; -1 for none."""
        holds = np.array([not is_framework_function(t[:LONGEST_JUDGED]) for t in self.texts]
                         or [False])  # fmt: skip
        return self.nearest((self.kind == PYTHON) & self.named(holds))

    @cached_property
    def source(self) -> IntArray:
        """Code of the function outside the framework that called each event or its forward one."""
        return self._of_forward(np.where(self.program >= 0, self.name[self.program], -1))

    def stack(self, frames: int) -> IntArray:
        """Codes of the functions outside the framework around each event, the innermost first.

        Args:
            frames: columns of the answer; -1 where a stack is shorter.
        """
        at = self._of_forward(self.program)
        columns = []
        for _ in range(frames):
            known = at >= 0
            columns.append(np.where(known, self.name[np.maximum(at, 0)], -1))
            above = np.where(known, self.parent[np.maximum(at, 0)], -1)
            at = np.where(above >= 0, self.program[np.maximum(above, 0)], -1)
        return np.stack(columns, axis=1)

    @cached_property
    def range(self) -> IntArray:
        """Code of the innermost annotation around each event.

        Where its own thread has none open, that of the main thread, which waits while autograd's
        thread runs the backward pass.
        """
        marks = (self.kind == ANNOTATION) & ~self.asynchronous
        nearest = self.nearest(marks)
        found = np.where(nearest >= 0, self.name[np.maximum(nearest, 0)], -1)
        for process in np.flatnonzero(np.bincount(self._process_code)).tolist():
            mine = self._process_code == process
            held = np.bincount(self.group[mine & marks], weights=self.duration_ns[mine & marks])
            alone = np.flatnonzero(mine & (found < 0))
            if not held.any() or not len(alone):
                continue
            main = np.flatnonzero(mine & marks & (self.group == int(np.argmax(held))))
            order = main[np.lexsort((-self.end_ns[main], self.start_ns[main]))]
            at = np.searchsorted(self.start_ns[order], self.start_ns[alone], side="right") - 1
            row = np.where(at >= 0, order[np.maximum(at, 0)], -1)
            pending = np.flatnonzero(row >= 0)
            while len(pending):
                pending = pending[self.end_ns[row[pending]] < self.start_ns[alone[pending]]]
                above = self.parent[row[pending]]
                above = np.where(above >= 0, nearest[np.maximum(above, 0)], -1)
                row[pending] = above
                pending = pending[above >= 0]
            found[alone] = np.where(row >= 0, self.name[np.maximum(row, 0)], -1)
        return found

    @cached_property
    def category(self) -> IntArray:
        """Code of ``CATEGORIES``: what most of the device time of an event's own kernels is.

        A call counts as what it stands in; -1 where an event launched nothing itself.
        """
        known = np.flatnonzero(self.launcher >= 0)
        found = np.full(len(self), -1, np.int64)
        if len(known):
            key = self.launcher[known] * len(CATEGORIES) + self.gpu_category[known]
            pairs, inverse = with_inverse(key)
            held = np.bincount(inverse, weights=self.gpu_ns[known])
            event, category = pairs // len(CATEGORIES), pairs % len(CATEGORIES)
            order = np.lexsort((held, event))
            found[event[order]] = category[order]  # the last one written holds most
        calls = self.kind == CALL
        around = np.maximum(self.parent, 0)
        for _ in range(2):  # a driver's call lies in a runtime's, which lies in an operator
            found = np.where(calls & (found < 0) & (self.parent >= 0), found[around], found)
        return found

    @cached_property
    def _process_code(self) -> IntArray:
        return with_inverse(self.process)[1]

    def _python_name(self, holds: BoolArray) -> IntArray:
        at = self._of_forward(self.nearest((self.kind == PYTHON) & self.named(holds)))
        return np.where(at >= 0, self.name[np.maximum(at, 0)], -1)

    def _of_forward(self, values: IntArray) -> IntArray:
        """A value of each event: that of its forward operator where it has one."""
        ahead = self.forward
        return np.where(ahead >= 0, values[np.maximum(ahead, 0)], values)

    @cached_property
    def _levels(self) -> list[IntArray]:
        """Events by depth."""
        order = np.argsort(self.depth, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.depth))[:-1]) if len(order) else [order]

    def source_text(self, code: int) -> str:
        """A Python function as ``step() train.py:99``."""
        return function_at(self.texts[code])


_NONE: Final = np.empty(0, np.int64)

CATEGORIES: Final = (
    *("matmul", "attention", "convolution", "elementwise", "copy", "reduction", "softmax"),
    *("normalisation", "index", "dropout", "optimizer", "sort", "random", "loss", "recurrent"),
    *("pooling", "communication", "compiled", "graph", "other", "memcpy", "memset"),
)
"""Kernel categories, and what the copy engine does."""


def call_tree(read: Reader, *, python: bool = True) -> CallTree:
    """The host events of one trace.

    Args:
        read: gives tables as frames.
        python: whether traced Python functions are events, too; else their time is part of what
            called them. PyTorch 2.14 counts them as events, 2.11 did not.
    """
    operators = _kept_operators(read("operator", *_OPERATOR_COLUMNS))
    ranges = read("range", *_RANGE_COLUMNS)
    ranges = ranges.take(ranges.equals("kind", "annotation", "pushpop", "startend"))
    if len(operators):  # annotations that hold an operator's name and sizes are those operators
        ranges = ranges.take(~ranges.matches("name", _OPERATOR_RANGE))
    calls = read("api_call", *_CALL_COLUMNS)
    calls = calls.take(calls.equals("api", "runtime", "driver"))
    functions = read("python_function", "process_id", "thread_id", "start_ns", "end_ns", "name")
    functions = functions if python else functions.slice(0, 0)
    gpu = read("gpu_op", *_GPU_COLUMNS)
    parts = (operators, ranges, calls, functions)
    sizes = [len(part) for part in parts]
    kind = np.repeat(np.arange(len(KINDS)), sizes)
    first = np.cumsum([0, *sizes])

    def joined(column: str) -> IntArray:
        return np.concatenate([p[column] if len(p) else _NONE for p in parts]).astype(np.int64)

    process, thread, start, end = map(joined, ("process_id", "thread_id", "start_ns", "end_ns"))
    names, texts = _names(parts)
    link = _links(operators, calls)
    if link is not None:
        at_calls = slice(first[CALL], first[CALL] + sizes[CALL])
        owner = operators["thread_id"][np.maximum(link, 0)]
        thread[at_calls] = np.where(link >= 0, owner, thread[at_calls])
    asynchronous = np.zeros(len(kind), bool)
    if len(ranges):
        asynchronous[first[1] : first[2]] = ranges.equals("kind", "startend")
    group = distinct_rows([process, thread])[1] if len(kind) else _NONE
    # what is asynchronous nests in nothing: each is alone in a group of its own
    alone = np.where(asynchronous, len(kind) + np.arange(len(kind)), group)
    parent, depth = nest(start, end, alone)
    call = launching_calls(gpu, calls) if len(gpu) else _NONE
    itself = np.where(call >= 0, first[CALL] + call, -1)
    if link is not None:
        launcher = np.where(call >= 0, link[np.maximum(call, 0)], -1) if len(gpu) else _NONE
    else:
        launcher = itself
        # without any event of the host nothing launches
        for _ in range(int(depth.max(initial=0)) + 1 if len(kind) else 0):
            inner = (launcher >= 0) & (kind[np.maximum(launcher, 0)] >= CALL)
            if not inner.any():
                break
            launcher = np.where(inner, parent[np.maximum(launcher, 0)], launcher)
    launcher = np.where(launcher >= 0, launcher, itself)
    row = np.where(kind == OPERATOR, np.arange(len(kind)), -1)
    return _merged(
        CallTree(
            *(kind, names, texts, row, group, process, thread, start, end, parent, depth),
            *(asynchronous, operators, gpu, launcher),
        )
    )


def _kept_operators(operators: Frame) -> Frame:
    return operators.take(~operators.that("name", _FILTERED.__contains__)) if len(operators) else (
        operators
    )  # fmt: skip


def _names(parts: tuple[Frame, ...]) -> tuple[IntArray, list[str]]:
    """One code a name, whichever table it stands in; numbered steps of a profiler are one name."""
    place: dict[str, int] = {}
    columns = []
    for part in parts:
        if not len(part):
            continue
        column = "name" if "name" in part else "raw_name"
        codes = [place.setdefault(_name(text), len(place)) for text in part.texts[column]]
        codes.append(place.setdefault("", len(place)))
        columns.append(np.array(codes)[part[column]])
    return (np.concatenate(columns) if columns else _NONE), list(place)


def _name(text: str) -> str:
    """An event's name as torch's table has it, and without the version that Nsight appends."""
    return "ProfilerStep*" if _STEP.match(text) else _VERSION.sub("", text)


def _links(operators: Frame, calls: Frame) -> IntArray | None:
    """Row of the operator that each call is linked to; None where the source has no links."""
    if not len(operators) or not len(calls):
        return None
    span = int(max(operators["external_id"].max(), calls["operator_external_id"].max())) + 2
    processes = with_inverse(np.concatenate((operators["process_id"], calls["process_id"])))[1]
    known = operators["external_id"] > 0
    asked = calls["operator_external_id"] > 0
    if not known.any() or not asked.any():
        return None
    key = processes[: len(operators)] * span + operators["external_id"]
    wanted = processes[len(operators) :] * span + calls["operator_external_id"]
    rows = np.flatnonzero(known)
    order = rows[np.argsort(key[rows], kind="stable")]
    at = np.minimum(np.searchsorted(key[order], wanted), len(order) - 1)
    found = np.where(asked & (key[order][at] == wanted), order[at], -1)
    return found if (found >= 0).any() else None


def _merged(tree: CallTree) -> CallTree:
    """The tree with every only child that has its parent's name merged into the parent."""
    parent, n = tree.parent, len(tree)
    inside = parent >= 0
    children = np.bincount(parent[inside], minlength=n) if n else _NONE
    around = np.maximum(parent, 0)
    gone = inside & (tree.name == tree.name[around]) & (children[around] == 1) if n else inside
    if not gone.any():
        return tree
    into = np.where(gone, parent, np.arange(n))
    while gone[into].any():
        into = into[into]
    kept = np.flatnonzero(~gone)
    place = np.full(n + 1, -1, np.int64)
    place[kept] = np.arange(len(kept))
    moved = place[into]
    up = np.where(parent[kept] >= 0, moved[np.maximum(parent[kept], 0)], -1)
    launcher = tree.launcher
    return CallTree(
        kind=tree.kind[kept],
        name=tree.name[kept],
        texts=tree.texts,
        row=tree.row[kept],
        group=tree.group[kept],
        process=tree.process[kept],
        thread=tree.thread[kept],
        start_ns=tree.start_ns[kept],
        end_ns=tree.end_ns[kept],
        parent=up,
        depth=tree.depth[kept],
        asynchronous=tree.asynchronous[kept],
        operators=tree.operators,
        gpu=tree.gpu,
        launcher=np.where(launcher >= 0, moved[np.maximum(launcher, 0)], -1),
    )
