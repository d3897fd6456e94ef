"""What one rank runs per layer: whole-model FLOP and bytes against published totals, shards against the whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from pie_p.deployment import Deployment, deploy
from pie_p.engine import Engine, load_engine
from pie_p.hardware import Gpu, load_cluster
from pie_p.layers import Step, head_operators, layer_operators
from pie_p.llm import LLM, llm_names, load_llm
from pie_p.operators import COLLECTIVES, Operator
from pie_p.plan import ParallelPlan
from pie_p.shapes import Attention, MoeFfn

ROOM = Gpu(name="room", memory_bytes=10**13, hbm_bytes_per_s=4e12, peak_flops_per_s={"bf16": 5e14}, limit_w=500)  # everything fits
ONE_TOKEN = Step(decode_sequences=1, decode_start=1000)
MATRICES = frozenset({"linear", "lm_head", "experts"})
ATTENTION = frozenset({"attention_prefill", "attention_decode"})


def deployed(llm: str | LLM, *, engine: str | Engine = "vllm", **degrees: int) -> Deployment:
    plan = ParallelPlan(**degrees)
    return deploy(load_llm(llm), plan=plan, cluster=load_cluster(ROOM, gpus=plan.gpus), engine=load_engine(engine))


def run(deployment: Deployment, step: Step) -> list[Operator]:
    """Every operator one rank runs in one step of a pipeline of one stage, calls multiplied out."""
    rows = head_operators(step, deployment)
    for layer, count in deployment.llm.layer_counts.items():
        rows += [op._replace(calls=op.calls * count) for op in layer_operators(layer, step, deployment)]
    return rows


def total(rows: Iterable[Operator], name: str, kinds: frozenset[str] | None = None) -> float:
    return sum(op.calls * getattr(op, name) for op in rows if kinds is None or op.kind in kinds)


def prompt(tokens: float, cached: float = 0.0) -> Step:
    return Step(prefill_sequences=1, prefill_tokens=tokens, prefill_cached=cached, prefill_ends=1)


# Whole-model totals


@pytest.mark.parametrize(
    ("name", "active", "source"),
    [
        ("llama-3.1-8b", 8.03e9, "model card: 8.03 B parameters"),
        ("llama-3.1-70b", 70.6e9, "model card: 70.6 B parameters"),
        ("llama-3.1-405b", 405.9e9, "arXiv 2407.21783, table 3: 405 B"),
        ("deepseek-v3", 37e9, "arXiv 2412.19437, abstract: 37 B activated"),
        ("qwen3-30b-a3b", 3.3e9, "arXiv 2505.09388, model card: 3.3 B activated"),
        ("mixtral-8x7b", 12.9e9, "arXiv 2401.04088, section 1: 13 B (12.9 B) active"),
    ],
)
def test_a_decoded_token_costs_two_flop_per_active_parameter_outside_the_embedding(name: str, active: float, source: str) -> None:
    llm = load_llm(name)
    flops = total(run(deployed(llm), ONE_TOKEN), "flops", MATRICES)
    assert flops == pytest.approx(2 * (active - llm.embedding_parameters), rel=0.03), source


@pytest.mark.parametrize(("name", "training_gflop"), [("deepseek-v3", 250), ("deepseek-v2", 155), ("llama-3.1-405b", 2448)])
def test_a_token_of_a_4096_token_text_costs_a_third_of_the_published_training_cost(name: str, training_gflop: float) -> None:
    """DeepSeek-AI, "Insights into DeepSeek-V3", arXiv 2505.09343, table 2: training GFLOP per token at 4,096 tokens, that is
    forward and backward, three times the forward pass."""
    step = replace(prompt(4096), prefill_ends=4096)  # training computes the logits of every token
    rows = run(deployed(name), step)
    flops = total(rows, "flops", MATRICES | ATTENTION) / 4096
    assert flops == pytest.approx(training_gflop * 1e9 / 3, rel=0.05)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("context", [1, 1000, 100_000])
def test_attention_over_a_context_costs_what_palm_counts(name: str, context: int) -> None:
    """PaLM (arXiv 2204.02311), appendix B: 12 L H Q T FLOP per token for forward and backward, a third of it forward: 4 L H Q T."""
    llm = load_llm(name)
    mixer = llm.layers[0].mixer
    assert isinstance(mixer, Attention)
    layers, heads, width = len(llm.layers), mixer.heads, mixer.head_dim
    decode = total(run(deployed(llm), Step(decode_sequences=1, decode_start=context)), "flops", ATTENTION)
    assert decode == pytest.approx(4 * layers * heads * width * context, rel=1e-12)
    prefill = total(run(deployed(llm), prompt(context)), "flops", ATTENTION)
    assert prefill == pytest.approx(4 * layers * heads * width * context * (context + 1) / 2, rel=1e-12)  # causal: half, and the diagonal


@pytest.mark.parametrize("name", llm_names())
def test_every_llm_multiplies_each_active_matrix_weight_once_per_token(name: str) -> None:
    llm = load_llm(name)
    weights = llm.embedding_parameters  # the LM head
    for layer, count in llm.layer_counts.items():
        weights += count * (layer.mixer.matrix_parameters(llm.hidden_size) if layer.mixer else 0)
        if isinstance(layer.ffn, MoeFfn):
            active = layer.ffn.top_k * layer.ffn.expert.matrix_parameters(llm.hidden_size)
            weights += count * (active + layer.ffn.shared_parameters(llm.hidden_size))
        elif layer.ffn is not None:
            weights += count * layer.ffn.matrix_parameters(llm.hidden_size)
    assert total(run(deployed(llm), ONE_TOKEN), "flops", MATRICES) == pytest.approx(2 * weights, rel=1e-9)


@pytest.mark.parametrize("name", llm_names())
def test_a_large_decode_batch_reads_every_stored_matrix_once_but_not_the_embedding(name: str) -> None:
    deployment = deployed(name)
    llm = deployment.llm
    embedding = 0 if llm.tied_embeddings else 2 * llm.embedding_parameters
    read = total(run(deployment, Step(decode_sequences=1e6, decode_start=10)), "weight_bytes", MATRICES)
    assert read == pytest.approx(deployment.weight_bytes_per_gpu - embedding, rel=1e-9)


def test_one_token_of_a_mixture_reads_the_active_experts_only() -> None:
    deployment = deployed("deepseek-v3")
    read = total(run(deployment, ONE_TOKEN), "weight_bytes", frozenset({"experts"}))
    assert read == pytest.approx(58 * 8 * 3 * 7168 * 2048, rel=1e-9)  # 58 layers, top 8 of 256, fp8 (arXiv 2412.19437, section 4.2)


@pytest.mark.parametrize(
    ("name", "kv_bytes"), [("llama-3.1-70b", 2 * 80 * 8 * 128 * 2), ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2), ("deepseek-v3", 61 * 576 * 2)]
)
def test_a_decode_step_reads_the_cache_of_every_position_once(name: str, kv_bytes: float) -> None:
    rows = run(deployed(name), Step(decode_sequences=3, decode_start=5000))
    assert total(rows, "kv_bytes") == pytest.approx(3 * 5000 * kv_bytes, rel=1e-12)


def test_prefill_writes_the_cache_of_every_new_token_and_reads_all_of_it() -> None:
    rows = run(deployed("llama-3.1-70b"), prompt(1000, cached=500))
    assert total(rows, "kv_bytes") == pytest.approx((1500 + 1000) * 327_680, rel=1e-12)


def test_a_token_found_in_the_cache_is_read_and_not_computed() -> None:
    whole, rest = run(deployed("llama-3.1-8b"), prompt(1000)), run(deployed("llama-3.1-8b"), prompt(100, cached=900))
    layers = total(whole, "flops", frozenset({"linear"})), total(rest, "flops", frozenset({"linear"}))
    assert layers[0] == pytest.approx(10 * layers[1], rel=1e-12)
    assert total(rest, "kv_bytes") == pytest.approx((1000 + 100) * 131_072, rel=1e-12)


def test_a_sliding_window_bounds_what_a_step_reads() -> None:
    """Gemma-3-27B: five of six layers see 1,024 tokens (arXiv 2503.19786, section 2)."""
    near, far = (total(run(deployed("gemma-3-27b"), Step(decode_sequences=1, decode_start=n)), "kv_bytes") for n in (1024, 11_264))
    assert far / near == pytest.approx((52 * 1024 + 10 * 11_264) / (62 * 1024), rel=1e-9)


def test_sparse_attention_reads_the_tokens_it_picks_and_every_index_key() -> None:
    """DeepSeek-V3.2-Exp: 2,048 of all tokens, chosen by an indexer of one 128-wide key per token, here in fp8."""
    rows = run(deployed("deepseek-v3.2"), Step(decode_sequences=1, decode_start=50_000))
    picked = sum(op.calls * op.kv_bytes for op in rows if op.path == "layer/attention/decode")
    index = sum(op.calls * op.kv_bytes for op in rows if op.path == "layer/attention/index_decode")
    assert picked == 61 * 2048 * 576 * 2
    assert index == 61 * 50_000 * 128


def test_a_recurrent_layer_costs_the_same_at_any_length() -> None:
    rows = [run(deployed("nemotron-h-8b"), Step(decode_sequences=1, decode_start=n)) for n in (100, 100_000)]
    near, far = (total(row, "kv_bytes", frozenset({"scan"})) for row in rows)
    assert near == far > 0


# Shards


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "mixtral-8x7b", "gemma-2-9b", "gpt-oss-20b"])
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("step", [Step(decode_sequences=16, decode_start=500), prompt(300, cached=50)], ids=["decode", "prefill"])
def test_the_shards_of_all_tensor_parallel_ranks_add_up_to_the_whole(name: str, tp: int, step: Step) -> None:
    whole, shard = run(deployed(name), step), run(deployed(name, tp=tp), step)
    for column in ("flops", "weight_bytes", "kv_bytes"):
        parts = MATRICES | ATTENTION
        assert tp * total(shard, column, parts) == pytest.approx(total(whole, column, parts), rel=1e-9)


@pytest.mark.parametrize(("tp", "dp", "ep"), [(8, 1, 8), (8, 1, 1), (8, 1, 4), (1, 8, 8), (2, 4, 8), (2, 4, 4)])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_expert_work_of_all_ranks_adds_up_however_experts_are_spread(tp: int, dp: int, ep: int, engine: str) -> None:
    """A hundred tokens per data-parallel rank, the same tokens on one GPU."""
    shared = dp if ep > 1 else 1
    shard = run(deployed("qwen3-30b-a3b", tp=tp, dp=dp, ep=ep, engine=engine), Step(decode_sequences=100, decode_start=10))
    whole = run(deployed("qwen3-30b-a3b"), Step(decode_sequences=100 * shared, decode_start=10))
    for column in ("flops", "weight_bytes"):
        of_all = tp * shared * total(shard, column, frozenset({"experts"}))
        assert of_all == pytest.approx(total(whole, column, frozenset({"experts"})), rel=1e-9)


@pytest.mark.parametrize("name", llm_names())
def test_one_gpu_has_no_communication(name: str) -> None:
    for step in (ONE_TOKEN, prompt(100)):
        assert not [op for op in run(deployed(name), step) if op.kind in COLLECTIVES or op.group_size > 1 or op.payload_bytes]


def test_tensor_parallel_layers_reduce_twice_and_the_head_gathers_the_vocabulary() -> None:
    """Megatron-LM (arXiv 1909.08053), section 3: one all-reduce after attention, one after the MLP."""
    rows = [op for op in run(deployed("llama-3.1-70b", tp=8), Step(decode_sequences=4, decode_start=10)) if op.kind in COLLECTIVES]
    calls = {op.path: op.calls for op in rows}
    assert calls == {"layer/attention/all_reduce": 80, "layer/mlp/all_reduce": 80, "head/all_gather": 1}
    assert all(op.payload_bytes == 4 * 8192 * 2 for op in rows if op.kind == "all_reduce")
    assert next(op for op in rows if op.kind == "all_gather").payload_bytes == 4 * 128_256 / 8 * 2


def test_parallel_blocks_reduce_once() -> None:
    """Falcon and GPT-J add attention and MLP before one all-reduce (Wang and Komatsuzaki, 2021)."""
    rows = run(deployed("gpt-j-6b", tp=2), ONE_TOKEN)
    assert sum(op.calls for op in rows if op.kind == "all_reduce") == 28


def test_attention_dp_gathers_and_scatters_tokens_on_vllm_and_exchanges_them_on_sglang() -> None:
    step = Step(decode_sequences=4, decode_start=10)
    kinds = {
        engine: [op.kind for op in run(deployed("deepseek-v3", dp=8, ep=8, engine=engine), step) if op.kind in COLLECTIVES]
        for engine in ("vllm", "sglang")
    }
    assert kinds["vllm"] == ["all_gather", "reduce_scatter"]
    assert kinds["sglang"] == ["all_to_all", "all_to_all"]


def test_an_exchange_hands_over_one_copy_of_a_token_per_chosen_expert() -> None:
    """DeepSeek-V3: 8 of 256 experts per token, 7,168 wide (arXiv 2412.19437)."""
    rows = run(deployed("deepseek-v3", dp=8, ep=8, engine="sglang"), Step(decode_sequences=4, decode_start=10))
    assert {op.payload_bytes for op in rows if op.kind == "all_to_all"} == {4 * 8 * 7168 * 2}


def test_experts_on_tensor_parallel_ranks_need_no_exchange() -> None:
    rows = run(deployed("qwen3-30b-a3b", tp=8, ep=8), ONE_TOKEN)
    assert {op.kind for op in rows if op.kind in COLLECTIVES} == {"all_reduce", "all_gather"}


# Steps


def test_a_step_split_into_micro_batches_keeps_its_tokens() -> None:
    step = Step(decode_sequences=10, decode_start=5, prefill_sequences=2, prefill_tokens=30, prefill_ends=0.5)
    piece = step.split(4)
    assert (4 * piece.tokens, 4 * piece.sequences, 4 * piece.sampled) == (step.tokens, step.sequences, step.sampled) == (70, 12, 11)


def test_only_sequences_whose_prompt_ends_yield_a_token_from_prefill() -> None:
    step = Step(prefill_sequences=1, prefill_tokens=1000, prefill_ends=0.25)
    head = next(op for op in head_operators(step, deployed("llama-3.1-8b")) if op.kind == "lm_head")
    assert head.tokens == 0.25
