"""Decisions, worked by hand."""

from dataclasses import replace

import numpy as np
import pytest
from scoring_runs import row

from pie_p.end_to_end import MeasuredRuns, measured_runs
from pie_p.errors import InputError
from pie_p.scoring.decisions import cases_of, choose, decision_score, inner_margins, judge, pareto_front

MEASURED_S = np.array([0.020, 0.040, 0.060, 0.045, 0.049])
MEASURED_J = np.array([9.0, 5.0, 4.0, 2.0, 1.0])
EVERYONE = np.ones(5, dtype=bool)


@pytest.fixture
def runs() -> MeasuredRuns:
    """Two cases: three batches of one LLM, two of another."""
    rows = [row("llama-3.1-8b", batch=batch) for batch in (1, 16, 256)] + [row("qwen3-8b", batch=batch) for batch in (16, 64)]
    return replace(measured_runs(rows), time_per_token_s=MEASURED_S, energy_per_output_token_j=MEASURED_J)


def test_who_knows_everything_chooses_the_best(runs: MeasuredRuns) -> None:
    one = decision_score("oracle", runs, MEASURED_S, MEASURED_J, EVERYONE)
    assert (one.cases, one.top_1, one.median_regret, one.broken, one.front_found, one.front_true) == (2, 1.0, 0.0, 0.0, 1.0, 1.0)


def test_a_limit_that_is_broken_is_counted_and_its_regret_is_not(runs: MeasuredRuns) -> None:
    too_fast = np.where(np.arange(5) == 2, 0.030, MEASURED_S)
    one = decision_score("optimist", runs, too_fast, MEASURED_J, EVERYONE)
    assert (one.top_1, one.broken, one.median_regret) == (0.5, 0.5, 0.0)


def test_regret_is_the_energy_above_the_best(runs: MeasuredRuns) -> None:
    wrong = np.array([9.0, 5.0, 4.0, 1.0, 2.0])  # thinks the first of the second case is cheaper: 2 J instead of 1 J
    assert decision_score("wrong", runs, MEASURED_S, wrong, EVERYONE).mean_regret == pytest.approx((0.0 + 1.0) / 2)


def test_a_margin_keeps_away_from_the_limit() -> None:
    assert choose(MEASURED_S[3:], MEASURED_J[3:]) == 1
    assert choose(MEASURED_S[3:], MEASURED_J[3:], margin=0.05) == 0


def test_where_nothing_keeps_the_limit_the_fastest_is_taken() -> None:
    assert choose(np.array([0.09, 0.07, 0.08]), np.array([1.0, 2.0, 3.0])) == 1
    assert not judge(0, np.array([0.09, 0.04]), np.ones(2)).kept


def test_cases_need_a_choice_that_keeps_the_limit(runs: MeasuredRuns) -> None:
    slow = replace(runs, time_per_token_s=np.array([0.06, 0.07, 0.08, 0.045, 0.049]))
    assert [rows.tolist() for rows in cases_of(slow, EVERYONE)] == [[3, 4]]
    with pytest.raises(InputError, match=r"no LLM x workload x GPU has two measured configurations of which one keeps 50 ms"):
        decision_score("none", slow, MEASURED_S, MEASURED_J, np.arange(5) < 3)


def test_points_on_the_front_are_beaten_by_none() -> None:
    draw = np.random.default_rng(0)
    time_s, energy = draw.random(40), draw.random(40)
    front = pareto_front(time_s, energy)
    for index in range(40):
        beaten = any(time_s[other] < time_s[index] and energy[other] < energy[index] for other in range(40))
        assert front[index] != beaten


def test_a_margin_is_chosen_on_the_other_groups(runs: MeasuredRuns) -> None:
    said_s = np.array([0.020, 0.040, 0.0490, 0.045, 0.049])  # 60 ms of the first case is seen as 49 ms: a margin of 5 % saves it
    groups = np.array(["a", "a", "a", "b", "b"], dtype=object)
    margins = inner_margins(runs, said_s, MEASURED_J, EVERYONE, groups)
    assert margins.tolist() == [0.0, 0.0, 0.0, 0.05, 0.05]
