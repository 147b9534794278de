"""Kernels slower than their work needs: by their shapes or grid, or in single precision."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stepscope.intervals.distinct import distinct_rows, with_inverse
from stepscope.kernels.ceilings import Peaks
from stepscope.kernels.view import MATH_NAMES, Kernels, Repair, scaled
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

FAR_BELOW = 0.25
"""Share of the ceiling (arithmetic or memory, whichever is lower) under which a product is far
below what its shape allows. Libraries achieve 50 to 80 % where the shape fills the device."""

REACHABLE = 0.5
"""Share of the ceiling that a repair is assumed to reach."""

LONG_ENOUGH_NS = 20_000
"""Shorter kernels end before they have filled the device."""

FEW_BLOCKS = 0.25
"""Blocks for each SM under which most of the device has nothing to do."""

_ITEM_BYTES: Final = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "double": 8}
_ONE_BLOCK_FAMILIES = ("elementwise", "copy", "reduction", "softmax", "normalisation", "index",
                       "sort", "loss", "dropout", "compiled", "other")  # fmt: skip


@dataclass(frozen=True)
class Inefficient:
    """One kernel that is far below its ceiling.

    Attributes:
        label: its name for people.
        name: its full name.
        repair: its launches in the steady window, and what they could take.
        achieved: share of the ceiling, or blocks a SM.
        by_grid: whether the small grid tells, rather than the shapes.
    """

    label: str
    name: str
    repair: Repair
    achieved: float
    by_grid: bool


def inefficient_kernel(kernels: Kernels, taken: BoolArray) -> Inefficient | None:
    """The kernel that loses most time, by name.

    Args:
        kernels: the device's kernels.
        taken: operations that belong to another finding already.
    """
    duration = kernels.duration_ns
    long_ = kernels.gpu.is_compute & kernels.steady & ~taken & (duration >= LONG_ENOUGH_NS)
    ceiling = _ceiling_ns(kernels)
    by_shape = long_ & (ceiling > 0) & (ceiling < FAR_BELOW * duration)
    sms = kernels.device[1]
    blocks = kernels.blocks
    by_grid = long_ & kernels.in_category(*_ONE_BLOCK_FAMILIES) & (blocks > 0)
    by_grid &= blocks < FEW_BLOCKS * sms
    # a grid that has twice the blocks is assumed to be no faster than half the launch
    grid_ns = np.where(blocks > 0, duration * blocks // max(sms, 1), 0)
    best = np.where(by_shape, ceiling / REACHABLE, np.where(by_grid, 2 * grid_ns, duration))
    new = np.minimum(best.astype(np.int64), duration)
    rows = np.flatnonzero((by_shape | by_grid) & (new < duration))
    if not len(rows):
        return None
    name = kernels.gpu.ops["name"]
    lost = np.bincount(name[rows], weights=(duration - new)[rows])
    code = int(np.argmax(lost))
    rows = rows[name[rows] == code]
    spent = int(duration[rows].sum())
    grid_told = not bool(by_shape[rows[0]])
    ideal = int((grid_ns if grid_told else ceiling)[rows].sum())
    after = int(new[rows].sum())
    return Inefficient(
        label=kernels.classes[code].label,
        name=kernels.gpu.ops.texts["name"][code],
        repair=Repair(
            rows=rows,
            old_ns=duration[rows],
            new_ns=new[rows],
            merged=np.zeros(len(rows), bool),
            idle_ns=np.zeros(len(rows), np.int64),
            low_ns=ideal,
            high_ns=(spent + after) // 2,
        ),
        achieved=ideal / spent,
        by_grid=grid_told,
    )


def _ceiling_ns(kernels: Kernels) -> AnyArray:
    """Least time of the products whose shapes are recorded, ns; 0 for all others.

    An operator that launches several products (the gradients of a convolution) shares its work
    among them by their time.
    """
    found = np.zeros(len(kernels.gpu.ops))
    peaks, table = kernels.peaks, kernels.attribution.operators
    gemm = kernels.in_category("matmul", "convolution")
    rows = np.flatnonzero(gemm & (kernels.attribution.operator >= 0) & (kernels.math >= 0))
    if peaks is None or not len(rows) or "input_shapes" not in table:
        return found
    operator = kernels.attribution.operator[rows]
    work = _work_of(table.texts, table["name"][operator], table["input_shapes"][operator],
                    table["input_types"][operator])  # fmt: skip
    rate = np.array([peaks.of(m) for m in MATH_NAMES])[kernels.math[rows]]
    arithmetic = np.where(rate > 0, work[0] / np.maximum(rate, 1), 0)
    least = np.maximum(arithmetic, work[1] / (kernels.attainable_bandwidth or np.inf))
    duration = kernels.duration_ns[rows]
    _, group = with_inverse(operator)
    together = np.bincount(group, weights=duration)[group]
    found[rows] = np.where((arithmetic > 0), least * 1e9 * duration / np.maximum(together, 1), 0)
    return found


def _work_of(
    texts: dict[str, list[str]], name: IntArray, shapes: IntArray, types: IntArray
) -> tuple[AnyArray, AnyArray]:
    """FLOP and least bytes of each operator call, computed once for each distinct call."""
    keys = (name, shapes, types)
    first, inverse = distinct_rows(keys)
    work = np.array(
        [
            operator_work(
                texts["name"][n],
                texts["input_shapes"][s] if s >= 0 else "",
                texts["input_types"][t] if t >= 0 else "",
            )
            for n, s, t in zip(*(key[first].tolist() for key in keys), strict=True)
        ]
    )
    return work[inverse, 0], work[inverse, 1]


def operator_work(name: str, shapes_text: str, types_text: str) -> tuple[float, float]:
    """FLOP and least bytes of one operator call; (0, 0) where the text does not tell.

    Args:
        name: operator.
        shapes_text: input shapes as JSON text.
        types_text: input types as JSON text.
    """
    try:
        shapes, types = json.loads(shapes_text), json.loads(types_text)
        matrices = [s for s in shapes if _is_shape(s) and len(s) >= 2]
        item = next((_ITEM_BYTES[t] for t in types if t in _ITEM_BYTES), 0)
    except (ValueError, TypeError):
        return 0.0, 0.0
    if name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"):
        if len(matrices) < 2:
            return 0.0, 0.0
        left, right = matrices[-2], matrices[-1]
        batch = left[0] if len(left) == 3 else 1
        m, k, n = left[-2], left[-1], right[-1]
        return 2.0 * batch * m * k * n, float(item * batch * (m * k + k * n + m * n))
    return 0.0, 0.0


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(size, int) for size in value)


CUDA_CORE_ACHIEVED = 0.8
"""Share of the peak that large single-precision products achieve on the CUDA cores."""

TENSOR_ACHIEVED = 0.55
"""Share of the dense peak that products of the same size achieve on tensor cores: they need 7 to 15
times the operands a second, so that memory and launches weigh more."""


_FASTER = 1.5


@dataclass(frozen=True)
class LowPrecision:
    """Single-precision products of the steady window.

    Attributes:
        repair: the kernels, and TF32 (or BF16) instead.
        total_ns: their time.
        ratio: how many times faster they are assumed to be then.
        peaks: the device's datasheet.
    """

    repair: Repair
    total_ns: int
    ratio: float
    peaks: Peaks


def low_precision(kernels: Kernels) -> LowPrecision | None:
    """Products on the CUDA cores of a device that has tensor cores for them.

    Returns:
        None where there are none, the device has no tensor cores for TF32 or BF16, or its rates
        are not in the table.
    """
    peaks = kernels.peaks
    if peaks is None or not peaks.half:
        return None
    single = kernels.in_category("matmul", "convolution")
    single &= kernels.math == MATH_NAMES.index("fp32")
    rows = np.flatnonzero(single & kernels.steady)
    if not len(rows):
        return None
    achieved = TENSOR_ACHIEVED / CUDA_CORE_ACHIEVED
    # on some products TF32 is no faster than the CUDA cores, only BF16 is
    rate = peaks.tf32 if peaks.tf32 > _FASTER * peaks.fp32 else peaks.half
    ratio = max(rate / peaks.fp32 * achieved, 1.0)
    best = max(peaks.half / peaks.fp32 * achieved, ratio)
    total = int(kernels.duration_ns[rows].sum())
    repair = Repair(
        rows=rows,
        old_ns=kernels.duration_ns[rows],
        new_ns=scaled(kernels.duration_ns[rows], 1 / ratio),
        merged=np.zeros(len(rows), bool),
        idle_ns=np.zeros(len(rows), np.int64),
        low_ns=int(total / best),
        # small products gain less: half the ratio
        high_ns=int(total / max(ratio / 2, 1.0)),
    )
    return LowPrecision(repair, total, ratio, peaks)
