"""The ``host_event`` table: what owns the host's time for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.derived import DEVICE, DerivedTable, of_device
from stepscope.gaps.compilation import FIRST_CALL, FIRST_LAUNCH
from stepscope.gaps.gil import GIL_EVIDENCE
from stepscope.gaps.offload import OFFLOAD_EVIDENCE
from stepscope.gaps.stalls import STALL_EVIDENCE
from stepscope.gaps.unrecorded import BUSY, HOLE
from stepscope.intervals import overlap_per_window, union
from stepscope.jobs.view import JobView
from stepscope.trace.frame import IntArray

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = {
    **DEVICE,
    "step": "number of the step that the host was in when it began",
    "start_ns": "begin on the host, ns since the origin",
    "end_ns": "end on the host, ns since the origin",
    "cause": "checkpoint_stall, cpu_offload, compilation_or_warmup, gil_contention, or unexplained "
    "where the record holds nothing",
    "evidence": "what tells it; null where calls or names do",
    "reads": "copies from the device to the host in it",
    "read_bytes": "bytes of these copies",
    "uploads": "cpu_offload: copies from the host to the device in it",
    "upload_bytes": "cpu_offload: bytes of these copies",
    "exposed_copy_ns": "checkpoint_stall and cpu_offload: device time with its copies and no "
    "kernels, ns",
    "idle_ns": "idle time of the device inside it that is charged to its cause, ns",
}


def event_table(job: JobView) -> pa.Table:
    """The ``host_event`` table of a job."""
    import pyarrow as pa

    parts = []
    for device in job.devices:
        e = device.explanation
        for cause, (start, end) in e.events.items():
            n = len(start)
            none = np.zeros(n, np.int64)
            reads, size, copy, uploads, uploaded = none, none, none, none, none
            evidence: list[str | None] = [None] * n
            if cause == "checkpoint_stall":
                reads, size, copy = e.stalls.copies, e.stalls.bytes, e.stalls.copy_ns
                evidence = [STALL_EVIDENCE[code] for code in e.stalls.evidence.tolist()]
            elif cause == "cpu_offload":
                which = np.searchsorted(e.offload.start_ns, start, side="right") - 1
                # what a checkpoint cut in two counts once
                new = np.diff(which, prepend=-1) > 0
                evidence = [OFFLOAD_EVIDENCE[code] for code in e.offload.evidence[which].tolist()]
                reads, size, copy, uploads, uploaded = (
                    np.where(new, column[which], 0)
                    for column in (
                        e.offload.downs,
                        e.offload.down_bytes,
                        e.offload.copy_ns,
                        e.offload.ups,
                        e.offload.up_bytes,
                    )
                )
            elif cause == "gil_contention" and n:
                evidence = [GIL_EVIDENCE[e.gil.evidence]] * n
            elif cause == "unexplained" and n:
                evidence = _not_recorded(e, start)
            elif cause == "compilation_or_warmup" and n:
                evidence = _first_call(e, start)
            rows = e.segments_of(cause)
            idle = union(e.gaps.segments["start_ns"][rows], e.gaps.segments["end_ns"][rows])
            columns: dict[str, Any] = {
                **of_device(device, n),
                "step": _host_step(e, start),
                "start_ns": start,
                "end_ns": end,
                "cause": pa.array([cause] * n, pa.string()),
                "evidence": pa.array(evidence, pa.string()),
                "reads": reads,
                "read_bytes": size,
                "uploads": uploads,
                "upload_bytes": uploaded,
                "exposed_copy_ns": copy,
                "idle_ns": overlap_per_window(idle, start, end),
            }
            parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def _first_call(e: Explanation, start: IntArray) -> list[str | None]:
    """What tells that code was loaded, of the intervals that are first calls."""
    api, calls = e.gpu.host.api, e.loading
    if not len(calls):
        return [None] * len(start)
    order = np.argsort(api["start_ns"][calls.call], kind="stable")
    begin, end = (api[name][calls.call][order] for name in ("start_ns", "end_ns"))
    which = np.searchsorted(begin, start, side="right") - 1
    held = (which >= 0) & (start < end[np.maximum(which, 0)])
    launches = (calls.op >= 0)[order][np.maximum(which, 0)]
    return [
        (FIRST_LAUNCH if launch else FIRST_CALL) if known else None
        for known, launch in zip(held.tolist(), launches.tolist(), strict=True)
    ]


def _not_recorded(e: Explanation, start: IntArray) -> list[str | None]:
    which = np.searchsorted(e.unrecorded.end_ns, start, side="right")
    return [HOLE if hole else BUSY for hole in e.unrecorded.is_hole[which].tolist()]


def _host_step(e: Explanation, at: IntArray) -> IntArray:
    return np.maximum(np.searchsorted(e.steps.begin_ns, at, side="right") - 1, 0)


TABLE = DerivedTable(
    "host_event",
    "One event of the steady steps that owns the host's time: a checkpoint, a compilation, a wait "
    "for Python's lock.",
    COLUMNS,
    event_table,
)
