"""Energies of segments: settled as lives settle, and shared out without a joule left over, by either rule."""

from __future__ import annotations

import numpy as np
import pytest
from test_step_costs import tables_of

from pie_p.replay_energy import cut, settled, spend
from pie_p.replay_engine import Chunk, Segment, Stay
from pie_p.replay_surface import Surface, make_surface


@pytest.fixture(scope="module")
def surface() -> Surface:
    return make_surface(tables_of("dense"), most_sequences=64, most_context=8000, most_prompt=4096)


def decode_segment(surface: Surface, start_s: float, steps: int, decoding: int, context: float, done: int) -> Segment:
    step_s = float(surface.decode_figures(np.array([decoding]), np.array([context]))[0][0, 0])
    return Segment(start_s, start_s + steps * step_s, steps, decoding, context, 0.0, 0.0, 0, done)


def mixed_segment(surface: Surface, start_s: float, decoding: int, context: float, tokens: float, done: int) -> Segment:
    step_s = surface.mixed_s(decoding, context, tokens, tokens / 2, 1)
    return Segment(start_s, start_s + step_s, 1, decoding, context, tokens, tokens / 2, 1, done)


@pytest.mark.parametrize("rule", ["marginal", "proportional"])
def test_what_requests_pay_adds_up_to_every_segment(surface: Surface, rule: str) -> None:
    """Requests 0 (context from 100) and 1 (from 900) decode 10 steps; request 2 is read beside them; then all three decode 5 steps."""
    first = decode_segment(surface, 0.0, 10, 2, 505.0, 0)
    second = mixed_segment(surface, first.end_s, 2, 510.5, 600.0, 10)
    third = decode_segment(surface, second.end_s, 5, 3, (111 + 911 + 600) / 3 + 2.5, 11)
    stays = [Stay(0, 0, 3, 100.0), Stay(1, 0, 3, 900.0), Stay(2, 2, 3, 600.0 - 11)]
    spent = spend(surface, [first, second, third], [Chunk(1, 2, 600)], stays, requests=4, rule=rule)  # type: ignore[arg-type]
    assert spent.request_j.sum(axis=0) == pytest.approx(spent.segment_j.sum(axis=0), rel=1e-12)
    assert spent.request_s.sum() == pytest.approx(spent.busy_s, rel=1e-12)
    assert (spent.request_j >= 0).all()
    assert spent.request_j[3].tolist() == [0.0, 0.0, 0.0]
    pays = spent.request_j.sum(axis=1)
    if rule == "marginal":
        assert pays[1] > pays[0]  # more context, more KV to read
    else:
        assert pays[1] == pytest.approx(pays[0])  # as many tokens
        part = spent.segment_j[1].sum() * 600 / 602
        assert pays[2] == pytest.approx(part + spent.segment_j[2].sum() / 3)


def test_prompts_pay_what_the_step_costs_beyond_the_same_step_without_them(surface: Surface) -> None:
    alone = decode_segment(surface, 0.0, 1, 4, 500.0, 0)
    mixed = mixed_segment(surface, alone.end_s, 4, 501.0, 700.0, 1)
    stays = [Stay(number, 0, 2, 500.0) for number in range(4)]
    spent = spend(surface, [alone, mixed], [Chunk(1, 4, 700)], stays, requests=5, rule="marginal")
    twin = spent.segment_j[0].sum()
    assert spent.request_j[:4].sum() == pytest.approx(2 * twin, rel=2e-3)  # one more token of context each
    assert spent.request_j[4].sum() == pytest.approx(spent.segment_j[1].sum() - twin, rel=2e-3)


def test_prompts_of_one_step_share_it_by_their_tokens(surface: Surface) -> None:
    segment = mixed_segment(surface, 0.0, 0, 1.0, 900.0, 0)
    spent = spend(surface, [segment], [Chunk(0, 0, 300), Chunk(0, 1, 600)], [], requests=2, rule="marginal")
    assert spent.request_j[1] == pytest.approx(2 * spent.request_j[0])
    assert spent.request_j.sum() == pytest.approx(spent.segment_j.sum())


def test_an_engine_that_served_nothing_took_nothing(surface: Surface) -> None:
    spent = spend(surface, [], [], [], requests=3, rule="marginal")
    assert (spent.busy_s, spent.request_j.sum(), spent.segment_j.shape) == (0.0, 0.0, (0, 3))


def test_below_the_limit_power_is_idle_plus_demand_bent_as_the_law_says(surface: Surface) -> None:
    law, gpu = surface.tables.predictor.power, surface.tables.deployment.cluster.gpu
    board_s, demand_s = np.array([[1.0, 0.0, 1.0]]), np.array([[0.5, 0.0, 0.1]])
    joules, level = settled(surface, np.zeros(1), np.array([2.0]), board_s, demand_s)
    limit_w, idle_w = np.array([gpu.limit_w]), np.array([gpu.active_idle_w])
    share = float(law.settled(np.array([0.3]), limit_w=limit_w, idle_w=idle_w)[0])
    assert joules.sum() == pytest.approx(2 * (gpu.active_idle_w + share * (gpu.limit_w - gpu.active_idle_w)))
    assert level.bent_w[0] == pytest.approx(share / 0.3 * (gpu.limit_w - gpu.active_idle_w))


def test_no_board_draws_more_than_it_can_hold_whatever_is_asked(surface: Surface) -> None:
    gpu, law = surface.tables.deployment.cluster.gpu, surface.tables.predictor.power
    start_s = np.arange(20) * 0.1
    board_s = np.tile([0.08, 0.0, 0.02], (20, 1))
    demand_s = board_s * np.where(np.arange(20) % 2, 3.0, 0.2)[:, None]
    joules, _ = settled(surface, start_s, start_s + 0.1, board_s, demand_s)
    assert (joules[:, 0] / 0.08).max() <= law.ceiling * gpu.limit_w * (1 + 1e-9)
    assert joules.sum() <= law.ceiling * gpu.limit_w * 2.0


def test_pieces_add_up_to_the_spans_they_were_cut_from() -> None:
    rng = np.random.default_rng(1)
    start = np.sort(rng.uniform(0, 100, 200))
    end = start + rng.exponential(3.0, 200)
    span, cell, seconds = cut(start, end, 0.7)
    assert np.bincount(span, weights=seconds) == pytest.approx(end - start)
    assert (seconds <= 0.7 + 1e-9).all()
    assert (cell * 0.7 <= end[span]).all()
