"""Every push/pop range with its place in the tree."""

from __future__ import annotations

from stepscope.reports.needs import RANGES
from stepscope.reports.report import Column, Report

_SQL = """
WITH ranges AS (
    SELECT pushpop.*, pushpop.end_ns - start_ns AS length, parent, level, stack
    FROM pushpop JOIN pushpop_tree USING (id)
), inside AS (
    SELECT parent, sum(length)::BIGINT AS length, count(*) AS number FROM ranges GROUP BY 1
)
SELECT one.start_ns, one.end_ns, one.length, coalesce(inside.length, 0),
    one.length - coalesce(inside.length, 0), one.label, one.process_id, one.thread_id, one.level,
    coalesce(inside.number, 0), one.row_id, above.row_id, one.stack,
    repeat('--', one.level) || one.label
FROM ranges AS one
LEFT JOIN inside ON inside.parent = one.id
LEFT JOIN pushpop AS above ON above.id = one.parent
ORDER BY one.start_ns, one.length, one.level, one.row_id
"""

REPORTS = [
    Report(
        "nvtx_pushpop_trace",
        "NVTX Push/Pop Range Trace",
        "Every push/pop range in order of start, with its place among the ranges of its thread: "
        "the parent is the tightest range that contains it, whatever their domains.",
        (
            Column("Start", "ts", "begin"),
            Column("End", "ts", "end"),
            Column("Duration", "dur", "length"),
            Column("DurChild", "dur", "sum of the direct children"),
            Column("DurNonChild", "dur", "the rest: time of the range itself"),
            Column("Name", doc="domain:text, or the text alone in the default domain"),
            Column("PID", doc="process"),
            Column("TID", doc="thread"),
            Column("Lvl", doc="0 at the top"),
            Column("NumChild", doc="number of direct children"),
            Column("RangeId", doc="the source's row id"),
            Column("ParentId", doc="row id of the parent"),
            Column("RangeStack", doc="row ids from the top to the range"),
            Column("NameTree", doc="name, indented by level"),
        ),
        _SQL,
        aliases=("nvtxpptrace",),
        needs=(RANGES,),
    )
]
