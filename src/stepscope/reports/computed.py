"""What statements of reports read and SQL does not do well, as columns: found with numpy.

Which ranges enclose a call, and how ranges nest, are joins of intervals within a thread; DuckDB
compares every range of the thread with every call of it. Steps are found by their own analysis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from stepscope.activity.communication import is_communication
from stepscope.breakdown.explain import explain
from stepscope.intervals.distinct import common_values, with_inverse
from stepscope.intervals.nesting import nest
from stepscope.trace.frame import AnyArray, IntArray
from stepscope.trace.trace import Trace

Columns = dict[str, AnyArray]
Ask = Callable[[str], Columns]
"""Gives the columns of a statement."""

_PLACE = "id, process_id, thread_id, start_ns, end_ns"


def _threads(*tables: Columns) -> list[IntArray]:
    """One number a (process, thread), the same in all tables."""
    process, thread = (
        with_inverse(np.concatenate([table[name] for table in tables]))[1]
        for name in ("process_id", "thread_id")
    )
    number = process.astype(np.int64) * (int(thread.max(initial=0)) + 1) + thread
    return np.split(number, np.cumsum([len(table["id"]) for table in tables])[:-1])


def _enclosing(ranges: Columns, calls: Columns) -> tuple[IntArray, IntArray]:
    """Every pair (row of range, row of call) of one thread, bounds included."""
    of_range, of_call = _threads(ranges, calls)
    none = np.empty(0, np.int64)
    found = [(none, none)]
    for thread in common_values(of_range, of_call).tolist():
        mine, theirs = np.flatnonzero(of_range == thread), np.flatnonzero(of_call == thread)
        theirs = theirs[np.argsort(calls["start_ns"][theirs], kind="stable")]
        begin = calls["start_ns"][theirs]
        low = np.searchsorted(begin, ranges["start_ns"][mine], side="left")
        high = np.searchsorted(begin, ranges["end_ns"][mine], side="right")
        count = np.maximum(high - low, 0)
        row = np.repeat(mine, count)
        at = np.arange(len(row)) + np.repeat(low - (np.cumsum(count) - count), count)
        inside = calls["end_ns"][theirs[at]] <= ranges["end_ns"][row]
        found.append((row[inside], theirs[at[inside]]))
    rows, of = zip(*found, strict=True)
    return np.concatenate(rows), np.concatenate(of)


def _both(ask: Ask) -> tuple[Columns, Columns]:
    return (
        ask(f"SELECT {_PLACE} FROM own_range ORDER BY id"),
        ask(f"SELECT {_PLACE} FROM launching_call ORDER BY id"),
    )


def _range_call(ask: Ask, _: Trace) -> Columns:
    ranges, calls = _both(ask)
    row, call = _enclosing(ranges, calls)
    return {"range": ranges["id"][row], "call": calls["id"][call]}


def _innermost_range(ask: Ask, _: Trace) -> Columns:
    """Of the ranges that enclose a call, the one that begins last; of equal begins the shortest."""
    ranges, calls = _both(ask)
    row, call = _enclosing(ranges, calls)
    innermost = np.full(len(calls["id"]), -1, np.int64)
    order = np.lexsort((-row, -ranges["end_ns"][row], ranges["start_ns"][row]))
    innermost[call[order]] = row[order]
    known = innermost >= 0
    return {"range": ranges["id"][innermost[known]], "call": calls["id"][known]}


def _tree(view: str) -> Callable[[Ask, Trace], Columns]:
    """Place of each range among those of its thread: the parent is the tightest around it."""

    def find(ask: Ask, _: Trace) -> Columns:
        ranges = ask(f"SELECT {_PLACE}, row_id FROM {view} ORDER BY id")
        ids = ranges["id"]
        parent, level = nest(ranges["start_ns"], ranges["end_ns"], _threads(ranges)[0])
        stacks = [""] * len(ids)
        names = ranges["row_id"].tolist()
        for row in np.argsort(level, kind="stable").tolist():
            above = stacks[parent[row]] if parent[row] >= 0 else ""
            stacks[row] = f"{above}:{names[row]}"
        stack = np.array(stacks, dtype=object)
        return {"id": ids, "parent": np.append(ids, -1)[parent], "level": level, "stack": stack}

    return find


def _steady_step(_: Ask, trace: Trace) -> Columns:
    rows = [
        (place, gpu.gpu.process_id, gpu.gpu.device, start, end)
        for place, gpu in enumerate(explain(trace.frame, trace.meta))
        for start, end in zip(
            gpu.bounds_ns[gpu.first : gpu.last + 1].tolist(),
            gpu.bounds_ns[gpu.first + 1 : gpu.last + 2].tolist(),
            strict=True,
        )
    ]
    table = np.array(rows, np.int64).reshape(-1, 5)
    names = ("place", "process_id", "device", "start_ns", "end_ns")
    return {name: table[:, column] for column, name in enumerate(names)}


def _communication(ask: Ask, _: Trace) -> Columns:
    names = ask("SELECT DISTINCT name FROM kernel")["name"]
    return {"name": np.array([name for name in names if is_communication(name)], dtype=object)}


COMPUTED: Final[dict[str, Callable[[Ask, Trace], Columns]]] = {
    "range_call": _range_call,
    "innermost_range": _innermost_range,
    "range_tree": _tree("own_range"),
    "pushpop_tree": _tree("pushpop"),
    "steady_step": _steady_step,
    "communication": _communication,
}
"""Name in statements -> what finds its columns."""
