"""Replays: no joule lost or invented on any trace, and in a steady state what `predict_energy` says."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p import LengthDistribution, RequestTrace, load_gpu, load_trace, predict_energy, replay, replay_fleet, synthetic_trace
from pie_p.errors import InputError, PlanError
from pie_p.replay_result import Replay

AZURE = Path("/work/shared/data/azure_llm_trace/AzureLLMInferenceTrace_conv.csv.gz")
SMALL: dict[str, Any] = {"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb"}


def trace_of(requests: list[tuple[float, int, int]]) -> RequestTrace:
    arrival_s, prompt, output = zip(*sorted(requests), strict=True)
    return RequestTrace(arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output)  # type: ignore[arg-type]


def fleet_j(served: Replay) -> float:
    """Energy of the boards by the other road: power of every engine over the time bins."""
    gpus = np.array([one.engine.plan.gpus for one in served.fleet for _ in range(one.engines)])
    return float((served.bins.power_w * served.bins.width_s[:, None] * gpus).sum())


def conserved(served: Replay) -> None:
    assert served.request_j.sum() + served.idle_j == pytest.approx(served.energy_j, rel=1e-9)
    if served.scope == "gpu":
        assert fleet_j(served) == pytest.approx(served.energy_j, rel=1e-9)
    for part in (served.compute_j, served.communication_j, served.wait_j):
        assert (part >= -1e-9 * served.energy_j).all()
    assert not np.isnan(served.latency_s).any()
    assert (served.queue_s >= -1e-9).all()
    assert (served.ttft_s > served.queue_s).all()
    assert (served.latency_s >= served.ttft_s).all()
    again = served.preemptions.sum()
    assert served.decoded_tokens == served.trace.output_tokens.sum()
    cached = (
        0 if served.trace.cached_prompt_tokens is None else np.minimum(served.trace.cached_prompt_tokens, served.trace.prompt_tokens - 1)
    )
    assert again or served.prefilled_tokens == (served.trace.prompt_tokens - cached).sum()


REQUESTS = st.lists(st.tuples(st.floats(0, 30), st.integers(1, 6000), st.integers(1, 300)), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    requests=REQUESTS,
    replicas=st.sampled_from([1, 2, 3]),
    routing=st.sampled_from(["least_loaded", "round_robin"]),
    attribution=st.sampled_from(["marginal", "proportional"]),
    preemption=st.sampled_from(["recompute", "reserve"]),
    most=st.sampled_from([1, 4, 64]),
    bin_s=st.sampled_from([None, 0.37, 11.0]),
)
def test_what_requests_answer_for_and_idle_add_up_to_the_fleets_energy(
    requests: list[tuple[float, int, int]], replicas: int, routing: Any, attribution: Any, preemption: Any, most: int, bin_s: float | None
) -> None:
    served = replay(
        trace_of(requests), **SMALL, replicas=replicas, routing=routing, attribution=attribution, preemption=preemption,
        max_sequences=most, chunk_tokens=2048, bin_s=bin_s,
    )  # fmt: skip
    conserved(served)


@settings(max_examples=20, deadline=None)
@given(requests=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 3000), st.integers(1, 900)), min_size=2, max_size=40))
def test_nothing_is_lost_where_requests_give_way(requests: list[tuple[float, int, int]]) -> None:
    """A board with room for some 7,000 cached positions beside the weights."""
    board = load_gpu("h100-sxm-80gb").model_copy(update={"name": "small", "memory_bytes": int(18.9e9)})
    served = replay(trace_of(requests), "llama-3.1-8b", gpu=board)
    conserved(served)


def test_requests_that_give_way_pay_for_being_read_again() -> None:
    board = load_gpu("h100-sxm-80gb").model_copy(update={"name": "small", "memory_bytes": int(18.9e9)})
    trace = trace_of([(0.0, 1000, 800)] * 12)
    tight, roomy = replay(trace, "llama-3.1-8b", gpu=board), replay(trace, **SMALL)
    assert tight.preemptions.sum() > 0
    assert roomy.preemptions.sum() == 0
    assert tight.prefilled_tokens > roomy.prefilled_tokens == 12_000
    assert tight.request_j.sum() > roomy.request_j.sum()
    waits = replay(trace, "llama-3.1-8b", gpu=board, preemption="reserve")
    assert waits.preemptions.sum() == 0
    assert waits.queue_s.max() > 1.0


def test_a_request_alone_costs_what_a_prediction_at_batch_1_says() -> None:
    served = replay(trace_of([(0.0, 500, 300)]), **SMALL)
    answer = predict_energy(**SMALL, prompt_tokens=500, output_tokens=300)
    assert served.ttft_s[0] == pytest.approx(answer.ttft_s, rel=0.005)
    assert served.latency_s[0] == pytest.approx(answer.latency_s, rel=0.005)
    assert served.request_j[0] == pytest.approx(answer.energy_j, rel=0.01)
    assert (served.queue_s[0], served.idle_j) == (0.0, pytest.approx(0.0, abs=1e-6))


def test_requests_far_apart_are_each_alone_and_the_rest_is_idle() -> None:
    """100 s apart: each is the first over again, and the boards idle in between at the catalogue's active-idle power."""
    served = replay(trace_of([(100.0 * number, 500, 300) for number in range(5)]), **SMALL)
    assert served.request_j == pytest.approx(np.full(5, served.request_j[0]), rel=2e-3)
    idle_s = served.duration_s - 5 * served.latency_s[0]
    assert served.idle_j == pytest.approx(load_gpu(SMALL["gpu"]).active_idle_w * idle_s, rel=1e-6)


STEADY: dict[str, tuple[dict[str, Any], int, int, int]] = {
    "dense": ({"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb"}, 32, 500, 300),
    "few and long": ({"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb"}, 4, 2000, 100),
    "tp": ({"llm": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "tp": 4}, 32, 500, 300),
    "pp": ({"llm": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "tp": 2, "pp": 2}, 16, 500, 300),
    "dp": ({"llm": "llama-3.1-8b", "gpu": "a100-sxm-80gb", "dp": 2}, 16, 800, 200),
    "moe": ({"llm": "qwen3-30b-a3b", "gpu": "h100-sxm-80gb", "tp": 2, "ep": 2}, 64, 300, 500),
    "windows": ({"llm": "gpt-oss-20b", "gpu": "b200-sxm-180gb"}, 64, 150, 600),
}


@pytest.mark.parametrize("name", STEADY)
def test_a_server_kept_at_a_batch_costs_what_the_steady_state_says(name: str) -> None:
    """All requests wait from the start and `max_sequences` holds the batch; lengths uniform from 1 to twice the mean."""
    deployment, batch, prompt, output = STEADY[name]
    count = batch * deployment.get("dp", 1) * 30
    lengths = np.random.default_rng(1).integers(1, 2 * output, count)
    trace = RequestTrace(arrival_s=np.zeros(count), prompt_tokens=np.full(count, prompt), output_tokens=lengths)
    served = replay(trace, **deployment, max_sequences=batch, routing="round_robin")
    answer = predict_energy(
        **deployment, batch=batch, prompt_tokens=prompt, output_tokens=LengthDistribution.from_lengths(lengths.tolist()), mode="steady"
    )
    middle = slice(count // 8, count - count // 6)
    tokens = lengths[middle].sum()
    assert served.request_j[middle].sum() / tokens == pytest.approx(answer.energy_per_output_token_j, rel=0.03)
    running_s = (served.latency_s - served.queue_s)[middle].sum()
    assert running_s / tokens == pytest.approx(answer.time_per_token_s, rel=0.03)


def test_both_rules_share_out_the_same_energy() -> None:
    trace = synthetic_trace(requests=200, rate_per_s=8.0, prompt_tokens=[100, 3000], output_tokens=[20, 400], seed=2)
    marginal, proportional = (replay(trace, **SMALL, attribution=rule) for rule in ("marginal", "proportional"))  # type: ignore[arg-type]
    assert marginal.request_j.sum() == pytest.approx(proportional.request_j.sum(), rel=1e-12)
    assert marginal.latency_s.tolist() == proportional.latency_s.tolist()


def test_host_and_facility_come_on_top_and_still_add_up() -> None:
    trace = synthetic_trace(requests=60, rate_per_s=2.0, prompt_tokens=500, output_tokens=100, seed=3)
    scopes: list[dict[str, Any]] = [{"scope": "gpu"}, {"scope": "host"}, {"scope": "facility", "pue": 1.3}]
    gpu, host, site = (replay(trace, **SMALL, replicas=2, **scope) for scope in scopes)
    assert gpu.host_j is gpu.facility_j is host.facility_j is None
    cluster = host.fleet[0].deployment.cluster
    wall_j = gpu.energy_j * (1 + cluster.host_load_fraction) + cluster.host_idle_w * 2 / cluster.gpus_per_host * gpu.duration_s
    assert host.energy_j == pytest.approx(wall_j, rel=1e-9)
    assert site.energy_j == pytest.approx(1.3 * wall_j, rel=1e-9)
    for served in (host, site):
        conserved(served)


def test_a_fleet_of_two_deployments_serves_every_request_once() -> None:
    trace = synthetic_trace(requests=300, rate_per_s=20.0, prompt_tokens=500, output_tokens=200, seed=4)
    served = replay_fleet(
        trace, [{"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb"}, {"llm": "llama-3.1-8b", "gpu": "a100-sxm-80gb", "replicas": 2}]
    )
    conserved(served)
    assert served.gpus == 3
    counts = np.bincount(served.engine, minlength=3)
    assert counts.sum() == 300
    assert counts.min() > 0
    assert counts[0] > counts[1]  # the faster board is free sooner


def test_round_robin_takes_turns() -> None:
    trace = synthetic_trace(requests=9, rate_per_s=5.0, prompt_tokens=50, output_tokens=20)
    assert replay(trace, **SMALL, replicas=3, routing="round_robin").engine.tolist() == [0, 1, 2] * 3


def test_data_parallel_ranks_are_engines_of_their_own_unless_they_share_experts() -> None:
    trace = synthetic_trace(requests=20, rate_per_s=5.0, prompt_tokens=50, output_tokens=20)
    apart = replay(trace, **SMALL, dp=2)
    assert (apart.fleet[0].engines, apart.gpus, apart.bins.power_w.shape[1]) == (2, 2, 2)
    together = replay(trace, "qwen3-30b-a3b", gpu="h100-sxm-80gb", dp=2, ep=2)
    assert (together.fleet[0].engines, together.fleet[0].lanes, together.gpus) == (1, 2, 2)
    conserved(together)


def test_bins_know_power_load_and_idleness() -> None:
    served = replay(trace_of([(0.0, 500, 300), (50.0, 500, 300)]), **SMALL, bin_s=1.0)
    bins, gpu = served.bins, load_gpu(SMALL["gpu"])
    assert bins.width_s.sum() == pytest.approx(served.duration_s)
    assert bins.power_w[20:45, 0] == pytest.approx(gpu.active_idle_w)
    assert bins.power_w.max() <= gpu.limit_w
    assert bins.busy[20:45].max() == 0.0
    assert (bins.in_flight * bins.width_s).sum() == pytest.approx(served.latency_s.sum())
    assert bins.start_s[0] == 0.0


def test_cached_prompts_save_energy() -> None:
    arguments: dict[str, Any] = {"requests": 50, "rate_per_s": 4.0, "prompt_tokens": 4000, "output_tokens": 50, "seed": 1}
    plain, cached = (replay(synthetic_trace(**arguments, cached_share=share), **SMALL) for share in (0.0, 0.9))
    conserved(cached)
    assert cached.request_j.sum() < plain.request_j.sum()
    assert cached.ttft_s.mean() < plain.ttft_s.mean()


def test_files_hold_every_request_and_the_summary(tmp_path: Path) -> None:
    trace = synthetic_trace(requests=30, rate_per_s=3.0, prompt_tokens=100, output_tokens=[1, 20], seed=5)
    served = replay(trace, **SMALL)
    served.save(tmp_path / "out")
    with (tmp_path / "out" / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    assert sum(float(row["energy_j"]) for row in rows) == pytest.approx(served.request_j.sum())
    assert all((row["tpot_s"] == "") == (row["output_tokens"] == "1") for row in rows)
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == served.to_dict()
    served.save(tmp_path / "out", form="parquet")
    frame = served.to_frame()
    assert frame["energy_j"].sum() == pytest.approx(served.request_j.sum())
    import pandas

    read = pandas.read_parquet(tmp_path / "out" / "requests.parquet")
    assert list(read.columns) == list(frame.columns)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "bins.csv", "bins.parquet", "requests.csv", "requests.parquet", "summary.json",
    ]  # fmt: skip
    with pytest.raises(InputError, match="form = 'xls' is not known; allowed: csv, parquet"):
        served.save(tmp_path / "other", form="xls")


def test_a_notebook_shows_units_scope_and_whose_the_trace_is() -> None:
    served = replay(trace_of([(0.0, 100, 20)]), **SMALL)
    page = served._repr_html_()
    assert "GPU boards only" in page
    assert "energy per request" in page
    assert "1 engine of llama-3.1-8b" in page
    assert "<table>" in page


def test_bad_rows_and_long_requests_are_said() -> None:
    trace = trace_of([(0.0, 100, 20), (1.0, 9000, 20)])
    served = replay(trace, "llama-3-8b", gpu="h100-sxm-80gb")
    assert any("1 requests are longer than the 8192 tokens that llama-3-8b was trained for" in text for text in served.warnings)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"routing": "random"}, "routing = 'random' is not known; allowed: least_loaded, round_robin"),
        ({"preemption": "swap"}, "preemption = 'swap' is not known; allowed: recompute, reserve"),
        ({"attribution": "fair"}, "attribution = 'fair' is not known; allowed: marginal, proportional"),
        ({"replicas": 0}, "replicas = 0 is not allowed"),
        ({"max_sequences": 1.5}, r"max_sequences = 1\.5 is not a whole number"),
        ({"bin_s": -1}, "bin_s = -1 is not allowed"),
        ({"bin_s": 1e-9}, "bin_s = 1e-09 makes more than 2000000 bins"),
        ({"scope": "facility"}, "scope='facility' needs pue"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        replay(trace_of([(0.0, 10, 10)]), **SMALL, **arguments)


def test_a_request_that_no_engine_can_hold_is_named() -> None:
    board = load_gpu("h100-sxm-80gb").model_copy(update={"name": "small", "memory_bytes": int(18.9e9)})
    with pytest.raises(
        InputError,
        match=r"request 1 of the trace has 50010 tokens, and the KV cache of llama-3.1-8b on one GPU of small holds \d+ \(1 such",
    ):
        replay(trace_of([(0.0, 10, 10), (1.0, 50_000, 10)]), "llama-3.1-8b", gpu=board)


def test_what_belongs_to_the_trace_or_to_the_board_is_not_given_for_the_fleet() -> None:
    trace = trace_of([(0.0, 10, 10)])
    with pytest.raises(InputError, match="batch = 8 is given for a replay, whose load comes from the trace"):
        replay_fleet(trace, [{**SMALL, "batch": 8}])
    with pytest.raises(InputError, match="power_limit_w = 500: a replay runs at the board's own limit"):
        replay_fleet(trace, [{**SMALL, "power_limit_w": 500}])
    with pytest.raises(InputError, match="the fleet has no deployments"):
        replay_fleet(trace, [])
    with pytest.raises(InputError, match=r"a deployment has no argument 'gpus'\. Did you mean: gpu"):
        replay_fleet(trace, [{**SMALL, "gpus": "l4-24gb"}])
    with pytest.raises(InputError, match=r"'llama-3\.1-8b' is no deployment of a fleet"):
        replay_fleet(trace, ["llama-3.1-8b"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="the trace has no requests"):
        replay(trace.only(slice(0, 0)), **SMALL)
    with pytest.raises(PlanError, match="tp = 3 does not divide"):
        replay(trace, **SMALL, tp=3)


@pytest.mark.skipif(not AZURE.exists(), reason="the public Azure trace is not on this machine")
def test_the_azure_conversation_trace_is_served_whole() -> None:
    served = replay(load_trace(AZURE), "llama-3.1-70b", gpu="h100-sxm-80gb", tp=4, replicas=2)
    conserved(served)
    assert len(served) == 19_366
    assert served.gpus == 8
    assert served.duration_s == pytest.approx(3501.7, abs=60.0)
