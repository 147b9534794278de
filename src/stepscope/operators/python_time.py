"""Where Python spends the steps: functions or lines by phase and thread, the GIL, the collector.

Traced functions (``with_stack=True``) tell the time in which a function of the program was the
innermost one, framework code that it called included. Samples (``--sample-hz``) tell lines of the
main thread: each stands for the time to the next.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from stepscope.activity.locations import SampledLines
from stepscope.breakdown.explain import Explanation
from stepscope.intervals import overlap_per_window, union
from stepscope.intervals.algebra import intersect
from stepscope.intervals.distinct import distinct_rows, distinct_values
from stepscope.jobs.view import Device, JobView
from stepscope.operators.calltree import call_tree
from stepscope.operators.phases import PHASES, gpu_phases, host_phases
from stepscope.trace.frame import IntArray

SCHEMA: Final = "stepscope.python_time/1"

COLLECTOR_DOMAIN: Final = "python gc"
"""NVTX domain in which own captures mark long runs of Python's garbage collector."""
_NAMES: Final = tuple(PHASES)


class PythonTime(msgspec.Struct, frozen=True):
    """Time of one function or line in one phase, on one thread, in the steady steps.

    Attributes:
        rank: rank.
        thread_id: operating-system thread id.
        thread: name of the thread; ``main`` for the one that drives training.
        phase: phase that the main thread was in when it began, or when the sample was taken.
        place: function as ``step() train.py:99`` (the line of its ``def``), or sampled line.
        time_ns: time in which it was the innermost of the program.
        share: part of the steady steps on the host.
        evidence: ``traced functions`` or ``samples``.
    """

    rank: int
    thread_id: int
    thread: str
    phase: str
    place: str
    time_ns: int
    share: float
    evidence: str


class PythonProcess(msgspec.Struct, frozen=True):
    """The GIL and the garbage collector of one process, in the steady steps.

    Attributes:
        rank: rank.
        host_wall_ns: length of the steady steps on the host.
        gil_held_ns: time in which the main thread held the GIL; null where it is not recorded.
        gil_waited_ns: time in which the main thread waited for it; null where not recorded.
        gil_held_by_others_ns: time in which other threads held it; null where not recorded.
        collections: long runs of the garbage collector; null where they are not recorded.
        collecting_ns: their time; null where they are not recorded.
    """

    rank: int
    host_wall_ns: int
    gil_held_ns: int | None
    gil_waited_ns: int | None
    gil_held_by_others_ns: int | None
    collections: int | None
    collecting_ns: int | None


class PythonReport(msgspec.Struct, frozen=True):
    """Where Python spends the steady steps.

    Attributes:
        schema: name and version of this contract.
        paths: the inputs as the user named them.
        places: functions or lines, those of main threads first, then the longest time first.
        processes: one entry a process.
        warnings: what is missing, and what would tell it.
    """

    schema: str
    paths: list[str]
    places: list[PythonTime]
    processes: list[PythonProcess]
    warnings: list[str]


def python_time(job: JobView, paths: list[str]) -> PythonReport:
    """Where Python spends the steady steps of every process of a job."""
    places: list[PythonTime] = []
    processes: list[PythonProcess] = []
    seen: set[tuple[int, int]] = set()
    for device in job.devices:
        key = device.trace_rank, device.explanation.gpu.process_id
        if key in seen:
            continue
        seen.add(key)
        places += _places(device)
        processes.append(_process(device))
    # other threads mostly wait, which is no time that the steps take
    places.sort(
        key=lambda entry: (entry.thread != "main", -entry.time_ns, entry.rank, entry.place,
                           entry.phase)
    )  # fmt: skip
    warnings = []
    if not places:
        warnings.append(
            "neither Python functions nor samples are recorded; capture with stepscope run "
            "--sample-hz 200, or torch.profiler.profile(with_stack=True)"
        )
    if all(process.gil_held_ns is None for process in processes):
        warnings.append("the GIL is not recorded; nsys profile -t cuda,nvtx,python-gil records it")
    if all(process.collections is None for process in processes):
        warnings.append("the garbage collector is not recorded; stepscope run marks its long runs")
    return PythonReport(SCHEMA, paths, places, processes, warnings)


def host_window(e: Explanation) -> tuple[int, int]:
    """The steady steps on the host, ns."""
    past = e.last + 1
    end = int(e.steps.begin_ns[past]) if past < len(e.steps) else int(e.steps.end_ns)
    return int(e.steps.begin_ns[e.first]), end


def _phase_at(device: Device, begin: int, end: int, at: IntArray) -> IntArray:
    """Phase of the main thread at some times of the window."""
    e = device.explanation
    painted = host_phases(e, gpu_phases(e)[0], device, begin, end)
    row = np.searchsorted(painted.start_ns, at, side="right") - 1
    return painted.phase[np.clip(row, 0, len(painted.phase) - 1)]


def _places(device: Device) -> list[PythonTime]:
    e = device.explanation
    begin, end = host_window(e)
    process, main = e.gpu.process_id, e.gpu.host.main_thread
    names = _thread_names(device)
    if len(device.read("python_function", "process_id")):
        tree = call_tree(device.read)
        inside = (tree.process == process) & (tree.start_ns < end) & (tree.end_ns > begin)
        rows = np.flatnonzero(inside & (tree.program >= 0))
        thread = tree.thread[rows]
        code = tree.name[tree.program[rows]]
        # of what reaches over an edge of the window, the part inside counts
        own = tree.self_cpu_ns[rows]
        length = np.maximum(tree.duration_ns[rows], 1)
        part = np.minimum(tree.end_ns[rows], end) - np.maximum(tree.start_ns[rows], begin)
        time = np.where(part < length, own * part // length, own)
        at = np.clip(tree.start_ns[rows], begin, end - 1)
        names_of = {at: tree.source_text(at) for at in distinct_values(code).tolist()}
        evidence = "traced functions"
    else:
        lines = SampledLines(e.gpu, device.read)
        at, code = lines.samples
        kept = (at >= begin) & (at < end) & (code >= 0)
        at, code = at[kept], code[kept]
        thread = np.full(len(at), main)
        time = np.full(len(at), lines.period_ns)
        names_of = {at: f"{function}() {line}" for at, (line, function) in enumerate(lines.lines)}
        evidence = "samples"
    if not len(at):
        return []
    phase = _phase_at(device, begin, end, at)
    first, group = distinct_rows([thread, phase, code])
    held = np.bincount(group, weights=time)
    return [
        PythonTime(
            rank=device.rank,
            thread_id=int(thread[row]),
            thread="main" if thread[row] == main else names.get(int(thread[row]), ""),
            phase=_NAMES[int(phase[row])],
            place=names_of[int(code[row])],
            time_ns=round(held[number]),
            share=float(held[number]) / max(end - begin, 1),
            evidence=evidence,
        )
        for number, row in enumerate(first.tolist())
        if held[number] >= 1
    ]


def _thread_names(device: Device) -> dict[int, str]:
    table = device.read("thread", "process_id", "thread_id", "name")
    mine = np.flatnonzero(table["process_id"] == device.explanation.gpu.process_id)
    return {int(table["thread_id"][row]): table.text("name", int(row)) for row in mine.tolist()}


def _process(device: Device) -> PythonProcess:
    e = device.explanation
    begin, end = host_window(e)
    window = np.array([begin]), np.array([end])
    lock = device.read("gil", "process_id", "thread_id", "start_ns", "end_ns", "state")
    lock = lock.take(lock["process_id"] == e.gpu.process_id)
    spent: dict[str, int | None] = {"held": None, "waited": None, "others": None}
    if len(lock):
        main = lock["thread_id"] == e.gpu.host.main_thread
        holding = lock.equals("state", "holding")
        for name, rows in (
            ("held", main & holding),
            ("waited", main & ~holding),
            ("others", ~main & holding),
        ):
            covered = union(lock["start_ns"][rows], lock["end_ns"][rows])
            spent[name] = int(overlap_per_window(covered, *window)[0])
    ranges = e.gpu.host.ranges
    marks = ranges.equals("domain", COLLECTOR_DOMAIN) if len(ranges) else np.zeros(0, bool)
    runs = intersect(union(ranges["start_ns"][marks], ranges["end_ns"][marks]), window) if (
        marks.any()
    ) else None  # fmt: skip
    return PythonProcess(
        rank=device.rank,
        host_wall_ns=end - begin,
        gil_held_ns=spent["held"],
        gil_waited_ns=spent["waited"],
        gil_held_by_others_ns=spent["others"],
        collections=None if runs is None else len(runs[0]),
        collecting_ns=None if runs is None else int((runs[1] - runs[0]).sum()),
    )
