"""Distinct values as NumPy finds them, whatever the way; and nobody asks NumPy directly."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import stepscope
from stepscope.intervals import distinct as d

TYPES = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
PACKAGE = Path(stepscope.__file__).parent


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Integers of any type: codes from a narrow range, or spread over all that the type holds."""
    kind = draw(st.sampled_from(TYPES))
    limits = np.iinfo(kind)
    low = draw(st.integers(int(limits.min), int(limits.max)))
    wide = draw(st.booleans())
    high = int(limits.max) if wide else min(int(limits.max), low + draw(st.integers(0, 12)))
    some = draw(st.lists(st.integers(low, high), max_size=12))
    edges = [int(limits.min), int(limits.max)]
    values = draw(st.lists(st.sampled_from([*some, *(edges if wide else []), low]), max_size=60))
    found = np.array(values, kind)
    return np.sort(found) if draw(st.booleans()) else found


def same(found: Any, expected: Any) -> None:
    assert found.dtype.kind == expected.dtype.kind
    assert found.tolist() == expected.tolist()


@given(arrays())
def test_distinct_values_are_numpys(values: np.ndarray[Any, Any]) -> None:
    kept = values.copy()
    expected, first, inverse, counts = np.unique(values, True, True, True)
    same(d.distinct_values(values), expected)
    for found in (
        d.with_inverse(values),
        d.with_counts(values),
        d.with_first(values),
        d.with_first_and_inverse(values),
    ):
        assert found[0].dtype == values.dtype
        same(found[0], expected)
    same(d.with_inverse(values)[1], inverse)
    same(d.with_counts(values)[1], counts)
    same(d.with_first(values)[1], first)
    same(d.with_first_and_inverse(values)[1], first)
    same(d.with_first_and_inverse(values)[2], inverse)
    assert (values == kept).all()


@given(arrays(), arrays(), st.booleans())
def test_sets_of_values_are_numpys(
    a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], mixed: bool
) -> None:
    if mixed and len(a):
        assume(int(a[0]) <= np.iinfo(b.dtype).max)
        assume(int(a[0]) >= np.iinfo(b.dtype).min)
        b = np.append(b, b.dtype.type(a[0]))
    assert d.among(a, b).tolist() == [v in set(b.tolist()) for v in a.tolist()]
    b = b.astype(a.dtype)  # whatever values that gives
    same(d.among(a, b), np.isin(a, b))
    same(d.common_values(a, b), np.intersect1d(a, b))
    same(d.values_without(a, b), np.setdiff1d(a, b))
    same(d.values_of_either(a, b), np.union1d(a, b))
    _, *expected = np.intersect1d(a, b, return_indices=True)
    for found, place in zip(d.where_common(a, b), expected, strict=True):
        assert found.tolist() == place.tolist()


@given(st.lists(st.tuples(st.integers(-2, 3), st.sampled_from([0, 7, 1 << 62]), st.integers(0, 2))))
def test_distinct_rows_are_numpys(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, np.int64).reshape(-1, 3)
    _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    found = d.distinct_rows(list(table.T))
    same(found[0], first)
    same(found[1], inverse.reshape(-1))


@pytest.mark.parametrize("size", [5, 3000])
@pytest.mark.parametrize("spread", [3, 10**5, 10**14])
def test_each_way_gives_the_same(size: int, spread: int) -> None:
    draw = np.random.default_rng(size)
    values = draw.integers(-spread, spread, size)
    known = draw.choice(values, size // 2)
    expected = np.unique(values, return_index=True, return_inverse=True)
    for found, wanted in zip(d.with_first_and_inverse(values), expected, strict=True):
        same(found, wanted)
    same(d.among(values, known), np.isin(values, known))


def test_other_types_and_shapes_are_left_to_numpy() -> None:
    texts = np.array(["b", "a", "b"], object)
    assert d.distinct_values(texts).tolist() == ["a", "b"]
    assert d.with_inverse(texts)[1].tolist() == [1, 0, 1]
    assert d.distinct_values(np.array([0.5, np.nan, np.nan, -0.5])).tolist()[:2] == [-0.5, 0.5]
    assert d.distinct_values(np.array([True, False, True])).tolist() == [False, True]
    assert d.among(["sqrt", "no"], np.array(["sqrt", "mul"])).tolist() == [True, False]
    assert d.among(np.array([1, 2]), []).tolist() == [False, False]
    assert d.among(np.array([], np.int64), np.arange(50)).tolist() == []
    assert d.among(np.array([[1, 2], [3, 99]]), np.arange(20)).tolist() == [
        [True, True],
        [True, False],
    ]
    large = np.array([2**64 - 1, 5], np.uint64)
    assert d.among(large, np.append(large, large)).all()
    least, most = -(2**63), 2**63 - 1
    assert d.among(np.array([least, most]), np.arange(least, least + 40)).tolist() == [True, False]
    assert d.among(np.array([least, most]), np.arange(most - 40, most)).tolist() == [False, False]


@pytest.mark.parametrize("name", ["distinct_values", "with_counts", "common_values"])
def test_integers_are_not_hashed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("NumPy was asked")

    for asked in d.REPLACED:
        if hasattr(np, asked):
            monkeypatch.setattr(np, asked, refuse)
    function: Callable[..., Any] = getattr(d, name)
    values = np.arange(100) * 2**40
    function(*([values, values[50:]] if name == "common_values" else [values]))


def test_nobody_else_asks_numpy() -> None:
    """Ruff says so while one writes; this holds where nobody runs it."""
    mentioned = re.compile(
        rf"\b(?:np|numpy)\.(?:{'|'.join(d.REPLACED)})\b|from numpy import".encode()
    )
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != Path(d.__file__) and mentioned.search(path.read_bytes())
        for node in ast.walk(ast.parse(path.read_bytes()))
        for name in names_of(node)
        if name in d.REPLACED
    ]
    assert not found, f"use stepscope.intervals.distinct: {found}"
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    lint = project["tool"]["ruff"]["lint"]
    assert "TID251" in lint["select"]
    banned = lint["flake8-tidy-imports"]["banned-api"]
    assert {name.removeprefix("numpy.") for name in banned} == set(d.REPLACED)


def names_of(node: ast.AST) -> list[str]:
    """What a piece of code takes from NumPy."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return [node.attr] if node.value.id in ("np", "numpy") else []
    if isinstance(node, ast.ImportFrom) and node.module == "numpy":
        return [alias.name for alias in node.names]
    return []


def test_what_nobody_may_write_is_found() -> None:
    written = "import numpy as np\nfrom numpy import unique\ndef f(x):\n    return np.isin(x, x)\n"
    names = [name for node in ast.walk(ast.parse(written)) for name in names_of(node)]
    assert sorted(names) == ["isin", "unique"]
