"""Intervals cover what was never seen as often as they say, widen outside what was measured, and come back from plain numbers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from pie_p import Predictor, make_case
from pie_p.errors import PredictorError
from pie_p.intervals import LEVELS, Domain, Intervals, nested_coverage, width_at, widths_of
from pie_p.serving import Case


def case(**changes: object) -> Case:
    given = {"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "batch": 16, "prompt_tokens": 200, "output_tokens": 400, **changes}
    return make_case(given.pop("llm"), **given)  # type: ignore[arg-type]


def flat(width: float) -> tuple[float, ...]:
    return tuple(width * level for level in LEVELS)


@pytest.fixture(scope="module")
def intervals() -> Intervals:
    inside = [case(), case(batch=64, gpu="b200-sxm-180gb"), case(llm="llama-3.1-70b", tp=4, prompt_tokens=2000)]
    kinds = {"llm": flat(0.2), "gpu": flat(0.4), "gpus": flat(0.25), "dtype": flat(0.3), "range": flat(0.35), "attention_dp": flat(1.0)}
    return Intervals(widths={"energy": kinds, "time": kinds, "power": kinds}, domain=Domain.of(inside))


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_groups_never_seen_are_covered_as_often_as_the_level_says(level: float) -> None:
    """Exchangeable groups, each with its own bias: the nested coverage, mean over 40 draws, is the level."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(40):
        sizes = random.integers(5, 40, size=16)
        groups = np.repeat(np.arange(16), sizes)
        errors = np.repeat(random.normal(0, 0.1, 16), sizes) + random.normal(0, 0.05, sizes.sum())
        found.append(nested_coverage(errors, groups, level=level))
    by_run, by_group, _ = np.mean(found, axis=0)
    assert by_run == pytest.approx(level, abs=0.04)
    assert by_group == pytest.approx(level, abs=0.04)


def test_widths_of_a_new_group_cover_it_too() -> None:
    random = np.random.default_rng(1)
    inside = []
    for _ in range(200):
        groups, bias = np.repeat(np.arange(17), 10), random.normal(0, 0.1, 17)
        errors = bias[groups] + random.normal(0, 0.05, 170)
        known = groups < 16
        inside.append(np.mean(np.abs(errors[~known]) <= widths_of(errors[known], groups[known])[LEVELS.index(0.9)]))
    assert np.mean(inside) == pytest.approx(0.9, abs=0.05)


def test_widths_rise_with_the_level_and_a_large_group_counts_once() -> None:
    groups = np.array(["large"] * 1000 + ["a"] * 10 + ["b"] * 10 + ["c"] * 10)
    errors = np.where(groups == "large", 0.01, 0.3)
    widths = widths_of(errors, groups)
    assert list(widths) == sorted(widths)
    assert widths[LEVELS.index(0.5)] == pytest.approx(0.3)  # three of four groups err by 0.3


def test_a_single_group_keeps_its_plain_quantile() -> None:
    errors = np.linspace(-1, 1, 201)
    assert widths_of(errors, np.zeros(201))[LEVELS.index(0.9)] == pytest.approx(0.9, abs=0.02)


def test_inside_the_domain_there_is_nothing_to_warn_of(intervals: Intervals) -> None:
    assert intervals.in_domain(case(batch=32)) == []
    assert intervals.spread(case(batch=32))[-1] == (0.95, pytest.approx(0.2 * 0.95))


@pytest.mark.parametrize(
    ("changes", "width", "text"),
    [
        ({"gpu": "a100-sxm-80gb"}, 0.4, "a100-sxm-80gb is not among the boards whose energy was measured"),
        ({"dtype": "fp8"}, 0.3, "no run with fp8 weights was measured"),
        ({"batch": 500}, 0.35, "batch 500 is outside the measured 16 to 64"),
        ({"prompt_tokens": 30000}, 0.35, "context 30400 is outside the measured 600 to 2400"),
        ({"prompt_tokens": 100000}, 0.35, "context 100400 is outside the measured"),
        ({"llm": "llama-3.1-70b", "tp": 8}, 0.25, "8 GPUs that work together are more than the 4 measured"),
        ({"llm": "mixtral-8x7b", "dp": 2, "ep": 2}, 1.0, "attention-DP: only one LLM was measured"),
        ({"llm": "nemotron-nano-9b-v2"}, 1.0, "no LLM with state-space layers taught the predictor"),
        ({"pp": 2}, 1.0, "no run with pipeline parallelism was measured"),
        ({"engine": "trtllm"}, 1.0, "no energy was measured under trtllm"),
        ({"llm": "llama-3.1-70b", "tp": 16, "gpu": "h100-sxm-80gb"}, 1.0, "no run over several hosts was measured"),
        ({"gpu": "a100-sxm-80gb", "dtype": "fp8"}, 0.4, "is not among the boards"),
    ],
)
def test_outside_the_interval_is_as_wide_as_what_was_measured_for_it(
    intervals: Intervals, changes: dict[str, object], width: float, text: str
) -> None:
    """Where nothing was measured, the widest stands in."""
    asked = case(**changes)
    assert any(text in warning and warning.endswith("the interval is less certain") for warning in intervals.in_domain(asked))
    assert intervals.spread(asked)[LEVELS.index(0.9)][1] == pytest.approx(width * 0.9)


def test_replicas_are_no_attention_dp(intervals: Intervals) -> None:
    assert intervals.in_domain(case(dp=4)) == []


def test_plain_numbers_and_back(intervals: Intervals) -> None:
    assert Intervals.from_plain(json.loads(json.dumps(intervals.to_plain()))) == intervals


@pytest.mark.parametrize(
    "change", [{"levels": [0.9]}, {"widths": {"energy": {"llm": [0.1]}}}, {"widths": {}}, {"domain": {}}, {"widths": 3}]
)
def test_damaged_numbers_are_one_clear_line(intervals: Intervals, change: dict[str, object]) -> None:
    with pytest.raises(PredictorError, match="stored intervals") as caught:
        Intervals.from_plain({**intervals.to_plain(), **change})
    assert "\n" not in str(caught.value)


def test_levels_between_are_linear_and_beyond_are_errors() -> None:
    spread = [(0.5, 0.1), (0.9, 0.3)]
    assert width_at(spread, 0.25) == pytest.approx(0.05)
    for level in (0.0, 0.91, 1.5, math.nan):
        with pytest.raises(PredictorError, match="was not tested"):
            width_at(spread, level)


def test_a_prediction_carries_its_interval_and_its_warnings(intervals: Intervals) -> None:
    predictor = Predictor(intervals=intervals)
    [inside, outside] = predictor.predict([case(batch=32), case(batch=32, gpu="a100-sxm-80gb")])
    low, high = inside.interval(0.9)
    assert (high / inside.energy_j, inside.energy_j / low) == pytest.approx((math.exp(0.18), math.exp(0.18)))
    assert inside.warnings == ()
    assert math.log(outside.interval(0.9)[1] / outside.energy_j) == pytest.approx(0.36)
    assert any("a100-sxm-80gb" in warning for warning in outside.warnings)


def test_without_tested_widths_there_is_no_interval() -> None:
    [answer] = Predictor().predict([case()])
    with pytest.raises(PredictorError, match="no tested interval"):
        answer.interval()
