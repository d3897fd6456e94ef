"""From operator times to engine steps: the waits fill every gap exactly, and follow published laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p.features import KIND_CODE
from pie_p.predictor import make_case
from pie_p.serving import WAIT_CAUSES, Assembly, Case, ServingCosts, assemble, expected_lag, expert_imbalance, run_clock

COSTS = ServingCosts()
FREE = ServingCosts()._replace(**{name: 0.0 for name in ServingCosts._fields if name != "overlap_power"})


def case(llm: str = "llama-3.1-8b", **more: object) -> Case:
    return make_case(llm, **{"gpu": "h100-sxm-80gb", "prompt_tokens": 200, "output_tokens": 100, **more})  # type: ignore[arg-type]


def clocked(one: Case, *, costs: ServingCosts = COSTS, layer_s: float = 1e-5, edge_s: float = 0.0):  # type: ignore[no-untyped-def]
    """An assembly, the seconds of its rows (layers equal, edges apart) and its clock."""
    assembly = assemble([one])
    time_s = np.array([layer_s if row.operator.path.startswith("layer/") else edge_s for row in assembly.rows])
    return assembly, time_s, run_clock(assembly, time_s, [costs])


def busy_s(assembly: Assembly, time_s: np.ndarray) -> np.ndarray:
    """Seconds of operators per stage and step."""
    return np.bincount(assembly.row_stage, weights=assembly.calls * time_s, minlength=len(assembly.stage_step))


CASES = st.builds(
    case,
    st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b"]),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 5]),
    dp=st.sampled_from([1, 2]),
    batch=st.floats(1, 900),
    prompt_tokens=st.integers(1, 20_000),
    output_tokens=st.integers(0, 2_000),
)


@given(CASES)
def test_operators_and_waits_fill_every_step_of_every_stage_exactly(one: Case) -> None:
    assembly, time_s, clock = clocked(one, edge_s=2e-5)
    filled = busy_s(assembly, time_s) + sum(clock.waits_s[cause] for cause in WAIT_CAUSES)
    real = assembly.prefill_steps[assembly.stage_step] >= 0  # a decode-only twin is taken off and added: its waits are cut to its step's
    assert filled[real] == pytest.approx(clock.step_s[assembly.stage_step][real], rel=1e-12)


def test_a_mixed_step_never_waits_less_than_its_decode_only_twin() -> None:
    """Prefill's share is the increment over the twin: no wait of it is negative."""
    one = case("llama-3.1-8b", gpu="gb200-186gb", batch=3000, prompt_tokens=9000, output_tokens=5000)
    assembly, _, clock = clocked(one)
    (twin,) = np.flatnonzero(assembly.prefill_steps < 0)
    for cause in WAIT_CAUSES:
        assert clock.waits_s[cause][twin] <= clock.waits_s[cause][twin - 1]


@given(CASES)
def test_no_wait_is_negative(one: Case) -> None:
    _, _, clock = clocked(one, edge_s=2e-5)
    assert all((clock.waits_s[cause] >= 0).all() for cause in WAIT_CAUSES)


def test_one_gpu_without_host_or_launch_costs_does_not_wait() -> None:
    _, _, clock = clocked(case(batch=32), costs=FREE)
    assert all(not clock.waits_s[cause].any() for cause in WAIT_CAUSES)


# Pipelines


@pytest.mark.parametrize(("pp", "pieces"), [(2, 2), (4, 4), (4, 8), (8, 3)])
def test_a_pipeline_of_prompts_idles_stages_minus_one_over_micro_batches(pp: int, pieces: int) -> None:
    """Narayanan et al. (arXiv 2104.04473), section 2.2: bubble over ideal time is (p - 1) / m, equal stages."""
    one = case(pp=pp, micro_batches=pieces, batch=16, output_tokens=0)
    assembly, time_s, clock = clocked(one, costs=FREE)
    assert clock.waits_s["bubble"] / busy_s(assembly, time_s) == pytest.approx((pp - 1) / pieces, rel=1e-9)


@pytest.mark.parametrize(("pieces", "idle_share"), [(1, 3 / 4), (2, 2 / 4), (4, 0), (8, 0)])
def test_a_decode_pipeline_is_full_with_one_micro_batch_per_stage(pieces: int, idle_share: float) -> None:
    """A sequence's next token needs its last: one micro-batch keeps one of four stages busy, four keep all."""
    one = case(pp=4, micro_batches=pieces, batch=16, mode="static")
    assembly, _, clock = clocked(one, costs=FREE)
    decode = int(np.flatnonzero(assembly.decode_sequences > 0)[0])
    stages = assembly.stage_step == decode
    assert clock.waits_s["bubble"][stages] / clock.step_s[decode] == pytest.approx(idle_share, abs=1e-9)


def test_an_uneven_pipeline_waits_for_its_slowest_stage() -> None:
    """Llama-3.1-8B over 5 stages: 6, 6, 7, 7 and 6 of 32 layers."""
    assembly, time_s, clock = clocked(case(pp=5, batch=16, mode="static"), costs=FREE)
    decode = int(np.flatnonzero(assembly.decode_sequences > 0)[0])
    stages = assembly.stage_step == decode
    busy = busy_s(assembly, time_s)[stages]
    assert busy.min() / busy.max() == pytest.approx(6 / 7, rel=1e-9)
    assert clock.step_s[decode] == pytest.approx(busy.max(), rel=1e-9)


# Skew


@pytest.mark.parametrize(
    ("ranks", "lag"),
    [(2, 0.56419), (3, 0.84628), (4, 1.02938), (5, 1.16296), (8, 1.42360), (10, 1.53875), (16, 1.76599), (50, 2.24907), (100, 2.50759)],
)
def test_the_last_of_equal_ranks_lags_as_harter_s_order_statistics_say(ranks: int, lag: float) -> None:
    """H. L. Harter, Expected values of normal order statistics, Biometrika 48 (1961), table 1."""
    assert expected_lag(np.array([float(ranks)]))[0] == pytest.approx(lag, rel=0.01)


def test_a_rank_alone_never_lags() -> None:
    assert expected_lag(np.array([1.0]))[0] == 0
    _, _, clock = clocked(case())
    assert not clock.waits_s["skew"].any()


def test_skew_grows_with_ranks_and_with_jitter() -> None:
    def skew(tp: int, jitter: float) -> float:
        assembly, time_s, clock = clocked(case("llama-3.1-70b", tp=tp), costs=COSTS._replace(jitter=jitter))
        return float(clock.waits_s["skew"][0] / busy_s(assembly, time_s)[0])

    assert 0 < skew(2, 0.01) < skew(4, 0.01) < skew(8, 0.01)
    assert skew(4, 0.02) == pytest.approx(2 * skew(4, 0.01), rel=1e-9)


# Experts


@pytest.mark.parametrize(("ranks", "tokens"), [(4, 256), (8, 1024), (16, 4096)])
def test_the_fullest_expert_rank_is_as_full_as_drawing_says(ranks: int, tokens: int) -> None:
    one = case("qwen3-30b-a3b", tp=ranks, ep=ranks, batch=tokens, mode="static") if ranks <= 8 else None
    one = one or case("qwen3-30b-a3b", dp=ranks, ep=ranks, batch=tokens / ranks, mode="static")
    assembly = assemble([one])
    decode = int(np.flatnonzero(assembly.decode_sequences > 0)[0])
    generator = np.random.default_rng(3)
    counts = generator.multinomial(tokens * 8, [1 / ranks] * ranks, size=4000)
    drawn = counts.max(axis=1).mean() / (tokens * 8 / ranks) - 1
    assert expert_imbalance(assembly)[decode] == pytest.approx(drawn, rel=0.1)


def test_experts_on_one_rank_are_balanced_and_a_lone_token_fills_one_rank_at_most() -> None:
    assert not expert_imbalance(assemble([case("qwen3-30b-a3b", batch=8)])).any()
    lone = expert_imbalance(assemble([case("qwen3-30b-a3b", tp=8, ep=8, batch=1)]))
    assert (lone <= 7).all()
    assert lone.max() > 0


def test_only_time_spent_in_experts_is_stretched_by_their_imbalance() -> None:
    assembly, time_s, clock = clocked(case("qwen3-30b-a3b", tp=8, ep=8, batch=64))
    experts = assembly.columns["kind_code"] == KIND_CODE["experts"]
    spent = np.bincount(assembly.row_stage, weights=assembly.calls * time_s * experts, minlength=len(assembly.stage_step))
    real = assembly.prefill_steps[assembly.stage_step] >= 0
    expected = COSTS.imbalance * spent * expert_imbalance(assembly)[assembly.stage_step]
    assert clock.waits_s["expert_imbalance"][real] == pytest.approx(expected[real], rel=1e-12)


# Host and launches


def test_a_step_never_ends_before_its_host_work() -> None:
    assembly, _, clock = clocked(case(batch=500), layer_s=1e-9)
    host = (COSTS.sequence_s + COSTS.overlapped_sequence_s) * assembly.decode_sequences
    assert (clock.step_s >= host).all()
    assert (clock.waits_s["host"] > 0).all()


def test_every_kernel_of_a_replayed_graph_waits_for_its_launch() -> None:
    assembly, _, clock = clocked(case(batch=8, mode="static"))
    decode = int(np.flatnonzero(assembly.decode_sequences > 0)[0])
    kernels = float(assembly.calls[assembly.row_stage == decode].sum())
    assert clock.waits_s["launch"][decode] / kernels == pytest.approx(COSTS.launch_s, rel=1e-9)


def test_a_step_with_a_prompt_is_no_graph_and_lasts_at_least_as_long_as_its_launches() -> None:
    """vLLM replays captured graphs for pure decode batches; other steps are launched kernel by kernel."""
    assembly, _, clock = clocked(case(batch=8, mode="static"), layer_s=1e-9)
    prefill = int(np.flatnonzero(assembly.prefill_sequences > 0)[0])
    kernels = float((assembly.calls * assembly.columns["launches"])[assembly.row_stage == prefill].sum())
    assert assembly.eager.tolist() == (assembly.prefill_sequences > 0).tolist()
    assert clock.step_s[prefill] >= kernels * COSTS.dispatch_s


def test_costs_of_many_cases_reach_their_own_steps() -> None:
    assembly = assemble([case(batch=4), case(batch=4)])
    time_s = np.full(len(assembly.rows), 1e-5)
    slow = COSTS._replace(step_s=COSTS.step_s + 1.0)
    step_s = run_clock(assembly, time_s, [COSTS, slow]).step_s
    half = len(step_s) // 2
    assert step_s[half:] - step_s[:half] == pytest.approx(1.0, rel=1e-9)
