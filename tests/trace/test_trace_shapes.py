"""Shapes and types of inputs, out of what importers store."""

from __future__ import annotations

import pytest

from stepscope.trace.shapes import (
    item_bytes,
    matrices_of,
    product_item_bytes,
    shapes_of,
    types_of,
)


def test_each_input_has_its_shape() -> None:
    # a matrix, a scalar tensor, a number, a list of tensors, a vector
    text = "[[4,8],[],null,[[4,8],[8]],[8]]"
    assert shapes_of(text) == [(4, 8), (), (), (), (8,)]
    assert matrices_of(text) == [(4, 8)]
    assert types_of('["float","Scalar",""]') == ["float", "Scalar", ""]


@pytest.mark.parametrize(
    ("types", "first", "of_product"),
    [
        (["c10::Half", "float"], 2, 2),
        (["long int", "float"], 8, 4),  # indices are no operand of a product
        (["bool"], 1, 0),
        (["unknown"], 4, 0),
        ([], 4, 0),
    ],
)
def test_an_element_has_the_size_of_its_type(types: list[str], first: int, of_product: int) -> None:
    assert (item_bytes(types), product_item_bytes(types)) == (first, of_product)


@pytest.mark.parametrize("text", [None, "", "nonsense", "5", '{"a": [1]}', "[[1,", "[" * 100_000])
def test_damaged_texts_hold_no_shapes(text: str | None) -> None:
    assert shapes_of(text) == matrices_of(text) == types_of(text) == []
