"""Folds: fits of runs that follow a known law."""

import numpy as np
import pytest
from scoring_runs import perfect_runs

from pie_p.predictor import Predictor
from pie_p.scoring.folds import SHIPPED, Fits, Job, answers_of, answers_over, energy_j, unfitted, without_waits
from pie_p.scoring.splits import everything, roles_of, splits_of
from pie_p.serving import assemble

pytest.importorskip("scipy", reason="scipy comes with the extra: pip install 'pie_p[train]'")


def test_answers_are_those_of_predict() -> None:
    runs = perfect_runs().take(np.arange(0, 32, 5))
    answers = answers_of(runs, assemble(runs.cases), unfitted())
    said = Predictor().predict(runs.cases)
    assert answers.time_s == pytest.approx([one.time_per_token_s for one in said])
    assert answers.itl_s == pytest.approx([one.itl_s for one in said])
    assert energy_j(runs, answers.time_s, answers.power_w) == pytest.approx([one.energy_per_output_token_j for one in said])


def test_a_fit_of_runs_that_follow_the_priors_answers_for_unseen_llms_exactly() -> None:
    runs = perfect_runs()
    roles = roles_of(runs)
    folds = splits_of(runs, roles)[0].folds
    fits = Fits(runs, jobs=1)
    fits.run([Job(fold=fold) for fold in folds])
    answers = answers_over(runs, folds, fits)
    kept = roles.scored & (runs.odd == "")
    assert answers.time_s[kept] == pytest.approx(runs.time_per_token_s[kept], rel=1e-4)
    assert answers.power_w[kept] == pytest.approx(runs.power_w[kept], rel=1e-4)
    assert np.isnan(answers.time_s[~roles.scored]).all()


def test_a_fold_that_repeats_is_fitted_once() -> None:
    runs, told = perfect_runs(), []
    fold = everything(roles_of(runs))
    fits = Fits(runs, jobs=1, progress=lambda done, of, what: told.append((done, of, what)))
    fits.run([Job(fold=fold), Job(fold=fold)])
    fits.run([Job(fold=fold)])
    assert told == [(1, 1, f"{SHIPPED.name}, without all rows")]


def test_processes_find_what_one_process_finds() -> None:
    runs = perfect_runs()
    jobs = [Job(fold=fold) for fold in splits_of(runs, roles_of(runs))[0].folds[:2]]
    one, two = Fits(runs, jobs=1), Fits(runs, jobs=2)
    one.run(jobs)
    two.run(jobs)
    assert [one[job] for job in jobs] == [two[job] for job in jobs]


def test_without_waits_a_token_takes_its_kernels_alone() -> None:
    runs = perfect_runs()
    assembly = assemble(runs.cases)
    quick, whole = (answers_of(runs, assembly, physics).time_s for physics in (without_waits(unfitted()), unfitted()))
    assert (quick < whole).all()
