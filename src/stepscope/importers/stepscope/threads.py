"""Readings of ``/proc`` to the table ``thread_state``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepscope.importers.stepscope.about import Window
from stepscope.importers.stepscope.files import Files
from stepscope.importers.stepscope.sink import Sink, dictionary
from stepscope.intervals.distinct import among, distinct_rows
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
    rows = _rows(files.path(THREADS_FILE))
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


def _rows(path: Path) -> pa.Table | None:
    import pyarrow as pa
    from pyarrow import csv

    if not path.exists() or not path.stat().st_size:
        return None
    kinds = dict.fromkeys(_COLUMNS, pa.int64()) | {"state": pa.string()}
    try:
        # a killed launcher may have left half a line, with too few columns or a short number
        return csv.read_csv(
            path,
            csv.ReadOptions(column_names=list(_COLUMNS)),
            csv.ParseOptions(delimiter="\t", invalid_row_handler=lambda row: "skip"),
            csv.ConvertOptions(column_types=kinds),
        ).drop_null()
    except pa.ArrowInvalid:
        return None


def _parts(
    time: IntArray, run: IntArray, wait: IntArray, state: IntArray, pairs: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Begin, end and state of the three parts of each period, some of them empty."""
    length = time[pairs + 1] - time[pairs]
    held = state[pairs]
    told = run[pairs] >= 0
    ran = np.where(told, run[pairs + 1] - run[pairs], np.where(held == _RUNNING, length, 0))
    ran = np.clip(ran, 0, length)
    waited = np.where(told, wait[pairs + 1] - wait[pairs], 0)
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
