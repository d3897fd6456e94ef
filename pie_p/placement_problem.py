"""Placement problem: which request may go to which system, at what cost, within which limits; equal requests stand together.

    cost(q, s) = zeta * e(q, s) / max e - (1 - zeta) * a(q, s) / max a          (Wilkins et al., arXiv 2407.04014)

Requests with equal prompt and output tokens cost the same everywhere, so only how many of them go where has to be decided: whole
numbers in place of one choice per request, and nothing is lost by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_p.errors import InputError, did_you_mean
from pie_p.physics import Floats
from pie_p.quantities import as_float, shown
from pie_p.systems import System, check_systems
from pie_p.traces import RequestTrace

Whole = NDArray[np.int64]
SLACK: Final = 1e-9  # relative: what rounding may add to a sum
SLACK_S: Final = 1e-6  # what the solver's tolerance may add to a sum of seconds [s]


class Limit(NamedTuple):
    """At least and at most so many requests over some systems."""

    kind: str  # "coverage", "least_share", "most_share"
    words: str
    systems: NDArray[np.bool_]
    least: int
    most: int


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacementProblem:
    """Requests, systems and limits, checked and put into arrays.

    Shapes: types are the distinct pairs of token counts; `(types, systems)` for what depends on both.
    """

    trace: RequestTrace
    systems: tuple[System, ...]
    zeta: float
    prompt_tokens: Floats  # (types,)
    output_tokens: Floats  # (types,)
    counts: Whole  # requests of each type
    type_of: Whole  # type of each request, in order of arrival
    energy_j: Floats  # (types, systems), of one request [J]
    time_s: Floats  # (types, systems), of one request [s]
    accuracy: Floats  # (types, systems), what one request adds; NaN where not known
    max_latency_s: float | None
    within_s: float | None
    limits: tuple[Limit, ...]

    def __len__(self) -> int:
        return len(self.type_of)

    @cached_property
    def cost(self) -> Floats:
        """What is made least, per request: energy against accuracy, each over its largest value [-]."""
        cost = self.zeta * self.energy_j / self.energy_j.max()
        if self.zeta < 1.0:
            cost = cost - (1.0 - self.zeta) * self.accuracy / self.accuracy.max()
        return np.asarray(cost)

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """Which type may go to which system: within the latency limit."""
        limit_s = np.inf if self.max_latency_s is None else self.max_latency_s
        return np.asarray(self.time_s <= limit_s)

    @cached_property
    def seconds(self) -> Floats:
        """Slot seconds that each system has; infinite where nothing limits them [s]."""
        return np.array([np.inf if self.within_s is None else self.within_s * each.slots for each in self.systems])

    @property
    def lower_bound(self) -> float:
        """Sum of every request's least cost among the systems it may go to: no placement within the latency limit costs less [-]."""
        return float((np.where(self.allowed, self.cost, np.inf).min(axis=1) * self.counts).sum())

    def objective(self, placed: Whole) -> float:
        """Cost of a placement given as requests per type and system [-]."""
        return float((self.cost * placed).sum())

    def counted(self, system: Whole) -> Whole:
        """A placement of requests as requests per type and system."""
        placed = np.zeros(self.cost.shape, dtype=np.int64)
        np.add.at(placed, (self.type_of, system), 1)
        return placed

    def spelled_out(self, placed: Whole) -> Whole:
        """The system of every request; of equal requests the earlier ones go to the systems named first."""
        order = np.argsort(self.type_of, kind="stable")
        system = np.empty(len(self), dtype=np.int64)
        system[order] = np.repeat(np.tile(np.arange(len(self.systems)), len(self.counts)), placed.ravel())
        return system

    def broken(self, placed: Whole) -> tuple[str, ...]:
        """Which limits a placement breaks, in words; none where it is feasible."""
        return tuple(self._broken(placed))

    def _broken(self, placed: Whole) -> Iterator[str]:
        late = int(placed[~self.allowed].sum())
        if late:
            yield f"max_latency_s: {late} requests take longer than {self.max_latency_s:g} s"
        for limit in self.limits:
            here = int(placed[:, limit.systems].sum())
            if not limit.least <= here <= limit.most:
                yield f"{limit.words}, and has {here}"
        used_s = (placed * self.time_s).sum(axis=0)
        for each, used, had in zip(self.systems, used_s, self.seconds, strict=True):
            if used > had * (1.0 + SLACK) + SLACK_S:
                yield f"within_s: {each.name} would serve {used:.6g} slot seconds and has {had:.6g}"


def make_problem(
    trace: RequestTrace,
    systems: Sequence[System],
    *,
    zeta: float,
    coverage: bool = True,
    least_share: Mapping[str, float] | None = None,
    most_share: Mapping[str, float] | None = None,
    max_latency_s: float | None = None,
    within_s: float | None = None,
    weigh_tokens: bool = False,
) -> PlacementProblem:
    """Check what was asked and put it into arrays; arguments as in `place`.

    Raises:
        InputError: one line that names what cannot be.
    """
    listed = check_systems(systems)
    if not len(trace):
        raise InputError("the trace has no requests; a placement needs at least one")
    share = as_float("zeta", zeta, most=1.0)
    tokens, type_of, counts = np.unique(
        np.stack([trace.prompt_tokens, trace.output_tokens]), axis=1, return_inverse=True, return_counts=True
    )
    prompt, output = tokens.astype(np.float64)
    energy_j = _per_system(listed, "energy_j", prompt, output)
    return PlacementProblem(
        trace=trace,
        systems=listed,
        zeta=share,
        prompt_tokens=prompt,
        output_tokens=output,
        counts=counts.astype(np.int64),
        type_of=type_of.reshape(-1).astype(np.int64),
        energy_j=energy_j,
        time_s=_per_system(listed, "time_s", prompt, output),
        accuracy=_accuracies(listed, share) * ((prompt + output)[:, None] if weigh_tokens else np.ones((len(prompt), 1))),
        max_latency_s=None if max_latency_s is None else as_float("max_latency_s", max_latency_s, above=True),
        within_s=None if within_s is None else as_float("within_s", within_s, above=True),
        limits=tuple(_limits(listed, len(trace), coverage=coverage, least=least_share or {}, most=most_share or {})),
    )


def _per_system(systems: tuple[System, ...], what: str, prompt: Floats, output: Floats) -> Floats:
    values = np.stack([getattr(each, what)(prompt, output) for each in systems], axis=1)
    wrong = np.argwhere(values <= 0)
    if len(wrong):
        kind, system = wrong[0]
        raise InputError(
            f"{what} of {systems[system].name!r} is {values[kind, system]:g} for {prompt[kind]:g} prompt and {output[kind]:g} output "
            "tokens; fit with method 'relative', which answers with positive numbers"
        )
    return values


def _accuracies(systems: tuple[System, ...], zeta: float) -> Floats:
    given = [each.accuracy for each in systems]
    unknown = next((each.name for each in systems if each.accuracy is None), None)
    if zeta < 1.0 and unknown is not None:
        raise InputError(
            f"accuracy of {unknown!r} is missing, and zeta = {zeta:g} weighs it; give a number per LLM (it is never guessed), or zeta = 1"
        )
    if zeta < 1.0 and not any(given):
        raise InputError("every accuracy is 0, so there is nothing to weigh against energy; give accuracies, or zeta = 1")
    return np.array([np.nan if number is None else number for number in given])


def _limits(
    systems: tuple[System, ...], requests: int, *, coverage: bool, least: Mapping[str, float], most: Mapping[str, float]
) -> Iterator[Limit]:
    llms = list(dict.fromkeys(each.llm for each in systems))
    hosts = {llm: np.array([each.llm == llm for each in systems]) for llm in llms}
    if coverage and requests < len(llms):
        raise InputError(
            f"coverage: {requests} requests cannot give each of {len(llms)} LLMs at least one; give more requests, or coverage=False"
        )
    lows, highs = _shares("least_share", least, llms), _shares("most_share", most, llms)
    if sum(lows.values()) > 1.0 + SLACK:
        raise InputError(f"least_share: the shares add up to {sum(lows.values()):g}; give at most 1 in all")
    if len(highs) == len(llms) and sum(highs.values()) < 1.0 - SLACK:
        raise InputError(f"most_share: the shares of all LLMs add up to {sum(highs.values()):g}; give at least 1 in all")
    for llm in llms:
        if coverage:
            yield Limit("coverage", f"coverage: {llm} must get at least 1 request", hosts[llm], 1, requests)
        if llm in lows:
            count = ceil(lows[llm] * requests - SLACK * requests)
            yield Limit("least_share", f"least_share: {llm} must get at least {count} requests", hosts[llm], count, requests)
        if llm in highs:
            count = floor(highs[llm] * requests + SLACK * requests)
            yield Limit("most_share", f"most_share: {llm} may get at most {count} requests", hosts[llm], 0, count)


def _shares(name: str, shares: Mapping[str, Any], llms: Sequence[str]) -> dict[str, float]:
    if not isinstance(shares, Mapping):
        raise InputError(f"{name} = {shown(shares)} is not a table; give {{LLM: share}}")
    unknown = next((llm for llm in shares if llm not in llms), None)
    if unknown is not None:
        raise InputError(
            f"{name} names {shown(unknown)}, which no system hosts.{did_you_mean(str(unknown), llms)} Hosted: {', '.join(llms)}"
        )
    return {llm: as_float(f"{name} of {llm!r}", share, most=1.0) for llm, share in shares.items()}
