"""How much of some intervals other work covers."""

from __future__ import annotations

import numpy as np

from stepscope.intervals import coverage, union
from stepscope.intervals.distinct import common_values
from stepscope.tabular.maths import group
from stepscope.tabular.source import Rows
from stepscope.trace.frame import IntArray


def covered_ns(rows: Rows, by: Rows) -> IntArray:
    """Time of each row during which work ``by`` ran on the same device of the same process, ns."""
    found = np.zeros(len(rows), np.int64)
    if not len(rows) or not len(by):
        return found
    process = np.concatenate([rows["process_id"], by["process_id"]])
    device = np.concatenate([rows["device"], by["device"]])
    number, _ = group(process, device)
    mine, theirs = number[: len(rows)], number[len(rows) :]
    for lane in common_values(mine, theirs).tolist():
        here, there = np.flatnonzero(mine == lane), theirs == lane
        work = union(by["start_ns"][there], by["end_ns"][there])
        start, end = rows["start_ns"][here], rows["end_ns"][here]
        found[here] = coverage(work, end) - coverage(work, start)
    return found
