"""What ``stepscope gaps`` shows, as statements over ``gap_detail`` and ``step``."""

from __future__ import annotations

from typing import Final

SORTS: Final = {
    "total": "idle_ns DESC",
    "longest": "longest_ns DESC",
    "count": "gaps DESC",
}
"""Orders of :func:`groups_view`."""

LIST_SORTS: Final = {"length": "idle_ns DESC", "start": "rank, device, start_ns"}
"""Orders of :func:`gaps_view`."""


_PLACES: Final = ("host_call", "operator", "function")


def groups_view(step: int | None, rank: int | None, sort: str = "total") -> str:
    """Idle time of the steady steps by cause, what ended it, and range.

    The call, function and operator are those of the longest piece.

    Args:
        step: number of one step; all steady ones by default.
        rank: one rank; all by default.
        sort: key of ``SORTS``.
    """
    chosen = _chosen(step, rank)
    return f"""
WITH piece AS (
    SELECT rank, process_id, device, gap, cause, ended_by, range,
           sum(end_ns - start_ns)::BIGINT AS ns,
           {_of_longest("end_ns - start_ns, start_ns", *_PLACES)} AS place
    FROM gap_detail WHERE {chosen} GROUP BY ALL
), whole AS (
    SELECT count(*) AS steps, sum(wall_ns) AS wall, sum(idle_ns) AS idle
    FROM step WHERE steady AND {chosen}
)
SELECT cause, ended_by, range, count(*) AS gaps, sum(ns)::BIGINT AS idle_ns,
       round(count(*) / any_value(steps), 2) AS gaps_per_step,
       round(sum(ns) / any_value(steps))::BIGINT AS idle_ns_per_step,
       round(sum(ns) / any_value(idle), 4) AS share_of_idle,
       round(sum(ns) / any_value(wall), 4) AS share_of_step,
       max(ns) AS longest_ns, round(avg(ns))::BIGINT AS mean_ns,
       unnest(arg_max(place, (ns, -rank, -gap)))
FROM piece, whole GROUP BY cause, ended_by, range
ORDER BY {SORTS[sort]}, idle_ns DESC, cause, ended_by, range
"""


def gaps_view(step: int | None, rank: int | None, sort: str = "length") -> str:
    """The single gaps of the steady steps.

    A gap that is charged to several causes has the one that holds most of it; ``causes`` names
    all. The call, range, operator and Python are those of the longest piece of that cause.

    Args:
        step: number of one step; all steady ones by default.
        rank: one rank; all by default.
        sort: key of ``LIST_SORTS``.
    """
    chosen = _chosen(step, rank)
    return f"""
WITH part AS (
    SELECT rank, process_id, device, gap, cause, min(step) AS step, min(start_ns) AS start_ns,
           max(end_ns) AS end_ns, sum(end_ns - start_ns)::BIGINT AS ns,
           any_value(ended_by) AS ended_by, any_value(gpu_op_id) AS gpu_op_id,
           any_value(launch_call) AS launch_call, any_value(launch_start_ns) AS launch_start_ns,
           {_of_longest("end_ns - start_ns, start_ns", "range", *_PLACES, "stack")} AS place
    FROM gap_detail WHERE {chosen} GROUP BY rank, process_id, device, gap, cause
)
SELECT rank, device, min(step) AS step, min(start_ns) AS start_ns, sum(ns)::BIGINT AS idle_ns,
       arg_max(cause, (ns, cause)) AS cause,
       string_agg(cause || ' ' || ns, ', ' ORDER BY ns DESC, cause) AS causes,
       any_value(ended_by) AS ended_by, any_value(gpu_op_id) AS gpu_op_id,
       any_value(launch_call) AS launch_call, any_value(launch_start_ns) AS launch_start_ns,
       unnest(arg_max(place, (ns, cause)))
FROM part GROUP BY rank, process_id, device, gap
ORDER BY {LIST_SORTS[sort]}, rank, device, start_ns
"""


def _of_longest(key: str, *columns: str) -> str:
    """The columns of the row with the greatest key, as a struct: alone, nulls would be left out."""
    packed = ", ".join(f"'{name}': {name}" for name in columns)
    return f"arg_max({{{packed}}}, ({key}))"


def _chosen(step: int | None, rank: int | None) -> str:
    parts = [f"{name} = {int(value)}" for name, value in (("step", step), ("rank", rank))
             if value is not None]  # fmt: skip
    return " AND ".join(parts) or "true"
