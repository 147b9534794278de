"""Computation, other work and idle time of each device."""

from __future__ import annotations

from stepscope.reports.gpu_work import DEVICE, RUNNING, WITHOUT_LAST_STEP, share, share_column
from stepscope.reports.needs import GPU_WORK, KERNELS
from stepscope.reports.report import Column, Report

_BREAKDOWN = f"""
WITH spent AS (
    SELECT process_id, device, sum(ns)::BIGINT AS total,
        sum(CASE WHEN computation THEN ns ELSE 0 END)::BIGINT AS compute,
        sum(CASE WHEN NOT computation AND (communication OR memory) THEN ns ELSE 0 END)::BIGINT
            AS other
    FROM {RUNNING} GROUP BY ALL
)
SELECT process_id, device, total - compute - other AS idle, compute, other, total,
    {share("idle", "total")}, {share("compute", "total")}, {share("other", "total")}
FROM spent ORDER BY process_id, device
"""
_OVERLAP = f"""
WITH spent AS (
    SELECT process_id, device, sum(CASE WHEN communication THEN ns ELSE 0 END)::BIGINT AS total,
        sum(CASE WHEN communication AND computation THEN ns ELSE 0 END)::BIGINT AS overlapped
    FROM {RUNNING} GROUP BY ALL
)
SELECT process_id, device, total, overlapped, total - overlapped, {share("overlapped", "total")}
FROM spent ORDER BY process_id, device
"""

REPORTS = [
    Report(
        "gpu_temporal_breakdown",
        "GPU Temporal Breakdown",
        "How each device spent the time from the first begin to the last end of its work: a "
        "computation kernel runs; only communication, copies or memsets run; nothing runs. "
        "Operations that run at the same time count once.",
        (
            *DEVICE,
            Column("Idle", "dur", "nothing runs"),
            Column("Compute", "dur", "a computation kernel runs"),
            Column("Non-Compute", "dur", "other work runs, and no computation kernel"),
            Column("Total", "dur", "from the first begin to the last end"),
            share_column("Idle Share", "of the total"),
            share_column("Compute Share", "of the total"),
            share_column("Non-Compute Share", "of the total"),
        ),
        _BREAKDOWN,
        arguments=(WITHOUT_LAST_STEP,),
        aliases=("get_temporal_breakdown",),
        needs=(GPU_WORK,),
    ),
    Report(
        "comm_compute_overlap",
        "Communication and Computation Overlap",
        "For each device, the time in which communication kernels run, and the part of it in which "
        "a computation kernel runs as well. Without share where nothing communicates.",
        (
            *DEVICE,
            Column("Communication", "dur", "a communication kernel runs"),
            Column("Overlapped", "dur", "of it, a computation kernel runs as well"),
            Column("Exposed", "dur", "of it, none does"),
            share_column("Overlap", "overlapped part of the communication"),
        ),
        _OVERLAP,
        arguments=(WITHOUT_LAST_STEP,),
        aliases=("get_comm_comp_overlap",),
        needs=(KERNELS,),
    ),
]
