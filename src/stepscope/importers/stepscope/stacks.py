"""Python stacks that the hook sampled: the tables ``cpu_sample`` and ``stack_frame``.

For each process there are two files. ``stacks.PID.tsv``: monotonic time in ns, thread, number of
the stack. ``frames.PID.tsv``: first a line ``P``, process, parent, rank, period in ns; then
``F``, number, line, function, file, and ``S``, number, the frames' numbers, outermost first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stepscope.importers.stepscope.about import Window
from stepscope.importers.stepscope.files import Files
from stepscope.importers.stepscope.sink import Sink, dictionary
from stepscope.intervals.distinct import among, distinct_values, with_inverse
from stepscope.trace.frame import IntArray

_COLUMNS = ("time", "thread", "stack")


@dataclass
class _Frames:
    """What a file of frames holds; lines that were cut short are left out."""

    period_ns: int = 0
    frames: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    stacks: dict[int, list[int]] = field(default_factory=dict)


def read_stacks(sink: Sink, files: Files, window: Window) -> None:
    """Fill ``cpu_sample`` and ``stack_frame`` from all processes' samples.

    Args:
        sink: takes the rows.
        files: the capture's files.
        window: monotonic times; samples outside are left out.
    """
    before = 0
    for path in files.like("stacks.*.tsv"):
        match = re.fullmatch(r"stacks\.(\d+)\.tsv", path.name)
        samples = _samples(path)
        if match is None or samples is None:
            continue
        known = _frames(files.path(f"frames.{match[1]}.tsv"))
        time, thread, stack = samples
        inside = (time >= window.start_ns) & (time <= window.end_ns)
        inside &= among(stack, list(known.stacks))
        time, thread, stack = time[inside], thread[inside], stack[inside]
        if not len(time):
            continue
        process = int(match[1])
        used, renumbered = with_inverse(stack)
        sink.threads |= {(process, number) for number in distinct_values(thread).tolist()}
        sink.put(
            "cpu_sample",
            {
                "time_ns": sink.times(time),
                "process_id": np.full(len(time), process),
                "thread_id": thread,
                "weight": np.full(len(time), known.period_ns),
                "stack_id": renumbered + before,
            },
        )
        _put_frames(sink, known, used.tolist(), before)
        before += len(used)


def _put_frames(sink: Sink, known: _Frames, used: list[int], before: int) -> None:
    places = {number: place for place, number in enumerate(known.frames)}
    lines, names, files = (list(column) for column in zip(*known.frames.values(), strict=True))
    stacks: list[int] = []
    depths: list[int] = []
    frames: list[int] = []
    for place, number in enumerate(used):
        mine = [places[frame] for frame in known.stacks[number] if frame in places]
        stacks += [before + place] * len(mine)
        depths += range(len(mine))
        frames += mine
    at = np.array(frames, np.int64)
    sink.put(
        "stack_frame",
        {
            "stack_id": np.array(stacks, np.int64),
            "depth": np.array(depths, np.int32),
            "function": dictionary(at, names),
            "module": dictionary(at, files),
            "line": np.array(lines, np.int32)[at],
        },
    )


def _samples(path: Path) -> tuple[IntArray, IntArray, IntArray] | None:
    import pyarrow as pa
    from pyarrow import csv

    try:
        rows = csv.read_csv(
            path,
            csv.ReadOptions(column_names=list(_COLUMNS)),
            csv.ParseOptions(delimiter="\t", invalid_row_handler=lambda row: "skip"),
            csv.ConvertOptions(column_types=dict.fromkeys(_COLUMNS, pa.int64())),
        ).drop_null()
    except (OSError, pa.ArrowInvalid):
        return None
    time, thread, stack = (rows.column(name).to_numpy() for name in _COLUMNS)
    return time, thread, stack


def _frames(path: Path) -> _Frames:
    found = _Frames()
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return found
    for line in text[: text.rfind("\n") + 1].splitlines():
        try:
            kind, number, *rest = line.split("\t")
            if kind == "P":
                found.period_ns = int(rest[2])
            elif kind == "F":
                found.frames[int(number)] = (int(rest[0]), rest[1], rest[2])
            elif kind == "S":
                found.stacks[int(number)] = [int(frame) for frame in rest[0].split(",")]
        except (ValueError, IndexError):
            continue
    return found
