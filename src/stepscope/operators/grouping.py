"""What host events are grouped by: name, shapes, stack, module, source, range or category."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from stepscope.intervals.distinct import distinct_rows
from stepscope.operators.calltree import CATEGORIES, KINDS, OPERATOR, CallTree
from stepscope.trace.frame import BoolArray, IntArray

GROUPINGS: Final = {
    "name": "operators, annotations and CUDA calls by name, as key_averages()",
    "shape": "the same by name and input shapes, as key_averages(group_by_input_shape=True)",
    "stack": "by the Python functions outside the framework that called it, the innermost first",
    "module": "by the innermost module of the model",
    "source": "by the innermost Python function outside the framework",
    "range": "by the innermost annotation",
    "category": "by the category of the kernels that an operator launches itself",
}
"""What rows can be grouped by. Events of the backward pass count as the module, function and stack
of their forward operator."""

STACK_FRAMES: Final = 5
NOTHING: Final = {"module": "(no module)", "source": "(no function)", "stack": "(no function)",
           "range": "(no range)", "category": "(no kernels)"}  # fmt: skip
"""What events are grouped by that have nothing of it."""

MISSING: Final = {
    "shape": "no input shapes are recorded; capture with torch.profiler.profile("
    "record_shapes=True)",
    "module": "no Python stacks are recorded; capture with torch.profiler.profile(with_stack=True)",
    "source": "no Python stacks are recorded; capture with torch.profiler.profile(with_stack=True)",
    "stack": "no Python stacks are recorded; capture with torch.profiler.profile(with_stack=True)",
    "range": "no annotations are recorded; mark parts of the program with "
    "torch.profiler.record_function or NVTX ranges",
    "category": "no kernels are recorded",
}
"""What to say, and to do, where no event has any of it."""

Key = tuple[str, str, str]
"""Kind, name and input shapes of a group, as rows have them."""

_NONE: Final = np.empty(0, np.int64)


def groups(tree: CallTree, by: str) -> tuple[IntArray, IntArray, list[Key]]:
    """First event of each group, group of each event, key of each group."""
    texts, name = tree.texts, tree.name
    if by in ("name", "shape"):
        columns = [tree.kind, name]
        shapes: list[str] = []
        if by == "shape":
            code, shapes = _shapes(tree)
            columns.append(code)
        first, group = distinct_rows(columns) if len(tree) else (_NONE, _NONE)
        keys = [
            (
                KINDS[int(tree.kind[row])],
                texts[int(name[row])],
                shapes[int(columns[2][row])] if by == "shape" else "",
            )
            for row in first.tolist()
        ]
        return first, group, keys
    if by == "stack":
        stacks = tree.stack(STACK_FRAMES)
        columns = [stacks[:, at] for at in range(STACK_FRAMES)]
        first, group = distinct_rows(columns) if len(tree) else (_NONE, _NONE)
        named = [
            " < ".join(tree.source_text(code) for code in stacks[row].tolist() if code >= 0)
            for row in first.tolist()
        ]
        return first, group, [("", text or NOTHING[by], "") for text in named]
    codes: IntArray = getattr(tree, by)
    first, group = distinct_rows([codes]) if len(tree) else (_NONE, _NONE)
    keys = []
    for code in codes[first].tolist():
        if code < 0:
            text = NOTHING[by]
        elif by == "category":
            text = CATEGORIES[code]
        else:
            text = tree.source_text(code) if by == "source" else texts[code]
        keys.append(("", text.removeprefix("nn.Module: ") if by == "module" else text, ""))
    return first, group, keys


def _shapes(tree: CallTree) -> tuple[IntArray, list[str]]:
    """Code of the input shapes of each event, lists of tensors as ``[]``; and their texts."""
    place: dict[str, int] = {"[]": 0}
    found = np.zeros(len(tree), np.int64)
    mine = np.flatnonzero(tree.kind == OPERATOR)
    if len(mine):
        codes = [
            place.setdefault(_flat(text), len(place))
            for text in tree.operators.texts["input_shapes"]
        ]
        table = np.array([*codes, 0])
        found[mine] = table[tree.operators["input_shapes"][tree.row[mine]]]
    return found, list(place)


def _flat(shapes: str) -> str:
    """Shapes as torch's table tells them: those of a list of tensors are left out."""
    try:
        items = msgspec.json.decode(shapes)
    except msgspec.DecodeError:
        return shapes
    if not isinstance(items, list):
        return shapes
    plain = [
        [] if isinstance(i, list) and any(isinstance(j, list) for j in i) else i for i in items
    ]
    return msgspec.json.encode(plain).decode()


def outermost(tree: CallTree, group: IntArray) -> BoolArray:
    """Events whose parent is of another group: their totals hold all of the group inside."""
    above = group[np.maximum(tree.parent, 0)] if len(tree) else group
    outer: BoolArray = (tree.parent < 0) | (above != group)
    return outer
