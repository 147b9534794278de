"""What ``stepscope kernels`` and ``operators`` show, as statements over derived tables."""

from __future__ import annotations

from typing import Final

_TIME: Final = """
       sum(end_ns - start_ns)::BIGINT AS time_ns,
       round(sum(end_ns - start_ns) / (SELECT count(*) FROM step WHERE steady))::BIGINT
           AS time_ns_per_step,
       round(sum(end_ns - start_ns) / (SELECT sum(wall_ns) FROM step WHERE steady), 4)
           AS share_of_step,""".strip("\n")
"""What both views say of the time of some operations."""

KERNELS_VIEW: Final = f"""
SELECT category, kernel, math, count(*) AS calls,
       round(count(*) / (SELECT count(*) FROM step WHERE steady), 2) AS calls_per_step,
{_TIME}
       median(end_ns - start_ns)::BIGINT AS median_ns,
       sum(moved_bytes)::BIGINT AS bytes,
       round(sum(moved_bytes) * 1e9 / sum(end_ns - start_ns) FILTER (moved_bytes IS NOT NULL)
           )::BIGINT AS bytes_per_s,
       round(avg(end_ns - start_ns))::BIGINT AS mean_ns,
       min(end_ns - start_ns)::BIGINT AS min_ns, max(end_ns - start_ns)::BIGINT AS max_ns
FROM kernel_category WHERE steady
GROUP BY ALL ORDER BY time_ns DESC, kernel, category, math
"""
"""Kernels of the steady steps by category and name, all devices together."""

GROUPINGS: Final = {
    "operator": "coalesce(outer_operator, operator)",
    "inner": "operator",
    "range": "range",
    "module": "module",
    "source": "source",
    "category": "category",
}
"""What ``stepscope operators`` can group by -> expression over ``kernel_category``."""


def operators_view(by: str) -> str:
    """The statement that attributes device time to a key of ``GROUPINGS``.

    Of several most frequent modules or longest kernels it names the first by the alphabet: DuckDB
    would take whichever of its threads comes first.
    """
    key = GROUPINGS[by]
    mostly = "".join(
        f", mode({name} ORDER BY {name}) AS mostly_in_{name}"
        for name in ("module", "source")
        if name != by
    )
    return f"""
SELECT coalesce({key}, '(none)') AS {"operator" if by == "inner" else by}, phase,
       count(*) AS kernels,
       round(count(*) / (SELECT count(*) FROM step WHERE steady), 2) AS kernels_per_step,
{_TIME}
       arg_min(kernel, (start_ns - end_ns, kernel)) AS longest_kernel{mostly}
FROM kernel_category WHERE steady
GROUP BY ALL ORDER BY time_ns DESC, 1, 2
"""
