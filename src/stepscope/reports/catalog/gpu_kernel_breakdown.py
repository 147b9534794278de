"""GPU time by class of work, by kernel inside each class, and by annotation."""

from __future__ import annotations

from stepscope.reports.gpu_work import (
    CLASSED,
    DEVICE,
    RUNNING,
    WITHOUT_LAST_STEP,
    share,
    share_column,
)
from stepscope.reports.needs import GPU_WORK, Need
from stepscope.reports.report import Argument, Column, Report
from stepscope.reports.summary import header, summary

_TYPES = f"""
SELECT process_id, device, concat_ws(' overlapping ', CASE WHEN computation THEN 'computation' END,
        CASE WHEN communication THEN 'communication' END, CASE WHEN memory THEN 'memory' END),
    ns, {share("ns", "sum(ns) OVER (PARTITION BY process_id, device)")}
FROM {RUNNING} WHERE ns > 0 AND (computation OR communication OR memory)
ORDER BY process_id, device, ns DESC, memory, communication, computation
"""
_KERNELS = summary(
    CLASSED,
    "process_id",
    "device",
    "class",
    "name",
    first="process_id, device, array_position(['computation', 'communication'], class)",
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
            share_column("Share", "of the device's busy time"),
        ),
        _TYPES,
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
