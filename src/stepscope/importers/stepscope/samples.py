"""What was sampled beside the program: states of threads, Python stacks, counters of GPUs.

The hook writes two files for each process. ``stacks.PID.tsv``: monotonic time in ns, thread, number
of the stack. ``frames.PID.tsv``: first a line ``P``, process, parent, rank, period in ns; then
``F``, number, line, function, file, and ``S``, number, the frames' numbers, outermost first.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepscope.importers.common.sink import Sink
from stepscope.importers.common.texts import dictionary
from stepscope.importers.stepscope.about import Window
from stepscope.importers.stepscope.raw import Files, Raw
from stepscope.intervals.distinct import among, distinct_rows, distinct_values, with_inverse
from stepscope.trace.frame import AnyArray, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

THREADS_FILE = "threads.tsv"
"""Columns: monotonic time in ns, process, thread, state letter of proc(5), ns on a CPU since the
thread's start, ns spent waiting for one; the last two are -1 where the kernel does not tell."""
TABLE = "thread_state"
_COLUMNS = ("time", "process", "thread", "state", "run", "wait")
_STATES = ["running", "runnable", "sleeping", "disk", "stopped"]
_RUNNING, _RUNNABLE, _SLEEPING, _DISK, _STOPPED = range(len(_STATES))
_LETTERS = {"R": _RUNNING, "D": _DISK, "T": _STOPPED, "t": _STOPPED}
"""All other letters are kinds of sleep."""


def read_threads(sink: Sink, files: Files, processes: set[int], window: Window) -> None:
    """Fill ``thread_state``.

    Between two readings of a thread, how long it ran and how long it waited for a CPU is exact.
    The rest is what it was doing at the first of them: asleep, or in an uninterruptible wait. In
    which order, within that period, is not known: what it did at the first reading is put first.

    Args:
        sink: takes the rows.
        files: the capture's files.
        processes: those whose threads belong here.
        window: monotonic times; what lies outside is left out.
    """
    rows = _table(files.path(THREADS_FILE), _COLUMNS, {"state"})
    if rows is None:
        return
    time, process, thread, run, wait = (
        rows.column(name).to_numpy() for name in ("time", "process", "thread", "run", "wait")
    )
    encoded = rows.column("state").combine_chunks().dictionary_encode()
    letters = np.array(
        [_LETTERS.get(letter, _SLEEPING) for letter in encoded.dictionary.to_pylist()], np.int64
    )
    state = letters[encoded.indices.to_numpy()]
    kept = among(process, list(processes))
    order = np.flatnonzero(kept)[np.lexsort((time[kept], thread[kept], process[kept]))]
    time, process, thread, run, wait, state = (
        column[order] for column in (time, process, thread, run, wait, state)
    )
    pairs = np.flatnonzero((process[1:] == process[:-1]) & (thread[1:] == thread[:-1]))
    begin, end, code = _parts(time, run, wait, state, pairs)
    owner = np.repeat(pairs, 3)
    inside = (end > begin) & (end > window.start_ns) & (begin < window.end_ns)
    begin, end, code, owner = begin[inside], end[inside], code[inside], owner[inside]
    begin = np.maximum(begin, window.start_ns)
    end = np.minimum(end, window.end_ns)
    first = _changes(process[owner], thread[owner], code, begin, end)
    if not len(first):
        return
    last = np.append(first[1:] - 1, len(owner) - 1)
    begin, end, code, owner = begin[first], end[last], code[first], owner[first]
    order = np.argsort(begin, kind="stable")
    who = owner[order]
    seen = who[distinct_rows((process[who], thread[who]))[0]]
    sink.threads |= set(zip(process[seen].tolist(), thread[seen].tolist(), strict=True))
    sink.put(
        TABLE,
        {
            "process_id": process[who],
            "thread_id": thread[who],
            "start_ns": sink.times(begin[order]),
            "end_ns": sink.times(end[order]),
            "state": dictionary(code[order], _STATES),
        },
    )


def _table(path: Path, columns: Sequence[str], texts: Collection[str] = ()) -> pa.Table | None:
    """Whole rows of a file of numbers (and some texts) between tabs; None without any."""
    import pyarrow as pa
    from pyarrow import csv

    kinds = {name: pa.string() if name in texts else pa.int64() for name in columns}
    try:
        # a killed launcher may have left half a line, with too few columns or a short number
        return csv.read_csv(
            path,
            csv.ReadOptions(column_names=list(columns)),
            csv.ParseOptions(delimiter="\t", invalid_row_handler=lambda row: "skip"),
            csv.ConvertOptions(column_types=kinds),
        ).drop_null()
    except (OSError, pa.ArrowInvalid):
        return None


def _parts(
    time: IntArray, run: IntArray, wait: IntArray, state: IntArray, pairs: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Begin, end and state of the three parts of each period, some of them empty."""
    length = time[pairs + 1] - time[pairs]
    held = state[pairs]
    reported = run[pairs] >= 0
    ran = np.where(reported, run[pairs + 1] - run[pairs], np.where(held == _RUNNING, length, 0))
    ran = np.clip(ran, 0, length)
    waited = np.where(reported, wait[pairs + 1] - wait[pairs], 0)
    waited = np.clip(waited, 0, length - ran)
    rest = length - ran - waited
    on = held == _RUNNING
    one = np.where(on, ran, rest)
    three = length - one - waited
    quiet = np.where(on, state[pairs + 1], held)
    quiet = np.where(quiet == _RUNNING, _SLEEPING, quiet)
    begin = np.stack([time[pairs], time[pairs] + one, time[pairs] + one + waited], axis=1)
    end = begin + np.stack([one, waited, three], axis=1)
    code = np.stack(
        [
            np.where(on, _RUNNING, quiet),
            np.full(len(pairs), _RUNNABLE),
            np.where(on, quiet, _RUNNING),
        ],
        axis=1,
    )
    return begin.reshape(-1), end.reshape(-1), code.reshape(-1)


def _changes(*columns: AnyArray) -> IntArray:
    """Rows that begin another interval than the row before goes on with.

    The columns are process, thread, state, begin and end.
    """
    process, thread, code, begin, end = columns
    if not len(process):
        return np.empty(0, np.int64)
    same = (
        (process[1:] == process[:-1])
        & (thread[1:] == thread[:-1])
        & (code[1:] == code[:-1])
        & (begin[1:] == end[:-1])
    )
    return np.flatnonzero(np.concatenate(([True], ~same)))


_SAMPLE_COLUMNS = ("time", "thread", "stack")


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
        samples = _table(path, _SAMPLE_COLUMNS)
        if match is None or samples is None:
            continue
        known = _frames(files.path(f"frames.{match[1]}.tsv"))
        time, thread, stack = (samples.column(name).to_numpy() for name in _SAMPLE_COLUMNS)
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


COUNTERS_FILE = "counters.csv"
"""Columns: monotonic time in ns, index of the GPU in the machine, its uuid, counter, value."""
_MOST_GPUS = 1 << 16


def read_counters(sink: Sink, files: Files, raws: Sequence[Raw], window: Window) -> None:
    """Fill ``metric_sample`` with the samples inside the window of the GPUs that were used."""
    path = files.path(COUNTERS_FILE)
    if not path.exists():
        return
    ordinals = {
        str(device.get("uuid")): int(device["device"])
        for raw in raws
        for device in raw.one("devices").get("devices", [])
    }
    used = {device for _, _, device, _ in sink.streams}
    times, gpus, names, values = [], [], [], []
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                ((time, gpu, uuid, name, value),) = csv.reader([line])
                sample = int(time), int(gpu), float(value)
            except (ValueError, csv.Error):
                continue  # the last line of a file that was cut short
            if not 0 <= sample[1] < _MOST_GPUS:
                continue
            mine = uuid not in ordinals or ordinals[uuid] in used
            if mine and window.start_ns <= sample[0] <= window.end_ns:
                times.append(sample[0])
                gpus.append(sample[1])
                values.append(sample[2])
                names.append(name)
    words, codes = with_inverse(np.array(names, dtype=object))
    sink.put(
        "metric_sample",
        {
            "time_ns": sink.times(np.array(times, np.int64)),
            "device": np.array(gpus, np.int32),
            "metric": dictionary(codes, [str(word) for word in words]),
            "value": np.array(values),
        },
    )
