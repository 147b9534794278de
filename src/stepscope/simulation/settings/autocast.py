"""What autocast to half precision does to what lies between products, and the casts that it adds.

Products give half precision, and so does what takes their results; normalisation, softmax and some
functions give single precision (PyTorch: autocast op reference), which lasts until the next product
casts it. Both are followed in the order of enqueueing: forward, and in the backward pass, where the
gradients of the same operations come in reverse.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.kernels.categories import PRODUCTS
from stepscope.kernels.efficiency import product_elements
from stepscope.kernels.kernels import MATH_NAMES, SCATTERED_COPY, WIDENS, Kernels
from stepscope.kernels.merging import launched_elements, whole_reductions
from stepscope.kernels.written_out import HALF_CASTS
from stepscope.simulation.changes import Bound
from stepscope.simulation.program import C
from stepscope.simulation.settings.base import Facts, launch_cost_ns, of_bound, of_items
from stepscope.simulation.settings.shapes import input_elements, names_with, on_parameters
from stepscope.simulation.subject import Subject
from stepscope.trace.frame import BoolArray, FloatArray, IntArray

FUNCTIONS: Final = (0.75, 0.53, 0.5)
"""Time in half precision over single, most, usual and least, of functions of what a product gives:
GELU and ReLU, their gradients, dropout's products (0.49 to 0.55 of eleven groups of kernels in six
programs, before and after autocast, H100, PyTorch 2.11)."""
DROPOUT: Final = (0.8, 0.57, 0.5)
"""The same of dropout, which draws as many numbers and writes the same mask."""
SUMS: Final = (1.0, 0.9, 0.5)
"""The same of sums of two tensors. A residual that was single precision stays so, as embeddings and
what positions are added to are: they take 0.52 and 0.56 in two programs, and 1.01 to 1.07 in
six."""
OF_TWO: Final = (1.0, 0.7, 0.5)
"""The same of products of two tensors, of which one may be single precision, too (a cross with the
inputs, a scale that is learnt), but mostly is not (a gate)."""
LAYOUTS: Final = (1.0, 0.87, 0.5)
"""The same of copies that change the layout: they wait for scattered reads more than for bytes
(0.85 to 0.90)."""
COLUMNS: Final = (0.8, 0.57, 0.5)
"""The same of sums over columns in the backward pass, gradients of biases (0.49 to 0.65)."""
OTHERS: Final = (1.0, 0.75, 0.5)
"""The same of pooling, and of batch normalisation by PyTorch's kernels."""

CASTS_A_GEMM: Final = 1.6
"""Kernels that cast for a product in either pass: its weight, and every other time its input."""
CASTS_A_BIAS: Final = 1.0
"""One more where a bias is added in the same operator."""

CAST_BYTES: Final = 6
"""Bytes that a cast between single and half precision moves for an element."""

_KEPT: Final = (
    r"layer_?norm|rms_?norm|group_?norm|rowwisemoments|gammabeta|softmax|nll_loss|loss|"
    r"(?<!_)exp_kernel|expm1|pow_tensor|log(?:1p|2|10)?_kernel|rsqrt|reciprocal|softplus|"
    r"tensor_kernel_scan"
)
"""What autocast keeps in FP32 (PyTorch: autocast op reference)."""
_SUMS: Final = ("add", "OnSelf_add", "OnOther_add")
_TENSORS_OF_TWO: Final = 3  # tensors that the product of two touches
_HANDED_ON: Final = 0.75
"""Of the largest tensor between two products what the second one takes, on average: a half of it at
times, or its sum."""
_ELSEWHERE: Final = 0.2
"""What products in half precision take of those that are to be, from which on parts are left."""
_NOT_HALF, _HALF = 0, 1


def shares(facts: Facts, changed: BoolArray, bound: Bound) -> FloatArray:
    """What each operation takes under autocast, as a share; 1 for what it leaves as it is.

    Args:
        facts: the device.
        changed: products that come to half precision. Where a model has half precision in other
            parts already, what lies between those keeps its type.
        bound: which of the uncertainties to assume; at the least what is kept may be halved, too.
    """
    kernels = facts.kernels
    kept = names_with(kernels, _KEPT)
    found = np.ones(len(kept))
    for mask, each in (
        (kernels.in_category("elementwise", "copy"), FUNCTIONS),
        (kernels.in_category("dropout"), DROPOUT),
        (kernels.in_category("pooling", "normalisation"), OTHERS),
        (kernels.of_operation(*_SUMS), SUMS),
        (kernels.of_operation("Mul", tensors=_TENSORS_OF_TWO), OF_TWO),
        (kernels.gpu.ops.matches("name", SCATTERED_COPY), LAYOUTS),
        (whole_reductions(kernels) & kernels.in_phase("backward"), COLUMNS),
    ):
        found[mask & kernels.gpu.is_kernel] = of_bound(each, bound)
    # what computes the loss may be in half precision at best
    if bound != "low":
        found[in_losses(kernels) | ~_after_half(kernels, kept)] = 1.0
    found[kept | kernels.in_phase("optimizer") | on_parameters(kernels, facts.parameters)] = 1.0
    share: FloatArray = 1 - (1 - found) * _beside(kernels, changed)
    if bound != "high" and in_half_elsewhere(kernels, changed):
        share[_casts_around(kernels, changed)] = 0.0
    return share


def in_half_elsewhere(kernels: Kernels, changed: BoolArray) -> bool:
    """Whether other products of a step are in half precision: some parts were left in single.

    Then there is nothing to cast that is not in half precision already, but for weights.
    """
    half = kernels.in_category(*PRODUCTS) & (kernels.math == MATH_NAMES.index("16bit"))
    spent = [int(kernels.duration_ns[mine & kernels.steady].sum()) for mine in (half, changed)]
    return spent[0] > _ELSEWHERE * spent[1]


def _casts_around(kernels: Kernels, changed: BoolArray) -> BoolArray:
    """Copies to single precision right before products, and casts to half right behind them."""
    order = kernels.order[kernels.gpu.is_kernel[kernels.order]]
    copies = kernels.in_category("copy")[order]
    widens = copies & kernels.gpu.ops.matches("name", WIDENS)[order]
    narrows = copies & kernels.of_operation(*HALF_CASTS)[order]
    place = np.arange(len(order))
    others = np.flatnonzero(~copies)
    found = np.zeros(len(changed), bool)
    if not len(others):
        return found
    behind = np.searchsorted(others, place, side="right")
    before = changed[order[others[np.maximum(behind - 1, 0)]]]
    after = changed[order[others[np.minimum(behind, len(others) - 1)]]]
    found[order] = (widens & after) | (narrows & before)
    return found


def _after_half(kernels: Kernels, kept: BoolArray) -> BoolArray:
    """Operations that work on half precision: behind a product, before what gives single again."""
    order, products = _products_in_order(kernels)
    gives = np.full(len(order), -1)
    gives[kept[order]] = _NOT_HALF
    if kernels.in_category("matmul").sum() > kernels.in_category("convolution").sum():
        # a residual (``SUMS``), and not a number that counts batches
        sums = kernels.of_operation(*_SUMS) & (kernels.blocks != 1)
        gives[sums[order]] = _NOT_HALF
    gives[products] = _HALF
    last = np.maximum.accumulate(np.where(gives >= 0, np.arange(len(order)), -1))
    before = np.concatenate(([-1], last[:-1])) if len(last) else last
    step = kernels.step[order]
    found = np.zeros(len(order), bool)
    found[order] = (before >= 0) & (gives[before] == _HALF) & (step[before] == step)
    return found


def _takes_single(facts: Facts) -> BoolArray:
    """Products whose input autocast casts: what comes before them gives single precision.

    Products that follow each other directly take the same input.
    """
    kernels = facts.kernels
    half = _after_half(kernels, names_with(kernels, _KEPT))
    order = kernels.order[kernels.gpu.is_compute[kernels.order]]
    product = kernels.in_category("matmul", "convolution")[order]
    follows = product & np.concatenate(([False], product[:-1]))
    follows &= np.diff(kernels.step[order], prepend=-1) == 0
    first = np.maximum.accumulate(np.where(follows, -1, np.arange(len(order))))
    found = np.zeros(len(half), bool)
    found[order] = product & ~half[order][first]
    return found


def _input_elements(kernels: Kernels, rows: IntArray) -> FloatArray:
    """Elements of the input of products: by their shapes, else by what is launched before them."""
    known = input_elements(kernels, rows)
    order = kernels.order[kernels.gpu.is_compute[kernels.order]]
    product = kernels.in_category(*PRODUCTS)[order]
    stretch = np.cumsum(product & ~np.concatenate(([False], product[:-1])))
    largest = np.zeros(int(stretch[-1]) + 2 if len(stretch) else 2, np.int64)
    elements = np.where(product, 0, launched_elements(kernels, order))
    np.maximum.at(largest, stretch, elements)
    place = np.zeros(len(kernels.gpu.ops), np.int64)
    place[order] = stretch
    # before the first of the products that follow each other
    launched = _HANDED_ON * largest[np.maximum(place[rows] - 1, 0)]
    found: FloatArray = np.where(known > 0, known, launched)
    return found


def _beside(kernels: Kernels, changed: BoolArray) -> FloatArray:
    """Of each operation, which part of the products before and behind it are changed."""
    order, at = _products_in_order(kernels)
    found = np.zeros(len(changed))
    if len(at):
        place = np.arange(len(order))
        behind = np.searchsorted(at, place, side="right")
        before = changed[order[at[np.maximum(behind - 1, 0)]]]
        after = changed[order[at[np.minimum(behind, len(at) - 1)]]]
        found[order] = (before.astype(np.float64) + after) / 2
    return found


def in_losses(kernels: Kernels) -> BoolArray:
    """Operations between the last product of a forward pass and the first of its backward pass.

    They compute the loss and its gradient: from what the product gives, which losses of autocast,
    targets and ``.float()`` make single precision, and which stays so up to the product's gradient.
    """
    found = np.zeros(len(kernels.gpu.ops), bool)
    order, at = _products_in_order(kernels)
    backward = kernels.in_phase("backward")[order[at]]
    for place in np.flatnonzero(~backward[:-1] & backward[1:]).tolist():
        found[order[at[place] + 1 : at[place + 1]]] = True
    return found


def _loss_elements(kernels: Kernels) -> float:
    """Elements that products hand to losses, a step; 0 where no shapes tell."""
    order, at = _products_in_order(kernels)
    backward = kernels.in_phase("backward")[order[at]]
    rows = order[at[:-1][~backward[:-1] & backward[1:]]]
    return kernels.per_step(float(product_elements(kernels)[1][rows[kernels.steady[rows]]].sum()))


def _products_in_order(kernels: Kernels) -> tuple[IntArray, IntArray]:
    """Rows in the order of enqueueing, and the places of products among them."""
    products = kernels.in_category(*PRODUCTS)
    return kernels.order, np.flatnonzero(products[kernels.order])


def with_casts(subject: Subject, facts: Facts, changed: BoolArray, bound: Bound) -> Subject:
    """What autocast's casts cost: bytes on the device, launches on the host.

    They are added to the products that they are for, half in either pass; where other parts are in
    half precision already, only to the most that it may take.

    Args:
        subject: the program.
        facts: its device.
        changed: products that come to half precision.
        bound: which of the uncertainties to assume.
    """
    kernels = facts.kernels
    if bound != "high" and in_half_elsewhere(kernels, changed):
        return subject
    mine = changed & kernels.in_category("matmul", "convolution")
    steady = mine & kernels.steady
    forward = steady & kernels.in_phase("forward")
    count = max(kernels.per_step(int(steady.sum())), 1.0)
    rows = np.flatnonzero(forward)
    single = _takes_single(facts)[rows].astype(np.float64)
    cast: FloatArray = {"low": 0 * single, "expected": single, "high": (1 + single) / 2}[bound]
    inputs = kernels.per_step(float((_input_elements(kernels, rows) * cast).sum()))
    # what losses get is widened, and its gradient narrowed
    gemms = kernels.in_category("matmul", "convolution") & kernels.steady
    weights = facts.parameters.count * int(steady.sum()) / max(int(gemms.sum()), 1)
    numbers = 2 * weights + 2 * inputs + 2 * _loss_elements(kernels)
    each = numbers * CAST_BYTES / facts.bandwidth / count if facts.bandwidth else 0.0
    casts = np.where(_with_bias(facts)[rows], CASTS_A_GEMM + CASTS_A_BIAS, CASTS_A_GEMM)
    launches = 2 * kernels.per_step(float(casts.sum())) / count
    # cuBLAS runs several kernels for a product at times: what is added is for each of them
    extra = of_items(subject, np.where(mine, round(each), 0))
    hosted = of_items(subject, np.where(mine, round(launches * launch_cost_ns(subject)), 0))
    work = subject.program.work_ns.copy()
    work[:, C["launch_bound"]] += np.where(subject.program.hosted, hosted, 0)
    return subject.becomes(duration_ns=subject.program.duration_ns + extra, work_ns=work)


def _with_bias(facts: Facts) -> BoolArray:
    """Operations whose operator adds a bias to a product; all where operators are not recorded."""
    table, operator = facts.kernels.attribution.operators, facts.kernels.attribution.operator
    if not len(table):
        return np.ones(len(operator), bool)
    adds = table.matches("name", re.compile(r"addmm|baddbmm"))
    found: BoolArray = (operator >= 0) & adds[np.maximum(operator, 0)]
    return found
