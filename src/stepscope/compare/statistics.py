"""Is a difference of step times more than noise? The method behind ``compare`` and ``gate``.

Two kinds of noise matter, and only one of them shows inside a capture.

*Within a run*, steps vary and follow one another: a slow one is often followed by another slow
one. A moving-block bootstrap, which keeps neighbours together, gives the shape of the mean's
distribution. Its width comes from the slowest waves of the series (:func:`slow_waves`): blocks of a
few steps miss part of what neighbours share, and made alarms half as often again as stated.

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
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from stepscope.trace.quantiles import quantile, upper_tail

Floats = npt.NDArray[np.float64]

_KEPT_STEPS = 1000  # longest run whose cosines are kept for the next of that length: 250 kB

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

SHARED: Final = 0.5
"""What a step is assumed to share with the one before it (correlation). The slowest waves of a
short run are not slow enough to hold all of that; the error is enlarged by what they miss of it.
Steps that share less are judged a little too cautiously, steps that share more too boldly."""

_NO_SHAPE: Final = 1e-9
"""Spread of the logarithms of drawn means up to which they are one mean but for rounding."""

MANY_DEGREES: Final = 1000
"""Degrees of freedom from which on Student's factor is the normal distribution's, to 0.1 %."""

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
        run_noise: standard deviation of the logarithm of a run's mean that was computed with.
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


def bootstrap_means(
    values: Sequence[float] | Floats, seed: int = SEED, replicates: int = REPLICATES
) -> Floats:
    """Means of moving-block bootstrap replicates of a series.

    Blocks wrap around, so that every step is drawn equally often (circular block bootstrap). The
    spread is enlarged by ``n / (n - 1)``, as a sample's variance is.
    """
    data = np.asarray(values, np.float64)
    n = len(data)
    if n < 2:
        return np.full(replicates, data.mean() if n else 0.0)
    length = block_length(n)
    blocks = -(-n // length)
    sums = np.concatenate(([0.0], np.cumsum(np.concatenate((data, data)))))
    starts = np.random.default_rng(seed).integers(0, n, (replicates, blocks))
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


def wave_count(n: int) -> int:
    """Waves that the error of the mean of ``n`` steps is estimated from.

    Fewer are less exact, more take in faster ones, which hold less of what neighbours share. The
    square root lies between the rates that favour the one and the other; with it the simulation
    (``benchmarks/gate_power.py``) keeps the stated rate.
    """
    return max(1, min(n - 1, max(2, round(math.sqrt(n)))))


def slow_waves(values: Sequence[float] | Floats) -> tuple[float, int]:
    """Standard error of the mean of a series whose neighbours are correlated, and its degrees.

    The mean square of the series' projections on its slowest cosines (equal-weighted cosine
    estimate: Müller 2007; Lazarus, Lewis, Stock and Watson 2018). The mean over this error has
    Student's t with as many degrees of freedom as there are waves. A drift counts in full.

    Returns:
        The error, in the unit of the values, and the degrees of freedom; (0, 0) for fewer than two.
    """
    data = np.asarray(values, np.float64)
    n = len(data)
    if n < 2:
        return 0.0, 0
    cosines = _slow_cosines(n) if n <= _KEPT_STEPS else _slow_cosines.__wrapped__(n)
    # for so few values mean() takes several times as long as the sum
    projected = cosines @ (data - data.sum() / n)
    return math.sqrt(float((projected**2).sum()) / len(cosines) / n), len(cosines)


@lru_cache(maxsize=16)
def _slow_cosines(n: int) -> Floats:
    """The slowest cosines over ``n`` steps, each of length one: a row a wave."""
    angles = np.pi * np.outer(np.arange(1, wave_count(n) + 1), np.arange(n) + 0.5) / n
    cosines: Floats = math.sqrt(2 / n) * np.cos(angles)
    return cosines


@lru_cache(maxsize=1024)
def missed(n: int) -> float:
    """How much larger the squared error of a mean of ``n`` steps is than its waves tell.

    The spectrum of a first-order autoregression with the coefficient ``SHARED`` at frequency zero,
    over its mean at the frequencies of the waves.
    """
    angles = np.pi * np.arange(1, wave_count(n) + 1) / n
    spectrum = (1 - SHARED) ** 2 / (1 - 2 * SHARED * np.cos(angles) + SHARED**2)
    return 1 / float(spectrum.mean())


def settled(values: Sequence[float] | Floats) -> Floats:
    """A run as its noise is estimated from: a first step that is its start is like the others.

    A capture begins with an empty queue, so the device waits until the host is ahead: in the test
    data that step is 6 to 22 % longer than all others of a steady run. It counts as the start where
    it is longer than the longest of the others by more than those lie apart. The mean is never
    taken from this.
    """
    data = np.array(values, np.float64)
    if len(data) < 6:
        return data
    rest = data[1:]
    if data[0] - rest.max() > rest.max() - rest.min():
        data[0] = np.median(rest)
    return data


def difference(
    before: Sequence[Sequence[float]],
    after: Sequence[Sequence[float]],
    *,
    confidence: float = 0.95,
    run_noise: float = RUN_NOISE,
    replicates: int = REPLICATES,
) -> Difference:
    """Compare runs by the lengths of their steps.

    Args:
        before: steady step times of each run before, ns.
        after: the same of each run after.
        confidence: of the two-sided intervals.
        run_noise: distance that 95 of 100 pairs of single runs of the same code keep, as a share;
            used where there are too few runs to measure it.
        replicates: of the bootstrap, which shapes the interval from the steps alone; with 0 that
            interval has no width, and everything else is the same.
    """
    logs, errors, waves, shortfall, resampled = [], [], [], [], []
    for side, runs in enumerate((before, after)):
        means = np.array([float(np.mean(run)) for run in runs])
        quiet = [settled(run) for run in runs]
        facts = [slow_waves(run) for run in quiet]
        logs.append(np.log(means))
        errors.append(np.array([error for error, _ in facts]) / means)
        waves.append(np.array([max(degrees, 1) for _, degrees in facts]))
        shortfall.append(np.array([missed(len(run)) for run in runs]))
        if replicates:
            draws = [
                bootstrap_means(run, SEED + 1000 * side + i, replicates)
                for i, run in enumerate(quiet)
            ]
            resampled.append(np.exp(np.mean(np.log(np.maximum(draws, 1e-9)), axis=0)))
    shift = float(logs[1].mean() - logs[0].mean())
    counts = [len(side) for side in logs]
    degrees = sum(counts) - 2
    seen = np.concatenate([(side / len(side)) ** 2 for side in errors])
    within = float(seen.sum())
    steps = seen * np.concatenate(shortfall), np.concatenate(waves)
    weight = sum(1 / n for n in counts)
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in logs)
    tail = (1 - confidence) / 2
    measured = degrees >= ENOUGH_RUNS
    if measured:
        # the spread of run means holds that within runs; where chance made them agree, it counts
        between = math.sqrt(squares / degrees)
        error = math.sqrt(max(squares / degrees * weight, within))
        freedom = float(degrees)
    else:
        between = run_noise / (NormalDist().inv_cdf(0.975) * math.sqrt(2))
        if degrees:  # a spread that is seen counts, if it is larger than the one assumed
            between = max(between, math.sqrt(squares / degrees))
        error, freedom = _welch(*steps, between**2 * weight)
    factor = quantile(1 - tail, freedom)
    start, end = (float(np.exp(side.mean())) for side in logs)
    low = high = end - start
    if replicates:
        alone, few = _welch(*steps, 0.0)
        wide = alone * quantile(1 - tail, few) / quantile(1 - tail, 0)
        low, high = _from_steps(resampled, (start, end), wide, tail)
    return Difference(
        before_ns=start,
        after_ns=end,
        low_ns=low,
        high_ns=high,
        ratio=math.exp(shift),
        ratio_low=math.exp(shift - factor * error),
        ratio_high=math.exp(shift + factor * error),
        probability=upper_tail(shift / error if error else math.copysign(99.0, shift) * (
            shift != 0), freedom),
        run_noise=between,
        measured=measured,
        degrees=degrees,
    )  # fmt: skip


def _welch(pieces: Floats, degrees: Floats, known: float) -> tuple[float, float]:
    """Standard error of a sum of parts that are told unequally well, and its degrees of freedom.

    Args:
        pieces: squared error of every part.
        degrees: degrees of freedom that each was found with (Welch 1947, Satterthwaite 1946).
        known: squared error of what is not estimated.

    Returns:
        The error, and the degrees; 0 where they are so many that the normal distribution serves.
    """
    variance = float(pieces.sum()) + known
    uncertain = float((pieces**2 / degrees).sum())
    freedom = variance**2 / uncertain if uncertain > 0 else math.inf
    if freedom > MANY_DEGREES:
        return math.sqrt(variance), 0.0
    return math.sqrt(variance), round(max(freedom, 1.0), 1)


def _from_steps(
    resampled: Sequence[Floats], means: tuple[float, float], error: float, tail: float
) -> tuple[float, float]:
    """Interval of the difference of the means from the steps alone, ns.

    Args:
        resampled: replicates of the mean before and after, ns: they give the shape.
        means: the means themselves, ns.
        error: standard error of the logarithm of their ratio: it gives the width.
        tail: probability beyond either end.
    """
    apart = np.log(resampled[1] / resampled[0])
    shift = math.log(means[1] / means[0])
    spread = float(apart.std())
    ends = np.quantile(apart - apart.mean(), [tail, 1 - tail])
    if spread > _NO_SHAPE:
        ends *= error / spread
    else:  # blocks as long as the run draw one mean only
        ends = np.array([-1.0, 1.0]) * NormalDist().inv_cdf(1 - tail) * error
    # around the middle of both, so that neither side is taken for certain
    middle = math.sqrt(means[0] * means[1])
    low, high = (2 * middle * math.sinh((shift + float(end)) / 2) for end in ends)
    return low, high


def assumed_noise(waiting_share: float) -> float:
    """How far two single runs of the same code may lie apart, in 95 of 100 pairs, as a logarithm.

    Args:
        waiting_share: part of the slower run's step in which the device waits for the host, copies
            or communication.
    """
    host = -math.log1p(-min(max(waiting_share, 0.0), HOST_NOISE))
    return math.hypot(RUN_NOISE, host)
