"""What a trace without GPU work tells: launches without their kernels, ranges that repeat."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity.device import RANGE_COLUMNS, Reader
from stepscope.intervals.distinct import distinct_rows

_LAUNCH: Final = re.compile(r"^(cuda|cu|hip)\w*(Launch\w*Kernel|GraphLaunch)")
_FEWEST: Final = 3
_NAMED: Final = 3


@dataclass(frozen=True)
class Repeated:
    """A range that repeats on the thread whose ranges last longest.

    Attributes:
        name: its name.
        count: how often it was opened.
        typical_ns: median length.
    """

    name: str
    count: int
    typical_ns: int


@dataclass(frozen=True)
class WithoutGpu:
    """What is known without GPU work.

    Attributes:
        launches: recorded calls that launch kernels or graphs.
        api: ``cuda`` or ``hip``, by the launches; empty without any.
        devices: names of the GPUs that the trace describes.
        operators: whether there are framework operators.
        repeated: the ranges that take most time of those that repeat as often as the longest.
        period_ns: median time from one begin of the first of them to the next; 0 without any.
    """

    launches: int
    api: str
    devices: list[str]
    operators: bool
    repeated: list[Repeated]
    period_ns: int


def without_gpu(read: Reader) -> WithoutGpu:
    """What a trace without GPU work tells.

    Args:
        read: gives tables as frames.
    """
    api = read("api_call", "name")
    launches = api.matches("name", _LAUNCH) if len(api) else np.zeros(0, bool)
    first = int(np.argmax(launches)) if launches.any() else -1
    device = read("device", "name")
    names = {device.text("name", row) for row in range(len(device))}
    repeated, period = _repeated(read)
    return WithoutGpu(
        launches=int(launches.sum()),
        api="" if first < 0 else "hip" if api.text("name", first).startswith("hip") else "cuda",
        devices=sorted(name for name in names if name),
        operators=bool(len(read("operator", "name"))),
        repeated=repeated,
        period_ns=period,
    )


def _repeated(read: Reader) -> tuple[list[Repeated], int]:
    ranges = read("range", *RANGE_COLUMNS)
    ranges = ranges.take(ranges.equals("kind", "pushpop", "startend", "annotation"))
    if not len(ranges):
        return [], 0
    took = ranges["end_ns"] - ranges["start_ns"]
    key = [ranges[name] for name in ("process_id", "thread_id", "name")]
    rows, of = distinct_rows(key)
    groups = np.stack([column[rows] for column in key], axis=1)
    count, total = np.bincount(of), np.bincount(of, weights=took)
    often = np.flatnonzero(count >= _FEWEST)
    if not len(often):
        return [], 0
    first = often[int(np.argmax(total[often]))]
    # what repeats as often on the same thread is a part of the same iteration
    same = often[(groups[often, :2] == groups[first, :2]).all(axis=1)]
    same = same[count[same] == count[first]]
    same = same[np.argsort(-total[same], kind="stable")][:_NAMED]
    found = [
        Repeated(
            ranges.texts["name"][int(groups[group, 2])],
            int(count[group]),
            int(np.median(took[of == group])),
        )
        for group in same.tolist()
    ]
    begins = np.sort(ranges["start_ns"][of == first])
    return found, int(np.median(np.diff(begins)))
