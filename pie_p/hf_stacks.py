"""Reading a stack of attention and feed-forward layers from a config and the facts of its family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pie_p.errors import LLMConfigError, UnsupportedLLMError
from pie_p.hf_families import Decision, Moe, Stack
from pie_p.hf_fields import MOST, ConfigFields
from pie_p.shapes import Attention, DenseFfn, Ffn, Layer, MoeFfn

LAYER_TYPES: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


@dataclass(frozen=True, kw_only=True)
class Body:
    """What a family's reader hands back: all of an LLM that differs from family to family."""

    layers: tuple[Layer, ...]
    extra_parameters: int
    tied: bool  # where the config does not say
    notes: tuple[str, ...] = ()


class WithDefaults(dict[str, object]):
    """A config over the sizes its family leaves out."""

    @classmethod
    def of(cls, config: Mapping[str, object], defaults: Mapping[str, int] | None) -> WithDefaults:
        """The config's own fields, null ones left out, over the defaults."""
        return cls({**(defaults or {}), **{key: value for key, value in config.items() if value is not None}})


def decide(fields: ConfigFields, decision: Decision) -> bool:
    """A fact of the family, or the config flag it names; "+name" is true where absent."""
    if isinstance(decision, bool):
        return decision
    return fields.flag(decision.lstrip("+"), decision.startswith("+"))


def read_stack(fields: ConfigFields, stack: Stack) -> Body:
    """Layers and the weights around them."""
    fields.refuse(*stack.refuse)
    hidden_size = fields.count("hidden_size")
    windows = read_windows(fields, stack)
    sparse = moe_layers(fields) if stack.moe is not None else frozenset()
    attention = {window: read_attention(fields, stack, window) for window in dict.fromkeys(windows)}
    ffns: dict[bool, Ffn] = {
        kind: read_moe(fields, stack.moe) if kind and stack.moe is not None else read_dense(fields, stack)
        for kind in dict.fromkeys(index in sparse for index in range(len(windows)))
    }
    parallel = decide(fields, stack.parallel)
    made = {
        (window, kind): Layer(mixer=mixer, ffn=ffn, norm_width=stack.norms * hidden_size, parallel=parallel)
        for window, mixer in attention.items()
        for kind, ffn in ffns.items()
    }
    layers = tuple(made[window, index in sparse] for index, window in enumerate(windows))
    return Body(layers=layers, extra_parameters=read_extra(fields, stack), tied=stack.tied)


def read_extra(fields: ConfigFields, stack: Stack) -> int:
    """Final norm, learned positions and the head's bias [-]."""
    hidden_size = fields.count("hidden_size")
    if fields.count("word_embed_proj_dim", hidden_size) != hidden_size:
        raise UnsupportedLLMError("config field word_embed_proj_dim differs from hidden_size; we cannot count a projected embedding")
    positions = 0 if stack.positions is None else fields.count("max_position_embeddings") + stack.positions
    head_bias = fields.count("vocab_size") if decide(fields, stack.head_bias) else 0
    return (stack.final_norms + positions) * hidden_size + head_bias


def head_dim_of(fields: ConfigFields) -> int:
    """The config's head_dim, or hidden_size over the heads, which must divide it."""
    given = fields.optional_count("head_dim")
    if given is not None:
        return given
    hidden_size, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    if hidden_size % heads:
        raise LLMConfigError(f"config field hidden_size is {hidden_size}; allowed without head_dim: a multiple of the {heads} heads")
    return hidden_size // heads


def heads_of(fields: ConfigFields) -> tuple[int, int]:
    """Query heads and key/value heads, which must divide them."""
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise LLMConfigError(f"config field num_key_value_heads is {kv_heads}; allowed: a divisor of num_attention_heads, which is {heads}")
    return heads, kv_heads


def read_attention(fields: ConfigFields, stack: Stack, window: int | None) -> Attention:
    """One layer's attention."""
    (heads, kv_heads), head_dim = heads_of(fields), head_dim_of(fields)
    normed = {"none": 0, "head": 2, "full": heads + kv_heads}[stack.qk_norm] if decide(fields, stack.qk_norm_if) else 0
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=window,
        query_bias=decide(fields, stack.query_bias),
        output_bias=decide(fields, stack.output_bias),
        qk_norm_width=normed * head_dim,
        sinks=stack.sinks,
    )


def read_dense(fields: ConfigFields, stack: Stack) -> DenseFfn:
    """The feed-forward part of a layer without experts."""
    name = stack.moe.dense_intermediate if stack.moe is not None else stack.intermediate
    default = None if stack.wide is None else stack.wide * fields.count("hidden_size")
    return DenseFfn(intermediate_size=fields.count(name, default), gated=stack.gated, bias=decide(fields, stack.ffn_bias))


def read_moe(fields: ConfigFields, moe: Moe) -> MoeFfn:
    """The feed-forward part of a layer with experts."""
    experts = fields.count(moe.experts)
    top_k = fields.count(moe.top_k)
    if top_k > experts:
        raise LLMConfigError(f"config field {moe.top_k} is {top_k}; allowed: at most {moe.experts}, which is {experts}")
    intermediate = fields.count(moe.intermediate)
    shared = 0 if moe.shared is None else fields.count(moe.shared, 0, least=0)
    if moe.shared_count is not None:
        shared = intermediate * fields.count(moe.shared_count, 0, least=0)
    return MoeFfn(
        experts=experts,
        top_k=top_k,
        intermediate_size=intermediate,
        shared_intermediate_size=shared,
        bias=moe.bias,
        router_bias=moe.router_bias,
        shared_gate=moe.shared_gate and shared > 0,
    )


def moe_layers(fields: ConfigFields) -> frozenset[int]:
    """Which layers hold experts, by whichever of the usual fields the config has; all of them where it has none."""
    layers = range(fields.count("num_hidden_layers"))
    kinds = fields.texts("mlp_layer_types", length=len(layers), allowed=frozenset({"dense", "sparse"}))
    if kinds is not None:
        return frozenset(index for index, kind in enumerate(kinds) if kind == "sparse")
    if fields.has("moe_layers"):
        return fields.numbers("moe_layers")
    frequency = fields.raw("moe_layer_freq")
    if isinstance(frequency, list | tuple):
        if len(frequency) != len(layers) or not all(type(item) is int and item in (0, 1) for item in frequency):
            raise LLMConfigError(f"config field moe_layer_freq is a list of {len(frequency)}; allowed: {len(layers)} times 0 or 1")
        return frozenset(index for index, here in enumerate(frequency) if here)
    first = fields.count("first_k_dense_replace", 0, least=0)
    step = fields.count("interleave_moe_layer_step", fields.count("decoder_sparse_step", 1))
    every = fields.count("moe_layer_freq", 1)
    dense = fields.numbers("mlp_only_layers")
    return frozenset(i for i in layers if i >= first and i % every == 0 and (i + 1) % step == 0 and i not in dense)


def read_windows(fields: ConfigFields, stack: Stack) -> Sequence[int | None]:
    """The window of every layer [tokens]; None where a query sees all."""
    layers = fields.count("num_hidden_layers")
    chunked = stack.windows == "chunked"
    size = fields.optional_count("attention_chunk_size" if chunked else "sliding_window", least=0) or None
    if stack.windows == "none" or size is None or (stack.windows == "qwen" and not fields.flag("use_sliding_window", False)):
        return [None] * layers
    kinds = fields.texts("layer_types", length=layers, allowed=LAYER_TYPES)
    if kinds is not None:
        return [None if kind == "full_attention" else size for kind in kinds]
    return [size if local else None for local in map(_local_rule(fields, stack, layers), range(layers))]


def _local_rule(fields: ConfigFields, stack: Stack, layers: int) -> Callable[[int], bool]:
    """Which layers are windowed where the config has no `layer_types`."""
    if stack.windows == "even":
        return lambda index: index % 2 == 0
    if stack.windows == "qwen":
        first = fields.count("max_window_layers", layers, least=0)
        return lambda index: index >= first
    if stack.windows == "every":
        pattern = fields.raw("sliding_window_pattern")
        period = len(pattern) if isinstance(pattern, str) else fields.count("sliding_window_pattern", stack.period)
        return lambda index: (index + 1) % max(1, min(period, MOST)) != 0
    if stack.windows == "chunked":
        unrotated = fields.raw("no_rope_layers")
        if isinstance(unrotated, list | tuple) and len(unrotated) == layers:
            return lambda index: bool(unrotated[index])  # 1: rotated positions, seen in chunks
        return lambda index: (index + 1) % fields.count("no_rope_layer_interval", 4) != 0
    return lambda _: True
