"""Figures and words that people read: three significant figures with a prefix, and nothing that was not computed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p import predict_energy
from pie_p.accounting import Scope
from pie_p.energy import EnergyBreakdown
from pie_p.wording import PART_WORDS, SCOPE_WORDS, change, degrees, deployment_words, interval_words, quantity, request_words, share

PREFIX = {"G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9}


def read(text: str, unit: str) -> float:
    """A printed quantity as a number again."""
    found = re.fullmatch(rf"(-?[\d.]+) ([GMkmµn]?){unit}", text)
    assert found, text
    return float(found[1]) * PREFIX[found[2]]


@given(st.floats(1e-8, 9e11))
def test_a_printed_quantity_is_right_to_three_figures(value: float) -> None:
    assert read(quantity(value, "J"), "J") == pytest.approx(value, rel=0.006)


@given(st.floats(1e-8, 9e11))
def test_a_printed_quantity_has_at_most_three_figures_and_one_prefix(value: float) -> None:
    number = quantity(value, "J").split(" ")[0]
    assert len(number.replace(".", "").lstrip("0")) <= 4
    assert 0.999 <= float(number) <= 1000


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1.00 W"), (999.4, "999 W"), (1234.0, "1.23 kW"), (0.0, "0 W"), (None, "–"), (-2.5, "-2.50 W")]
)
def test_quantities_are_printed_like_this(value: float | None, text: str) -> None:
    assert quantity(value, "W") == text


def test_a_share_of_nothing_is_not_a_number() -> None:
    assert share(0.0, 0.0) == "–"
    assert share(1.0, 3.0) == "33.3 %"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.0, "the same"), (1.0001, "the same"), (1.5, "+50.0 %"), (0.5, "-50.0 %"), (2.0, "x 2.00"), (13.7, "x 13.70"), (None, "–")],
)
def test_a_change_is_in_percent_until_it_is_a_factor(ratio: float | None, text: str) -> None:
    assert change(ratio) == text


def test_every_scope_and_every_part_has_words() -> None:
    assert set(SCOPE_WORDS) == set(Scope.__args__)  # type: ignore[attr-defined]
    assert set(PART_WORDS) == set(EnergyBreakdown.__dataclass_fields__)


def test_words_say_what_runs_where_and_what_was_asked() -> None:
    answer = predict_energy(
        "llama-3.1-8b", gpu="h100-sxm-80gb", tp=2, dp=2, batch=8.5, prompt_tokens=200, cached_prompt_tokens=50, output_tokens=100
    ).to_dict()
    assert deployment_words(answer) == "llama-3.1-8b (bf16) on 4 x h100-sxm-80gb, TP2 DP2"
    assert request_words(answer) == "200 prompt (50 cached) + 100 output tokens, batch 8.5, steady"
    assert degrees(answer | {"tp": 1, "dp": 1}) == "one GPU"


def test_an_interval_names_its_level_and_its_absence_is_no_text() -> None:
    answer = {"interval": {"level": 0.9, "low_j": 100.0, "high_j": 2000.0}}
    assert interval_words(answer) == "90 % interval 100 J to 2.00 kJ"
    assert interval_words({"interval": None}) == ""
