"""Shapes and types of inputs, out of what importers store."""

from __future__ import annotations

import pytest

from stepscope.trace.shapes import matrices_of, shapes_of, types_of


def test_each_input_has_its_shape() -> None:
    # a matrix, a scalar tensor, a number, a list of tensors, a vector
    text = "[[4,8],[],null,[[4,8],[8]],[8]]"
    assert shapes_of(text) == [(4, 8), (), (), (), (8,)]
    assert matrices_of(text) == [(4, 8)]
    assert types_of('["float","Scalar",""]') == ["float", "Scalar", ""]


@pytest.mark.parametrize("text", [None, "", "nonsense", "5", '{"a": [1]}', "[[1,", "[" * 100_000])
def test_damaged_texts_hold_no_shapes(text: str | None) -> None:
    assert shapes_of(text) == matrices_of(text) == types_of(text) == []
