"""Requests and output lengths: moments worked by hand, the definitions of static and steady, and bad values refused."""

from __future__ import annotations

import math
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p.errors import InputError, PiePError
from pie_p.workload import DEFAULT_SPREAD, LengthDistribution, Request

LENGTHS = st.lists(st.integers(1, 100_000), min_size=1, max_size=50)


def request(**changes: object) -> Request:
    return Request(**{"prompt_tokens": 100, "output_tokens": 200, **changes})  # type: ignore[arg-type]


def request_or_refusal(changes: dict[str, object]) -> Request | str:
    try:
        return request(**changes)
    except PiePError as error:
        return str(error)


# Output lengths


def test_equal_lengths_have_a_spread_of_one() -> None:
    assert LengthDistribution.from_lengths([7, 7, 7]).spread == pytest.approx(1.0, rel=1e-12)


def test_two_lengths_have_the_moments_worked_by_hand() -> None:
    lengths = LengthDistribution.from_lengths([100, 400], counts=[3, 1])
    assert lengths.mean == 175.0  # (3 * 100 + 400) / 4
    assert lengths.second_moment == 47_500.0  # (3 * 100^2 + 400^2) / 4


def test_exponential_lengths_have_a_spread_of_two() -> None:
    """E[L^2] = 2 E[L]^2 for an exponential law."""
    generator = random.Random(20251130)
    lengths = LengthDistribution.from_lengths([generator.expovariate(1 / 300) for _ in range(40_000)])
    assert lengths.mean == pytest.approx(300, rel=0.02)
    assert lengths.spread == pytest.approx(2.0, rel=0.03)


@given(LENGTHS)
def test_no_lengths_spread_less_than_equal_ones(lengths: list[int]) -> None:
    assert LengthDistribution.from_lengths(lengths).spread >= 1 - 1e-9


@given(LENGTHS)
def test_a_count_says_how_often_a_length_occurred(lengths: list[int]) -> None:
    repeated = LengthDistribution.from_lengths([length for length in lengths for _ in range(3)])
    counted = LengthDistribution.from_lengths(lengths, counts=[3] * len(lengths))
    assert counted.mean == pytest.approx(repeated.mean, rel=1e-12)
    assert counted.second_moment == pytest.approx(repeated.second_moment, rel=1e-12)


def test_a_histogram_bin_is_uniform_between_its_edges() -> None:
    """Uniform on a..b: mean (a + b) / 2, E[L^2] = (a^2 + a b + b^2) / 3; here on 0..30 in three equal bins."""
    lengths = LengthDistribution.from_histogram([0, 10, 20, 30], [5, 5, 5])
    assert lengths.mean == pytest.approx(15.0, rel=1e-12)
    assert lengths.second_moment == pytest.approx(300.0, rel=1e-12)


def test_a_fine_histogram_has_the_moments_of_its_lengths() -> None:
    generator = np.random.default_rng(7)
    values = generator.gamma(2.0, 150.0, size=20_000)
    counts, edges = np.histogram(values, bins=400)
    exact, binned = LengthDistribution.from_lengths(list(values)), LengthDistribution.from_histogram(list(edges), list(counts))
    assert binned.mean == pytest.approx(exact.mean, rel=1e-3)
    assert binned.second_moment == pytest.approx(exact.second_moment, rel=1e-3)


@pytest.mark.parametrize(
    ("edges", "counts", "text"),
    [
        ([0, 10], [1, 2], "2 bin edges for 2 counts; a histogram has one more edge than counts"),
        ([0, 10], [0], "needs at least one count above 0; every count is 0"),
        ([0, 10, 5], [1, 1], "bin edge 5 follows 10; the edges of a histogram rise"),
        ([0, math.nan], [1], "bin edge = nan is not allowed"),
        ([-5, 10], [1], "bin edge = -5 is not allowed"),
        (["0", 10], [1], "bin edge = '0' is not a number"),
        ([0, 10], [-1], "count = -1 is not allowed"),
        ([0, 10], ["7"], "count = '7' is not a number"),
    ],
)
def test_a_broken_histogram_is_refused(edges: list[float], counts: list[float], text: str) -> None:
    with pytest.raises(InputError, match=text):
        LengthDistribution.from_histogram(edges, counts)


@pytest.mark.parametrize(
    ("lengths", "counts", "text"),
    [
        ([], None, "^0 output lengths with counts that sum to 0; give at least one length that occurred$"),
        ([1, 2], [0, 0], "^2 output lengths with counts that sum to 0"),
        ([1, 2], [1], "^2 output lengths but 1 counts; give one count per length$"),
        ([1, -2], None, "^output length = -2 is not allowed"),
        ([math.inf], None, "^output length = inf is not allowed"),
        (["long"], None, "^output length = 'long' is not a number"),
        ([0, 0], None, r"^mean of output_tokens = 0\.0 is not allowed; give a finite number of at least 0\.001"),
    ],
)
def test_broken_lengths_are_refused(lengths: list[float], counts: list[float] | None, text: str) -> None:
    with pytest.raises(InputError, match=text):
        LengthDistribution.from_lengths(lengths, counts)


def test_a_second_moment_below_the_squared_mean_cannot_be() -> None:
    with pytest.raises(InputError, match=r"^second moment of output_tokens = 9999 is not allowed"):
        LengthDistribution(mean=200, second_moment=9999)


def test_a_second_moment_that_needs_endless_lengths_cannot_be() -> None:
    with pytest.raises(InputError, match=r"^second moment of output_tokens = 1e\+17 is not allowed"):
        LengthDistribution(mean=10, second_moment=1e17)


# Requests


def test_a_request_is_static_at_batch_one_and_steady_above() -> None:
    assert request().mode == "static"
    assert request(batch=1.5).mode == "steady"
    assert request(batch=64, mode="static").mode == "static"


def test_no_output_means_prefill_only_which_is_static() -> None:
    assert request(output_tokens=0, batch=64).mode == "static"
    with pytest.raises(InputError, match=r"^output_tokens = 0 is a prefill-only request, which has no steady state; use mode='static'$"):
        request(output_tokens=0, mode="steady")


def test_a_number_means_exactly_that_length_when_static_and_a_default_spread_when_steady() -> None:
    assert request(batch=64, mode="static").length_spread == 1.0
    assert request(batch=1, mode="steady").length_spread == 1.0
    assert 1.0 < request(batch=64).length_spread < DEFAULT_SPREAD
    assert request(batch=1e7).length_spread == pytest.approx(DEFAULT_SPREAD, rel=1e-6)


def test_observed_lengths_bring_their_own_mean_and_spread() -> None:
    for lengths in ([100, 300], (100, 300), np.array([100, 300]), LengthDistribution(mean=200, second_moment=50_000)):
        observed = request(output_tokens=lengths, batch=8)
        assert observed.mean_output_tokens == 200.0
        assert observed.length_spread == 1.25


def test_cached_tokens_are_not_computed_but_one_token_always_is() -> None:
    assert request(cached_prompt_tokens=60).new_prompt_tokens == 40
    assert request(cached_prompt_tokens=100).new_prompt_tokens == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"prompt_tokens": 0}, r"^prompt_tokens = 0 is not allowed; give a finite number of at least 0\.001 and at most 1e\+08$"),
        ({"prompt_tokens": math.nan}, "^prompt_tokens = nan is not allowed"),
        ({"prompt_tokens": "100"}, "^prompt_tokens = '100' is not a number"),
        ({"prompt_tokens": True}, "^prompt_tokens = True is not a number"),
        ({"output_tokens": -1}, "^output_tokens = -1 is not allowed; give a finite number of at least 0"),
        ({"output_tokens": 1e-300}, r"^output_tokens = 1e-300 is not allowed; give a finite number of at least 0\.001"),
        ({"output_tokens": math.inf}, "^output_tokens = inf is not allowed"),
        ({"output_tokens": "many"}, "^output_tokens = 'many' is not a number"),
        ({"output_tokens": {"mean": 3}}, r"^output_tokens is a mapping; use LengthDistribution.from_lengths\(lengths, counts\)$"),
        ({"output_tokens": []}, "^0 output lengths"),
        ({"batch": 0}, "^batch = 0 is not allowed; give a finite number of at least 1"),
        ({"batch": 0.5}, "^batch = 0.5 is not allowed"),
        ({"batch": -math.inf}, "^batch = -inf is not allowed"),
        ({"cached_prompt_tokens": -1}, "^cached_prompt_tokens = -1 is not allowed"),
        (
            {"cached_prompt_tokens": 101},
            "^cached_prompt_tokens = 101 is more than prompt_tokens = 100; cached tokens are part of the prompt$",
        ),
        ({"mode": "fast"}, r"^mode = 'fast' is not known; allowed: 'static' \(all start together\), 'steady' \(a server kept at batch\)$"),
        ({"mode": np.zeros(3)}, r"^mode = array\(\[0., 0., 0.\]\) is not known"),
        ({"mode": 1}, "^mode = 1 is not known"),
    ],
)
def test_a_bad_request_is_refused_by_name_and_value(changes: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        request(**changes)


ANYTHING = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5) | st.lists(st.floats(), max_size=3)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("prompt_tokens", "output_tokens", "batch", "cached_prompt_tokens"), ANYTHING)))
def test_any_input_gives_a_finite_request_or_one_line(changes: dict[str, object]) -> None:
    made = request_or_refusal(changes)
    if isinstance(made, str):
        assert "\n" not in made
        return
    for figure in (made.prompt_tokens, made.mean_output_tokens, made.length_spread, made.new_prompt_tokens, made.batch):
        assert math.isfinite(figure)
        assert figure >= 0


def test_a_request_is_frozen_equal_by_value_and_survives_pickle() -> None:
    one = request(batch=np.float32(8), output_tokens=[100, 300])
    assert pickle.loads(pickle.dumps(one)) == one
    assert hash(one) == hash(request(batch=8, output_tokens=[300, 100]))
    with pytest.raises(AttributeError):
        one.batch = 9.0  # type: ignore[misc]
