"""The gate's test on 1000 simulated pairs: the stated rate of false alarms, and its power."""

from __future__ import annotations

import importlib.util
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


def test_a_thousand_pairs_without_a_change(simulation: ModuleType) -> None:
    # any smallest effect, so that only the test itself holds alarms back; alpha is 5 %. 1000 pairs
    # tell the rate to 0.7 % (one standard deviation)
    measured = simulation.failing(1000, 5, 3, 0.01, 0.0, alpha=0.05, min_effect=0.0)
    assert 0.02 <= measured <= 0.07
    # at the edge of what is assumed of single runs, the steps' own noise on top
    assumed = simulation.failing(1000, 1, 1, 0.018, 0.0, alpha=0.05, min_effect=0.0, seed=1)
    assert assumed <= 0.07


def test_as_it_is_shipped_it_hardly_ever_fails_unchanged_code(simulation: ModuleType) -> None:
    assert simulation.failing(1000, 5, 3, 0.01, 0.0) <= 0.013


def test_power_grows_with_runs(simulation: ModuleType) -> None:
    few = simulation.failing(200, 1, 1, 0.01, 0.05)
    many = simulation.failing(200, 5, 3, 0.01, 0.05)
    assert few < 0.5
    assert many >= 0.8
    assert simulation.failing(200, 5, 3, 0.01, 0.1) >= 0.99


def test_the_guide_shows_this_table(simulation: ModuleType) -> None:
    guide = (ROOT / "docs/guides/gate.md").read_text(encoding="utf-8")
    (row,) = (line for line in guide.splitlines() if line.startswith("| 5 | 3 | 1.0 % |"))
    stated = [float(cell.strip(" %")) / 100 for cell in row.strip("|").split("|")[3:]]
    for share, slowdown in zip(stated, (0.0, 0.03, 0.05, 0.1), strict=True):
        found = simulation.failing(200, 5, 3, 0.01, slowdown, seed=7)
        assert found == pytest.approx(share, abs=0.12)
