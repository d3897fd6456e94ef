"""An LLM under a plan on a cluster: checked once, cut into stages, and counted in bytes per GPU."""

from __future__ import annotations

import copy
import pickle
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p.deployment import USABLE_MEMORY, Deployment, deploy, partition
from pie_p.engine import load_engine
from pie_p.errors import MemoryFitError, PlanError
from pie_p.hardware import Cluster, Gpu, load_cluster
from pie_p.llm import LLM, llm_names, load_llm
from pie_p.plan import ParallelPlan
from pie_p.shapes import MoeFfn
from pie_p.units import DTYPES, Dtype

ROOM = Gpu(name="room", memory_bytes=10**13, hbm_bytes_per_s=4e12, peak_flops_per_s={"bf16": 5e14}, limit_w=500)  # everything fits
GIB = 1 << 30


def deployed(
    llm: str | LLM, *, gpu: str | Gpu = ROOM, dtype: Dtype | None = None, kv_dtype: Dtype | None = None, **degrees: int
) -> Deployment:
    plan = ParallelPlan(**degrees)
    cluster = load_cluster(gpu, gpus=plan.gpus)
    return deploy(load_llm(llm), plan=plan, cluster=cluster, engine=load_engine("vllm"), dtype=dtype, kv_dtype=kv_dtype)


# Stages


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "nemotron-h-8b", "gemma-2-9b"])
@given(pp=st.integers(1, 27))
def test_stages_partition_the_layers(name: str, pp: int) -> None:
    llm, stages = load_llm(name), partition(load_llm(name), pp)
    held: Counter[object] = Counter()
    for stage in stages:
        for layer, count in stage.layers:
            held[layer] += count * stage.count
    assert held == Counter(llm.layers)
    assert sum(stage.count for stage in stages) == pp
    assert [stage.first for stage in stages].count(True) == 1
    assert [stage.last for stage in stages].count(True) == 1
    assert stages[0].first
    assert stages[-1].last


def test_the_remainder_goes_to_the_stages_before_the_last() -> None:
    """vLLM's `get_pp_indices`: 61 layers over 8 stages are 7, 7, 8, 8, 8, 8, 8, 7 (the last stage also holds the LM head)."""
    llm = replace(load_llm("llama-3.1-8b"), layers=load_llm("llama-3.1-8b").layers[:1] * 61)
    sizes = [sum(count for _, count in stage.layers) for stage in partition(llm, 8) for _ in range(stage.count)]
    assert sizes == [7, 7, 8, 8, 8, 8, 8, 7]


# Bytes


@pytest.mark.parametrize("name", llm_names())
def test_one_gpu_holds_every_matrix_of_the_llm(name: str) -> None:
    """Deployment and LLM count stored weights in two ways: by what a rank holds, and parameter by parameter."""
    llm = load_llm(name)
    vectors = llm.extra_parameters
    for layer, count in llm.layer_counts.items():
        parts = [part for part in (layer.mixer, layer.ffn) if part is not None]
        vectors += count * (layer.norm_width + sum(part.vector_parameters(llm.hidden_size) for part in parts))
    assert deployed(llm).weight_bytes_per_gpu == pytest.approx(llm.weight_bytes() - 2 * vectors, rel=1e-9)


def test_llama_70b_in_bf16_stores_141_gb_and_a_quarter_of_that_on_each_of_four() -> None:
    """70,553,706,496 parameters (model card, safetensors index) of 2 bytes."""
    assert deployed("llama-3.1-70b").weight_bytes_per_gpu == pytest.approx(2 * 70_553_706_496, rel=1e-4)
    assert deployed("llama-3.1-70b", tp=4).weight_bytes_per_gpu == pytest.approx(2 * 70_553_706_496 / 4, rel=1e-4)


@pytest.mark.parametrize(("dtype", "bytes_per_value"), [("fp8", 1.0), ("int4", 0.51953125), ("nvfp4", 0.5625)])
def test_a_quantised_llm_stores_its_layers_smaller_and_its_head_not(dtype: Dtype, bytes_per_value: float) -> None:
    llm = load_llm("llama-3.1-8b")
    table = llm.vocab_size * llm.hidden_size
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    expected = layers * bytes_per_value + 2 * table * 2
    assert deployed(llm, dtype=dtype).weight_bytes_per_gpu == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "kilobytes"), [("deepseek-v3", 70.272), ("qwen2.5-72b", 327.680), ("llama-3.1-405b", 516.096), ("llama-3.1-70b", 327.680)]
)
def test_the_kv_cache_of_a_token_is_as_published(name: str, kilobytes: float) -> None:
    """DeepSeek-AI, "Insights into DeepSeek-V3", arXiv 2505.09343, table 1; Llama-3.1-70B: 2 * 80 layers * 8 KV heads * 128 * 2 B."""
    assert deployed(name).kv_bytes_per_gpu(sequences=1, context_tokens=1) == pytest.approx(1000 * kilobytes, rel=1e-12)


def test_the_kv_cache_of_13b_is_800_kb_per_token() -> None:
    """Kwon et al., PagedAttention (arXiv 2309.06180), section 3: 2 * 5120 * 40 layers * 2 B for a 13 B model, "800 KB"."""
    assert deployed("llama-2-13b").kv_bytes_per_gpu(sequences=1, context_tokens=1) == 800 * 1024


def test_kv_heads_are_cut_by_tp_and_replicated_beyond() -> None:
    per_gpu = [deployed("llama-3.1-70b", tp=tp).kv_bytes_per_gpu(sequences=1, context_tokens=1) for tp in (1, 4, 8, 16)]
    assert per_gpu == [327_680, 81_920, 40_960, 40_960]


def test_the_latent_cache_of_mla_is_on_every_rank() -> None:
    assert deployed("deepseek-v3", tp=8).kv_bytes_per_gpu(sequences=1, context_tokens=1) == 61 * 576 * 2


def test_a_sliding_window_stops_the_cache_from_growing() -> None:
    """Mistral-7B-v0.1: window 4,096 on all 32 layers (arXiv 2310.06825)."""
    small, large = (deployed("mistral-7b-v0.1").kv_bytes_per_gpu(sequences=1, context_tokens=n) for n in (4096, 32768))
    assert small == large == 32 * 4096 * 2 * 8 * 128 * 2


def test_the_state_of_a_recurrent_layer_does_not_grow() -> None:
    deployment = deployed("nemotron-h-8b")
    short, long = (deployment.kv_bytes_per_gpu(sequences=1, context_tokens=n) for n in (1, 1000))
    attention_layers = sum(1 for layer in deployment.llm.layers if type(layer.mixer).__name__ == "Attention")
    per_token = next(layer.mixer.cached_values * 2 for layer in deployment.llm.layers if type(layer.mixer).__name__ == "Attention")  # type: ignore[union-attr]
    assert long - short == pytest.approx(999 * attention_layers * per_token, rel=1e-12)


def test_a_kv_cache_of_one_byte_doubles_the_batch_that_fits() -> None:
    wide, narrow = (deployed("llama-3.1-8b", gpu="h100-sxm-80gb", kv_dtype=kv_dtype) for kv_dtype in ("bf16", "fp8"))
    assert narrow.largest_batch(1000) == pytest.approx(2 * wide.largest_batch(1000), rel=1e-12)


def test_the_batch_that_fits_fills_the_usable_memory() -> None:
    """H100 80 GB: what vLLM's default 90 % leaves beside the weights, over 131,072 B per token (2 * 32 * 8 * 128 * 2 B)."""
    deployment = deployed("llama-3.1-8b", gpu="h100-sxm-80gb")
    free = USABLE_MEMORY * deployment.cluster.gpu.memory_bytes - deployment.weight_bytes_per_gpu
    assert deployment.largest_batch(1000) == pytest.approx(free / (1000 * 131_072), rel=1e-12)


@pytest.mark.parametrize(("tp", "dp", "ep"), [(8, 1, 1), (8, 1, 8), (1, 8, 8), (2, 4, 8), (8, 1, 2), (4, 2, 4)])
def test_experts_are_spread_over_all_ranks_that_share_them(tp: int, dp: int, ep: int) -> None:
    """Qwen3-30B-A3B: 48 layers of 128 experts of 3 * 2048 * 768 weights; an eighth on each of eight ranks, whole or cut."""
    spread = deployed("qwen3-30b-a3b", tp=tp, dp=dp, ep=ep).weight_bytes_per_gpu
    rest = deployed("qwen3-30b-a3b", tp=tp).weight_bytes_per_gpu - 48 * 128 * 3 * 2048 * 768 * 2 / tp
    assert spread - rest == pytest.approx(48 * 128 * 3 * 2048 * 768 * 2 / 8, rel=1e-9)


def test_replicas_hold_whole_copies() -> None:
    assert deployed("qwen3-30b-a3b", dp=4).weight_bytes_per_gpu == deployed("qwen3-30b-a3b").weight_bytes_per_gpu


# Checks


@pytest.mark.parametrize(
    ("llm", "degrees", "text"),
    [
        ("llama-3.1-8b", {"tp": 3}, "tp = 3 does not divide the 32 query heads of llama-3.1-8b; allowed: divisors of 32"),
        ("llama-3.1-8b", {"tp": 64}, "tp = 64 does not divide the 32 query heads of llama-3.1-8b; allowed: divisors of 32"),
        ("llama-3.1-8b", {"pp": 33}, "pp = 33 is more than the 32 layers of llama-3.1-8b; give at most 32"),
        ("llama-3.1-8b", {"tp": 2, "ep": 2}, "ep = 2, but llama-3.1-8b has no experts; use ep=1"),
        ("mixtral-8x7b", {"tp": 16, "ep": 16}, "ep = 16 does not divide the 8 experts of mixtral-8x7b; allowed: divisors of 8"),
        ("deepseek-v3", {"tp": 3}, "tp = 3 does not divide the 128 heads of deepseek-v3; allowed: divisors of 128"),
        ("qwen2.5-7b", {"tp": 7}, "tp = 7 does not divide the 18944 feed-forward columns of qwen2.5-7b; allowed: divisors of 18944"),
        (
            "solar-pro-22b",
            {"tp": 4},
            "tp = 4 and the 10 KV heads of solar-pro-22b do not divide each other; allowed: divisors or multiples of 10",
        ),
    ],
)
def test_a_plan_that_does_not_divide_the_llm_is_refused(llm: str, degrees: dict[str, int], text: str) -> None:
    with pytest.raises(PlanError) as caught:
        deployed(llm, **degrees)
    assert str(caught.value) == text


def test_a_plan_larger_than_the_cluster_is_refused() -> None:
    plan = ParallelPlan(tp=8, pp=2)
    cluster = load_cluster("h100-sxm-80gb")
    with pytest.raises(PlanError) as caught:
        deploy(load_llm("llama-3.1-8b"), plan=plan, cluster=cluster, engine=load_engine("vllm"))
    assert str(caught.value) == (
        f"the plan needs 16 GPUs (TP8 PP2), the cluster {cluster.name!r} has 8; give more hosts or smaller degrees"
    )


def test_weights_that_do_not_fit_are_an_error_with_sizes_and_a_way_out() -> None:
    with pytest.raises(MemoryFitError) as caught:
        deployed("llama-3.1-70b", gpu="h100-sxm-80gb")
    assert re.fullmatch(
        r"the bf16 weights of llama-3\.1-70b take 141\.1 GB per GPU under one GPU, h100-sxm-80gb offers \d\d\.\d GB \(90% of its memory\); "
        r"tp=2 would fit \(with pp=1\), or a smaller dtype",
        str(caught.value),
    )


TOO_LARGE = ("llama-3.1-70b", "llama-3.1-405b", "llama-4-maverick-17b-128e", "falcon-180b", "deepseek-v3", "command-r-plus")


@pytest.mark.parametrize("name", TOO_LARGE)
@pytest.mark.parametrize("gpu", ["l4-24gb", "v100-sxm-32gb", "h100-sxm-80gb"])
def test_what_the_message_says_would_fit_does_fit(name: str, gpu: str) -> None:
    with pytest.raises(MemoryFitError) as caught:
        deployed(name, gpu=gpu)
    found = re.search(r"tp=(\d+) would fit \(with pp=(\d+)\)", str(caught.value))
    assert found
    assert deployed(name, gpu=gpu, tp=int(found[1]), pp=int(found[2])).free_bytes_per_gpu >= 0


def test_what_would_fit_also_divides_the_kv_heads() -> None:
    """22 B parameters on 24 GB boards need at least three; its 10 KV heads allow neither 3 nor 4 ranks."""
    with pytest.raises(MemoryFitError, match=r"tp=2 would fit \(with pp=2\)"):
        deployed("solar-pro-22b", gpu="l4-24gb")


@given(gib=st.integers(1, 400))
def test_weights_fit_exactly_where_the_usable_memory_holds_them(gib: int) -> None:
    gpu = Gpu(name="sized", memory_bytes=gib * GIB, hbm_bytes_per_s=4e12, peak_flops_per_s={"bf16": 5e14}, limit_w=500)
    if USABLE_MEMORY * gib * GIB < 2 * 8.03e9:
        with pytest.raises(MemoryFitError, match=r"weights of llama-3\.1-8b take"):
            deployed("llama-3.1-8b", gpu=gpu)
    else:
        assert deployed("llama-3.1-8b", gpu=gpu).free_bytes_per_gpu > 0


def test_formats_default_to_the_checkpoint_and_can_be_chosen_apart() -> None:
    assert (deployed("deepseek-v3").dtype, deployed("deepseek-v3").kv_dtype) == ("fp8", "bf16")
    chosen = deployed("llama-3.1-8b", dtype="int4", kv_dtype="fp8")
    assert (chosen.dtype, chosen.kv_dtype) == ("int4", "fp8")
    assert chosen.dtype_of("ffn") == "int4"
    assert chosen.dtype_of("lm_head") == "bf16"


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_kept_in_high_precision_are_16_bits_wide_whatever_the_dtype(dtype: Dtype) -> None:
    assert deployed("llama-3.1-8b", dtype=dtype).dtype_of("lm_head") in ("bf16", "fp16")


def test_a_group_of_neighbours_sits_on_as_few_hosts_as_hold_it() -> None:
    deployment = deployed("llama-3.1-405b", gpu="h100-sxm-80gb", tp=8, pp=2)
    assert [deployment.group_hosts(ranks) for ranks in (1, 8, 9, 16)] == [1, 1, 2, 2]


def test_experts_per_token_is_the_top_k_of_a_mixture_and_none_of_a_dense_llm() -> None:
    assert deployed("deepseek-v3").experts_per_token == 8
    assert deployed("llama-3.1-8b").experts_per_token == 0
    assert all(isinstance(layer.ffn, MoeFfn) for layer in load_llm("deepseek-v3").layers[3:])  # the first three are dense (2412.19437)


def test_a_deployment_is_equal_by_value_and_survives_copy_and_pickle() -> None:
    one = deployed("llama-3.1-8b", gpu="h100-sxm-80gb", tp=2)
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    assert one != deployed("llama-3.1-8b", gpu="h100-sxm-80gb", tp=4)
    assert isinstance(one.cluster, Cluster)
