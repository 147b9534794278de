"""GPU time of a window by kernel, operator, range, module, source line or category.

The rows are those of ``kernel_category``, from which ``stepscope kernels`` and ``operators`` are
made, so the figures of the steady steps are theirs. What a question costs is one pass over the
columns: sorting by group and length is done once a grouping, not once a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.intervals.distinct import with_inverse
from stepscope.kernels.statements import grouped_by
from stepscope.timeline.answers import TableAnswer
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import AnyArray, BoolArray, Frame, IntArray

MOST_GROUPS = 20_000
"""Rows of an answer; more names are more than anybody reads, and some 4 MB."""
MOST_INSTANCES = 50_000
LONGEST_NAME = 300
NOTHING = "(none)"


@dataclass(frozen=True)
class Window:
    """The operations that a table is about, and what they are shares of.

    Attributes:
        chosen: mask over the operations: those that begin in the window count, whole.
        wall_ns: length of the window, summed over all devices, ns.
        steps: steps that begin in the window, summed over all devices.
        begin: begin on the job's clock, ns.
        end: end, ns.
    """

    chosen: BoolArray
    wall_ns: int
    steps: int
    begin: int
    end: int


@dataclass(frozen=True)
class Grouping:
    """Groups of all operations under one key.

    Attributes:
        names: values of the key columns of each group; None for a null.
        code: group of each operation.
        order: operations sorted by group and, within, by length.
    """

    names: list[tuple[str | None, ...]]
    code: AnyArray
    order: AnyArray


class Work:
    """All GPU operations of a job, ready to be grouped.

    Args:
        categories: rows of ``kernel_category``, device by device.
        start_ns: begin of each on the job's clock, ns.
        steady: the steady steps: wall time, steps, begin and end as in :class:`Window`.
    """

    def __init__(self, categories: Frame, start_ns: IntArray, steady: Window) -> None:
        self.categories = categories
        self.start_ns = start_ns
        self.steady = steady
        self._groupings: dict[str, Grouping] = {}

    @cached_property
    def ns(self) -> IntArray:
        """Length of each operation."""
        found: IntArray = self.categories["end_ns"] - self.categories["start_ns"]
        return found

    @property
    def ids(self) -> IntArray:
        """``gpu_op.id`` of each operation."""
        return self.categories["gpu_op_id"]

    def kernel_names(self, rows: IntArray) -> list[str]:
        """Names of the kernels of some operations, as the page shows them."""
        texts = self.categories.texts["kernel"]
        codes = self.categories["kernel"][rows].tolist()
        return [texts[code][:LONGEST_NAME] if code >= 0 else NOTHING for code in codes]

    def grouping(self, by: str) -> Grouping:
        """Groups under a key of ``GROUPINGS``; kept.

        Raises:
            UsageError: there is no such key.
        """
        if by not in self._groupings:
            self._groupings[by] = self.grouped(by)
        return self._groupings[by]

    def grouped(self, by: str) -> Grouping:
        """The same, made again and not kept."""
        by_ = grouped_by(by)
        first, *others = by_.keys
        columns = [self._column(first, by_.rather), *map(self._column, others)]
        key = np.zeros(len(self.categories), np.int64)
        for codes, texts in columns:
            key = key * (len(texts) + 1) + codes + 1
        distinct, code = _factored(key)
        names: list[tuple[str | None, ...]] = []
        for value in distinct.tolist():
            left = value
            parts: list[str | None] = []
            for _, texts in reversed(columns):
                left, at = divmod(left, len(texts) + 1)
                parts.append(texts[at - 1] if at else None)
            names.append(tuple(reversed(parts)))
        most = int(self.ns.max(initial=0)) + 1
        if len(names) * most < 1 << 62:  # one sort instead of two
            order = np.argsort(code * most + self.ns, kind="stable")
        else:
            order = np.lexsort((self.ns, code))
        return Grouping(names, code, order)

    def _column(self, name: str, rather: str = "") -> tuple[IntArray, list[str]]:
        """Codes and texts of a key column, see ``GroupBy``; equal texts share a code."""
        codes, texts = self.categories[name].astype(np.int64), self.categories.texts[name]
        if not rather:
            return codes, texts
        before, earlier = self.categories[rather], self.categories.texts[rather]
        texts = [*earlier, *texts]
        place: dict[str, int] = {}
        numbers = [place.setdefault(text, i) for i, text in enumerate(texts)]
        shared = np.array([*numbers, -1], np.int64)
        codes = np.where(codes >= 0, codes + len(earlier), -1)
        return shared[np.where(before >= 0, before, codes)], texts

    def table(self, by: str, window: Window) -> TableAnswer:
        """One row a group: how often, how long; the longest time first.

        Args:
            by: key of ``GROUPINGS``.
            window: what counts.

        Raises:
            UsageError: there is no such key.
        """
        groups = self.grouping(by)
        rows = groups.order[window.chosen[groups.order]]
        code, ns = groups.code[rows], self.ns[rows]
        first = np.flatnonzero(np.concatenate(([True], code[1:] != code[:-1])))[: len(code)]
        count = np.diff(np.append(first, len(code)))
        total = np.add.reduceat(ns, first) if len(first) else ns
        median, p95 = _quantile(ns, first, count, 0.5), _quantile(ns, first, count, 0.95)
        longest = rows[first + count - 1]
        # by time; of equals by name, as the statement of stepscope kernels does
        names = [groups.names[g][0] or NOTHING for g in code[first].tolist()]
        best = sorted(range(len(first)), key=lambda i: (-int(total[i]), names[i]))
        kept = np.array(best[:MOST_GROUPS], np.int64)
        return {
            "by": by,
            "begin": window.begin,
            "end": window.end,
            "wall_ns": window.wall_ns,
            "steps": window.steps,
            "keys": list(grouped_by(by).keys),
            "left_out": len(best) - len(kept),
            "columns": {
                "group": code[first][kept].tolist(),
                "names": [shown(groups.names[g]) for g in code[first][kept].tolist()],
                "count": count[kept].tolist(),
                "total_ns": total[kept].tolist(),
                "mean_ns": (total[kept] / count[kept]).tolist(),
                "median_ns": median[kept].tolist(),
                "p95_ns": p95[kept].tolist(),
                "share": (total[kept] / max(1, window.wall_ns)).tolist(),
                "longest_kernel": self.kernel_names(longest[kept]),
            },
        }

    def instances(self, by: str, group: int, window: Window) -> tuple[IntArray, int]:
        """Operations of one group in order of time, at most ``MOST_INSTANCES``, and how many.

        Raises:
            UsageError: there is no such key or group.
        """
        groups = self.grouping(by)
        if not 0 <= group < len(groups.names):
            raise UsageError(f"there is no group {group} in the table by {by}")
        rows = np.flatnonzero((groups.code == group) & window.chosen)
        rows = rows[np.argsort(self.start_ns[rows], kind="stable")]
        return rows[:MOST_INSTANCES], len(rows)


def _factored(key: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct values, ascending, and which of them each is; none is negative."""
    most = int(key.max(initial=-1)) + 1
    if most > 2 * len(key) + 1000:
        distinct, code = with_inverse(key)
        return distinct, code.reshape(-1).astype(np.int64)
    present = np.bincount(key, minlength=most) > 0  # few values: counting needs no sorting
    place = np.cumsum(present) - 1
    return np.flatnonzero(present), place[key]


def shown(names: tuple[str | None, ...]) -> list[str]:
    """Values of the key columns of one group as the page shows them."""
    first, *others = names
    return [(first or NOTHING)[:LONGEST_NAME], *((name or "")[:LONGEST_NAME] for name in others)]


def _quantile(ns: IntArray, first: IntArray, count: IntArray, q: float) -> AnyArray:
    """A quantile of each run of sorted lengths, interpolated as DuckDB's ``quantile_cont``."""
    at = (count - 1) * q
    low = np.floor(at).astype(np.int64)
    high = np.minimum(low + 1, count - 1)
    below, above = ns[first + low], ns[first + high]
    found: AnyArray = below + (at - low) * (above - below)
    return found
