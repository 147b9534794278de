"""Is a difference of step times more than noise? The method behind ``compare`` and ``gate``.

Two kinds of noise matter, and only one of them shows inside a capture.

*Within a run*, steps vary and follow one another: a slow one is often followed by another slow
one. The mean's error is estimated by a moving-block bootstrap, which keeps neighbours together.

*Between runs* of the same code, means differ by more than that: another machine of the same kind,
clocks, temperature, neighbours on the host, memory placement. Nothing inside one capture shows it.
Where both sides together have ``ENOUGH_RUNS`` captures more than they have means, it is measured
(pooled variance of the logarithms of the run means, Student's t). With fewer it is assumed: how far
the means of two runs of the same code lie apart in 95 of 100 pairs. That is ``RUN_NOISE`` where the
device sets the pace. Where it waits for the host, for copies of the host or for other ranks, that
waiting varies by as much as the slower run can lose of it, up to ``HOST_NOISE`` of the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RUN_NOISE: Final = 0.05
"""Single runs of unchanged code on shared machines of one kind lie within 5 % of one another in
95 of 100 pairs: the spread that the repeated captures of the test data show. Assumed only where
there are too few runs to measure it."""

HOST_NOISE: Final = 0.25
"""Most that a step in which the device waits varies between runs, as a share of the slower one: the
host's cores, memory and network are shared with other work. In the test data the halves of single
captures differ by up to 20 % in 90 of 93 captures where nothing changed, and one run on two
machines of one kind by 25 %."""

ENOUGH_RUNS: Final = 3
"""Degrees of freedom (captures less the two means) from which on the spread between runs is
measured: with three, Student's factor is 3.2 instead of 2.0, with one it would be 12.7."""

REPLICATES: Final = 2000
"""Bootstrap replicates: the ends of a 95 % interval then vary by some 3 % of its width."""

SEED: Final = 20240229
"""The bootstrap starts from the same seed always: the same captures give the same interval."""


@dataclass(frozen=True)
class Difference:
    """How much longer the mean step takes after than before.

    Shares are of the mean before; ``ratio - 1`` is their measure.

    Attributes:
        before_ns: mean step before, ns (geometric mean over runs).
        after_ns: mean step after, ns.
        low_ns: lower end of the interval of the difference from the steps alone, ns.
        high_ns: upper end of it.
        ratio: after over before.
        ratio_low: lower end of the ratio's interval, noise between runs included.
        ratio_high: upper end of it.
        probability: of an increase at least as large by noise alone, one-sided.
        run_noise: standard deviation of the logarithm of a run's mean that was reckoned with.
        measured: whether that was measured, not assumed.
        degrees: degrees of freedom it was measured with.
    """

    before_ns: float
    after_ns: float
    low_ns: float
    high_ns: float
    ratio: float
    ratio_low: float
    ratio_high: float
    probability: float
    run_noise: float
    measured: bool
    degrees: int


def block_length(n: int) -> int:
    """Steps in a block of the bootstrap: grows as the cube root of their number.

    The rate that minimises the mean squared error of the variance (Künsch 1989, Hall 1995).
    """
    return max(1, min(n, round(1.5 * math.cbrt(n))))


def bootstrap_means(values: Sequence[float] | Floats, seed: int = SEED) -> Floats:
    """Means of moving-block bootstrap replicates of a series.

    Blocks wrap around, so that every step is drawn equally often (circular block bootstrap). The
    spread is enlarged by ``n / (n - 1)``, as a sample's variance is.
    """
    data = np.asarray(values, np.float64)
    n = len(data)
    if n < 2:
        return np.full(REPLICATES, data.mean() if n else 0.0)
    length = block_length(n)
    blocks = -(-n // length)
    sums = np.concatenate(([0.0], np.cumsum(np.concatenate((data, data)))))
    starts = np.random.default_rng(seed).integers(0, n, (REPLICATES, blocks))
    # the last block is cut so that every replicate has n steps
    lengths = np.full(blocks, length)
    lengths[-1] = n - length * (blocks - 1)
    drawn = (sums[starts + lengths] - sums[starts]).sum(axis=1) / n
    centre = data.mean()
    means: Floats = centre + (drawn - centre) * math.sqrt(n / (n - 1))
    return means


def mean_error(values: Floats) -> Floats:
    """Standard error of the mean of each row of a matrix, neighbours being correlated.

    From the variance with the autocovariances up to the block length (Newey and West 1987).
    """
    n = values.shape[-1]
    if n < 2:
        return np.zeros(values.shape[:-1])
    apart = values - values.mean(axis=-1, keepdims=True)
    long_run = (apart**2).sum(axis=-1) / (n - 1)
    lags = block_length(n)
    for lag in range(1, min(lags, n - 1)):
        covariance = (apart[..., lag:] * apart[..., :-lag]).sum(axis=-1) / (n - 1)
        long_run = long_run + 2 * (1 - lag / lags) * np.maximum(covariance, 0)
    error: Floats = np.sqrt(long_run / n)
    return error


def difference(
    before: Sequence[Sequence[float]],
    after: Sequence[Sequence[float]],
    *,
    confidence: float = 0.95,
    run_noise: float = RUN_NOISE,
) -> Difference:
    """Compare runs by the lengths of their steps.

    Args:
        before: steady step times of each run before, ns.
        after: the same of each run after.
        confidence: of the two-sided intervals.
        run_noise: distance that 95 of 100 pairs of single runs of the same code keep, as a share;
            used where there are too few runs to measure it.
    """
    logs, errors, resampled = [], [], []
    for side, runs in enumerate((before, after)):
        means = np.array([float(np.mean(run)) for run in runs])
        draws = [bootstrap_means(run, SEED + 1000 * side + i) for i, run in enumerate(runs)]
        logs.append(np.log(means))
        errors.append(np.array([d.std() for d in draws]) / means)
        resampled.append(np.exp(np.mean(np.log(np.maximum(draws, 1e-9)), axis=0)))
    shift = float(logs[1].mean() - logs[0].mean())
    counts = [len(side) for side in logs]
    degrees = sum(counts) - 2
    within = sum(float((e**2).sum()) / len(e) ** 2 for e in errors)
    weight = sum(1 / n for n in counts)
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in logs)
    measured = degrees >= ENOUGH_RUNS
    if measured:
        # the spread of run means holds that within runs; where chance made them agree, it counts
        between = math.sqrt(squares / degrees)
        error = math.sqrt(max(squares / degrees * weight, within))
    else:
        between = run_noise / (NormalDist().inv_cdf(0.975) * math.sqrt(2))
        if degrees:  # a spread that is seen counts, if it is larger than the one assumed
            between = max(between, math.sqrt(squares / degrees))
    tail = (1 - confidence) / 2
    factor = _quantile(1 - tail, degrees if measured else 0)
    if not measured:
        # few steps tell their own spread badly: that part of the error has Student's factor
        fewest = min(len(run) for run in (*before, *after))
        wider = _quantile(1 - tail, fewest - 1) / factor if fewest > 1 else 1.0
        error = math.sqrt(within * wider**2 + between**2 * weight)
    apart = resampled[1] - resampled[0]
    low, high = np.quantile(apart, [tail, 1 - tail])
    start, end = (float(np.exp(side.mean())) for side in logs)
    return Difference(
        before_ns=start,
        after_ns=end,
        low_ns=float(low),
        high_ns=float(high),
        ratio=math.exp(shift),
        ratio_low=math.exp(shift - factor * error),
        ratio_high=math.exp(shift + factor * error),
        probability=_upper_tail(shift / error if error else math.copysign(99.0, shift) * (
            shift != 0), degrees if measured else 0),
        run_noise=between,
        measured=measured,
        degrees=degrees,
    )  # fmt: skip


def assumed_noise(waiting_share: float) -> float:
    """How far two single runs of the same code may lie apart, in 95 of 100 pairs, as a logarithm.

    Args:
        waiting_share: part of the slower run's step in which the device waits for the host, copies
            or communication.
    """
    host = -math.log1p(-min(max(waiting_share, 0.0), HOST_NOISE))
    return math.hypot(RUN_NOISE, host)


def _quantile(p: float, degrees: int) -> float:
    """Quantile of Student's t; of the normal distribution for 0 degrees."""
    if not degrees:
        return NormalDist().inv_cdf(p)
    return _t_quantile(round(p, 9), degrees)


@cache
def _t_quantile(p: float, degrees: int) -> float:
    low, high = 0.0, 1.0
    while _upper_tail(high, degrees) > 1 - p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _upper_tail(middle, degrees) > 1 - p else (low, middle)
    return (low + high) / 2


def _upper_tail(t: float, degrees: int) -> float:
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
