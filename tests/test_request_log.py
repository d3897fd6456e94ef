"""Energy of past requests: laws worked out by hand, a simulated server's own truth, and sums that are exact."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_server import SimulatedServer, predicted_steps

from pie_p import request_log
from pie_p.accounting import Accounting
from pie_p.errors import InputError
from pie_p.operating_points import OperatingPoints, operating_points
from pie_p.replaying import replay
from pie_p.request_log import EstimatedLog, estimate_log
from pie_p.request_log_files import LogRows
from pie_p.traces import synthetic_trace

DEPLOYMENT = {"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb"}
IDLE_W = 120.4


def rows(*requests: tuple[float, float, float, float], deployment: list[str] | None = None, cached: float = 0.0) -> LogRows:
    start, end, prompt, output = (np.array(values, dtype=float) for values in zip(*requests, strict=True))
    count = len(requests)
    return LogRows(
        start_s=start, end_s=end, prompt_tokens=prompt, output_tokens=output, cached_prompt_tokens=np.full(count, cached),
        id=[str(number) for number in range(count)], deployment=deployment or [""] * count, lines=list(range(2, count + 2)), bad_rows=(),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def one_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids are filled once for all tests of this file."""
    monkeypatch.setattr(request_log, "operating_points", filled)


GRIDS: dict[str, OperatingPoints] = {}


def filled(deployment: Any, *, predictor: Any = None) -> OperatingPoints:
    key = repr(deployment)
    if key not in GRIDS:
        GRIDS[key] = operating_points(deployment, predictor="physics")
    return GRIDS[key]


@pytest.fixture
def law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes 10 ms + 0.1 ms per sequence at 400 W, a prompt adds 20 ms at 600 W, all of it compute."""
    predicted = filled(DEPLOYMENT)
    grid = np.zeros_like(predicted.grid)
    grid[..., 3] = 0.010 + 1e-4 * predicted.axes[0][:, None, None]
    grid[..., 0] = 400.0 * grid[..., 3]
    grid[..., 7] = 0.020
    grid[..., 4] = 600.0 * grid[..., 7]
    monkeypatch.setattr(request_log, "operating_points", lambda *_, **__: replace(predicted, grid=grid, most_power_w=673.0))


@pytest.mark.usefixtures("law")
def test_requests_that_overlap_share_steps_and_waiting_and_idle_is_nobodys() -> None:
    # 0..10 s alone, 10..20 s two together, 20..25 s nobody, 25..30 s alone
    found = estimate_log(rows((0, 20, 100, 200), (10, 20, 100, 100), (25, 30, 100, 50)), DEPLOYMENT)
    alone_j, shared_j, prompt_j = 400 * 0.0101, 400 * 0.0102 / 2, 600 * 0.020  # per token, per token of two, per prompt
    assert found.parts_j["compute"].tolist() == pytest.approx(
        [100 * alone_j + 100 * shared_j + prompt_j, 100 * shared_j + prompt_j, 50 * alone_j + prompt_j]
    )
    first_s = 20 - (100 * 0.0101 + 200 * 0.0102 / 2 + 2 * 0.020)  # of the stretch, beyond what its work takes
    last_s = 5 - (50 * 0.0101 + 0.020)
    assert found.parts_j["wait"].tolist() == pytest.approx([first_s * IDLE_W * 20 / 30, first_s * IDLE_W * 10 / 30, last_s * IDLE_W])
    assert found.idle_j[""] == pytest.approx(5 * IDLE_W)
    assert (found.busy_s[""], found.idle_s[""]) == (25, 5)
    assert found.batch.tolist() == pytest.approx([1.5, 2.0, 1.0])


@pytest.mark.usefixtures("law")
def test_a_server_faster_than_predicted_spends_what_it_did_not_idle_less() -> None:
    found = estimate_log(rows((0, 1, 100, 150)), DEPLOYMENT)  # the work takes 1.535 s by the law
    assert found.total_j == pytest.approx(150 * 400 * 0.0101 + 12 - 0.535 * IDLE_W)
    assert found.time_ratio[""] == pytest.approx(1 / 1.535)
    assert "was 1.5 times as fast as predicted" in found.warnings[0]


@pytest.mark.usefixtures("law")
def test_boards_held_by_jobs_idle_for_as_long_as_no_request_is_in_flight() -> None:
    held = rows((-100, 5, 0, 0), (0, 50, 0, 0), (200, 300, 0, 0), deployment=["", "", ""])
    found = estimate_log(rows((0, 20, 100, 200), (250, 320, 100, 10)), DEPLOYMENT, jobs=held)
    assert found.idle_s[""] == pytest.approx(150 + 100 - 20 - 50)
    assert "20 s of requests of the deployment lie outside every job; they count as busy" in found.warnings


def test_requests_beyond_what_an_engine_runs_at_once_wait_in_a_queue() -> None:
    """A replay is the truth: far more arrives than the server can take, and most requests wait."""
    trace = synthetic_trace(requests=2000, rate_per_s=200.0, prompt_tokens=500, output_tokens=200, seed=1)
    served = replay(trace, **DEPLOYMENT, predictor="physics")
    assert served.queue_s.max() > 5.0
    came_s = trace.arrival_s - trace.arrival_s[0]
    lives = zip(came_s, came_s + served.latency_s, trace.prompt_tokens, trace.output_tokens, strict=True)
    found = estimate_log(rows(*lives), DEPLOYMENT, predictor="physics")
    assert found.total_j == pytest.approx(served.energy_j, rel=0.02)


@pytest.mark.usefixtures("law")
def test_an_hour_in_flight_for_a_few_tokens_is_said(tmp_path: Path) -> None:
    """As where start and end are in different zones."""
    log = tmp_path / "r.csv"
    log.write_text("start,end,prompt_tokens,output_tokens\n2026-12-01T10:00:00+01:00,2026-12-01T10:00:02Z,100,150\n")
    found = estimate_log(log, DEPLOYMENT)
    assert found.time_ratio[""] == pytest.approx(3602 / 1.535)
    assert found.warnings[0].startswith("the deployment was busy 2346.6 times as long as the work takes by prediction; the rest counts as")
    assert estimate_log(rows((0, 2, 100, 150)), DEPLOYMENT).warnings == ()


def test_a_simulated_servers_day_is_near_its_truth() -> None:
    cost, idle_w = predicted_steps(DEPLOYMENT, output_tokens=96)
    rng = np.random.default_rng(8)
    at_s = np.cumsum(rng.exponential(0.6, size=700))
    at_s[300:] += 90.0  # silence
    arrivals = deque((float(at), int(rng.choice([64, 256, 640])), int(rng.integers(40, 200))) for at in at_s)
    server, seen = SimulatedServer(cost, idle_w, arrivals), {}
    step = server._step

    def watched() -> None:
        before = {id(one): one for one in server.active}
        step()
        for one in before.values():
            if one.left <= 0:
                seen[id(one)] = one

    server._step = watched  # type: ignore[method-assign]
    server.advance(float(at_s[-1]) + 30.0)
    done = list(seen.values())
    assert len(done) > 650
    found = estimate_log(rows(*((one.arrival_s, one.last_s, one.prompt, one.made) for one in done)), DEPLOYMENT)
    extra_j = (server.now_s - found.busy_s[""] - found.idle_s[""]) * idle_w  # before the first and after the last
    assert found.total_j + extra_j == pytest.approx(server.energy_j, rel=0.05)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1000), st.floats(0.1, 200), st.integers(1, 5000), st.integers(0, 2000)), min_size=1, max_size=40),
    st.sampled_from([1, 2]),
)
def test_requests_and_idle_add_up_and_power_stays_within_the_boards(requests: list[tuple[float, float, int, int]], dp: int) -> None:
    deployment = {**DEPLOYMENT, "dp": dp}
    points = filled(deployment)
    log = rows(*((start, start + lasts, prompt, output) for start, lasts, prompt, output in requests))
    monkey = estimate_log(log, deployment)
    busy_j = float(monkey.energy_j.sum())
    assert all((values >= -1e-9).all() for values in monkey.parts_j.values())
    assert monkey.total_j == pytest.approx(busy_j + monkey.idle_j[""])
    assert busy_j <= monkey.busy_s[""] * dp * points.most_power_w * (1 + 1e-6)
    assert monkey.busy_s[""] + monkey.idle_s[""] == pytest.approx(float(log.end_s.max() - log.start_s.min()))


def test_the_order_of_rows_does_not_matter_and_doubling_boards_and_work_doubles_energy() -> None:
    requests = [(float(number), number + 8.0, 200.0, 100.0) for number in range(30)]
    forth, back = estimate_log(rows(*requests), DEPLOYMENT), estimate_log(rows(*reversed(requests)), DEPLOYMENT)
    assert back.energy_j[::-1].tolist() == pytest.approx(forth.energy_j.tolist())
    twice = estimate_log(rows(*requests, *requests), {**DEPLOYMENT, "dp": 2})
    assert twice.total_j == pytest.approx(2 * forth.total_j, rel=0.01)


def test_host_and_site_are_shared_and_add_up() -> None:
    log = rows((0, 20, 100, 200), (10, 30, 100, 100), (40, 50, 10, 5))
    boards = estimate_log(log, DEPLOYMENT)
    site = estimate_log(log, DEPLOYMENT, accounting=Accounting(scope="facility", pue=1.3))
    cluster = filled(DEPLOYMENT).deployment.cluster
    host_w = cluster.host_idle_w / cluster.gpus_per_host
    expected_j = 1.3 * (boards.total_j * (1 + cluster.host_load_fraction) + host_w * 50.0)
    assert site.total_j == pytest.approx(expected_j)
    assert set(site.parts_j) == {"compute", "communication", "wait", "host", "facility"}


def test_prompts_in_the_prefix_cache_cost_less() -> None:
    log, hit = rows((0, 5, 4000, 20)), rows((0, 5, 4000, 20), cached=3900.0)
    assert estimate_log(hit, DEPLOYMENT).parts_j["compute"][0] < 0.8 * estimate_log(log, DEPLOYMENT).parts_j["compute"][0]


def test_deployments_by_name_and_rows_of_unknown_ones(tmp_path: Path) -> None:
    table = tmp_path / "deployments.toml"
    table.write_text(
        '[small]\nllm = "llama-3.1-8b"\ngpu = "h100-sxm-80gb"\n[large]\nllm = "llama-3.1-70b"\ngpu = "h100-sxm-80gb"\ntp = 4\n'
    )
    log = rows((0, 9, 100, 100), (0, 9, 100, 100), (0, 9, 100, 100), deployment=["small", "large", "gone"])
    found = estimate_log(log, deployments=table)
    assert found.energy_j[1] > 3 * found.energy_j[0]
    assert [(bad.reason, bad.count, bad.first_line) for bad in found.bad_rows] == [("a deployment that is not described", 1, 4)]
    with pytest.raises(InputError, match=r"^no row names a deployment that is described; described: 'other'$"):
        estimate_log(log, deployments={"other": DEPLOYMENT})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "^neither a deployment nor a table of them given; give one:"),
        ({"deployment": DEPLOYMENT, "deployments": {"a": DEPLOYMENT}}, "^both a deployment and a table of them given; give one:"),
        ({"deployments": {"a": {"gpu": "h100-sxm-80gb"}}}, "^'a' describes no deployment; give llm, gpu, tp and so on for every name$"),
        ({"deployment": DEPLOYMENT, "idle_w": -1}, "^idle_w = -1 is not allowed"),
    ],
)
def test_a_call_that_cannot_be_is_one_clear_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimate_log(rows((0, 1, 1, 1)), **given)


@pytest.fixture
def small() -> EstimatedLog:
    return estimate_log(rows((0, 9, 100, 100), (3, 12, 50, 0)), DEPLOYMENT)


def test_saved_rows_say_what_the_answer_says(small: EstimatedLog, tmp_path: Path) -> None:
    for suffix in ("parquet", "csv", "jsonl"):
        small.save(tmp_path / f"out.{suffix}")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["energy_j"].to_pylist() == small.energy_j.tolist()
    assert table.schema.field("energy_j").metadata[b"unit"] == b"J"
    assert table.schema.metadata[b"scope"] == b"gpu"
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["energy_j"] for line in lines] == small.energy_j.tolist()
    assert (tmp_path / "out.csv").read_text().splitlines()[0].startswith("id,deployment,start_s,end_s,prompt_tokens")
    with pytest.raises(InputError, match=r"its name must end in \.parquet, \.csv or \.jsonl$"):
        small.save(tmp_path / "out.xlsx")


def test_the_sums_are_plain_data(small: EstimatedLog) -> None:
    sums = json.loads(json.dumps(small.to_dict(), allow_nan=False))
    assert sums["total_j"] == pytest.approx(sum(sums["breakdown"].values()) + sums["idle_j"])
    assert sums["energy_per_output_token_j"] == pytest.approx(sums["requests_j"] / 100)
