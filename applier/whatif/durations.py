"""Durations that a stream does not say: drawn, so that workers do not march in step.

If all transactions take as long as each other, all workers end at the same moments and each group
commit has one transaction of each: a speed-up that no replica reaches. So a duration varies around
what its rows cost: by a log-normal distribution, which is never below 0 and has a long tail, as
measured durations of statements have. It is a function of the transaction's position alone: every
scheme, every window and every process sees the same stream.

Source: S. Vigna, "splitmix64" (the mixing of positions).
"""

from collections.abc import Sequence
from functools import cache
from math import exp, fsum, log, sqrt
from statistics import NormalDist, fmean

SPREAD_PERCENT = 50
"""Standard deviation of drawn durations in percent of their mean, where the stream says none."""
QUANTILE_BITS = 10
_MASK = (1 << 64) - 1


def drawn_us(mean_us: int, position: int, spread_percent: int) -> int:
    """Returns the duration of the transaction at a position, in microseconds.

    >>> [drawn_us(120, position, 50) for position in range(6)]
    [188, 99, 43, 263, 60, 87]
    >>> drawn_us(120, 3, 0)
    120
    """
    return round(mean_us * _quantiles(spread_percent)[_mixed(position)])


def spread_percent_of(durations_us: Sequence[int]) -> int:
    """Returns the standard deviation of durations in percent of their mean; 0 if there is none.

    >>> spread_percent_of([100, 140])
    17
    """
    mean = fmean(durations_us) if durations_us else 0
    if not mean:
        return 0
    variance = fmean(duration * duration for duration in durations_us) - mean * mean
    return round(100 * sqrt(max(0, variance)) / mean)


@cache
def _quantiles(spread_percent: int) -> tuple[float, ...]:
    """Returns equally probable factors, ascending, whose mean is 1."""
    count = 1 << QUANTILE_BITS
    sigma = sqrt(log(1 + (spread_percent / 100) ** 2))
    quantile = NormalDist().inv_cdf
    factors = [exp(sigma * quantile((number + 0.5) / count)) for number in range(count)]
    mean = fsum(factors) / count
    return tuple(factor / mean for factor in factors)


def _mixed(position: int) -> int:
    """Returns which quantile a position has: neighbours have nothing in common."""
    mixed = (position + 1) * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return (mixed ^ mixed >> 31) >> 64 - QUANTILE_BITS
