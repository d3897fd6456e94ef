"""The whole evaluation: exact on runs that follow a known law; close to what was published for the public ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from scoring_runs import perfect_report, perfect_runs

from pie_p.errors import InputError, ProfileError
from pie_p.scoring import EvaluationReport, evaluate_end_to_end
from pie_p.scoring.end_to_end import ALL, FITTED, NO_ODD, PLAIN_SUM, evaluate_runs
from pie_p.scoring.folds import Fits, Job, answers_over, energy_j
from pie_p.scoring.scores import score
from pie_p.scoring.splits import UNSEEN_LLM, roles_of, splits_of

for extra in ("scipy", "xgboost", "pyarrow"):
    pytest.importorskip(extra, reason=f"{extra} comes with the extra: pip install 'pie_p[train]'")

DATA = Path(os.environ.get("PIE_P_SHARED", Path(__file__).parents[2] / "shared")) / "data"


@pytest.fixture
def report() -> EvaluationReport:
    return perfect_report()


def test_physics_answers_exactly_for_runs_that_follow_it(report: EvaluationReport) -> None:
    for split in {one.split for one in report.scores}:
        for target in ("T", "P", "E", "E given T"):
            found = report.find(split=split, target=target, part=NO_ODD)
            assert found is not None
            assert found.score.mape < 1e-3, (split, target)


def test_odd_rows_are_reported_and_not_hidden(report: EvaluationReport) -> None:
    everything, without = (report.find(split=UNSEEN_LLM, target="T", part=part) for part in (ALL, NO_ODD))
    assert everything is not None
    assert without is not None
    assert everything.score.n == without.score.n + 2
    assert everything.score.mape == pytest.approx(2 * (1 - 1 / 3) / everything.score.n, rel=1e-2)  # two rows take three times as long


def test_a_sum_without_waits_takes_too_little_time(report: EvaluationReport) -> None:
    found = report.find(split=UNSEEN_LLM, method=PLAIN_SUM, target="T")
    assert found is not None
    assert found.score.bias < -0.05


def test_who_predicts_exactly_chooses_exactly(report: EvaluationReport) -> None:
    [first] = [one for one in report.decisions if one.method == FITTED and one.part == NO_ODD]
    assert (first.top_1, first.broken, first.front_found, first.front_true) == (1.0, 0.0, 1.0, 1.0)


def test_the_report_is_plain_data_without_nan(report: EvaluationReport) -> None:
    text = json.dumps(report.to_dict())
    assert "NaN" not in text
    assert set(json.loads(text)) >= {"sources", "scores", "engines", "decisions", "intervals", "sensitivities", "worst"}


def test_the_same_runs_give_the_same_report(report: EvaluationReport) -> None:
    assert perfect_report.__wrapped__().to_dict() == report.to_dict()


def test_a_score_that_was_not_made_is_none(report: EvaluationReport) -> None:
    assert report.find(split="unseen planet") is None


def test_a_folder_without_a_profile_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError):
        evaluate_end_to_end([tmp_path])


def test_runs_without_the_scored_source_are_an_error() -> None:
    older = perfect_runs().take(perfect_runs().source == "mlenergy_v2")
    with pytest.raises(InputError, match=r"no run comes from 'mlenergy_v3'"):
        evaluate_runs(older, jobs=1)


def test_runs_of_one_llm_alone_are_an_error() -> None:
    runs = perfect_runs()
    one = runs.take((runs.source == "mlenergy_v3") & (runs.base == runs.base[runs.source == "mlenergy_v3"][0]))
    with pytest.raises(InputError, match=r"unseen LLM: without .* no run is left to learn from"):
        evaluate_runs(one, jobs=1)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no public data at {DATA}; set PIE_P_SHARED")
def test_energy_of_unseen_families_on_public_rows(tmp_path: Path) -> None:
    from pie_p.end_to_end import measured_runs
    from pie_p.importers import import_source
    from pie_p.profiles import load_profile

    rows = []
    for name in ("mlenergy_v3", "mlenergy_v2"):
        import_source(name, DATA / name, tmp_path / name)
        rows += list(load_profile(tmp_path / name).end_to_end.iter_rows())
    runs = measured_runs(rows)
    roles = roles_of(runs)
    split = splits_of(runs, roles)[1]
    fits = Fits(runs, jobs=2)
    fits.run([Job(fold=fold) for fold in split.folds])
    answers = answers_over(runs, split.folds, fits)
    energy = energy_j(runs, answers.time_s, answers.power_w)
    everything = score(energy, runs.energy_per_output_token_j, roles.scored)
    without = score(energy, runs.energy_per_output_token_j, roles.scored & (runs.odd == ""))
    assert (everything.n, without.n) == (318, 285)
    assert everything.mape < 0.15  # the goals of the project for LLM families never seen
    assert without.mape < 0.12
    assert len(np.unique(roles.shape[roles.scored])) == 12
