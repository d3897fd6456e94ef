"""The learner keeps scikit-learn's conventions."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("sklearn", reason="learning needs the extra 'train'")
pytest.importorskip("xgboost", reason="learning needs the extra 'train'")

from sklearn.utils.estimator_checks import parametrize_with_checks

from pie_p.boosting import BoostedTrees


@pytest.mark.filterwarnings("ignore")  # scikit-learn's own checks warn about what they provoke
@parametrize_with_checks([BoostedTrees(trees=20, leaves=8, least_rows=1.0)])
def test_boosted_trees_are_an_estimator_by_every_check_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
