"""Estimates: joules of a window against laws worked out by hand, and against a server simulated step by step for ten minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_server import (
    Counts,
    SimulatedServer,
    bursty_arrivals,
    predicted_steps,
    sglang_page,
    trtllm_page,
    vllm_page,
)

from pie_p.accounting import Accounting
from pie_p.operating_points import OperatingPoints, operating_points
from pie_p.watch.estimates import Estimator, Habits
from pie_p.watch.watcher import Watcher
from pie_p.watch.windows import Window

DEPLOYMENT = {"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb"}
IDLE_W = 120.4  # active idle of one H100 SXM in the catalogue [W]


@pytest.fixture(scope="module")
def predicted() -> OperatingPoints:
    return operating_points(DEPLOYMENT, predictor="physics")


@pytest.fixture(scope="module")
def by_law(predicted: OperatingPoints) -> OperatingPoints:
    """A server whose law is known: a step takes 10 ms + 0.1 ms per sequence at 400 W, a prompt adds 20 ms at 600 W, all of it compute."""
    batch = np.broadcast_to(predicted.axes[0][:, None, None], predicted.grid.shape[:3])
    grid = np.zeros_like(predicted.grid)
    grid[..., 3] = 0.010 + 1e-4 * batch
    grid[..., 0] = 400.0 * grid[..., 3]
    grid[..., 7] = 0.020
    grid[..., 4] = 600.0 * grid[..., 7]
    return replace(predicted, grid=grid, most_power_w=673.0)


def window(**known: Any) -> Window:
    """A window of 5 s in which nothing happened, but for what is given."""
    nothing: dict[str, Any] = {
        "seconds": 5.0, "prompt_tokens": 0.0, "cached_tokens": 0.0, "new_prompt_tokens": 0.0, "output_tokens": 0.0, "prompts": 0.0,
        "finished": 0.0, "steps": 0.0, "step_tokens": 0.0, "busy_s": None, "itl_sum_s": None, "itl_count": None, "running": (0.0, 0.0),
        "waiting": (0.0, 0.0), "live_tokens": True, "resets": 0,
    }  # fmt: skip
    return Window(**nothing | known)


BUSY = {
    "output_tokens": 2000.0,
    "steps": 100.0,
    "step_tokens": 2000.0,
    "prompts": 10.0,
    "prompt_tokens": 1000.0,
    "new_prompt_tokens": 1000.0,
}


def test_a_known_law_gives_the_joules_worked_out_by_hand(by_law: OperatingPoints) -> None:
    found = Estimator(points=by_law).estimate(window(**BUSY), Habits(), ranks=1)
    # batch 20: 100 steps of 12 ms at 400 W, 10 prompts of 20 ms at 600 W, the other 3.6 s idle
    assert found.batch == pytest.approx(20)
    assert found.busy_s == pytest.approx(1.4)
    assert found.busy.compute_j == pytest.approx(100 * 0.012 * 400 + 10 * 0.020 * 600)
    assert found.idle_j == pytest.approx(3.6 * IDLE_W)
    assert found.energy_j == pytest.approx(sum(found.parts_j().values()))


def test_a_server_that_takes_longer_than_predicted_waits_at_idle_power(by_law: OperatingPoints) -> None:
    between_s = 0.012 + 0.1 * 0.020 * (1 - 1 / 20)
    slow = window(**BUSY, itl_count=1990.0, itl_sum_s=1990 * 1.5 * between_s)
    found = Estimator(points=by_law).estimate(slow, Habits(), ranks=1)
    assert found.time_ratio == pytest.approx(1.5)
    assert found.busy_s == pytest.approx(1.5 * 1.4)
    assert found.busy.wait_j == pytest.approx(0.5 * 1.4 * IDLE_W)
    assert found.busy.compute_j == pytest.approx(600.0)  # the work is the same


def test_a_gpu_that_tells_its_busy_seconds_is_believed(by_law: OperatingPoints) -> None:
    found = Estimator(points=by_law).estimate(window(**BUSY, busy_s=2.8), Habits(), ranks=1)
    assert found.busy_s == pytest.approx(2.8)


def test_a_queue_at_both_ends_means_busy_all_the_time(by_law: OperatingPoints) -> None:
    found = Estimator(points=by_law).estimate(window(**BUSY, running=(20.0, 20.0), waiting=(3.0, 1.0)), Habits(), ranks=1)
    assert found.busy_s == 5.0
    assert found.idle_j == 0.0


def test_nothing_running_is_idle_power_and_no_requests(by_law: OperatingPoints) -> None:
    found = Estimator(points=by_law).estimate(window(), Habits(), ranks=1)
    assert found.parts_j() == pytest.approx({"compute": 0.0, "communication": 0.0, "wait": 0.0, "idle": 5 * IDLE_W})
    assert found.batch == 0.0
    measured = Estimator(points=by_law, idle_w=70.0).estimate(window(), Habits(), ranks=1)
    assert measured.energy_j == pytest.approx(350.0)


def test_a_server_that_counts_no_output_is_busy_while_requests_run(by_law: OperatingPoints) -> None:
    silent = window(**{**BUSY, "output_tokens": None, "step_tokens": None}, running=(20.0, 20.0))
    found = Estimator(points=by_law).estimate(silent, Habits(), ranks=1)
    assert (found.busy_s, found.batch, found.output_tokens) == (5.0, 20.0, 0.0)
    assert 5.0 * 400.0 <= found.energy_j <= 5.0 * 600.0  # between the law's steps and its prompts


def test_work_that_does_not_fit_the_window_is_bounded_by_what_boards_can_draw(by_law: OperatingPoints) -> None:
    found = Estimator(points=by_law).estimate(window(**{**BUSY, "output_tokens": 2e5, "step_tokens": 2e5, "steps": 1e4}), Habits(), ranks=1)
    assert found.busy_s == 5.0
    assert found.energy_j == pytest.approx(5.0 * 673.0)


def test_host_and_site_go_with_busy_and_idle_time(by_law: OperatingPoints) -> None:
    accounting = Accounting(scope="facility", pue=1.5)
    found = Estimator(points=by_law, accounting=accounting).estimate(window(**BUSY), Habits(), ranks=1)
    cluster = by_law.deployment.cluster
    boards_j = 600.0 + 3.6 * IDLE_W
    host_j = 5.0 * cluster.host_idle_w / cluster.gpus_per_host + cluster.host_load_fraction * boards_j
    assert found.energy_j == pytest.approx(1.5 * (boards_j + host_j))


def test_two_ranks_share_the_steps_and_both_idle(predicted: OperatingPoints, by_law: OperatingPoints) -> None:
    two = operating_points({**DEPLOYMENT, "dp": 2}, predictor="physics")
    law = replace(two, grid=by_law.grid, most_power_w=673.0)
    found = Estimator(points=law).estimate(window(**BUSY), Habits(), ranks=2)
    assert found.busy_s == pytest.approx(0.7)
    assert found.energy_j == pytest.approx(600.0 + 2 * 4.3 * IDLE_W)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.floats(0, 1e7), steps=st.one_of(st.none(), st.floats(0, 1e5)), prompts=st.one_of(st.none(), st.floats(0, 1e4)),
    itl=st.one_of(st.none(), st.floats(0, 1e4)), running=st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), live=st.booleans(),
    seconds=st.floats(1e-3, 1e4), finished=st.floats(0, 1e4),
)  # fmt: skip
def test_whatever_a_server_says_the_power_lies_between_idle_and_the_limit(
    predicted: OperatingPoints, tokens: float, steps: float | None, prompts: float | None, itl: float | None, running: tuple[float, float],
    live: bool, seconds: float, finished: float,
) -> None:  # fmt: skip
    seen = window(
        seconds=seconds, output_tokens=tokens, step_tokens=tokens, steps=steps, prompts=prompts, itl_sum_s=itl, itl_count=itl and tokens,
        running=running, live_tokens=live, finished=finished, prompt_tokens=tokens, new_prompt_tokens=tokens if live else None,
    )  # fmt: skip
    found = Estimator(points=predicted).estimate(seen, Habits(), ranks=1)
    assert 0.0 <= found.busy_s <= seconds
    assert all(joules >= 0.0 for joules in found.parts_j().values())
    assert found.power_w <= predicted.most_power_w * (1 + 1e-9)


def watched(
    points: OperatingPoints, page: Callable[[Counts], str], *, slower: float, arrivals: deque[Any], every_s: float = 5.0
) -> tuple[float, Watcher]:
    """Estimated over true energy of ten simulated minutes, scraped with jitter, after half a minute of warm-up."""
    cost, idle_w = predicted_steps(DEPLOYMENT, output_tokens=96, slower=slower)
    server = SimulatedServer(cost, idle_w, arrivals)
    watcher, jitter = Watcher(points), np.random.default_rng(5)
    server.advance(30.0)
    before_j = server.energy_j
    watcher.take("s", page(server.counts), now_s=server.now_s, wall_s=0.0)
    for number in range(1, int(600 / every_s) + 1):
        server.advance(30.0 + every_s * number + float(jitter.uniform(-0.4, 0.4)))
        watcher.take("s", page(server.counts), now_s=server.now_s, wall_s=0.0)
    assert watcher.totals().output_tokens <= server.counts.output_tokens
    return watcher.totals().total_j / (server.energy_j - before_j), watcher


@pytest.mark.parametrize(
    ("page", "slower", "within"),
    [
        pytest.param(vllm_page, 1.0, 0.05, id="vllm"),
        pytest.param(vllm_page, 1.3, 0.05, id="vllm, 30 % slower than predicted"),
        pytest.param(sglang_page, 1.3, 0.05, id="sglang with live counters"),
        pytest.param(lambda counts: sglang_page(counts, new=False), 1.0, 0.05, id="sglang before them"),
        pytest.param(trtllm_page, 1.0, 0.10, id="tensorrt-llm, tokens counted at the end"),
    ],
)
def test_over_ten_minutes_of_bursts_and_silence_live_energy_is_near_the_truth(
    predicted: OperatingPoints, page: Callable[[Counts], str], slower: float, within: float
) -> None:
    ratio, _ = watched(predicted, page, slower=slower, arrivals=bursty_arrivals(seconds=640, seed=3))
    assert ratio == pytest.approx(1.0, abs=within)


def test_a_trickle_of_single_requests_is_mostly_idle_and_still_near_the_truth(predicted: OperatingPoints) -> None:
    ratio, watcher = watched(predicted, vllm_page, slower=1.0, arrivals=bursty_arrivals(seconds=640, seed=4, rates=(0.2,)))
    assert ratio == pytest.approx(1.0, abs=0.05)
    assert watcher.totals().busy_s < 0.4 * watcher.totals().seconds


def test_scraping_three_times_as_seldom_costs_little(predicted: OperatingPoints) -> None:
    ratio, _ = watched(predicted, vllm_page, slower=1.0, arrivals=bursty_arrivals(seconds=640, seed=6), every_s=15.0)
    assert ratio == pytest.approx(1.0, abs=0.05)
