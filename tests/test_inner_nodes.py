"""PIE-P's weighted children."""

import numpy as np
import pytest
from scoring_runs import perfect_runs

from pie_p.scoring.folds import unfitted
from pie_p.scoring.inner_nodes import TAU, alphas, children_j, weighted_sum
from pie_p.serving import assemble

pytest.importorskip("scipy", reason="scipy comes with the extra: pip install 'pie_p[train]'")


def test_the_children_add_up_to_the_energy_of_the_whole() -> None:
    runs = perfect_runs()
    children = children_j(assemble(runs.cases), unfitted())
    kept = runs.odd == ""
    assert children.sum(axis=1)[kept] == pytest.approx(runs.energy_per_output_token_j[kept], rel=1e-9)


def test_children_that_are_right_keep_the_weight_one() -> None:
    draw = np.random.default_rng(0)
    children = draw.uniform(1, 2, (40, 3))
    features = draw.normal(size=(40, 2))
    whole = children.sum(axis=1)
    assert weighted_sum(children, features, whole, np.arange(40) < 20) == pytest.approx(whole)


def test_a_child_that_is_five_percent_too_small_is_found() -> None:
    draw = np.random.default_rng(0)
    children = draw.uniform(0.1, 2, (200, 2))
    truth = children[:, 0] + 1.05 * children[:, 1]
    learned = weighted_sum(children, draw.normal(size=(200, 1)), truth, np.arange(200) < 100)
    before, after = (np.abs(said / truth - 1).mean() for said in (children.sum(axis=1), learned))
    assert after < 0.2 * before


def test_a_weight_moves_a_child_by_a_tenth_at_most() -> None:
    wild = alphas(np.random.default_rng(0).normal(size=(50, 3)), np.full((3, 4), 100.0))
    assert np.abs(wild - 1).max() <= 1 / TAU + 1e-12
