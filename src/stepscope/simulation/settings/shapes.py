"""What recorded shapes tell of kernels: which work on parameters, and how large these are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from stepscope.intervals.distinct import distinct_values
from stepscope.kernels.categories import PRODUCTS
from stepscope.kernels.kernels import Kernels
from stepscope.kernels.multi_tensor import one_pass_ns
from stepscope.trace.frame import BoolArray, IntArray
from stepscope.trace.shapes import Shape, item_bytes, matrices_of, shapes_of, types_of

_ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
_NO_ROWS: Final = np.empty(0, np.int64)
_PRODUCT: Final = re.compile(r"::(mm|addmm|linear|bmm|baddbmm)$")


@dataclass(frozen=True)
class Parameters:
    """The parameters of the model, as far as the capture tells.

    Attributes:
        count: how many numbers they hold; 0 where nothing tells.
        shapes: their shapes; none without recorded shapes.
        tensors: how many there are; 0 where shapes do not tell.
        stated: whether shapes tell, rather than the time of the optimizer.
    """

    count: int
    shapes: frozenset[Shape]
    tensors: int
    stated: bool


def parameters(kernels: Kernels, begin_ns: IntArray, first: int, last: int) -> Parameters:
    """Parameters by the gradients that autograd accumulates, else by the time of the update.

    Args:
        kernels: a device's kernels.
        begin_ns: when the host begins its steps.
        first: first steady step.
        last: last steady step.
    """
    known = _accumulated(kernels, begin_ns, first, last)
    if known:
        return Parameters(sum(map(prod, known)), frozenset(known), len(known), stated=True)
    bytes_a_ns = kernels.attainable_bandwidth / 1e9
    return Parameters(round(one_pass_ns(kernels) * bytes_a_ns / 4), frozenset(), 0, stated=False)


@dataclass(frozen=True)
class Gradients:
    """Gradients of parameters as autograd finishes them; one value each, in order of time.

    Attributes:
        at_ns: when the host accumulates it.
        bytes: its size.
        shapes: its shape.
    """

    at_ns: IntArray
    bytes: IntArray
    shapes: list[Shape]


def accumulations(kernels: Kernels) -> IntArray:
    """Rows of the operators that accumulate a gradient each."""
    table = kernels.attribution.operators
    return np.flatnonzero(table.equals("name", _ACCUMULATE)) if len(table) else _NO_ROWS


def gradients(kernels: Kernels) -> Gradients:
    """The gradients of the capture, by the operator that accumulates each; none without shapes."""
    table = kernels.attribution.operators
    rows = accumulations(kernels) if "input_shapes" in table else _NO_ROWS
    rows = rows[table["input_shapes"][rows] >= 0] if len(rows) else rows
    at, sizes, shapes = [], [], []
    for row in rows.tolist():
        found = shapes_of(table.text("input_shapes", row))
        if not found or not found[0]:
            continue
        types = types_of(table.text("input_types", row)) if "input_types" in table else []
        at.append(int(table["start_ns"][row]))
        sizes.append(item_bytes(types) * prod(found[0]))
        shapes.append(found[0])
    return Gradients(np.array(at, np.int64), np.array(sizes, np.int64), shapes)


def _accumulated(kernels: Kernels, begin_ns: IntArray, first: int, last: int) -> list[Shape]:
    """Shapes of the gradients that are accumulated in one step."""
    known = gradients(kernels)
    step = np.searchsorted(begin_ns, known.at_ns, side="right") - 1
    for number in range(first, last + 1):
        mine = np.flatnonzero(step == number)
        if len(mine):
            return [known.shapes[at] for at in mine.tolist()]
    return []


def on_parameters(kernels: Kernels, known: Parameters) -> BoolArray:
    """Kernels that go through tensors of the size of a parameter only, whatever the batch.

    Casts of weights and of their gradients, sums of gradients, their norms.
    """
    found = np.zeros(len(kernels.gpu.ops), bool)
    table = kernels.attribution.operators
    if not known.shapes or not len(table):
        return found
    either_way = known.shapes | {shape[::-1] for shape in known.shapes}
    texts = table.texts["input_shapes"]
    like = np.array([_only(shapes_of(text), either_way) for text in [*texts, ""]])
    operator = kernels.attribution.operator
    named = (operator >= 0) & (table["input_shapes"][np.maximum(operator, 0)] >= 0)
    found = named & like[table["input_shapes"][np.maximum(operator, 0)]]
    mask: BoolArray = found & ~kernels.in_category(*PRODUCTS)
    return mask


def _only(shapes: Iterable[Shape], known: frozenset[Shape]) -> bool:
    tensors = [shape for shape in shapes if shape]
    return bool(tensors) and all(shape in known for shape in tensors)


def of_weight_gradients(kernels: Kernels, known: Parameters) -> tuple[BoolArray, BoolArray]:
    """GEMMs whose result is a gradient of a weight; and those for which shapes tell at all."""
    judged = np.zeros(len(kernels.gpu.ops), bool)
    weights = judged.copy()
    table = kernels.attribution.operators
    if not known.shapes or not len(table):
        return weights, judged
    either_way = known.shapes | {shape[::-1] for shape in known.shapes}
    operator = kernels.attribution.operator
    gemm = np.flatnonzero(kernels.in_category("matmul") & (operator >= 0))
    products = np.array([bool(_PRODUCT.search(text)) for text in [*table.texts["name"], ""]])
    gemm = gemm[products[table["name"][operator[gemm]]]]
    for row in distinct_values(operator[gemm]).tolist():
        shapes = matrices_of(table.text("input_shapes", row))
        if len(shapes) < 2:
            continue
        mine = gemm[operator[gemm] == row]
        judged[mine] = True
        weights[mine] = (shapes[-2][-2], shapes[-1][-1]) in either_way
    return weights, judged


def names_with(kernels: Kernels, pattern: str) -> BoolArray:
    """Operations whose name matches a pattern, letters of either case."""
    return kernels.gpu.ops.matches("name", re.compile(pattern, re.IGNORECASE))


def input_elements(kernels: Kernels, rows: IntArray) -> IntArray:
    """Elements of the first matrix among the inputs of each row's operator; 0 where unknown."""
    table, operator = kernels.attribution.operators, kernels.attribution.operator
    found = np.zeros(len(rows), np.int64)
    if not len(table) or "input_shapes" not in table:
        return found
    sizes: dict[int, int] = {}
    for at, row in enumerate(operator[rows].tolist()):
        code = int(table["input_shapes"][row]) if row >= 0 else -1
        if code < 0:
            continue
        if code not in sizes:
            matrices = matrices_of(table.texts["input_shapes"][code])
            sizes[code] = prod(matrices[0]) if matrices else 0
        found[at] = sizes[code]
    return found
