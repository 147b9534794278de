"""Quantiles and tails of Student's t and of the normal distribution."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np


def quantile(p: float, degrees: float) -> float:
    """Quantile of Student's t; of the normal distribution for 0 degrees."""
    if not degrees:
        return NormalDist().inv_cdf(p)
    return _t_quantile(round(p, 9), degrees)


@cache
def _t_quantile(p: float, degrees: float) -> float:
    """Newton's steps on the tail, kept between bounds that halving narrows."""
    low, high = 0.0, 1.0
    while upper_tail(high, degrees) > 1 - p:
        low, high = high, high * 2
    scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    peak = math.exp(scale) / math.sqrt(math.pi * degrees)
    at = (low + high) / 2
    for _ in range(60):
        beyond = upper_tail(at, degrees) - (1 - p)
        low, high = (at, high) if beyond > 0 else (low, at)
        density = peak * (1 + at * at / degrees) ** (-(degrees + 1) / 2)
        step = beyond / density
        if abs(step) < 1e-13 * at:
            break
        at = at + step if low < at + step < high else (low + high) / 2
    return at


def upper_tail(t: float, degrees: float) -> float:
    """Probability that Student's t exceeds a value; of the normal distribution for 0 degrees."""
    if not degrees:
        return 1 - NormalDist().cdf(t)
    # with t = sqrt(v) tan(a) the density becomes cos(a)^(v-1), which is smooth and bounded
    angle = math.atan(t / math.sqrt(degrees))
    grid = np.linspace(angle, math.pi / 2, 2001)
    density = np.cos(grid) ** (degrees - 1)
    h = (math.pi / 2 - angle) / 2000
    area = h / 3 * float(density[0] + density[-1] + 4 * density[1::2].sum() + 2
                         * density[2:-1:2].sum())  # fmt: skip
    scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    return area * math.exp(scale) / math.sqrt(math.pi)
