"""Measured runs as cases: what a row means, and what is left out by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pie_p.end_to_end import family_of, measured_runs
from pie_p.errors import InputError

ROW: dict[str, Any] = {
    "llm": "meta-llama/Llama-3.1-70B-Instruct",
    "gpu": "h100-sxm-80gb",
    "tp": 4.0,
    "batch": 32.0,
    "prompt_tokens": 150.0,
    "output_tokens": 350.0,
    "output_second_moment": 230_000.0,
    "engine": "vllm",
    "engine_version": "0.11.1",
    "time_per_token_s": 0.0214,
    "avg_power_w": 1800.0,
    "power_limit_w": 700.0,
}


def test_a_row_becomes_the_case_that_was_run() -> None:
    runs = measured_runs([ROW])
    [case] = runs.cases
    assert (case.deployment.plan.tp, case.request.batch, case.request.mode) == (4, 32.0, "steady")
    assert case.request.length_spread == pytest.approx(230_000 / 350**2)
    assert case.power_limit_w is None  # the board's own limit is no cap
    assert runs.power_w[0] == pytest.approx(450.0)  # of one board of four


def test_energy_follows_from_power_and_time_where_it_was_not_measured_and_power_from_energy() -> None:
    """E per output token = GPUs * P * T / (batch * dp)."""
    by_power = measured_runs([ROW])
    assert by_power.energy_per_output_token_j[0] == pytest.approx(1800 * 0.0214 / 32)
    by_energy = measured_runs([{**ROW, "avg_power_w": math.nan, "energy_per_output_token_j": 1800 * 0.0214 / 32}])
    assert by_energy.power_w[0] == pytest.approx(450.0)


def test_a_cap_below_the_board_s_limit_is_kept() -> None:
    assert measured_runs([{**ROW, "power_limit_w": 500.0}]).cases[0].power_limit_w == 500.0


def test_checkpoints_of_one_shape_are_one_group() -> None:
    names = ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.1-70B-Instruct")
    assert len(set(measured_runs([{**ROW, "llm": name} for name in names]).base)) == 1
    deep = [
        {**ROW, "llm": name, "gpu": "b200-sxm-180gb", "tp": 8} for name in ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-V3.1")
    ]
    assert len(set(measured_runs(deep).base)) == 1


def test_a_row_that_cannot_be_a_case_is_left_out_by_name() -> None:
    without = {name: value for name, value in ROW.items() if name != "batch"}
    runs = measured_runs([ROW, {**ROW, "llm": "no-such-llm"}, without])
    assert len(runs) == 1
    assert "row 1 (no-such-llm)" in runs.left_out[0]
    assert "column 'batch' is missing" in runs.left_out[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"batch": math.nan}, "batch = nan is not allowed"),
        ({"batch": None}, "batch = None is not a number"),
        ({"tp": 1.5}, "tp = 1.5 is not a whole number"),
        ({"engine_version": 7}, "engine_version = 7 is not a text"),
        ({"power_limit_w": "low"}, "power_limit_w = 'low' is not a number"),
        ({"itl_s": "fast"}, "itl_s = 'fast' is not a number"),
    ],
)
def test_a_row_with_a_value_that_is_not_known_is_never_answered_as_another(change: dict[str, Any], reason: str) -> None:
    """A batch that was not stated is not batch 1, and 1.5 ranks are not one."""
    runs = measured_runs([ROW, {**ROW, **change}])
    assert len(runs) == 1
    assert reason in runs.left_out[0]


@pytest.mark.parametrize("nothing", [None, math.nan, np.float64("nan")])
def test_degrees_that_are_not_given_are_one(nothing: object) -> None:
    """As a pandas table holds them where another row has the column."""
    case = measured_runs([{**ROW, "tp": 2, "pp": nothing, "dp": nothing, "ep": nothing}]).cases[0]
    assert case.deployment.plan.gpus == 2


def test_rows_of_which_none_can_be_used_are_one_line() -> None:
    with pytest.raises(InputError, match="no measured run could be used"):
        measured_runs([{**ROW, "llm": "no-such-llm"}])


def test_taking_runs_keeps_their_figures_together() -> None:
    runs = measured_runs([ROW, {**ROW, "batch": 64.0, "time_per_token_s": 0.03}])
    second = runs.take(np.array([False, True]))
    assert (second.cases[0].request.batch, float(second.time_per_token_s[0])) == (64.0, 0.03)


def test_families_follow_the_first_word_or_the_table() -> None:
    assert [family_of(name) for name in ("mixtral-8x7b", "codegemma-7b", "qwen3-8b")] == ["mistral", "gemma", "qwen"]
