"""Tracks of what the operating system did with each thread: states, CPUs, samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.intervals.distinct import distinct_rows, with_inverse
from stepscope.timeline import classes
from stepscope.timeline.track import Slices, Track, slices
from stepscope.trace.frame import Frame, IntArray
from stepscope.trace.schema import TABLES

if TYPE_CHECKING:
    from stepscope.timeline.source import Source

_COLUMNS: Final = {
    "thread_state": ("id", "process_id", "thread_id", "start_ns", "end_ns", "state"),
    "sched": ("id", "process_id", "thread_id", "start_ns", "end_ns", "cpu"),
    "cpu_sample": ("process_id", "thread_id", "time_ns", "stack_id"),
}
_TITLES: Final = {"thread_state": "Thread state", "sched": "On CPU", "cpu_sample": "CPU samples"}
_LONGEST_SAMPLE = 2
"""A sample is drawn until the next one of its thread, but at most so many of the thread's usual
distances: then the thread was not running, or samples were lost."""


def state_tracks(source: Source) -> Iterator[Track]:
    """Per thread: its states, when it ran on which CPU, its samples; what was recorded of them."""
    builds: dict[str, Callable[[Source, IntArray], Slices]] = {
        "thread_state": _states,
        "sched": _running,
        "cpu_sample": _samples,
    }
    for table, columns in _COLUMNS.items():
        if table not in TABLES:
            continue
        frame = source.read(table, *columns)
        if not len(frame):
            continue
        first, group = distinct_rows((frame["process_id"], frame["thread_id"]))
        threads = np.stack((frame["process_id"][first], frame["thread_id"][first]), axis=1)
        order = np.argsort(group, kind="stable")
        edges = np.searchsorted(group[order], np.arange(1, len(threads)))
        for (process_id, thread_id), rows in zip(
            threads.tolist(), np.split(order, edges), strict=True
        ):
            yield Track(
                0,
                _TITLES[table],
                table,
                f"{source.rank}/{process_id}/{thread_id}/{_TITLES[table]}",
                source.rank_trace,
                source.rank,
                build=partial(builds[table], source, rows),
                process_id=process_id,
                thread_id=thread_id,
            )


def _states(source: Source, rows: IntArray) -> Slices:
    frame = source.read("thread_state", *_COLUMNS["thread_state"]).take(rows)
    texts = frame.texts["state"]
    other = classes.CODE["os_other"]
    code = [classes.CODE.get(f"state_{text}", other) for text in [*texts, ""]]
    return _sliced(
        source, frame, source.names.numbers(texts)[frame["state"]],
        np.array(code, np.uint8)[frame["state"]],
    )  # fmt: skip


def _running(source: Source, rows: IntArray) -> Slices:
    frame = source.read("sched", *_COLUMNS["sched"]).take(rows)
    cpus, at = with_inverse(frame["cpu"])
    texts = [f"CPU {cpu}" if cpu >= 0 else "running" for cpu in cpus.tolist()]
    names = source.names.numbers(texts)[at.reshape(-1)]
    code = np.full(len(frame), classes.CODE["state_running"], np.uint8)
    return _sliced(source, frame, names, code)


def _sliced(source: Source, frame: Frame, names: IntArray, code: classes.Codes) -> Slices:
    offset = source.offset_ns
    return slices(frame["start_ns"] + offset, frame["end_ns"] + offset, names, code, frame["id"])


def _samples(source: Source, rows: IntArray) -> Slices:
    frame = source.read("cpu_sample", *_COLUMNS["cpu_sample"]).take(rows)
    time = frame["time_ns"]
    apart = np.diff(time)
    usual = int(np.median(apart)) if len(apart) else 0
    length = np.append(np.minimum(apart, _LONGEST_SAMPLE * usual), usual)
    names, texts = _innermost(source, frame["stack_id"])
    numbers = source.names.numbers(texts)
    return slices(
        time + source.offset_ns,
        time + length + source.offset_ns,
        numbers[names],
        classes.name_codes(texts)[names],
        rows,
    )


def _innermost(source: Source, stack: IntArray) -> tuple[IntArray, list[str]]:
    """Code of the innermost function of each stack, and the functions."""
    none = np.zeros(len(stack), np.int64)
    if "stack_frame" not in TABLES:
        return none, ["sample"]
    frames = source.read("stack_frame", "stack_id", "depth", "function")
    if not len(frames):
        return none, ["sample"]
    texts = [*frames.texts["function"], "sample"]
    order = np.lexsort((frames["depth"], frames["stack_id"]))
    ids = frames["stack_id"][order]
    last = np.flatnonzero(np.append(ids[1:] != ids[:-1], True))
    at = np.minimum(np.searchsorted(ids[last], stack), len(last) - 1)
    known = (stack >= 0) & (ids[last][at] == stack)
    return np.where(known, frames["function"][order[last[at]]], len(texts) - 1), texts
