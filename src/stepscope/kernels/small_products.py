"""Batched products of matrices far smaller than what a GEMM computes at a time.

A GEMM's block computes a tile of at least 16 rows and columns, and steps through them by eight or
more. Of matrices of 3 by 3, as rotations and covariances are, most of that is padding: a GEMM over
a million of them takes some twenty times what their bytes need. Multiplied element by element with
broadcasting and summed, they take two passes over memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.intervals.distinct import distinct_rows
from stepscope.kernels.kernels import MATH_NAMES, Kernels
from stepscope.trace.frame import BoolArray, FloatArray
from stepscope.trace.shapes import matrices_of, product_item_bytes, types_of

_SMALL: Final = 8
"""Rows, columns and inner dimension up to which products are better spelt out."""
_MANY: Final = 4_096
"""Matrices of a batch from which on that matters."""
_LARGEST_GRID: Final = 65_535
"""Blocks that the last dimension of a grid may have: a larger batch is several launches."""
_BROADCAST: Final = 0.5
"""Share of what streaming kernels achieve that those achieve whose operands are broadcast."""
_SMALLEST_TILE: Final = re.compile(r"tilesize32x32x")
_BY_VECTOR: Final = re.compile(r"\bgemv")
_WITHOUT_SHAPES: Final = 0.1
"""What is left of a GEMM of so many matrices that each is one block, where no shapes tell their
size: of 3 by 3 a tenth (H100; one program). At most all of it: of 16 by 16 nothing is gained."""
_SPREAD: Final = 2.0
"""How many times as long or short they may take where shapes are known."""
_BATCHED: Final = ("aten::bmm", "aten::baddbmm")


@dataclass(frozen=True)
class SmallProducts:
    """GEMMs over large batches of tiny matrices; arrays have one value an operation of ``GPU.ops``.

    Attributes:
        found: which operations they are.
        new_ns: what each takes multiplied element by element and summed; 0 for others.
        most_ns: the most.
    """

    found: BoolArray
    new_ns: FloatArray
    most_ns: FloatArray

    @property
    def least_ns(self) -> FloatArray:
        """The least that each may take."""
        return self.new_ns / _SPREAD


def small_products(kernels: Kernels) -> SmallProducts:
    """Such GEMMs, and what they take instead.

    Without shapes those whose batch is larger than a grid, and whose matrices are one block each of
    the smallest tile, in single precision, or are multiplied by a vector.

    Args:
        kernels: the device's kernels.
    """
    grid = kernels.grid
    old = kernels.duration_ns.astype(np.float64)
    found = kernels.in_category("matmul") & (grid["grid_x"] == 1) & (grid["grid_y"] == 1)
    found &= grid["grid_z"] == _LARGEST_GRID
    tile = kernels.gpu.ops.matches("name", _SMALLEST_TILE)
    tile &= kernels.math == MATH_NAMES.index("fp32")
    found &= tile | kernels.gpu.ops.matches("name", _BY_VECTOR)
    new, most = np.where(found, old * _WITHOUT_SHAPES, 0.0), np.where(found, old, 0.0)
    table, operator = kernels.attribution.operators, kernels.attribution.operator
    rows = np.flatnonzero(kernels.in_category("matmul") & (operator >= 0))
    if not len(rows) or "input_shapes" not in table or not kernels.attainable_bandwidth:
        return SmallProducts(found, new, most)
    calls = operator[rows]
    keys = tuple(table[name][calls] for name in ("name", "input_shapes", "input_types"))
    first, inverse = distinct_rows(keys)
    each_call = zip(*(key[first].tolist() for key in keys), strict=True)
    moved = np.array([_moved_bytes(kernels, *key) for key in each_call])[inverse]
    of_call = np.bincount(calls, weights=old[rows])[calls]
    known = moved >= 0
    found[rows[known]] = moved[known] > 0
    bandwidth = kernels.attainable_bandwidth * _BROADCAST
    each = np.maximum(moved, 0) / bandwidth * 1e9 * old[rows] / np.maximum(of_call, 1)
    new[rows[known]] = np.minimum(each, old[rows])[known]
    most[rows[known]] = np.minimum(each * _SPREAD, old[rows])[known]
    return SmallProducts(found, new, most)


def _moved_bytes(kernels: Kernels, name: int, shapes: int, types: int) -> float:
    """Bytes of a small batched product that is spelt out; 0 of others, -1 where shapes are unknown.

    Both operands are read, what is to be summed is written and read, the result written.
    """
    texts = kernels.attribution.operators.texts
    if shapes < 0:
        return -1.0
    matrices = matrices_of(texts["input_shapes"][shapes])
    if texts["name"][name] not in _BATCHED or len(matrices) < 2 or len(matrices[-2]) != 3:
        return 0.0
    (batch, m, k), n = matrices[-2], matrices[-1][-1]
    if max(m, k, n) > _SMALL or batch < _MANY:
        return 0.0
    item = product_item_bytes(types_of(texts["input_types"][types] if types >= 0 else ""))
    return float(item * batch * (m * k + k * n + 2 * m * k * n + m * n))
