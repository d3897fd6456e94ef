"""The six figures, held against the scoring recipe written down again by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p.bench.figures import SIX, Quantiles, Totals
from pie_p.errors import InputError


def recipe(words: int, tokens: int, responses: int, seconds: float, joules: float) -> dict[str, float]:
    """arXiv 2310.03003: each rate is its total over seconds; watts are joules per second; energy per token and response."""
    return {
        "words_per_s": words / seconds,
        "tokens_per_s": tokens / seconds,
        "responses_per_s": responses / seconds,
        "power_w": joules / seconds,
        "energy_per_output_token_j": joules / tokens,
        "energy_per_response_j": joules / responses,
    }


def test_hand_made_totals_give_the_figures_of_the_recipe() -> None:
    """1,000 responses of 150 words and 200 tokens in 1,600 s at 960 J/s."""
    totals = Totals(words=150_000, tokens=200_000, responses=1_000, seconds=1_600.0, joules=1_536_000.0)
    by_hand = {
        "words_per_s": 93.75,
        "tokens_per_s": 125.0,
        "responses_per_s": 0.625,
        "power_w": 960.0,
        "energy_per_output_token_j": 7.68,
        "energy_per_response_j": 1536.0,
    }
    assert {name: getattr(totals, name) for name in SIX} == by_hand
    assert recipe(150_000, 200_000, 1_000, 1_600.0, 1_536_000.0) == by_hand


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 10**7), st.floats(1e-3, 1e7), st.floats(0, 1e12, allow_subnormal=False))
def test_any_totals_give_the_figures_of_the_recipe(words: int, tokens: int, responses: int, seconds: float, joules: float) -> None:
    totals = Totals(words=words, tokens=tokens, responses=responses, seconds=seconds, joules=joules)
    assert {name: getattr(totals, name) for name in SIX} == recipe(words, tokens, responses, seconds, joules)
    # watts over tokens per second is joules per token
    assert totals.power_w / totals.tokens_per_s == pytest.approx(totals.energy_per_output_token_j)


def test_what_is_not_known_is_absent_and_never_zero() -> None:
    unknown = Totals(words=1, tokens=2, responses=1, seconds=1.0, joules=None)
    assert (unknown.power_w, unknown.energy_per_output_token_j, unknown.energy_per_response_j) == (None, None, None)
    nothing = Totals(words=0, tokens=0, responses=0, seconds=0.0, joules=0.0)
    assert all(getattr(nothing, name) is None for name in SIX)


def test_totals_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match=r"^seconds = -1\.0 is not allowed"):
        Totals(words=1, tokens=1, responses=1, seconds=-1.0, joules=None)
    with pytest.raises(InputError, match=r"^joules = nan is not allowed"):
        Totals(words=1, tokens=1, responses=1, seconds=1.0, joules=float("nan"))


@given(st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=50))
def test_quantiles_are_numpys_and_lie_in_order(values: list[float]) -> None:
    found = Quantiles.of([*values, float("nan")])
    assert found is not None
    assert found.count == len(values)
    assert [found.p50_s, found.p90_s, found.p99_s] == pytest.approx(np.quantile(values, [0.5, 0.9, 0.99]).tolist())
    assert min(values) * (1 - 1e-9) <= found.p50_s <= found.p90_s <= found.p99_s <= max(values) * (1 + 1e-9)
    assert found.mean_s == pytest.approx(sum(values) / len(values))


def test_no_value_has_no_distribution() -> None:
    assert Quantiles.of([]) is None
    assert Quantiles.of([float("nan")]) is None
