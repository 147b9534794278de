"""Call trees of two runs as one: where the operators part, and what either side costs there.

Operators and annotations of the host nest; those with the same names from the root on are one node.
Two trees are merged from the root: children of the same name are one node. A child without a
counterpart may stand deeper on the other side, below wrappers that only that side has; what then is
left differs, and its parent is the lowest node that both runs share.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from stepscope.activity.device import Reader
from stepscope.activity.names import marking_steps
from stepscope.breakdown.explain import Explanation
from stepscope.intervals.distinct import distinct_rows, distinct_values
from stepscope.intervals.nesting import nest, stab_innermost
from stepscope.trace.frame import IntArray

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA: Final = "stepscope.compare-tree/1"
ROOT: Final = "step"
_DEEPEST_WRAPPER: Final = 4
"""Levels that a counterpart may stand deeper on the other side."""
_MOST_LEVELS: Final = 200
"""What nests deeper is part of the node at this level."""
_HOST: Final = ("id", "process_id", "thread_id", "start_ns", "end_ns", "name")
_RANGE: Final = (*_HOST, "kind")


@dataclass
class Node:
    """A call path of one run; all figures are of all its calls together, per step.

    Attributes:
        name: operator or annotation.
        calls: how often it was called.
        host_ns: time on the host, from begin to end.
        gpu_ns: time of the GPU operations that were launched inside.
        children: by name.
    """

    name: str
    calls: float = 0.0
    host_ns: float = 0.0
    gpu_ns: float = 0.0
    children: dict[str, Node] = field(default_factory=dict)


def call_tree(e: Explanation, read: Reader) -> Node:
    """The call paths of one device's process in its steady steps."""
    begin, end, steps = _window(e)
    thread, start, stop, name, texts = _host_events(e, read, begin, end)
    order = np.lexsort((-stop, start, thread))
    thread, start, stop, name = thread[order], start[order], stop[order], name[order]
    parent, depth = nest(start, stop, thread)
    path, root = _paths(parent, depth, name, texts)
    shown = depth < _MOST_LEVELS
    count = np.bincount(path[shown], minlength=len(root.nodes))
    host = np.bincount(path[shown], weights=(stop - start)[shown], minlength=len(root.nodes))
    gpu = np.zeros(len(root.nodes))
    ops, call = e.gpu.ops, e.gpu.call
    launched = np.flatnonzero(call >= 0)
    api = e.gpu.host.api
    at, by = api["start_ns"][call[launched]], api["thread_id"][call[launched]]
    length = (ops["end_ns"] - ops["start_ns"])[launched]
    wanted = (at >= begin) & (at < end)
    outside = 0.0
    for one in distinct_values(by[wanted]).tolist():
        mine = np.flatnonzero(wanted & (by == one))
        rows = np.flatnonzero(thread == one)
        inside = stab_innermost(start[rows], stop[rows], at[mine])
        held = inside >= 0
        np.add.at(gpu, path[rows[inside[held]]], length[mine[held]])
        outside += float(length[mine[~held]].sum())
    for number in range(len(root.nodes) - 1, -1, -1):  # children come behind their parents
        node = root.nodes[number]
        node.calls, node.host_ns = float(count[number]) / steps, float(host[number]) / steps
        node.gpu_ns += float(gpu[number]) / steps
        above = root.parents[number]
        if above >= 0:
            root.nodes[above].gpu_ns += node.gpu_ns
    top = Node(ROOT, 1.0, (end - begin) / steps)
    for node, above in zip(root.nodes, root.parents, strict=True):
        if above < 0:
            top.children[node.name] = node
    top.gpu_ns = sum(node.gpu_ns for node in top.children.values()) + outside / steps
    return top


def _window(e: Explanation) -> tuple[int, int, int]:
    """Begin and end of the steady steps on the host, and their number."""
    begin = e.steps.begin_ns
    end = e.steps.end_ns if e.last + 1 >= len(begin) else int(begin[e.last + 1])
    return int(begin[e.first]), int(end), max(e.last - e.first + 1, 1)


def _host_events(
    e: Explanation, read: Reader, begin: int, end: int
) -> tuple[IntArray, IntArray, IntArray, IntArray, list[str]]:
    """Thread, begin, end, name of operators and annotations that begin in the steady steps."""
    columns: list[list[IntArray]] = [[], [], [], []]
    texts: list[str] = []
    for table, wanted in (("range", _RANGE), ("operator", _HOST)):
        frame = read(table, *wanted)
        if not len(frame):
            continue
        keep = (frame["process_id"] == e.gpu.process_id) & (frame["start_ns"] >= begin)
        keep &= frame["start_ns"] < end
        if table == "range":
            keep &= frame.equals("kind", "pushpop", "annotation")
            # names that hold a number of the step are another node in every step
            marks = np.append(marking_steps(frame.texts["name"], e.steps.label), False)
            keep &= ~marks[frame["name"]]
        rows = np.flatnonzero(keep)
        for column, values in zip(
            columns,
            (frame["thread_id"], frame["start_ns"], frame["end_ns"], frame["name"] + len(texts)),
            strict=True,
        ):
            column.append(values[rows].astype(np.int64))
        texts += frame.texts["name"]
    if not columns[0]:
        none = np.empty(0, np.int64)
        return none, none, none, none, texts
    thread, start, stop, name = (np.concatenate(column) for column in columns)
    return thread, start, stop, name, texts


@dataclass
class _Paths:
    """Nodes, each behind its parent, and the number of each parent; -1 at the top."""

    nodes: list[Node] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)


def _paths(
    parent: IntArray, depth: IntArray, name: IntArray, texts: list[str]
) -> tuple[IntArray, _Paths]:
    """Number of each event's node, level by level."""
    path = np.full(len(parent), -1, np.int64)
    found = _Paths()
    codes: dict[str, int] = {}
    same = np.array([codes.setdefault(text, len(codes)) for text in texts], np.int64)
    by_code = list(codes)
    for level in range(int(depth.max(initial=-1)) + 1):
        rows = np.flatnonzero(depth == level)
        if level >= _MOST_LEVELS:
            path[rows] = path[parent[rows]]
            continue
        above = np.where(parent[rows] >= 0, path[parent[rows]], -1)
        code = same[name[rows]]
        first, inverse = distinct_rows((above, code))
        base = len(found.nodes)
        for row in first.tolist():
            node = Node(by_code[int(code[row])])
            number = int(above[row])
            found.nodes.append(node)
            found.parents.append(number)
            if number >= 0:
                found.nodes[number].children[node.name] = node
        path[rows] = base + inverse
    return path, found


class Merged(msgspec.Struct, frozen=True):
    """A node of the merged tree, with what it takes a step in each run.

    Attributes:
        path: names from the root on.
        depth: 0 for the step.
        relation: both, before (only there), after (only there), or moved (in both, but below
            wrappers that only one run has).
        parted: whether children of this node are in one run only: the lowest node that both share.
        calls_before: calls per step before; 0 where it is not there.
        calls_after: calls per step after.
        host_before_ns: time on the host, from begin to end.
        host_after_ns: the same after.
        gpu_before_ns: time of the GPU operations that were launched inside.
        gpu_after_ns: the same after.
    """

    path: list[str]
    depth: int
    relation: str
    parted: bool
    calls_before: float
    calls_after: float
    host_before_ns: int
    host_after_ns: int
    gpu_before_ns: int
    gpu_after_ns: int

    @property
    def difference_ns(self) -> int:
        """How much more it takes on the GPU, or where neither runs anything there, on the host."""
        if self.gpu_before_ns or self.gpu_after_ns:
            return self.gpu_after_ns - self.gpu_before_ns
        return self.host_after_ns - self.host_before_ns


def merge(before: Node, after: Node) -> list[Merged]:
    """Merge two trees; parents stand before their children, which come longest first."""
    found: list[Merged] = []
    _merge(before, after, [], "both", found)
    return found


def _merge(
    a: Node | None, b: Node | None, above: list[str], relation: str, into: list[Merged]
) -> None:
    node = a or b
    assert node is not None
    path = [*above, node.name]
    ours = dict(a.children) if a else {}
    theirs = dict(b.children) if b else {}
    pairs: list[tuple[Node | None, Node | None, str]] = [
        (ours.pop(name), theirs.pop(name), "both") for name in list(ours) if name in theirs
    ]
    if a and b:
        pairs += [(x, y, "moved") for x, y in _deeper(ours, theirs)]
        pairs += [(x, y, "moved") for y, x in _deeper(theirs, ours)]
    pairs += [(child, None, "before") for child in ours.values()]
    pairs += [(None, child, "after") for child in theirs.values()]
    parted = bool(a and b) and any(kind != "both" for _, _, kind in pairs)
    into.append(_merged(path, relation, a, b, parted=parted))
    pairs.sort(key=lambda pair: -max(_weight(pair[0]), _weight(pair[1])))
    for x, y, kind in pairs:
        _merge(x, y, path, kind, into)


def _merged(
    path: list[str], relation: str, a: Node | None, b: Node | None, *, parted: bool = False
) -> Merged:
    """What one node takes on both sides; nothing where it is not there."""
    a, b = a or Node(""), b or Node("")
    return Merged(
        path=path,
        depth=len(path) - 1,
        relation=relation,
        parted=parted,
        calls_before=round(a.calls, 3),
        calls_after=round(b.calls, 3),
        host_before_ns=round(a.host_ns),
        host_after_ns=round(b.host_ns),
        gpu_before_ns=round(a.gpu_ns),
        gpu_after_ns=round(b.gpu_ns),
    )


def _weight(node: Node | None) -> float:
    return (node.gpu_ns or node.host_ns) if node else 0.0


def _deeper(ours: dict[str, Node], theirs: dict[str, Node]) -> list[tuple[Node, Node]]:
    """Children of ours with their counterparts below wrappers of theirs; both are taken out."""
    found: list[tuple[Node, Node]] = []
    for name in list(ours):
        for wrapper in theirs.values():
            chain = _chain(wrapper, name, _DEEPEST_WRAPPER)
            if chain:
                inner = chain[-1].children.pop(name)
                for node in chain:  # what else they hold is their own
                    node.gpu_ns -= inner.gpu_ns
                    node.host_ns -= inner.host_ns
                found.append((ours.pop(name), inner))
                break
    return found


def _chain(node: Node, name: str, levels: int) -> list[Node]:
    """The nodes from this one down to one that has a child of a name; empty where none has."""
    if name in node.children:
        return [node]
    for child in node.children.values() if levels else ():
        if below := _chain(child, name, levels - 1):
            return [node, *below]
    return []


def by_name(before: Node, after: Node) -> list[Merged]:
    """Operators and annotations by name, wherever they are called; the largest difference first."""
    sides: list[dict[str, Node]] = [defaultdict(lambda: Node("")) for _ in range(2)]
    for top, sums in zip((before, after), sides, strict=True):
        _add_up(top, sums, frozenset())
    found = []
    for name in {**sides[0], **sides[1]}:
        a, b = (side.get(name) for side in sides)
        relation = "both" if a and b else "before" if a else "after"
        found.append(_merged([name], relation, a, b))
    return sorted(found, key=lambda row: (-abs(row.difference_ns), row.path))


def _add_up(node: Node, sums: dict[str, Node], above: frozenset[str]) -> None:
    for child in node.children.values():
        one = sums[child.name]
        one.calls += child.calls
        if child.name not in above:  # inside one of the same name, its time is counted already
            one.host_ns += child.host_ns
            one.gpu_ns += child.gpu_ns
        _add_up(child, sums, above | {child.name})


def as_table(rows: list[Merged]) -> pa.Table:
    """The merged nodes as columns; the path as one text."""
    import pyarrow as pa

    columns: dict[str, Any] = {
        "path": pa.array([" > ".join(row.path) for row in rows], pa.string()),
        "name": pa.array([row.path[-1] for row in rows], pa.string()),
    }
    for field_ in msgspec.structs.fields(Merged):
        if field_.name != "path":
            columns[field_.name] = pa.array([getattr(row, field_.name) for row in rows])
    return pa.table(columns)
