"""When a GPU has nothing to do, and how much of the time it is in use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.tabular.maths import FloatArray, group, nullable, round_half_away
from stepscope.tabular.needs import GPU_WORK
from stepscope.tabular.report import ROWS, Answer, Argument, Arguments, Column, Report, limit
from stepscope.tabular.source import Source
from stepscope.trace.frame import IntArray

_MILLISECOND_NS = 1_000_000
# the profiler's own work, under the names that exports up to 2024 give it
_OVERHEADS = (
    "CUDA profiling data flush overhead",
    "CUDA profiling stop overhead",
    "CUDA profiling overhead",
)


@dataclass(frozen=True)
class GpuTimeline:
    """What kept one device of one process busy, in order of start.

    Attributes:
        process_id: the process.
        device: the device.
        start_ns: begins.
        end_ns: ends.
        context: context of each operation; -1 for overhead of the profiler.
    """

    process_id: int
    device: int
    start_ns: IntArray
    end_ns: IntArray
    context: IntArray


def gpus(source: Source) -> Iterator[GpuTimeline]:
    """Every device of every process with work: kernels, copies, fills, profiler overhead."""
    work = source.gpu_work()
    work = work.where(work["start_ns"] > 0)
    groups, firsts = group(work["process_id"], work["device"])
    overhead = source.of_kind("overhead", "name", *_OVERHEADS)
    for number, row in enumerate(firsts.tolist()):
        mine = np.flatnonzero(groups == number)
        start, end = work["start_ns"][mine], work["end_ns"][mine]
        process = int(work["process_id"][row])
        inside = (
            (overhead["process_id"] == process)
            & (overhead["start_ns"] > start.min())
            & (overhead["end_ns"] < end.max())
        )
        context = work["context"][mine].astype(np.int64)
        start = np.concatenate([start, overhead["start_ns"][inside]])
        end = np.concatenate([end, overhead["end_ns"][inside]])
        context = np.concatenate([context, np.full(int(inside.sum()), -1)])
        order = np.argsort(start, kind="stable")
        yield GpuTimeline(
            process, int(work["device"][row]), start[order], end[order], context[order]
        )


def _gaps(source: Source, arguments: Arguments) -> Answer:
    least = int(arguments["gap"]) * _MILLISECOND_NS
    parts: list[tuple[IntArray, ...]] = []
    for gpu in gpus(source):
        latest = np.maximum.accumulate(gpu.end_ns)
        # the operation that ends last so far: its context is the gap's
        last = np.maximum.accumulate(np.where(gpu.end_ns == latest, np.arange(len(latest)), 0))
        length = gpu.start_ns[1:] - latest[:-1]
        rows = np.flatnonzero(length > max(least, 0))
        known = np.where(gpu.context >= 0, gpu.context, gpu.context.max())
        parts.append(
            (
                length[rows],
                latest[rows],
                np.full(len(rows), gpu.process_id),
                np.full(len(rows), gpu.device),
                known[last[rows]],
            )
        )
    duration, start, process, device, context = _joined(parts)
    order = np.lexsort((start, -duration))[limit(arguments)]
    return [
        np.arange(1, len(order) + 1),
        duration[order],
        start[order],
        process[order],
        device[order],
        nullable(context[order]),
    ]


def _joined(parts: list[tuple[IntArray, ...]]) -> list[IntArray]:
    if not parts:
        return [np.empty(0, np.int64)] * 5
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _use(source: Source, arguments: Arguments) -> Answer:
    threshold, number = int(arguments["threshold"]), int(arguments["chunks"])
    parts = []
    for gpu in gpus(source):
        edges, use = chunk_use(gpu, number)
        length = np.diff(edges)
        low = np.flatnonzero(use * 100.0 / length < threshold)
        starts = np.flatnonzero(np.diff(low, prepend=-2) > 1)
        before = 0
        for run in np.split(low, starts[1:]) if len(low) else []:
            begin, end = int(edges[run[0]]), int(edges[run[-1] + 1])
            share = float(use[run].sum()) * 100.0 / (end - begin)
            parts.append((share, end - begin, begin, gpu, int(run[0]) - before))
            before += len(run)
    # as in Nsight Systems, the limit comes before the order and keeps not the worst regions, but
    # those with the least number of well-used chunks of their device before them
    parts.sort(key=lambda part: (part[4], part[3].process_id, part[3].device))
    parts = parts[limit(arguments)]
    parts.sort(key=lambda part: (float(round_half_away(np.array([part[0]]))[0]), part[1]))
    return [
        np.arange(1, len(parts) + 1),
        round_half_away(np.array([part[0] for part in parts])),
        np.array([part[1] for part in parts], dtype=np.int64),
        np.array([part[2] for part in parts], dtype=np.int64),
        np.array([part[3].process_id for part in parts], dtype=np.int64),
        np.array([part[3].device for part in parts], dtype=np.int64),
        nullable(np.array([int(part[3].context.max()) for part in parts], dtype=np.int64)),
    ]


def chunk_use(gpu: GpuTimeline, number: int) -> tuple[IntArray, FloatArray]:
    """Edges of equal parts of the span of a GPU's work, and ns of work in each part.

    Work that runs at the same time counts in full each, so a part can hold more work than time.
    """
    first, last = int(gpu.start_ns.min()), int(gpu.end_ns.max())
    size = max(-(-(last - first) // number), 1)
    edges = np.append(np.arange(first, max(last, first + 1), size), last)
    count = len(edges) - 1
    begin = np.minimum((gpu.start_ns - first) // size, count - 1)
    end = np.minimum(np.maximum(gpu.end_ns - first - 1, gpu.start_ns - first) // size, count - 1)
    spans = end - begin + 1
    row = np.repeat(np.arange(len(begin)), spans)
    chunk = np.arange(len(row)) - np.repeat(np.cumsum(spans) - spans, spans) + begin[row]
    overlap = np.minimum(gpu.end_ns[row], edges[chunk + 1]) - np.maximum(
        gpu.start_ns[row], edges[chunk]
    )
    use = np.zeros(count, np.int64)
    np.add.at(use, chunk, np.maximum(overlap, 0))
    return edges, use.astype(np.float64)


_ADVICE = (
    "See what the host did there: NVTX ranges around the phases of a step, CPU samples and stacks "
    "(nsys profile --sample=process-tree), calls of the OS runtime that wait (-t osrt). "
    "stepscope diagnose attributes the gaps of every step to their causes."
)
_PLACE = (
    Column("PID", doc="process"),
    Column("Device ID", doc="device ordinal inside the process"),
    Column("Context ID", doc="CUDA context"),
)
RULES = [
    Report(
        "gpu_gaps",
        "GPU Gaps",
        "Times without any kernel, copy or fill on a device, all streams together, between its "
        "first and last operation, longer than the limit. Longest first.",
        (
            Column("Row#", doc="number"),
            Column("Duration", "dur", "length of the gap"),
            Column("Start", "ts", "begin of the gap"),
            *_PLACE,
        ),
        _gaps,
        arguments=(ROWS, Argument("gap", "leave out gaps up to so many ms", 500, low=0)),
        needs=(GPU_WORK,),
        none_found="No gap is longer than the limit (gap=500 ms unless set; a training step "
        "rarely lasts as long, so try gap=1).",
        advice=f"The GPU had nothing to do. {_ADVICE}",
    ),
    Report(
        "gpu_time_util",
        "GPU Time Utilization",
        "Equal parts of the span of a device's work in which it was in use for less than the "
        "threshold; neighbouring parts are joined. Work on several streams at the same time counts "
        "in full each. Least used first; of more than rows regions the earliest are shown.",
        (
            Column("Row#", doc="number"),
            Column("In-Use", "ratio", "work in the region, in percent of its length"),
            Column("Duration", "dur", "length of the region"),
            Column("Start", "ts", "begin of the region"),
            *_PLACE,
        ),
        _use,
        arguments=(
            ROWS,
            Argument("threshold", "show regions used less than so many percent", 50, low=0),
            Argument("chunks", "number of parts", 30, low=1, high=1000),
        ),
        needs=(GPU_WORK,),
        none_found="The GPU is in use for more than the threshold all the time.",
        advice=f"The GPU is idle for much of these regions. {_ADVICE}",
    ),
]
