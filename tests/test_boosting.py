"""The learner: a scikit-learn estimator, robust where readings are too low, monotone where physics says so."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn comes with the extra 'train'")
xgboost = pytest.importorskip("xgboost", reason="xgboost comes with the extra 'train'")

from sklearn.base import clone  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

from pie_p.boosting import BoostedTrees  # noqa: E402


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning", "ignore:.*__sklearn_tags__.*")
@parametrize_with_checks([BoostedTrees(trees=60, leaves=31, rate=0.2)])
def test_keeps_the_conventions_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def bent(rows: int = 4000) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    inputs = random.uniform(0, 1, size=(rows, 3)).astype(np.float32)
    return inputs, 0.2 + 0.6 * inputs[:, 0] ** 2 + 0.1 * inputs[:, 1]


def test_constructors_do_nothing_and_clones_are_equal() -> None:
    one = BoostedTrees(trees=7, knee=0.1, monotone=(1, 0, 0))
    assert clone(one).get_params() == one.get_params()
    assert not hasattr(one, "forest_")


def test_what_is_saved_is_xgboosts_own_format() -> None:
    inputs, target = bent()
    learner = BoostedTrees(trees=20, knee=0.05).fit(inputs, target)
    booster = xgboost.Booster()
    booster.load_model(bytearray(json.dumps(learner.saved_).encode()))
    assert np.array_equal(booster.predict(xgboost.DMatrix(inputs)), learner.predict(inputs))


def test_readings_far_too_low_do_not_pull_the_fit() -> None:
    inputs, target = bent()
    low = target * np.where(np.random.default_rng(1).random(len(target)) < 0.2, 0.4, 1.0)
    shape = {"trees": 150, "leaves": 16, "rate": 0.1, "least_rows": 20}
    robust, plain = (BoostedTrees(**shape, knee=knee).fit(inputs, low).predict(inputs) for knee in (0.02, None))  # type: ignore[arg-type]
    assert np.median(np.abs(robust / target - 1)) < 0.03
    assert np.median(np.abs(plain / target - 1)) > 0.08


@pytest.mark.parametrize("knee", [None, 0.05])
def test_monotone_inputs_give_monotone_answers(knee: float | None) -> None:
    inputs, target = bent()
    noisy = target + 0.1 * np.random.default_rng(2).standard_normal(len(target))
    learner = BoostedTrees(trees=60, knee=knee, monotone=(1, 0, 0)).fit(inputs, noisy)
    line = np.column_stack([np.linspace(-1, 2, 400), np.full(400, 0.5), np.full(400, 0.5)]).astype(np.float32)
    assert np.all(np.diff(learner.predict(line)) >= 0)


def test_the_same_rows_and_seed_give_the_same_bits() -> None:
    inputs, target = bent()
    first, second = (json.dumps(BoostedTrees(trees=15).fit(inputs, target).saved_) for _ in range(2))
    assert first == second
