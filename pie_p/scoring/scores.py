"""Scores: how far predictions are from measurements, in relative errors."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.errors import InputError
from pie_p.physics import Floats

NEAR: Final = 0.10  # error that is as good as a repeat of the measurement
FAR: Final = 0.25  # error beyond which most choices go wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Relative errors `predicted / measured - 1` of a set of rows, summed up. All are shares."""

    n: int  # rows [-]
    mape: float  # mean absolute error
    median: float  # median absolute error
    p90: float  # 90th percentile of the absolute error
    bias: float  # mean signed error; above 0: predicted too much
    within_10: float  # share of rows within 10 %
    within_25: float  # share of rows within 25 %

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def score(predicted: Floats, measured: Floats, which: NDArray[np.bool_] | None = None) -> Score:
    """Score of the rows that have both figures.

    Args:
        predicted: one value per row, in the unit of `measured`; NaN where there is no answer.
        measured: the same rows; NaN where nothing was measured.
        which: rows that count; default all.

    Raises:
        InputError: no row is left to score.

    >>> one = score(np.array([110.0, 90.0, 100.0]), np.array([100.0, 100.0, 100.0]))
    >>> round(one.mape, 4), round(one.median, 4), round(one.bias, 4)
    (0.0667, 0.1, 0.0)
    """
    kept = np.isfinite(predicted) & np.isfinite(measured)
    if which is not None:
        kept &= which
    if not kept.any():
        raise InputError(f"none of {len(measured)} rows has both a prediction and a measurement; nothing can be scored")
    error = predicted[kept] / measured[kept] - 1.0
    size = np.abs(error)
    return Score(
        n=int(kept.sum()),
        mape=float(size.mean()),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        bias=float(error.mean()),
        within_10=float((size <= NEAR).mean()),
        within_25=float((size <= FAR).mean()),
    )


def mean_score(scores: list[Score]) -> Score:
    """Mean of scores of repeated draws, figure by figure; `n` is the mean number of rows, rounded down."""
    if not scores:
        raise InputError("no score to take the mean of")
    means = {name: math.fsum(getattr(each, name) for each in scores) / len(scores) for name in Score.__dataclass_fields__}
    return Score(**{**means, "n": int(means["n"])})  # type: ignore[arg-type]  # n is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A score and what it is the score of."""

    split: str  # "unseen LLM", ...
    method: str  # "fitted physics", a baseline, an ablation
    target: str  # T | P | E | P given T | E given T | ITL
    part: str  # which rows: "all", "without odd groups", a dtype, a number of GPUs, ...
    score: Score

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the score's own among them."""
        labels = {"split": self.split, "method": self.method, "target": self.target, "part": self.part}
        return labels | self.score.to_dict()
