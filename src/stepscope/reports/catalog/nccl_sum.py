"""NCCL: calls on the host and kernels on the GPU."""

from __future__ import annotations

import re

import numpy as np

from stepscope.reports.summary import header, summary
from stepscope.tabular.attribution import range_ends, usable_ranges
from stepscope.tabular.maths import dictionary, group, statistics, text_ranks
from stepscope.tabular.needs import Need
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Rows, Source
from stepscope.trace.frame import IntArray

_NAME = re.compile(r"^(?:void )?nccl", re.IGNORECASE)
_CATEGORIES = ["NCCL_CALL", "NCCL_KERNEL"]


def _calls(source: Source) -> Rows:
    ranges = usable_ranges(source)
    return ranges.where(ranges.equals("domain", ("NCCL",)) | ranges.that("name", _NAME.match))


def _run(source: Source, _: Arguments) -> Answer:
    calls = _calls(source)
    traced = source.of_kind("api_call", "api", "nccl")
    kernels = source.kernels()
    kernels = kernels.where(kernels.that("name", _NAME.match))
    host = range_ends(source, calls) - calls["start_ns"] if len(calls) else calls.duration
    parts: list[tuple[Rows, str, IntArray, int]] = [
        (calls, "name", host, 0),
        (traced, "name", traced.duration, 0),
        (kernels, "short_name" if (kernels["short_name"] >= 0).all() else "name",
         kernels.duration, 1),
    ]  # fmt: skip
    texts: list[str] = []
    codes, lengths, sides = [], [], []
    for rows, column, length, side in parts:
        codes.append(rows[column].astype(np.int64) + len(texts))
        texts += rows.texts(column)
        lengths.append(length)
        sides.append(np.full(len(rows), side))
    name, category = np.concatenate(codes), np.concatenate(sides)
    groups, firsts = group(category, name)
    found = statistics(np.concatenate(lengths), groups, len(firsts))
    order = np.lexsort((text_ranks(texts)[name[firsts]], -found.total, category[firsts]))
    return [
        *summary(found, order),
        dictionary(category[firsts][order], _CATEGORIES),
        dictionary(name[firsts][order], texts),
    ]


def _held(source: Source) -> bool:
    if len(source.of_kind("api_call", "api", "nccl")) or len(_calls(source)):
        return True
    return bool(source.kernels().that("name", _NAME.match).any())


REPORTS = [
    Report(
        "nccl_sum",
        "NCCL Summary",
        "NCCL calls on the host (its NVTX ranges) and NCCL kernels on the GPU by name, calls "
        "first. A call returns when the work is enqueued; a kernel's time contains its wait for "
        "the other ranks. The shares mix both sides.",
        header(
            "Instances",
            Column("Category", doc="NCCL_CALL (host) or NCCL_KERNEL (GPU)"),
            Column("Name", doc="function or kernel"),
        ),
        _run,
        needs=(
            Need(
                "NCCL calls or kernels",
                "nccl",
                "nsys profile -t cuda,nvtx (torch.profiler: ProfilerActivity.CUDA) in a job that "
                "communicates",
                _held,
            ),
        ),
    )
]
