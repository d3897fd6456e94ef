"""Baselines, each on rows that follow its own law."""

from dataclasses import replace

import numpy as np
import pytest
from scoring_runs import perfect_runs

from pie_p.scoring.baselines import (
    BASELINES,
    compute_tree,
    fit_bilinear,
    limit_times_time,
    log_linear,
    mean_fraction_times_time,
)
from pie_p.scoring.facts import SCALED, Facts, facts_of
from pie_p.scoring.folds import energy_j, unfitted
from pie_p.serving import assemble

pytest.importorskip("scipy", reason="scipy comes with the extra: pip install 'pie_p[train]'")


@pytest.fixture(scope="module")
def facts() -> Facts:
    runs = perfect_runs()
    return facts_of(runs, assemble(runs.cases), unfitted())


EVERYONE = np.ones(len(perfect_runs()), dtype=bool)


@pytest.mark.parametrize("relative", [False, True])
def test_the_bilinear_fit_recovers_the_law_it_assumes(relative: bool) -> None:
    draw = np.random.default_rng(1)
    tokens_in, tokens_out = draw.uniform(10, 2000, 60), draw.uniform(10, 2000, 60)
    joules = 0.5 * tokens_in + 3.0 * tokens_out + 2e-4 * tokens_in * tokens_out
    teaching = np.arange(60) < 30
    assert fit_bilinear(tokens_in, tokens_out, joules, teaching, relative=relative) == pytest.approx(joules, rel=1e-6)


def test_the_relative_fit_gives_no_negative_energy() -> None:
    draw = np.random.default_rng(2)
    tokens_in, tokens_out = draw.uniform(10, 2000, 60), draw.uniform(10, 2000, 60)
    joules = np.exp(draw.normal(size=60))
    assert (fit_bilinear(tokens_in, tokens_out, joules, np.ones(60, dtype=bool), relative=True) > 0).all()


def test_limit_times_time_is_exact_for_boards_at_their_limit(facts: Facts) -> None:
    runs = perfect_runs()
    at_limit = replace(runs, energy_per_output_token_j=energy_j(runs, runs.time_per_token_s, facts.limit_w))
    assert limit_times_time(facts, at_limit, EVERYONE, 0).energy_j == pytest.approx(at_limit.energy_per_output_token_j)


def test_the_mean_fraction_is_exact_for_boards_at_one_share_of_their_limit(facts: Facts) -> None:
    runs = replace(perfect_runs(), power_w=0.4 * facts.limit_w)
    estimate = mean_fraction_times_time(facts, runs, EVERYONE, 0)
    assert estimate.given_time
    assert estimate.power_w == pytest.approx(runs.power_w)


def test_log_linear_finds_a_power_law(facts: Facts) -> None:
    batch = np.exp(facts.scaled[:, SCALED.index("batch")])
    runs = replace(perfect_runs(), time_per_token_s=0.01 * batch**0.3, power_w=0.4 * facts.limit_w)
    estimate = log_linear(facts, runs, EVERYONE, 0)
    assert np.abs(estimate.time_s / runs.time_per_token_s - 1).mean() < 0.05  # the ridge pulls the slope a little
    assert estimate.power_w == pytest.approx(runs.power_w)


def test_the_tree_without_communication_recovers_joules_per_byte(facts: Facts) -> None:
    runs = replace(perfect_runs(), energy_per_output_token_j=1.5 * facts.roofline_j.sum(axis=1))
    assert compute_tree(facts, runs, EVERYONE, 0).energy_j == pytest.approx(runs.energy_per_output_token_j, rel=0.05)  # pulled to 1


@pytest.mark.parametrize("name", BASELINES)
def test_no_baseline_looks_at_rows_that_do_not_teach(name: str, facts: Facts) -> None:
    pytest.importorskip("xgboost", reason="xgboost comes with the extra: pip install 'pie_p[train]'")
    runs, teaching = perfect_runs(), np.arange(len(perfect_runs())) % 2 == 0
    hidden = {name: np.where(teaching, getattr(runs, name), 7.0) for name in ("power_w", "energy_per_output_token_j")}
    there, gone = (BASELINES[name](facts, each, teaching, 0) for each in (runs, replace(runs, **hidden)))
    assert there.energy_j == pytest.approx(gone.energy_j)
