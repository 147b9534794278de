"""Every operation of the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.tabular.attribution import (
    KERNEL_NAMES,
    kernel_names,
    memory_kinds,
    memory_op_names,
)
from stepscope.tabular.maths import dictionary, group, nullable
from stepscope.tabular.needs import GPU_WORK
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Rows, Source

_SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers")
_SECOND_NS = 1_000_000_000


def device_names(source: Source, work: Rows) -> Any:
    """``product (ordinal)`` of the device of each operation."""
    names = {}
    devices = Rows(source.trace, "device")
    if len(devices):
        texts = devices.texts("name")
        columns = (devices["process_id"], devices["device"], devices["name"])
        for process, device, name in zip(*(c.tolist() for c in columns), strict=True):
            names[process, device] = texts[name] if name >= 0 else ""
    process, device = work["process_id"], work["device"].astype(np.int64)
    groups, firsts = group(process, device)
    shown = []
    for p, d in zip(process[firsts].tolist(), device[firsts].tolist(), strict=True):
        name = names.get((p, d)) or names.get((-1, d)) or ""
        shown.append(f"{name} ({d})".strip())
    return dictionary(groups, shown)


def _run(source: Source, arguments: Arguments) -> Answer:
    work = source.gpu_work()
    is_kernel = work.equals("kind", ("kernel",))
    kernels, ops = work.where(is_kernel), work.where(~is_kernel)
    texts: list[str] = []
    codes = np.empty(len(work), np.int32)
    if len(kernels):
        names = kernel_names(source, kernels, arguments)
        codes[is_kernel], texts = names.codes, names.texts
    if len(ops):
        names = memory_op_names(ops)
        codes[~is_kernel] = names.codes + len(texts)
        texts = [*texts, *names.texts]
    duration = work.duration
    size = work["bytes"]
    lacks = (size < 0) | (duration <= 0)
    # whole operations a second, as Nsight Systems computes it
    rate = size * (_SECOND_NS // np.maximum(duration, 1))
    return [
        work["start_ns"],
        duration,
        nullable(work["correlation_id"]),
        *(nullable(work[column], ~is_kernel) for column in _SHAPE),
        nullable(work["static_shared_bytes"]),
        nullable(work["dynamic_shared_bytes"]),
        nullable(size),
        nullable(rate, lacks),
        memory_kinds(work, "src_memory"),
        memory_kinds(work, "dst_memory"),
        device_names(source, work),
        nullable(work["context"]),
        nullable(work["green_context"]),
        work["stream"],
        dictionary(codes, texts),
    ]


REPORTS = [
    Report(
        "cuda_gpu_trace",
        "CUDA GPU Trace",
        "Every kernel, copy and fill, in order of start.",
        (
            Column("Start", "ts", "begin on the GPU"),
            Column("Duration", "dur", "length on the GPU"),
            Column("CorrId", doc="links the operation to the call that enqueued it"),
            Column("GrdX", doc="blocks in x"),
            Column("GrdY", doc="blocks in y"),
            Column("GrdZ", doc="blocks in z"),
            Column("BlkX", doc="threads a block in x"),
            Column("BlkY", doc="threads a block in y"),
            Column("BlkZ", doc="threads a block in z"),
            Column("Reg/Trd", doc="registers a thread"),
            Column("StcSMem", "mem", "static shared memory a block"),
            Column("DymSMem", "mem", "dynamic shared memory a block"),
            Column("Bytes", "mem", "size of a copy or fill"),
            Column("Throughput", "thru", "bytes times whole operations a second: 0 beyond 1 s"),
            Column("SrcMemKd", doc="memory copied from, or set"),
            Column("DstMemKd", doc="memory copied to"),
            Column("Device", doc="product and ordinal inside the process"),
            Column("Ctx", doc="CUDA context"),
            Column("GreenCtx", doc="green context"),
            Column("Strm", doc="CUDA stream"),
            Column("Name", doc="kernel or operation"),
        ),
        _run,
        arguments=KERNEL_NAMES,
        aliases=("gputrace",),
        needs=(GPU_WORK,),
    )
]
