"""Fitting the physics to measured runs: few scalars, each held near its prior, in log space.

Time is fitted first, on runs of one engine version; power next, on the measured time, so that no error of the one hides in the other.
Every scalar is the exponent of a factor on its prior, with a width that says how well the prior is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.end_to_end import MeasuredRuns
from pie_p.errors import InputError
from pie_p.extras import require
from pie_p.physics import Floats, Roofline
from pie_p.power import PowerLaw
from pie_p.serving import Assembly, Clock, ServingCosts, assemble, run_clock
from pie_p.settling import mean_demand

# Widths of the priors, in natural logarithms: 0.1 is about 10 %. Shares and floors come from thousands of operator rows and are narrow;
# what an engine's host side costs is known to an order of magnitude.
ROOFLINE_WIDTHS: Final[dict[str, float]] = {
    "weight_share": 0.03,
    "expert_share": 0.05,
    "kv_share": 0.08,
    "activation_share": 0.3,
    "flop_share": 0.06,
    "expert_flop_share": 0.15,
    "byte_flop_share": 0.1,
    "byte_expert_flop_share": 0.15,
    "low_flop_share": 0.1,
    "low_expert_flop_share": 0.15,
    "attention_flop_share": 0.15,
    "size_exponent": 0.5,
    "linear_floor_s": 0.15,
    "attention_floor_s": 0.2,
    "expert_floor_s": 0.2,
    "other_floor_s": 0.5,
    "link_share": 0.3,
    "collective_floor_s": 0.3,
    "eager_collective_floor_s": 0.3,
}
SERVING_WIDTHS: Final[dict[str, float]] = {
    "launch_s": 0.5,
    "dispatch_s": 0.7,
    "dispatch_step_s": 1.0,
    "step_s": 1.0,
    "sequence_s": 1.0,
    "overlapped_sequence_s": 1.0,
    "prompt_s": 1.0,
    "jitter": 1.0,
    "imbalance": 0.7,
}
POWER_WIDTHS: Final[dict[str, float]] = {
    "wait": 0.7,
    "kernel": 0.5,
    "collective": 0.5,
    "weight": 0.3,
    "expert_weight": 0.3,
    "kv": 0.4,
    "activation": 0.5,
    "flop": 0.5,
    "expert_flop": 0.5,
    "attention_flop": 0.6,
    "flop_exponent": 0.2,
    "link": 0.7,
    "ceiling": 0.02,
    "knee": 0.3,
}
PRIOR_WEIGHT: Final = 0.5  # one prior width counts as much as a log error of this size
ROBUST_SCALE: Final = 0.2  # log errors beyond this count linearly, not squared
STEP_WEIGHT: Final = 0.3  # weight of the decode-only step beside the time per token
MOST_MIXED: Final = 0.25  # a median step is a decode-only step as long as fewer steps than this share hold prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """The fitted scalars: what a predictor answers with."""

    roofline: Roofline
    costs: ServingCosts
    power: PowerLaw


def seconds_per_token(assembly: Assembly, clock: Clock) -> tuple[Floats, Floats]:
    """Time per output token and last planned step (decode-only where there is one) of each case [s]."""
    count = len(assembly.cases)
    lives = assembly.decode_steps + assembly.prefill_steps
    tokens = np.array([plan.output_tokens for plan in assembly.schedules])
    crowding = np.array([plan.crowding for plan in assembly.schedules])
    whole = crowding * np.bincount(assembly.step_case, weights=lives * clock.step_s, minlength=count)
    return whole / np.maximum(tokens, 1e-9), clock.step_s[_last_steps(assembly)]


def _last_steps(assembly: Assembly) -> NDArray[np.int64]:
    return np.searchsorted(assembly.step_case, np.arange(len(assembly.cases)), side="right") - 1


def _has_decode_step(assembly: Assembly, runs: MeasuredRuns) -> NDArray[np.bool_]:
    """Runs whose measured median step is a decode-only step."""
    first = np.searchsorted(assembly.step_case, np.arange(len(runs)))
    lives = np.bincount(assembly.step_case, weights=assembly.decode_steps + assembly.prefill_steps, minlength=len(runs))
    mixed = assembly.prefill_steps[first] / lives
    decodes = assembly.prefill_sequences[_last_steps(assembly)] == 0
    return np.asarray(np.isfinite(runs.itl_s) & (mixed < MOST_MIXED) & decodes)


def fit_time(
    runs: MeasuredRuns,
    *,
    roofline: Roofline | None = None,
    costs: ServingCosts | None = None,
    free: Sequence[str] = (*ROOFLINE_WIDTHS, *SERVING_WIDTHS),
    assembly: Assembly | None = None,
) -> tuple[Roofline, ServingCosts]:
    """Shares, floors and serving costs that make the measured times of one engine version likely.

    Args:
        runs: measured runs with `time_per_token_s`.
        roofline: prior of shares and floors.
        costs: prior of the engine's costs.
        free: names of the scalars that may move.
        assembly: the runs' cases assembled, when the caller has it.

    Raises:
        InputError: no run has a measured time.
    """
    start_roofline, start_costs = roofline or Roofline(), costs or ServingCosts()
    assembly = assembly or assemble(runs.cases)
    timed = np.isfinite(runs.time_per_token_s)
    if not timed.any():
        raise InputError("none of the measured runs has time_per_token_s; give runs with a measured time")
    steps = timed & _has_decode_step(assembly, runs)
    widths = np.array([{**ROOFLINE_WIDTHS, **SERVING_WIDTHS}[name] for name in free])

    def moved(factors: Floats) -> tuple[Roofline, ServingCosts]:
        return _scaled(start_roofline, free, factors), _scaled(start_costs, free, factors)

    def errors(logs: Floats) -> Floats:
        now, cost = moved(np.exp(logs))
        clock = run_clock(assembly, now.time_s(assembly.columns), [cost] * len(runs))
        time_s, step_s = seconds_per_token(assembly, clock)
        return np.concatenate(
            [
                np.log(time_s / runs.time_per_token_s)[timed],
                STEP_WEIGHT * np.log(step_s / runs.itl_s)[steps],
                PRIOR_WEIGHT * logs / widths,
            ]
        )

    return moved(np.exp(_solve(errors, len(free))))


def fit_power(
    runs: MeasuredRuns,
    *,
    roofline: Roofline,
    costs: ServingCosts,
    law: PowerLaw | None = None,
    free: Sequence[str] = tuple(POWER_WIDTHS),
    assembly: Assembly | None = None,
) -> PowerLaw:
    """Demands that make the measured powers likely, given the measured times.

    Raises:
        InputError: no run has both a measured time and a measured power.
    """
    start = law or PowerLaw()
    assembly = assembly or assemble(runs.cases)
    known = np.isfinite(runs.power_w) & np.isfinite(runs.time_per_token_s)
    if not known.any():
        raise InputError("none of the measured runs has both time_per_token_s and avg_power_w; power cannot be fitted")
    time_s = roofline.time_s(assembly.columns)
    clock = run_clock(assembly, time_s, [costs] * len(runs))
    widths = np.array([POWER_WIDTHS[name] for name in free])

    def errors(logs: Floats) -> Floats:
        law = _scaled(start, free, np.exp(logs))
        power_w = power_at(runs.time_per_token_s, assembly, clock, time_s, law)
        return np.concatenate([np.log(power_w / runs.power_w)[known], PRIOR_WEIGHT * logs / widths])

    fitted: PowerLaw = _scaled(start, free, np.exp(_solve(errors, len(free))))
    return fitted


def power_at(seconds: Floats, assembly: Assembly, clock: Clock, time_s: Floats, law: PowerLaw) -> Floats:
    """Board power when an output token takes `seconds`: kernels run as predicted, and waiting takes up the difference [W].

    Where the measured time is shorter than the predicted kernels, they are taken to run that much faster.
    """
    predicted_s, _ = seconds_per_token(assembly, clock)
    asked = mean_demand(assembly, clock, time_s, law.demand(assembly.columns, time_s), wait=law.wait)
    running = _running_share(assembly, clock, time_s)
    busy = np.minimum(running * predicted_s / seconds, 1.0)
    while_running = (asked - law.wait * (1.0 - running)) / np.maximum(running, 1e-9)
    first = np.searchsorted(assembly.row_case, np.arange(len(assembly.cases)))
    limit_w, idle_w = assembly.columns["limit_w"][first], assembly.columns["active_idle_w"][first]
    share = law.settled(while_running * busy + law.wait * (1.0 - busy), limit_w=limit_w, idle_w=idle_w)
    return np.asarray(idle_w + (limit_w - idle_w) * share)


def _running_share(assembly: Assembly, clock: Clock, time_s: Floats) -> Floats:
    """Share of a life in which a board runs kernels or collectives [-]."""
    return mean_demand(assembly, clock, time_s, np.ones(len(time_s)), wait=0.0)


def _scaled(start: Any, names: Sequence[str], factors: Floats) -> Any:
    """A copy whose named fields are multiplied by their factors; names it does not have are passed over."""
    changed = {name: float(getattr(start, name) * factor) for name, factor in zip(names, factors, strict=True) if hasattr(start, name)}
    return start._replace(**changed) if isinstance(start, ServingCosts) else replace(start, **changed)


def _solve(errors: Any, unknowns: int) -> Floats:
    optimize = require("scipy.optimize", extra="train")
    result = optimize.least_squares(errors, np.zeros(unknowns), loss="soft_l1", f_scale=ROBUST_SCALE, diff_step=1e-3, max_nfev=40)
    return np.asarray(result.x, dtype=np.float64)


def fit_physics(runs: MeasuredRuns, *, timed: NDArray[np.bool_] | None = None, start: Mapping[str, Any] | None = None) -> Physics:
    """Time on the `timed` runs (one engine version; default all), power on all of them."""
    priors = dict(start or {})
    assembly = assemble(runs.cases)
    chosen = np.ones(len(runs), dtype=bool) if timed is None else timed
    roofline, costs = fit_time(runs.take(chosen), roofline=priors.get("roofline"), costs=priors.get("costs"))
    law = fit_power(runs, roofline=roofline, costs=costs, law=priors.get("power"), assembly=assembly)
    return Physics(roofline=roofline, costs=costs, power=law)
