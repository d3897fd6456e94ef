"""Candidates: deployments that could serve a request, with the figures people choose by; the Pareto front, and the best within limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Final, Literal, NamedTuple

from pie_p.errors import InputError, did_you_mean
from pie_p.quantities import as_float, shown
from pie_p.serving import Case

Why = Literal["plan", "memory", "kv_cache", "power_limit"]


class Figure(NamedTuple):
    """A figure that plans are compared by."""

    unit: str
    words: str
    more_is_better: bool = False
    exact: bool = False  # counted, not predicted: no margin is kept from its limit


FIGURES: Final[Mapping[str, Figure]] = {
    "energy_per_output_token_j": Figure("J", "energy per output token"),
    "energy_j": Figure("J", "energy per request"),
    "latency_s": Figure("s", "latency"),
    "ttft_s": Figure("s", "time to first token"),
    "tpot_s": Figure("s", "time per output token after the first"),
    "itl_s": Figure("s", "decode step"),
    "time_per_token_s": Figure("s", "time per token"),
    "tokens_per_s": Figure("tokens/s", "output tokens per second", more_is_better=True),
    "tokens_per_s_per_gpu": Figure("tokens/s", "output tokens per second and GPU", more_is_better=True),
    "requests_per_s": Figure("requests/s", "requests per second", more_is_better=True),
    "avg_power_w": Figure("W", "power of all GPUs"),
    "memory_bytes_per_gpu": Figure("B", "memory in use on the fullest GPU"),
    "gpus": Figure("", "GPUs", exact=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One feasible plan with its figures. Units are in the names; figures per output token are None for a prefill-only request."""

    gpu: str
    cluster: str
    tp: int
    pp: int
    dp: int
    ep: int
    gpus: int
    batch: float  # requests in flight per data-parallel rank [-]
    dtype: str
    kv_dtype: str
    engine: str
    power_limit_w: float  # per board, in force [W]
    energy_j: float  # per request, in the sweep's scope [J]
    interval_low_j: float | None  # 90 % interval of `energy_j`; None where the predictor has none [J]
    interval_high_j: float | None
    energy_per_output_token_j: float | None
    latency_s: float
    ttft_s: float
    tpot_s: float | None
    itl_s: float | None
    time_per_token_s: float | None
    tokens_per_s: float | None  # output tokens of the whole deployment [1/s]
    tokens_per_s_per_gpu: float | None
    requests_per_s: float  # of the whole deployment [1/s]
    avg_power_w: float  # of all GPUs [W]
    memory_bytes_per_gpu: float  # weights and KV cache stored on the fullest GPU [B]
    memory_share: float  # of that GPU's memory [-]
    mode: str
    warnings: tuple[str, ...]
    case: Case = field(repr=False, compare=False)  # for `Sweep.predict`

    @property
    def plan(self) -> str:
        """In words: "4 x h100-sxm-80gb, TP4, batch 16, bf16"."""
        limit_w = self.case.power_limit_w
        cap = f", {limit_w:g} W" if limit_w is not None else ""
        return f"{self.gpus} x {self.gpu}, {self.case.deployment.plan}, batch {self.batch:g}, {self.dtype}{cap}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data by name."""
        return {name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in COLUMNS}


COLUMNS: Final = tuple(each.name for each in fields(Candidate) if each.name != "case")


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """A plan that cannot run, and why."""

    gpu: str
    tp: int
    pp: int
    dp: int
    ep: int
    batch: float | None  # None: every batch of the sweep [-]
    dtype: str
    engine: str
    power_limit_w: float | None  # None: at every limit of the sweep [W]
    why: Why
    reason: str
    configurations: int = 1  # of the sweep that it stands for [-]

    def to_dict(self) -> dict[str, Any]:
        """Plain data by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def figure_of(name: object) -> Figure:
    """A figure by name.

    Raises:
        InputError: no such figure; the text names those there are.
    """
    if not isinstance(name, str) or name not in FIGURES:
        near = did_you_mean(name, FIGURES) if isinstance(name, str) else ""
        raise InputError(f"{shown(name)} is no figure to choose by.{near} Known: {', '.join(FIGURES)}")
    return FIGURES[name]


def pareto_front(candidates: Sequence[Candidate], x: str, y: str) -> list[Candidate]:
    """Candidates that no other beats: none is at least as good in both figures and better in one. In order of `x`, the best first.

    Raises:
        InputError: an unknown figure, or one that these requests do not have.
    """
    points = sorted(zip(_costs(candidates, x), _costs(candidates, y), range(len(candidates)), strict=True))
    front: list[Candidate] = []
    best, kept = inf, (inf, inf)
    for cost_x, cost_y, place in points:
        if cost_y < best or (cost_x, cost_y) == kept:
            best, kept = cost_y, (cost_x, cost_y)
            front.append(candidates[place])
    return front


def _costs(candidates: Sequence[Candidate], name: str) -> list[float]:
    """The figure of each, turned so that less is better."""
    sign = -1.0 if figure_of(name).more_is_better else 1.0
    values = [getattr(candidate, name) for candidate in candidates]
    if None in values:
        raise InputError(f"{name} does not exist here: a prefill-only request has no output tokens; choose by energy_j or latency_s")
    return [sign * value for value in values]


class Limit(NamedTuple):
    """A bound that a choice must keep."""

    name: str  # figure
    bound: float

    def broken_by(self, candidate: Candidate, *, margin: float = 0.0) -> float:
        """By how much a candidate misses the bound, as a share of it: 0 or less when it is kept [-]."""
        value, known = getattr(candidate, self.name), FIGURES[self.name]
        if value is None:
            return inf
        clear = 1.0 + (0.0 if known.exact else margin)
        if known.more_is_better:
            return inf if value <= 0.0 else self.bound * clear / value - 1.0
        return float(value) * clear / self.bound - 1.0

    def __str__(self) -> str:
        known = FIGURES[self.name]
        return f"{self.name} {'>=' if known.more_is_better else '<='} {self.bound:g}{f' {known.unit}' if known.unit else ''}"


def limits_of(bounds: Mapping[str, object]) -> tuple[Limit, ...]:
    """Limits out of `max_tpot_s=0.05`, `min_tokens_per_s=100`; None means no limit.

    Raises:
        InputError: a bound that is no number above 0.
    """
    given = {name: as_float(name, value, above=True) for name, value in bounds.items() if value is not None}
    return tuple(Limit(name[4:], bound) for name, bound in given.items())


def best_of(candidates: Sequence[Candidate], objective: str, limits: Sequence[Limit], *, margin: float) -> Candidate:
    """The best candidate within the limits; of equal ones that with the fewest GPUs, then the shortest latency.

    Raises:
        InputError: none keeps the limits; the text names the nearest miss.
    """
    costs = _costs(candidates, objective)
    misses = [max((limit.broken_by(each, margin=margin) for limit in limits), default=0.0) for each in candidates]
    within = [place for place, miss in enumerate(misses) if miss <= 0.0]
    if not within:
        raise InputError(_nearest_miss(candidates, misses, limits, margin))
    place = min(within, key=lambda place: (costs[place], candidates[place].gpus, candidates[place].latency_s))
    return candidates[place]


def _nearest_miss(candidates: Sequence[Candidate], misses: Sequence[float], limits: Sequence[Limit], margin: float) -> str:
    wanted = " and ".join(str(limit) for limit in limits) + (f" with a margin of {margin:.0%}" if margin else "")
    place = min(range(len(misses)), key=misses.__getitem__)
    nearest = candidates[place]
    worst = max(limits, key=lambda limit: limit.broken_by(nearest, margin=margin))
    value, unit = getattr(nearest, worst.name), FIGURES[worst.name].unit
    if value is None:
        return f"none of {len(candidates)} feasible plans keeps {wanted}: a request with this many output tokens has no {worst.name}"
    missed = f"{worst.name} = {value:.3g} {unit}".rstrip()
    return (
        f"none of {len(candidates)} feasible plans keeps {wanted}; the nearest, {nearest.plan}, has {missed}; "
        "loosen a limit, or sweep more GPUs, degrees or batches"
    )
