"""What GPU time is grouped by; ``stepscope kernels`` and ``operators`` as statements over that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stepscope.trace.errors import UsageError


@dataclass(frozen=True)
class GroupBy:
    """What rows of ``kernel_category`` can be grouped by.

    Attributes:
        title: what one group is.
        keys: the columns that name a group, the first one above all.
        rather: column that names a group instead of the first one where it is not null.
    """

    title: str
    keys: tuple[str, ...]
    rather: str = ""

    def select(self, *last: str) -> str:
        """The keys in a SELECT; the first one is ``last`` where there is nothing else."""
        key, *others = self.keys
        columns = [column for column in (self.rather, key, *last) if column]
        first = key if len(columns) == 1 else f"coalesce({', '.join(columns)}) AS {key}"
        return ", ".join((first, *others))


GROUPINGS: Final = {
    "kernel": GroupBy("kernel", ("kernel", "category", "math")),
    "operator": GroupBy("outermost operator", ("operator", "phase"), rather="outer_operator"),
    "inner": GroupBy("innermost operator", ("operator", "phase")),
    "range": GroupBy("innermost range", ("range", "phase")),
    "module": GroupBy("module", ("module", "phase")),
    "source": GroupBy("source line", ("source", "phase")),
    "category": GroupBy("category", ("category", "phase")),
}
"""All there are, for these statements and for the tables of the page and their queries."""


def grouped_by(name: str) -> GroupBy:
    """One of ``GROUPINGS``.

    Raises:
        UsageError: there is no such one.
    """
    if name not in GROUPINGS:
        raise UsageError(f"there is no table by {name[:40]!r}; choose {', '.join(GROUPINGS)}")
    return GROUPINGS[name]


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
GROUP BY ALL ORDER BY time_ns DESC, {", ".join(GROUPINGS["kernel"].keys)}
"""
"""Kernels of the steady steps by category and name, all devices together."""


def operators_view(by: str) -> str:
    """The statement that attributes device time to a key of ``GROUPINGS``.

    Of several most frequent modules or longest kernels it names the first by the alphabet: DuckDB
    would take whichever of its threads comes first.

    Raises:
        UsageError: there is no such key.
    """
    grouping = grouped_by(by)
    keys = grouping.select("'(none)'")
    ordered = ", ".join(str(at + 1) for at in range(len(grouping.keys)))
    mostly = "".join(
        f", mode({name} ORDER BY {name}) AS mostly_in_{name}"
        for name in ("module", "source")
        if name != by
    )
    return f"""
SELECT {keys}, count(*) AS kernels,
       round(count(*) / (SELECT count(*) FROM step WHERE steady), 2) AS kernels_per_step,
{_TIME}
       arg_min(kernel, (start_ns - end_ns, kernel)) AS longest_kernel{mostly}
FROM kernel_category WHERE steady
GROUP BY ALL ORDER BY time_ns DESC, {ordered}
"""
