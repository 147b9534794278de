"""Copies that make the host wait."""

from __future__ import annotations

from stepscope.reports.needs import COPIES, CUDA_CALLS, MEMSETS
from stepscope.reports.report import ROWS, Column, Report


def _called(shown: str, kind: str, called: str) -> str:
    """The statement for operations of a kind whose call is named so, the longest first."""
    return f"""
SELECT op.duration_ns, op.start_ns, {shown}, op.bytes, op.process_id, op.device, op.context,
    op.green_context, op.stream, call.raw_name
FROM gpu_work AS op JOIN cuda_call AS call USING (process_id, correlation_id)
WHERE op.correlation_id >= 0 AND {kind} AND {called}
ORDER BY op.duration_ns DESC, op.id, call.id LIMIT {{rows}}
"""


_KINDS = "op.src_kind, op.dst_kind"
_PAGEABLE = _called(
    _KINDS,
    "op.kind = 'memcpy' AND (op.src_memory = 'pageable' OR op.dst_memory = 'pageable')",
    "call.raw_name ILIKE 'cudaMemcpy%Async%'",
)
_BLOCKING = _called(
    _KINDS,
    "op.kind = 'memcpy' AND NOT (coalesce(op.copy_kind = 'HtoD', false)"
    " AND coalesce(op.bytes, 0) <= 64000)"
    " AND coalesce(op.src_device <> op.dst_device, true)",
    "call.raw_name ILIKE 'cudaMemcpy%' AND call.raw_name NOT ILIKE '%Async%'",
)
_FILLS = _called(
    "op.src_kind",
    "op.kind = 'memset' AND op.src_memory IN ('pinned', 'managed')",
    "call.raw_name ILIKE 'cudaMemset%' AND call.raw_name NOT ILIKE '%Async%'",
)

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
        _PAGEABLE,
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
        _BLOCKING,
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
        _FILLS,
        arguments=(ROWS,),
        needs=(MEMSETS, CUDA_CALLS),
        none_found="No blocking fill of pinned or managed memory.",
        advice="cudaMemset on pinned or managed memory makes the host wait. Use cudaMemsetAsync, "
        "or fill on the host.",
    ),
]
