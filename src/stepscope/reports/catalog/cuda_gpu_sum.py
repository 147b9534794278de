"""GPU work, and GPU work with CUDA calls, by name."""

from __future__ import annotations

import numpy as np

from stepscope.reports.summary import header, summary
from stepscope.tabular.attribution import (
    KERNEL_NAMES,
    Names,
    call_names,
    kernel_names,
    memory_op_names,
)
from stepscope.tabular.maths import dictionary, group, statistics, text_ranks
from stepscope.tabular.needs import CUDA_CALLS, GPU_WORK
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Source
from stepscope.trace.frame import IntArray

_CATEGORIES = ["CUDA_KERNEL", "MEMORY_OPER", "CUDA_API"]


def _gpu(source: Source, arguments: Arguments) -> Answer:
    return _by_category(_gpu_parts(source, arguments))


def _api_and_gpu(source: Source, arguments: Arguments) -> Answer:
    calls = source.cuda_calls()
    return _by_category([*_gpu_parts(source, arguments), (call_names(calls), calls.duration, 2)])


def _gpu_parts(source: Source, arguments: Arguments) -> list[tuple[Names, IntArray, int]]:
    kernels, ops = source.kernels(), source.memory_ops()
    parts = []
    if len(kernels):
        parts.append((kernel_names(source, kernels, arguments), kernels.duration, 0))
    if len(ops):
        parts.append((memory_op_names(ops), ops.duration, 1))
    return parts


def _by_category(parts: list[tuple[Names, IntArray, int]]) -> Answer:
    texts: list[str] = []
    none = np.empty(0, np.int64)  # a window may hold nothing
    codes, durations, categories = [none], [none], [none]
    for names, duration, number in parts:
        codes.append(names.codes + len(texts))
        texts += names.texts
        durations.append(duration)
        categories.append(np.full(len(duration), number))
    name, category = np.concatenate(codes), np.concatenate(categories)
    groups, firsts = group(category, name)
    found = statistics(np.concatenate(durations), groups, len(firsts))
    rank = text_ranks(texts)[name[firsts]]
    order = np.lexsort((rank, -found.total))
    return [
        *summary(found, order),
        dictionary(category[firsts][order], _CATEGORIES),
        dictionary(name[firsts][order], texts),
    ]


_TAIL = (
    Column("Category", doc="CUDA_KERNEL, MEMORY_OPER or CUDA_API"),
    Column("Operation", doc="kernel, copy, fill or function"),
)
REPORTS = [
    Report(
        "cuda_gpu_sum",
        "CUDA GPU Summary (Kernels/MemOps)",
        "Kernels, copies and fills by name, all devices and streams together. Longest total first.",
        header("Instances", *_TAIL),
        _gpu,
        arguments=KERNEL_NAMES,
        aliases=("gpusum",),
        needs=(GPU_WORK,),
    ),
    Report(
        "cuda_api_gpu_sum",
        "CUDA Summary (API/Kernels/MemOps)",
        "CUDA calls, kernels, copies and fills by name. Longest total first. Host and GPU work at "
        "the same time, so the shares of the two sides do not add up to anything.",
        header("Instances", *_TAIL),
        _api_and_gpu,
        arguments=KERNEL_NAMES,
        aliases=("apigpusum",),
        needs=(CUDA_CALLS, GPU_WORK),
    ),
]
