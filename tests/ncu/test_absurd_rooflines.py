"""Rooflines of absurd figures are drawn without an error: a damaged report may hold anything."""

from __future__ import annotations

import pytest

from stepscope.ncu.roofline import Roof, Roofline
from stepscope.render.roofline import roofline_text

TINY, HUGE = 5e-324, 1.7e308


@pytest.mark.parametrize("rate", [0.0, TINY, 1.0, HUGE])
@pytest.mark.parametrize("peak", [TINY, 1.0, HUGE])
@pytest.mark.parametrize("bandwidth", [TINY, 1.0, HUGE])
def test_any_figures_are_drawn(rate: float, peak: float, bandwidth: float) -> None:
    roof = Roof("dram", 1.0, bandwidth, rate, min(peak, bandwidth), 0.5)
    line = Roofline("fp32", rate, peak, {"fp32": peak}, [roof], 0.0, "")
    assert roofline_text([line]).count("\n") > 3
