"""Which call launched which GPU work, and names of calls, for reports in Python."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stepscope.reports.arrays import group
from stepscope.reports.source import Rows
from stepscope.trace.frame import IntArray

_INTERFACE_VERSION = re.compile(r"_v\d{4}$")


@dataclass(frozen=True)
class Names:
    """Names of some rows: codes into ``texts``."""

    codes: IntArray
    texts: list[str]


def call_names(calls: Rows, rows: IntArray | None = None) -> Names:
    """Names of API calls without a four-digit interface version (``_v3020``).

    Args:
        calls: the calls.
        rows: only of these.
    """
    codes = calls["raw_name"] if rows is None else calls["raw_name"][rows]
    names = Names(codes, calls.texts("raw_name"))
    return renamed(names, lambda text: _INTERFACE_VERSION.sub("", text))


def renamed(names: Names, change: object) -> Names:
    """Names with each distinct text changed; texts that become equal get one code."""
    assert callable(change)
    codes: dict[str, int] = {}
    mapping = [codes.setdefault(change(text), len(codes)) for text in names.texts]
    table = np.array([*mapping, -1], np.int64)
    return Names(table[names.codes], list(codes))


def launches(work: Rows, calls: Rows) -> tuple[IntArray, IntArray]:
    """Pairs (row of GPU work, row of the call that launched it): same process, same id.

    Work without a recorded call is in no pair; calls keep the order of their rows.
    """
    ids, call_ids = work["correlation_id"], calls["correlation_id"]
    if not len(ids) or not len(call_ids):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    process = np.concatenate([work["process_id"], calls["process_id"]])
    number = group(process)[0].astype(np.int64)
    span = max(int(ids.max()), int(call_ids.max())) + 2
    key = number[: len(ids)] * span + ids
    call_key = number[len(ids) :] * span + call_ids
    known = np.flatnonzero(call_ids >= 0)
    order = known[np.argsort(call_key[known], kind="stable")]
    ordered = call_key[order]
    low = np.searchsorted(ordered, key, side="left")
    high = np.where(ids >= 0, np.searchsorted(ordered, key, side="right"), low)
    rows, at = _spread(low, high)
    return rows, order[at]


def _spread(low: IntArray, high: IntArray) -> tuple[IntArray, IntArray]:
    """Every (row, position) with ``low[row] <= position < high[row]``."""
    count = high - low
    rows = np.repeat(np.arange(len(low)), count)
    first = np.repeat(low - (np.cumsum(count) - count), count)
    return rows, first + np.arange(len(rows))


def thread_keys(*tables: Rows) -> list[IntArray]:
    """One number a (process, thread), the same in all tables."""
    process = np.concatenate([rows["process_id"] for rows in tables])
    thread = np.concatenate([rows["thread_id"] for rows in tables])
    number, _ = group(process, thread)
    return np.split(number, np.cumsum([len(rows) for rows in tables])[:-1])
