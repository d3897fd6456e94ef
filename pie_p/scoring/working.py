"""The working behind the errors: which rows are worst and why, which scalar moves the answer, how wide an honest interval is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.end_to_end import MeasuredRuns
from pie_p.fitting import POWER_WIDTHS, ROOFLINE_WIDTHS, SERVING_WIDTHS, Physics
from pie_p.physics import Floats
from pie_p.scoring.facts import GROUPS, per_token, waits_per_token
from pie_p.scoring.folds import Answers, answers_of, energy_j, run_physics
from pie_p.scoring.splits import Mask
from pie_p.serving import WAIT_CAUSES, Assembly, ServingCosts

SMALL: Final = 0.10  # an error of this size is not what is wrong with a row


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstRow:
    """A run predicted badly, and which part of it is off."""

    llm: str
    dtype: str
    gpu: str
    gpus: int
    workload: str
    batch: float
    odd: str
    energy_error: float  # predicted / measured - 1
    time_error: float
    power_error: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def worst_rows(
    runs: MeasuredRuns, answers: Answers, assembly: Assembly, physics: Physics, which: Mask, *, most: int = 20
) -> list[WorstRow]:
    """Rows of largest error in energy, in either direction (by the logarithm of the ratio), largest first."""
    ratio = energy_j(runs, answers.time_s, answers.power_w) / runs.energy_per_output_token_j
    order = np.argsort(-np.abs(np.log(ratio[which])), kind="stable")[:most]
    largest = _largest_parts(assembly, physics)
    return [_worst(runs, answers, float(ratio[index]), largest[index], int(index)) for index in np.flatnonzero(which)[order]]


def _worst(runs: MeasuredRuns, answers: Answers, ratio: float, largest: str, index: int) -> WorstRow:
    case = runs.cases[index]
    time_error = float(answers.time_s[index] / runs.time_per_token_s[index] - 1.0)
    power_error = float(answers.power_w[index] / runs.power_w[index] - 1.0)
    given = float(answers.given_time_w[index] / runs.power_w[index] - 1.0)
    return WorstRow(
        llm=case.deployment.llm.name,
        dtype=case.deployment.dtype,
        gpu=str(runs.gpu[index]),
        gpus=int(runs.gpus[index]),
        workload=str(runs.workload[index]),
        batch=float(case.request.batch),
        odd=str(runs.odd[index]),
        energy_error=ratio - 1.0,
        time_error=time_error,
        power_error=power_error,
        reason=reason_for(time_error, power_error, given, largest, str(runs.odd[index])),
    )


def reason_for(time_error: float, power_error: float, given_time_error: float, largest: str, odd: str) -> str:
    """What is off, in words.

    >>> reason_for(-0.4, 0.05, 0.02, "experts", "")
    'time too short (most of it: experts)'
    """
    parts = []
    if abs(time_error) > SMALL:
        parts.append(f"time too {'long' if time_error > 0 else 'short'} (most of it: {largest})")
    if abs(power_error) > SMALL:
        follows = "" if abs(given_time_error) > SMALL else ", right at the measured time"
        parts.append(f"power too {'high' if power_error > 0 else 'low'}{follows}")
    words = "; ".join(parts) or "small errors of one sign in both"
    return f"odd group {odd}: {words}" if odd else words


def _largest_parts(assembly: Assembly, physics: Physics) -> list[str]:
    """For each case the group of operators or cause of waiting that takes most of a predicted token."""
    run = run_physics(assembly, physics)
    waits = np.column_stack([waits_per_token(assembly, run.clock.waits_s[cause]) for cause in WAIT_CAUSES])
    names = (*GROUPS, *(f"wait for {cause.replace('_', ' ')}" for cause in WAIT_CAUSES))
    return [names[number] for number in np.argmax(np.column_stack([per_token(assembly, run.time_s), waits]), axis=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """How far the answers move when one fitted scalar moves up by the width of its prior: means of the absolute change, as shares."""

    scalar: str
    fitted: float
    prior: float
    width: float  # of the prior, natural logarithm [-]
    time: float
    power: float
    energy: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def sensitivities(runs: MeasuredRuns, assembly: Assembly, physics: Physics, prior: Physics, which: Mask) -> list[Sensitivity]:
    """Every fitted scalar, the one that moves energy most first."""
    base = answers_of(runs, assembly, physics)

    def change(moved: Physics) -> tuple[float, float, float]:
        answers = answers_of(runs, assembly, moved)
        time, power = np.abs(np.log(answers.time_s / base.time_s)), np.abs(np.log(answers.power_w / base.power_w))
        energy = np.abs(np.log(answers.time_s * answers.power_w / (base.time_s * base.power_w)))
        return float(time[which].mean()), float(power[which].mean()), float(energy[which].mean())

    found = []
    for scalar, width, part in _scalars():
        own, before = getattr(physics, part), getattr(getattr(prior, part), scalar)
        value = float(getattr(own, scalar))
        moved = {scalar: value * float(np.exp(width))}
        shifted: Any = own._replace(**moved) if isinstance(own, ServingCosts) else replace(own, **moved)
        time, power, energy = change(replace(physics, **{part: shifted}))
        found.append(Sensitivity(scalar=scalar, fitted=value, prior=float(before), width=width, time=time, power=power, energy=energy))
    return sorted(found, key=lambda each: -each.energy)


def _scalars() -> Iterator[tuple[str, float, str]]:
    for widths, part in ((ROOFLINE_WIDTHS, "roofline"), (SERVING_WIDTHS, "costs"), (POWER_WIDTHS, "power")):
        yield from ((scalar, width, part) for scalar, width in widths.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of rows whose measured energy lies in an interval made of the other groups' errors."""

    level: float
    covered: float
    median_width: float  # upper over lower end, less 1
    n: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def coverage(predicted: Floats, measured: Floats, groups: NDArray[np.object_], which: Mask, *, level: float = 0.9) -> Coverage:
    """Conformal intervals by held-out group: `predicted * exp(+-q)`, q the quantile of the other groups' absolute log errors.

    A group counts once however many rows it has: its rows share the weight 1.
    """
    errors = np.abs(np.log(measured / predicted))
    inside, widths = np.zeros(len(errors), dtype=bool), np.full(len(errors), np.nan)
    for group in sorted(set(groups[which].tolist())):
        own, others = which & (groups == group), which & (groups != group)
        reach = weighted_quantile(errors[others], _equal_shares(groups[others]), level)
        inside[own], widths[own] = errors[own] <= reach, np.exp(2 * reach) - 1.0
    return Coverage(level=level, covered=float(inside[which].mean()), median_width=float(np.nanmedian(widths[which])), n=int(which.sum()))


def _equal_shares(groups: NDArray[np.object_]) -> Floats:
    names, place, counts = np.unique(groups.astype(str), return_inverse=True, return_counts=True)
    return np.asarray(1.0 / (len(names) * counts[place]))


def weighted_quantile(values: Floats, weights: Floats, level: float) -> float:
    """Smallest value that at least a share `level` of the weight does not exceed.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 1.0]), 0.5)
    2.0
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(int(np.searchsorted(reached, level - 1e-12)), len(values) - 1)])
