#!/usr/bin/env python3
"""How often the gate fails without a change, and how often it sees one: simulated pairs of runs.

A run's mean varies between runs by a normal factor; its steps vary around it, each like the one
before it to some part (autoregression). The table is the one in docs/guides/gate.md.
"""

from __future__ import annotations

import argparse
import math
from functools import cache

import numpy as np

from stepscope.compare.statistics import difference

STEPS = 20
SPREAD = 0.03  # of steps around their run's mean
FOLLOWS = 0.5  # correlation of a step with the one before it
ROWS = (
    (1, 1, 0.01), (1, 1, 0.018), (3, 1, 0.01), (3, 2, 0.01), (5, 3, 0.01), (10, 3, 0.01),
    (5, 3, 0.02),
)  # fmt: skip
"""Captures before, captures after, spread of the runs: the rows of the table."""


def run(
    rng: np.random.Generator, mean_ns: float, run_sd: float, steps: int = STEPS,
    follows: float = FOLLOWS,
) -> np.ndarray:  # fmt: skip
    """Step times of one run, ns."""
    shocks = rng.normal(size=steps)
    shocks[1:] *= math.sqrt(1 - follows**2)
    series = _memory(steps, follows) @ shocks
    return mean_ns * math.exp(rng.normal(0, run_sd)) * (1 + SPREAD * series)


@cache
def _memory(steps: int, follows: float) -> np.ndarray:
    """What is left of each shock (column) at each step (row): the autoregression written out."""
    apart = np.subtract.outer(np.arange(steps), np.arange(steps))
    return np.where(apart < 0, 0.0, follows ** np.maximum(apart, 0))


def failing(
    pairs: int, before: int, after: int, run_sd: float, slowdown: float, *,
    alpha: float = 0.01, min_effect: float = 0.02, steps: int = STEPS, follows: float = FOLLOWS,
    seed: int = 0,
) -> float:  # fmt: skip
    """Share of pairs that the gate fails."""
    rng = np.random.default_rng(seed)
    failed = 0
    for _ in range(pairs):
        old = [run(rng, 2e7, run_sd, steps, follows) for _ in range(before)]
        new = [run(rng, 2e7 * (1 + slowdown), run_sd, steps, follows) for _ in range(after)]
        # the bootstrap only shapes the interval in ns; the verdict does not use it
        found = difference(old, new, confidence=1 - 2 * alpha, replicates=0)
        failed += found.ratio_low > 1 and found.ratio - 1 >= min_effect
    return failed / pairs


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=4000)
    pairs = parser.parse_args().pairs
    slowdowns = (0.0, 0.03, 0.05, 0.1)
    print("| baseline | under test | spread of runs | " + " | ".join(
        "unchanged" if not s else f"{100 * s:.0f} % slower" for s in slowdowns) + " |")  # fmt: skip
    print("| --- | --- | --- |" + " --- |" * len(slowdowns))
    for before, after, spread in ROWS:
        rates = [failing(pairs, before, after, spread, s) for s in slowdowns]
        shown = " | ".join(f"{100 * rate:.1f} %" for rate in rates)
        print(f"| {before} | {after} | {100 * spread:.1f} % | {shown} |")


if __name__ == "__main__":
    main()
