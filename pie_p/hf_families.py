"""Stacks of attention and feed-forward layers: one line of facts per Hugging Face `model_type`.

The facts come from the `modeling_*.py` and `configuration_*.py` files of `transformers` 5 and, for remote code, of the checkpoint:
which projections carry biases, how many norm vectors a layer has, which layers see a window, what a missing field means.
A decision that a config flag takes is written as that flag's name; "+name" counts as true where the config leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

Decision = bool | str


@dataclass(frozen=True, kw_only=True)
class Moe:
    """How a mixture of experts is written down: the names of its fields."""

    experts: str
    top_k: str = "num_experts_per_tok"
    intermediate: str = "moe_intermediate_size"
    shared: str | None = None  # width of the shared expert
    shared_count: str | None = None  # or how many of the routed width
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False
    dense_intermediate: str = "intermediate_size"


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What a `model_type` means beyond the numbers in its config."""

    query_bias: Decision = False  # on q, k and v
    output_bias: Decision = False
    ffn_bias: Decision = False
    head_bias: Decision = False
    gated: bool = True
    parallel: Decision = False
    norms: int = 2  # vectors of hidden_size per layer, biases included
    final_norms: int = 1  # vectors of hidden_size after the last layer
    qk_norm: Literal["none", "head", "full"] = "none"  # weights of head_dim each, or as wide as q and k
    qk_norm_if: Decision = True
    tied: bool = False  # where the config does not say
    windows: Literal["none", "all", "qwen", "even", "every", "chunked"] = "none"
    period: int = 4  # "every": one layer in this many sees everything
    sinks: bool = False
    positions: int | None = None  # learned positions: max_position_embeddings plus this many rows
    intermediate: str = "intermediate_size"
    wide: int | None = None  # feed-forward width over hidden_size where the config leaves it out
    defaults: Mapping[str, int] | None = None  # sizes that published configs leave out
    moe: Moe | None = None
    refuse: tuple[str, ...] = ()  # fields that would change the count in a way we do not know


PLAIN: Final = Stack()
BIASED: Final = Stack(query_bias="attention_bias", output_bias="attention_bias")
QKV_BIASED: Final = Stack(query_bias="attention_bias")
LLAMA: Final = replace(BIASED, ffn_bias="mlp_bias")
QWEN3: Final = replace(BIASED, qk_norm="head", windows="qwen")
GEMMA: Final = replace(BIASED, tied=True)
COHERE: Final = replace(BIASED, norms=1, parallel=True, tied=True)
GPT: Final = Stack(query_bias=True, output_bias=True, ffn_bias=True, gated=False, norms=4, final_norms=2)
GPTJ: Final = Stack(ffn_bias=True, gated=False, final_norms=2, parallel=True, head_bias=True, wide=4)
GEMMA3_DEFAULTS: Final = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}

LOCAL_EXPERTS: Final = Moe(experts="num_local_experts", intermediate="intermediate_size")
QWEN_EXPERTS: Final = Moe(experts="num_experts")
DEEPSEEK_EXPERTS: Final = Moe(experts="n_routed_experts", shared_count="n_shared_experts")
SHARED_QWEN_EXPERTS: Final = Moe(experts="num_experts", shared="shared_expert_intermediate_size", shared_gate=True)
LLAMA4_EXPERTS: Final = replace(LOCAL_EXPERTS, shared="intermediate_size", dense_intermediate="intermediate_size_mlp")

STACKS: Final[Mapping[str, Stack]] = {
    "llama": LLAMA,
    "mistral": replace(PLAIN, windows="all"),
    "ministral": replace(PLAIN, windows="all"),
    "ministral3": replace(PLAIN, windows="all"),
    "mixtral": replace(PLAIN, windows="all", moe=LOCAL_EXPERTS),
    "smollm3": replace(LLAMA, tied=True),
    "internlm2": Stack(query_bias="+bias", output_bias="+bias"),
    "solar": replace(LLAMA, windows="all"),
    "granite": LLAMA,
    "granitemoe": replace(BIASED, moe=LOCAL_EXPERTS),
    "seed_oss": Stack(query_bias="+attention_bias", output_bias="attention_out_bias", ffn_bias="mlp_bias"),
    "mimo": Stack(query_bias="+attention_bias", windows="qwen"),
    "exaone4": Stack(qk_norm="head", windows="every"),
    "qwen2": Stack(query_bias=True, windows="qwen"),
    "qwen2_moe": Stack(query_bias="+qkv_bias", windows="qwen", moe=SHARED_QWEN_EXPERTS),
    "qwen3": QWEN3,
    "qwen3_moe": replace(QWEN3, moe=QWEN_EXPERTS),
    "gemma": GEMMA,
    "gemma2": replace(GEMMA, norms=4, windows="even"),
    "gemma3_text": replace(GEMMA, norms=4, qk_norm="head", windows="every", period=6, defaults=GEMMA3_DEFAULTS),
    "phi": replace(GPTJ, query_bias=True, output_bias=True, refuse=("qk_layernorm",)),
    "phi3": replace(PLAIN, windows="all"),
    "phi3small": replace(GPT, gated=True, tied=True, intermediate="ff_intermediate_size"),
    "phimoe": replace(BIASED, norms=4, final_norms=2, head_bias="lm_head_bias", windows="all", moe=LOCAL_EXPERTS),
    "gpt2": replace(GPT, tied=True, positions=0, wide=4, intermediate="n_inner"),
    "opt": replace(GPT, tied=True, positions=2, intermediate="ffn_dim", refuse=("_remove_final_layer_norm",)),
    "gptj": replace(GPTJ, intermediate="n_inner"),
    "gpt_neox": replace(GPT, query_bias="+attention_bias", output_bias="+attention_bias", parallel="+use_parallel_residual"),
    "starcoder2": replace(GPT, query_bias="+use_bias", output_bias="+use_bias", ffn_bias="+use_bias", tied=True, windows="all"),
    "nemotron": replace(GPT, query_bias="attention_bias", output_bias="attention_bias", ffn_bias="mlp_bias"),
    "cohere": replace(COHERE, qk_norm="full", qk_norm_if="use_qk_norm"),
    "cohere2": replace(COHERE, windows="every"),
    "olmo": replace(BIASED, norms=0, final_norms=0),
    "olmo2": replace(BIASED, qk_norm="full"),
    "olmo3": replace(BIASED, qk_norm="full", windows="every"),
    "olmoe": replace(BIASED, qk_norm="full", moe=replace(QWEN_EXPERTS, intermediate="intermediate_size")),
    "glm": replace(QKV_BIASED, query_bias="+attention_bias"),
    "glm4": replace(QKV_BIASED, query_bias="+attention_bias", norms=4),
    "glm4_moe": replace(QKV_BIASED, qk_norm="head", qk_norm_if="use_qk_norm", moe=replace(DEEPSEEK_EXPERTS, router_bias=True)),
    "deepseek": replace(BIASED, moe=DEEPSEEK_EXPERTS),
    "dots1": replace(QWEN3, moe=replace(DEEPSEEK_EXPERTS, router_bias=True)),
    "minimax_m2": Stack(qk_norm="full", moe=replace(LOCAL_EXPERTS, router_bias=True), refuse=("shared_intermediate_size",)),
    "gpt_oss": Stack(
        query_bias="+attention_bias",
        output_bias="+attention_bias",
        windows="even",
        sinks=True,
        moe=replace(LOCAL_EXPERTS, bias=True, router_bias=True),
    ),
    "llama4_text": replace(BIASED, windows="chunked", moe=LLAMA4_EXPERTS),
}
