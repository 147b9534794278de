"""Copies of pageable memory that nothing hides."""

from __future__ import annotations

import numpy as np

from stepscope.intervals import coverage, union
from stepscope.intervals.distinct import common_values
from stepscope.tabular.attribution import memory_kinds
from stepscope.tabular.maths import group, nullable, round_half_away
from stepscope.tabular.needs import COPIES
from stepscope.tabular.report import ROWS, Answer, Argument, Arguments, Column, Report, limit
from stepscope.tabular.source import Rows, Source
from stepscope.trace.frame import IntArray


def _covered_ns(rows: Rows, by: Rows) -> IntArray:
    """Time of each row during which work ``by`` ran on the same device of the same process, ns."""
    found = np.zeros(len(rows), np.int64)
    if not len(rows) or not len(by):
        return found
    process = np.concatenate([rows["process_id"], by["process_id"]])
    device = np.concatenate([rows["device"], by["device"]])
    number, _ = group(process, device)
    mine, theirs = number[: len(rows)], number[len(rows) :]
    for gpu in common_values(mine, theirs).tolist():
        here, there = np.flatnonzero(mine == gpu), theirs == gpu
        work = union(by["start_ns"][there], by["end_ns"][there])
        start, end = rows["start_ns"][here], rows["end_ns"][here]
        found[here] = coverage(work, end) - coverage(work, start)
    return found


def _run(source: Source, arguments: Arguments) -> Answer:
    copies = source.of_kind("gpu_op", "kind", "memcpy")
    copies = copies.where(
        copies.equals("src_memory", ("pageable",)) | copies.equals("dst_memory", ("pageable",))
    )
    share = 100.0 * _covered_ns(copies, source.kernels()) / np.maximum(copies.duration, 1)
    rows = np.flatnonzero(share <= int(arguments["overlap"]))
    order = rows[np.argsort(-copies.duration[rows], kind="stable")][limit(arguments)]
    return [
        copies.duration[order],
        copies["start_ns"][order],
        memory_kinds(copies, "src_memory", order),
        memory_kinds(copies, "dst_memory", order),
        nullable(copies["bytes"][order]),
        round_half_away(share[order]),
        copies["process_id"][order],
        copies["device"][order],
        copies["stream"][order],
    ]


RULES = [
    Report(
        "pageable_copy_exposed",
        "Pageable Copies That Nothing Hides",
        "Copies from or to pageable host memory during which kernels ran on the same device for at "
        "most the given share of the time. Longest first.",
        (
            Column("Duration", "dur", "length on the GPU"),
            Column("Start", "ts", "begin on the GPU"),
            Column("Src Kind", doc="memory copied from"),
            Column("Dst Kind", doc="memory copied to"),
            Column("Bytes", "mem", "size"),
            Column("Overlap", "ratio", "share of the copy during which kernels ran"),
            Column("PID", doc="process"),
            Column("Device ID", doc="device ordinal inside the process"),
            Column("Stream ID", doc="CUDA stream"),
        ),
        _run,
        arguments=(
            ROWS,
            Argument("overlap", "leave out copies covered for more percent", 10, low=0, high=100),
        ),
        needs=(COPIES,),
        none_found="No copy of pageable memory ran without kernels beside it.",
        advice="The GPU computes nothing during these copies. Pin the host memory and copy the "
        "next batch while the current one is computed (non_blocking=True, a stream of its own).",
    )
]
