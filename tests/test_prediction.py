"""The answer: parts that add up to the total, definitions kept, and the working behind it down to the operator."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p import EnergyBreakdown, LengthDistribution, Prediction, predict_energy
from pie_p.errors import InputError, PredictorError
from pie_p.operators import KINDS
from pie_p.serving import WAIT_CAUSES
from pie_p.wording import SCOPE_WORDS, quantity

EXACT = 1e-9


def predicted(llm: str = "llama-3.1-8b", **more: Any) -> Prediction:
    return predict_energy(llm, **{"gpu": "h100-sxm-80gb", "prompt_tokens": 200, "output_tokens": 100, **more})


PLANS = st.sampled_from(
    [
        ("llama-3.1-8b", {}),
        ("llama-3.1-8b", {"tp": 2}),
        ("llama-3.1-8b", {"pp": 3, "dp": 2}),
        ("llama-3.1-70b", {"tp": 4, "pp": 2}),
        ("qwen3-30b-a3b", {"tp": 4, "ep": 4}),
        ("qwen3-30b-a3b", {"tp": 2, "pp": 2, "dp": 2, "ep": 4}),
        ("deepseek-v3", {"dp": 16, "ep": 16, "engine": "sglang"}),
        ("nemotron-h-8b", {"tp": 2}),
    ]
)
SCOPES = st.sampled_from([{}, {"scope": "host"}, {"scope": "host", "exclusive_host": True}, {"scope": "facility", "pue": 1.3}])
TRAFFIC = st.fixed_dictionaries(
    {
        "batch": st.floats(1, 1500),
        "prompt_tokens": st.integers(1, 30_000),
        "output_tokens": st.integers(0, 3_000) | st.just([100, 700, 2_000]),
    }
)


@st.composite
def predictions(draw: st.DrawFn) -> Prediction:
    llm, plan = draw(PLANS)
    return predicted(llm, **plan, **draw(TRAFFIC), **draw(SCOPES))


def total(energies: EnergyBreakdown) -> float:
    return sum(energies.to_dict().values())


# Identities


@settings(max_examples=60)
@given(predictions())
def test_the_parts_add_up_to_the_total(p: Prediction) -> None:
    assert total(p.breakdown) == pytest.approx(p.energy_j, rel=EXACT)
    assert total(p.prefill) + total(p.decode) == pytest.approx(p.energy_j, rel=EXACT)
    for part in p.breakdown.to_dict():
        assert p.prefill.to_dict()[part] + p.decode.to_dict()[part] == pytest.approx(p.breakdown.to_dict()[part], rel=EXACT, abs=1e-12)


@settings(max_examples=60)
@given(predictions())
def test_operators_add_up_to_the_boards_energy_by_kind_and_phase(p: Prediction) -> None:
    for phase, energies in (("prefill", p.prefill), ("decode", p.decode)):
        for kind in ("compute", "communication", "wait"):
            of_kind = sum(op.energy_j for op in p.operators if op.energy_kind == kind and op.path.startswith(f"{phase}/"))
            assert of_kind == pytest.approx(energies.to_dict()[f"{kind}_j"], rel=EXACT, abs=EXACT * p.energy_j)


@settings(max_examples=30)
@given(predictions(), st.integers(1, 8))
def test_the_tree_adds_up_to_the_boards_energy_at_any_depth(p: Prediction, depth: int) -> None:
    assert sum(p.tree(depth).values()) == pytest.approx(p.breakdown.gpu_j, rel=EXACT)


@settings(max_examples=60)
@given(predictions())
def test_an_operator_s_energy_is_calls_times_ranks_times_time_times_power_over_the_requests_that_share_it(p: Prediction) -> None:
    sharing = p.request.batch * p.deployment.plan.dp
    for op in p.operators:
        assert op.energy_j == pytest.approx(op.calls * op.ranks * op.time_s * op.power_w / sharing, rel=EXACT)


@settings(max_examples=60)
@given(predictions())
def test_energy_is_mean_power_times_latency_over_the_requests_that_share_it(p: Prediction) -> None:
    sharing = p.request.batch * p.deployment.plan.dp
    assert p.breakdown.gpu_j == pytest.approx(p.avg_power_w * p.latency_s / sharing, rel=EXACT)


@settings(max_examples=60)
@given(predictions())
def test_little_s_law_holds(p: Prediction) -> None:
    """T = batch / throughput = latency / output tokens; E per token = GPUs * P * T / (batch * dp)."""
    tokens = p.request.mean_output_tokens
    if not tokens:
        assert p.time_per_token_s is None
        return
    assert p.time_per_token_s == pytest.approx(p.latency_s / tokens, rel=EXACT)
    assert p.energy_per_output_token_j == pytest.approx(p.energy_j / tokens, rel=EXACT)
    throughput = p.request.batch / p.time_per_token_s
    gpu_j = p.avg_power_w / (throughput * p.deployment.plan.dp)
    assert p.breakdown.gpu_j / tokens == pytest.approx(gpu_j, rel=EXACT)


@settings(max_examples=60)
@given(predictions())
def test_every_figure_is_finite_and_positive_and_times_are_in_order(p: Prediction) -> None:
    text = json.dumps(p.to_dict(), allow_nan=False)  # raises where a figure is not finite
    assert '"energy_j"' in text
    assert p.energy_j > 0
    assert 0 < p.ttft_s <= p.latency_s
    assert p.avg_power_w > 0
    assert all(value >= 0 for value in p.breakdown.to_dict().values())
    if p.tpot_s is not None:
        assert p.ttft_s + p.tpot_s * (p.request.mean_output_tokens - 1) == pytest.approx(p.latency_s, rel=EXACT)
    if p.itl_s is not None:
        assert 0 < p.itl_s <= p.latency_s


@settings(max_examples=60)
@given(predictions())
def test_boards_draw_between_active_idle_and_limit_on_average(p: Prediction) -> None:
    gpu = p.deployment.cluster.gpu
    assert gpu.active_idle_w * p.gpus * (1 - EXACT) <= p.avg_power_w <= gpu.limit_w * p.gpus


@settings(max_examples=60)
@given(predictions())
def test_neither_phase_ever_gives_energy_back(p: Prediction) -> None:
    """Prefill is the increment over a decode-only step; more work in a step is never cheaper."""
    assert p.prefill.compute_j > 0
    assert total(p.prefill) > 0
    assert all(value >= 0 for value in p.decode.to_dict().values())


# Definitions


def test_no_output_is_a_prefill_only_request_without_per_token_figures() -> None:
    p = predicted(output_tokens=0, batch=8)
    assert p.mode == "static"
    assert p.energy_per_output_token_j is None
    assert (p.tpot_s, p.itl_s, p.time_per_token_s) == (None, None, None)
    assert total(p.decode) == 0
    assert total(p.prefill) == p.energy_j > 0


def test_one_output_token_comes_from_prefill_and_has_no_time_between_tokens() -> None:
    none, one = predicted(output_tokens=0), predicted(output_tokens=1)
    assert one.energy_j == none.energy_j == one.energy_per_output_token_j
    assert one.latency_s == one.ttft_s == one.time_per_token_s
    assert (one.tpot_s, one.itl_s) == (None, None)


@pytest.mark.parametrize("llm", ["llama-3.1-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("prompt", [10, 8192, 20_000])
@pytest.mark.parametrize("plan", [{}, {"tp": 2}, {"pp": 2}, {"tp": 2, "dp": 2}])
def test_static_and_steady_agree_at_batch_one(llm: str, prompt: int, plan: dict[str, int]) -> None:
    static, steady = (predicted(llm, prompt_tokens=prompt, mode=mode, **plan) for mode in ("static", "steady"))
    assert (static.mode, steady.mode) == ("static", "steady")
    for name in ("energy_j", "latency_s", "ttft_s", "tpot_s", "itl_s", "avg_power_w"):
        assert getattr(static, name) == pytest.approx(getattr(steady, name), rel=EXACT)
    for phase in ("prefill", "decode", "breakdown"):
        for kind, value in getattr(static, phase).to_dict().items():
            assert getattr(steady, phase).to_dict()[kind] == pytest.approx(value, rel=EXACT, abs=1e-12)


@pytest.mark.parametrize("mode", ["static", "steady"])
@pytest.mark.parametrize("llm", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_independent_replicas_double_power_and_leave_the_energy_of_a_request_alone(llm: str, mode: str) -> None:
    one, two = predicted(llm, batch=16, mode=mode), predicted(llm, batch=16, mode=mode, dp=2)
    assert two.gpus == 2 * one.gpus
    assert two.energy_j == pytest.approx(one.energy_j, rel=EXACT)
    assert two.avg_power_w == pytest.approx(2 * one.avg_power_w, rel=EXACT)
    assert two.latency_s == pytest.approx(one.latency_s, rel=EXACT)
    assert two.breakdown.communication_j == 0


@pytest.mark.parametrize(
    ("llm", "plan"), [("llama-3.1-8b", {}), ("qwen3-30b-a3b", {}), ("nemotron-h-8b", {}), ("qwen3-30b-a3b", {"dp": 4})]
)
def test_a_gpu_alone_does_not_communicate_and_is_told_so_exactly(llm: str, plan: dict[str, int]) -> None:
    p = predicted(llm, batch=32, **plan)
    assert p.breakdown.communication_j == 0.0
    assert not [op for op in p.operators if op.energy_kind == "communication" or op.payload_bytes]
    assert not [path for path in p.tree(8) if "skew" in path or "bubble" in path or "imbalance" in path]


@pytest.mark.parametrize("plan", [{"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2}])
def test_ranks_that_share_a_replica_communicate(plan: dict[str, int]) -> None:
    assert predicted(batch=32, **plan).breakdown.communication_j > 0


def test_experts_over_replicas_communicate_where_independent_replicas_do_not() -> None:
    plan = {"dp": 4, "batch": 32}
    assert predicted("qwen3-30b-a3b", ep=4, **plan).breakdown.communication_j > 0
    assert predicted("qwen3-30b-a3b", ep=1, **plan).breakdown.communication_j == 0


def test_cached_prompt_tokens_are_read_but_not_computed() -> None:
    fresh, cached, short = (
        predicted(prompt_tokens=8000),
        predicted(prompt_tokens=8000, cached_prompt_tokens=7000),
        predicted(prompt_tokens=1000),
    )
    assert total(short.prefill) < total(cached.prefill) < total(fresh.prefill) / 3
    assert cached.itl_s == fresh.itl_s > short.itl_s  # decode attends to all of it


def test_a_number_of_output_tokens_in_a_static_batch_is_that_length_for_everyone() -> None:
    number = predicted(batch=8, mode="static", output_tokens=100)
    equal = predicted(batch=8, mode="static", output_tokens=LengthDistribution(mean=100, second_moment=10_000))
    assert number.energy_j == equal.energy_j


def test_a_number_of_output_tokens_in_steady_state_implies_a_spread() -> None:
    number = predicted(batch=64, prompt_tokens=10, output_tokens=2000)
    equal = predicted(batch=64, prompt_tokens=10, output_tokens=[2000])
    assert number.energy_j > equal.energy_j  # long answers are met more often by one who looks: longer mean context


# Scopes


def test_the_gpu_scope_counts_boards_only() -> None:
    p = predicted()
    assert p.scope == "gpu"
    assert p.breakdown.host_j is None
    assert p.breakdown.facility_j is None
    assert set(p.breakdown.to_dict()) == {"compute_j", "communication_j", "wait_j"}


@pytest.mark.parametrize("plan", [{}, {"tp": 4}, {"dp": 2}, {"tp": 8, "pp": 2}])
def test_the_host_scope_adds_the_share_of_the_host_by_gpus_used(plan: dict[str, int]) -> None:
    """wall = host_idle_w * GPUs / GPUs per host + (1 + host_load_fraction) * boards."""
    boards, host = (predicted(batch=8, scope=scope, **plan) for scope in ("gpu", "host"))
    cluster = host.deployment.cluster
    share_w = cluster.host_idle_w * host.gpus / cluster.gpus_per_host
    sharing = 8 * plan.get("dp", 1)
    assert host.breakdown.gpu_j == boards.breakdown.gpu_j
    assert host.breakdown.host_j == pytest.approx(
        share_w * host.latency_s / sharing + cluster.host_load_fraction * boards.energy_j, rel=EXACT
    )
    assert host.energy_j == pytest.approx(boards.energy_j + host.breakdown.host_j, rel=EXACT)


def test_an_exclusive_host_adds_its_idle_boards_and_all_of_itself() -> None:
    shared, alone = predicted(scope="host"), predicted(scope="host", exclusive_host=True)
    cluster = alone.deployment.cluster
    added_w = cluster.host_idle_w * 7 / 8 + 7 * cluster.gpu.idle_w * (1 + cluster.host_load_fraction)
    assert alone.breakdown.host_j is not None
    assert shared.breakdown.host_j is not None
    assert alone.breakdown.host_j - shared.breakdown.host_j == pytest.approx(added_w * alone.latency_s, rel=EXACT)


def test_a_full_host_is_exclusive_anyway() -> None:
    shared, alone = predicted(scope="host", tp=8), predicted(scope="host", tp=8, exclusive_host=True)
    assert alone.energy_j == pytest.approx(shared.energy_j, rel=EXACT)


@pytest.mark.parametrize("pue", [1.0, 1.1, 1.58])
def test_the_facility_scope_multiplies_the_host_scope_by_pue(pue: float) -> None:
    host, facility = predicted(scope="host"), predicted(scope="facility", pue=pue)
    assert facility.energy_j == pytest.approx(pue * host.energy_j, rel=EXACT)
    assert facility.breakdown.facility_j == pytest.approx((pue - 1) * host.energy_j, rel=EXACT, abs=1e-12)


def test_mean_power_is_of_the_boards_whatever_the_scope() -> None:
    assert predicted(scope="facility", pue=1.5).avg_power_w == predicted().avg_power_w


# The working


def test_every_operator_has_a_place_a_kind_and_a_phase() -> None:
    p = predicted("qwen3-30b-a3b", tp=4, ep=4, pp=2, batch=64)
    for op in p.operators:
        assert op.path.split("/")[0] in ("prefill", "decode")
        assert op.kind in KINDS or (op.kind == "wait" and op.path.split("/")[-1] in WAIT_CAUSES)
        assert (op.kind == "wait") == (op.energy_kind == "wait") == ("/wait/" in op.path)
        assert op.time_s > 0
        assert op.power_w > 0


def test_each_wait_names_its_cause() -> None:
    p = predicted("qwen3-30b-a3b", tp=4, ep=4, pp=2, batch=64)
    causes = {op.path.rsplit("/", 1)[-1] for op in p.operators if op.energy_kind == "wait"}
    assert {"host", "skew", "expert_imbalance", "bubble"} <= causes


def test_a_deeper_tree_refines_a_shallower_one() -> None:
    p = predicted("llama-3.1-70b", tp=4, batch=16)
    shallow, deep = p.tree(2), p.tree(4)
    for place, energy_j in shallow.items():
        within = sum(value for path, value in deep.items() if path == place or path.startswith(place + "/"))
        assert within == pytest.approx(energy_j, rel=EXACT)


@pytest.mark.parametrize(
    ("depth", "text"), [(0, "^depth = 0 is not allowed"), (-1, "^depth = -1"), ("all", "^depth = 'all' is not a number")]
)
def test_a_tree_has_a_depth_of_at_least_one(depth: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        predicted().tree(depth)


def test_an_answer_without_its_working_says_so() -> None:
    with pytest.raises(InputError, match=r"^this prediction was made without its working"):
        replace(predicted(), working=None).operators  # noqa: B018


def test_an_interval_is_refused_where_none_was_tested() -> None:
    with pytest.raises(PredictorError, match=r"^predictor 'physics' has no tested interval \(level 0\.9 was asked\)$"):
        predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", prompt_tokens=9, output_tokens=9, predictor="physics").interval(0.9)


# The value


def test_a_prediction_cannot_be_changed() -> None:
    p = predicted()
    with pytest.raises(FrozenInstanceError):
        p.latency_s = 0.0  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        p.breakdown.wait_j = 0.0  # type: ignore[misc]


def test_equal_questions_have_equal_answers_and_others_do_not() -> None:
    assert predicted(batch=8) == predicted(batch=8.0)
    assert predicted(batch=8) != predicted(batch=9)
    assert predicted(batch=8) != predicted(batch=8, scope="host")


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))], ids=["copy", "deepcopy", "pickle"])
def test_a_copy_is_equal_and_keeps_its_working(again: Any) -> None:
    p = predicted("qwen3-30b-a3b", tp=4, ep=4, batch=64, scope="host")
    other = again(p)
    assert other == p
    assert other.to_dict() == p.to_dict()
    assert other.operators == p.operators


def test_predictions_can_be_kept_in_a_set() -> None:
    assert len({predicted(batch=8), predicted(batch=8), predicted(batch=9)}) == 2


def test_plain_data_name_every_input_and_every_figure() -> None:
    p = predicted("llama-3.1-70b", tp=4, batch=8, cached_prompt_tokens=50)
    data = p.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    for name in ("energy_j", "energy_per_output_token_j", "latency_s", "ttft_s", "tpot_s", "itl_s", "time_per_token_s", "avg_power_w"):
        assert data[name] == getattr(p, name)
    assert (data["llm"], data["gpu"], data["tp"], data["batch"]) == ("llama-3.1-70b", "h100-sxm-80gb", 4, 8)
    assert data["cached_prompt_tokens"] == 50
    assert set(data["predictor"]) == {"name", "sha256"}
    assert len(data["predictor"]["sha256"]) == 64


# What people see of it


def test_its_text_says_what_runs_what_was_asked_and_what_it_costs_with_interval_and_scope() -> None:
    p = predicted(batch=8, scope="host")
    low_j, high_j = p.interval(0.9)
    first, second = str(p).splitlines()
    assert first == "llama-3.1-8b (bf16) on 1 x h100-sxm-80gb; 200 prompt + 100 output tokens, batch 8, steady"
    for words in (f"{quantity(p.energy_j, 'J')} per request", f"{quantity(low_j, 'J')} to {quantity(high_j, 'J')}", SCOPE_WORDS["host"]):
        assert words in second


def test_its_short_text_is_one_line_and_names_its_scope() -> None:
    p = predicted("llama-3.1-70b", tp=4)
    assert repr(p) == f"<Prediction: {quantity(p.energy_j, 'J')} per request, scope gpu; llama-3.1-70b (bf16) on 4 x h100-sxm-80gb, TP4>"
    assert len(repr(replace(p, working=None))) < 140


def test_texts_of_a_prefill_only_request_have_no_figure_per_output_token() -> None:
    assert "output token," not in str(predicted(output_tokens=0))


def test_the_answer_says_which_watts_it_counts_with_pue_and_exclusive_host() -> None:
    plain = predicted(scope="facility", pue=1.3, exclusive_host=True).to_dict()
    assert (plain["scope"], plain["pue"], plain["exclusive_host"]) == ("facility", 1.3, True)
    assert predicted(scope="facility", pue=1.3) != predicted(scope="facility", pue=1.4)
    assert predicted().to_dict()["pue"] is None


def test_ipython_shows_the_card_and_the_picture() -> None:
    formatters = pytest.importorskip("IPython.core.formatters", reason="IPython is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    p, display = predicted(), formatters.DisplayFormatter()
    assert display.format(p)[0]["text/html"] == p._repr_html_()
    assert display.format(p)[0]["text/plain"] == repr(p)
    assert display.format(p.plot())[0]["image/png"]
