"""Arrivals and lengths drawn from stated distributions, with a seed: what a synthetic trace is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pie_p.errors import InputError
from pie_p.quantities import as_float, as_int, shown

Arrivals = Literal["regular", "poisson", "gamma", "bursty"]
ARRIVALS: Final[tuple[Arrivals, ...]] = get_args(Arrivals)
MOST_TOKENS: Final = 1_000_000  # of a drawn length; a lognormal has no end of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """Lengths whose logarithm is normal, rounded to whole tokens within bounds.

    >>> int(Lognormal(mean=300, variation=1.0, most=4096).draw(np.random.default_rng(0), 100_000).mean().round(-1))
    300
    """

    mean: float  # before rounding and bounds [tokens]
    variation: float = 1.0  # standard deviation over mean [-]
    least: int = 1  # [tokens]
    most: int = MOST_TOKENS  # [tokens]

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "mean", as_float("mean", self.mean, least=1.0, most=MOST_TOKENS))
        set_field(self, "variation", as_float("variation", self.variation, most=100.0))
        set_field(self, "least", as_int("least", self.least, most=MOST_TOKENS))
        set_field(self, "most", as_int("most", self.most, least=self.least, most=MOST_TOKENS))

    def draw(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Lengths [tokens]."""
        spread = sqrt(log(1.0 + self.variation**2))
        lengths = generator.lognormal(log(self.mean) - spread**2 / 2, spread, count)
        return np.clip(np.rint(lengths), self.least, self.most).astype(np.int64)


Lengths = Any  # a number (all alike), a list of observed lengths (drawn with replacement) or a `Lognormal`


def draw_lengths(name: str, lengths: Lengths, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Lengths of `count` requests [tokens].

    Raises:
        InputError: neither a number nor lengths nor a `Lognormal`.
    """
    if isinstance(lengths, Lognormal):
        return lengths.draw(generator, count)
    if isinstance(lengths, (list, tuple)) or getattr(lengths, "ndim", 0) == 1:
        observed = np.array([as_int(name, one, most=MOST_TOKENS) for one in lengths], dtype=np.int64)
        if not len(observed):
            raise InputError(f"{name} = [] has no lengths to draw from; give at least one")
        return generator.choice(observed, count)
    if isinstance(lengths, (str, bytes, Mapping)):
        raise InputError(f"{name} = {shown(lengths)} is no length; give a number, a list of lengths or Lognormal(mean=..., variation=...)")
    return np.full(count, as_int(name, lengths, most=MOST_TOKENS), dtype=np.int64)


def draw_arrivals(
    kind: Arrivals, generator: np.random.Generator, count: int, *, rate_per_s: float, variation: float, burst: Burst
) -> NDArray[np.float64]:
    """Arrival times from 0 on [s].

    Args:
        kind: "regular" (equal gaps), "poisson", "gamma" (gaps of a stated variation) or "bursty" (`Burst`).
        generator: source of chance.
        count: requests [-].
        rate_per_s: mean requests per second.
        variation: standard deviation over mean of the gaps, for "gamma" [-].
        burst: for "bursty".
    """
    if kind == "regular":
        gaps = np.ones(count)
    elif kind == "gamma":
        gaps = generator.gamma(variation**-2, variation**2, count)
    else:
        gaps = generator.exponential(1.0, count)
    worked = np.cumsum(gaps)
    return burst.stretched(worked, generator, rate_per_s) if kind == "bursty" else worked / rate_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Two states that follow each other, each for an exponential time: a Markov-modulated Poisson process.

    In a burst requests come `factor` times as often as on average; between bursts so rarely that the mean rate holds.
    """

    factor: float = 4.0  # rate in a burst over the mean rate [-]
    share: float = 0.1  # of time spent in bursts [-]
    mean_s: float = 30.0  # mean length of a burst [s]

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "factor", as_float("factor of a burst", self.factor, least=1.0, most=1e6))
        set_field(self, "share", as_float("share of bursts", self.share, above=True, most=0.999))
        set_field(self, "mean_s", as_float("mean_s of a burst", self.mean_s, above=True, most=1e9))
        if self.factor * self.share > 1.0:
            raise InputError(
                f"bursts of {self.factor:g} times the mean rate in {self.share:g} of the time hold more than all requests; "
                "factor * share must be at most 1"
            )

    def stretched(self, worked: NDArray[np.float64], generator: np.random.Generator, rate_per_s: float) -> NDArray[np.float64]:
        """Arrivals of a process of unit rate, set at the times when the varying rate has run up as much [s]."""
        calm_s = self.mean_s * (1.0 - self.share) / self.share
        rates = rate_per_s * np.array([(1.0 - self.factor * self.share) / (1.0 - self.share), self.factor])
        times, risen = [0.0], [0.0]
        state = int(generator.random() < self.share)
        while risen[-1] < worked[-1]:
            stays_s = float(generator.exponential(self.mean_s if state else calm_s))
            times.append(times[-1] + stays_s)
            risen.append(risen[-1] + stays_s * float(rates[state]))
            state = 1 - state
        return np.asarray(np.interp(worked, risen, times), dtype=np.float64)
