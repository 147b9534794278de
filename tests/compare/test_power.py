"""The gate's test on thousands of simulated pairs: the stated false-alarm rate, and power."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gate_power", ROOT / "benchmarks/gate_power.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAIRS = 1500
SURE = 3 * math.sqrt(0.01 * 0.99 / PAIRS)
"""What so many pairs may miss a rate of 1 % by: three standard deviations, 0.77 %."""


@pytest.mark.parametrize("row", range(7))
def test_the_stated_rate_holds_in_every_row(simulation: ModuleType, row: int) -> None:
    """Unchanged code fails no more often than alpha says, as it is shipped."""
    assert len(simulation.ROWS) == 7
    before, after, spread = simulation.ROWS[row]
    assert simulation.failing(PAIRS, before, after, spread, 0.0) <= 0.01 + SURE


@pytest.mark.parametrize("steps", [8, 12, 60])
@pytest.mark.parametrize("follows", [0.0, 0.5])
def test_the_rate_holds_for_short_and_long_runs(
    simulation: ModuleType, steps: int, follows: float
) -> None:
    # single runs at the edge of what is assumed of them, any smallest effect
    found = simulation.failing(
        PAIRS, 1, 1, 0.018, 0.0, min_effect=0.0, steps=steps, follows=follows
    )
    assert found <= 0.01 + SURE


def test_a_measured_spread_gives_the_rate_exactly(simulation: ModuleType) -> None:
    # alpha is 5 %; the test neither fails too often nor hides behind a wide interval
    measured = simulation.failing(3000, 5, 3, 0.02, 0.0, alpha=0.05, min_effect=0.0)
    assert 0.035 <= measured <= 0.062


def test_power_grows_with_runs(simulation: ModuleType) -> None:
    few = simulation.failing(200, 1, 1, 0.01, 0.05)
    many = simulation.failing(200, 5, 3, 0.01, 0.05)
    assert few < 0.5
    assert many >= 0.8
    assert simulation.failing(200, 5, 3, 0.01, 0.1) >= 0.99


def test_the_guide_shows_this_table(simulation: ModuleType) -> None:
    guide = (ROOT / "docs/guides/gate.md").read_text(encoding="utf-8")
    for before, after, spread in simulation.ROWS:
        start = f"| {before} | {after} | {100 * spread:.1f} % |"
        (row,) = (line for line in guide.splitlines() if line.startswith(start))
        stated = [float(cell.strip(" %")) / 100 for cell in row.strip("|").split("|")[3:]]
        for share, slowdown in zip(stated, (0.0, 0.03, 0.05, 0.1), strict=True):
            found = simulation.failing(300, before, after, spread, slowdown, seed=7)
            assert found == pytest.approx(share, abs=0.1)
