"""Scores, worked by hand."""

import numpy as np
import pytest

from pie_p.errors import InputError
from pie_p.scoring.scores import mean_score, score


def test_a_perfect_prediction_scores_zero() -> None:
    measured = np.array([1.0, 2.0, 3.0])
    one = score(measured, measured)
    assert (one.n, one.mape, one.median, one.p90, one.bias) == (3, 0.0, 0.0, 0.0, 0.0)
    assert (one.within_10, one.within_25) == (1.0, 1.0)


def test_errors_are_relative_to_what_was_measured() -> None:
    one = score(np.array([120.0, 50.0, 105.0, 100.0]), np.full(4, 100.0))
    assert one.mape == pytest.approx((0.20 + 0.50 + 0.05) / 4)
    assert one.bias == pytest.approx((0.20 - 0.50 + 0.05) / 4)
    assert one.median == pytest.approx(0.125)
    assert (one.within_10, one.within_25) == (0.5, 0.75)


def test_rows_without_either_figure_do_not_count() -> None:
    one = score(np.array([1.0, np.nan, 3.0]), np.array([1.0, 2.0, np.nan]))
    assert one.n == 1
    with pytest.raises(InputError, match=r"none of 2 rows has both"):
        score(np.array([np.nan, 1.0]), np.array([1.0, np.nan]))


def test_a_mask_picks_rows() -> None:
    assert score(np.array([1.0, 9.0]), np.ones(2), np.array([True, False])).mape == 0.0


def test_the_mean_of_scores_is_taken_figure_by_figure() -> None:
    whole = mean_score([score(np.array([1.1]), np.ones(1)), score(np.array([0.7, 0.7]), np.ones(2))])
    assert whole.mape == pytest.approx(0.2)
    assert whole.bias == pytest.approx(-0.1)
    assert whole.n == 1
