"""Operating points answer between the grid's places what the predictor answers there."""

from __future__ import annotations

import numpy as np
import pytest

from pie_p.errors import InputError
from pie_p.operating_points import OperatingPoints, operating_points
from pie_p.predictor import predict_energy

DEPLOYMENT = {"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "tp": 2, "dp": 2}


@pytest.fixture(scope="module")
def points() -> OperatingPoints:
    return operating_points(DEPLOYMENT, predictor="physics")


def test_a_request_put_together_from_steps_and_its_prompt_costs_what_the_predictor_says(points: OperatingPoints) -> None:
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(30):
        batch, prompt, output = (float(np.exp(rng.uniform(*np.log(bounds)))) for bounds in ((2, 200), (30, 4000), (16, 2000)))
        asked = predict_energy(**DEPLOYMENT, batch=batch, prompt_tokens=prompt, output_tokens=output, predictor="physics")
        costs = points.at(batch, prompt, output)
        energy_j = float(costs.step_j.sum()) * output / batch + float(costs.prompt_j.sum())
        time_s = (float(costs.step_s) * output / batch + float(costs.prompt_s)) * batch / output
        assert asked.time_per_token_s == pytest.approx(time_s, rel=0.12)
        errors.append(energy_j / asked.energy_j - 1.0)
    assert max(map(abs, errors)) < 0.1
    assert np.mean(np.abs(errors)) < 0.02
    assert abs(np.mean(errors)) < 0.01


def test_on_a_place_of_the_grid_the_answer_is_the_predictors_with_its_split(points: OperatingPoints) -> None:
    asked = predict_energy(**DEPLOYMENT, batch=32, prompt_tokens=256, output_tokens=128, predictor="physics")
    costs = points.at(32, 256, 128)
    parts = costs.step_j * 128 / 32 + costs.prompt_j
    assert list(parts) == pytest.approx([asked.breakdown.compute_j, asked.breakdown.communication_j, asked.breakdown.wait_j], rel=1e-6)


def test_arrays_answer_like_single_numbers(points: OperatingPoints) -> None:
    many = points.at(np.array([1.0, 7.0, 3000.0]), np.array([20.0, 300.0, 9e5]), np.array([1.0, 90.0, 50.0]))
    for number, place in enumerate([(1.0, 20.0, 1.0), (7.0, 300.0, 90.0), (3000.0, 9e5, 50.0)]):
        one = points.at(*place)
        assert np.allclose(many.step_j[number], one.step_j)
        assert np.allclose(many.prompt_s[number], one.prompt_s)


def test_a_cached_prompt_costs_less_and_steps_do_not_change(points: OperatingPoints) -> None:
    whole, cached = points.at(16, 2048, 100), points.at(16, 2048, 100, new_prompt_tokens=256)
    assert cached.prompt_j.sum() < 0.4 * whole.prompt_j.sum()
    assert np.array_equal(cached.step_j, whole.step_j)


def test_beyond_the_batch_that_fits_a_token_costs_what_it_costs_there() -> None:
    tight = operating_points({"llm": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "tp": 2}, predictor="physics")
    per_token = [float(tight.at(batch, 16384, 512).step_j.sum()) / batch for batch in (256, 512, 1024)]
    assert per_token == pytest.approx([per_token[0]] * 3, rel=0.02)


def test_the_load_is_not_part_of_a_deployment() -> None:
    with pytest.raises(InputError, match=r"^batch is given for a deployment whose load is observed; leave it out$"):
        operating_points({**DEPLOYMENT, "batch": 8})
