"""Fitting: scalars of a known law come back, power is right at measured time, and priors hold what data do not tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pie_p.cases import make_case
from pie_p.end_to_end import MeasuredRuns, measured_runs
from pie_p.errors import InputError
from pie_p.fitting import fit_power, fit_time, power_at, seconds_per_token
from pie_p.physics import Roofline
from pie_p.power import PowerLaw
from pie_p.predictor import Predictor
from pie_p.serving import ServingCosts, assemble, run_clock

pytest.importorskip("scipy", reason="fitting needs the extra 'train'")

ENGINE = "vllm==0.11.1"


def runs_of(truth: Predictor, *, often: int = 1) -> MeasuredRuns:
    """Eighteen runs under a known predictor, each `often` times, so that the data outweigh the priors."""
    rows: list[dict[str, Any]] = []
    for llm, tp in (("llama-3.1-8b", 1), ("llama-3.1-70b", 4), ("qwen3-30b-a3b", 2)):
        for batch in (8.0, 64.0, 256.0):
            for prompt in (150.0, 1500.0):
                where: dict[str, Any] = {"gpu": "h100-sxm-80gb", "tp": tp, "batch": batch, "prompt_tokens": prompt, "output_tokens": 300.0}
                [answer] = truth.predict([make_case(llm, **where, mode="steady")])
                rows.append(
                    {
                        "llm": llm,
                        **where,
                        "engine": "vllm",
                        "engine_version": "0.11.1",
                        "time_per_token_s": answer.time_per_token_s,
                        "itl_s": answer.itl_s,
                        "avg_power_w": answer.avg_power_w,
                    }
                )
    return measured_runs(rows * often)


def test_a_known_step_and_sequence_cost_come_back() -> None:
    known = ServingCosts()._replace(step_s=5e-3, sequence_s=1.2e-4)
    _, costs = fit_time(runs_of(Predictor(serving={ENGINE: known}), often=20), free=("step_s", "sequence_s"))
    assert costs.step_s == pytest.approx(5e-3, rel=0.03)
    assert costs.sequence_s == pytest.approx(1.2e-4, rel=0.03)


def test_what_is_not_free_stays_and_a_prior_that_is_right_is_kept() -> None:
    roofline, costs = fit_time(runs_of(Predictor()))
    assert roofline.overlap_power == Roofline().overlap_power
    assert roofline.weight_share == pytest.approx(Roofline().weight_share, rel=1e-3)
    assert costs.step_s == pytest.approx(ServingCosts().step_s, rel=1e-2)


def test_a_known_demand_comes_back_from_powers_at_measured_times() -> None:
    law = replace(PowerLaw(), weight=0.45)
    fitted = fit_power(runs_of(Predictor(power=law), often=40), roofline=Roofline(), costs=ServingCosts(), free=("weight",))
    assert fitted.weight == pytest.approx(0.45, rel=0.05)


def test_power_at_the_predicted_time_is_the_predicted_power() -> None:
    runs = runs_of(Predictor())
    assembly = assemble(runs.cases)
    kernel_s = Roofline().time_s(assembly.columns)
    clock = run_clock(assembly, kernel_s, [ServingCosts()] * len(runs))
    time_s, _ = seconds_per_token(assembly, clock)
    assert time_s == pytest.approx(runs.time_per_token_s, rel=1e-9)
    assert power_at(time_s, assembly, clock, kernel_s, PowerLaw()) == pytest.approx(runs.power_w, rel=1e-6)


def test_a_longer_measured_time_is_more_waiting_and_less_power() -> None:
    runs = runs_of(Predictor())
    assembly = assemble(runs.cases)
    kernel_s = Roofline().time_s(assembly.columns)
    clock = run_clock(assembly, kernel_s, [ServingCosts()] * len(runs))
    own, longer = (power_at(runs.time_per_token_s * factor, assembly, clock, kernel_s, PowerLaw()) for factor in (1.0, 2.0))
    assert (longer < own).all()


def test_runs_without_a_measured_time_or_power_are_one_line() -> None:
    runs = runs_of(Predictor())
    nothing = replace(runs, time_per_token_s=np.full(len(runs), np.nan))
    with pytest.raises(InputError, match="none of the measured runs has time_per_token_s"):
        fit_time(nothing)
    with pytest.raises(InputError, match="power cannot be fitted"):
        fit_power(nothing, roofline=Roofline(), costs=ServingCosts())
