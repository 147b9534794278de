"""The ``step`` table: every step of every device, accounted for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.derived import DEVICE, DerivedTable, of_device
from stepscope.jobs.view import JobView

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = {
    **DEVICE,
    "step": "number of the step, from 0",
    "start_ns": "begin on the device's timeline, ns since the origin",
    "end_ns": "end on the device's timeline, ns since the origin",
    "steady": "whether the step counts (warm-up and cut steps do not)",
    "wall_ns": "length, ns",
    "compute_ns": "time in which compute kernels run, ns",
    "exposed_communication_ns": "time in which only communication runs, ns",
    "exposed_copy_ns": "time in which only copies (and memory sets) run, ns",
    "memset_ns": "time in which only memory sets run, ns",
    "idle_ns": "time in which nothing runs, ns",
    "communication_ns": "time in which communication runs, hidden or not, ns",
    "copy_ns": "time in which copies run, hidden or not, ns",
    "exposed_host_copy_ns": "time in which host-device copies and no kernels run, ns",
}


def step_table(job: JobView) -> pa.Table:
    """The ``step`` table of some (rank, explanation) pairs."""
    import pyarrow as pa

    parts = []
    for device in job.devices:
        e = device.explanation
        n = len(e.steps)
        number = np.arange(n)
        columns = {
            **of_device(device, n),
            "step": number,
            "start_ns": e.bounds_ns[:-1],
            "end_ns": e.bounds_ns[1:],
            "steady": (number >= e.first) & (number <= e.last),
        }
        columns |= {name: getattr(e.accounting, name) for name in COLUMNS if name not in columns}
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


TABLE = DerivedTable("step", "One step on one device.", COLUMNS, step_table)
