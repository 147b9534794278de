"""Copies that make the host wait."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from stepscope.tabular.attribution import launches, memory_kinds
from stepscope.tabular.maths import dictionary, nullable
from stepscope.tabular.needs import COPIES, CUDA_CALLS, MEMSETS
from stepscope.tabular.report import ROWS, Answer, Arguments, Column, Report, limit
from stepscope.tabular.source import Rows, Source
from stepscope.trace.frame import BoolArray, IntArray

_ASYNC_COPY = re.compile(r"cudaMemcpy.*Async", re.IGNORECASE)
_BLOCKING_COPY = re.compile(r"cudaMemcpy(?!.*Async)", re.IGNORECASE)
_BLOCKING_MEMSET = re.compile(r"cudaMemset(?!.*Async)", re.IGNORECASE)
_SMALL_BYTES = 64_000


def _called(
    ops: Rows, calls: Rows, pattern: re.Pattern[str], arguments: Arguments
) -> tuple[IntArray, IntArray]:
    """Pairs (operation, call) where the call's name matches, the longest operations first."""
    op, call = launches(ops, calls)
    keep = calls.that("raw_name", pattern.match)[call]
    op, call = op[keep], call[keep]
    order = np.argsort(-ops.duration[op], kind="stable")[limit(arguments)]
    return op[order], call[order]


def _place(ops: Rows, op: IntArray) -> list[Any]:
    return [
        ops["process_id"][op],
        ops["device"][op],
        nullable(ops["context"][op]),
        nullable(ops["green_context"][op]),
        ops["stream"][op],
    ]


def _copies(
    source: Source, arguments: Arguments, pattern: re.Pattern[str], keep: BoolArray
) -> Answer:
    calls = source.cuda_calls()
    ops = source.of_kind("gpu_op", "kind", "memcpy").where(keep)
    op, call = _called(ops, calls, pattern, arguments)
    return [
        ops.duration[op],
        ops["start_ns"][op],
        memory_kinds(ops, "src_memory", op),
        memory_kinds(ops, "dst_memory", op),
        nullable(ops["bytes"][op]),
        *_place(ops, op),
        dictionary(calls["raw_name"][call], calls.texts("raw_name")),
    ]


def _pageable(source: Source, arguments: Arguments) -> Answer:
    ops = source.of_kind("gpu_op", "kind", "memcpy")
    keep = ops.equals("src_memory", ("pageable",)) | ops.equals("dst_memory", ("pageable",))
    return _copies(source, arguments, _ASYNC_COPY, keep)


def _blocking(source: Source, arguments: Arguments) -> Answer:
    ops = source.of_kind("gpu_op", "kind", "memcpy")
    small = (ops["bytes"] <= _SMALL_BYTES) & ops.equals("copy_kind", ("HtoD",))
    inside = (ops["src_device"] >= 0) & (ops["src_device"] == ops["dst_device"])
    return _copies(source, arguments, _BLOCKING_COPY, ~small & ~inside)


def _memsets(source: Source, arguments: Arguments) -> Answer:
    calls = source.cuda_calls()
    ops = source.of_kind("gpu_op", "kind", "memset")
    ops = ops.where(ops.equals("src_memory", ("pinned", "managed")))
    op, call = _called(ops, calls, _BLOCKING_MEMSET, arguments)
    return [
        ops.duration[op],
        ops["start_ns"][op],
        memory_kinds(ops, "src_memory", op),
        nullable(ops["bytes"][op]),
        *_place(ops, op),
        dictionary(calls["raw_name"][call], calls.texts("raw_name")),
    ]


_TIME = (
    Column("Duration", "dur", "length on the GPU"),
    Column("Start", "ts", "begin on the GPU"),
)
_WHERE = (
    Column("Bytes", "mem", "size"),
    Column("PID", doc="process"),
    Column("Device ID", doc="device ordinal inside the process"),
    Column("Context ID", doc="CUDA context"),
    Column("Green Context ID", doc="green context"),
    Column("Stream ID", doc="CUDA stream"),
    Column("API Name", doc="function as recorded"),
)
_COPY = (
    *_TIME,
    Column("Src Kind", doc="memory copied from"),
    Column("Dst Kind", doc="memory copied to"),
    *_WHERE,
)
RULES = [
    Report(
        "cuda_memcpy_async",
        "CUDA Async Memcpy with Pageable Memory",
        "Copies by cudaMemcpy...Async from or to pageable host memory, longest first.",
        _COPY,
        _pageable,
        arguments=(ROWS,),
        needs=(COPIES, CUDA_CALLS),
        none_found="No asynchronous copy used pageable host memory.",
        advice="These copies were asked to run beside the program, but a pageable buffer forces "
        "the driver to stage them, so the call blocks. Allocate the host side pinned (PyTorch: "
        "pin_memory=True in the DataLoader, then .to(device, non_blocking=True)).",
    ),
    Report(
        "cuda_memcpy_sync",
        "CUDA Synchronous Memcpy",
        "Copies by cudaMemcpy without Async, longest first. Left out: host-to-device copies of at "
        "most 64,000 bytes, and copies whose source and destination are recorded as one device.",
        _COPY,
        _blocking,
        arguments=(ROWS,),
        needs=(COPIES, CUDA_CALLS),
        none_found="No blocking copy of notable size.",
        advice="The host waits for these copies. Use cudaMemcpyAsync with pinned host memory "
        "(PyTorch: non_blocking=True) and synchronise only where the result is used.",
    ),
    Report(
        "cuda_memset_sync",
        "CUDA Synchronous Memset",
        "Fills of pinned or managed memory by cudaMemset without Async, longest first.",
        (*_TIME, Column("Memory Kind", doc="memory that is set"), *_WHERE),
        _memsets,
        arguments=(ROWS,),
        needs=(MEMSETS, CUDA_CALLS),
        none_found="No blocking fill of pinned or managed memory.",
        advice="cudaMemset on pinned or managed memory makes the host wait. Use cudaMemsetAsync, "
        "or fill on the host.",
    ),
]
