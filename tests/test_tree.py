"""From a request to steps: how often each step enters a life, what it holds, and what every stage runs in it."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p.deployment import Deployment, deploy
from pie_p.engine import load_engine
from pie_p.hardware import Gpu, load_cluster
from pie_p.layers import Step
from pie_p.llm import load_llm
from pie_p.operators import COLLECTIVES
from pie_p.plan import ParallelPlan
from pie_p.tree import Row, Schedule, expand, micro_batches, schedule, step_rows
from pie_p.workload import LengthDistribution, Request

ROOM = Gpu(name="room", memory_bytes=10**13, hbm_bytes_per_s=4e12, peak_flops_per_s={"bf16": 5e14}, limit_w=500)  # everything fits
DECODE = Step(decode_sequences=16, decode_start=100)


def deployed(name: str = "llama-3.1-8b", *, hosts: int | None = None, **degrees: int) -> Deployment:
    plan = ParallelPlan(**degrees)
    cluster = load_cluster(ROOM, gpus=plan.gpus if hosts is None else 8 * hosts)
    return deploy(load_llm(name), plan=plan, cluster=cluster, engine=load_engine("vllm"))


def planned(*, deployment: Deployment | None = None, **request: object) -> Schedule:
    return schedule(Request(**{"prompt_tokens": 100, "output_tokens": 50, **request}), deployment or deployed())  # type: ignore[arg-type]


def steps_of_a_life(plan: Schedule) -> float:
    return sum(one.prefill_steps + one.decode_steps for one in plan.steps)


def tokens_of_a_life(plan: Schedule) -> float:
    """Rows through the network in a life, of all requests that share it; a twin's rows are in the mixed step already."""
    return sum((one.prefill_steps + one.decode_steps) * one.step.tokens for one in plan.steps)


REQUESTS = st.fixed_dictionaries(
    {
        "prompt_tokens": st.integers(1, 40_000),
        "output_tokens": st.integers(1, 5_000),
        "batch": st.floats(1, 2_000),
        "mode": st.sampled_from(["static", "steady"]),
    }
)


@given(REQUESTS)
def test_every_token_goes_through_the_network_once(request: dict[str, object]) -> None:
    """Of `batch` requests that share a life, `prompt` new tokens each and all outputs but the last; the last is never an input."""
    prompt, output, batch = (float(request[name]) for name in ("prompt_tokens", "output_tokens", "batch"))  # type: ignore[arg-type]
    plan = planned(**request)
    assert tokens_of_a_life(plan) == pytest.approx(batch * (prompt + output - 1), rel=1e-6)


@given(REQUESTS)
def test_every_prompt_of_the_batch_is_read_once(request: dict[str, object]) -> None:
    plan = planned(**request)
    read = sum(one.prefill_steps * one.step.prefill_sequences * one.step.prefill_tokens for one in plan.steps)
    assert read == pytest.approx(float(request["batch"]) * float(request["prompt_tokens"]), rel=1e-6)  # type: ignore[arg-type]
    first_tokens = sum(one.prefill_steps * one.step.prefill_sequences * one.step.prefill_ends for one in plan.steps)
    assert first_tokens == pytest.approx(float(request["batch"]), rel=1e-6)  # type: ignore[arg-type]


@given(REQUESTS)
def test_a_mixed_step_takes_its_decode_only_twin_off_prefill_and_adds_it_to_decode(request: dict[str, object]) -> None:
    plan = planned(**request)
    mixed = plan.steps[0]
    twins = [one for one in plan.steps if one.prefill_steps < 0]
    if mixed.step.decode_sequences > 1e-9:
        assert len(twins) == 1
        assert twins[0].decode_steps == -twins[0].prefill_steps == mixed.prefill_steps
        assert twins[0].step.tokens == pytest.approx(mixed.step.decode_sequences)
    else:
        assert not twins


def test_a_static_batch_reads_all_prompts_and_then_decodes_together() -> None:
    plan = planned(batch=8, mode="static")
    prefill, decode = plan.steps
    assert (prefill.prefill_steps, prefill.step.prefill_sequences, prefill.step.prefill_tokens) == (1, 8, 100)
    assert (decode.decode_steps, decode.step.decode_sequences) == (49, 8)  # the prompt yields the first of fifty


def test_prompts_share_a_prefill_step_up_to_the_engine_s_token_budget() -> None:
    """8,192 tokens per step: eight prompts of 1,000, so twenty need two and a half steps."""
    prefill = planned(batch=20, prompt_tokens=1000, mode="static").steps[0]
    assert (prefill.step.prefill_sequences, prefill.prefill_steps) == (8, 2.5)


@pytest.mark.parametrize(("prompt", "chunks"), [(8191, 1), (8192, 1), (8193, 2), (20_000, 3)])
@pytest.mark.parametrize("mode", ["static", "steady"])
def test_a_prompt_longer_than_the_budget_is_read_in_equal_chunks(prompt: int, chunks: int, mode: str) -> None:
    prefill = planned(prompt_tokens=prompt, mode=mode).steps[0]
    assert prefill.prefill_steps == chunks
    assert prefill.step.prefill_tokens == pytest.approx(prompt / chunks)
    assert prefill.step.prefill_cached == pytest.approx((chunks - 1) / 2 * prompt / chunks)  # mean over the chunks
    assert prefill.step.prefill_ends == pytest.approx(1 / chunks)


@given(prompt=st.integers(1, 50_000), output=st.integers(1, 3_000), cached=st.floats(0, 1))
def test_static_and_steady_are_the_same_steps_at_batch_one(prompt: int, output: int, cached: float) -> None:
    kept = {"prompt_tokens": prompt, "output_tokens": output, "cached_prompt_tokens": int(cached * prompt)}
    static, steady = (planned(mode=mode, **kept) for mode in ("static", "steady"))
    assert static == steady


def test_a_steady_life_has_one_step_per_output_token_and_shares_the_others_prompts() -> None:
    plan = planned(batch=16)
    mixed, twin, alone = plan.steps
    assert steps_of_a_life(plan) == pytest.approx(50)
    assert mixed.prefill_steps == 16  # sixteen prompts come in while one request lives
    assert mixed.step.decode_sequences == twin.step.decode_sequences == 15
    assert (alone.decode_steps, alone.step.decode_sequences) == (34, 16)


@given(lengths=st.lists(st.integers(1, 2_000), min_size=1, max_size=20), prompt=st.integers(1, 2_000))
def test_the_mean_context_of_a_running_sequence_is_length_biased(lengths: list[int], prompt: int) -> None:
    """prompt + E[L^2] / (2 E[L]), by walking over every step of every sequence but its first (its prefill)."""
    steady = planned(batch=500, prompt_tokens=prompt, output_tokens=LengthDistribution.from_lengths(lengths), mode="steady")
    context = steady.steps[-1].step.context()
    mean = sum(length**2 for length in lengths) / (2 * sum(lengths))
    if mean > 0.5:
        assert context == pytest.approx(prompt + mean, rel=1e-9)


def test_the_mean_context_of_a_static_batch_is_the_mean_over_its_steps() -> None:
    """Decode step i of L - 1 reads prompt + i positions."""
    contexts = [100 + i for i in range(1, 50)]
    assert planned(mode="static", batch=4).steps[1].step.context() == pytest.approx(sum(contexts) / len(contexts))


def test_no_output_is_prefill_alone_and_one_output_token_costs_no_decode_step() -> None:
    for output in (0, 1):
        plan = planned(output_tokens=output, mode="static")
        assert [one.decode_steps for one in plan.steps] == [0]


def test_all_replicas_share_a_life() -> None:
    assert planned(batch=8).sharing == 8
    assert planned(batch=8, deployment=deployed(dp=4)).sharing == 32


def test_the_first_token_of_a_static_batch_comes_half_way_through_its_prefill_on_average() -> None:
    assert planned(batch=1).ttft_steps == 1
    assert planned(batch=24, prompt_tokens=1000, mode="static").ttft_steps == 2  # three steps of eight prompts: mean of 1, 2 and 3
    assert planned(batch=8, prompt_tokens=20_000).ttft_steps == 3  # steady: its own chunks


# Rows


def sums(rows: list[Row], deployment: Deployment, name: str) -> float:
    """Over the GPUs of one replica, tensor-parallel ranks counted once."""
    stages = deployment.stages
    return sum(row.calls * stages[row.stage].count * getattr(row.operator, name) for row in rows if row.operator.kind not in COLLECTIVES)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "nemotron-h-8b", "gemma-2-9b"])
@pytest.mark.parametrize("pp", [2, 3, 8, 26])
def test_all_stages_together_run_what_one_gpu_runs(name: str, pp: int) -> None:
    whole, staged = deployed(name), deployed(name, pp=pp)
    flops = [sums(step_rows(DECODE, deployment), deployment, "flops") for deployment in (whole, staged)]
    cache = [sums(step_rows(DECODE, deployment), deployment, "kv_bytes") for deployment in (whole, staged)]
    assert flops[1] == pytest.approx(flops[0], rel=1e-9)
    assert cache[1] == pytest.approx(cache[0], rel=1e-9)


def test_every_micro_batch_reads_the_weights_again() -> None:
    once, four = deployed(pp=4, micro_batches=1), deployed(pp=4)
    weights = [sums(step_rows(DECODE, deployment), deployment, "weight_bytes") for deployment in (once, four)]
    assert weights[1] == pytest.approx(4 * weights[0], rel=1e-9)


@pytest.mark.parametrize(("batch", "pieces"), [(1, 1), (3, 3), (4, 4), (100, 4)])
def test_a_batch_is_cut_into_at_most_one_micro_batch_per_sequence(batch: int, pieces: int) -> None:
    assert micro_batches(Step(decode_sequences=batch), deployed(pp=4)) == pieces
    assert micro_batches(Step(decode_sequences=batch), deployed()) == 1


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
def test_a_pipeline_has_one_transfer_per_boundary_and_micro_batch(pp: int) -> None:
    deployment = deployed(pp=pp)
    rows = step_rows(DECODE, deployment)
    transfers = sum(row.calls * deployment.stages[row.stage].count for row in rows if row.operator.kind == "send_recv")
    assert transfers == (pp - 1) * (pp if pp > 1 else 0)
    payload = sum(
        row.calls * deployment.stages[row.stage].count * row.operator.payload_bytes for row in rows if row.operator.kind == "send_recv"
    )
    assert payload == (pp - 1) * 16 * 2 * 4096 * 2  # hidden state and residual of sixteen tokens


def test_the_first_stage_embeds_and_the_last_has_the_head() -> None:
    deployment = deployed(pp=4)
    places = {kind: {row.stage for row in step_rows(DECODE, deployment) if row.operator.kind == kind} for kind in ("embedding", "lm_head")}
    assert places == {"embedding": {0}, "lm_head": {len(deployment.stages) - 1}}


@pytest.mark.parametrize("degrees", [{}, {"dp": 4}])
def test_one_gpu_per_replica_means_no_communication_at_all(degrees: dict[str, int]) -> None:
    deployment = deployed("mixtral-8x7b", **degrees)
    rows = expand((one.step, deployment) for one in planned(batch=16, deployment=deployment).steps).rows
    assert rows
    assert all(row.operator.kind not in COLLECTIVES and row.operator.payload_bytes == 0 for row in rows)


def test_collectives_know_how_many_hosts_they_cross() -> None:
    def hosts(**degrees: int) -> set[int]:
        return {row.operator.hosts for row in step_rows(DECODE, deployed("llama-3.1-70b", **degrees)) if row.operator.kind == "all_reduce"}

    assert hosts(tp=8) == {1}
    assert hosts(tp=16) == {2}
    assert hosts(tp=8, pp=2) == {1}  # each stage on a host of its own


@pytest.mark.parametrize(
    ("degrees", "across"),
    [({"tp": 4, "pp": 2}, 0.0), ({"tp": 4, "pp": 4}, 1.0), ({"tp": 8, "pp": 4}, 3.0), ({"tp": 1, "pp": 16}, 1.0)],
)
def test_only_boundaries_between_hosts_of_eight_are_sent_across(degrees: dict[str, int], across: float) -> None:
    deployment = deployed("llama-3.1-70b", **degrees)
    rows = [row for row in step_rows(DECODE, deployment) if row.operator.kind == "send_recv"]
    boundaries = dict.fromkeys((1, 2), 0.0)
    for row in rows:
        pieces = micro_batches(DECODE, deployment)
        boundaries[int(row.operator.hosts)] += row.calls / pieces * deployment.stages[row.stage].count
    assert boundaries[2] == pytest.approx(across)
    assert boundaries[1] == pytest.approx(degrees["pp"] - 1 - across)


def test_paths_name_places_and_never_the_phase() -> None:
    roots = {row.operator.path.split("/")[0] for row in step_rows(DECODE, deployed("deepseek-v3", tp=2, pp=2))}
    assert roots == {"embedding", "layer", "head", "pipeline"}


@given(batches=st.lists(st.floats(1, 512), min_size=2, max_size=5, unique=True))
def test_a_larger_batch_never_has_fewer_flop_per_step(batches: list[float]) -> None:
    deployment = deployed()
    flops = [sums(step_rows(Step(decode_sequences=batch, decode_start=9), deployment), deployment, "flops") for batch in sorted(batches)]
    assert all(low <= high for low, high in pairwise(flops))


FAST = ROOM.model_copy(update={"name": "fast", "hbm_bytes_per_s": 8e12, "limit_w": 1000})


@given(tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 3]), batches=st.lists(st.integers(1, 64), min_size=1, max_size=4))
def test_steps_expanded_together_are_the_steps_expanded_alone(tp: int, pp: int, batches: list[int]) -> None:
    """Whatever boards run them: equal work is shared, and different work is not."""
    plan, llms = ParallelPlan(tp=tp, pp=pp), [load_llm(name) for name in ("llama-3.1-8b", "qwen3-30b-a3b")]
    deployments = [
        deploy(llm, plan=plan, cluster=load_cluster(board, gpus=plan.gpus), engine=load_engine(engine))
        for llm, board, engine in product(llms, (ROOM, FAST), ("vllm", "sglang"))
    ]
    steps = [(Step(decode_sequences=batch, decode_start=100), deployment) for batch, deployment in product(batches, deployments)]
    together = expand(steps)
    for (step, deployment), (first, count) in zip(steps, together.spans, strict=True):
        assert together.rows[first : first + count] == step_rows(step, deployment)
    assert len(set(together.spans)) == 4 * len(set(batches))
