"""The surface: within 1 % of the predictor asked directly, the closed form of many steps the sum of each, one lookup like the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_step_costs import DEPLOYMENTS, asked, drawn, tables_of

from pie_p.replay_surface import Surface, make_surface
from pie_p.step_costs import Steps


def surface_of(name: str, lanes: int = 1) -> Surface:
    return make_surface(tables_of(name), most_sequences=256, most_context=20_000, most_prompt=8192, lanes=lanes)


@pytest.fixture(scope="module")
def dense() -> Surface:
    return surface_of("dense")


@pytest.mark.parametrize("name", ["dense", "tp", "pp", "moe"])
def test_the_surface_is_within_a_percent_of_the_predictor(name: str) -> None:
    surface, steps = surface_of(name), drawn(3)
    direct = asked(surface.tables, steps)
    reads = steps.prefill_tokens > 0
    own = np.zeros((len(reads), 7))
    own[reads] = surface.mixed_figures(Steps(*(one[reads] for one in steps)))
    own[~reads] = surface.decode_figures(steps.decode_sequences[~reads].astype(int), steps.context_tokens[~reads])[0]
    error = own[:, 0] / direct.step_s - 1.0
    assert np.median(np.abs(error)) < 0.002
    assert np.quantile(np.abs(error), 0.95) < 0.01
    assert np.abs(error).max() < 0.03
    asks = own[:, 4:].sum(axis=1) / direct.demand_s.sum(axis=1) - 1.0
    assert np.quantile(np.abs(asks), 0.95) < 0.01
    assert own[:, 1:4].sum(axis=1) == pytest.approx(own[:, 0] * surface.gpus, rel=1e-9)


def test_many_decode_steps_in_a_row_take_the_sum_of_each(dense: Surface) -> None:
    line = dense.line(7, 900.0)
    steps = min(line.most, 400)
    each = dense.decode_figures(np.full(steps, 7), 900.0 + np.arange(steps))[0][:, 0]
    assert line.time_s(steps) == pytest.approx(each.sum(), rel=1e-9)


def test_a_line_ends_where_the_surface_bends(dense: Surface) -> None:
    context = 2.0
    for _ in range(30):
        line = dense.line(3, context)
        assert line.most >= 1
        ends = dense.decode_figures(np.array([3, 3]), np.array([context, context + line.most - 1]))[0][:, 0]
        if context + line.most < dense.contexts[-1]:
            assert line.first_s + line.slope_s * (line.most - 1) == pytest.approx(ends[1], rel=1e-9)
        context += line.most
        if context > 15_000:
            break


def test_one_lookup_is_like_many(dense: Surface) -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        tokens = float(rng.integers(1, 8192))
        place = (float(rng.integers(0, 200)), float(rng.uniform(1, 15_000)), tokens, float(rng.uniform(1, 12_000)), int(rng.integers(0, 4)))
        many = dense.mixed_figures(Steps(*(np.array([float(one)]) for one in place)))
        assert dense.mixed_s(*place) == pytest.approx(many[0, 0], rel=1e-9)
        assert many[0, 1:4].sum() == pytest.approx(many[0, 0] * dense.gpus, rel=1e-9)


def test_every_prompt_that_ends_takes_the_host_its_time(dense: Surface) -> None:
    costs: Any = dense.tables.predictor.costs_of(dense.tables.deployment.engine)
    more = dense.mixed_s(4, 100, 400, 100, 3) - dense.mixed_s(4, 100, 400, 100, 1)
    assert more == pytest.approx(2 * (costs.prompt_s + costs.sequence_s))


def test_lanes_step_together_as_one_rank_does(dense: Surface) -> None:
    """Eight sequences over eight attention-DP ranks are one on each."""
    assert "attention-dp" in DEPLOYMENTS
    wide = surface_of("attention-dp", lanes=8)
    one = asked(wide.tables, Steps(*(np.array([value]) for value in (1.0, 500.0, 0.0, 0.0, 0.0))))
    assert wide.line(8, 500.0).first_s == pytest.approx(float(one.step_s[0]), rel=0.01)
    assert wide.line(3, 500.0).first_s == wide.line(8, 500.0).first_s  # ranks without a request run along
