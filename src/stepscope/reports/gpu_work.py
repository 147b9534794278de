"""What the reports about whole devices share: operations by class, and statistics with quartiles.

They follow the definitions of Holistic Trace Analysis, so that its users find its figures here. Two
things differ: communication is that of every known library, not of NCCL alone, and a stream's wait
for an event is no GPU work.
"""

from __future__ import annotations

from typing import Final

from stepscope.reports.report import Argument, Column, Unit

WITHOUT_LAST_STEP = Argument(
    "without-last-step",
    "leave out work that was launched after the last ProfilerStep began, and work without a "
    "recorded launch, as Holistic Trace Analysis does by default",
)
DEVICE = (
    Column("PID", doc="process"),
    Column("DevId", doc="device ordinal inside the process"),
)
STREAM = (*DEVICE, Column("Strm", doc="stream"))

CLASSED: Final = """(
    SELECT work.*, CASE WHEN kind <> 'kernel' THEN 'memory'
        WHEN communication.name IS NULL THEN 'computation' ELSE 'communication' END AS class
    FROM {early}gpu_work AS work
    LEFT JOIN communication ON communication.name::VARCHAR = work.name
)"""
"""Kernels, copies and memsets with the class of each."""

RUNNING: Final = f"""(
    WITH classed AS {CLASSED}, events AS (
        SELECT process_id, device, class, start_ns AS moment, 1 AS change FROM classed
        UNION ALL SELECT process_id, device, class, end_ns, -1 FROM classed
    ), held AS (
        SELECT process_id, device, lead(moment) OVER so_far - moment AS ns,
            sum(change * (class = 'computation')::INT) OVER so_far > 0 AS computation,
            sum(change * (class = 'communication')::INT) OVER so_far > 0 AS communication,
            sum(change * (class = 'memory')::INT) OVER so_far > 0 AS memory
        FROM events WINDOW so_far AS (
            PARTITION BY process_id, device ORDER BY moment ROWS UNBOUNDED PRECEDING)
    )
    SELECT process_id, device, computation, communication, memory, sum(ns)::BIGINT AS ns
    FROM held GROUP BY ALL
)"""
"""For how long exactly these classes run on a device, from its first begin to its last end."""


def share(part: str, whole: str) -> str:
    """Percent; null where the whole is nothing."""
    return f"100::DOUBLE * ({part}) / nullif({whole}, 0)"


def share_column(label: str, doc: str) -> Column:
    """The column of a :func:`share`."""
    return Column(label, "ratio", doc, decimals=2)


def described(value: str) -> str:
    """The values of :func:`described_columns`: nulls do not count, quartiles are interpolated."""
    parts = "".join(
        f", quantile_cont({value}, [0, 0.25, 0.5, 0.75, 1])[{n}]::DOUBLE" for n in range(1, 6)
    )
    return f"count({value}), avg({value}), stddev_samp({value}){parts}"


def described_columns(unit: Unit = "") -> tuple[Column, ...]:
    """The columns that pandas' ``describe`` has."""
    return (
        Column("Count", doc="number of values"),
        *(
            Column(label, unit, doc, decimals=3)
            for label, doc in (
                ("Mean", "their mean"),
                ("StdDev", "sample standard deviation; empty below two values"),
                ("Min", "least value"),
                ("Q1", "a quarter of the values is at most this"),
                ("Med", "median"),
                ("Q3", "three quarters of the values are at most this"),
                ("Max", "greatest value"),
            )
        ),
    )
