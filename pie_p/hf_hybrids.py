"""Families that are more than a stack of attention and feed-forward layers, or that write their config down in their own way.

Multi-head latent attention (DeepSeek, Kimi, GLM-5), hybrids of linear attention or state-space scans and attention (Qwen3-Next, Qwen3.5,
Nemotron-H), Falcon and ChatGLM. Each function takes the config's fields and returns the layers and the weights around them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from pie_p.errors import LLMConfigError, UnsupportedLLMError
from pie_p.hf_families import DEEPSEEK_EXPERTS, PLAIN, SHARED_QWEN_EXPERTS, Moe, Stack
from pie_p.hf_fields import ConfigFields
from pie_p.hf_stacks import Body, head_dim_of, heads_of, moe_layers, read_attention, read_dense, read_moe
from pie_p.shapes import Attention, DeltaNet, DenseFfn, LatentAttention, Layer, MoeFfn, StateSpace

Reader = Callable[[ConfigFields], Body]


def latent_stack(fields: ConfigFields, *, router_bias: bool) -> Body:
    """DeepSeek-V2 and V3, Kimi-K2: latent attention, first layers dense, then experts."""
    return _latent_layers(fields, read_latent(fields), router_bias=router_bias)


def sparse_latent_stack(fields: ConfigFields) -> Body:
    """DeepSeek-V3.2, GLM-5: latent attention whose indexer picks the tokens; in some, layers share the picks of an earlier one."""
    full = replace(
        read_latent(fields),
        index_heads=fields.count("index_n_heads"),
        index_dim=fields.count("index_head_dim"),
        index_top_k=fields.count("index_topk"),
    )
    return _latent_layers(fields, full, router_bias=True)


def _latent_layers(fields: ConfigFields, latent: LatentAttention, *, router_bias: bool) -> Body:
    fields.refuse("attention_bias")
    hidden_size, layers = fields.count("hidden_size"), fields.count("num_hidden_layers")
    moe: Moe = replace(DEEPSEEK_EXPERTS, router_bias=router_bias)
    experts, dense = read_moe(fields, moe), read_dense(fields, replace(PLAIN, moe=moe))
    kinds = fields.texts("indexer_types", length=layers, allowed=frozenset({"full", "shared"})) or ("full",) * layers
    mixers = {"full": latent, "shared": replace(latent, index_heads=0, index_dim=0)}
    sparse = moe_layers(fields)
    made = {
        (kind, is_sparse): Layer(mixer=mixer, ffn=experts if is_sparse else dense, norm_width=2 * hidden_size)
        for kind, mixer in mixers.items()
        for is_sparse in (True, False)
    }
    stack = tuple(made[kind, index in sparse] for index, kind in enumerate(kinds))
    return Body(layers=stack, extra_parameters=hidden_size, tied=False)


def read_latent(fields: ConfigFields) -> LatentAttention:
    """One layer's latent attention."""
    return LatentAttention(
        heads=fields.count("num_attention_heads"),
        query_rank=fields.optional_count("q_lora_rank"),
        kv_rank=fields.count("kv_lora_rank"),
        nope_dim=fields.count("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        value_dim=fields.count("v_head_dim"),
    )


def delta_stack(fields: ConfigFields, *, sparse: bool) -> Body:
    """Qwen3-Next and Qwen3.5: gated delta-rule layers, every fourth one gated attention."""
    fields.refuse("attention_bias")
    hidden_size, layers = fields.count("hidden_size"), fields.count("num_hidden_layers")
    interval = fields.count("full_attention_interval", 4)
    regular = tuple("linear_attention" if (index + 1) % interval else "full_attention" for index in range(layers))
    kinds = fields.texts("layer_types", length=layers, allowed=frozenset({"linear_attention", "full_attention"})) or regular
    mixers: Mapping[str, Attention | DeltaNet] = {
        "full_attention": replace(read_attention(fields, Stack(qk_norm="head"), None), gated_output=fields.flag("attn_output_gate", True)),
        "linear_attention": DeltaNet(
            key_heads=fields.count("linear_num_key_heads"),
            value_heads=fields.count("linear_num_value_heads"),
            key_dim=fields.count("linear_key_head_dim"),
            value_dim=fields.count("linear_value_head_dim"),
            conv_kernel=fields.count("linear_conv_kernel_dim", 4),
        ),
    }
    expert_layers = moe_layers(fields) if sparse else frozenset()
    experts = read_moe(fields, SHARED_QWEN_EXPERTS) if expert_layers else None
    dense = read_dense(fields, PLAIN) if len(expert_layers) < layers else None
    made = {
        (kind, ffn): Layer(mixer=mixer, ffn=ffn, norm_width=2 * hidden_size) for kind, mixer in mixers.items() for ffn in (experts, dense)
    }
    stack = tuple(made[kind, experts if index in expert_layers else dense] for index, kind in enumerate(kinds))
    return Body(layers=stack, extra_parameters=hidden_size, tied=False)


NEMOTRON_LETTERS: Final = {"M": "mamba", "-": "mlp", "*": "attention", "E": "moe"}
NEMOTRON_WORDS: Final = {
    **{word: word for word in NEMOTRON_LETTERS.values()},
    "linear_attention": "mamba",
    "full_attention": "attention",
}


def nemotron_stack(fields: ConfigFields) -> Body:
    """Nemotron-H, Nemotron-Nano v2, Nemotron 3: every layer is one of a Mamba-2 scan, attention, a feed-forward part or experts."""
    fields.refuse("moe_latent_size", "attention_bias", "use_bias")
    hidden_size = fields.count("hidden_size")
    kinds = _nemotron_kinds(fields)
    made = {kind: _nemotron_layer(fields, kind, hidden_size) for kind in dict.fromkeys(kinds)}
    return Body(layers=tuple(made[kind] for kind in kinds), extra_parameters=hidden_size, tied=False)


def _nemotron_kinds(fields: ConfigFields) -> tuple[str, ...]:
    pattern = fields.text("hybrid_override_pattern")
    if not pattern:
        listed = fields.raw("layers_block_type")
        length = len(listed) if isinstance(listed, list | tuple) else fields.count("num_hidden_layers")
        words = fields.texts("layers_block_type", length=min(length, 1000), allowed=NEMOTRON_WORDS)
        if not words:
            raise LLMConfigError("config field hybrid_override_pattern is missing; it must be a text such as 'M-M*', one letter per layer")
        return tuple(NEMOTRON_WORDS[word] for word in words)
    unknown = set(pattern) - NEMOTRON_LETTERS.keys()
    if unknown:
        raise UnsupportedLLMError(f"config field hybrid_override_pattern has {min(unknown)!r}; we can count: M (Mamba-2), - (dense), *, E")
    layers = fields.count("num_hidden_layers", len(pattern))
    if len(pattern) != layers:
        raise LLMConfigError(f"config field num_hidden_layers is {layers}; allowed: {len(pattern)}, the length of hybrid_override_pattern")
    return tuple(NEMOTRON_LETTERS[letter] for letter in pattern)


def _nemotron_layer(fields: ConfigFields, kind: str, hidden_size: int) -> Layer:
    if kind == "mamba":
        return Layer(mixer=_nemotron_scan(fields), ffn=None, norm_width=hidden_size)
    if kind == "attention":
        heads, kv_heads = heads_of(fields)
        head_dim = fields.optional_count("attention_head_dim") or head_dim_of(fields)
        return Layer(mixer=Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim), ffn=None, norm_width=hidden_size)
    if kind == "mlp":
        bias = fields.flag("mlp_bias", False)
        width = fields.count("intermediate_size")
        return Layer(mixer=None, ffn=DenseFfn(intermediate_size=width, gated=False, bias=bias), norm_width=hidden_size)
    moe = replace(DEEPSEEK_EXPERTS, router_bias=True, shared_count=None, shared="moe_shared_expert_intermediate_size")
    experts: MoeFfn = replace(read_moe(fields, moe), gated=False)
    return Layer(mixer=None, ffn=experts, norm_width=hidden_size)


def _nemotron_scan(fields: ConfigFields) -> StateSpace:
    return StateSpace(
        heads=fields.count("mamba_num_heads"),
        head_dim=fields.count("mamba_head_dim"),
        state_dim=fields.count("ssm_state_size"),
        groups=fields.count("n_groups"),
        conv_kernel=fields.count("conv_kernel"),
        projection_bias=fields.flag("mamba_proj_bias", False),
        conv_bias=fields.flag("use_conv_bias", True),
    )


def falcon_stack(fields: ConfigFields) -> Body:
    """Falcon 7B (multi-query, one norm), 40B and 180B (grouped, two norms); Falcon-RW is sequential and has ALiBi positions."""
    hidden_size, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    new, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    kv_heads = fields.count("num_kv_heads", heads) if new or not fields.flag("multi_query", True) else 1
    if heads % kv_heads:
        raise LLMConfigError(f"config field num_kv_heads is {kv_heads}; allowed: a divisor of num_attention_heads, which is {heads}")
    bias = fields.flag("bias", False)
    norms = fields.count("num_ln_in_parallel_attn", 2) if new else 1 if parallel else 2
    layer = Layer(
        mixer=Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim_of(fields), query_bias=bias, output_bias=bias),
        ffn=DenseFfn(intermediate_size=fields.count("ffn_hidden_size", 4 * hidden_size), gated=False, bias=bias),
        norm_width=2 * norms * hidden_size,
        parallel=new or parallel,
    )
    return Body(layers=(layer,) * fields.count("num_hidden_layers"), extra_parameters=2 * hidden_size, tied=True)


def chatglm_stack(fields: ConfigFields) -> Body:
    """ChatGLM2, ChatGLM3 and GLM-4-9B in their first format."""
    fields.refuse("add_bias_linear")
    hidden_size, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("multi_query_group_num") if fields.flag("multi_query_attention", False) else heads
    mixer = Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.count("kv_channels"),
        query_bias=fields.flag("add_qkv_bias", False),
    )
    layer = Layer(mixer=mixer, ffn=DenseFfn(intermediate_size=fields.count("ffn_hidden_size")), norm_width=2 * hidden_size)
    return Body(layers=(layer,) * fields.count("num_hidden_layers"), extra_parameters=hidden_size, tied=False)


READERS: Final[Mapping[str, Reader]] = {
    "deepseek_v2": lambda fields: latent_stack(fields, router_bias=False),
    "deepseek_v3": lambda fields: latent_stack(fields, router_bias=True),
    "kimi_k2": lambda fields: latent_stack(fields, router_bias=True),
    "glm4_moe_lite": lambda fields: latent_stack(fields, router_bias=True),
    "deepseek_v32": sparse_latent_stack,
    "glm_moe_dsa": sparse_latent_stack,
    "qwen3_next": lambda fields: delta_stack(fields, sparse=True),
    "qwen3_5_text": lambda fields: delta_stack(fields, sparse=False),
    "qwen3_5_moe_text": lambda fields: delta_stack(fields, sparse=True),
    "nemotron_h": nemotron_stack,
    "falcon": falcon_stack,
    "chatglm": chatglm_stack,
}
