"""The table ``kernel_category``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from stepscope.derived import DEVICE, DerivedTable, of_device
from stepscope.jobs.view import Device, JobView
from stepscope.kernels.attribution import MODULE_PREFIX, name_codes
from stepscope.kernels.kernels import CATEGORY_NAMES, MATH_NAMES, PHASES
from stepscope.trace.frame import IntArray

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = {
    **DEVICE,
    "gpu_op_id": "gpu_op.id of the operation",
    "start_ns": "begin, ns since the origin",
    "end_ns": "end, ns since the origin",
    "steady": "whether it starts in the steady steps",
    "category": "what kind of work it is, by its name; null for copies and sets",
    "math": "arithmetic of GEMMs, convolutions and attention; null where not known",
    "kernel": "short name, with the operation of generic kernels",
    "phase": "forward, backward or optimizer; null for copies between host and device",
    "operator": "innermost framework operator at the launch, or innermost NVTX range of one",
    "outer_operator": "outermost framework operator at the launch",
    "forward_operator": "operator of the forward pass whose gradient it computes",
    "range": "innermost annotation at the launch that marks no step",
    "module": "innermost module of the model",
    "source": "function of the program that launched it or its forward operator, by the line of "
    "its def; where only stacks were sampled, the line that the nearest sample shows",
    "blocks": "blocks launched; null where not recorded",
    "moved_bytes": "bytes read and written, recorded or by type and launch; null where not known",
}


def category_table(job: JobView) -> pa.Table:
    """Category, phase and origin of every operation of a job."""
    import pyarrow as pa

    parts = [_categories(device) for device in job.devices]
    return pa.concat_tables(parts).unify_dictionaries()


def _categories(device: Device) -> pa.Table:
    import pyarrow as pa

    e = device.explanation
    kernels, ops = e.kernels, e.gpu.ops
    who = kernels.attribution
    operators = who.operators.texts.get("name", [])
    python = who.python.texts.get("name", [])
    columns = {
        **of_device(device, len(ops)),
        "gpu_op_id": ops["id"],
        "start_ns": ops["start_ns"],
        "end_ns": ops["end_ns"],
        "steady": kernels.steady,
        "category": coded_text(kernels.category, CATEGORY_NAMES),
        "math": coded_text(kernels.math, MATH_NAMES),
        "kernel": coded_text(ops["name"], [c.label for c in kernels.classes]),
        "phase": coded_text(kernels.phase, PHASES),
        "operator": coded_text(name_codes(who.operators, who.operator), operators),
        "outer_operator": coded_text(*who.operator_names),
        "forward_operator": coded_text(name_codes(who.operators, who.forward), operators),
        "range": coded_text(*who.range_names),
        "module": coded_text(who.module, [text.removeprefix(MODULE_PREFIX) for text in python]),
        "source": coded_text(who.source, who.sources),
        "blocks": pa.array(kernels.blocks, mask=kernels.blocks == 0),
        "moved_bytes": pa.array(kernels.moved_bytes, mask=kernels.moved_bytes == 0),
    }
    return pa.table(columns)


def coded_text(codes: IntArray, values: Sequence[str]) -> pa.DictionaryArray:
    """Codes into values as a text column; equal values share one code, negative codes are null.

    Only values that are used are kept: few rows may name some of very many texts.
    """
    import pyarrow as pa

    place: dict[str, int] = {}
    used = np.zeros(len(values) + 1, bool)
    used[codes] = True
    shared = np.full(len(values) + 1, -1, np.int32)
    for code in np.flatnonzero(used[:-1]).tolist():
        shared[code] = place.setdefault(values[code], len(place))
    found = shared[codes]
    return pa.DictionaryArray.from_arrays(
        pa.array(found, mask=found < 0), pa.array(list(place), pa.string())
    )


TABLE = DerivedTable(
    "kernel_category",
    "One operation on a GPU: what kind of work it is, and what launched it.",
    COLUMNS,
    category_table,
)
