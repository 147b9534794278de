"""The ``idle_gap`` table: idle time of the steady steps by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.derived import DEVICE, DerivedTable, of_device
from stepscope.gaps.idle import CAUSES
from stepscope.gaps.untraced_cpu import EVIDENCE
from stepscope.jobs.view import JobView

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = {
    **DEVICE,
    "step": "number of the step it lies in",
    "start_ns": "begin, ns since the origin",
    "end_ns": "end, ns since the origin",
    "cause": "what the idle time is charged to",
    "inferred": "whether the cause acted earlier (took the host's run-ahead) or is an estimate",
    "evidence": "what tells the cause of long untraced CPU time; null for others",
    "gpu_op_id": "gpu_op.id of the operation that ended the gap; null at the window's end",
}


def gap_table(job: JobView) -> pa.Table:
    """The ``idle_gap`` table of some (rank, explanation) pairs."""
    import pyarrow as pa

    parts = []
    for device in job.devices:
        e = device.explanation
        rows = e.gaps.segments
        n = len(rows)
        op = rows["op"]
        op_id = e.gpu.ops["id"][np.maximum(op, 0)] if n else op
        # a piece may cross a boundary of steps; it is listed under the step it begins in
        step = np.searchsorted(e.bounds_ns, rows["start_ns"], side="right") - 1
        parts.append(
            pa.table(
                {
                    **of_device(device, n),
                    "step": step,
                    "start_ns": rows["start_ns"],
                    "end_ns": rows["end_ns"],
                    "cause": pa.array(list(CAUSES)).take(pa.array(rows["cause"])),
                    "inferred": rows["inferred"] == 1,
                    "evidence": pa.array([*EVIDENCE, None]).take(
                        pa.array(np.where(rows["evidence"] < 0, len(EVIDENCE), rows["evidence"]))
                    ),
                    "gpu_op_id": pa.array(op_id, mask=op < 0),
                }
            )
        )
    return pa.concat_tables(parts)


TABLE = DerivedTable(
    "idle_gap",
    "One piece of idle time in the steady steps, with the cause it is charged to.",
    COLUMNS,
    gap_table,
)
