"""Step costs: a step added up from tables costs what the predictor says when asked about that very step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pie_p.cases import make_case
from pie_p.layers import Step
from pie_p.predictor import load_predictor, predict_energy
from pie_p.step_costs import StepFigures, Steps, StepTables, reach_of, seen_of, spaced, step_of, step_tables, time_steps

DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "dense": {"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb"},
    "tp": {"llm": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "tp": 4},
    "pp": {"llm": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "tp": 2, "pp": 4},
    "moe": {"llm": "qwen3-30b-a3b", "gpu": "h100-sxm-80gb", "tp": 2, "ep": 2},
    "windows": {"llm": "gpt-oss-20b", "gpu": "b200-sxm-180gb"},
    "attention-dp": {"llm": "deepseek-r1", "gpu": "b200-sxm-180gb", "dp": 8, "ep": 8},
}


def tables_of(name: str) -> StepTables:
    deployment = make_case(**DEPLOYMENTS[name], prompt_tokens=1, output_tokens=1).deployment
    return step_tables(load_predictor(), deployment, most_sequences=256, most_context=20_000, most_prompt=8192)


def drawn(seed: int, count: int = 150) -> Steps:
    """Steps of every kind: decode alone, prompts alone, both."""
    rng = np.random.default_rng(seed)
    decoding = np.where(rng.random(count) < 0.2, 0.0, np.round(np.exp(rng.uniform(0.0, np.log(256.0), count))))
    reads = (rng.random(count) < 0.6) | (decoding == 0)
    tokens = np.where(reads, np.round(np.exp(rng.uniform(0.0, np.log(8192.0), count))), 0.0)
    seen = np.clip(tokens / 2 * np.exp(rng.uniform(-1.0, 3.0, count)), 1.0, 15_000.0)
    return Steps(decoding, np.exp(rng.uniform(3.0, 9.5, count)), tokens, seen, reads.astype(np.float64))


def asked(tables: StepTables, steps: Steps) -> StepFigures:
    each = [step_of(*(float(value) for value in one)) for one in zip(*steps, strict=True)]
    return time_steps(tables.predictor, tables.deployment, each)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_steps_added_up_from_tables_are_within_a_percent_of_the_predictor_asked_directly(name: str) -> None:
    tables, steps = tables_of(name), drawn(1)
    read, direct = tables.figures(steps), asked(tables, steps)
    assert read.step_s == pytest.approx(direct.step_s, rel=0.01)
    assert read.demand_s.sum(axis=1) == pytest.approx(direct.demand_s.sum(axis=1), rel=0.02)
    assert read.board_s == pytest.approx(direct.board_s, rel=0.01, abs=0.003 * float(direct.step_s.max()))


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_boards_compute_communicate_or_wait_at_every_moment(name: str) -> None:
    tables, steps = tables_of(name), drawn(2)
    for figures in (tables.figures(steps), asked(tables, steps)):
        assert figures.board_s.sum(axis=1) == pytest.approx(figures.step_s * tables.deployment.plan.gpus, rel=1e-12)


def test_the_steps_of_a_prediction_take_the_time_that_it_says() -> None:
    """Batch 1: one prefill step and `output - 1` decode steps, whose times a prediction states."""
    answer = predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", prompt_tokens=500, output_tokens=101)
    prefill = Step(prefill_sequences=1.0, prefill_tokens=500.0, prefill_ends=1.0)
    decode = Step(decode_sequences=1.0, decode_start=500.0, decode_growth=100.0)
    found = time_steps(load_predictor(), answer.deployment, [prefill, decode])
    assert found.step_s[0] == pytest.approx(answer.ttft_s, rel=1e-12)
    assert found.step_s[1] == pytest.approx(answer.itl_s, rel=1e-12)


def test_more_context_more_prompt_and_more_sequences_never_take_less_time() -> None:
    tables = tables_of("dense")
    rising = np.linspace(1.0, 200.0, 40)
    ones, zeros = np.ones(40), np.zeros(40)
    for steps in (
        Steps(rising, ones * 500, zeros, zeros, zeros),
        Steps(ones * 16, rising * 50, zeros, zeros, zeros),
        Steps(ones * 16, ones * 500, rising * 20, rising * 10, ones),
        Steps(ones * 16, ones * 500, ones * 500, 250 + rising * 20, ones),
    ):
        assert (np.diff(tables.figures(steps).step_s) >= -1e-12).all()


def test_reach_and_seen_are_inverse() -> None:
    tokens, seen = np.array([100.0, 100.0, 100.0]), np.array([10.0, 50.0, 4000.0])
    assert seen_of(tokens, reach_of(tokens, seen)) == pytest.approx(seen)


def test_several_fresh_prompts_see_less_than_one_of_the_same_tokens() -> None:
    step = step_of(4.0, 100.0, 1000.0, 125.0)  # four prompts of 250
    assert (step.prefill_sequences, step.prefill_tokens, step.prefill_cached) == (4.0, 250.0, 0.0)
    step = step_of(4.0, 100.0, 1000.0, 2500.0)  # one after 2,000 cached
    assert (step.prefill_sequences, step.prefill_tokens, step.prefill_cached) == (1.0, 1000.0, 2000.0)


def test_nodes_rise_from_first_to_last() -> None:
    for first, last, ratio, whole in ((1, 1.5, 2.0, 0), (1, 5000, 1.06, 16), (64, 128, 3.0, 0), (1, 2, 1.3, 4)):
        nodes = spaced(first, last, ratio, whole=whole)
        assert (np.diff(nodes) > 0).all()
        assert (nodes[0], nodes[-1]) == (first, last)
