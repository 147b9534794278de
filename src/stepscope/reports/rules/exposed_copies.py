"""Copies of pageable memory that nothing hides."""

from __future__ import annotations

from stepscope.reports.needs import COPIES
from stepscope.reports.report import ROWS, Argument, Column, Report

# kernels of a device joined to stretches, each with the time of those before it; a point in time
# has before it what the stretches that began have, but the part of the last that comes after it
_SQL = """
WITH copies AS (
    SELECT * FROM gpu_work
    WHERE kind = 'memcpy' AND (src_memory = 'pageable' OR dst_memory = 'pageable')
), seen AS (
    SELECT process_id, device, id, start_ns, end_ns,
        max(end_ns) OVER (PARTITION BY process_id, device ORDER BY start_ns, id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until_ns
    FROM kernel WHERE (SELECT count(*) FROM copies) > 0
), numbered AS (
    SELECT *, sum((until_ns IS NULL OR start_ns > until_ns)::INT)
        OVER (PARTITION BY process_id, device ORDER BY start_ns, id) AS number
    FROM seen
), stretches AS (
    SELECT process_id, device, min(start_ns) AS start_ns, max(end_ns) AS end_ns FROM numbered
    GROUP BY process_id, device, number
), summed AS (
    SELECT *, sum(end_ns - start_ns) OVER (PARTITION BY process_id, device ORDER BY start_ns)
        - (end_ns - start_ns) AS before_ns
    FROM stretches
), covered AS (
    SELECT copies.*,
        coalesce(late.before_ns + least(copies.end_ns, late.end_ns) - late.start_ns, 0)
        - coalesce(soon.before_ns + least(copies.start_ns, soon.end_ns) - soon.start_ns, 0)
            AS covered_ns
    FROM copies
    ASOF LEFT JOIN summed AS soon ON soon.process_id = copies.process_id
        AND soon.device = copies.device AND soon.start_ns <= copies.start_ns
    ASOF LEFT JOIN summed AS late ON late.process_id = copies.process_id
        AND late.device = copies.device AND late.start_ns <= copies.end_ns
)
SELECT duration_ns, start_ns, src_kind, dst_kind, bytes,
    covered_ns * 100::DOUBLE / greatest(duration_ns, 1) AS share, process_id, device, stream
FROM covered WHERE share <= {overlap} ORDER BY duration_ns DESC, id LIMIT {rows}
"""

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
        _SQL,
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
