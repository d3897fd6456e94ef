"""Trees as arrays: XGBoost's own answers, whatever the trees, and one clear error for anything that is no such file."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p.errors import PredictorError
from pie_p.trees import Forest, forest_from_xgboost, lowest_bit

xgboost = pytest.importorskip("xgboost", reason="xgboost comes with the extra 'train'")


def grown(seed: int = 0, *, rows: int = 3000, features: int = 6, missing: float = 0.1, trees: int = 20, **more: Any) -> tuple[Any, Any]:
    """A booster and fresh inputs, some of them missing."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, features)).astype(np.float32)
    inputs[random.random(inputs.shape) < missing] = np.nan
    filled = np.nan_to_num(inputs)
    target = filled[:, 0] * filled[:, 1] + np.sin(3 * filled[:, 2])
    given_ = {"max_depth": 6, "eta": 0.3, "nthread": 1, "seed": seed, **more}
    booster = xgboost.train(given_, xgboost.DMatrix(inputs, label=target), num_boost_round=trees)
    return booster, random.normal(size=(500, features)).astype(np.float32)


def saved(booster: Any) -> dict[str, Any]:
    return dict(json.loads(bytes(booster.save_raw("json"))))


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    leaves=st.sampled_from([2, 7, 64, 65, 200]),
    missing=st.sampled_from([0.0, 0.2]),
    base=st.floats(-5, 5),
)
def test_equals_xgboost_to_the_bit(seed: int, leaves: int, missing: float, base: float) -> None:
    shape = {"grow_policy": "lossguide", "max_leaves": leaves, "max_depth": 0, "base_score": base}
    booster, inputs = grown(seed, missing=missing, **shape)
    inputs[::7, 1] = np.nan
    inputs[3], inputs[4] = 1e30, -1e30
    assert np.array_equal(forest_from_xgboost(saved(booster)).predict(inputs), booster.predict(xgboost.DMatrix(inputs)))


def test_values_on_a_threshold_go_where_xgboost_sends_them() -> None:
    booster, _ = grown(missing=0.0)
    forest = forest_from_xgboost(saved(booster))
    edges = np.zeros((60, forest.features), dtype=np.float32)
    edges[:, 0] = np.resize(forest.thresholds[0], 60)
    assert np.array_equal(forest.predict(edges), booster.predict(xgboost.DMatrix(edges)))


def test_rows_of_one_value_and_rows_one_by_one_agree_with_many() -> None:
    booster, inputs = grown()
    forest = forest_from_xgboost(saved(booster))
    assert np.array_equal(forest.predict(inputs), [forest.predict(row[None])[0] for row in inputs])


def test_no_rows_and_no_trees() -> None:
    booster, _ = grown(trees=1)
    assert forest_from_xgboost(saved(booster)).predict(np.zeros((0, 6))).shape == (0,)
    empty = Forest(
        1.5, 2, np.zeros((0, 64), dtype=np.float32), (np.zeros(0, dtype=np.float32),) * 2, (np.zeros((2, 0, 1), dtype=np.uint64),) * 2
    )
    assert empty.predict(np.zeros((3, 2))).tolist() == [1.5, 1.5, 1.5]


def test_the_lowest_of_all_bits() -> None:
    words = np.array([[0, 0, 1 << 63], [1 << 63, 1, 1], [0, 1, 7]], dtype=np.uint64)
    assert lowest_bit(words).tolist() == [191, 63, 64]


def test_inputs_of_another_shape_are_refused() -> None:
    booster, inputs = grown()
    with pytest.raises(PredictorError, match=r"shape \(500, 5\) do not fit a forest of 6 features"):
        forest_from_xgboost(saved(booster)).predict(inputs[:, :5])


def damaged(change: str) -> dict[str, Any]:
    one = copy.deepcopy(saved(grown(trees=2)[0]))
    tree = one["learner"]["gradient_booster"]["model"]["trees"][1]
    if change == "loop":
        tree["left_children"][0] = 0
    elif change == "two parents":
        tree["right_children"][0] = tree["left_children"][0]
    elif change == "feature":
        tree["split_indices"][0] = 99
    elif change == "short":
        tree["right_children"].pop()
    elif change == "not a number":
        tree["split_conditions"][0] = float("nan")
    elif change == "categorical":
        tree["split_type"][0] = 1
    elif change == "link":
        one["learner"]["objective"]["name"] = "binary:logistic"
    elif change == "linear":
        one["learner"]["gradient_booster"]["name"] = "gblinear"
    elif change == "base":
        one["learner"]["learner_model_param"]["base_score"] = "inf"
    elif change == "many features":
        one["learner"]["learner_model_param"]["num_feature"] = "100000000"
    elif change == "foreign":
        one = {"learner": {"gradient_booster": []}}
    elif change == "text":
        tree["left_children"] = "abc"
    return one


CHANGES = {
    "loop": "is no tree",
    "two parents": "is no tree",
    "feature": "is no tree",
    "short": "is torn",
    "not a number": "is torn",
    "categorical": "categorical splits",
    "link": "only regression trees without a link function",
    "linear": "only regression trees without a link function",
    "base": "base_score inf",
    "many features": "1 to 1000 are allowed",
    "foreign": "is not a model file of XGBoost",
    "text": "is not a model file of XGBoost",
}


@pytest.mark.parametrize(("change", "text"), CHANGES.items())
def test_a_damaged_booster_is_one_clear_error(change: str, text: str) -> None:
    with pytest.raises(PredictorError, match=text):
        forest_from_xgboost(damaged(change), what="x.json")
