"""Flame graphs: many stacks merged into one tree, and the same tree read from its leaves.

A forest is any set of rows of which each knows its parent: nested intervals of a thread, or the
frames of sampled stacks. Rows that are reached by the same names are one node of the tree.
Everything is done a level at a time, so the cost is that of sorting the rows once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.intervals.distinct import with_inverse
from stepscope.trace.frame import AnyArray, BoolArray, IntArray


@dataclass(frozen=True)
class Tree:
    """Nodes of a tree; a parent always stands before its children.

    Attributes:
        parent: node of the caller; -1 at the top.
        name: number of the name.
    """

    parent: IntArray
    name: IntArray

    def __len__(self) -> int:
        return len(self.parent)

    def depth(self) -> IntArray:
        """Depth of each node, 0 at the top."""
        depth = np.zeros(len(self), np.int64)
        up = self.parent.copy()
        while True:
            below = up >= 0
            if not below.any():
                return depth
            depth[below] += 1
            up[below] = self.parent[up[below]]

    def totals(self, own: AnyArray) -> AnyArray:
        """Weight of each node with all beneath it.

        Args:
            own: weight of each node without what is beneath it.
        """
        total = own.copy()
        depth = self.depth()
        for level in range(int(depth.max(initial=0)), 0, -1):
            nodes = np.flatnonzero(depth == level)
            np.add.at(total, self.parent[nodes], total[nodes])
        return total


def merged(parent: IntArray, name: IntArray) -> tuple[Tree, IntArray]:
    """One tree of a forest.

    Args:
        parent: row of the parent of each row; -1 at the top.
        name: number of the name of each row.

    Returns:
        The tree, and the node of each row.
    """
    node = np.full(len(parent), -1, np.int64)
    span = int(name.max(initial=0)) + 1
    parents: list[IntArray] = []
    names: list[IntArray] = []
    known = 0
    depth = Tree(parent, name).depth()
    order = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[order], np.arange(int(depth.max(initial=-1)) + 2))
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        rows = order[first:last]
        above = np.where(parent[rows] >= 0, node[np.maximum(parent[rows], 0)], -1)
        distinct, at = with_inverse((above + 1) * span + name[rows])
        node[rows] = known + at.reshape(-1)
        parents.append(distinct // span - 1)
        names.append(distinct % span)
        known += len(distinct)
    return Tree(_joined(parents), _joined(names)), node


def bottom_up(tree: Tree, own: AnyArray, count: AnyArray) -> tuple[Tree, AnyArray, AnyArray]:
    """The tree from its leaves: what ran itself on top, beneath it by whom it was called.

    The weight of a node at the top is all that its name took itself, wherever it was called; it
    is shared out over its callers beneath. A function that calls itself is thus not counted twice.

    Args:
        tree: the tree.
        own: weight of each node without what is beneath it.
        count: how often each node ran.

    Returns:
        The reversed tree, what ends at each of its nodes (a path that begins there) and counts.
    """
    at = np.flatnonzero(own > 0)
    start = at
    span = int(tree.name.max(initial=0)) + 1
    group = np.full(len(at), -1, np.int64)
    parents: list[IntArray] = []
    names: list[IntArray] = []
    ends = np.zeros(0, own.dtype)
    times = np.zeros(0, count.dtype)
    known = 0
    while len(at):
        distinct, place = with_inverse((group + 1) * span + tree.name[at])
        group = known + place.reshape(-1)
        parents.append(distinct // span - 1)
        names.append(distinct % span)
        known += len(distinct)
        ends = np.concatenate((ends, np.zeros(len(distinct), own.dtype)))
        times = np.concatenate((times, np.zeros(len(distinct), count.dtype)))
        np.add.at(times, group, count[start])
        up = tree.parent[at]
        top = up < 0
        np.add.at(ends, group[top], own[start[top]])
        at, group, start = up[~top], group[~top], start[~top]
    return Tree(_joined(parents), _joined(names)), ends, times


def self_time(parent: IntArray, inside: AnyArray) -> AnyArray:
    """Time of each interval without that of its children; never negative.

    Args:
        parent: row of the parent of each row; -1 at the top.
        inside: length of each row inside the window, ns.
    """
    nested = parent >= 0
    children = np.bincount(parent[nested], weights=inside[nested], minlength=len(parent))
    found: AnyArray = np.maximum(inside - children.astype(np.int64), 0)
    return found


def kept(total: AnyArray, least: float, most: int) -> BoolArray:
    """Nodes that are worth showing: heavy enough, the heaviest where there are too many.

    Args:
        total: weight of each node with all beneath it; no heavier than its parent's.
        least: lightest weight that is kept.
        most: number of nodes that are kept at most.
    """
    mask = (total >= least) & (total > 0)
    if int(mask.sum()) > most:
        # a parent is as heavy as its child at least, and stands before it: never cut off alone
        best = np.lexsort((np.arange(len(total)), -total))[:most]
        cut = np.zeros(len(total), bool)
        cut[best] = True
        mask &= cut
    return mask


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)
