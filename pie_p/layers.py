"""What one rank executes for one layer, and for the head, in one step.

Paths: `layer/attention/...`, `layer/mlp/...`, `layer/moe/...`, `layer/scan/...`, `head/...`. Tensor parallelism cuts heads and columns; the
row-parallel projection of each half is followed by an all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pie_p import operators as ops
from pie_p.deployment import Deployment
from pie_p.operators import Operator, windowed_mean
from pie_p.shapes import Attention, DeltaNet, DenseFfn, LatentAttention, Layer, MoeFfn, StateSpace
from pie_p.units import Dtype

INDEX_DTYPE: Final[Dtype] = "fp8"  # keys and scores of the sparse-attention indexer (DeepSeek-V3.2-Exp report, section 2.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What goes through the network in one forward step of one data-parallel rank."""

    decode_sequences: float = 0.0  # sequences that take one token each [-]
    decode_start: float = 0.0  # their context when they began to decode [tokens]
    decode_growth: float = 0.0  # tokens they grow by; a running one is anywhere in between [tokens]
    prefill_sequences: float = 0.0  # sequences whose prompt is being read [-]
    prefill_tokens: float = 0.0  # new prompt tokens of each [-]
    prefill_cached: float = 0.0  # positions of each that are in the cache already [tokens]
    prefill_ends: float = 0.0  # share of them whose prompt ends in this step [-]

    @property
    def tokens(self) -> float:
        """Rows of the activation [-]."""
        return self.decode_sequences + self.prefill_sequences * self.prefill_tokens

    @property
    def sequences(self) -> float:
        """Sequences in the step [-]."""
        return self.decode_sequences + self.prefill_sequences

    @property
    def sampled(self) -> float:
        """Sequences that yield a token [-]."""
        return self.decode_sequences + self.prefill_sequences * self.prefill_ends

    def context(self, window: int | None = None) -> float:
        """KV positions a decoding sequence reads, mean over its life [tokens]."""
        return windowed_mean(self.decode_start, self.decode_growth, window)

    def split(self, pieces: float) -> Step:
        """One of `pieces` equal micro-batches."""
        if pieces == 1:
            return self
        return replace(self, decode_sequences=self.decode_sequences / pieces, prefill_sequences=self.prefill_sequences / pieces)


def layer_operators(layer: Layer, step: Step, deployment: Deployment) -> list[Operator]:
    """Operators of one layer on one rank."""
    norms = (layer.mixer is not None) + (layer.ffn is not None and not layer.parallel)
    rows = [ops.norm("layer/norm", tokens=step.tokens, width=deployment.llm.hidden_size, calls=float(norms))]
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        rows += _attention(mixer, step, deployment)
    elif isinstance(mixer, LatentAttention):
        rows += _latent_attention(mixer, step, deployment)
    elif isinstance(mixer, StateSpace):
        rows += _state_space(mixer, step, deployment)
    elif isinstance(mixer, DeltaNet):
        rows += _delta_net(mixer, step, deployment)
    if mixer is not None and not layer.parallel:
        rows += _tp_all_reduce(_place(mixer), step, deployment)
    if isinstance(layer.ffn, DenseFfn):
        rows += _dense(layer.ffn, step, deployment)
    elif isinstance(layer.ffn, MoeFfn):
        rows += _mixture(layer.ffn, step, deployment)
    return rows


def _place(mixer: object) -> str:
    return "layer/attention" if isinstance(mixer, (Attention, LatentAttention)) else "layer/scan"


def _tp_all_reduce(place: str, step: Step, deployment: Deployment) -> list[Operator]:
    tp = deployment.plan.tp
    if tp == 1:
        return []
    width, hosts = deployment.llm.hidden_size, deployment.group_hosts(tp)
    return [ops.all_reduce(f"{place}/all_reduce", tokens=step.tokens, width=width, group_size=tp, hosts=hosts)]


def _attention(mixer: Attention, step: Step, deployment: Deployment) -> list[Operator]:
    hidden, tp, dtype = deployment.llm.hidden_size, deployment.plan.tp, deployment.dtype_of("attention")
    heads, kv_heads = mixer.heads / tp, max(1.0, mixer.kv_heads / tp)
    queries = heads * mixer.head_dim
    projected = queries * (2 if mixer.gated_output else 1) + 2 * kv_heads * mixer.head_dim
    rows = [ops.linear("layer/attention/qkv_proj", tokens=step.tokens, in_features=hidden, out_features=projected, dtype=dtype)]
    if step.prefill_sequences:
        rows.append(
            ops.attention_prefill(
                "layer/attention/prefill",
                sequences=step.prefill_sequences,
                new_tokens=step.prefill_tokens,
                cached_tokens=step.prefill_cached,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=mixer.head_dim,
                window=mixer.window,
                kv_dtype=deployment.kv_dtype,
            )
        )
    if step.decode_sequences:
        rows.append(
            ops.attention_decode(
                "layer/attention/decode",
                sequences=step.decode_sequences,
                context_tokens=step.context(mixer.window),
                heads=heads,
                kv_heads=kv_heads,
                head_dim=mixer.head_dim,
                kv_dtype=deployment.kv_dtype,
            )
        )
    rows.append(ops.linear("layer/attention/out_proj", tokens=step.tokens, in_features=queries, out_features=hidden, dtype=dtype))
    return rows


def _latent_attention(mixer: LatentAttention, step: Step, deployment: Deployment) -> list[Operator]:
    hidden, dtype, heads = deployment.llm.hidden_size, deployment.dtype_of("attention"), mixer.heads / deployment.plan.tp
    tokens, prefilled = step.tokens, step.prefill_sequences * step.prefill_tokens
    latent, key_dim = mixer.kv_rank + mixer.rope_dim, mixer.nope_dim + mixer.rope_dim

    def dense(name: str, rows: float, width_in: float, width_out: float) -> Operator:
        op = ops.linear(f"layer/attention/{name}", tokens=rows, in_features=width_in, out_features=width_out, dtype=dtype)
        return op._replace(launches=ops.LATENT_LAUNCHES)

    rows = [dense("kv_down_proj", tokens, hidden, latent)]
    if mixer.query_rank is None:
        rows.append(dense("q_proj", tokens, hidden, heads * key_dim))
    else:
        rows += [dense("q_down_proj", tokens, hidden, mixer.query_rank), dense("q_up_proj", tokens, mixer.query_rank, heads * key_dim)]
    if mixer.index_heads:
        rows += _indexer(mixer, step, deployment)
    if step.prefill_sequences:
        rows.append(dense("kv_up_proj", prefilled, mixer.kv_rank, heads * (mixer.nope_dim + mixer.value_dim)))
        rows.append(
            ops.attention_prefill(
                "layer/attention/prefill",
                sequences=step.prefill_sequences,
                new_tokens=step.prefill_tokens,
                cached_tokens=step.prefill_cached,
                heads=heads,
                kv_heads=heads,
                head_dim=key_dim,
                value_dim=mixer.value_dim,
                kv_width=latent,
                window=mixer.index_top_k,
                kv_dtype=deployment.kv_dtype,
            )
        )
    if step.decode_sequences:  # absorbed form: queries meet the cached latents directly
        rows.append(dense("absorb_keys", step.decode_sequences, mixer.nope_dim, heads * mixer.kv_rank))
        rows.append(
            ops.attention_decode(
                "layer/attention/decode",
                sequences=step.decode_sequences,
                context_tokens=step.context(mixer.index_top_k),
                heads=heads,
                kv_heads=1,
                head_dim=latent,
                value_dim=mixer.kv_rank,
                kv_width=latent,
                kv_dtype=deployment.kv_dtype,
            )
        )
        rows.append(dense("absorb_values", step.decode_sequences, mixer.kv_rank, heads * mixer.value_dim))
    rows.append(dense("out_proj", tokens, heads * mixer.value_dim, hidden))
    return rows


def _indexer(mixer: LatentAttention, step: Step, deployment: Deployment) -> list[Operator]:
    """Scores of all earlier tokens that choose which ones a query attends to (DeepSeek sparse attention); every rank runs all of it."""
    heads, width, dtype = mixer.index_heads, mixer.index_dim, deployment.dtype_of("attention")
    names = (("index_q_proj", mixer.query_rank or 0, heads * width), ("index_k_proj", deployment.llm.hidden_size, width + heads))
    rows = [
        ops.linear(f"layer/attention/{name}", tokens=step.tokens, in_features=narrow, out_features=wide, dtype=dtype)
        for name, narrow, wide in names
    ]
    if step.prefill_sequences:
        rows.append(
            ops.attention_prefill(
                "layer/attention/index_prefill",
                sequences=step.prefill_sequences,
                new_tokens=step.prefill_tokens,
                cached_tokens=step.prefill_cached,
                heads=heads,
                kv_heads=1,
                head_dim=width,
                value_dim=0,
                kv_dtype=INDEX_DTYPE,
            )
        )
    if step.decode_sequences:
        rows.append(
            ops.attention_decode(
                "layer/attention/index_decode",
                sequences=step.decode_sequences,
                context_tokens=step.context(),
                heads=heads,
                kv_heads=1,
                head_dim=width,
                value_dim=0,
                kv_dtype=INDEX_DTYPE,
            )
        )
    return rows


def _state_space(mixer: StateSpace, step: Step, deployment: Deployment) -> list[Operator]:
    tp, groups = deployment.plan.tp, max(1.0, mixer.groups / deployment.plan.tp)
    heads = mixer.heads / tp
    inner = heads * mixer.head_dim
    mixed = inner + 2 * groups * mixer.state_dim  # channels through the convolution
    return _recurrent(
        step,
        deployment,
        projected=inner + mixed + heads,
        mixed=mixed,
        inner=inner,
        heads=heads,
        head_dim=mixer.head_dim,
        state_dim=mixer.state_dim,
    )


def _delta_net(mixer: DeltaNet, step: Step, deployment: Deployment) -> list[Operator]:
    tp = deployment.plan.tp
    keys, heads = mixer.key_heads * mixer.key_dim / tp, mixer.value_heads / tp
    inner = heads * mixer.value_dim
    mixed = 2 * keys + inner
    return _recurrent(
        step,
        deployment,
        projected=mixed + inner + 2 * heads,
        mixed=mixed,
        inner=inner,
        heads=heads,
        head_dim=mixer.value_dim,
        state_dim=mixer.key_dim,
    )


def _recurrent(
    step: Step, deployment: Deployment, *, projected: float, mixed: float, inner: float, heads: float, head_dim: int, state_dim: int
) -> list[Operator]:
    hidden, dtype = deployment.llm.hidden_size, deployment.dtype_of("attention")
    rows = [
        ops.linear("layer/scan/in_proj", tokens=step.tokens, in_features=hidden, out_features=projected, dtype=dtype),
        ops.activation("layer/scan/conv", tokens=step.tokens, width=mixed, gated=False),
    ]
    if step.prefill_sequences:
        rows.append(
            ops.scan(
                "layer/scan/prefill",
                sequences=step.prefill_sequences,
                tokens=step.prefill_tokens,
                heads=heads,
                head_dim=head_dim,
                state_dim=state_dim,
                decode=False,
            )
        )
    if step.decode_sequences:
        rows.append(
            ops.scan(
                "layer/scan/decode",
                sequences=step.decode_sequences,
                tokens=1.0,
                heads=heads,
                head_dim=head_dim,
                state_dim=state_dim,
                decode=True,
            )
        )
    rows.append(ops.activation("layer/scan/gate", tokens=step.tokens, width=inner, gated=True))
    rows.append(ops.linear("layer/scan/out_proj", tokens=step.tokens, in_features=inner, out_features=hidden, dtype=dtype))
    return rows


def _gated_mlp(place: str, step: Step, deployment: Deployment, *, width: float, gated: bool, part: str) -> list[Operator]:
    hidden, dtype = deployment.llm.hidden_size, deployment.dtype_of(part)
    up = width * (2 if gated else 1)
    name = "gate_up_proj" if gated else "up_proj"
    return [
        ops.linear(f"{place}/{name}", tokens=step.tokens, in_features=hidden, out_features=up, dtype=dtype),
        ops.activation(f"{place}/activation", tokens=step.tokens, width=width, gated=gated),
        ops.linear(f"{place}/down_proj", tokens=step.tokens, in_features=width, out_features=hidden, dtype=dtype),
    ]


def _dense(ffn: DenseFfn, step: Step, deployment: Deployment) -> list[Operator]:
    width = ffn.intermediate_size / deployment.plan.tp
    rows = _gated_mlp("layer/mlp", step, deployment, width=width, gated=ffn.gated, part="ffn")
    return rows + _tp_all_reduce("layer/mlp", step, deployment)


def _mixture(ffn: MoeFfn, step: Step, deployment: Deployment) -> list[Operator]:
    plan, hidden = deployment.plan, deployment.llm.hidden_size
    shared_ranks = deployment.expert_ranks
    routed_tokens = step.tokens * (plan.dp if plan.attention_dp else 1)
    rows = [ops.router("layer/moe/router", tokens=step.tokens, width=hidden, experts=ffn.experts)]
    if ffn.shared_intermediate_size:
        width = ffn.shared_intermediate_size / plan.tp
        rows += _gated_mlp("layer/moe/shared", step, deployment, width=width, gated=ffn.gated, part="shared_expert")
    dispatch, combine = _expert_exchange(ffn, step, deployment)
    rows += dispatch
    rows.append(
        ops.experts(
            "layer/moe/experts",
            tokens=routed_tokens,
            width=hidden,
            intermediate=ffn.intermediate_size * plan.ep / shared_ranks,
            total_experts=ffn.experts,
            local_experts=ffn.experts / plan.ep,
            top_k=ffn.top_k,
            gated=ffn.gated,
            dtype=deployment.dtype_of("experts"),
        )
    )
    return rows + combine + _tp_all_reduce("layer/moe", step, deployment)


def _expert_exchange(ffn: MoeFfn, step: Step, deployment: Deployment) -> tuple[list[Operator], list[Operator]]:
    """Attention-DP ranks hand their tokens to the experts and get the results back; tensor-parallel ranks hold every token already."""
    plan, hidden = deployment.plan, deployment.llm.hidden_size
    if not plan.attention_dp:
        return [], []
    hosts = deployment.group_hosts(plan.tp * plan.dp)
    if deployment.engine.expert_exchange == "gather":
        gather = ops.all_gather("layer/moe/dispatch", tokens=step.tokens, width=hidden, group_size=plan.dp, hosts=hosts)
        scatter = ops.reduce_scatter("layer/moe/combine", tokens=step.tokens * plan.dp, width=hidden, group_size=plan.dp, hosts=hosts)
        return [gather], [scatter]
    copies = step.tokens * ffn.top_k / plan.tp
    there = ops.all_to_all("layer/moe/dispatch", tokens=copies, width=hidden, group_size=plan.ep, hosts=hosts)
    back = ops.all_to_all("layer/moe/combine", tokens=copies, width=hidden, group_size=plan.ep, hosts=hosts)
    return [there], [back]


def head_operators(step: Step, deployment: Deployment) -> list[Operator]:
    """Final norm, logits of the sampled tokens, and their gathering over tensor-parallel ranks."""
    llm, tp = deployment.llm, deployment.plan.tp
    vocab = llm.vocab_size / tp
    rows = [
        ops.norm("head/norm", tokens=step.tokens, width=llm.hidden_size),
        ops.lm_head("head/lm_head", tokens=step.sampled, width=llm.hidden_size, vocab=vocab, dtype=deployment.dtype_of("lm_head")),
    ]
    if tp > 1:
        hosts = deployment.group_hosts(tp)
        rows.append(ops.all_gather("head/all_gather", tokens=step.sampled, width=vocab, group_size=tp, hosts=hosts))
    return rows
