"""Operations and least bytes of framework operators, from their recorded shapes.

A multiply-add counts as two operations. Bytes are those of the operands and the result, each moved
once: what a perfect cache would leave to device memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

ITEM_BYTES: Final = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "double": 8,
                     "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "signed char": 1}  # fmt: skip
"""Bytes of an element by the type that PyTorch records."""

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
    shapes: list[list[int]]
    types: list[str]
    scalars: list[str]
    item: int

    def shape(self, at: int) -> list[int]:
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
            q, k, v = ([s[0], s[2], s[1], s[3]] for s in (q, k, v))
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
    "aten::cudnn_convolution": _convolution(3, 2, 4, -1),
    "aten::cudnn_convolution_relu": _convolution(3, 4, 5, -1),
    "aten::convolution": _convolution(3, 4, 5, 6),
    "aten::_convolution": _convolution(3, 4, 5, 6),
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention": _attention(0, 4),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, 6),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, 11, backward=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(1, 14, backward=True),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, 11, backward=True),
    "flash_attn::_flash_attn_forward": _attention(0, 5, heads_inner=True),
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
            shapes=[_shape(item) for item in json.loads(shapes)],
            types=[str(item) for item in json.loads(types)],
            scalars=[str(item) for item in json.loads(scalars or "[]")],
            item=0,
        )
        item = next((ITEM_BYTES[t] for t in call.types if t in ITEM_BYTES), 0)
        found = known(_Call(call.shapes, call.types, call.scalars, item))
    except (ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError, RecursionError):
        return None
    return found if found.flop > 0 else None


def _shape(value: Any) -> list[int]:
    """A tensor's sizes; empty for what is no tensor."""
    if isinstance(value, list) and all(isinstance(size, int) for size in value):
        return value
    return []
