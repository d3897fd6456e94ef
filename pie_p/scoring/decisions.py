"""Decisions: does the predictor pick the right configuration? Least energy per output token with a time per token of at most 50 ms.

A *case* of the task is one LLM (checkpoint and format), workload and GPU with the configurations measured for it (number of GPUs, plan,
batch). Cases count where at least two configurations were measured and at least one of them keeps the limit. The method picks the
configuration of least predicted energy among those it predicts to keep the limit, or of least predicted time where it sees none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.end_to_end import MeasuredRuns
from pie_p.errors import InputError
from pie_p.physics import Floats
from pie_p.scoring.splits import Mask

LIMIT_S: Final = 0.050  # time per output token [s]
MARGINS: Final = (0.0, 0.05, 0.10, 0.15, 0.20)  # share by which a predicted time must stay below the limit
MOST_BROKEN: Final = 0.10  # share of broken limits that a margin chosen on inner rows may leave


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionScore:
    """How good a method's choices are. Shares."""

    method: str
    part: str  # which configurations took part
    cases: int  # [-]
    top_1: float  # picked the best of those that keep the limit
    median_regret: float  # energy above the best's, choices that keep the limit
    mean_regret: float
    broken: float  # choices whose measured time is above the limit
    front_found: float  # share of the measured Pareto front (time, energy) on the predicted one
    front_true: float  # share of the predicted front that is on the measured one

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was picked in one case."""

    kept: bool  # the measured time is within the limit
    best: bool  # it is the best one
    regret: float  # energy over the best's, less 1; NaN where the limit is broken


def cases_of(runs: MeasuredRuns, which: Mask) -> list[NDArray[np.int64]]:
    """Indices of the configurations of each case."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for index in np.flatnonzero(which):
        where = runs.cases[index].deployment
        groups.setdefault((where.llm.name, where.dtype, runs.workload[index], runs.gpu[index]), []).append(int(index))
    measured = [np.array(rows) for _, rows in sorted(groups.items()) if len(rows) > 1]
    return [rows for rows in measured if (runs.time_per_token_s[rows] <= LIMIT_S).any()]


def choose(time_s: Floats, energy_j: Floats, *, margin: float | Floats = 0.0) -> int:
    """Place of the configuration of least energy among those within the limit, by what is predicted.

    >>> choose(np.array([0.04, 0.06, 0.03]), np.array([2.0, 1.0, 3.0]))
    0
    """
    within = time_s * (1.0 + np.asarray(margin)) <= LIMIT_S
    return int(np.argmin(np.where(within, energy_j, np.inf))) if within.any() else int(np.argmin(time_s))


def judge(picked: int, time_s: Floats, energy_j: Floats) -> Choice:
    """A choice against what was measured.

    >>> round(judge(0, np.array([0.04, 0.06, 0.03]), np.array([3.3, 1.0, 3.0])).regret, 9)  # 3.3 against 3.0, the best within the limit
    0.1
    """
    within = time_s <= LIMIT_S
    best = int(np.argmin(np.where(within, energy_j, np.inf)))
    kept = bool(within[picked])
    return Choice(kept=kept, best=picked == best, regret=float(energy_j[picked] / energy_j[best] - 1.0) if kept else float("nan"))


def pareto_front(time_s: Floats, energy_j: Floats) -> NDArray[np.bool_]:
    """Configurations that no other one beats in both time and energy.

    >>> pareto_front(np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, 4.0])).tolist()
    [True, False, True]
    """
    no_slower = time_s[None, :] <= time_s[:, None]
    no_dearer = energy_j[None, :] <= energy_j[:, None]
    better = (time_s[None, :] < time_s[:, None]) | (energy_j[None, :] < energy_j[:, None])
    return np.asarray(~(no_slower & no_dearer & better).any(axis=1))


def decision_score(
    method: str, runs: MeasuredRuns, time_s: Floats, energy_j: Floats, which: Mask, *, margin: float | Floats = 0.0, part: str = "all"
) -> DecisionScore:
    """Choices of a method over all cases.

    Args:
        method: name to report.
        runs: what was measured.
        time_s: predicted per output token, of every run [s].
        energy_j: predicted per output token, of every run [J].
        which: configurations that take part.
        margin: share by which a predicted time must stay below the limit, one or one per run.
        part: name of those configurations.

    Raises:
        InputError: no LLM, workload and GPU has two configurations of which one keeps the limit.
    """
    cases = cases_of(runs, which)
    if not cases:
        raise InputError(f"no LLM x workload x GPU has two measured configurations of which one keeps {1e3 * LIMIT_S:g} ms per token")
    choices = [_choice(runs, rows, time_s, energy_j, margin) for rows in cases]
    regrets = np.array([choice.regret for choice in choices if choice.kept] or [np.nan])
    fronts = np.array(list(_fronts(runs, cases, time_s, energy_j)))
    both, true, said = fronts.sum(axis=0)
    return DecisionScore(
        method=method,
        part=part,
        cases=len(cases),
        top_1=float(np.mean([choice.best for choice in choices])),
        median_regret=float(np.median(regrets)),
        mean_regret=float(np.mean(regrets)),
        broken=float(np.mean([not choice.kept for choice in choices])),
        front_found=float(both / true),
        front_true=float(both / said),
    )


def _choice(runs: MeasuredRuns, rows: NDArray[np.int64], time_s: Floats, energy_j: Floats, margin: float | Floats) -> Choice:
    own = margin if np.ndim(margin) == 0 else np.asarray(margin)[rows]
    picked = choose(time_s[rows], energy_j[rows], margin=own)
    return judge(picked, runs.time_per_token_s[rows], runs.energy_per_output_token_j[rows])


def _fronts(runs: MeasuredRuns, cases: list[NDArray[np.int64]], time_s: Floats, energy_j: Floats) -> Iterator[tuple[float, float, float]]:
    """Per case: points on both fronts, on the measured one, on the predicted one."""
    for rows in cases:
        true = pareto_front(runs.time_per_token_s[rows], runs.energy_per_output_token_j[rows])
        said = pareto_front(time_s[rows], energy_j[rows])
        yield float((true & said).sum()), float(true.sum()), float(said.sum())


def inner_margins(runs: MeasuredRuns, time_s: Floats, energy_j: Floats, which: Mask, groups: NDArray[np.object_]) -> Floats:
    """For each run the smallest of `MARGINS` that breaks at most `MOST_BROKEN` of the other groups' limits, or the largest.

    The other groups' answers were themselves out of fold, though their fits saw this group's rows.
    """
    margins = np.zeros(len(runs))
    for group in sorted(set(groups[which].tolist())):
        others = cases_of(runs, which & (groups != group))
        broken = [_broken_share([_choice(runs, rows, time_s, energy_j, margin) for rows in others]) for margin in MARGINS]
        margins[groups == group] = next(
            (margin for margin, share in zip(MARGINS, broken, strict=True) if share <= MOST_BROKEN), MARGINS[-1]
        )
    return margins


def _broken_share(choices: list[Choice]) -> float:
    return float(np.mean([not choice.kept for choice in choices])) if choices else 0.0
