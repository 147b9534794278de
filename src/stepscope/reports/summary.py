"""What the summaries share: their columns, and the statements that fill them."""

from __future__ import annotations

from stepscope.reports.report import Argument, Column

BASE = Argument("base", "kernel names without template arguments and parameters")
MANGLED = Argument("mangled", "kernel names as the linker sees them")
NVTX_NAME = Argument("nvtx-name", "put the innermost range around the launch before kernel names")
KERNEL_NAMES = (NVTX_NAME, BASE, MANGLED)


def header(count: str, *tail: Column) -> tuple[Column, ...]:
    """The columns of a summary by duration.

    Args:
        count: label of the number of instances.
        tail: what the rows are grouped by.
    """
    return (
        Column("Time", "ratio", "share of the sum of all rows' totals"),
        Column("Total Time", "dur", "sum of the durations"),
        Column(count, doc="number of instances"),
        *spread_columns(),
        *tail,
    )


def spread_columns(prefix: str = "") -> tuple[Column, ...]:
    """Mean, median, extremes and standard deviation of durations."""
    return (
        Column(f"{prefix}Avg", "dur", "mean duration"),
        Column(f"{prefix}Med", "dur", "median duration"),
        Column(f"{prefix}Min", "dur", "shortest duration"),
        Column(f"{prefix}Max", "dur", "longest duration"),
        Column(f"{prefix}StdDev", "dur", "sample standard deviation of the durations"),
    )


def spread(value: str = "duration_ns") -> str:
    """The values of :func:`spread_columns`: nulls do not count."""
    return (
        f"sum({value})::DOUBLE / nullif(count({value}), 0), median({value})::DOUBLE, "
        f"min({value}), max({value}), coalesce(stddev_samp({value}), 0)"
    )


def summary(
    rows: str, *keys: str, order: str = "", shown: str = "", extra: str = "", first: str = ""
) -> str:
    """The statement of a summary by duration: longest total first.

    Args:
        rows: what follows FROM: rows with ``duration_ns``.
        keys: what they are grouped by, as expressions that end with a name.
        order: decides between equal totals; by default the keys.
        shown: the columns of the tail; by default the keys.
        extra: further aggregates that ``order`` needs, with names.
        first: comes before the total.
    """
    names = ", ".join(key.split()[-1] for key in keys)
    return f"""
        SELECT total * 100::DOUBLE / nullif(sum(total) OVER (), 0)::DOUBLE, total, instances,
            mean, middle, least, most, deviation, {shown or names}
        FROM (
            SELECT {", ".join(keys)}, sum(duration_ns)::BIGINT AS total, count(*) AS instances,
                sum(duration_ns)::DOUBLE / count(*) AS mean,
                median(duration_ns)::DOUBLE AS middle, min(duration_ns) AS least,
                max(duration_ns) AS most, coalesce(stddev_samp(duration_ns), 0) AS deviation
                {extra and ", " + extra}
            FROM {rows} GROUP BY ALL
        )
        ORDER BY {first and first + ", "}total DESC, {order or names}"""
