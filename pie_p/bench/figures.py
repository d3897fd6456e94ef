"""Words to watts: five totals, and the six figures that follow from them (Samsi et al. 2023, arXiv 2310.03003).

Words and tokens are those that the LLM wrote. A word is what stands between white space.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from pie_p.quantities import as_float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a run adds up to. Only whole responses are in it.

    Raises:
        InputError: a number that cannot be.

    >>> run = Totals(words=600, tokens=800, responses=4, seconds=10.0, joules=2000.0)
    >>> run.words_per_s, run.tokens_per_s, run.responses_per_s, run.power_w, run.energy_per_output_token_j, run.energy_per_response_j
    (60.0, 80.0, 0.4, 200.0, 2.5, 500.0)
    """

    words: int  # written [-]
    tokens: int  # written [-]
    responses: int  # whole ones [-]
    seconds: float  # while requests ran [s]
    joules: float | None  # in those seconds; None where they are not known [J]

    def __post_init__(self) -> None:
        for name in ("words", "tokens", "responses", "seconds"):
            as_float(name, getattr(self, name))
        if self.joules is not None:
            as_float("joules", self.joules)

    @property
    def words_per_s(self) -> float | None:
        """Words over seconds; None for a run without time [1/s]."""
        return _ratio(self.words, self.seconds)

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens over seconds [1/s]."""
        return _ratio(self.tokens, self.seconds)

    @property
    def responses_per_s(self) -> float | None:
        """Whole responses over seconds [1/s]."""
        return _ratio(self.responses, self.seconds)

    @property
    def power_w(self) -> float | None:
        """Joules over seconds [W]."""
        return _ratio(self.joules, self.seconds)

    @property
    def energy_per_output_token_j(self) -> float | None:
        """Joules over output tokens, prefill included [J]."""
        return _ratio(self.joules, self.tokens)

    @property
    def energy_per_response_j(self) -> float | None:
        """Joules over whole responses [J]."""
        return _ratio(self.joules, self.responses)

    def to_dict(self) -> dict[str, float | None]:
        """The five totals and the six figures."""
        return {**asdict(self), **{name: getattr(self, name) for name in SIX}}


SIX = ("words_per_s", "tokens_per_s", "responses_per_s", "power_w", "energy_per_output_token_j", "energy_per_response_j")


def _ratio(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """A distribution of times, by its mean and three quantiles (linear between two values).

    >>> Quantiles.of([0.1, 0.2, 0.3])
    Quantiles(count=3, mean_s=0.2, p50_s=0.2, p90_s=0.28, p99_s=0.298)
    """

    count: int  # values behind it [-]
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float

    @classmethod
    def of(cls, values_s: Iterable[float]) -> Quantiles | None:
        """Of some values, NaN left out; None where there is none."""
        known = np.array([value for value in values_s if not np.isnan(value)], dtype=np.float64)
        if not len(known):
            return None
        p50_s, p90_s, p99_s = (round(float(value), 12) for value in np.quantile(known, (0.5, 0.9, 0.99)))
        return cls(count=len(known), mean_s=round(float(known.mean()), 12), p50_s=p50_s, p90_s=p90_s, p99_s=p99_s)

    def to_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)
