"""What the operating system says about the training thread while the device idles.

Evidence beside a cause, where the capture holds ``thread_state``: it splits no time and makes no
cause. A state is worth a sentence when it takes most of the time that is charged to the cause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Final

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Detection, Figure
from stepscope.diagnosis.evidence import STEADY_STEPS
from stepscope.gaps.gil import are_scattered
from stepscope.intervals.algebra import Intervals, clip, intersect, total, union
from stepscope.intervals.distinct import among, distinct_values

Detect = Callable[[Case], Detection | None]

_MESSAGE: Final = {
    "runnable": (
        "for {thread_runnable_ns} of it the thread wanted a CPU and got none, because others were "
        "using them",
        "give the job more CPUs, or run fewer threads and processes beside it (OMP_NUM_THREADS, "
        "num_workers, other jobs): the training thread is kept from running",
    ),
    "disk": (
        "for {thread_disk_ns} of it the thread waited for a disk or file system",
        "read from a faster disk or from memory, in larger pieces, or ahead of time in other "
        "processes: the training thread itself waits for the disk",
    ),
}
"""State -> what it means, and what to do first."""


def with_thread_states(cause: str) -> Callable[[Detect], Detect]:
    """Add the states of the training thread to what a cause detects.

    Args:
        cause: the cause's id.
    """

    def around(detect: Detect) -> Detect:
        @wraps(detect)
        def detected(case: Case) -> Detection | None:
            found = detect(case)
            return None if found is None else _with_states(case, cause, found)

        return detected

    return around


def _with_states(case: Case, cause: str, found: Detection) -> Detection:
    thread = case.explanation.gpu.host.main_thread
    idle = _idle(case, cause)
    for state, (message, recommendations) in _MESSAGE.items():
        spent = total(intersect(idle, _in_state(case, thread, state)))
        if 2 * spent <= total(idle):
            continue
        figure = Figure(f"thread_{state}_ns", "ns_per_step", _sql(cause, thread, state))
        return replace(
            found,
            message=f"{found.message}; {message}",
            recommendations=[recommendations, *found.recommendations],
            figures=[*found.figures, figure],
        )
    return found


OTHERS: Final = 0.1
"""Share of the step for which threads that launch nothing run, from which on it is said."""

_NOT_PYTHON: Final = ("stepscope", "cuda", "pt_autograd", "pt_nccl", "gloo", "nccl")
"""Beginnings of the names of threads that run no Python, or none of the program's."""

_OTHERS_MESSAGE: Final = (
    "; meanwhile other threads of the process ran for {other_threads_ns}: where that was Python, "
    "they took the GIL from the thread that launches, which this capture cannot tell"
)


_PAUSES_MESSAGE: Final = (
    "; pauses of a millisecond and more make up much of it, at places that differ from step to "
    "step: another Python thread that holds the GIL, or another process on its CPU, which this "
    "capture cannot tell"
)


def beside_other_threads(case: Case, found: Detection) -> Detection:
    """Say that other threads ran while launches were late, where nothing tells what they did.

    A thread that computes in Python takes the interpreter's lock for up to 5 ms at a time; between
    two operators of the launching thread that looks like slow launching. Threads of native code
    (OpenMP, decoders) do no such harm, and states of threads tell the two not apart.

    Args:
        case: the device.
        found: what was seen of late launches.
    """
    e = case.explanation
    if e.gil.evidence >= 0 or len(case.device.read("gil", "process_id")):
        return found
    if not len(case.device.read("thread_state", "process_id")):
        return _with_pauses(case, found)
    threads = _others(case)
    running = sum(
        total(clip(_in_state(case, thread, "running"), e.begin_ns, e.end_ns)) for thread in threads
    )
    if running < OTHERS * (e.end_ns - e.begin_ns):
        return found
    listed = ", ".join(map(str, threads))
    figure = Figure(
        "other_threads_ns",
        "ns_per_step",
        "SELECT round(coalesce(sum(least(end_ns, (SELECT max(end_ns) FROM step WHERE steady AND "
        "{gpu})) - greatest(start_ns, (SELECT min(start_ns) FROM step WHERE steady AND {gpu}))), "
        f"0) / {STEADY_STEPS})::BIGINT FROM thread_state WHERE state = 'running' AND thread_id IN "
        f"({listed}) AND {{process}} AND end_ns > (SELECT min(start_ns) FROM step WHERE steady "
        "AND {gpu}) AND start_ns < (SELECT max(end_ns) FROM step WHERE steady AND {gpu})",
    )
    return replace(
        found,
        message=found.message + _OTHERS_MESSAGE,
        figures=[*found.figures, figure],
        next_capture=found.next_capture or captures.WAITS,
    )


def _with_pauses(case: Case, found: Detection) -> Detection:
    """Say that launches were late in pauses that no step has alike, where they take much of it."""
    e = case.explanation
    pauses = intersect(_idle(case, "launch_bound"), e.timeline.irregular)
    much = total(pauses) >= OTHERS * (e.end_ns - e.begin_ns)
    if not much or not are_scattered(e.gpu, e.timeline.irregular, e.steps.begin_ns):
        return found
    return replace(
        found,
        message=found.message + _PAUSES_MESSAGE,
        next_capture=found.next_capture or captures.WAITS,
    )


def _others(case: Case) -> list[int]:
    """Threads of the process that launch nothing and may run Python."""
    gpu = case.explanation.gpu
    states = case.device.read("thread_state", "process_id", "thread_id", "state")
    if not len(states):
        return []
    mine = (states["process_id"] == gpu.process_id) & states.equals("state", "running")
    mine &= ~among(states["thread_id"], gpu.host.launch_threads)
    named = case.device.read("thread", "process_id", "thread_id", "name")
    known = {
        int(named["thread_id"][row])
        for row in range(len(named))
        if named["process_id"][row] == gpu.process_id
        and named.text("name", row).startswith(_NOT_PYTHON)
    }
    return [t for t in distinct_values(states["thread_id"][mine]).tolist() if t not in known]


def _idle(case: Case, cause: str) -> Intervals:
    segments = case.explanation.gaps.segments
    rows = case.explanation.segments_of(cause)
    return union(segments["start_ns"][rows], segments["end_ns"][rows])


def _in_state(case: Case, thread: int, state: str) -> Intervals:
    rows = case.device.read(
        "thread_state", "process_id", "thread_id", "start_ns", "end_ns", "state"
    )
    mine = rows.equals("state", state) & (rows["thread_id"] == thread)
    mine &= rows["process_id"] == case.explanation.gpu.process_id
    return union(rows["start_ns"][mine], rows["end_ns"][mine])


def _sql(cause: str, thread: int, state: str) -> str:
    return (
        "SELECT round(coalesce(sum(least(g.end_ns, t.end_ns) - greatest(g.start_ns, t.start_ns)), "
        f"0) / {STEADY_STEPS})::BIGINT FROM (SELECT start_ns, end_ns FROM idle_gap WHERE cause = "
        f"'{cause}' AND {{gpu}}) g JOIN (SELECT start_ns, end_ns FROM thread_state WHERE state = "
        f"'{state}' AND thread_id = {thread} AND {{process}}) t ON t.start_ns < g.end_ns AND "
        "t.end_ns > g.start_ns"
    )
