"""GPU time by class of work, by kernel inside each class, and by annotation."""

from __future__ import annotations

import numpy as np

from stepscope.intervals.algebra import Intervals, intersect, subtract, total, union
from stepscope.reports.gpu_work import CLASSES, DEVICE, WITHOUT_LAST_STEP, Work, ordered, share
from stepscope.reports.summary import header, summary
from stepscope.tabular.maths import dictionary, group, statistics, text_ranks
from stepscope.tabular.needs import GPU_WORK, Need
from stepscope.tabular.report import Answer, Argument, Arguments, Column, Report
from stepscope.tabular.source import Source


def _types(source: Source, arguments: Arguments) -> Answer:
    """Time in which exactly the classes of one combination run."""
    work = Work(source, arguments)
    device, firsts = work.devices
    start, end = work.ops["start_ns"], work.ops["end_ns"]
    rows: list[tuple[int, int, int]] = []
    for number in range(len(firsts)):
        covered = [
            union(start[mine], end[mine])
            for mine in ((device == number) & (work.kind == kind) for kind in range(len(CLASSES)))
        ]
        for combination in range(1, 1 << len(CLASSES)):
            running_ns = total(_exactly(covered, combination))
            if running_ns:
                rows.append((number, combination, running_ns))
    found = np.array(rows, np.int64).reshape(-1, 3)
    found = found[np.lexsort((found[:, 1], -found[:, 2], found[:, 0]))]
    of, classes, length = found.T
    whole = np.bincount(of, weights=length, minlength=len(firsts))[of]
    names = [
        " overlapping ".join(name for bit, name in enumerate(CLASSES) if number >> bit & 1)
        for number in range(1 << len(CLASSES))
    ]
    return [*work.place(firsts[of]), dictionary(classes, names), length, share(length, whole)]


def _exactly(covered: list[Intervals], combination: int) -> Intervals:
    """Where all sets of a combination (one bit each) cover, and none of the others does."""
    inside = [part for bit, part in enumerate(covered) if combination >> bit & 1]
    found = inside[0]
    for part in inside[1:]:
        found = intersect(found, part)
    for bit, part in enumerate(covered):
        if not combination >> bit & 1:
            found = subtract(found, part)
    return found


def _kernels(source: Source, arguments: Arguments) -> Answer:
    work = Work(source, arguments)
    names = work.ops["name"]
    groups, firsts = group(work.devices[0], work.kind, names)
    found = statistics(work.ops.duration, groups, len(firsts))
    texts = work.ops.texts("name")
    rank = text_ranks(texts)
    order = np.lexsort(
        (
            rank[names[firsts]],
            -found.total,
            work.kind[firsts],
            work.devices[0][firsts],
        )
    )
    at = firsts[order]
    return [
        *summary(found, order),
        *work.place(at),
        dictionary(work.kind[at], list(CLASSES)),
        dictionary(names[at], texts),
    ]


_ON_HOST = Argument("host", "annotations of host threads, by the time they take there")


def _annotations(source: Source, arguments: Arguments) -> Answer:
    on_host = bool(arguments.get(_ON_HOST.name))
    ranges = source.of_kind("range", "kind", "annotation" if on_host else "gpu_annotation")
    names = ranges["name"]
    place, _ = ordered(ranges["process_id"], ranges["device"])
    groups, firsts = group(place, names)
    found = statistics(ranges.duration, groups, len(firsts))
    texts = ranges.texts("name")
    order = np.lexsort((text_ranks(texts)[names[firsts]], -found.total, place[firsts]))
    at = firsts[order]
    return [*summary(found, order), ranges["process_id"][at], dictionary(names[at], texts)]


def _annotated(source: Source) -> bool:
    return source.has("range", "kind", ("gpu_annotation", "annotation"))


REPORTS = [
    Report(
        "gpu_kernel_type_breakdown",
        "GPU Time by Class of Work",
        "Time in which each device runs computation kernels, communication kernels, copies and "
        "memsets, and each combination of them at the same time, longest first. Operations of one "
        "class that run at the same time count once; idle time is no part of it.",
        (
            *DEVICE,
            Column("Class", doc="what runs; nothing else does"),
            Column("Time", "dur", "for how long"),
            Column("Share", "ratio", "of the device's busy time"),
        ),
        _types,
        arguments=(WITHOUT_LAST_STEP,),
        needs=(GPU_WORK,),
    ),
    Report(
        "gpu_kernel_breakdown",
        "GPU Kernels by Class of Work",
        "Kernels, copies and memsets by device, class and name: longest total first inside a "
        "class.",
        header(
            "Instances",
            *DEVICE,
            Column("Class", doc="computation, communication or memory"),
            Column("Name", doc="kernel, copy or memset"),
        ),
        _kernels,
        arguments=(WITHOUT_LAST_STEP,),
        aliases=("get_gpu_kernel_breakdown",),
        needs=(GPU_WORK,),
    ),
    Report(
        "gpu_annotation_breakdown",
        "Annotations by GPU Time",
        "Annotations by the time that PyTorch's profiler projected them to on the GPU, or with "
        "'host' by the time they take on host threads: longest total first. Nested annotations "
        "count in each other.",
        header("Instances", Column("PID", doc="process"), Column("Name", doc="annotation")),
        _annotations,
        arguments=(_ON_HOST,),
        aliases=("get_gpu_user_annotation_breakdown",),
        needs=(
            Need(
                "annotations of PyTorch's profiler",
                "range",
                "torch.profiler and record_function around the parts of a step; for other "
                "captures nvtx_gpu_proj_sum tells the same of NVTX ranges",
                _annotated,
            ),
        ),
    ),
]
