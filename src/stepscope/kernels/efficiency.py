"""Kernels slower than their work needs: by their shapes or their grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from stepscope.intervals.distinct import distinct_rows, with_inverse
from stepscope.kernels.kernels import MATH_NAMES, Kernels, Repair, changed
from stepscope.kernels.repeated_rows import RepeatedRows, repeated_rows
from stepscope.kernels.small_products import SmallProducts, small_products
from stepscope.kernels.unaligned import measured, unaligned
from stepscope.trace.frame import AnyArray, BoolArray, IntArray
from stepscope.trace.shapes import matrices_of, product_item_bytes, types_of

FAR_BELOW = 0.25
"""Share of the ceiling (arithmetic or memory, whichever is lower) under which a GEMM is far
below what its shape allows. Libraries achieve 50 to 80 % where the shape fills the device."""

REACHABLE = 0.5
"""Share of the ceiling that a repair is assumed to reach."""

LONG_ENOUGH_NS = 20_000
"""Shorter kernels end before they have filled the device."""

FEW_BLOCKS = 0.25
"""Blocks for each SM under which most of the device has nothing to do."""

_PRODUCTS: Final = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
_ONE_BLOCK_FAMILIES = ("elementwise", "copy", "reduction", "softmax", "normalisation", "index",
                       "sort", "loss", "dropout", "compiled", "other")  # fmt: skip
_WITH_GRADIENTS: Final = ("softmax", "normalisation")


Reason = Literal["shape", "grid", "small", "rows", "unaligned"]
"""What tells: the shapes of a product, a small grid, tiny matrices, rows that are indexed again,
operands that are not aligned."""
_REASONS: Final[tuple[Reason, ...]] = ("shape", "grid", "small", "rows", "unaligned")


@dataclass(frozen=True)
class Inefficient:
    """One kernel that is far below its ceiling.

    Attributes:
        label: its name for people.
        name: its full name.
        repair: its launches in the steady window, and what they could take.
        achieved: share of the ceiling, or blocks a SM.
        reason: what tells.
    """

    label: str
    name: str
    repair: Repair
    achieved: float
    reason: Reason


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
    by_grid = long_ & with_few_blocks(kernels)
    # a grid that has twice the blocks is assumed to be no faster than half the launch
    grid_ns = np.where(blocks > 0, duration * blocks // max(sms, 1), 0)
    best = np.where(by_shape, ceiling / REACHABLE, np.where(by_grid, 2 * grid_ns, duration))
    slow: dict[Reason, SmallProducts | RepeatedRows] = {
        "small": small_products(kernels),
        "rows": repeated_rows(kernels),
    }
    reason = np.where(by_shape, 0, 1)
    by_name = np.zeros(len(reason), bool)
    for name, found in slow.items():
        of_kind = found.found & long_ & (found.new_ns < FAR_BELOW / REACHABLE * duration)
        best = np.where(of_kind, found.new_ns, best)
        reason = np.where(of_kind, _REASONS.index(name), reason)
        by_name |= of_kind
    odd = unaligned(kernels)
    of_size = odd.found & long_ & measured(kernels)
    best = np.where(of_size, np.maximum(odd.share[1] * duration, ceiling), best)
    reason = np.where(of_size, _REASONS.index("unaligned"), reason)
    by_name |= of_size
    new = np.minimum(best.astype(np.int64), duration)
    rows = np.flatnonzero((by_shape | by_grid | by_name) & (new < duration))
    if not len(rows):
        return None
    # products of small matrices are one thing to repair, whatever their operands' layouts; so are
    # those of one odd size in both passes, and a softmax or a norm over few rows and its gradient
    names = kernels.gpu.ops["name"]
    other = len(kernels.gpu.ops.texts["name"])
    thing = np.where(reason == _REASONS.index("small"), other, names)
    thing = np.where(of_size, other + 1, thing)
    for number, category in enumerate(_WITH_GRADIENTS, 2):
        of_rows = (reason == _REASONS.index("grid")) & kernels.in_category(category)
        thing = np.where(of_rows, other + number, thing)
    lost = np.bincount(thing[rows], weights=(duration - new)[rows])
    rows = rows[thing[rows] == int(np.argmax(lost))]
    code = int(np.argmax(np.bincount(names[rows], weights=duration[rows])))
    spent, after = int(duration[rows].sum()), int(new[rows].sum())
    kind = _REASONS[reason[rows[0]]]
    ideal = int((grid_ns if kind == "grid" else ceiling)[rows].sum())
    bounds = ideal, (spent + after) // 2
    if kind in slow:
        bounds = int(slow[kind].least_ns[rows].sum()), int(slow[kind].most_ns[rows].sum())
    if kind == "unaligned":
        least, _, most = (np.maximum(each * duration, ceiling)[rows].sum() for each in odd.share)
        bounds = int(min(least, after)), int(min(most, spent))
    return Inefficient(
        label=kernels.classes[code].label,
        name=kernels.gpu.ops.texts["name"][code],
        repair=changed(rows, duration[rows], new[rows], *bounds, stay=True),
        achieved=ideal / spent,
        reason=kind,
    )


def with_few_blocks(kernels: Kernels) -> BoolArray:
    """Kernels of one block for a row, a channel or a group, of which there are too few.

    They are long where each has much to do.
    """
    few = (kernels.blocks > 0) & (kernels.blocks < FEW_BLOCKS * kernels.device[1])
    found: BoolArray = few & kernels.in_category(*_ONE_BLOCK_FAMILIES)
    return found & (kernels.duration_ns >= LONG_ENOUGH_NS)


def _ceiling_ns(kernels: Kernels) -> AnyArray:
    """Least time of the GEMMs and convolutions whose shapes are recorded, ns; 0 for all others.

    An operator that launches several of them (the gradients of a convolution) shares its work
    among them by their time.
    """
    found = np.zeros(len(kernels.gpu.ops))
    peaks = kernels.peaks
    if peaks is None:
        return found
    flop, moved = product_work(kernels)
    rate = np.array([peaks.of(m) for m in MATH_NAMES])[kernels.math]
    arithmetic = np.where(rate > 0, flop / np.maximum(rate, 1), 0)
    least = np.maximum(arithmetic, moved / (kernels.attainable_bandwidth or np.inf))
    found = np.where((kernels.math >= 0) & (arithmetic > 0), least * 1e9, 0)
    return found


def product_work(kernels: Kernels) -> tuple[AnyArray, AnyArray]:
    """FLOP and least bytes of GEMMs and convolutions of recorded shapes; 0 of all others.

    Of an operator that launches several of them each has its part by its time.
    """
    flop, moved = np.zeros((2, len(kernels.gpu.ops)))
    table = kernels.attribution.operators
    gemm = kernels.in_category("matmul", "convolution")
    rows = np.flatnonzero(gemm & (kernels.attribution.operator >= 0) & (kernels.math >= 0))
    if not len(rows) or "input_shapes" not in table:
        return flop, moved
    operator = kernels.attribution.operator[rows]
    work = _work_of(table.texts, table["name"][operator], table["input_shapes"][operator],
                    table["input_types"][operator])  # fmt: skip
    duration = kernels.duration_ns[rows]
    _, group = with_inverse(operator)
    part = duration / np.maximum(np.bincount(group, weights=duration)[group], 1)
    flop[rows], moved[rows] = work[0] * part, work[1] * part
    return flop, moved


def product_elements(kernels: Kernels) -> tuple[AnyArray, AnyArray]:
    """Elements of each GEMM's operands, and of its result, by recorded shapes; 0 of others."""
    operands, result = np.zeros((2, len(kernels.gpu.ops)))
    table, operator = kernels.attribution.operators, kernels.attribution.operator
    rows = np.flatnonzero(kernels.in_category("matmul") & (operator >= 0))
    if not len(rows) or "input_shapes" not in table:
        return operands, result
    codes = table["input_shapes"][operator[rows]]
    found = {c: _sizes(table.texts["input_shapes"][c]) for c in set(codes.tolist()) if c >= 0}
    sizes = np.array([found.get(code, (0.0, 0.0)) for code in codes.tolist()])
    operands[rows], result[rows] = sizes[:, 0], sizes[:, 1]
    return operands, result


def _sizes(text: str) -> tuple[float, float]:
    """Elements of the last two matrices, and of their product."""
    matrices = matrices_of(text)
    if len(matrices) < 2:
        return 0.0, 0.0
    left, right = matrices[-2], matrices[-1]
    batch = float(np.prod(left[:-2]))
    return float(np.prod(left) + np.prod(right)), batch * left[-2] * right[-1]


def _work_of(
    texts: dict[str, list[str]], name: IntArray, shapes: IntArray, types: IntArray
) -> tuple[AnyArray, AnyArray]:
    """FLOP and least bytes of each operator call, computed once for each distinct call."""
    keys = (name, shapes, types)
    first, inverse = distinct_rows(keys)
    work = np.array(
        [
            _operator_work(
                texts["name"][n],
                texts["input_shapes"][s] if s >= 0 else "",
                texts["input_types"][t] if t >= 0 else "",
            )
            for n, s, t in zip(*(key[first].tolist() for key in keys), strict=True)
        ]
    )
    return work[inverse, 0], work[inverse, 1]


def _operator_work(name: str, shapes_text: str, types_text: str) -> tuple[float, float]:
    """FLOP and least bytes of one operator call; (0, 0) where the text does not tell.

    Args:
        name: operator.
        shapes_text: input shapes as JSON text.
        types_text: input types as JSON text.
    """
    matrices, types = matrices_of(shapes_text), types_of(types_text)
    if name not in _PRODUCTS or len(matrices) < 2 or not types:
        return 0.0, 0.0
    item = product_item_bytes(types)
    left, right = matrices[-2], matrices[-1]
    batch = left[0] if len(left) == 3 else 1
    m, k, n = left[-2], left[-1], right[-1]
    return 2.0 * batch * m * k * n, float(item * batch * (m * k + k * n + m * n))
