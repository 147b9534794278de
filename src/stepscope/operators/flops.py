"""Operations and least bytes of framework operators, from their recorded shapes.

A multiply-add counts as two operations. Bytes are those of the operands and the result, each moved
once: what a perfect cache would leave to device memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from stepscope.intervals.distinct import distinct_rows
from stepscope.trace.frame import Frame, IntArray
from stepscope.trace.shapes import ITEM_BYTES, Shape, product_item_bytes, shapes_of, types_of

MATH_OF_ITEM: Final = {8: "fp64", 4: "fp32", 2: "16bit", 1: "8bit"}
"""Bytes of an element -> the arithmetic of its products."""

BACKWARD_ATTENTION = 2.5
"""Products of the backward pass over those of the forward pass: five to two (Dao et al.,
FlashAttention-2, section 4.1)."""


@dataclass(frozen=True)
class Work:
    """What one operator call has to do.

    Attributes:
        flop: floating-point operations.
        moved_bytes: least bytes read and written.
        item: bytes of an element of the operands; 0 where the types are not recorded.
    """

    flop: float
    moved_bytes: float
    item: int


@dataclass(frozen=True)
class _Call:
    shapes: list[Shape]
    types: list[str]
    scalars: list[str]
    item: int

    def shape(self, at: int) -> Shape:
        """Shape of an argument that must be a tensor of two or more dimensions."""
        shape = self.shapes[at]
        if len(shape) < 2 or any(size < 0 for size in shape):
            raise ValueError("not a matrix")
        return shape

    def numbers(self, at: int) -> list[int]:
        """A scalar list argument, as ``[1, 1]``."""
        value = json.loads(self.scalars[at])
        return [int(item) for item in value]

    def flag(self, at: int) -> bool:
        """A boolean argument; False where it is not recorded."""
        return at < len(self.scalars) and self.scalars[at] == "True"

    def work(self, flop: float, *shapes: Sequence[int]) -> Work:
        return Work(flop, float(self.item * sum(prod(shape) for shape in shapes)), self.item)


def _gemm(left: int, right: int) -> Callable[[_Call], Work]:
    def work(call: _Call) -> Work:
        a, b = call.shape(left), call.shape(right)
        batch = prod(a[:-2])
        m, k, n = a[-2], a[-1], b[-1]
        if b[-2] != k:
            raise ValueError("shapes do not fit")
        return call.work(2.0 * batch * m * k * n, a, b, [batch, m, n])

    return work


def _matmul(call: _Call) -> Work:
    """``torch.matmul``: batches broadcast; a vector is a matrix of one row or column."""
    a, b = (list(call.shapes[at]) for at in (0, 1))
    if not a or not b or min((*a, *b)) < 0:
        raise ValueError("not a matrix")
    rows, columns = [1, *a] if len(a) == 1 else a, [*b, 1] if len(b) == 1 else b
    if rows[-1] != columns[-2]:
        raise ValueError("shapes do not fit")
    batch = _broadcast([rows[:-2], columns[:-2]])
    out = [*batch, rows[-2], columns[-1]]
    return call.work(2.0 * prod(out) * rows[-1], a, b, out)


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """The shape that some shapes have together."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    found = []
    for sizes in zip(*padded, strict=True):
        wide = [size for size in sizes if size != 1]
        if len(set(wide)) > 1:
            raise ValueError("shapes do not fit")
        found.append(wide[0] if wide else 1)
    return found


def _linear(call: _Call) -> Work:
    a, weight = call.shape(0), call.shape(1)
    rows = prod(a[:-1])
    return call.work(2.0 * rows * a[-1] * weight[0], a, weight, [rows, weight[0]])


def _convolution(
    stride: int, padding: int, dilation: int, transposed: int
) -> Callable[[_Call], Work]:
    """Positions of the arguments; ``transposed`` is -1 where there is no such argument."""

    def work(call: _Call) -> Work:
        x, weight = call.shape(0), call.shape(1)
        kernel = weight[2:]
        if transposed >= 0 and call.flag(transposed):
            return call.work(2.0 * prod(x) * prod(weight[1:]), x, weight)
        sizes = [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(
                x[2:],
                kernel,
                _spread(call.numbers(stride), len(kernel)),
                _spread(call.numbers(padding), len(kernel)),
                _spread(call.numbers(dilation), len(kernel)),
                strict=True,
            )
        ]
        out = [x[0], weight[0], *sizes]
        return call.work(2.0 * prod(out) * prod(weight[1:]), x, weight, out)

    return work


def _spread(values: list[int], dimensions: int) -> list[int]:
    return values * dimensions if len(values) == 1 else values


def _convolution_backward(call: _Call) -> Work:
    out, x, weight = call.shape(0), call.shape(1), call.shape(2)
    transposed = call.flag(7)
    once = 2.0 * prod(x if transposed else out) * prod(weight[1:])
    mask = call.scalars[10] if len(call.scalars) > 10 else ""
    wanted = [part.strip(" []") == "True" for part in mask.split(",")]
    gradients = sum(wanted[:2]) if len(wanted) == 3 else 2
    shapes = [out, x, weight] + ([x] if gradients == 2 else [])
    return call.work(once * gradients, *shapes)


def _attention(
    first: int, causal: int, *, backward: bool = False, heads_inner: bool = False
) -> Callable[[_Call], Work]:
    """``first`` is the position of the queries, ``causal`` that of the flag.

    Half of the products are counted where a causal mask leaves half: kernels skip the rest.
    """

    def work(call: _Call) -> Work:
        q, k, v = (call.shape(first + i) for i in range(3))
        if heads_inner:  # batch, sequence, heads, width
            q, k, v = ((s[0], s[2], s[1], s[3]) for s in (q, k, v))
        share = 0.5 if call.flag(causal) and q[-2] == k[-2] else 1.0
        flop = 2.0 * prod(q[:-1]) * k[-2] * (q[-1] + v[-1]) * share
        out = [*q[:-1], v[-1]]
        if backward:
            return call.work(flop * BACKWARD_ATTENTION, q, k, v, out, out, q, k, v)
        return call.work(flop, q, k, v, out)

    return work


_KNOWN: Final[dict[str, Callable[[_Call], Work]]] = {
    "aten::mm": _gemm(0, 1),
    "aten::bmm": _gemm(0, 1),
    "aten::addmm": _gemm(1, 2),
    "aten::_addmm_activation": _gemm(1, 2),
    "aten::baddbmm": _gemm(1, 2),
    "aten::addbmm": _gemm(1, 2),
    "aten::_scaled_mm": _gemm(0, 1),
    "aten::_int_mm": _gemm(0, 1),
    "aten::linear": _linear,
    "aten::matmul": _matmul,
    "aten::mv": _matmul,
    "aten::cudnn_convolution": _convolution(3, 2, 4, -1),
    "aten::cudnn_convolution_relu": _convolution(3, 4, 5, -1),
    "aten::convolution": _convolution(3, 4, 5, 6),
    "aten::_convolution": _convolution(3, 4, 5, 6),
    "aten::conv1d": _convolution(3, 4, 5, -1),
    "aten::conv2d": _convolution(3, 4, 5, -1),
    "aten::conv3d": _convolution(3, 4, 5, -1),
    "aten::miopen_convolution": _convolution(4, 3, 5, -1),
    "aten::mkldnn_convolution": _convolution(4, 3, 5, -1),
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention": _attention(0, 4),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, 6),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, 11, backward=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(1, 14, backward=True),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, 11, backward=True),
    "flash_attn::_flash_attn_forward": _attention(0, 5, heads_inner=True),
    "flash_attn::_flash_attn_backward": _attention(1, 11, backward=True, heads_inner=True),
}

OPERATORS: Final = tuple(_KNOWN)
"""Operators whose work is known from their shapes."""


def work_of_call(name: str, shapes: str, types: str, scalars: str) -> Work | None:
    """Work of one operator call; None where the operator or its record does not tell.

    Args:
        name: operator.
        shapes: input shapes as JSON text.
        types: input types as JSON text.
        scalars: scalar inputs as JSON text.
    """
    known = _KNOWN.get(name)
    if known is None:
        return None
    try:
        call = _Call(
            shapes=shapes_of(shapes),
            types=types_of(types),
            scalars=[str(item) for item in json.loads(scalars or "[]")],
            item=0,
        )
        item = product_item_bytes(call.types)
        found = known(_Call(call.shapes, call.types, call.scalars, item))
    except (ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError, RecursionError):
        return None
    return found if found.flop > 0 else None


_COMPARISON: Final = re.compile(r"::(lt|le|gt|ge|eq|ne|is[a-z]+|logical_[a-z]+)$")
"""Operators whose result is truth values."""


def streamed(name: str, shapes: str, types: str) -> Work | None:
    """Work of an operator that goes through its operands once, element by element.

    One operation an element of the result. A result has the type of the first operand; what works
    in place (``aten::add_``) reads and writes it, a copy and a fill only write it.

    Args:
        name: operator.
        shapes: input shapes as JSON text.
        types: input types as JSON text.

    Returns:
        None where the record does not tell.
    """
    try:
        tensors = [
            (shape, ITEM_BYTES[kind])
            for shape, kind in zip(shapes_of(shapes), types_of(types), strict=True)
            if shape
        ]
        if not tensors or any(extent < 0 for shape, _ in tensors for extent in shape):
            return None
        read = sum(prod(shape) * item for shape, item in tensors)
        result, item = _broadcast([shape for shape, _ in tensors]), tensors[0][1]
    except (ValueError, KeyError):
        return None
    only_writes = name.rsplit("::", 1)[-1].startswith(("copy_", "fill_", "zero_"))
    item = 1 if _COMPARISON.search(name) else item
    written = 0 if only_writes else prod(result) * item  # else it is an operand already
    if not read + written or read + written >= _MOST_ELEMENTS:
        return None
    return Work(float(prod(result)), float(read + written), item)


def works_of(operators: Frame) -> tuple[list[Work], IntArray]:
    """Distinct known works of some operators, and which of them each one is; -1 for none.

    Args:
        operators: with ``name``, ``input_shapes``, ``input_types`` and ``concrete_inputs``.
    """
    works: list[Work] = []
    if not len(operators):
        return works, np.empty(0, np.int64)
    columns = ("name", "input_shapes", "input_types", "concrete_inputs")
    first, inverse = distinct_rows([operators[column] for column in columns])
    place = np.full(len(first), -1, np.int64)
    known = np.array([text in _KNOWN for text in operators.texts["name"]] + [False])
    asked = known[operators["name"][first]] & (operators["input_shapes"][first] >= 0)
    for at in np.flatnonzero(asked).tolist():
        row = int(first[at])
        name, shapes, types, scalars = (operators.text(column, row) for column in columns)
        work = work_of_call(name, shapes, types or "[]", scalars)
        if work is not None:
            place[at] = len(works)
            works.append(work)
    return works, place[inverse]


_ELEMENTWISE: Final = ("aten::add", "aten::mul")
"""Operators that torch counts as one operation an element of their first operand."""


def elementwise_flop(operators: Frame) -> IntArray:
    """Operations of sums and products element by element; 0 for all other operators.

    Args:
        operators: with ``name`` and ``input_shapes``.
    """
    found = np.zeros(len(operators), np.int64)
    if not len(operators):
        return found
    rows = np.flatnonzero(operators.equals("name", *_ELEMENTWISE))
    rows = rows[operators["input_shapes"][rows] >= 0]
    if len(rows):
        sizes = [_first_size(text) for text in operators.texts["input_shapes"]]
        found[rows] = np.array(sizes, np.int64)[operators["input_shapes"][rows]]
    return found


def _first_size(shapes: str) -> int:
    """Elements of the first operand; 0 where it is no tensor."""
    shape = next(iter(shapes_of(shapes)), ())
    size = prod(shape) if shape and all(extent >= 0 for extent in shape) else 0
    return size if size < _MOST_ELEMENTS else 0


_MOST_ELEMENTS: Final = 1 << 50
"""No tensor has so many: shapes come from a trace, which may hold anything."""
