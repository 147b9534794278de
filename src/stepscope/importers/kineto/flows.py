"""Links from backward operators to their forward operators."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stepscope.importers.kineto.columns import Columns, Events, Ints, integers, nanoseconds
from stepscope.importers.kineto.events import MISSING
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.problems import ProblemLog


@dataclass
class Flows:
    """Arrows from a forward operator to the operator of its backward pass."""

    columns: dict[str, Columns] = field(default_factory=lambda: {"s": Columns(), "f": Columns()})

    def add(self, events: Events) -> None:
        """Take over flow events of forward/backward arrows."""
        for phase, columns in self.columns.items():
            chosen = [event for event in events if event.ph == phase]
            if chosen:
                time, timed = nanoseconds([event.ts for event in chosen])
                columns.add(
                    id=integers([event.id for event in chosen])[timed],
                    tid=integers([event.tid for event in chosen])[timed],
                    time=time[timed],
                )

    def resolve(self, tid: Ints, start: Ints, origin_ns: int, problems: ProblemLog) -> Ints:
        """Start of the forward operator for each operator, ``MISSING`` where none is known.

        Args:
            tid: thread of every operator.
            start: start of every operator, ns since the origin.
            origin_ns: subtracted from the times of the arrows.
            problems: counts arrows that lead to no operator.
        """
        found = np.full(len(start), MISSING)
        heads, tails = self.columns["f"], self.columns["s"]
        if not heads.rows or not tails.rows:
            return found
        tail_id, tail_time = tails.pop("id"), tails.pop("time") - origin_ns
        by_id = np.argsort(tail_id, kind="stable")
        head_id, head_tid = heads.pop("id"), heads.pop("tid")
        head_time = heads.pop("time") - origin_ns
        tail = by_id[np.minimum(np.searchsorted(tail_id, head_id, sorter=by_id), len(by_id) - 1)]
        paired = tail_id[tail] == head_id
        unresolved = int((~paired).sum())
        for thread in distinct_values(head_tid[paired]):
            arrows = np.flatnonzero(paired & (head_tid == thread))
            rows = np.flatnonzero(tid == thread)
            rows = rows[np.argsort(start[rows], kind="stable")]  # parents come before children
            at = np.searchsorted(start[rows], head_time[arrows])
            hit = at < len(rows)
            hit[hit] = start[rows[at[hit]]] == head_time[arrows[hit]]
            found[rows[at[hit]]] = tail_time[tail[arrows[hit]]]
            unresolved += int((~hit).sum())
        problems.count("unresolved_forward", unresolved, scope="operator")
        return found
