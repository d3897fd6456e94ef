"""Hybrid clusters: short requests to an efficient system, the rest to a fast one, and the threshold where that pays most.

    cost(q, s) = lambda * E(q, s) + (1 - lambda) * R(q, s)        (Wilkins et al., arXiv 2407.00010)

A policy with threshold T sends a request to the first system if its tokens - prompt, output or both together - are at most T. Requests
sorted by their tokens and summed up give the cost of every threshold at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np

from pie_p.errors import InputError
from pie_p.physics import Floats
from pie_p.placement_problem import Whole
from pie_p.quantities import as_float, as_int, shown
from pie_p.systems import System, check_systems
from pie_p.traces import RequestTrace

By = Literal["prompt", "output", "total", "both"]
BYS: Final[tuple[By, ...]] = get_args(By)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a way to serve the trace costs."""

    name: str
    cost: float  # lambda * J + (1 - lambda) * s, summed over requests [J and s]
    energy_j: float
    time_s: float  # in service, summed over requests [s]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"name": self.name, "cost": self.cost, "energy_j": self.energy_j, "time_s": self.time_s}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ThresholdCurve:
    """Every threshold of a policy with its cost, against serving that is unaware of the workload.

    Arrays have one place per threshold: the distinct token counts of the trace and, first, 0, where all go to the fast system. With
    `by="both"` a request is short if its prompt is at most `threshold` and its output at most `output_threshold`.
    """

    systems: tuple[System, System]  # the efficient one, the fast one
    by: By
    weight: float  # lambda [-]
    threshold: Whole  # tokens at most, for the efficient system [-]
    output_threshold: Whole | None
    efficient_requests: Whole  # requests that the efficient system serves [-]
    cost: Floats
    energy_j: Floats
    time_s: Floats
    baselines: tuple[Totals, ...]  # all on one, round robin, random in expectation
    requests: int

    def __len__(self) -> int:
        return len(self.threshold)

    def __repr__(self) -> str:
        return f"<ThresholdCurve by {self.by}: {len(self)} thresholds, best {self.best.name}>"

    @property
    def best_place(self) -> int:
        """Place of the threshold of least cost; of equal ones the lowest."""
        return int(self.cost.argmin())

    @property
    def best(self) -> Totals:
        """The threshold of least cost."""
        return self.at(self.best_place)

    def at(self, place: int) -> Totals:
        """Figures of one threshold, by its place."""
        also = "" if self.output_threshold is None else f" and output <= {self.output_threshold[place]}"
        what = "prompt" if self.by == "both" else self.by
        return Totals(
            name=f"{what} <= {self.threshold[place]}{also} tokens on {self.systems[0].name}",
            cost=float(self.cost[place]),
            energy_j=float(self.energy_j[place]),
            time_s=float(self.time_s[place]),
        )

    def saving(self, figure: Literal["cost", "energy_j", "time_s"] = "cost") -> dict[str, float]:
        """Share of each baseline's cost, energy or time that the best threshold saves; below 0 where it takes more."""
        if figure not in ("cost", "energy_j", "time_s"):
            raise InputError(f"figure = {shown(figure)} is not known; allowed: cost, energy_j, time_s")
        least = getattr(self.best, figure)
        return {each.name: 1.0 - least / getattr(each, figure) for each in self.baselines}

    def to_dict(self, *, curve: bool = True) -> dict[str, Any]:
        """Plain data; without the curve only its best threshold."""
        names = ("threshold", "output_threshold", "efficient_requests", "cost", "energy_j", "time_s")
        arrays = {name: getattr(self, name) for name in names} if curve else {}
        return {
            "systems": [each.name for each in self.systems],
            "by": self.by,
            "lambda": self.weight,
            "requests": self.requests,
            "best": self.best.to_dict() | {"place": self.best_place},
            "baselines": [each.to_dict() for each in self.baselines],
            "saving": {figure: self.saving(figure) for figure in ("cost", "energy_j", "time_s")},
        } | {name: None if values is None else values.tolist() for name, values in arrays.items()}


def thresholds(trace: RequestTrace, efficient: System, fast: System, *, by: By = "total", weight: float = 1.0) -> ThresholdCurve:
    """The whole curve of one threshold: requests with at most so many tokens on the efficient system, the others on the fast one.

    Args:
        trace: requests; arrivals do not matter here.
        efficient: the system for short requests.
        fast: the system for long ones.
        by: which tokens are compared: "prompt", "output" or their "total"; "both" has two thresholds: see `threshold_pairs`.
        weight: lambda: 1 counts joules alone, 0 seconds alone [-].

    Raises:
        InputError: an empty trace, a weight outside 0 to 1, or an unknown `by`.
    """
    if not isinstance(by, str) or by not in BYS[:3]:
        raise InputError(f"by = {shown(by)} is not known; allowed: {', '.join(BYS[:3])}; for both at once: threshold_pairs")
    here, there, lam = _figures(trace, efficient, fast, weight)
    tokens = {"prompt": trace.prompt_tokens, "output": trace.output_tokens}.get(by, trace.prompt_tokens + trace.output_tokens)
    order = np.argsort(tokens, kind="stable")
    values, first = np.unique(tokens[order], return_index=True)
    ends = np.append(first, len(order))  # requests with less than the next value
    sums = [np.concatenate([[0.0], np.cumsum(one[order])])[ends] for one in (*here, *there)]
    energy_j, time_s = (sums[place] + (sums[place + 2][-1] - sums[place + 2]) for place in (0, 1))
    return ThresholdCurve(
        systems=(efficient, fast),
        by=by,
        weight=lam,
        threshold=np.concatenate([[0], values]).astype(np.int64),
        output_threshold=None,
        efficient_requests=ends.astype(np.int64),
        cost=lam * energy_j + (1.0 - lam) * time_s,
        energy_j=energy_j,
        time_s=time_s,
        baselines=_baselines((efficient, fast), here, there, lam),
        requests=len(trace),
    )


def threshold_pairs(trace: RequestTrace, efficient: System, fast: System, *, weight: float = 1.0, most: int = 1000) -> ThresholdCurve:
    """Every pair of thresholds: prompt at most one and output at most the other go to the efficient system.

    Args:
        trace: requests.
        efficient: the system for requests that are short in both.
        fast: the system for all others.
        weight: lambda: 1 counts joules alone, 0 seconds alone [-].
        most: thresholds of each kind; where the trace has more distinct counts, so many of them, evenly by rank [-].

    Raises:
        InputError: as `thresholds` does.
    """
    here, there, lam = _figures(trace, efficient, fast, weight)
    prompts, outputs = (_levels(tokens, as_int("most", most, most=5000)) for tokens in (trace.prompt_tokens, trace.output_tokens))
    place = np.searchsorted(prompts, trace.prompt_tokens), np.searchsorted(outputs, trace.output_tokens)

    def summed(values: Floats) -> Floats:
        """Sums over requests that are at most each pair of levels."""
        table = np.zeros((len(prompts), len(outputs)))
        np.add.at(table, place, values)
        return table.cumsum(axis=0).cumsum(axis=1)

    energy_j, time_s = (other.sum() + summed(own - other) for own, other in zip(here, there, strict=True))
    pairs = np.meshgrid(prompts, outputs, indexing="ij")
    return ThresholdCurve(
        systems=(efficient, fast),
        by="both",
        weight=lam,
        threshold=pairs[0].ravel(),
        output_threshold=pairs[1].ravel(),
        efficient_requests=np.rint(summed(np.ones(len(trace)))).astype(np.int64).ravel(),
        cost=(lam * energy_j + (1.0 - lam) * time_s).ravel(),
        energy_j=energy_j.ravel(),
        time_s=time_s.ravel(),
        baselines=_baselines((efficient, fast), here, there, lam),
        requests=len(trace),
    )


def _levels(tokens: Whole, most: int) -> Whole:
    """0 and the distinct counts, or `most` of them evenly by rank, the largest among them."""
    values = np.unique(tokens)
    if len(values) > most:
        values = values[np.unique(np.linspace(0, len(values) - 1, most).round().astype(np.int64))]
    return np.concatenate([[0], values])


def _figures(trace: RequestTrace, efficient: System, fast: System, weight: float) -> tuple[Sequence[Floats], Sequence[Floats], float]:
    """Joules and seconds of every request on the one and on the other, and lambda."""
    check_systems([efficient, fast])
    if not len(trace):
        raise InputError("the trace has no requests; a threshold needs at least one")
    here, there = ([fit(trace.prompt_tokens, trace.output_tokens) for fit in (each.energy_j, each.time_s)] for each in (efficient, fast))
    return here, there, as_float("weight", weight, most=1.0)


def _baselines(systems: tuple[System, System], here: Sequence[Floats], there: Sequence[Floats], lam: float) -> tuple[Totals, ...]:
    """All on one, on the other, in turn, and at random (its expectation: half of the sum of both)."""
    turn = np.arange(len(here[0])) % 2 == 0
    ways = {
        f"all on {systems[0].name}": [float(one.sum()) for one in here],
        f"all on {systems[1].name}": [float(one.sum()) for one in there],
        "round robin": [float(np.where(turn, one, other).sum()) for one, other in zip(here, there, strict=True)],
        "random": [float(one.sum() + other.sum()) / 2.0 for one, other in zip(here, there, strict=True)],
    }
    return tuple(
        Totals(name=name, cost=lam * joules + (1.0 - lam) * seconds, energy_j=joules, time_s=seconds)
        for name, (joules, seconds) in ways.items()
    )
