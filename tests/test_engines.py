"""Another engine version from ten rows: here one whose host takes three times as long."""

from dataclasses import replace

import numpy as np
import pytest
from scoring_runs import LLMS, row

from pie_p.end_to_end import MeasuredRuns, measured_runs
from pie_p.scoring import engines
from pie_p.scoring.folds import answers_of, energy_j, unfitted
from pie_p.serving import assemble


@pytest.fixture
def slower() -> MeasuredRuns:
    rows = [row(llm, batch=batch, source="mlenergy_v2") for llm in (*LLMS[:3], "mistral-7b-v0.3") for batch in (2.0, 8.0, 16.0, 32.0, 64.0)]
    runs = measured_runs(rows)
    physics = unfitted()
    costs = physics.costs._replace(step_s=3 * physics.costs.step_s, sequence_s=3 * physics.costs.sequence_s)
    answers = answers_of(runs, assemble(runs.cases), replace(physics, costs=costs))
    energy = energy_j(runs, answers.time_s, answers.power_w)
    return replace(runs, time_per_token_s=answers.time_s, power_w=answers.power_w, energy_per_output_token_j=energy)


def test_a_few_rows_mend_much_of_an_engine_whose_host_is_slower(slower: MeasuredRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "DRAWS", 2)
    monkeypatch.setattr(engines, "ROWS", 3)
    told: list[str] = []
    everyone = np.ones(len(slower), dtype=bool)
    before, after = engines.new_engine(slower, everyone, unfitted(), seed=4, progress=lambda done, of, what: told.append(f"{done}/{of}"))
    assert before.scores["T"].bias < -0.2
    assert after.scores["T"].mape < 0.6 * before.scores["T"].mape
    assert after.scores["E"].mape < before.scores["E"].mape
    assert told == ["1/2", "2/2"]


def test_llms_of_a_draw_are_not_scored_and_draws_are_seeded(slower: MeasuredRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "DRAWS", 1)
    monkeypatch.setattr(engines, "ROWS", 2)
    everyone = np.ones(len(slower), dtype=bool)
    one, again = (engines.new_engine(slower, everyone, unfitted(), seed=1)[1] for _ in range(2))
    assert one == again
    assert one.scores["E"].n in (10, 15)  # two rows are of one or two of the four LLMs, five rows each
