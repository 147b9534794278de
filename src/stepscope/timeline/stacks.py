"""Stacks of a job for flame graphs: what was open inside what, on every thread."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from stepscope.activity.device import launching_calls
from stepscope.activity.names import marks_steps
from stepscope.intervals import nest
from stepscope.intervals.distinct import with_inverse
from stepscope.kernels.attribution import Stack, plain_range_name
from stepscope.kernels.categories import classify
from stepscope.timeline import flame
from stepscope.timeline.answers import FlameAnswer
from stepscope.timeline.build import HOST, RANGE
from stepscope.timeline.flame import Tree
from stepscope.timeline.timeline import Timeline
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import AnyArray, BoolArray, IntArray
from stepscope.trace.schema import TABLES

KINDS: Final[dict[str, tuple[str, ...]]] = {
    "host": ("range", "operator", "python_function"),
    "range": ("range",),
    "operator": ("operator",),
    "python": ("python_function",),
    "samples": (),
}
"""What is stacked -> the tables whose intervals nest."""

WEIGHTS: Final = ("cpu", "gpu")
MOST_NODES = 30_000
SMALLEST = 1 / 20_000
"""Share of the whole from which on a node is sent: a twentieth of a pixel of a wide screen, so that
something is left to zoom into."""
LONGEST_NAME = 300
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"\d+")
_UNKNOWN = "(launched outside of all that was recorded)"
_LINK = ("id", "process_id", "correlation_id", "start_ns")
_CALL = ("id", "api", "process_id", "thread_id", "start_ns", "correlation_id")


@dataclass(frozen=True)
class Forest:
    """Nested intervals of the threads of one trace, as nodes of a tree.

    Attributes:
        tree: the nodes; those at the top are threads.
        node: node of each row.
        parent: row of the parent of each row; -1 for a thread's outermost.
        start: begin of each row on the job's clock, ns.
        end: end, ns.
        kernel_node: node of each GPU operation: a leaf below what was open at its launch.
        kernel_start: begin of each GPU operation on the job's clock, ns.
        kernel_ns: its length, ns.
    """

    tree: Tree
    node: IntArray
    parent: IntArray
    start: IntArray
    end: IntArray
    kernel_node: IntArray
    kernel_start: IntArray
    kernel_ns: IntArray


class Stacks:
    """Flame graphs of one timeline; keeps what takes long to make."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._forests: dict[str, list[Forest]] = {}

    @cached_property
    def kinds(self) -> list[str]:
        """Keys of ``KINDS`` for which the job holds anything."""
        traces = [rank_trace.trace for rank_trace in self._timeline.rank_traces]

        def rows(table: str) -> int:
            return sum(trace.rows(table) for trace in traces) if table in TABLES else 0

        found = [kind for kind, tables in KINDS.items() if any(map(rows, tables))]
        if len(found) == 2:  # one table alone: all of it is that table
            found = found[1:]
        if rows("cpu_sample") and rows("stack_frame"):
            found.append("samples")
        return found

    def graph(
        self,
        kind: str,
        weight: str,
        begin: int,
        end: int,
        *,
        reverse: bool,
        most: int = MOST_NODES,
    ) -> FlameAnswer:
        """The flame graph of a window.

        Args:
            kind: key of ``KINDS``.
            weight: ``cpu`` (time on the thread inside the window, or samples) or ``gpu`` (time of
                the GPU operations launched beneath that begin in the window).
            begin: begin on the job's clock, ns.
            end: end, ns.
            reverse: whether leaves stand on top, with their callers beneath.
            most: nodes of the answer at most.

        Raises:
            UsageError: there is no such kind or weight, or nothing of it was recorded.
        """
        if kind not in KINDS or weight not in WEIGHTS:
            raise UsageError(f"there is no flame graph of {kind[:40]!r} by {weight[:40]!r}")
        if kind not in self.kinds:
            raise UsageError(_MISSING.get(kind, "the capture holds nothing that could be stacked"))
        trees, owns, counts = [], [], []
        for rank_trace in range(len(self._timeline.rank_traces)):
            if kind == "samples":
                tree, own, count = self._sampled(rank_trace, begin, end)
            else:
                tree, own, count = _weighed(self._forest(kind)[rank_trace], weight, begin, end)
            trees.append(tree)
            owns.append(own)
            counts.append(count)
        tree, own, count = _together(trees, owns, counts)
        if reverse:
            tree, own, count = flame.bottom_up(tree, own, count)
        return self._sent(kind, tree, own, count, most)

    def _sent(
        self, kind: str, tree: Tree, own: AnyArray, count: AnyArray, most: int
    ) -> FlameAnswer:
        total = tree.totals(own)
        whole = int(total[tree.parent < 0].sum())
        mask = flame.kept(total, whole * SMALLEST, most)
        nodes = np.flatnonzero(mask)
        place = np.full(len(tree) + 1, -1, np.int64)
        place[nodes] = np.arange(len(nodes))
        used, name = with_inverse(tree.name[nodes])
        texts = self._timeline.names.texts
        return {
            "total": whole,
            "left_out": int(((total > 0) & ~mask).sum()),
            "names": [texts[n][:LONGEST_NAME] for n in used.tolist()],
            "nodes": {
                "parent": place[tree.parent[nodes]].tolist(),
                "name": name.reshape(-1).tolist(),
                "total": total[nodes].tolist(),
                "own": own[nodes].tolist(),
                "count": count[nodes].tolist(),
            },
            "unit": "samples" if kind == "samples" else "ns",
            "kinds": self.kinds,
            "kind": kind,
        }

    # --- nested intervals ------------------------------------------------------------------------

    def _forest(self, kind: str) -> list[Forest]:
        if kind not in self._forests:
            rank_traces = range(len(self._timeline.rank_traces))
            self._forests[kind] = [
                self._grown(rank_trace, KINDS[kind]) for rank_trace in rank_traces
            ]
        return self._forests[kind]

    def _grown(self, rank_trace: int, tables: tuple[str, ...]) -> Forest:
        source = self._timeline.sources[rank_trace]
        start, end, thread, process, name = [], [], [], [], []
        for table in tables:
            frame = source.read(table, *(RANGE if table == "range" else HOST))
            if table == "range":
                kinds = frame.equals("kind", "pushpop", "startend", "annotation")
                frame = frame.take(kinds & (frame["thread_id"] >= 0))
            start.append(frame["start_ns"])
            end.append(frame["end_ns"])
            thread.append(frame["thread_id"])
            process.append(frame["process_id"])
            texts = frame.texts["name"]
            if table == "range":
                texts = [_alike(text) for text in texts]
            elif table == "python_function":  # of which object it is does not matter
                texts = [_ADDRESS.sub("", text) for text in texts]
            name.append(source.names.numbers(texts)[frame["name"]])
        begins, ends, names = map(_column, (start, end, name))
        processes, of = with_inverse(_column(process))
        ids, at = with_inverse(_column(thread))
        pairs, group = with_inverse(of * max(1, len(ids)) + at)
        group = group.reshape(-1)
        threads = [
            (int(processes[pair // len(ids)]), int(ids[pair % len(ids)])) for pair in pairs.tolist()
        ]
        parent, _ = nest(begins, ends, group)
        titles = [self._title(rank_trace, *thread) for thread in threads]
        roots = np.array([source.names.number(title) for title in titles], np.int64)
        # threads are rows of their own, in front
        n = len(roots)
        above = np.where(parent >= 0, parent + n, group)
        tree, node = flame.merged(
            np.concatenate((np.full(n, -1, np.int64), above)), np.concatenate((roots, names))
        )
        gpu = source.read("gpu_op", *_LINK, "end_ns", "name")
        row = self._launched_in(rank_trace, begins, ends, parent, group, threads)
        label = source.names.numbers([classify(t).label or t for t in gpu.texts["name"]])
        tree, kernel_node = _leaves(
            tree, node[n:], row, label[gpu["name"]], source.names.number(_UNKNOWN)
        )
        offset = source.offset_ns
        return Forest(
            tree,
            node[n:],
            parent,
            begins + offset,
            ends + offset,
            kernel_node,
            gpu["start_ns"] + offset,
            gpu["end_ns"] - gpu["start_ns"],
        )

    def _launched_in(
        self,
        rank_trace: int,
        start: IntArray,
        end: IntArray,
        parent: IntArray,
        group: IntArray,
        threads: list[tuple[int, int]],
    ) -> IntArray:
        """Row of the innermost interval open at the launch of each GPU operation; -1 for none."""
        source = self._timeline.sources[rank_trace]
        gpu = source.read("gpu_op", *_LINK, "end_ns", "name")
        api = source.read("api_call", *_CALL)
        api = api.take(api.equals("api", "runtime", "driver"))
        call = launching_calls(gpu, api)
        found = np.full(len(gpu), -1, np.int64)
        linked = np.flatnonzero(call >= 0)
        if not len(linked) or not len(start):
            return found
        calls = api.take(call[linked])
        # main threads last: what their processes' other threads launched may be theirs
        for number, thread in sorted(enumerate(threads), key=lambda item: item[1][0] == item[1][1]):
            rows = np.flatnonzero(group == number)
            order = rows[np.lexsort((-end[rows], start[rows]))]
            place = np.full(len(start) + 1, -1, np.int64)
            place[order] = np.arange(len(order))
            stack = Stack(order, start[order], end[order], place[parent[order]])
            own = (calls["process_id"] == thread[0]) & (calls["thread_id"] == thread[1])
            # as stepscope operators --by range: autograd's thread opens none while the main
            # thread, which waits for it, has one open
            main = thread[0] == thread[1]
            mine = np.flatnonzero(
                own | ((found[linked] < 0) & (calls["process_id"] == thread[0])) & main
            )
            inner = stack.innermost(calls["start_ns"][mine])
            hit = (inner >= 0) & (own[mine] | (found[linked[mine]] < 0))
            found[linked[mine[hit]]] = order[inner[hit]]
        return found

    def _title(self, rank_trace: int, process_id: int, thread_id: int) -> str:
        for track in self._timeline.tracks:
            if (track.rank_trace, track.process_id, track.thread_id) == (
                rank_trace,
                process_id,
                thread_id,
            ):
                return self._timeline.group_of(track)
        return f"Thread {thread_id}"

    # --- samples ---------------------------------------------------------------------------------

    def _sampled(self, rank_trace: int, begin: int, end: int) -> tuple[Tree, AnyArray, AnyArray]:
        source = self._timeline.sources[rank_trace]
        frames = source.read("stack_frame", "stack_id", "depth", "function")
        samples = source.read("cpu_sample", "time_ns", "process_id", "thread_id", "stack_id")
        at = samples["time_ns"] + source.offset_ns
        samples = samples.take((at >= begin) & (at < end) & (samples["stack_id"] >= 0))
        order = np.lexsort((frames["depth"], frames["stack_id"]))
        stack = frames["stack_id"][order]
        numbers = source.names.numbers(frames.texts["function"])
        name = numbers[frames["function"][order]]
        opens = np.concatenate(([True], stack[1:] != stack[:-1]))[: len(stack)]
        parent = np.where(opens, -1, np.arange(len(stack)) - 1)
        tree, node = flame.merged(parent, name)
        own = np.zeros(len(tree), np.int64)
        last = np.flatnonzero(np.concatenate((opens[1:], [True]))[: len(stack)])
        if len(last):
            which = np.minimum(np.searchsorted(stack[last], samples["stack_id"]), len(last) - 1)
            hit = stack[last][which] == samples["stack_id"]
            np.add.at(own, node[last[which[hit]]], 1)
        return tree, own, tree.totals(own)


_MISSING: Final = {
    "python": "no Python functions were recorded; torch.profiler records them with with_stack=True",
    "samples": "no sampled stacks were recorded; nsys profile --sample=process-tree records them",
    "operator": "no operators were recorded; torch.profiler records them",
    "range": "no ranges were recorded; annotate the program with NVTX and trace nvtx",
}


def _alike(text: str) -> str:
    """A range's name as its like of every step has it: a step is one column, not one a number."""
    text = plain_range_name(text)
    return _NUMBER.sub("#", text) if marks_steps(text, "") else text


def _weighed(forest: Forest, weight: str, begin: int, end: int) -> tuple[Tree, AnyArray, AnyArray]:
    """Own weight and count of each node in a window."""
    size = len(forest.tree)
    if weight == "gpu":
        chosen = (forest.kernel_start >= begin) & (forest.kernel_start < end)
        node = forest.kernel_node[chosen]
        own = _sums(node, forest.kernel_ns[chosen], size)
        return forest.tree, own, forest.tree.totals(np.bincount(node, minlength=size))
    inside = np.minimum(forest.end, end) - np.maximum(forest.start, begin)
    touched: BoolArray = (forest.start < end) & ((forest.end > begin) | (forest.start >= begin))
    inside = np.maximum(inside, 0)
    own = _sums(forest.node, flame.self_time(forest.parent, inside), size)
    return forest.tree, own, np.bincount(forest.node[touched], minlength=size)


def _sums(node: IntArray, weight: AnyArray, size: int) -> IntArray:
    """Sum of weights a node; doubles are exact up to 104 days of ns."""
    return np.bincount(node, weights=weight, minlength=size).astype(np.int64)


def _leaves(
    tree: Tree, node: IntArray, row: IntArray, label: IntArray, unknown: int
) -> tuple[Tree, IntArray]:
    """A node a kernel name below each node that launches it; those of unknown launch stand alone.

    Args:
        tree: the tree of the host.
        node: node of each host row.
        row: host row that launched each operation; -1 for none.
        label: number of the name of each operation.
        unknown: name of the node above operations whose launch is in no row.
    """
    size = len(tree)
    lost = bool((row < 0).any())
    parent = np.concatenate((tree.parent, [-1] if lost else [])).astype(np.int64)
    name = np.concatenate((tree.name, [unknown] if lost else [])).astype(np.int64)
    above = np.full(len(row), size, np.int64)
    if len(node):
        above = np.where(row >= 0, node[np.maximum(row, 0)], size)
    span = int(label.max(initial=0)) + 1
    distinct, at = with_inverse(above * span + label)
    made = Tree(np.concatenate((parent, distinct // span)), np.concatenate((name, distinct % span)))
    return made, len(parent) + at.reshape(-1)


def _together(
    trees: list[Tree], owns: list[AnyArray], counts: list[AnyArray]
) -> tuple[Tree, AnyArray, AnyArray]:
    """The trees of several traces as one; equal paths become one."""
    if len(trees) == 1:
        return trees[0], owns[0], counts[0]
    sizes = np.cumsum([0, *map(len, trees)])
    parent = np.concatenate(
        [np.where(t.parent >= 0, t.parent + s, -1) for t, s in zip(trees, sizes, strict=False)]
    )
    tree, node = flame.merged(parent, np.concatenate([t.name for t in trees]))
    own = _sums(node, np.concatenate(owns), len(tree))
    return tree, own, _sums(node, np.concatenate(counts), len(tree))


def _column(parts: list[AnyArray]) -> IntArray:
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)
