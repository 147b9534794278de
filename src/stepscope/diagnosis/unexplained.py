"""Idle time that nothing in the capture explains: where it lies, and what would tell more."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.diagnosis import captures, frameworks, vendors
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.evidence import STEADY_STEPS, STEP_SQL, idle_time_sql
from stepscope.diagnosis.unrecorded import unrecorded_ns
from stepscope.diagnosis.warned import Warned
from stepscope.gaps.unrecorded import BUSY, HOLE
from stepscope.intervals import overlap_per_window, union
from stepscope.intervals.distinct import among, distinct_rows, distinct_values
from stepscope.kernels.categories import classify
from stepscope.trace.frame import IntArray

_ID: Final = "unexplained"

WORTH_A_WARNING: Final = 0.05
"""Share of the step from which on idle time without a cause is spoken of."""

_MOST: Final = 1 / 3
"""A name must hold this share of it to be named."""

_LONGEST_NAME: Final = 80

_MOST_OF_IT: Final = 0.5

SLICES: Final = 4
"""Pauses from which on it means something that they are equally long."""

SLICE_NS: Final = 500_000
"""A program that shares the GPU has it for one or a few milliseconds at a time; what is shorter has
other reasons."""

EQUAL: Final = 0.1
"""Spread of the middle four fifths of their lengths, over the median, up to which they are."""

_SHARED: Final = (
    "they are equally long and come between kernels that were enqueued in time, as when another "
    "program takes its time slices on the same GPU: look with nvidia-smi pmon while it runs"
)

_ENQUEUED: Final = (
    "; most of it although work is enqueued, so that neither the host nor the process's own work "
    "delays it: another process or context on the GPU, a power state, launches that Windows holds "
    "back, or something not recorded; look with nvidia-smi pmon and nvidia-smi -q -d CLOCK,POWER"
)

_MESSAGE: Final = (
    "the GPU idles {unexplained_ns_per_step} per step ({unexplained_share} of it) for reasons that "
    "the capture does not hold, in {unexplained_gaps_per_step} pauses a step of up to "
    "{longest_unexplained_ns}"
)


def unexplained_warning(case: Case) -> Warned | None:
    """Where that time lies and which capture would tell; None where it is too little."""
    unrecorded = unrecorded_ns(case, BUSY) + unrecorded_ns(case, HOLE)  # has a warning of its own
    if case.idle_ns(_ID) - unrecorded < WORTH_A_WARNING * case.step_ns:
        return None
    return Warned(_template(case), _figures())


def _figures() -> list[Figure]:
    of_it = f"FROM idle_gap WHERE cause = '{_ID}' AND {{gpu}}"
    time = idle_time_sql(_ID)
    return [
        Figure("unexplained_ns_per_step", "ns_per_step", time),
        Figure("unexplained_share", "share", f"SELECT round(({time}) / ({STEP_SQL}), 4)"),
        Figure(
            "unexplained_gaps_per_step",
            "per_step",
            f"SELECT count(DISTINCT coalesce(gpu_op_id, -1)) / {STEADY_STEPS} {of_it}",
        ),
        Figure(
            "longest_unexplained_ns",
            "ns",
            "SELECT max(ns) FROM (SELECT sum(end_ns - start_ns)::BIGINT AS ns "
            f"{of_it} GROUP BY gpu_op_id)",
        ),
    ]


def _template(case: Case) -> str:
    segments = case.explanation.gaps.segments
    rows = np.flatnonzero(case.explanation.segments_of(_ID))
    start, end = segments["start_ns"][rows], segments["end_ns"][rows]
    where = case.place(_ID)
    known = [
        f"{kind} {_named(name)}"
        for kind, name in (
            ("in range", where.range),
            ("in operator", where.operator),
            ("at", where.source),
            ("in", where.function if where.source is None else None),
        )
        if name
    ]
    known += [
        stated
        for stated in (
            _before(case, segments["op"][rows], end - start),
            _during(case, start, end),
        )
        if stated
    ]
    anywhere = not _before(case, segments["op"][rows], end - start)
    if anywhere and _equally_long(_pauses(segments["op"][rows], end - start)):
        return f"{_MESSAGE}; {_on_device(_SHARED, case)}"
    if anywhere and enqueued_ns(case) > _MOST_OF_IT * float((end - start).sum()):
        capture = _by_program(captures.PLAIN, case)
        return f"{_MESSAGE}{_on_device(_ENQUEUED, case)}; next capture: {capture}"
    lies = f"; most of it lies {', '.join(known)}" if known else "; nothing says where"
    return f"{_MESSAGE}{lies}; next capture: {_capture(case, rows)}"


def _on_device(text: str, case: Case) -> str:
    (found,) = vendors.advice([text], case)
    return found


def _by_program(command: str, case: Case) -> str:
    """A capture of the program, by a tool that knows the device."""
    return vendors.next_capture(frameworks.for_program(command, case), case) or command


def enqueued_ns(case: Case) -> float:
    """Idle time without a cause for which the operation that ends it was enqueued already, ns.

    Kernels of a graph are enqueued together, and wait for one another.
    """
    gpu = case.explanation.gpu
    segments = case.explanation.gaps.segments
    rows = np.flatnonzero(case.explanation.segments_of(_ID) & (segments["op"] >= 0))
    op = segments["op"][rows]
    call = gpu.call[op]
    single = (call >= 0) & ~gpu.ops.equals("kind", "graph")[op] & (gpu.ops["graph_id"][op] < 0)
    rows, call = rows[single], call[single]
    if not len(rows):
        return 0.0
    by_then = gpu.host.api["end_ns"][call] <= segments["start_ns"][rows]
    return float((segments["end_ns"][rows] - segments["start_ns"][rows])[by_then].sum())


def _pauses(op: IntArray, length: IntArray) -> IntArray:
    """Lengths of the pauses that segments are parts of: one ends with each operation."""
    _, pause = distinct_rows((op,))
    return np.bincount(pause, weights=length).astype(np.int64)


def _equally_long(length: IntArray) -> bool:
    """Whether the pauses that make up most of the time are of one length."""
    long_ = np.sort(length[length >= EQUAL * length.max()])
    if len(long_) < SLICES or long_[0] < SLICE_NS or 2 * int(long_.sum()) < int(length.sum()):
        return False
    low, middle, high = np.percentile(long_, (10, 50, 90))
    return bool(high - low <= EQUAL * middle)


def _named(name: str) -> str:
    """A name of the trace as a warning may hold it: short, and no place for a figure."""
    plain = name.replace("{", "(").replace("}", ")")
    return repr(plain if len(plain) <= _LONGEST_NAME else plain[: _LONGEST_NAME - 3] + "...")


def _before(case: Case, op: IntArray, weight: IntArray) -> str:
    """The operation that the device waits for, where one ends most of the time."""
    ops = case.explanation.gpu.ops
    known = op >= 0
    if not known.any():
        return ""
    names, streams = ops["name"][op[known]], ops["stream"][op[known]]
    first, group = distinct_rows((names, streams))
    held = np.bincount(group, weights=weight[known])
    best = int(np.argmax(held))
    if held[best] < _MOST * weight.sum():
        return ""
    label = classify(ops.texts["name"][int(names[first[best]])]).label
    return f"before {_named(label)} on stream {int(streams[first[best]])}"


def _during(case: Case, start: IntArray, end: IntArray) -> str:
    """The call that the launching threads are in meanwhile, or that they are in none."""
    host = case.explanation.gpu.host
    api = host.api
    idle = union(start, end)
    whole = int((idle[1] - idle[0]).sum())
    if not len(api) or not whole:
        return ""
    near = among(api["thread_id"], host.launch_threads)
    near &= (api["start_ns"] < end.max()) & (api["end_ns"] > start.min())
    rows = np.flatnonzero(near)
    held: dict[str, int] = {}
    for code in distinct_values(api["name"][rows]).tolist():
        mine = rows[api["name"][rows] == code]
        calls = union(api["start_ns"][mine], api["end_ns"][mine])
        held[api.texts["name"][code]] = int(overlap_per_window(calls, *idle).sum())
    best = max(held, key=lambda name: held[name], default="")
    if best and held[best] >= _MOST * whole:
        return f"while the launching thread is in {_named(best)}"
    everything = union(api["start_ns"][rows], api["end_ns"][rows])
    if int(overlap_per_window(everything, *idle).sum()) < _MOST * whole:
        return "while the launching threads are in no CUDA call"
    return ""


def _capture(case: Case, rows: IntArray) -> str:
    """The capture that would tell most, of the program and by a tool that knows the device."""
    command, why = _command(case, rows)
    return _by_program(command, case) + why


def _command(case: Case, rows: IntArray) -> tuple[str, str]:
    """That capture as it is made of a training program on an NVIDIA device, and why that one."""
    e = case.explanation
    op = e.gaps.segments["op"][rows]
    launched = e.gpu.call[np.maximum(op, 0)] >= 0
    length = e.gaps.segments["end_ns"][rows] - e.gaps.segments["start_ns"][rows]
    unknown = int(length[(op < 0) | ~launched].sum())
    if not len(e.gpu.host.api) or 2 * unknown > int(length.sum()):
        return captures.PLAIN, (
            " (most of this work has no recorded launching call: who was late is not known)"
        )
    if e.gpu.ops.equals("kind", "graph").any() or (e.gpu.ops["graph_id"] >= 0).any():
        return captures.WAITS_AND_NODES, ""
    waits = e.gpu.host.os_calls
    if not len(waits) or not waits.matches("name", words.WAIT_CALL).any():
        return captures.WAITS, ""
    return captures.SAMPLES, ""
