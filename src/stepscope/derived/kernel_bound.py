"""The table ``kernel_bound``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepscope.derived import DEVICE, DerivedTable, of_device
from stepscope.derived.kernel_category import coded_text
from stepscope.jobs.view import JobView
from stepscope.kernels.kernels import CATEGORY_NAMES
from stepscope.operators.bounds import kernel_bounds

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = {
    **DEVICE,
    "gpu_op_id": "gpu_op.id of the operation",
    "start_ns": "begin, ns since the origin",
    "end_ns": "end, ns since the origin",
    "steady": "whether it starts in the steady steps",
    "compute": "whether it is a kernel that computes, rather than communication, a copy or a set",
    "category": "what kind of work it is, by its name; null for copies and sets",
    "own_ns": "device time that it has to itself: operations at the same time share it, ns",
    "least_ns": "what it takes at least by the device's ceilings, ns; null where its work is not "
    "known",
    "by_arithmetic": "whether arithmetic rather than memory sets least_ns",
    "flop": "its floating-point operations; null where not known",
    "moved_bytes": "least bytes that it reads and writes; null where not known",
}


def bound_table(job: JobView) -> pa.Table:
    """What the ceilings of the devices of a job allow for each operation."""
    import pyarrow as pa

    parts = []
    for device in job.devices:
        e = device.explanation
        kernels, ops = e.kernels, e.gpu.ops
        found = kernel_bounds(kernels, device.read)
        columns = {
            **of_device(device, len(ops)),
            "gpu_op_id": ops["id"],
            "start_ns": ops["start_ns"],
            "end_ns": ops["end_ns"],
            "steady": kernels.steady,
            "compute": e.gpu.is_compute,
            "category": coded_text(kernels.category, CATEGORY_NAMES),
            "own_ns": found.own_ns,
            "least_ns": pa.array(found.least_ns, mask=~found.known),
            "by_arithmetic": found.by_arithmetic,
            "flop": pa.array(found.flop, mask=found.flop == 0),
            "moved_bytes": pa.array(found.moved_bytes, mask=found.moved_bytes == 0),
        }
        parts.append(pa.table(columns))
    return pa.concat_tables(parts).unify_dictionaries()


TABLE = DerivedTable(
    "kernel_bound",
    "One operation on a GPU, and the least time that the device's ceilings allow for it.",
    COLUMNS,
    bound_table,
)
