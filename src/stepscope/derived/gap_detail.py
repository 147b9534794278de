"""The ``gap_detail`` table: idle time with what ended it, and where the host was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.activity.host import cut
from stepscope.activity.locations import function_at
from stepscope.breakdown.explain import Explanation
from stepscope.derived import DEVICE, DerivedTable, of_device
from stepscope.derived.kernel_category import coded_text
from stepscope.gaps.details import gap_details
from stepscope.gaps.idle import CAUSES
from stepscope.jobs.view import JobView
from stepscope.kernels.attribution import plain_range_name
from stepscope.trace.frame import Frame, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = {
    **DEVICE,
    "step": "number of the step it lies in",
    "gap": "number of the gap on its device; the pieces of a gap have different causes",
    "start_ns": "begin of the piece, ns since the origin",
    "end_ns": "end of the piece, ns since the origin",
    "cause": "what the piece is charged to",
    "gpu_op_id": "gpu_op.id of the operation that ended the gap; null at the window's end",
    "ended_by": "that operation: the short name of a kernel, or the direction of a copy",
    "launch_call": "call that enqueued that operation; null where unknown",
    "launch_start_ns": "begin of that call, ns since the origin; null where unknown",
    "host_call": "call that the host was in, of CUDA or else of the operating system; null where "
    "it was in none that is recorded",
    "range": "innermost annotation of the main thread that marks no step",
    "operator": "outermost framework operator of a launching thread",
    "function": "innermost Python function outside the framework, of the main thread",
    "stack": "Python stack of the main thread, the outermost frame first",
}

WINDOW_END: Final = "end of the steady steps"
_DIRECTIONS: Final = {"HtoD": "upload", "DtoH": "readback"}


def detail_table(job: JobView) -> pa.Table:
    """The ``gap_detail`` table of a job."""
    import pyarrow as pa

    parts = []
    for device in job.devices:
        e = device.explanation
        pieces = _by_step(e)
        found = gap_details(e.gpu, device.read, pieces, e.steps.label)
        op, launch, api = found.op, found.launch, e.gpu.host.api
        ended, endings = _endings(e, op)
        columns = {
            **of_device(device, len(pieces)),
            "step": np.searchsorted(e.bounds_ns, pieces["start_ns"], side="right") - 1,
            "gap": found.gap,
            "start_ns": pieces["start_ns"],
            "end_ns": pieces["end_ns"],
            "cause": coded_text(pieces["cause"], CAUSES),
            "gpu_op_id": pa.array(e.gpu.ops["id"][np.maximum(op, 0)], mask=op < 0),
            "ended_by": coded_text(ended, endings),
            "launch_call": coded_text(
                np.where(launch >= 0, api["name"][np.maximum(launch, 0)], -1)
                if len(api)
                else launch,
                api.texts.get("name", []),
            ),
            "launch_start_ns": pa.array(
                api["start_ns"][np.maximum(launch, 0)] if len(api) else launch, mask=launch < 0
            ),
            "host_call": coded_text(found.call, found.calls),
            "range": coded_text(found.range, [plain_range_name(text) for text in found.ranges]),
            "operator": coded_text(found.operator, found.operators),
            "function": coded_text(found.function, [function_at(text) for text in found.functions]),
            "stack": coded_text(found.stack, found.stacks),
        }
        parts.append(pa.table(columns))
    return pa.concat_tables(parts).unify_dictionaries()


def _by_step(e: Explanation) -> Frame:
    """The pieces, cut where a step ends, so that those of each step sum to its idle time."""
    segments = e.gaps.segments
    edges = e.bounds_ns[e.first : e.last + 2]
    return Frame(cut(segments.columns, edges), segments.texts) if len(segments) else segments


def _endings(e: Explanation, op: IntArray) -> tuple[IntArray, list[str]]:
    """Code of a text for each operation that ended a gap, and the texts."""
    ops = e.gpu.ops
    labels = [*(kernel.label for kernel in e.kernels.classes), WINDOW_END, "memset", "copy"]
    end, memset, copy = range(len(labels) - 3, len(labels))
    copies = ops.texts["copy_kind"]
    labels += [
        f"memcpy {kind} ({_DIRECTIONS[kind]})" if kind in _DIRECTIONS else f"memcpy {kind}"
        for kind in copies
    ]
    row = np.maximum(op, 0)
    direction = ops["copy_kind"][row].astype(np.int64)
    found = np.where(ops["name"][row] >= 0, ops["name"][row], copy).astype(np.int64)
    found = np.where(
        ops.equals("kind", "memcpy")[row],
        np.where(direction >= 0, copy + 1 + direction, copy),
        found,
    )
    found = np.where(ops.equals("kind", "memset")[row], memset, found)
    return np.where(op >= 0, found, end), labels


TABLE = DerivedTable(
    "gap_detail",
    "One piece of the idle time of one step, with what ended it and where the host was.",
    COLUMNS,
    detail_table,
)
