"""GPU time by class of work, by kernel inside each class, and by annotation."""

from __future__ import annotations

import numpy as np

from stepscope.intervals.algebra import Intervals, intersect, subtract, total, union
from stepscope.reports.arrays import dictionary
from stepscope.reports.gpu_work import CLASSES, DEVICE, WITHOUT_LAST_STEP, Work, share
from stepscope.reports.needs import GPU_WORK, Need
from stepscope.reports.report import Answer, Argument, Arguments, Column, Report
from stepscope.reports.source import Source
from stepscope.reports.summary import header, summary


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


_CLASSED = """(
    WITH last_step AS (
        SELECT CASE WHEN count(DISTINCT name) > 1 THEN max(start_ns) END AS begin_ns FROM range
        WHERE kind IN ('annotation', 'pushpop') AND name LIKE '%ProfilerStep%'
    ), early AS (
        SELECT DISTINCT launch.op AS id FROM launch JOIN cuda_call ON cuda_call.id = launch.call
        WHERE {without_last_step} AND start_ns < (SELECT begin_ns FROM last_step)
    )
    SELECT process_id, device, duration_ns, gpu_work.name, CASE
        WHEN kind <> 'kernel' THEN 2 WHEN communication.name IS NULL THEN 0 ELSE 1 END AS side,
        ['computation', 'communication', 'memory'][side + 1] AS class
    FROM gpu_work LEFT JOIN communication ON communication.name::VARCHAR = gpu_work.name
    WHERE NOT {without_last_step} OR (SELECT begin_ns IS NULL FROM last_step)
        OR id IN (SELECT id FROM early)
)"""
_KERNELS = summary(
    _CLASSED,
    "process_id",
    "device",
    "side",
    "class",
    "name",
    first="process_id, device, side",
    order="name",
    shown="process_id, device, class, name",
)
_ON_HOST = Argument("host", "annotations of host threads, by the time they take there")
_ANNOTATIONS = summary(
    "range WHERE kind = CASE WHEN {host} THEN 'annotation' ELSE 'gpu_annotation' END",
    "process_id",
    "device",
    "name",
    first="process_id, device NULLS FIRST",
    order="name",
    shown="process_id, name",
)

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
        _KERNELS,
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
        _ANNOTATIONS,
        arguments=(_ON_HOST,),
        aliases=("get_gpu_user_annotation_breakdown",),
        needs=(
            Need(
                "annotations of PyTorch's profiler",
                "range",
                "torch.profiler and record_function around the parts of a step; for other "
                "captures nvtx_gpu_proj_sum tells the same of NVTX ranges",
                "range WHERE kind IN ('gpu_annotation', 'annotation')",
            ),
        ),
    ),
]
