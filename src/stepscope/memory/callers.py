"""Who allocated: operator, module and line of Python, and in which phase of the step.

A profiler's trace tells by the operators and functions that were open on the allocating thread; a
snapshot by the stack that it kept of every allocation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from math import prod

import numpy as np

from stepscope.activity.locations import function_at, is_framework_function
from stepscope.intervals.distinct import distinct_values, with_inverse
from stepscope.kernels.attribution import (
    ENGINE,
    MODULE_PREFIX,
    OPERATOR_COLUMNS,
    plain_operator_name,
    stack_of,
)
from stepscope.memory.history import History, Reader
from stepscope.trace.frame import BoolArray, Frame, IntArray
from stepscope.trace.shapes import item_bytes, shapes_of, types_of


class Phase(IntEnum):
    """What the thread was doing."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    ZERO_GRAD = 3
    SETUP = 4
    """A model is made or moved."""
    OUTSIDE = 5
    """No operator, module or optimizer is open."""


@dataclass(frozen=True)
class Caller:
    """Texts about one allocation; empty where nothing tells."""

    operator: str = ""
    module: str = ""
    line: str = ""


@dataclass
class Callers:
    """Phase and place of every event of a history.

    Attributes:
        phase: of each event, a ``Phase``.
        scope: which outermost operator was open at each event; -1 for none. Two events with the
            same number happened inside the same call of an operator.
        uploads: events inside an operator that copied from the host.
        optimizer: name of the optimizer's class; empty where unknown.
        parameter_bytes: bytes of the gradients that one backward pass accumulated, by the shapes
            of autograd's accumulation; 0 where no shapes are recorded.
        forward_ns: when the operator of the forward pass began whose gradient an event belongs to;
            -1 for none.
        of_weights: events that cast or copy a parameter in the forward pass.
        layers: begin and end, ns, of modules of one class that follow one another; one row a layer
            and step.
        codes: position in ``known`` of who caused each event.
        known: distinct callers.
    """

    phase: IntArray
    scope: IntArray
    uploads: BoolArray
    optimizer: str = ""
    parameter_bytes: int = 0
    forward_ns: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    of_weights: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    layers: IntArray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    codes: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    known: list[Caller] = field(default_factory=list)

    def of(self, event: int) -> Caller:
        """Who an event belongs to."""
        return self.known[self.codes[event]] if event >= 0 else Caller()


_OPTIMIZER = re.compile(r"Optimizer\.(step|zero_grad)#(\w+)")


def from_operators(history: History, read: Reader) -> Callers:
    """Callers by what was open on the allocating thread."""
    events = history.events
    count = len(events)
    operators = read("operator", *OPERATOR_COLUMNS)
    ranges = read("range", "process_id", "thread_id", "start_ns", "end_ns", "name")
    python = read("python_function", "thread_id", "start_ns", "end_ns", "name")
    inner = np.full(count, -1, np.int64)
    outer = inner.copy()
    marked, module, line = inner.copy(), inner.copy(), inner.copy()
    names = [plain_operator_name(text) for text in operators.texts.get("name", [])]
    optimizer_codes = {
        code: found
        for code, text in enumerate(ranges.texts.get("name", []))
        if (found := _OPTIMIZER.search(text))
    }
    is_optimizer = _codes_in(ranges, optimizer_codes)
    is_module = _codes_in(python, {c for c, t in _texts(python) if t.startswith(MODULE_PREFIX)})
    is_own = _codes_in(
        python,
        {c for c, t in _texts(python)
         if not t.startswith(MODULE_PREFIX) and not is_framework_function(t)},
    )  # fmt: skip
    for thread in distinct_values(events["thread_id"]).tolist():
        rows = np.flatnonzero(events["thread_id"] == thread)
        at = history.time_ns[rows]
        stack = stack_of(operators, np.flatnonzero(operators["thread_id"] == thread))
        place = stack.innermost(at)
        good = place >= 0
        inner[rows[good]] = stack.rows[place[good]]
        outer[rows[good]] = stack.rows[stack.root[place[good]]]
        for table, chosen, into in (
            (ranges, is_optimizer, marked), (python, is_module, module), (python, is_own, line)
        ):  # fmt: skip
            _open_at(table, chosen & (table["thread_id"] == thread), at, rows, into)
    forward_ns = _through_forward(operators, python, outer, (is_module, module), (is_own, line))
    phase = np.full(count, Phase.OUTSIDE, np.int64)
    phase[inner >= 0] = Phase.FORWARD
    engine = _codes_in(operators, {c for c, t in _texts(operators) if t.startswith(ENGINE)})
    if len(operators):
        phase[(outer >= 0) & engine[np.maximum(outer, 0)]] = Phase.BACKWARD
    optimizer = ""
    for code, found in optimizer_codes.items():
        here = (marked >= 0) & (ranges["name"][np.maximum(marked, 0)] == code)
        phase[here] = Phase.OPTIMIZER if found[1] == "step" else Phase.ZERO_GRAD
        if found[1] == "step":
            optimizer = found[2]
    codes, callers = _callers(
        [
            (operators, inner, plain_operator_name),
            (python, module, lambda text: text.removeprefix(MODULE_PREFIX)),
            (python, line, function_at),
        ]
    )
    return Callers(
        phase,
        outer,
        _uploads(read, operators, outer, names),
        optimizer,
        _accumulated(operators, names),
        forward_ns,
        _of_weights(operators, names, history),
        layers_of(operators, python),
        codes,
        callers,
    )


def _texts(frame: Frame) -> list[tuple[int, str]]:
    return list(enumerate(frame.texts.get("name", [])))


def _codes_in(frame: Frame, codes: object) -> BoolArray:
    """Rows whose name is one of some codes."""
    chosen = np.zeros(len(frame.texts.get("name", [])) + 1, np.bool_)
    chosen[list(codes)] = True  # type: ignore[call-overload]
    return np.asarray(chosen[frame["name"]]) if len(frame) else np.zeros(0, np.bool_)


def _open_at(table: Frame, chosen: BoolArray, at: IntArray, rows: IntArray, into: IntArray) -> None:
    stack = stack_of(table, np.flatnonzero(chosen))
    place = stack.innermost(at)
    good = place >= 0
    into[rows[good]] = stack.rows[place[good]]


def _through_forward(
    operators: Frame, python: Frame, outer: IntArray, *found: tuple[BoolArray, IntArray]
) -> IntArray:
    """Give what autograd allocates the module and line of the operator of the forward pass.

    Returns:
        When that operator began, for each event; -1 for none.
    """
    begun = np.full(len(outer), -1, np.int64)
    linked = np.flatnonzero(operators["forward_start_ns"] >= 0) if len(operators) else outer[:0]
    if not len(linked):
        return begun
    begin, thread = operators["start_ns"], operators["thread_id"]
    forward_of = np.full(len(operators), -1, np.int64)
    for number in distinct_values(thread[linked]).tolist():
        stack = stack_of(operators, np.flatnonzero(thread == number))
        rows = linked[thread[linked] == number]
        place = np.full(len(operators), -1, np.int64)
        place[stack.rows] = np.arange(len(stack.rows))
        forward_of[stack.rows[stack.root[place[rows]]]] = operators["forward_start_ns"][rows]
    rows = np.flatnonzero(outer >= 0)
    rows = rows[forward_of[outer[rows]] >= 0]
    at = forward_of[outer[rows]]
    begun[rows] = at
    if not len(python):
        return begun
    order = np.argsort(begin, kind="stable")
    forward = order[np.minimum(np.searchsorted(begin[order], at), len(order) - 1)]
    for number in distinct_values(thread[forward]).tolist():
        mine = thread[forward] == number
        for chosen, into in found:
            missing = mine & (into[rows] < 0)
            _open_at(python, chosen & (python["thread_id"] == number), at[missing], rows[missing],
                     into)  # fmt: skip
    return begun


def _callers(parts: list[tuple[Frame, IntArray, object]]) -> tuple[IntArray, list[Caller]]:
    """Distinct callers and which one each event has."""
    columns = []
    for frame, rows, _ in parts:
        names = frame["name"].astype(np.int64) if len(frame) else np.zeros(1, np.int64)
        columns.append(np.where(rows >= 0, names[np.maximum(rows, 0)], -1))
    size = [len(frame.texts.get("name", [])) + 2 for frame, _, _ in parts]
    key = columns[0] + 1
    for column, width in zip(columns[1:], size[1:], strict=True):
        key = key * width + column + 1
    values, inverse = with_inverse(key)
    callers = []
    for value in values.tolist():
        texts, rest = [], value
        for (frame, _, change), width in list(zip(parts, size, strict=True))[:0:-1]:
            rest, code = divmod(rest, width)
            texts.append(change(frame.texts["name"][code - 1]) if code else "")  # type: ignore[operator]
        frame, _, change = parts[0]
        texts.append(change(frame.texts["name"][rest - 1]) if rest else "")  # type: ignore[operator]
        callers.append(Caller(*texts[::-1]))
    return inverse, callers


def _uploads(read: Reader, operators: Frame, outer: IntArray, names: list[str]) -> BoolArray:
    """Events inside an outermost operator that copies to the device."""
    found = np.zeros(len(outer), np.bool_)
    gpu = read("gpu_op", "kind", "copy_kind", "correlation_id")
    calls = read("api_call", "thread_id", "start_ns", "correlation_id")
    copying = {code for code, text in _named(gpu, "copy_kind") if text == "HtoD"}
    if not copying or not len(operators):
        return found
    chosen = np.zeros(len(gpu.texts["copy_kind"]) + 1, np.bool_)
    chosen[list(copying)] = True
    wanted = set(gpu["correlation_id"][chosen[gpu["copy_kind"]]].tolist())
    at_call = [row for row, c in enumerate(calls["correlation_id"].tolist()) if c in wanted]
    roots: set[int] = set()
    for thread in distinct_values(calls["thread_id"][at_call]).tolist():
        rows = [row for row in at_call if calls["thread_id"][row] == thread]
        stack = stack_of(operators, np.flatnonzero(operators["thread_id"] == thread))
        place = stack.innermost(calls["start_ns"][rows])
        place = place[place >= 0]
        roots.update(stack.rows[stack.root[place]].tolist())
    if roots:
        is_root = np.zeros(len(operators) + 1, np.bool_)
        is_root[list(roots)] = True
        plain = [code for code, name in enumerate(names) if name in _MOVING]
        moves = np.zeros(len(names) + 1, np.bool_)
        moves[plain] = True
        found = np.asarray(is_root[outer] & moves[operators["name"][np.maximum(outer, 0)]])
    return found & (outer >= 0)


_MOVING = {"aten::to", "aten::_to_copy", "aten::copy_", "aten::cuda", "aten::empty_strided"}


def _named(frame: Frame, column: str) -> list[tuple[int, str]]:
    return list(enumerate(frame.texts.get(column, [])))


def _accumulated(operators: Frame, names: list[str]) -> int:
    """Bytes of the gradients of one backward pass, by the shapes that autograd accumulates."""
    codes = {c for c, name in enumerate(names) if name == "torch::autograd::AccumulateGrad"}
    raw = operators.texts.get("name", [])
    codes = {c for c in codes if not raw[c].startswith(ENGINE)}
    rows = np.flatnonzero(_codes_in(operators, codes))
    if not len(rows):
        return 0
    # a pass: until the same parameter is accumulated again there is a forward operator between
    from_forward = np.flatnonzero(
        ~_codes_in(operators, {c for c, t in enumerate(raw) if "utograd" in t})
        & (operators["thread_id"] != operators["thread_id"][rows[0]])
    )
    passes = np.searchsorted(from_forward, rows)
    _, inverse = with_inverse(passes)
    sizes = np.array([_input_bytes(operators, int(row)) for row in rows])
    return int(np.bincount(inverse, sizes).max())


def _of_weights(operators: Frame, names: list[str], history: History) -> BoolArray:
    """Events inside a cast or copy whose input has the shape of a parameter."""
    found = np.full(len(history.events), -1, np.int64)
    if not len(operators):
        return found >= 0
    raw = operators.texts["name"]
    accumulating = {c for c, n in enumerate(raw) if n == "torch::autograd::AccumulateGrad"}
    shapes = {
        _first_shape(operators.text("input_shapes", int(row)))
        for row in np.flatnonzero(_codes_in(operators, accumulating))
    } - {""}
    texts = operators.texts.get("input_shapes", [])
    like = {code for code, text in enumerate(texts) if _first_shape(text) in shapes}
    is_like = np.zeros(len(texts) + 1, np.bool_)
    is_like[list(like)] = True
    casting = {c for c, name in enumerate(names) if name in ("aten::to", "aten::_to_copy")}
    chosen = _codes_in(operators, casting) & is_like[operators["input_shapes"]]
    for thread in distinct_values(history.events["thread_id"]).tolist():
        rows = np.flatnonzero(history.events["thread_id"] == thread)
        mine = chosen & (operators["thread_id"] == thread)
        _open_at(operators, mine, history.time_ns[rows], rows, found)
    return found >= 0


def _first_shape(text: str | None) -> str:
    """The text of the first shape in a list of shapes."""
    if not text or not text.startswith("[["):
        return ""
    return text[1 : text.find("]") + 1]


def _input_bytes(operators: Frame, row: int) -> int:
    """Bytes of the first input of an operator."""
    shapes = shapes_of(operators.text("input_shapes", row))
    types = types_of(operators.text("input_types", row))
    return prod(shapes[0]) * item_bytes(types) if shapes and types else 0


def layers_of(operators: Frame, python: Frame) -> IntArray:
    """Begin and end, ns, of the layers of the forward passes; no rows where none are seen.

    Layers are the modules of that class whose instances follow one another and hold most operators.
    """
    best: tuple[int, IntArray] = (0, np.zeros((0, 2), np.int64))
    classes: dict[str, list[int]] = {}
    for code, text in _texts(python):
        if found := re.match(rf"{MODULE_PREFIX}(.+)_\d+$", text):
            classes.setdefault(found[1], []).append(code)
    for codes in classes.values():
        rows = np.flatnonzero(_codes_in(python, set(codes)))
        rows = rows[np.argsort(python["start_ns"][rows], kind="stable")]
        begin, end = python["start_ns"][rows], python["end_ns"][rows]
        if len(codes) < 2 or (begin[1:] < end[:-1]).any():
            continue
        inside = int(
            (
                np.searchsorted(operators["start_ns"], end)
                - np.searchsorted(operators["start_ns"], begin)
            ).sum()
        )
        if inside > best[0]:
            best = inside, np.stack([begin, end], 1)
    return best[1]


# Snapshots: stacks.

_BACKWARD = re.compile(
    r"torch::autograd::(?:python::)?(?:Engine|PythonEngine)::|evaluate_function|thread_main"
    r"|_engine_run_backward"
)
_OPTIMIZING = re.compile(
    r"torch/optim/|[/.]optim(?:izers?)?[/.]|apex/optimizers|bitsandbytes/optim"
)
_MAKING = re.compile(r"^(?:_apply|convert|__init__|reset_parameters|to_empty|_init_weights)$")
_INTERPRETER = re.compile(
    r"^(?:_?Py[A-Z_]|method_vectorcall|cfunction_|_?object_|slot_tp|run_(?:eval|mod)|pyrun_|pymain"
    r"|torch::(?:unwind|CapturedTraceback)|_start$|__libc|c10::|torch::cuda::|vectorcall|builtin_"
    r"|type_call|partial_call|tp_new|PyObject|clone|start_thread|std::|thread_run)"
)
_LIBRARY = re.compile(r"(?:site|dist)-packages/|lib/python3|<frozen|^torch/|/torch/")
_AT_OP = re.compile(r"^at::_ops::(\w+)::(?:call|redispatch)")


@dataclass(frozen=True)
class Stacks:
    """Frames of stacks, by number: function, module and line, the outermost first."""

    frames: Frame

    @cached_property
    def _slices(self) -> dict[int, tuple[int, int]]:
        ids = self.frames["stack_id"]
        begins = np.flatnonzero(np.diff(ids, prepend=-2))
        ends = np.append(begins[1:], len(ids))
        return {int(ids[a]): (a, b) for a, b in zip(begins.tolist(), ends.tolist(), strict=True)}

    def of(self, stack: int) -> list[tuple[str, str, int]]:
        """Frames of a stack, the outermost first."""
        begin, end = self._slices.get(stack, (0, 0))
        return [
            (
                self.frames.text("function", row) or "",
                self.frames.text("module", row) or "",
                int(self.frames["line"][row]),
            )
            for row in range(begin, end)
        ]


def judged(frames: list[tuple[str, str, int]]) -> tuple[Phase, Caller]:
    """Phase and caller of a stack."""
    phase = Phase.OUTSIDE
    operator = module = line = library = ""
    for function, file, number in frames:  # outermost first: inner frames decide
        path = file.replace("\\", "/")
        if match := _AT_OP.match(function):
            operator = operator or f"aten::{match[1]}"
        if _BACKWARD.search(function):
            phase = Phase.BACKWARD
        elif _OPTIMIZING.search(path):
            zero = function == "zero_grad"
            phase = Phase.ZERO_GRAD if zero else Phase.OPTIMIZER
        elif phase != Phase.BACKWARD:
            if function == "_call_impl" and path.endswith("nn/modules/module.py"):
                phase = Phase.FORWARD
            elif phase in (Phase.OUTSIDE, Phase.SETUP) and _MAKING.match(function):
                phase = Phase.SETUP
        if not file or number <= 0 or _INTERPRETER.match(function):
            continue
        text = f"{function}() {path}:{number}"
        if _LIBRARY.search(path):
            library = text
            if "/nn/modules/" in path and function == "forward":
                module = path.rpartition("/")[2].removesuffix(".py")
        else:
            line = text
    return phase, Caller(operator, module, line or library)


def from_stacks(history: History, read: Reader) -> tuple[Callers, dict[int, tuple[Phase, Caller]]]:
    """Callers by the stacks of a snapshot; also those of every stack by its number."""
    stacks = Stacks(read("stack_frame", "stack_id", "depth", "function", "module", "line"))
    codes = history.events["stack_id"]
    numbers = distinct_values(
        np.concatenate([codes, history.state["stack_id"], history.others["stack_id"]])
    ).tolist()
    known = {number: judged(stacks.of(number)) for number in numbers if number >= 0}
    any_python = any(caller.line for _, caller in known.values())
    # threads of autograd have no Python stack
    unknown = Phase.BACKWARD if any_python else Phase.OUTSIDE
    table = {**known, -1: (unknown, Caller())}
    order = sorted(table)
    inverse = np.searchsorted(np.array(order), codes)
    phases = np.array([table[number][0] for number in order], np.int64)[inverse]
    allocates = history.events["bytes"] > 0
    # a loss is computed outside of all modules, after them
    telling = allocates & (phases != Phase.OUTSIDE)
    before = np.maximum.accumulate(np.where(telling, np.arange(len(phases)), -1))
    after_modules = (before >= 0) & (phases[np.maximum(before, 0)] == Phase.FORWARD)
    phases[allocates & ~telling & after_modules] = Phase.FORWARD
    phases[~allocates] = Phase.OUTSIDE  # releases have no stack of their own
    return (
        Callers(
            phases,
            np.full(len(codes), -1, np.int64),
            np.zeros(len(codes), np.bool_),
            codes=inverse,
            known=[table[number][1] for number in order],
        ),
        table,
    )
