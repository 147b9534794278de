"""Shapes and types of an operator's inputs, out of the JSON text that a trace holds."""

from __future__ import annotations

import json
from typing import Any, Final

Shape = tuple[int, ...]

_OF_PRODUCTS: Final = {
    "float": 4, "c10::BFloat16": 2, "c10::Half": 2, "double": 8,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "signed char": 1,
}  # fmt: skip
ITEM_BYTES: Final = {
    **_OF_PRODUCTS,
    "int": 4, "long int": 8, "long": 8, "short int": 2, "short": 2, "unsigned char": 1, "bool": 1,
    "c10::complex<float>": 8, "c10::complex<double>": 16,
    "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
}  # fmt: skip
"""Bytes of an element by the type that PyTorch records."""


def shapes_of(text: str | None) -> list[Shape]:
    """The shape of each input; () for what is no tensor, and nothing where the text is damaged."""
    return [
        tuple(one) if isinstance(one, list) and all(isinstance(n, int) for n in one) else ()
        for one in _items(text)
    ]


def matrices_of(text: str | None) -> list[Shape]:
    """The shapes of at least two dimensions among those of the inputs."""
    return [shape for shape in shapes_of(text) if len(shape) >= 2]


def types_of(text: str | None) -> list[str]:
    """The type of each input; nothing where the text is damaged."""
    return [str(one) for one in _items(text)]


def item_bytes(types: list[str]) -> int:
    """Bytes of an element of the first input; those of single precision where it is unknown."""
    return ITEM_BYTES.get(types[0], 4) if types else 4


def product_item_bytes(types: list[str]) -> int:
    """Bytes of an element of the first input whose type products have; 0 where none has."""
    return next((_OF_PRODUCTS[one] for one in types if one in _OF_PRODUCTS), 0)


def _items(text: str | None) -> list[Any]:
    """The items of a list; texts come from a trace, which may hold anything."""
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []
