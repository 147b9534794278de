"""Figures with their units: signs, and what rounds to zero."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.ncu.units import shown as shown_of_report
from stepscope.render.tables import as_columns, as_csv, as_json
from stepscope.trace.units import (
    UNITS,
    figure_title,
    milliseconds,
    percent,
    shown,
    signed_milliseconds,
    signed_percent,
)

NEGATIVE_ZERO = re.compile(r"[-+]0(\.0*)?(?![.\d])")
VALUES = st.one_of(st.floats(-1e15, 1e15), st.floats(-1, 1), st.sampled_from([-0.0, -0.04, -1e-9]))


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0.0 ms"), (-20, "0.0 us"), (20, "0.0 us"), (-60, "-0.1 us"), (60, "+0.1 us"),
     (-1_500_000, "-1.5 ms"), (250_000_000, "+250 ms")],
)  # fmt: skip
def test_differences_of_times(ns: int, text: str) -> None:
    assert signed_milliseconds(ns) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0.0 %"), (-0.0004, "0.0 %"), (0.0004, "0.0 %"), (-0.0006, "-0.1 %"), (1.5, "+150.0 %")],
)
def test_relative_differences(share: float, text: str) -> None:
    assert signed_percent(share) == text


@pytest.mark.parametrize(
    ("ns", "text"), [(99_949_999, "99.9 ms"), (271e6, "271 ms"), (27_073_000_000, "27,073 ms")]
)
def test_long_times_have_separators(ns: float, text: str) -> None:
    assert milliseconds(ns) == text


def test_shares() -> None:
    assert percent(0.244) == "24 %"
    assert percent(0.2444, 1) == "24.4 %"
    assert percent(12.345) == "1,234 %"


def test_shares_are_written_in_one_way() -> None:
    """Python's own ``%`` format stands close to the number; ours does not."""
    package = Path(stepscope.__file__).parent
    own = re.compile(r":[^{}\"]*\.\d%\}")
    assert [file.name for file in package.rglob("*.py") if own.search(file.read_text())] == []


@given(VALUES)
def test_nothing_is_a_negative_zero(value: float) -> None:
    output = [
        milliseconds(value),
        signed_milliseconds(value),
        percent(value),
        signed_percent(value),
    ]
    output += [shown(value, unit) for unit in UNITS]
    output += [shown_of_report(value, unit) for unit in ("ns", "%", "byte/s", "")]
    table = pa.table({"x": [value]})
    output += as_columns(table).splitlines()[2:]
    assert not [text for text in output if NEGATIVE_ZERO.match(text.strip())]


def test_tables_show_a_negative_zero_as_zero() -> None:
    table = pa.table({"x": [-0.0]})
    assert as_columns(table).split() == ["x", "-", "0"]
    assert as_csv(table) == "x\n0.0\n"
    assert '"rows":[[0.0]]' in as_json(table, "s")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("work_ns_per_step", "work time per step"),
        ("idle_input_starvation_ns", "idle input starvation time"),
        ("achieved_bytes_per_s", "achieved bandwidth"),
        ("gpu_time_ns", "gpu time"),
        ("kernels_per_step", "kernels per step"),
        ("pageable_bytes", "pageable bytes"),
        ("small_share", "small share"),
    ],
)
def test_names_of_figures_hold_no_unit_that_another_is_shown_in(name: str, title: str) -> None:
    assert figure_title(name) == title
