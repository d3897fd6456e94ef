"""How long a rank waits at a meeting: a distribution, from order statistics of the ranks' lateness.

Each of g ranks comes late by its own X, and the meeting starts when the last is there, so a rank waits `W = max of all X - its own`, which
is nothing for the last one. With F the law of X and Q its quantiles

    P(W <= w) = integral over u in 0..1 of F(Q(u) + w)^(g - 1)

X is `(exp(skew z) - 1) / skew` with a standard normal z: log-normal kernel jitter, whose limit for `skew = 0` is the normal. Only the shape
is made here, in units of the mean wait: the mean itself is `jitter x expected_lag(g) x work`, as energies use it, so that the quantiles
always belong to the joules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np

from pie_p.physics import Floats

MOST_SKEW: Final = 2.5  # a p99 of twelve times the mean and more
LEVELS: Final = (0.5, 0.9, 0.99)  # quantiles that profiles store
_REACH: Final = 8.0  # of the normal on both sides, in spreads
_STEPS: Final = 600
_HALVINGS: Final = 40
_GOLDEN: Final = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitTimes:
    """How long one rank waits at a meeting, as a distribution over meetings and ranks [s]; its fields are those of a `waits` table."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    spread_s: float  # standard deviation
    group_size: int
    skew: float  # of the lateness behind it [-]

    def quantile_s(self, level: float) -> float:
        """The wait that a share `level` of all waits stays below [s].

        >>> waits_of(1e-3, group_size=2).quantile_s(0.5)  # one of two ranks never waits
        0.0
        """
        return self.mean_s * wait_quantile(level, group_size=self.group_size, skew=self.skew) if self.mean_s else 0.0


def waits_of(mean_s: float, *, group_size: int, skew: float = 0.0) -> WaitTimes:
    """The distribution with this mean [s].

    Args:
        mean_s: mean wait of a rank.
        group_size: ranks that meet [-]; one rank waits for nobody.
        skew: of their lateness, 0 for a normal one [-].
    """
    if group_size == 1:
        mean_s = 0.0
    p50, p90, p99 = (mean_s and mean_s * wait_quantile(level, group_size=group_size, skew=skew) for level in LEVELS)
    spread_s = mean_s and mean_s * wait_spread(group_size=group_size, skew=skew)
    return WaitTimes(mean_s=mean_s, p50_s=p50, p90_s=p90, p99_s=p99, spread_s=spread_s, group_size=group_size, skew=skew)


@lru_cache(maxsize=4096)
def wait_quantile(level: float, *, group_size: int, skew: float = 0.0) -> float:
    """Quantile of the wait over its mean [-].

    Two ranks of normal lateness: `W = max(0, difference)`, so the quantile is `sqrt(2) z(level) / (1 / sqrt(pi))`.

    >>> round(wait_quantile(0.9, group_size=2), 3)  # sqrt(2 pi) * 1.28155
    3.212
    """
    if level <= 1.0 / group_size:
        return 0.0
    late, density, _ = _grid(skew)
    low, high = 0.0, float(late[-1] - late[0])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = float(density @ _share_below(late + middle, skew) ** (group_size - 1))
        low, high = (middle, high) if below < level else (low, middle)
    return high / _mean(group_size, skew)


@lru_cache(maxsize=1024)
def wait_spread(*, group_size: int, skew: float = 0.0) -> float:
    """Standard deviation of the wait over its mean [-].

    >>> round(wait_spread(group_size=2), 4)  # sqrt(pi - 1)
    1.4634
    """
    late, density, share = _grid(skew)
    last = density * (group_size - 1) * share ** (group_size - 2)  # of the largest of the others
    waits = np.maximum(late[None, :] - late[:, None], 0.0)
    square = float(density @ waits**2 @ last)
    mean = _mean(group_size, skew)
    return math.sqrt(max(square - mean**2, 0.0)) / mean


def fitted_skew(quantiles: Sequence[tuple[float, int, float]], weights: Sequence[float]) -> float:
    """The skew whose quantiles are nearest to measured ones, by the weighted mean of absolute logarithms [-].

    Args:
        quantiles: level, group size and quantile over mean wait, of each measured figure.
        weights: of each.
    """
    figures = [(level, size, ratio, weight) for (level, size, ratio), weight in zip(quantiles, weights, strict=True) if ratio > 0]
    figures = [each for each in figures if each[0] > 1.0 / each[1]]

    def cost(skew: float) -> float:
        return sum(
            weight * abs(math.log(ratio / wait_quantile(level, group_size=size, skew=skew))) for level, size, ratio, weight in figures
        )

    if not figures:
        return 0.0
    start = min(np.linspace(0.0, MOST_SKEW, 11).tolist(), key=cost)
    return _least(cost, max(0.0, start - 0.25), min(MOST_SKEW, start + 0.25))


def _least(cost: Callable[[float], float], low: float, high: float) -> float:
    """Where a cost with one valley is least, by golden section."""
    while high - low > 1e-3:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if cost(left) <= cost(right) else (left, high)
    return (low + high) / 2


def _mean(group_size: int, skew: float) -> float:
    """Mean wait, in the unit of lateness."""
    late, density, share = _grid(skew)
    return float(density @ (late * (group_size * share ** (group_size - 1) - 1.0)))


@lru_cache(maxsize=256)
def _grid(skew: float) -> tuple[Floats, Floats, Floats]:
    """Lateness at evenly spaced z, the weight of each, and the share of lateness below it."""
    z: Floats = (np.arange(_STEPS, dtype=np.float64) + 0.5) * (2 * _REACH / _STEPS) - _REACH
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (2 * _REACH / _STEPS)
    late = np.asarray(np.expm1(skew * z) / skew if skew > 1e-6 else z, dtype=np.float64)
    return late, density, _normal_share(z)


def _share_below(late: Floats, skew: float) -> Floats:
    """F: the share of ranks that come no later than this [-]."""
    return _normal_share(np.log1p(skew * late) / skew if skew > 1e-6 else late)


@lru_cache(maxsize=1)
def _normal_table() -> tuple[Floats, Floats]:
    z = np.linspace(-_REACH, _REACH, 4001)
    return z, np.array([NormalDist().cdf(float(one)) for one in z])


def _normal_share(z: Floats) -> Floats:
    return np.interp(z, *_normal_table())
