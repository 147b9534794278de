"""The ``step_outlier`` table: what outlier steps spend more time on than a normal one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.breakdown.outliers import PARTS
from stepscope.derived import DEVICE, DerivedTable, of_device
from stepscope.jobs.view import JobView

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = {
    **DEVICE,
    "step": "number of the outlier step",
    "normal_step": "number of the normal step it is compared with: the one of median length",
    "wall_ns": "length of the outlier step, ns",
    "step_excess_ns": "how much longer it is than the normal step, ns",
    "part": "idle, compute, communication, copy or memset, as in the accounting identity",
    "name": "cause of the idle time, or name of the operation",
    "excess_ns": "time that it spends more on it; these sum to step_excess_ns exactly, ns",
    "specific": "whether a more specific cause than step_jitter accounts for it",
    "more": "operations of this name that it has more",
}


def outlier_table(job: JobView) -> pa.Table:
    """The ``step_outlier`` table of a job."""
    import pyarrow as pa

    parts = []
    for device in job.devices:
        e = device.explanation
        rows = e.outliers.parts
        n = len(rows)
        wall = e.durations_ns[rows["step"]]
        normal = e.outliers.reference
        parts.append(
            pa.table(
                {
                    **of_device(device, n),
                    "step": rows["step"],
                    "normal_step": np.full(n, normal),
                    "wall_ns": wall,
                    "step_excess_ns": wall - (e.durations_ns[normal] if n else 0),
                    "part": pa.array([PARTS[code] for code in rows["part"].tolist()], pa.string()),
                    "name": pa.array(
                        [e.outliers.names[code] for code in rows["name"].tolist()], pa.string()
                    ),
                    "excess_ns": rows["excess_ns"],
                    "specific": e.outliers.is_specific,
                    "more": rows["more"],
                }
            )
        )
    return pa.concat_tables(parts)


TABLE = DerivedTable(
    "step_outlier",
    "One part in which a step that takes far longer than the others differs from a normal one.",
    COLUMNS,
    outlier_table,
)
