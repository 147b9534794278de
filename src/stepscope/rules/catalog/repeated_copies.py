"""Uploads of one size from one place, again and again within a step."""

from __future__ import annotations

import re

import numpy as np

from stepscope.breakdown.explain import explain
from stepscope.intervals.distinct import with_first
from stepscope.tabular.attribution import Names, innermost_ranges, launches, renamed
from stepscope.tabular.maths import (
    FloatArray,
    dictionary,
    group,
    round_half_away,
    statistics,
)
from stepscope.tabular.needs import COPIES, CUDA_CALLS
from stepscope.tabular.report import ROWS, Answer, Argument, Arguments, Column, Report, limit
from stepscope.tabular.source import Source
from stepscope.trace.frame import IntArray

_KB = 1024
_NUMBER = re.compile(r"\d+")


def _run(source: Source, arguments: Arguments) -> Answer:
    copies, calls = source.of_kind("gpu_op", "kind", "memcpy"), source.cuda_calls()
    copies = copies.where(
        copies.equals("copy_kind", ("HtoD",))
        & (copies["bytes"] >= int(arguments["kb"]) * _KB)
        & (copies["graph_node_id"] < 0)
    )
    op, call = launches(copies, calls)
    op, first = with_first(op)
    call = call[first]
    ranges, innermost = innermost_ranges(source, calls)
    place = innermost[call]
    names = np.append(ranges["name"] if len(ranges) else np.empty(0, np.int32), -1)[place]
    # step_7 and step_8 are one place
    within = renamed(
        Names(names, ranges.texts("name") if len(ranges) else []),
        lambda text: _NUMBER.sub("#", text),
    )
    keys = [
        copies["process_id"][op],
        copies["device"][op],
        calls["thread_id"][call],
        copies["bytes"][op],
        calls["name"][call],
        within.codes,
    ]
    groups, firsts = group(*keys)
    steady, a_step, time_share = _in_steps(source, copies["process_id"][op], copies["device"][op],
                                           copies["start_ns"][op], copies.duration[op],
                                           groups, len(firsts))  # fmt: skip
    keep = (a_step >= int(arguments["times"])) & (time_share >= int(arguments["share"]))
    length = copies.duration[op]
    found = statistics(length[steady], groups[steady], len(firsts))
    order = np.argsort(-found.total, kind="stable")
    order = order[keep[order]][limit(arguments)]
    process, device, thread, size, name, place = (key[firsts][order] for key in keys)
    return [
        found.total[order],
        round_half_away(time_share[order]),
        found.count[order],
        round_half_away(a_step[order]),
        size,
        size * found.count[order],
        process,
        thread,
        device,
        dictionary(name, calls.texts("name")),
        dictionary(place, within.texts),
    ]


def _in_steps(
    source: Source,
    process: IntArray,
    device: IntArray,
    start: IntArray,
    length: IntArray,
    groups: IntArray,
    number: int,
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Copies in steady steps; by group the median number a step, and percent of the steps' time."""
    steady = np.zeros(len(start), dtype=bool)
    a_step, share = np.zeros(number), np.zeros(number)
    if not len(start):
        return np.empty(0, np.int64), a_step, share
    for gpu in explain(source.trace.frame, source.trace.meta):
        mine = (process == gpu.gpu.process_id) & (device == gpu.gpu.device)
        mine &= (start >= gpu.begin_ns) & (start < gpu.end_ns)
        steady |= mine
        rows = np.flatnonzero(mine)
        bounds = gpu.bounds_ns[gpu.first : gpu.last + 2]
        step = np.searchsorted(bounds, start[rows], side="right") - 1
        cells = np.bincount(groups[rows] * gpu.n_steady + step, minlength=number * gpu.n_steady)
        a_step += np.median(cells.reshape(number, gpu.n_steady), axis=1)
        took = np.bincount(groups[rows], length[rows], minlength=number)
        share += 100.0 * took / max(gpu.end_ns - gpu.begin_ns, 1)
    return np.flatnonzero(steady).astype(np.int64), a_step, share


RULES = [
    Report(
        "repeated_copies",
        "Uploads That May Repeat the Same Data",
        "Host-to-device copies of equal size that one place (thread, function, innermost range) "
        "makes several times in the median steady step, longest total first. No capture records "
        "what is copied or from where: these are candidates. Micro-batches of gradient "
        "accumulation, or tensors of one shape, look the same.",
        (
            Column("Total Time", "dur", "sum of the copies' durations in steady steps"),
            Column("Time", "ratio", "that sum in percent of the steady steps' time"),
            Column("Count", doc="number of copies in steady steps"),
            Column("Copies a Step", doc="copies in the median steady step"),
            Column("Bytes", "mem", "size of each"),
            Column("Total", "mem", "bytes of all"),
            Column("PID", doc="process"),
            Column("TID", doc="thread that copies"),
            Column("Device ID", doc="device ordinal inside the process"),
            Column("API Name", doc="function"),
            Column("NVTX Range", doc="innermost range around the call, # for numbers"),
        ),
        _run,
        arguments=(
            ROWS,
            # inputs and targets of one shape are two, with a mask three
            Argument("times", "leave out what happens fewer times a step", 4, low=2),
            Argument("kb", "leave out copies of fewer KiB", 64, low=0),
            Argument("share", "leave out less than so many percent of the time", 1, low=0),
        ),
        needs=(COPIES, CUDA_CALLS),
        none_found="No call site uploads the same size several times a step for a notable time.",
        advice="Check in the program whether these uploads carry the same data. What does not "
        "change (masks, position tables, constants built on the host) belongs on the device once: "
        "register it as a buffer, build it with device=..., or keep the device copy. What does "
        "change can go up in one copy instead of several.",
    )
]
