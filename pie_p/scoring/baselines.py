"""Baselines: what simpler methods say about the same rows, taught on the same rows.

Each takes the facts, what was measured, and the rows that teach; each answers for every run. Their settings are fixed here and were not
chosen on any split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pie_p.end_to_end import MeasuredRuns
from pie_p.extras import require
from pie_p.physics import Floats
from pie_p.scoring.facts import Facts
from pie_p.scoring.splits import Mask

RIDGE: Final = 1.0  # pull on standardised coefficients [rows]
PULL: Final = 0.1  # a coefficient 1 away from 1 costs as much as a relative error of this size
TREES: Final[Mapping[str, Any]] = {
    "n_estimators": 200,
    "max_depth": 4,
    "learning_rate": 0.1,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "min_child_weight": 3,
    "reg_lambda": 1.0,
}
RESIDUAL_TREES: Final[Mapping[str, Any]] = {
    "n_estimators": 80,
    "max_depth": 3,
    "learning_rate": 0.05,
    "subsample": 0.7,
    "colsample_bytree": 0.7,
    "min_child_weight": 8,
    "reg_lambda": 10.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a baseline says about every run; NaN where the method has no such figure."""

    time_s: Floats  # per output token [s]
    power_w: Floats  # of one board [W]
    energy_j: Floats  # per output token, all boards [J]
    given_time: bool = False  # the measured time was an input


Baseline = Callable[[Facts, MeasuredRuns, Mask, int], Estimate]


def limit_times_time(facts: Facts, runs: MeasuredRuns, _teaching: Mask, _seed: int) -> Estimate:
    """The board's power limit times the measured time: what a data sheet and a stop watch say."""
    return _at_measured_time(facts, runs, facts.limit_w)


def mean_fraction_times_time(facts: Facts, runs: MeasuredRuns, teaching: Mask, _seed: int) -> Estimate:
    """The mean share of the power limit over the teaching rows, times the limit and the measured time."""
    share = float(np.nanmean((runs.power_w / facts.limit_w)[teaching]))
    return _at_measured_time(facts, runs, share * facts.limit_w)


def _at_measured_time(facts: Facts, runs: MeasuredRuns, power_w: Floats) -> Estimate:
    energy_j = facts.gpus * power_w * runs.time_per_token_s / facts.running
    return Estimate(time_s=np.full(len(runs), np.nan), power_w=power_w, energy_j=energy_j, given_time=True)


def log_linear(facts: Facts, runs: MeasuredRuns, teaching: Mask, _seed: int) -> Estimate:
    """Ridge regression of log T and of log P over the limit on the logarithms of a step's work over the board's bandwidth."""
    return _time_times_power(facts, *(_ridge(facts.scaled, target, teaching) for target in _targets(facts, runs)))


def _targets(facts: Facts, runs: MeasuredRuns) -> tuple[Floats, Floats]:
    """What is learned: log T, and log of power as a share of the limit, so that boards of other sizes can be answered for."""
    return np.log(runs.time_per_token_s), np.log(runs.power_w / facts.limit_w)


def raw_trees(facts: Facts, runs: MeasuredRuns, teaching: Mask, seed: int) -> Estimate:
    """Boosted trees on shape, plan, request and board."""
    return _boosted_time_and_power(facts, runs, facts.raw, teaching, seed)


def physical_trees(facts: Facts, runs: MeasuredRuns, teaching: Mask, seed: int) -> Estimate:
    """Boosted trees on seconds, rates and shares of the unfitted physics."""
    return _boosted_time_and_power(facts, runs, facts.physical, teaching, seed)


def _boosted_time_and_power(facts: Facts, runs: MeasuredRuns, features: Floats, teaching: Mask, seed: int) -> Estimate:
    return _time_times_power(facts, *(boosted(features, target, teaching, TREES, seed) for target in _targets(facts, runs)))


def _time_times_power(facts: Facts, log_time: Floats, log_share: Floats) -> Estimate:
    time_s, power_w = np.exp(log_time), np.exp(log_share) * facts.limit_w
    return Estimate(time_s=time_s, power_w=power_w, energy_j=facts.gpus * power_w * time_s / facts.running)


def boosted(features: Floats, target: Floats, teaching: Mask, settings: Mapping[str, Any], seed: int) -> Floats:
    """Answers of boosted trees for every row, taught on rows that have a target."""
    xgboost = require("xgboost", extra="train")
    known = teaching & np.isfinite(target)
    trees = xgboost.XGBRegressor(**settings, n_jobs=1, random_state=seed)
    trees.fit(features[known], target[known])
    return np.asarray(trees.predict(features), dtype=np.float64)


def _ridge(features: Floats, target: Floats, teaching: Mask) -> Floats:
    known = teaching & np.isfinite(target)
    mean, spread = features[known].mean(axis=0), features[known].std(axis=0)
    scaled = (features - mean) / np.where(spread > 1e-9, spread, np.inf)  # a constant column says nothing about other values
    level = float(target[known].mean())
    taught = scaled[known]
    slopes = np.linalg.solve(taught.T @ taught + RIDGE * np.eye(features.shape[1]), taught.T @ (target[known] - level))
    return np.asarray(level + scaled @ slopes)


def bilinear(facts: Facts, runs: MeasuredRuns, teaching: Mask, _seed: int) -> Estimate:
    """Wilkins' form `e = a0 tin + a1 tout + a2 tin tout` per request, ordinary least squares as published (arXiv 2407.04014).

    Published per LLM and system; an LLM never seen has no coefficients of its own, so they are stated per active parameter and pooled.
    """
    return _pooled_bilinear(facts, runs, teaching, relative=False)


def relative_bilinear(facts: Facts, runs: MeasuredRuns, teaching: Mask, _seed: int) -> Estimate:
    """The same form with an intercept, no negative coefficient, fitted to relative errors."""
    return _pooled_bilinear(facts, runs, teaching, relative=True)


def _pooled_bilinear(facts: Facts, runs: MeasuredRuns, teaching: Mask, *, relative: bool) -> Estimate:
    scale = facts.active_parameters / 1e9

    def per_token(measured: Floats) -> Floats:
        per_request = measured * facts.output_tokens / scale
        answer = fit_bilinear(facts.prompt_tokens, facts.output_tokens, per_request, teaching, relative=relative)
        return answer * scale / facts.output_tokens

    energy_j = per_token(runs.energy_per_output_token_j)
    time_s = per_token(runs.time_per_token_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        power_w = energy_j * facts.running / (facts.gpus * time_s)
    return Estimate(time_s=time_s, power_w=power_w, energy_j=energy_j)


def fit_bilinear(tokens_in: Floats, tokens_out: Floats, value: Floats, teaching: Mask, *, relative: bool) -> Floats:
    """Answers of `a0 tin + a1 tout + a2 tin tout` for every row.

    Args:
        tokens_in: prompt tokens [-].
        tokens_out: output tokens [-].
        value: energy or time of one request.
        teaching: rows that teach.
        relative: fit relative errors, with an intercept and no negative coefficient; else ordinary least squares.
    """
    design = np.column_stack([tokens_in, tokens_out, tokens_in * tokens_out])
    known = teaching & np.isfinite(value)
    if not relative:
        return np.asarray(design @ np.linalg.lstsq(design[known], value[known], rcond=None)[0])
    design = np.column_stack([np.ones(len(value)), design])
    optimize = require("scipy.optimize", extra="train")
    weighted = design[known] / value[known, None]
    size = np.linalg.norm(weighted, axis=0)
    coefficients, _ = optimize.nnls(weighted / size, np.ones(int(known.sum())))
    return np.asarray(design @ (coefficients / size))


def compute_tree(facts: Facts, runs: MeasuredRuns, teaching: Mask, _seed: int) -> Estimate:
    """IrEne's kind of tree: every module a linear function of its bytes and FLOPs, no communication, no waits, summed to the root.

    Joules per byte and per FLOP are stated in units of what the board would draw at its limit, so that boards can be compared; fitted to
    relative errors, none negative, each pulled a little to 1 (peak rate at the limit): a module that hardly shows in the teaching
    rows would be answered for wildly elsewhere.
    """
    optimize = require("scipy.optimize", extra="train")
    energy_j = runs.energy_per_output_token_j
    known = teaching & np.isfinite(energy_j)
    pull = PULL * np.eye(facts.roofline_j.shape[1])
    weighted = np.concatenate([facts.roofline_j[known] / energy_j[known, None], pull])
    coefficients, _ = optimize.nnls(weighted, np.concatenate([np.ones(int(known.sum())), pull.sum(axis=0)]))
    nothing = np.full(len(runs), np.nan)
    return Estimate(time_s=nothing, power_w=nothing, energy_j=np.asarray(facts.roofline_j @ coefficients))


BASELINES: Final[dict[str, Baseline]] = {
    "power limit × measured time": limit_times_time,
    "mean power share × measured time": mean_fraction_times_time,
    "log-linear": log_linear,
    "boosted trees, raw features": raw_trees,
    "boosted trees, physical features": physical_trees,
    "bilinear, least squares (Wilkins)": bilinear,
    "bilinear, relative errors": relative_bilinear,
    "tree without communication and waits (IrEne)": compute_tree,
}
