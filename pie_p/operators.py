"""What one rank executes: operators, and what each costs before any hardware is named.

Counting rules, used in every formula of this file:
- a multiply-add is 2 FLOP;
- memory traffic counts each operand once, as if caches were perfect (a lower bound);
- activations travel as 16-bit values, weights and KV cache in their stored format;
- `payload_bytes` is what one rank hands to the collective, not what crosses the wire.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from pie_p.units import BYTES_PER_VALUE, Dtype

Kind = Literal[
    "embedding",
    "linear",
    "attention_prefill",
    "attention_decode",
    "norm",
    "activation",
    "router",
    "experts",
    "lm_head",
    "scan",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
COLLECTIVES: Final[frozenset[Kind]] = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"})

ACTIVATION_BYTES: Final = 2.0
EXPERT_LAUNCHES: Final = 9.0  # choose, sort, align, quantise, two grouped GEMMs, activation, reduce
SCAN_LAUNCHES: Final = 20.0  # a chunked scan over prompts: state gathering, convolution, five chunk kernels, state write-back
LATENT_LAUNCHES: Final = 2.3  # a projection of latent attention with its quantisation, split or copy
STATE_BYTES: Final = 4.0  # recurrent states are kept in fp32


class Operator(NamedTuple):
    """One kernel-sized piece of work, as seen by one rank, in one forward step.

    Counts may be fractions: they are means over a running batch.
    """

    path: str  # place in the tree, "layer/mlp/up_proj"; the phase is put in front when the step is known
    kind: Kind  # which regressor answers for it
    calls: float = 1.0  # times per step on the ranks that run it [-]
    flops: float = 0.0  # per call [FLOP]
    hbm_bytes: float = 0.0  # moved per call, read + written [B]
    weight_bytes: float = 0.0  # part of hbm_bytes that is weights [B]
    kv_bytes: float = 0.0  # part of hbm_bytes that is KV cache or recurrent state [B]
    payload_bytes: float = 0.0  # per call, collectives only [B]
    group_size: int = 1  # ranks that must meet [-]; 1: no communication
    hosts: int = 1  # hosts those ranks sit on [-]
    dtype: Dtype = "bf16"  # storage of the weights
    kv_dtype: Dtype = "bf16"  # storage of the KV cache
    tokens: float = 0.0  # rows of the activation [-]; for attention: query tokens per sequence
    in_features: float = 0.0  # width that comes in, per rank [-]
    out_features: float = 0.0  # width that goes out, per rank [-]
    sequences: float = 0.0  # attention and scan only [-]
    context_tokens: float = 0.0  # attention only: KV positions a query reads, mean over the step [-]
    heads: float = 0.0  # attention only: query heads per rank [-]
    kv_heads: float = 0.0  # attention only: KV heads per rank [-]
    head_dim: float = 0.0  # attention only: width of queries and keys [-]
    experts: float = 0.0  # routed experts held by the rank [-]
    top_k: float = 0.0  # routed experts per token [-]
    launches: float = 1.0  # kernels it stands for, when the host launches them one by one [-]


def embedding(path: str, *, tokens: float, width: int) -> Operator:
    """Row look-up: one row of the table per token, read and written.

    >>> embedding("embedding", tokens=4, width=4096).hbm_bytes  # 4 * 4096 * 2 B, read and written
    65536.0
    """
    moved = 2 * tokens * width * ACTIVATION_BYTES
    return Operator(path, "embedding", hbm_bytes=moved, tokens=tokens, out_features=width)


def linear(
    path: str, *, tokens: float, in_features: float, out_features: float, dtype: Dtype = "bf16", calls: float = 1.0, kind: Kind = "linear"
) -> Operator:
    """Dense layer: (tokens, in_features) @ (in_features, out_features).

    >>> up = linear("layer/mlp/up_proj", tokens=1, in_features=4096, out_features=11008)
    >>> up.flops                       # 2 * 1 * 4096 * 11008
    90177536.0
    >>> up.flops / up.hbm_bytes < 1.0  # decode reads every weight for one token: memory-bound
    True
    """
    weights = in_features * out_features * BYTES_PER_VALUE[dtype]
    moved = weights + tokens * (in_features + out_features) * ACTIVATION_BYTES
    return Operator(
        path,
        kind,
        calls=calls,
        flops=2.0 * tokens * in_features * out_features,
        hbm_bytes=moved,
        weight_bytes=weights,
        dtype=dtype,
        tokens=tokens,
        in_features=in_features,
        out_features=out_features,
    )


def lm_head(path: str, *, tokens: float, width: int, vocab: float, dtype: Dtype = "bf16") -> Operator:
    """Logits of the tokens that are sampled: (tokens, width) @ (width, vocab / tp).

    >>> lm_head("lm_head", tokens=1, width=4096, vocab=128256).weight_bytes
    1050673152.0
    """
    return linear(path, tokens=tokens, in_features=width, out_features=vocab, dtype=dtype, kind="lm_head")


def router(path: str, *, tokens: float, width: int, experts: int) -> Operator:
    """Scores of every expert for every token, and the choice of the best.

    >>> router("layer/moe/router", tokens=8, width=2048, experts=128).flops
    4194304.0
    """
    return linear(path, tokens=tokens, in_features=width, out_features=experts, kind="router")


def attention_decode(
    path: str,
    *,
    sequences: float,
    context_tokens: float,
    heads: float,
    kv_heads: float,
    head_dim: int,
    value_dim: int | None = None,
    kv_width: float | None = None,
    kv_dtype: Dtype = "bf16",
) -> Operator:
    """One new token per sequence against its KV cache: scores and weighted sum.

    Args:
        path: place in the tree.
        sequences: sequences that decode [-].
        context_tokens: KV positions each reads, on average [-].
        heads: query heads of this rank [-].
        kv_heads: KV heads of this rank [-].
        head_dim: width of a query or key [-].
        value_dim: width of a value; default `head_dim` [-].
        kv_width: cached values per position on this rank; default `kv_heads * (head_dim + value_dim)`.
            MLA caches one latent and one rope key for all heads.
        kv_dtype: storage of the cache.

    >>> op = attention_decode("a", sequences=1, context_tokens=1000, heads=32, kv_heads=8, head_dim=128)
    >>> op.flops, op.kv_bytes  # 2 * 32 * 1000 * 256; 1000 * 8 * 256 * 2 B
    (16384000.0, 4096000.0)
    """
    value_dim = head_dim if value_dim is None else value_dim
    width = kv_heads * (head_dim + value_dim) if kv_width is None else kv_width
    cache = sequences * context_tokens * width * BYTES_PER_VALUE[kv_dtype]
    queries = sequences * heads * (head_dim + value_dim) * ACTIVATION_BYTES
    return Operator(
        path,
        "attention_decode",
        flops=2.0 * sequences * heads * context_tokens * (head_dim + value_dim),
        hbm_bytes=cache + queries,
        kv_bytes=cache,
        kv_dtype=kv_dtype,
        tokens=1.0,
        sequences=sequences,
        context_tokens=context_tokens,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )


def attention_prefill(
    path: str,
    *,
    sequences: float,
    new_tokens: float,
    cached_tokens: float,
    heads: float,
    kv_heads: float,
    head_dim: int,
    value_dim: int | None = None,
    kv_width: float | None = None,
    window: int | None = None,
    kv_dtype: Dtype = "bf16",
) -> Operator:
    """A causal block of new tokens per sequence, after `cached_tokens` that are already in the cache.

    Query i of n sees `cached + i` keys, at most `window`; (query, key) pairs are counted exactly, keys and values are read once.

    >>> op = attention_prefill("a", sequences=1, new_tokens=4, cached_tokens=0, heads=1, kv_heads=1, head_dim=1)
    >>> op.flops  # 1 + 2 + 3 + 4 pairs, 2 * 2 FLOP each
    40.0
    >>> attention_prefill("a", sequences=1, new_tokens=4, cached_tokens=0, heads=1, kv_heads=1, head_dim=1, window=2).flops  # 1+2+2+2
    28.0
    """
    value_dim = head_dim if value_dim is None else value_dim
    width = kv_heads * (head_dim + value_dim) if kv_width is None else kv_width
    mean_context = windowed_mean(cached_tokens, new_tokens, window)
    read = min(cached_tokens, window or cached_tokens) + new_tokens
    cache = sequences * (read + new_tokens) * width * BYTES_PER_VALUE[kv_dtype]  # read, and the new ones written
    queries = sequences * new_tokens * heads * (head_dim + value_dim) * ACTIVATION_BYTES
    return Operator(
        path,
        "attention_prefill",
        flops=2.0 * sequences * heads * new_tokens * mean_context * (head_dim + value_dim),
        hbm_bytes=cache + queries,
        kv_bytes=cache,
        kv_dtype=kv_dtype,
        tokens=new_tokens,
        sequences=sequences,
        context_tokens=mean_context,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )


def windowed_mean(start: float, tokens: float, window: int | None) -> float:
    """Mean over i = 1..tokens of `min(start + i, window)`: the KV positions a query sees while a sequence grows [tokens].

    >>> windowed_mean(0, 4, None)
    2.5
    >>> windowed_mean(10, 4, 8)
    8.0
    """
    if tokens <= 0:
        return min(start, window) if window else start
    if window is None or start + tokens <= window:
        return start + (tokens + 1) / 2
    below = max(0.0, window - start)  # steps before the window is full
    return (below * (start + (below + 1) / 2) + (tokens - below) * window) / tokens


def norm(path: str, *, tokens: float, width: int, calls: float = 1.0) -> Operator:
    """RMSNorm or LayerNorm with the residual added: two streams read, two written.

    >>> norm("layer/norm", tokens=1, width=4096).hbm_bytes  # 4 * 4096 * 2 B and the weights
    40960.0
    """
    weights = width * ACTIVATION_BYTES
    moved = 4 * tokens * width * ACTIVATION_BYTES + weights
    return Operator(
        path, "norm", calls=calls, flops=6.0 * tokens * width, hbm_bytes=moved, weight_bytes=weights, tokens=tokens, in_features=width
    )


def activation(path: str, *, tokens: float, width: float, gated: bool) -> Operator:
    """SiLU, GELU or ReLU^2, times the up projection when gated: one or two streams read, one written.

    >>> activation("layer/mlp/activation", tokens=2, width=100, gated=True).hbm_bytes  # 2 * 100 * 3 * 2 B
    1200.0
    """
    streams = 3 if gated else 2
    return Operator(
        path,
        "activation",
        flops=5.0 * tokens * width,
        hbm_bytes=streams * tokens * width * ACTIVATION_BYTES,
        tokens=tokens,
        in_features=width,
    )


def distinct_experts(experts: float, top_k: float, tokens: float) -> float:
    """Expected number of different experts that `tokens` tokens touch: `E (1 - (1 - k/E)^t)`, choices taken as uniform [-].

    >>> round(distinct_experts(8, 2, 1), 9), round(distinct_experts(8, 2, 4), 4)
    (2.0, 5.4688)
    """
    return float(experts * (1.0 - (1.0 - top_k / experts) ** tokens))


def experts(
    path: str,
    *,
    tokens: float,
    width: int,
    intermediate: float,
    total_experts: int,
    local_experts: float,
    top_k: int,
    gated: bool,
    dtype: Dtype = "bf16",
) -> Operator:
    """Grouped GEMMs of the routed experts that this rank holds, with their activation.

    Args:
        path: place in the tree.
        tokens: tokens routed over all experts, of every rank that shares them [-].
        width: residual stream [-].
        intermediate: intermediate width per expert on this rank [-].
        total_experts: experts of the layer [-].
        local_experts: experts on this rank [-].
        top_k: experts per token [-].
        gated: gate and up projection (three matrices), or two.
        dtype: storage of the expert weights.

    >>> op = experts("e", tokens=1, width=10, intermediate=4, total_experts=8, local_experts=8, top_k=2, gated=True)
    >>> op.weight_bytes  # 2 experts * 3 matrices * 10 * 4 * 2 B
    480.0
    """
    matrices = 3 if gated else 2
    per_expert = matrices * width * intermediate
    share = local_experts / total_experts
    assignments = tokens * top_k * share
    weights = distinct_experts(total_experts, top_k, tokens) * share * per_expert * BYTES_PER_VALUE[dtype]
    moved = weights + assignments * (2 * width + matrices * intermediate) * ACTIVATION_BYTES
    return Operator(
        path,
        "experts",
        flops=2.0 * assignments * per_expert,
        hbm_bytes=moved,
        weight_bytes=weights,
        dtype=dtype,
        tokens=tokens,
        in_features=width,
        out_features=intermediate,
        experts=local_experts,
        top_k=top_k,
        launches=EXPERT_LAUNCHES,
    )


def scan(
    path: str, *, sequences: float, tokens: float, heads: float, head_dim: int, state_dim: int, decode: bool, calls: float = 1.0
) -> Operator:
    """Recurrent mixer (Mamba-2, gated delta rule): the state is updated and read for every token.

    Per token and head the update and the read-out are `6 * head_dim * state_dim` FLOP. The state is read and written once per step in
    decode, once per chunk of 256 tokens in prefill.

    >>> op = scan("s", sequences=1, tokens=1, heads=1, head_dim=64, state_dim=128, decode=True)
    >>> op.flops, op.kv_bytes  # 6 * 64 * 128; 2 * 64 * 128 * 4 B
    (49152.0, 65536.0)
    """
    state = heads * head_dim * state_dim
    passes = 1.0 if decode else max(1.0, tokens / 256)
    states = 2.0 * sequences * passes * state * STATE_BYTES
    streams = sequences * tokens * (3 * heads * head_dim + 2 * state_dim) * ACTIVATION_BYTES
    return Operator(
        path,
        "scan",
        calls=calls,
        flops=6.0 * sequences * tokens * state,
        hbm_bytes=states + streams,
        kv_bytes=states,
        tokens=tokens,
        sequences=sequences,
        heads=heads,
        head_dim=head_dim,
        out_features=state_dim,
        launches=1.0 if decode else SCAN_LAUNCHES,
    )


def collective(path: str, kind: Kind, *, tokens: float, width: float, group_size: int, hosts: int = 1) -> Operator:
    """A collective or a transfer of `tokens * width` 16-bit values per rank; the formulas for the wire stand in `physics`.

    >>> collective("layer/mlp/all_reduce", "all_reduce", tokens=8, width=4096, group_size=4).payload_bytes
    65536.0
    """
    payload = tokens * width * ACTIVATION_BYTES
    return Operator(path, kind, payload_bytes=payload, group_size=group_size, hosts=hosts, tokens=tokens, in_features=width)


def all_reduce(path: str, *, tokens: float, width: int, group_size: int, hosts: int = 1) -> Operator:
    """Sum over ranks, result on all: `tokens * width` values per rank.

    >>> all_reduce("r", tokens=1, width=8192, group_size=8).payload_bytes
    16384.0
    """
    return collective(path, "all_reduce", tokens=tokens, width=width, group_size=group_size, hosts=hosts)


def all_gather(path: str, *, tokens: float, width: float, group_size: int, hosts: int = 1) -> Operator:
    """Every rank's `tokens * width` values on all ranks.

    >>> all_gather("g", tokens=1, width=16032, group_size=8).payload_bytes
    32064.0
    """
    return collective(path, "all_gather", tokens=tokens, width=width, group_size=group_size, hosts=hosts)


def reduce_scatter(path: str, *, tokens: float, width: int, group_size: int, hosts: int = 1) -> Operator:
    """Sum over ranks of `tokens * width` values each, every rank keeping its share.

    >>> reduce_scatter("s", tokens=8, width=7168, group_size=8).payload_bytes
    114688.0
    """
    return collective(path, "reduce_scatter", tokens=tokens, width=width, group_size=group_size, hosts=hosts)


def all_to_all(path: str, *, tokens: float, width: int, group_size: int, hosts: int = 1) -> Operator:
    """Every rank sends a different part of its `tokens * width` values to every other rank (expert dispatch and combine).

    >>> all_to_all("d", tokens=8, width=7168, group_size=8).payload_bytes
    114688.0
    """
    return collective(path, "all_to_all", tokens=tokens, width=width, group_size=group_size, hosts=hosts)


def send_recv(path: str, *, tokens: float, width: float, hosts: int = 1) -> Operator:
    """One stage's output to the next stage's rank of the same place.

    >>> send_recv("p", tokens=1, width=4096).payload_bytes
    8192.0
    """
    return collective(path, "send_recv", tokens=tokens, width=width, group_size=2, hosts=hosts)
