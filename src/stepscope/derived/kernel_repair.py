"""The table ``kernel_repair``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepscope.derived import DEVICE, DerivedTable, of_device
from stepscope.jobs.view import JobView
from stepscope.kernels.findings import further_id

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = {
    **DEVICE,
    "gpu_op_id": "gpu_op.id of the operation",
    "start_ns": "begin, ns since the origin",
    "end_ns": "end, ns since the origin",
    "cause": "cause whose repair changes it; CAUSE.further for a further repair of it",
    "repaired_ns": "its estimated length after the repair, ns",
    "merged": "whether it is not launched any more",
    "idle_ns": "late launches that go with it: before it, and behind the last of a loop, ns",
}


def repair_table(job: JobView) -> pa.Table:
    """What the repairs inside the kernels of a job change."""
    import pyarrow as pa

    kinds = {"cause": pa.string(), "merged": pa.bool_()}
    parts = [pa.schema([(n, kinds.get(n, pa.int64())) for n in COLUMNS]).empty_table()]
    for device in job.devices:
        e = device.explanation
        ops = e.gpu.ops
        inside = e.inside_kernels
        further = {further_id(cause): repair for cause, repair in inside.further_repairs.items()}
        for cause, repair in (inside.repairs | further).items():
            rows = repair.rows
            columns = {
                **of_device(device, len(rows)),
                "gpu_op_id": ops["id"][rows],
                "start_ns": ops["start_ns"][rows],
                "end_ns": ops["end_ns"][rows],
                "cause": pa.array([cause] * len(rows), pa.string()),
                "repaired_ns": repair.new_ns,
                "merged": repair.merged,
                "idle_ns": repair.idle_ns,
            }
            parts.append(pa.table(columns))
    return pa.concat_tables(parts)


TABLE = DerivedTable(
    "kernel_repair",
    "One operation in the steady steps that the repair of a cause inside the kernels changes.",
    COLUMNS,
    repair_table,
)
