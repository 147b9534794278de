"""The analysis tables that SQL can use beside the canonical ones: ``step`` and ``idle_gap``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.analysis.explain import Explanation
from stepscope.analysis.gaps import CAUSES
from stepscope.analysis.silence import EVIDENCE

if TYPE_CHECKING:
    import pyarrow as pa

STEP_COLUMNS: Final = {
    "rank": "rank",
    "process_id": "operating-system process id",
    "device": "CUDA device ordinal inside the process",
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
"""Columns of ``step``: one row a step and device."""

GAP_COLUMNS: Final = {
    "rank": "rank",
    "process_id": "operating-system process id",
    "device": "CUDA device ordinal inside the process",
    "step": "number of the step it lies in",
    "start_ns": "begin, ns since the origin",
    "end_ns": "end, ns since the origin",
    "cause": "what the idle time is charged to",
    "inferred": "whether the cause acted earlier (took the host's lead) or is an estimate",
    "evidence": "what tells the cause of a long silence; null for others",
    "gpu_op_id": "gpu_op.id of the operation that ended the gap; null at the window's end",
}
"""Columns of ``idle_gap``: one row a piece of idle time in the steady steps."""


def step_table(explanations: list[tuple[int, Explanation]]) -> pa.Table:
    """The ``step`` table of some (rank, explanation) pairs."""
    import pyarrow as pa

    parts = []
    for rank, e in explanations:
        n = len(e.steps)
        number = np.arange(n)
        columns = {
            "rank": np.full(n, rank),
            "process_id": np.full(n, e.lane.process_id),
            "device": np.full(n, e.lane.device),
            "step": number,
            "start_ns": e.bounds_ns[:-1],
            "end_ns": e.bounds_ns[1:],
            "steady": (number >= e.first) & (number <= e.last),
        }
        columns |= {
            name: getattr(e.accounting, name) for name in STEP_COLUMNS if name not in columns
        }
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def gap_table(explanations: list[tuple[int, Explanation]]) -> pa.Table:
    """The ``idle_gap`` table of some (rank, explanation) pairs."""
    import pyarrow as pa

    parts = []
    for rank, e in explanations:
        rows = e.gaps.segments
        n = len(rows)
        op = rows["op"]
        op_id = e.lane.ops["id"][np.maximum(op, 0)] if n else op
        # a piece may cross a boundary of steps; it is listed under the step it begins in
        step = np.searchsorted(e.bounds_ns, rows["start_ns"], side="right") - 1
        parts.append(
            pa.table(
                {
                    "rank": np.full(n, rank),
                    "process_id": np.full(n, e.lane.process_id),
                    "device": np.full(n, e.lane.device),
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
