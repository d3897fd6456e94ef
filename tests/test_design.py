"""The design of points, against a grid of the same size and against what "cover" means."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p.errors import InputError, UnknownNameError
from pie_p.operators import COLLECTIVES, KINDS
from pie_p.profiling.design import SPACES, Budget, choose, farthest_first, halton, signature


def reach(points: np.ndarray, everywhere: np.ndarray) -> float:
    """Largest distance from any place to its nearest point."""
    return float(np.max(np.min(np.linalg.norm(everywhere[:, None] - points[None], axis=2), axis=1)))


def test_every_kind_that_runs_on_one_rank_has_a_space() -> None:
    assert set(SPACES) == set(KINDS) - COLLECTIVES


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 1000))
def test_no_choice_of_as_many_points_could_be_more_than_twice_as_near(count: int, dimensions: int, seed: int) -> None:
    places = np.random.default_rng(seed).random((60, dimensions))
    taken = places[farthest_first(places, count + 1)]
    apart = min(np.linalg.norm(one - other) for index, one in enumerate(taken) for other in taken[:index])
    # Of count + 1 places that lie `apart`, two share their nearest point in any choice of `count`: its reach is at least apart / 2.
    assert reach(taken[:-1], places) <= apart + 1e-12


@pytest.mark.parametrize("count", [16, 27, 48])
def test_every_beginning_of_the_list_covers_better_than_random_points(count: int) -> None:
    candidates, everywhere = halton(1024, 3), np.random.default_rng(1).random((2000, 3))
    chosen = candidates[farthest_first(candidates, 64)[:count]]
    rivals = [reach(np.random.default_rng(seed).random((count, 3)), everywhere) for seed in range(9)]
    assert reach(chosen, everywhere) < np.median(rivals)


@pytest.mark.parametrize("kind", sorted(SPACES))
def test_points_are_distinct_and_inside_the_budget(kind: str) -> None:
    budget = Budget(most_flops=1e12, most_bytes=1e9)
    chosen = choose(kind, 24, budget=budget)  # type: ignore[arg-type]
    assert len({signature(operator) for operator in chosen}) == len(chosen) == 24
    assert all(operator.kind == kind and operator.flops <= 1e12 and operator.hbm_bytes <= 1e9 for operator in chosen)


def test_points_span_the_range_in_ratios() -> None:
    tokens = [operator.tokens for operator in choose("linear", 24)]
    assert max(tokens) / min(tokens) > 1000
    assert sum(value < math.sqrt(16384) for value in tokens) == pytest.approx(12, abs=5)


def test_the_first_points_do_not_depend_on_how_many_are_asked_for() -> None:
    assert choose("norm", 40)[:10] == choose("norm", 10)


def test_dtypes_take_turns_and_change_the_bytes() -> None:
    first, second = choose("linear", 2, dtypes=("bf16", "fp8"))
    assert (first.dtype, second.dtype) == ("bf16", "fp8")
    assert second.weight_bytes == second.in_features * second.out_features


def test_unknown_kinds_and_empty_budgets_are_refused_with_what_is_allowed() -> None:
    with pytest.raises(UnknownNameError, match=r"no kernel space for 'liner'. Did you mean: linear"):
        choose("liner", 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"no lm_head fits into 1 FLOP and 1 bytes"):
        choose("lm_head", 1, budget=Budget(most_flops=1, most_bytes=1))


def test_the_signature_forgets_place_and_number_of_calls() -> None:
    operator = choose("linear", 1)[0]
    assert signature(operator) == signature(operator._replace(path="decode/layer/mlp/up_proj", calls=7.0))
    assert signature(operator) != signature(operator._replace(tokens=operator.tokens + 1))


@given(st.integers(1, 500), st.integers(1, 6))
def test_halton_points_lie_in_the_cube_and_never_repeat(count: int, dimensions: int) -> None:
    points = halton(count, dimensions)
    assert points.min() > 0
    assert points.max() < 1
    assert len(np.unique(points[:, 0])) == count
