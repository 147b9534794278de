"""The ``rank_pace`` table: what each device needs for a step, and who is late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.collectives.job import PACE_COLUMNS, pace_columns
from stepscope.derived import DerivedTable
from stepscope.jobs.view import JobView

if TYPE_CHECKING:
    import pyarrow as pa


def pace_table(job: JobView) -> pa.Table:
    """The ``rank_pace`` table; without rows where nothing communicates."""
    import pyarrow as pa

    if job.collectives is None:
        kinds = {"late": pa.bool_()}
        return pa.schema(
            [(name, kinds.get(name, pa.int64())) for name in PACE_COLUMNS]
        ).empty_table()
    found = pace_columns(job.collectives)
    return pa.table({name: found[name] for name in PACE_COLUMNS})


TABLE = DerivedTable(
    "rank_pace",
    "One device of a job that communicates, in the steady steps that all devices share: what it "
    "would need on its own account, and what it waits.",
    PACE_COLUMNS,
    pace_table,
)
