"""The learner: boosted trees as a scikit-learn estimator. Training code only; prediction reads the saved trees with `pie_p.trees`.

One class for every target, because a target is a plain number by then: log ratio of a time to its physical base, or a share of the room
between active idle and limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_p.extras import require
from pie_p.trees import Forest, forest_from_xgboost

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError:
    require("sklearn", extra="train")  # says which extra brings it
    raise

Floats = NDArray[np.float64]


class BoostedTrees(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Gradient boosting with leaf-wise trees, least squares or Huber's loss.

    Args:
        trees: number of trees [-].
        leaves: of each tree, at most [-].
        rate: share of a tree's answer that is added [-].
        l2: pull of every leaf towards 0 [rows].
        least_rows: rows a leaf needs [-].
        knee: residual beyond which a row pulls with constant force (Huber), as for power readings that are too low; None: least squares.
        monotone: per feature +1, -1 or 0, or None.
        seed: of every random draw.
        jobs: threads.
    """

    def __init__(
        self,
        *,
        trees: int = 120,
        leaves: int = 64,
        rate: float = 0.15,
        l2: float = 1.0,
        least_rows: float = 3.0,
        knee: float | None = None,
        monotone: tuple[int, ...] | None = None,
        seed: int = 0,
        jobs: int = 1,
    ) -> None:
        self.trees = trees
        self.leaves = leaves
        self.rate = rate
        self.l2 = l2
        self.least_rows = least_rows
        self.knee = knee
        self.monotone = monotone
        self.seed = seed
        self.jobs = jobs

    def fit(self, X: Any, y: Any) -> BoostedTrees:  # noqa: N803 - scikit-learn's names
        """Grow the trees; NaN in `X` is a missing value."""
        X, y = validate_data(self, X, y, ensure_all_finite="allow-nan", y_numeric=True, dtype=np.float32)  # noqa: N806
        xgboost = require("xgboost", extra="train")
        data = xgboost.DMatrix(X, label=y, nthread=self.jobs)
        loss = None if self.knee is None else huber(self.knee)
        booster = xgboost.train(self._settings(np.asarray(y, dtype=np.float64)), data, num_boost_round=self.trees, obj=loss)
        self.saved_ = compacted(json.loads(bytes(booster.save_raw("json"))))
        self.forest_: Forest = forest_from_xgboost(self.saved_)
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """The trees' answer."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, ensure_all_finite="allow-nan", dtype=np.float32)  # noqa: N806
        return self.forest_.predict(X)

    def _settings(self, y: Floats) -> dict[str, Any]:
        settings = {
            "objective": "reg:squarederror",
            "base_score": float(np.median(y)),
            "tree_method": "hist",
            "grow_policy": "lossguide",
            "max_leaves": self.leaves,
            "max_depth": 0,
            "eta": self.rate,
            "lambda": self.l2,
            "min_child_weight": self.least_rows,
            "seed": self.seed,
            "nthread": self.jobs,
        }
        if self.monotone is not None:
            settings["monotone_constraints"] = "(" + ",".join(map(str, self.monotone)) + ")"
        return settings

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def huber(knee: float) -> Any:
    """Huber's loss as iteratively reweighted least squares: a row beyond the knee counts `knee / |residual|`.

    XGBoost's own pseudo-Huber uses the second derivative, which vanishes far from the target, so that its steps explode and it does not
    arrive. The weight is the curvature of the parabola that touches the loss from above: every step goes down.

    Returns:
        For xgboost.train: (predictions, data) -> gradient and curvature per row.
    """

    def loss(predicted: Floats, data: Any) -> tuple[Floats, Floats]:
        residual = predicted - data.get_label()
        weight = knee / np.maximum(np.abs(residual), knee)
        return residual * weight, weight

    return loss


def compacted(saved: Mapping[str, Any]) -> dict[str, Any]:
    """XGBoost's model file without what prediction does not read (gains, covers, inner weights); XGBoost still loads it."""
    model = saved["learner"]["gradient_booster"]["model"]
    for tree in model["trees"]:
        for name in ("loss_changes", "sum_hessian", "base_weights"):
            tree[name] = [0.0] * len(tree[name])
    return dict(saved)
