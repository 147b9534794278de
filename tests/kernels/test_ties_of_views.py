"""The statements behind ``kernels`` and ``operators`` do not depend on the order of rows."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from stepscope.kernels.statements import GROUPINGS, KERNELS_VIEW, operators_view
from stepscope.sql.engine import Engine

STEP = pa.table({"steady": [True, True], "wall_ns": [1000, 1000]})
ROWS = [
    {
        **dict.fromkeys(("outer_operator", "operator", "range"), "aten::mm"),
        **{"phase": "forward", "category": category, "math": math, "steady": True},
        **{"kernel": kernel, "module": module, "source": module, "moved_bytes": 8},
        **{"start_ns": 10, "end_ns": 20},
    }
    for module in ("block.0", "block.1", "block.2", None)
    for kernel in ("gemm", "relu")
    for category in ("gemm", "elementwise")
    for math in ("tf32", "fp32")
]


def answer(sql: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    category = pa.Table.from_pylist(rows)
    engine = Engine([], {"kernel_category": lambda: category, "step": lambda: STEP})
    found: list[dict[str, Any]] = engine.query(sql).to_pylist()
    return found


def test_of_equals_the_first_by_the_alphabet_is_named() -> None:
    (row,) = answer(operators_view("operator"), ROWS[::-1])
    assert (row["mostly_in_module"], row["mostly_in_source"]) == ("block.0", "block.0")
    assert row["longest_kernel"] == "gemm"


@pytest.mark.parametrize("sql", [KERNELS_VIEW, *map(operators_view, GROUPINGS)])
def test_rows_in_another_order_give_the_same_answer(sql: str) -> None:
    expected = answer(sql, ROWS)
    for seed in range(5):
        assert answer(sql, random.Random(seed).sample(ROWS, len(ROWS))) == expected
